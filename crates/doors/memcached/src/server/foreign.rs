//! Clients that speak another protocol: told so in it, or closed, since both would wait for each other for ever.

/// The first byte of each request of memcached's binary protocol, which SASL needs.
const BINARY_REQUEST: u8 = 0x80;

/// A binary response of 24 bytes with status 0x81, and a message of 15.
const UNKNOWN_COMMAND: &[u8] = b"\x81\0\0\0\0\0\0\x81\0\0\0\x0f\0\0\0\0\0\0\0\0\0\0\0\0Unknown command";

/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// The name of the protocol of a connection that begins so, if it is known not to be memcached's text protocol.
pub(super) fn recognise(input: &[u8]) -> Option<&'static str> {
    match *input.first()? {
        BINARY_REQUEST => Some("memcached's binary protocol"),
        TLS_HANDSHAKE => Some("TLS"),
        _ => None,
    }
}

/// What a connection that begins so is told before it is closed: to a binary request that its command is unknown, to others nothing.
/// The rest of the request is not waited for.
pub(super) fn answer(input: &[u8]) -> &'static [u8] {
    match input.first() {
        Some(&BINARY_REQUEST) => UNKNOWN_COMMAND,
        _ => b"",
    }
}
