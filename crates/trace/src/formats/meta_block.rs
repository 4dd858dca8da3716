//! `meta-block`: Meta's traces of the block storage Tectonic.

use crate::fields::{Fault, Field, Fields};
use crate::request::{Op, Request};
use crate::text::LineParser;

/// CSV with a header that names at least `block_id`, `io_size` and `op_name`, and `op_time` where there are times. The key is
/// the block's id, which is text and is hashed; the size is that of the I/O. `getChunkData…` are gets, `putChunk…` sets. A
/// record is one request whatever its `op_count`, offset and length.
#[derive(Default)]
pub(crate) struct MetaBlock {
    key: usize,
    op: usize,
    size: usize,
    time: Option<usize>,
    columns: usize,
}

/// Whether a line is the header of this format.
pub(crate) fn is_header(line: &[u8]) -> bool {
    let names: Vec<&[u8]> = line.split(|&byte| byte == b',').collect();
    [&b"block_id"[..], b"io_size", b"op_name"]
        .iter()
        .all(|name| names.contains(name))
}

impl LineParser for MetaBlock {
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
        *self = MetaBlock {
            key: required("block_id")?,
            op: required("op_name")?,
            size: required("io_size")?,
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
                request.key = fields.required("block_id")?.text_key()?;
            } else if column == self.op {
                request.op = op_of(fields.required("op_name")?)?;
            } else if column == self.size {
                request.size = Some(fields.required("io_size")?.unsigned()?);
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
    if field.bytes.starts_with(b"getChunkData") {
        Ok(Op::Get)
    } else if field.bytes.starts_with(b"putChunk") {
        Ok(Op::Set)
    } else {
        Err(field.fault("getChunkData... or putChunk..."))
    }
}

#[cfg(test)]
mod tests {
    use twox_hash::XxHash3_64;

    use crate::testing::{damage, request, requests};
    use crate::{Format, Op};

    const HEADER: &str = "op_time,block_id,block_id_size,io_size,io_offset,user_name,op_name,op_count\n";

    #[test]
    fn a_record_is_one_request_of_its_block() {
        let rows =
            "10,a-1,40,8388608,0,7,getChunkData.Permanent,3\n11,b-2,40,5,512,7,putChunk.NotInitialized,1\n";
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
