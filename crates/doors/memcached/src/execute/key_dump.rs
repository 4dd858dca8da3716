//! lru_crawler metadump: a line for each object in the DRAM tier, as memcached writes it.

use super::Output;
use pumice::Listed;
use pumice_device::Buffer;

/// memcached ends these lines with a lone LF. Pumice keeps no time of the last access, and has one class.
pub(crate) fn line<B: Buffer>(listed: &Listed, output: &mut Output<B>) {
    output.text("key=");
    percent_encoded(&listed.key, output);
    match listed.expiry {
        0 => output.text(" exp=-1"),
        expiry => {
            output.text(" exp=");
            output.number(u64::from(expiry));
        }
    }
    output.text(" la=0 cas=");
    output.number(listed.version);
    output.text(if listed.is_used { " fetch=yes" } else { " fetch=no" });
    output.text(" cls=1 size=");
    output.number(listed.bytes());
    output.text("\n");
}

/// As in a URI: all but letters, digits and `-._~` as `%` and two digits.
fn percent_encoded<B: Buffer>(key: &[u8], output: &mut Output<B>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in key {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => output.text([*byte]),
            _ => output.text([
                b'%',
                DIGITS[usize::from(byte >> 4)],
                DIGITS[usize::from(byte & 15)],
            ]),
        }
    }
}
