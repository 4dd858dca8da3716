//! Keys as they go over the wire: printable, all of one length.

/// Digits that 64 bits take, at 6 bits each.
const DIGITS: usize = 11;
/// The longest key of the protocol.
const KEY_BYTES_MAX: usize = 250;
const ALPHABET: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-";

/// How keys are written: a prefix, zeros up to the length wanted, and 11 digits.
#[derive(Clone, Debug)]
pub struct KeyText {
    template: Vec<u8>,
}

impl KeyText {
    /// Keys of `size` bytes that begin with `prefix`; without a size 16 bytes, or what the prefix needs.
    ///
    /// # Errors
    /// What is wrong with the prefix or the size.
    pub fn new(prefix: &str, size: Option<usize>) -> Result<Self, String> {
        if !prefix.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "key prefix `{prefix}`: only printable ASCII without spaces"
            ));
        }
        let least = prefix.len() + DIGITS;
        let size = size.unwrap_or(least.max(16));
        if size < least || size > KEY_BYTES_MAX {
            return Err(format!(
                "key size {size}: a key has at least {DIGITS} bytes and the prefix ({least}), and at most {KEY_BYTES_MAX}"
            ));
        }
        let mut template = prefix.as_bytes().to_vec();
        template.resize(size, b'0');
        Ok(KeyText { template })
    }

    /// Bytes of every key.
    pub fn size(&self) -> usize {
        self.template.len()
    }

    /// Appends a key.
    pub fn append(&self, out: &mut Vec<u8>, key: u64) {
        let fixed = self.template.len() - DIGITS;
        out.extend_from_slice(&self.template[..fixed]);
        out.extend_from_slice(&digits(key));
    }

    /// Whether `text` is this key.
    pub fn is(&self, text: &[u8], key: u64) -> bool {
        text.split_last_chunk::<DIGITS>().is_some_and(|(fixed, last)| {
            *last == digits(key) && *fixed == self.template[..self.template.len() - DIGITS]
        })
    }

    /// The key as text, for messages.
    pub fn show(&self, key: u64) -> String {
        let mut text = Vec::new();
        self.append(&mut text, key);
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn digits(key: u64) -> [u8; DIGITS] {
    let mut digits = [0; DIGITS];
    for (place, digit) in digits.iter_mut().rev().enumerate() {
        *digit = ALPHABET[(key >> (6 * place)) as usize & 63];
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_printable_different_and_of_one_length() {
        let keys = KeyText::new("user:", Some(20)).unwrap();
        let mut seen = std::collections::HashSet::new();
        for key in [0, 1, 63, 64, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 60] {
            let text = keys.show(key);
            assert_eq!(text.len(), 20);
            assert!(
                text.starts_with("user:0000") && text.bytes().all(|byte| byte.is_ascii_graphic()),
                "{text}"
            );
            assert!(keys.is(text.as_bytes(), key) && !keys.is(text.as_bytes(), key ^ 1));
            assert!(seen.insert(text));
        }
        assert!(!keys.is(b"", 0) && !keys.is(b"00000000000", 0) && !keys.is(&[b'0'; 20], 0));
        assert_eq!(KeyText::new("", None).unwrap().size(), 16);
        assert_eq!(KeyText::new("a-long-prefix:", None).unwrap().size(), 25);
    }

    #[test]
    fn keys_that_the_protocol_cannot_carry_are_refused() {
        for (prefix, size) in [
            ("a b", None),
            ("ä", None),
            ("", Some(10)),
            ("abc", Some(13)),
            ("", Some(251)),
        ] {
            assert!(KeyText::new(prefix, size).is_err(), "{prefix} {size:?}");
        }
    }
}
