//! `time-id-size` and `jedi`: a time, a numeric id and a size, separated by blanks or commas.

use crate::fields::{Fault, Fields};
use crate::request::Request;
use crate::text::LineParser;

/// `time id size`, blank separated, size in bytes.
pub(crate) struct TimeIdSize;

impl LineParser for TimeIdSize {
    fn line(&mut self, line: &[u8], out: &mut Vec<Request>) -> Result<(), Fault> {
        out.push(triple(Fields::blanks(line), 1)?);
        Ok(())
    }
}

/// `time,id,size`, size in units of 1000 bytes.
pub(crate) struct Jedi;

impl LineParser for Jedi {
    fn line(&mut self, line: &[u8], out: &mut Vec<Request>) -> Result<(), Fault> {
        out.push(triple(Fields::delimited(line, b','), 1000)?);
        Ok(())
    }
}

fn triple(mut fields: Fields<'_>, size_unit: u64) -> Result<Request, Fault> {
    let time = fields.required("time")?.time()?;
    let key = fields.required("id")?.integer_key()?;
    let size_field = fields.required("size")?;
    let size = size_field
        .unsigned()?
        .checked_mul(size_unit)
        .ok_or_else(|| size_field.fault("a size below 2^64 bytes"))?;
    fields.finish()?;
    Ok(Request {
        key,
        size: Some(size),
        time,
        ..Request::BLANK
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{damage, request, requests};
    use crate::{Format, Op};

    #[test]
    fn time_id_size_is_read_with_any_blanks_and_line_ends() {
        let read = requests(
            Format::TimeIdSize,
            b"1 42 700\n2\t-3\t0\r\n\n  3.5   18446744073709551615 9 \n4 42 8",
        );
        let expected = [
            request(42, Some(700), 1, Op::Get),
            request(-3i64 as u64, Some(0), 2, Op::Get),
            request(u64::MAX, Some(9), 3, Op::Get),
            request(42, Some(8), 4, Op::Get),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn damaged_time_id_size_is_named_by_record_and_byte() {
        let damaged = |text: &str| damage(Format::TimeIdSize, text.as_bytes());
        assert_eq!(
            damaged("1 2 3\n1 x 3\n"),
            (2, 8, "id: expected a 64-bit number, found `x`".into())
        );
        assert_eq!(
            damaged("1 2 3\n1 2\n"),
            (2, 9, "the line ends before the size".into())
        );
        assert_eq!(
            damaged("1 2 3 4\n"),
            (1, 6, "expected the end of the line, found `4`".into())
        );
        let (record, offset, what) = damaged("1 2 3\n\n1 2 18446744073709551616\n");
        assert_eq!((record, offset), (2, 11));
        assert!(what.contains("found `18446744073709551616`"), "{what}");
        assert_eq!(damaged("1 2 3\n\u{0}\u{0}").0, 2);
    }

    #[test]
    fn jedi_sizes_are_thousands_of_bytes() {
        let read = requests(Format::Jedi, b"1,7,30\n1,8,1\n");
        assert_eq!(
            read,
            [
                request(7, Some(30_000), 1, Op::Get),
                request(8, Some(1000), 1, Op::Get)
            ]
        );
    }

    #[test]
    fn damaged_jedi_is_named_by_record_and_byte() {
        let damaged = |text: &str| damage(Format::Jedi, text.as_bytes());
        assert_eq!(damaged("1,7,30\n1,,3\n").0, 2);
        assert_eq!(damaged("1,7,30\n1,7\n").1, 10);
        let (record, offset, what) = damaged("1,7,30000000000000000000\n");
        assert_eq!((record, offset), (1, 4));
        assert!(what.contains("found `30000000000000000000`"), "{what}");
        assert!(damaged("1,7,3000000000000000000\n").2.contains("below 2^64"));
        assert_eq!(damaged("1,7,3,\n").1, 6);
    }
}
