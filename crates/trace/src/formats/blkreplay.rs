//! `blkreplay`: loads of the block device benchmark of that name.

use super::pages::{Extent, Pages, read_or_write};
use crate::fields::{Fault, Field, Fields, is_blank};
use crate::request::{DiskRequests, Op, Request};
use crate::text::LineParser;

/// `start ; sector ; length ; op ; replay_delay ; replay_duration`: seconds, sectors of 512 bytes, R or W. Every other line
/// is a comment, wherever it stands.
#[derive(Default)]
pub(crate) struct Blkreplay {
    pages: Pages,
}

/// Whether a line shows this format: a record, or the line that names its fields.
pub(crate) fn shows(line: &[u8]) -> bool {
    let Some(fields) = fields_of(line) else {
        return false;
    };
    let [start, sector, length, op, ..] = fields;
    let named =
        [start.bytes, sector.bytes, length.bytes, op.bytes] == [&b"start"[..], b"sector", b"length", b"op"];
    named
        || read_or_write(op).is_some()
            && start.time().is_ok()
            && sector.unsigned().is_ok()
            && length.unsigned().is_ok()
}

const NAMES: [&str; 6] = [
    "start",
    "sector",
    "length",
    "op",
    "replay delay",
    "replay duration",
];

/// The six fields of a line without the blanks around them; `None` where there are not as many.
fn fields_of(line: &[u8]) -> Option<[Field<'_>; 6]> {
    Some(Fields::delimited(line, b';').all(NAMES)?.map(trimmed))
}

fn trimmed(field: Field<'_>) -> Field<'_> {
    let lead = field.bytes.iter().take_while(|byte| is_blank(byte)).count();
    Field {
        bytes: field.bytes[lead..].trim_ascii_end(),
        at: field.at + lead,
        ..field
    }
}

impl LineParser for Blkreplay {
    fn has_ops(&self) -> bool {
        true
    }

    fn record_form(&self) -> Option<&'static str> {
        Some("start ; sector ; length ; R or W ; replay_delay ; replay_duration")
    }

    fn is_record(&self, line: &[u8]) -> bool {
        fields_of(line).is_some_and(|[_, _, _, op, ..]| read_or_write(op).is_some())
    }

    fn disk_requests(&self) -> Option<DiskRequests> {
        Some(self.pages.counts())
    }

    fn line(&mut self, line: &[u8], _out: &mut Vec<Request>) -> Result<(), Fault> {
        let Some([start, sector, sectors, op, ..]) = fields_of(line) else {
            return Ok(());
        };
        let extent = Extent {
            device: None,
            sector,
            sectors,
        };
        extent.split(
            &mut self.pages,
            start.time()?,
            read_or_write(op).unwrap_or(Op::Get),
            None,
            &[],
        )
    }

    fn resume(&mut self, out: &mut Vec<Request>) {
        self.pages.resume(out);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{damage, request, requests};
    use crate::{Format, Op};

    #[test]
    fn records_between_comments_are_split_into_pages() {
        let text = b"\nCopyright\n#####\nstart ; sector; length ; op ;  replay_delay=0 ; replay_duration=0\n\
            \x20     0.46 ;     15 ;   2 ; W ; 0.0 ; 0.0\nnote; with; one; x; y; z\n 7.9 ;0;1;R;0;0\n";
        let page = |key, time, op| request(key, Some(4096), time, op);
        assert_eq!(
            requests(Format::Blkreplay, text),
            [page(1, 0, Op::Set), page(2, 0, Op::Set), page(0, 7, Op::Get)]
        );
    }

    #[test]
    fn damaged_records_are_named_and_files_without_any_refused() {
        let damaged = |text: &str| damage(Format::Blkreplay, text.as_bytes());
        assert_eq!(
            damaged("c\n1 ; 2 ; 1 ; R ; 0 ; 0\n1 ;  x ; 1 ; W ; 0 ; 0\n").1,
            29
        );
        assert_eq!(damaged("-1 ; 2 ; 1 ; R ; 0 ; 0\n").1, 0);
        assert_eq!(damaged("1 ; 2 ; 999999999999 ; R ; 0 ; 0\n").1, 8);
        assert_eq!(damaged("1 ; 2 ; 99999999999999999999 ; R ; 0 ; 0\n").1, 8);
        let (record, offset, what) = damaged("a\nb\n");
        assert_eq!((record, offset), (1, 0));
        assert!(what.starts_with("no line is a record (start ; sector"), "{what}");
        assert!(requests(Format::Blkreplay, b"").is_empty());
    }
}
