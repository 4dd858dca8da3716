//! Meta's traces: `meta-kv` of kvcache, `meta-block` of the block storage Tectonic.
//!
//! CSV with a header that names the columns, in any order; further ones are ignored. The key is text and is hashed. A record is one
//! request whatever its `op_count`.

use crate::fields::{Fault, Field, Fields, Header};
use crate::request::{Op, Request};
use crate::text::LineParser;

/// What one of the formats calls things.
pub(crate) struct Names {
    key: &'static str,
    op: &'static str,
    size: &'static str,
    /// Names that tell its header from others, beside those.
    telling: &'static [&'static str],
    op_of: fn(Field<'_>) -> Result<Op, Fault>,
}

/// `meta-kv`: the size is that of the value. `GET` and `GET_LEASE` are gets, `SET` and `SET_LEASE` sets.
pub(crate) static META_KV: Names = Names {
    key: "key",
    op: "op",
    size: "size",
    telling: &["key_size", "op_count"],
    op_of: |field| match field.bytes {
        b"GET" | b"GET_LEASE" => Ok(Op::Get),
        b"SET" | b"SET_LEASE" => Ok(Op::Set),
        b"DELETE" => Ok(Op::Delete),
        _ => Err(field.fault("GET, GET_LEASE, SET, SET_LEASE or DELETE")),
    },
};

/// `meta-block`: the key is the block's id, the size that of the I/O whatever its offset. `getChunkData…` are gets, `putChunk…` sets.
pub(crate) static META_BLOCK: Names = Names {
    key: "block_id",
    op: "op_name",
    size: "io_size",
    telling: &[],
    op_of: |field| {
        if field.bytes.starts_with(b"getChunkData") {
            Ok(Op::Get)
        } else if field.bytes.starts_with(b"putChunk") {
            Ok(Op::Set)
        } else {
            Err(field.fault("getChunkData... or putChunk..."))
        }
    },
};

impl Names {
    /// Whether a line is the header of this format.
    pub(crate) fn is_header(&self, line: &[u8]) -> bool {
        let header = Header::of(line, b',');
        header.has_all(&[self.key, self.op, self.size]) && header.has_all(self.telling)
    }
}

/// Reads lines of either format.
pub(crate) struct Meta {
    names: &'static Names,
    key: usize,
    op: usize,
    size: usize,
    time: Option<usize>,
    columns: usize,
}

impl Meta {
    pub(crate) fn new(names: &'static Names) -> Self {
        Self {
            names,
            key: 0,
            op: 0,
            size: 0,
            time: None,
            columns: 0,
        }
    }
}

impl LineParser for Meta {
    fn has_sizes(&self) -> bool {
        true
    }

    fn has_ops(&self) -> bool {
        true
    }

    fn header(&mut self, line: &[u8]) -> Result<bool, Fault> {
        let header = Header::of(line, b',');
        *self = Meta {
            names: self.names,
            key: header.required(self.names.key)?,
            op: header.required(self.names.op)?,
            size: header.required(self.names.size)?,
            time: header.column("op_time"),
            columns: header.len(),
        };
        Ok(true)
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<Request>) -> Result<(), Fault> {
        let mut request = Request::BLANK;
        let mut fields = Fields::delimited(line, b',');
        for column in 0..self.columns {
            if column == self.key {
                request.key = fields.required(self.names.key)?.text_key()?;
            } else if column == self.op {
                request.op = (self.names.op_of)(fields.required(self.names.op)?)?;
            } else if column == self.size {
                request.size = Some(fields.required(self.names.size)?.unsigned()?);
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

#[cfg(test)]
mod tests {
    mod kv {
        use twox_hash::XxHash3_64;

        use crate::testing::{damage, request, requests};
        use crate::{Format, Op};

        const HEADER: &str = "op_time,key,key_size,op,op_count,size,cache_hits,ttl,usecase,sub_usecase\n";

        #[test]
        fn operations_sizes_and_hashed_keys_are_read() {
            let rows =
                "10,aa,4,GET,3,87,1,0,1,2\n11,bb,4,SET_LEASE,1,12,0,60,1,2\n12,aa,4,DELETE,1,0,0,0,1,2\n";
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

    mod block {
        use twox_hash::XxHash3_64;

        use crate::testing::{damage, request, requests};
        use crate::{Format, Op};

        const HEADER: &str = "op_time,block_id,block_id_size,io_size,io_offset,user_name,op_name,op_count\n";

        #[test]
        fn a_record_is_one_request_of_its_block() {
            let rows = "10,a-1,40,8388608,0,7,getChunkData.Permanent,3\n11,b-2,40,5,512,7,putChunk.NotInitialized,1\n";
            let (a, b) = (XxHash3_64::oneshot(b"a-1"), XxHash3_64::oneshot(b"b-2"));
            let expected = [
                request(a, Some(8_388_608), 10, Op::Get),
                request(b, Some(5), 11, Op::Set),
            ];
            let text = format!("{HEADER}{rows}");
            assert_eq!(requests(Format::MetaBlock, text.as_bytes()), expected);
        }

        #[test]
        fn damage_is_named_by_record_and_byte() {
            let start = HEADER.len() as u64;
            let damaged = |rows: &str| damage(Format::MetaBlock, format!("{HEADER}{rows}").as_bytes());
            let (record, offset, what) = damaged("10,a,40,8,0,7,dropChunk,1\n");
            assert_eq!((record, offset), (1, start + 14));
            assert!(what.ends_with("found `dropChunk`"), "{what}");
            assert_eq!(damaged("10,a,40,-8,0,7,putChunk,1\n").1, start + 8);
            assert_eq!(
                damaged("10,a,40,8,0,7,putChunk\n").2,
                "the line ends before the last column"
            );
            assert_eq!(damaged("10,a,40,8,0,7,putChunk,1,2\n").1, start + 25);
            assert_eq!(
                damage(Format::MetaBlock, b"1,a,4\n").2,
                "the header has no column `block_id`"
            );
        }
    }
}
