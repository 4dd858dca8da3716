//! Clients that speak another protocol: closed, since both would wait for each other for ever.

/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// The name of the protocol of a connection that begins so, if it is known not to be one of memcached's.
pub(super) fn recognise(first: u8) -> Option<&'static str> {
    (first == TLS_HANDSHAKE).then_some("TLS")
}
