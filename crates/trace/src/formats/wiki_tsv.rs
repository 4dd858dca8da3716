//! `wiki-tsv`: the Wikimedia Foundation's caching data set.

use crate::fields::{Fault, Fields, Header};
use crate::request::Request;
use crate::text::LineParser;

/// Tab-separated text. Columns go by their names in the header; without one they are taken to be time, key, size and
/// time to the first byte. The key is a signed 64-bit hash.
pub(crate) struct WikiTsv {
    time: usize,
    key: usize,
    size: usize,
    columns: usize,
}

const TIME: &str = "relative_unix";
const KEY: &str = "hashed_host_path_query";
const SIZE: &str = "response_size";

/// Whether a line is the header of this format.
pub(crate) fn is_header(line: &[u8]) -> bool {
    Header::of(line, b'\t').has_all(&[TIME, KEY, SIZE])
}

impl WikiTsv {
    pub(crate) fn new() -> Self {
        WikiTsv {
            time: 0,
            key: 1,
            size: 2,
            columns: 4,
        }
    }
}

impl LineParser for WikiTsv {
    fn has_sizes(&self) -> bool {
        true
    }

    fn header(&mut self, line: &[u8]) -> Result<bool, Fault> {
        if line.first().is_some_and(u8::is_ascii_digit) {
            return Ok(false);
        }
        let header = Header::of(line, b'\t');
        *self = WikiTsv {
            time: header.required(TIME)?,
            key: header.required(KEY)?,
            size: header.required(SIZE)?,
            columns: header.len(),
        };
        Ok(true)
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<Request>) -> Result<(), Fault> {
        let mut request = Request::BLANK;
        let mut fields = Fields::delimited(line, b'\t');
        for column in 0..self.columns {
            if column == self.time {
                request.time = fields.required("time")?.time()?;
            } else if column == self.key {
                request.key = fields.required("key")?.integer_key()?;
            } else if column == self.size {
                request.size = Some(fields.required("size")?.unsigned()?);
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
    use crate::testing::{damage, request, requests};
    use crate::{Format, Op};

    const HEADER: &str = "relative_unix\thashed_host_path_query\tresponse_size\ttime_firstbyte\r\n";

    #[test]
    fn columns_go_by_the_header_and_by_position_without_one() {
        let expected = [
            request(-5i64 as u64, Some(100), 9, Op::Get),
            request(6, Some(0), 10, Op::Get),
        ];
        let rows = "9\t-5\t100\t1.5E-4\r\n10\t6\t0\t0.1\r\n";
        assert_eq!(
            requests(Format::WikiTsv, format!("{HEADER}{rows}").as_bytes()),
            expected
        );
        assert_eq!(requests(Format::WikiTsv, rows.as_bytes()), expected);
        let upload = "relative_unix\thashed_host_path_query\timage_type\tresponse_size\ttime_firstbyte\n\
                      9\t-5\tjpeg\t100\t0.2\n10\t6\tpng\t0\t0.2\n";
        assert_eq!(requests(Format::WikiTsv, upload.as_bytes()), expected);
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let damaged = |rows: &str| damage(Format::WikiTsv, format!("{HEADER}{rows}").as_bytes());
        let start = HEADER.len() as u64;
        assert_eq!(
            damaged("9\t5\t1\t0.1\n9\t5\n"),
            (2, start + 13, "the line ends before the size".into())
        );
        assert_eq!(damaged("9\t5\t-1\t0.1\n").1, start + 4);
        assert_eq!(damaged("9\t5\t1\t0.1\tmore\n").1, start + 10);
        assert_eq!(damaged("9\t5\t1\n").2, "the line ends before the last column");
        let headless = damage(Format::WikiTsv, b"relative_unix\tkey\n");
        assert_eq!(
            headless,
            (1, 0, "the header has no column `hashed_host_path_query`".into())
        );
    }
}
