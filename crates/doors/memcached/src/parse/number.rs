//! Numbers as memcached reads them: decimal, an optional sign, nothing after.

/// An unsigned number in 0..2^64.
pub(super) fn unsigned(token: &[u8]) -> Option<u64> {
    let digits = token.strip_prefix(b"+").unwrap_or(token);
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Client flags: 32 bits.
pub(super) fn flags(token: &[u8]) -> Option<u32> {
    u32::try_from(unsigned(token)?).ok()
}

/// A time: memcached reads 32 bits, with a sign, and some clients send negative times as numbers without one. Other numbers are what they are.
pub(super) fn exptime(token: &[u8]) -> Option<i64> {
    let secs = signed(token)?;
    Some(match u32::try_from(secs) {
        Ok(wrapped) => i64::from(wrapped as i32),
        Err(_) => secs,
    })
}

/// A signed number in -2^63..2^63.
fn signed(token: &[u8]) -> Option<i64> {
    match token.strip_prefix(b"-") {
        // A sign after the sign is no number.
        Some(digits) if digits.starts_with(b"+") => None,
        Some(digits) => 0i64.checked_sub_unsigned(unsigned(digits)?),
        None => i64::try_from(unsigned(token)?).ok(),
    }
}

/// The number at the start of a value, for incr and decr: space before it and anything after a space or NUL are
/// passed over, as C's `strtoull` does in memcached.
pub(crate) fn in_value(value: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let start = value.iter().position(|byte| !is_space(byte))?;
    let value = &value[start..];
    let end = value
        .iter()
        .position(|byte| is_space(byte) || *byte == 0)
        .unwrap_or(value.len());
    unsigned(&value[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stop_at_their_range() {
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(flags(b"4294967295"), Some(u32::MAX));
        assert_eq!(flags(b"4294967296"), None);
        assert_eq!(signed(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(signed(b"9223372036854775808"), None);
    }

    #[test]
    fn times_of_32_bits_have_a_sign() {
        for (text, secs) in [
            (&b"2147483647"[..], (1 << 31) - 1),
            (b"2147483648", -1 << 31),
            (b"4294966696", -600),
            (b"4294967295", -1),
            (b"4294967296", 1 << 32),
            (b"-2147483649", -(1 << 31) - 1),
        ] {
            assert_eq!(exptime(text), Some(secs));
        }
        assert_eq!(exptime(b"1x"), None);
    }

    #[test]
    fn only_digits_and_one_sign_make_a_number() {
        for bad in [&b""[..], b"+", b"-", b"1x", b"0x7", b" 1", b"-+1", b"+-1", b"++1"] {
            assert_eq!(signed(bad), None, "{bad:?}");
        }
        assert_eq!(signed(b"+07"), Some(7));
        assert_eq!(unsigned(b"-1"), None);
    }

    #[test]
    fn a_value_may_be_padded() {
        assert_eq!(in_value(b" 12  "), Some(12));
        assert_eq!(in_value(b"1\0x"), Some(1));
        assert_eq!(in_value(b"000000000000000000001"), Some(1));
        for bad in [&b""[..], b"  ", b"-1", b"1x", b"18446744073709551616"] {
            assert_eq!(in_value(bad), None, "{bad:?}");
        }
    }
}
