//! `twitter`: the open traces of Twitter's in-memory caches.

use crate::fields::{Fault, Field, parse_u64};
use crate::request::{Op, Request};
use crate::text::LineParser;

/// `time,key,key size,value size,client,operation,ttl`. The key is text and is hashed; it may hold commas, since the fields
/// behind it hold none. The size is that of the value. `get` and `gets` are gets, `delete` is a delete, and all that write are
/// sets.
pub(crate) struct Twitter;

const NAMES: [&str; 7] = [
    "time",
    "key",
    "key size",
    "value size",
    "client",
    "operation",
    "ttl",
];

/// Whether a line is a record of this format.
pub(crate) fn shows(line: &[u8]) -> bool {
    let Ok([time, _, key_size, value_size, _, op, ttl]) = fields_of(line) else {
        return false;
    };
    let numbers = [key_size, value_size, ttl];
    time.time().is_ok() && numbers.iter().all(|field| parse_u64(field.bytes).is_some()) && op_of(op).is_ok()
}

/// The fields of a line: the first from the left, the last five from the right, the key between.
fn fields_of(line: &[u8]) -> Result<[Field<'_>; 7], Fault> {
    let field = |index: usize, start: usize, end: usize| Field {
        name: NAMES[index],
        bytes: &line[start..end],
        at: start,
    };
    let missing = |name: &str| Fault {
        at: line.len(),
        what: format!("the line ends before the {name}"),
    };
    let first = memchr::memchr(b',', line).ok_or_else(|| missing("key"))?;
    let mut found = [field(0, 0, first); 7];
    let mut end = line.len();
    for index in (2..NAMES.len()).rev() {
        match memchr::memrchr(b',', &line[first + 1..end]) {
            Some(at) => {
                found[index] = field(index, first + 1 + at + 1, end);
                end = first + 1 + at;
            }
            // Counted from the left it is the last fields that are missing.
            None => return Err(missing(NAMES[NAMES.len() + 1 - index])),
        }
    }
    found[1] = field(1, first + 1, end);
    Ok(found)
}

fn op_of(field: Field<'_>) -> Result<Op, Fault> {
    match field.bytes {
        b"get" | b"gets" => Ok(Op::Get),
        b"set" | b"add" | b"replace" | b"cas" | b"append" | b"prepend" | b"incr" | b"decr" => Ok(Op::Set),
        b"delete" => Ok(Op::Delete),
        _ => Err(field.fault("get, gets, set, add, replace, cas, append, prepend, incr, decr or delete")),
    }
}

impl LineParser for Twitter {
    fn has_ops(&self) -> bool {
        true
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<Request>) -> Result<(), Fault> {
        let [time, key, key_size, value_size, _, op, ttl] = fields_of(line)?;
        let request = Request {
            key: key.text_key()?,
            time: time.time()?,
            op: op_of(op)?,
            ..Request::BLANK
        };
        let request = request.with_size(Some(value_size.unsigned()?));
        key_size.unsigned()?;
        ttl.unsigned()?;
        out.push(request);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use twox_hash::XxHash3_64;

    use crate::testing::{damage, request, requests};
    use crate::{Format, Op};

    #[test]
    fn operations_sizes_and_hashed_keys_are_read() {
        let rows = "0,nz:u:aa,9,116,1,get,0\n1,nz:u:aa,9,120,30,cas,3600\n2,a,b,,4,0,2,delete,0\n";
        let key = XxHash3_64::oneshot;
        assert_eq!(
            requests(Format::Twitter, rows.as_bytes()),
            [
                request(key(b"nz:u:aa"), Some(116), 0, Op::Get),
                request(key(b"nz:u:aa"), Some(120), 1, Op::Set),
                request(key(b"a,b,"), Some(0), 2, Op::Delete),
            ]
        );
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let good = "0,k,1,116,1,get,0\n";
        let start = good.len() as u64;
        let damaged = |row: &str| damage(Format::Twitter, format!("{good}{row}").as_bytes());
        let (record, offset, what) = damaged("0,k,1,116,1,fetch,0\n");
        assert_eq!((record, offset), (2, start + 12));
        assert!(what.ends_with("found `fetch`"), "{what}");
        assert_eq!(damaged("0,k,1,x,1,get,0\n").1, start + 6);
        assert_eq!(damaged("0,,1,1,1,get,0\n").1, start + 2);
        assert_eq!(damaged("0,k,1,1,1,get,x\n").1, start + 14);
        assert_eq!(damaged("0,k,1,116,1,get\n").2, "the line ends before the ttl");
        assert_eq!(damaged("0,k,1\n").2, "the line ends before the value size");
        assert_eq!(damaged("0,k\n").2, "the line ends before the key size");
        assert_eq!(damaged("0\n").2, "the line ends before the key");
    }
}
