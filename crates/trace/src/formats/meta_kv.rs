//! `meta-kv`: Meta's kvcache traces.

use crate::fields::{Fault, Field, Fields};
use crate::request::{Op, Request};
use crate::text::LineParser;

/// CSV with a header that names at least `key`, `op` and `size`, and `op_time` where there are times. The key is text
/// and is hashed; the size is that of the value. `GET` and `GET_LEASE` are gets, `SET` and `SET_LEASE` sets. A record
/// is one request whatever its `op_count`.
#[derive(Default)]
pub(crate) struct MetaKv {
    key: usize,
    op: usize,
    size: usize,
    time: Option<usize>,
    columns: usize,
}

/// Whether a line is the header of this format.
pub(crate) fn is_header(line: &[u8]) -> bool {
    let names: Vec<&[u8]> = line.split(|&byte| byte == b',').collect();
    [&b"key"[..], b"op", b"size", b"key_size", b"op_count"]
        .iter()
        .all(|name| names.contains(name))
}

impl LineParser for MetaKv {
    fn has_sizes(&self) -> bool {
        true
    }

    fn has_ops(&self) -> bool {
        true
    }

    fn header(&mut self, line: &[u8]) -> Result<bool, Fault> {
        let names: Vec<&[u8]> = line.split(|&byte| byte == b',').collect();
        let column = |wanted: &str| names.iter().position(|name| *name == wanted.as_bytes());
        let required = |wanted: &str| {
            column(wanted).ok_or_else(|| Fault {
                at: 0,
                what: format!("the header has no column `{wanted}`"),
            })
        };
        *self = MetaKv {
            key: required("key")?,
            op: required("op")?,
            size: required("size")?,
            time: column("op_time"),
            columns: names.len(),
        };
        Ok(true)
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<Request>) -> Result<(), Fault> {
        let mut request = Request {
            key: 0,
            size: None,
            time: 0,
            op: Op::Get,
        };
        let mut fields = Fields::delimited(line, b',');
        for column in 0..self.columns {
            if column == self.key {
                request.key = fields.required("key")?.text_key()?;
            } else if column == self.op {
                request.op = op_of(fields.required("op")?)?;
            } else if column == self.size {
                request.size = Some(fields.required("size")?.unsigned()?);
            } else if Some(column) == self.time {
                request.time = fields.required("op_time")?.time()?;
            } else {
                fields.required("last column")?;
            }
        }
        fields.finish()?;
        out.push(request);
        Ok(())
    }
}

fn op_of(field: Field<'_>) -> Result<Op, Fault> {
    match field.bytes {
        b"GET" | b"GET_LEASE" => Ok(Op::Get),
        b"SET" | b"SET_LEASE" => Ok(Op::Set),
        b"DELETE" => Ok(Op::Delete),
        _ => Err(field.fault("GET, GET_LEASE, SET, SET_LEASE or DELETE")),
    }
}

#[cfg(test)]
mod tests {
    use twox_hash::XxHash3_64;

    use crate::testing::{damage, request, requests};
    use crate::{Format, Op};

    const HEADER: &str = "op_time,key,key_size,op,op_count,size,cache_hits,ttl,usecase,sub_usecase\n";

    #[test]
    fn operations_sizes_and_hashed_keys_are_read() {
        let rows = "10,aa,4,GET,3,87,1,0,1,2\n11,bb,4,SET_LEASE,1,12,0,60,1,2\n12,aa,4,DELETE,1,0,0,0,1,2\n";
        let (aa, bb) = (XxHash3_64::oneshot(b"aa"), XxHash3_64::oneshot(b"bb"));
        let expected = [
            request(aa, Some(87), 10, Op::Get),
            request(bb, Some(12), 11, Op::Set),
            request(aa, Some(0), 12, Op::Delete),
        ];
        assert_eq!(
            requests(Format::MetaKv, format!("{HEADER}{rows}").as_bytes()),
            expected
        );
        let other_order = "key,op,size,op_count,key_size\naa,GET_LEASE,87,1,4\n";
        assert_eq!(
            requests(Format::MetaKv, other_order.as_bytes()),
            [request(aa, Some(87), 0, Op::Get)]
        );
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let start = HEADER.len() as u64;
        let damaged = |rows: &str| damage(Format::MetaKv, format!("{HEADER}{rows}").as_bytes());
        let (record, offset, what) = damaged("10,aa,4,GETT,3,87,1,0,1,2\n");
        assert_eq!((record, offset), (1, start + 8));
        assert!(what.ends_with("found `GETT`"), "{what}");
        assert_eq!(damaged("10,aa,4,GET,3,8x,1,0,1,2\n").1, start + 14);
        assert_eq!(damaged("10,,4,GET,3,8,1,0,1,2\n").1, start + 3);
        assert_eq!(
            damaged("10,aa,4,GET,3,87,1\n").2,
            "the line ends before the last column"
        );
        assert_eq!(damaged("10,aa,4,GET,3,87,1,0,1,2,9\n").1, start + 25);
        assert_eq!(
            damage(Format::MetaKv, b"1,aa,4,GET\n").2,
            "the header has no column `key`"
        );
    }
}
