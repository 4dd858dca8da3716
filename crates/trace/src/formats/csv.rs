//! `csv`: delimited text with columns chosen by the user.

use crate::columns::{Column, Columns};
use crate::fields::{Fault, Field};
use crate::request::{Op, Request};
use crate::text::LineParser;

/// Delimited text. A field may stand in double quotes and then hold the delimiter, but no line end; `""` inside quotes
/// is kept as it is, which changes no number and no key's identity. A size that is not known is left empty.
pub(crate) struct Csv {
    columns: Columns,
    id: usize,
    time: Option<usize>,
    size: Option<usize>,
    op: Option<usize>,
}

impl Csv {
    pub(crate) fn new(columns: Columns) -> Self {
        let number = |column: &Column| match column {
            Column::Number(number) => *number,
            // Names are looked up when the header is read.
            Column::Name(_) => 0,
        };
        Csv {
            id: number(&columns.id),
            time: columns.time.as_ref().map(number),
            size: columns.size.as_ref().map(number),
            op: columns.op.as_ref().map(number),
            columns,
        }
    }
}

impl LineParser for Csv {
    fn has_sizes(&self) -> bool {
        self.columns.size.is_some()
    }

    fn has_ops(&self) -> bool {
        self.columns.op.is_some()
    }

    fn header(&mut self, line: &[u8]) -> Result<bool, Fault> {
        if !self.columns.header {
            return Ok(false);
        }
        let mut names = Vec::new();
        split(line, self.columns.delimiter, |_, field| {
            names.push(field.bytes);
            Ok(())
        })?;
        let number = |column: &Column| match column {
            Column::Number(number) => Ok(*number),
            Column::Name(name) => match names.iter().position(|found| *found == name.as_bytes()) {
                Some(index) => Ok(index + 1),
                None => Err(Fault {
                    at: 0,
                    what: format!("the header has no column `{name}`"),
                }),
            },
        };
        self.id = number(&self.columns.id)?;
        self.time = self.columns.time.as_ref().map(number).transpose()?;
        self.size = self.columns.size.as_ref().map(number).transpose()?;
        self.op = self.columns.op.as_ref().map(number).transpose()?;
        Ok(true)
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<Request>) -> Result<(), Fault> {
        let (mut request, mut size) = (Request::BLANK, None);
        let mut last = 0;
        split(line, self.columns.delimiter, |number, field| {
            last = number;
            let named = |name| Field { name, ..field };
            if number == self.id {
                request.key = named("id").any_key()?;
            }
            if Some(number) == self.time {
                request.time = named("time").time()?;
            }
            if Some(number) == self.size && !field.bytes.is_empty() {
                size = Some(named("size").unsigned()?);
            }
            if Some(number) == self.op {
                request.op = op_of(named("op"))?;
            }
            Ok(())
        })?;
        let wanted = [Some(self.id), self.time, self.size, self.op]
            .into_iter()
            .flatten()
            .max()
            .unwrap_or(0);
        if last < wanted {
            let what = format!("expected at least {wanted} columns, found {last}");
            return Err(Fault { at: line.len(), what });
        }
        out.push(match (self.size, self.op) {
            (Some(_), Some(_)) => request.with_size(size),
            _ => Request { size, ..request },
        });
        Ok(())
    }
}

/// Names of operations, whatever their case.
fn op_of(field: Field<'_>) -> Result<Op, Fault> {
    let is = |names: &[&str]| {
        names
            .iter()
            .any(|name| field.bytes.eq_ignore_ascii_case(name.as_bytes()))
    };
    if is(&["get", "gets", "read", "r"]) {
        Ok(Op::Get)
    } else if is(&["set", "put", "write", "w"]) {
        Ok(Op::Set)
    } else if is(&["delete", "del", "d"]) {
        Ok(Op::Delete)
    } else {
        Err(field.fault("get, read, r, set, put, write, w, delete, del or d"))
    }
}

