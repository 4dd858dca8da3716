//! `arc`: the traces of the ARC paper (Megiddo and Modha, FAST 2003).

use crate::fields::{Fault, Fields};
use crate::request::{BATCH_REQUESTS, Request};
use crate::text::LineParser;

/// Most blocks one record may name; a record with more is damaged.
const MAX_BLOCKS: u64 = 1 << 24;

/// `first_block number_of_blocks ignored sequence`, blank separated; a request for each block, in ascending order. No
/// sizes and no times: the sequence number counts records.
#[derive(Default)]
pub(crate) struct Arc {
    next_block: u64,
    blocks_left: u64,
}

impl LineParser for Arc {
    fn has_sizes(&self) -> bool {
        false
    }

    fn line(&mut self, line: &[u8], _out: &mut Vec<Request>) -> Result<(), Fault> {
        let mut fields = Fields::blanks(line);
        let first = fields.required("first block")?;
        let count = fields.required("number of blocks")?;
        fields.required("third field")?.integer_key()?;
        fields.required("sequence number")?.unsigned()?;
        fields.finish()?;
        self.next_block = first.unsigned()?;
        self.blocks_left = match count.unsigned()? {
            blocks @ 1..=MAX_BLOCKS => blocks,
            _ => return Err(count.fault("a number from 1 to 16777216")),
        };
        if self.next_block.checked_add(self.blocks_left).is_none() {
            self.blocks_left = 0;
            return Err(first.fault("a block whose successors are below 2^64"));
        }
        Ok(())
    }

    fn resume(&mut self, out: &mut Vec<Request>) {
        let count = self
            .blocks_left
            .min(BATCH_REQUESTS.saturating_sub(out.len()) as u64);
        let blocks = self.next_block..self.next_block + count;
        out.extend(blocks.map(|key| Request {
            key,
            size: None,
            ..Request::BLANK
        }));
        self.next_block += count;
        self.blocks_left -= count;
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{damage, request, requests};
    use crate::{Format, Op};

    #[test]
    fn a_record_is_expanded_to_its_blocks() {
        let get = |key| request(key, None, 0, Op::Get);
        let read = requests(Format::Arc, b"100 3 0 0\n7 1 1 1\n");
        assert_eq!(read, [get(100), get(101), get(102), get(7)]);
    }

    #[test]
    fn long_records_cross_batches_without_loss() {
        let keys: Vec<u64> = requests(Format::Arc, b"10 1500 0 0\n3 700 0 1\n")
            .iter()
            .map(|r| r.key)
            .collect();
        assert_eq!(keys, (10..1510).chain(3..703).collect::<Vec<u64>>());
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let damaged = |text: &str| damage(Format::Arc, text.as_bytes());
        assert_eq!(
            damaged("1 1 0 0\n1 0 0 1\n"),
            (
                2,
                10,
                "number of blocks: expected a number from 1 to 16777216, found `0`".into()
            )
        );
        assert_eq!(damaged("1 99999999 0 0\n").1, 2);
        assert_eq!(
            damaged("1 1 0\n"),
            (1, 5, "the line ends before the sequence number".into())
        );
        assert_eq!(damaged("18446744073709551615 1 0 0\n").1, 0);
        assert_eq!(damaged("1 1 0 0 0\n").1, 8);
        assert_eq!(damaged("1,1,0,0\n").0, 1);
    }
}
