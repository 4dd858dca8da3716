//! Going through a table piece by piece, with time for others in between.

use super::{PackedTable, read_passed};

impl PackedTable {
    /// Calls `visit` with every (tag, payload) from tag `from` on, up to where about `buckets` buckets end. Returns the tag to go on
    /// from, `None` at the end.
    ///
    /// The table may change between two calls, and grow or shrink: a piece is a range of tags, not of buckets. What is there
    /// all the time is visited once, as often as it is there.
    pub fn visit_from(&self, from: u64, buckets: usize, mut visit: impl FnMut(u64, u64)) -> Option<u64> {
        let all = self.buckets();
        if all == 0 {
            return None;
        }
        let first = self.home(from);
        let end = first + buckets.max(1);
        let end_tag = (end < all).then(|| self.first_tag_of(end));
        let mut bucket = first;
        for number in 0..all {
            for slot in 0..self.count(bucket) {
                let (tag, payload) = self.entry(bucket, slot);
                if tag >= from && end_tag.is_none_or(|end| tag < end) {
                    visit(tag, payload);
                }
            }
            // What is at home in the piece stands behind it only where all buckets up to there were found full.
            if first + number + 1 >= end.min(all) && read_passed(self.bucket(bucket)) == 0 {
                break;
            }
            bucket = if bucket + 1 == all { 0 } else { bucket + 1 };
        }
        end_tag
    }

    /// The lowest tag whose home is this bucket or a later one.
    fn first_tag_of(&self, bucket: usize) -> u64 {
        let wide = ((bucket as u128) << self.shape.tag_bits).div_ceil(self.buckets() as u128);
        u64::try_from(wide).expect("below the number of tags")
    }
}
