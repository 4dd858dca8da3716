//! HTTP/1 read in the plainest way: what is not plain is not read.

/// A request or an answer.
#[derive(Debug)]
pub(super) struct Message<'a> {
    /// The three parts of its first line; the last one of an answer may be empty.
    pub(super) start: [&'a [u8]; 3],
    pub(super) fields: Vec<(String, &'a [u8])>,
}

impl<'a> Message<'a> {
    /// Takes a head from the front.
    pub(super) fn head(bytes: &mut &'a [u8]) -> Option<Self> {
        let mut first = line(bytes)?;
        while first.is_empty() {
            first = line(bytes)?;
        }
        let mut parts = first.splitn(3, |byte| *byte == b' ');
        let start = [parts.next()?, parts.next()?, parts.next().unwrap_or_default()];
        let mut fields = Vec::new();
        loop {
            let line = line(bytes)?;
            if line.is_empty() {
                return Some(Self { start, fields });
            }
            fields.push(field(line)?);
        }
    }

    pub(super) fn values(&self, name: &str) -> Vec<&'a [u8]> {
        let named = self.fields.iter().filter(|(other, _)| other == name);
        named.map(|(_, value)| *value).collect()
    }

    /// Takes the body that such a head announces from the front; `None` where it is not whole or not plain. An answer without a length goes on
    /// to the end.
    pub(super) fn body(&self, is_answer: bool, bytes: &mut &'a [u8]) -> Option<Vec<u8>> {
        let codings = self.values("transfer-encoding");
        if !codings.is_empty() {
            return match codings[..] {
                [one] if one.eq_ignore_ascii_case(b"chunked") => chunks(bytes),
                _ => None,
            };
        }
        let lengths = self.values("content-length");
        let length = match lengths.split_first() {
            None if is_answer => bytes.len(),
            None => 0,
            Some((first, others)) => {
                // The same once more is the same.
                if others.iter().any(|other| number(other) != number(first)) {
                    return None;
                }
                number(first)?
            }
        };
        let (body, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        Some(body.to_vec())
    }
}

/// A line that ends with a line feed, before which a carriage return may stand. It has no other controls than tabs.
fn line<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    *bytes = &bytes[end + 1..];
    let is_plain = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    line.iter().all(is_plain).then_some(line)
}

fn field(line: &[u8]) -> Option<(String, &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let name = &line[..colon];
    if name.is_empty() || !name.iter().all(is_token) {
        return None;
    }
    let mut value = &line[colon + 1..];
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    Some((String::from_utf8(name.to_ascii_lowercase()).ok()?, value))
}

fn number(text: &[u8]) -> Option<usize> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

fn chunks(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        // In what follows a size, which nobody reads, anything may stand.
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let head = bytes[..end].strip_suffix(b"\r")?;
        *bytes = &bytes[end + 1..];
        let digits = head.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let rest = head[digits..].trim_ascii_start();
        if digits == 0 || !(rest.is_empty() || rest.starts_with(b";")) {
            return None;
        }
        let size = usize::from_str_radix(std::str::from_utf8(&head[..digits]).ok()?, 16).ok()?;
        if size == 0 {
            break;
        }
        let (chunk, behind) = bytes.split_at_checked(size)?;
        body.extend_from_slice(chunk);
        *bytes = behind.strip_prefix(b"\r\n")?;
    }
    while !line(bytes)?.is_empty() {}
    Some(body)
}
