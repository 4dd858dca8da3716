//! `nasa-tsv`: the HTTP logs of NASA's Kennedy Space Center (1995) as tab-separated text.

use crate::fields::{Fault, Fields, Header};
use crate::request::Request;
use crate::text::LineParser;

/// Tab-separated text: `host logname time method url response bytes`. Columns go by their names in the header; without one
/// they are taken to be these, and further ones are ignored. The key is the URL, which is text and is hashed; the size is the
/// bytes of the reply, 0 where there are none (`-` or nothing). Every record is a get, whatever its method and response.
pub(crate) struct NasaTsv {
    time: usize,
    url: usize,
    bytes: usize,
}

const COLUMNS: [&str; 3] = ["time", "url", "bytes"];

/// Whether a line is the header of this format.
pub(crate) fn is_header(line: &[u8]) -> bool {
    let header = Header::of(line, b'\t');
    header.has_all(&COLUMNS) && header.has_all(&["host"])
}

impl NasaTsv {
    pub(crate) fn new() -> Self {
        NasaTsv {
            time: 2,
            url: 4,
            bytes: 6,
        }
    }
}

impl LineParser for NasaTsv {
    fn has_sizes(&self) -> bool {
        true
    }

    fn header(&mut self, line: &[u8]) -> Result<bool, Fault> {
        let header = Header::of(line, b'\t');
        let [time, url, bytes] = COLUMNS.map(|name| header.column(name));
        if let (Some(time), Some(url), Some(bytes)) = (time, url, bytes) {
            *self = NasaTsv { time, url, bytes };
            return Ok(true);
        }
        Ok(false)
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<Request>) -> Result<(), Fault> {
        let mut request = Request::BLANK;
        let mut fields = Fields::delimited(line, b'\t');
        let last = self.time.max(self.url).max(self.bytes);
        for column in 0..=last {
            if column == self.time {
                request.time = fields.required("time")?.time()?;
            } else if column == self.url {
                request.key = fields.required("url")?.text_key()?;
            } else if column == self.bytes {
                let bytes = fields.required("bytes")?;
                request.size = Some(match bytes.bytes {
                    b"" | b"-" => 0,
                    _ => bytes.unsigned()?,
                });
            } else {
                fields.required("last column")?;
            }
        }
        out.push(request);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use twox_hash::XxHash3_64;

    use crate::testing::{damage, request, requests};
    use crate::{Format, Op};

    const HEADER: &str = "host\tlogname\ttime\tmethod\turl\tresponse\tbytes\treferer\tuseragent\n";

    #[test]
    fn columns_go_by_the_header_and_by_position_without_one() {
        let rows = "a.example\t-\t807301196\tGET\t/x.html\t200\t8677\t\t\n\
                    b.example\t-\t807301197\tHEAD\t/x.html\t304\t-\t\t\nc\t-\t807301198\tGET\t/y\t404\t\n";
        let (x, y) = (XxHash3_64::oneshot(b"/x.html"), XxHash3_64::oneshot(b"/y"));
        let expected = [
            request(x, Some(8677), 807_301_196, Op::Get),
            request(x, Some(0), 807_301_197, Op::Get),
            request(y, Some(0), 807_301_198, Op::Get),
        ];
        assert_eq!(
            requests(Format::NasaTsv, format!("{HEADER}{rows}").as_bytes()),
            expected
        );
        assert_eq!(requests(Format::NasaTsv, rows.as_bytes()), expected);
        let other = "url\tbytes\thost\ttime\n/y\t5\th\t7\n";
        assert_eq!(
            requests(Format::NasaTsv, other.as_bytes()),
            [request(y, Some(5), 7, Op::Get)]
        );
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let start = HEADER.len() as u64;
        let damaged = |rows: &str| damage(Format::NasaTsv, format!("{HEADER}{rows}").as_bytes());
        assert_eq!(damaged("h\t-\tx\tGET\t/\t200\t5\n").1, start + 4);
        assert_eq!(damaged("h\t-\t1\tGET\t\t200\t5\n").1, start + 10);
        assert_eq!(damaged("h\t-\t1\tGET\t/\t200\tx\n").1, start + 16);
        assert_eq!(
            damaged("h\t-\t1\tGET\t/\t200\n").2,
            "the line ends before the bytes"
        );
        assert_eq!(damage(Format::NasaTsv, b"host\turl\n").0, 1);
    }
}