/// Calls `each` with the number (from 1) and content of every field, blanks around it and quotes taken off.
fn split<'a>(
    line: &'a [u8],
    delimiter: u8,
    mut each: impl FnMut(usize, Field<'a>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut at = 0;
    let mut number = 0;
    while let Some(rest) = line.get(at..) {
        number += 1;
        let is_content = |byte: &u8| *byte != b' ' || *byte == delimiter;
        let lead = rest.iter().position(is_content).unwrap_or(rest.len());
        let (start, end, used);
        if rest.get(lead) == Some(&b'"') {
            start = lead + 1;
            end = closing_quote(rest, start).ok_or_else(|| Fault {
                at: at + lead,
                what: "a quoted field does not end on its line".into(),
            })?;
            let after = &rest[end + 1..];
            let blanks = after.iter().position(is_content).unwrap_or(after.len());
            used = end + 1 + blanks;
            if after.get(blanks).is_some_and(|&byte| byte != delimiter) {
                return Err(Fault {
                    at: at + used,
                    what: "expected a delimiter after a quoted field".into(),
                });
            }
        } else {
            used = memchr::memchr(delimiter, rest).unwrap_or(rest.len());
            start = lead.min(used);
            let field = &rest[start..used];
            end = match delimiter {
                b' ' => used,
                _ => start + field.trim_ascii_end().len(),
            };
        }
        let field = Field {
            name: "field",
            bytes: &rest[start..end],
            at: at + start,
        };
        each(number, field)?;
        at += used + 1;
    }
    Ok(())
}

/// The position of the quote that ends a quoted field whose content begins at `start`.
fn closing_quote(rest: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        let quote = at + memchr::memchr(b'"', rest.get(at..)?)?;
        if rest.get(quote + 1) != Some(&b'"') {
            return Some(quote);
        }
        at = quote + 2;
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{damage_with, request, requests_with};
    use crate::{Format, Op, TraceOptions};
    use twox_hash::XxHash3_64;

    fn options(columns: &str) -> TraceOptions {
        TraceOptions {
            format: Some(Format::Csv),
            columns: Some(columns.parse().unwrap()),
        }
    }

    #[test]
    fn columns_are_found_by_number_and_by_name() {
        let expected = [
            request(5, Some(100), 1, Op::Get),
            request(XxHash3_64::oneshot(b"a;b"), Some(7), 2, Op::Set),
            request(5, Some(0), 3, Op::Delete),
        ];
        let text = b"when;what;key;bytes\n1.5;READ;5;100\n2; w ;\"a;b\";7\n3;Delete;\"5\" ; 0\n";
        let by_number = options("time=1,op=2,id=3,size=4,delimiter=;,header=true");
        assert_eq!(requests_with(text, &by_number), expected);
        let by_name = options("time=when,op=what,id=key,size=bytes,delimiter=semicolon,header=true");
        assert_eq!(requests_with(text, &by_name), expected);
    }

    #[test]
    fn a_column_for_the_id_is_enough() {
        let read = requests_with(b"x\ny\nx\n", &options("id=1"));
        let (x, y) = (XxHash3_64::oneshot(b"x"), XxHash3_64::oneshot(b"y"));
        assert_eq!(read, [x, y, x].map(|key| request(key, None, 0, Op::Get)));
        let spaced = requests_with(b"1 2 3\n", &options("id=2,size=3,delimiter=space"));
        assert_eq!(spaced, [request(2, Some(3), 0, Op::Get)]);
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let damaged = |text: &str| damage_with(text.as_bytes(), &options("id=1,size=2,op=3"));
        assert_eq!(
            damaged("1,2,r\n1,2\n"),
            (2, 9, "expected at least 3 columns, found 2".into())
        );
        assert_eq!(damaged("1,two,r\n").1, 2);
        assert_eq!(damaged("1,2,fetch\n").1, 4);
        assert_eq!(
            damaged("1,2,r\n,2,r\n"),
            (2, 6, "id: expected a key, found nothing".into())
        );
        assert_eq!(
            damaged("\"1,2,r\n"),
            (1, 0, "a quoted field does not end on its line".into())
        );
        assert_eq!(
            damaged("\"1\"x,2,r\n"),
            (1, 3, "expected a delimiter after a quoted field".into())
        );
        let headed = damage_with(b"a,b\n1,2\n", &options("id=a,size=c,header=true"));
        assert_eq!(headed, (1, 0, "the header has no column `c`".into()));
    }
}
