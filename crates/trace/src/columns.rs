//! The description of the columns of a csv trace.

use std::str::FromStr;

use crate::error::TraceError;

/// Columns beyond this number are refused.
const MAX_COLUMN: usize = 1000;

/// Which column holds something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// By number, the first column being 1.
    Number(usize),
    /// By its name in the header.
    Name(String),
}

/// Where a csv trace has its fields, parsed from text such as `time=1,id=2,size=3,op=4,delimiter=;,header=true`.
///
/// | part | value | default |
/// |------|-------|---------|
/// | `id` | the key's column: a number from 1, or a name if there is a header | required |
/// | `time` | likewise; decimals are dropped | times are 0 |
/// | `size` | likewise, in bytes; empty where it is not known | the trace has no sizes |
/// | `op` | likewise; get, read, r, set, put, write, w, delete, del or d in any case | all are gets |
/// | `delimiter` | one character, or `comma`, `semicolon`, `tab`, `space`, `pipe` | comma |
/// | `header` | `true` or `false`: whether the first line names the columns | false |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// Column of the key.
    pub id: Column,
    /// Column of the time.
    pub time: Option<Column>,
    /// Column of the size in bytes.
    pub size: Option<Column>,
    /// Column of the operation.
    pub op: Option<Column>,
    /// What separates fields.
    pub delimiter: u8,
    /// Whether the first line is a header.
    pub header: bool,
}

impl FromStr for Columns {
    type Err = TraceError;

    /// # Errors
    /// [`TraceError::Columns`], naming the part that is wrong.
    fn from_str(spec: &str) -> Result<Self, TraceError> {
        parse(spec).map_err(|what| TraceError::Columns {
            spec: spec.to_owned(),
            what,
        })
    }
}

fn parse(spec: &str) -> Result<Columns, String> {
    let (mut id, mut time, mut size, mut op) = (None, None, None, None);
    let (mut delimiter, mut header) = (None, None);
    let mut parts = spec.split(',').peekable();
    while let Some(part) = parts.next() {
        let (name, value) = part
            .split_once('=')
            .ok_or_else(|| format!("expected parts such as `id=2` separated by commas, found `{part}`"))?;
        match name.trim() {
            "id" => set(&mut id, name, column(name, value)?)?,
            "time" => set(&mut time, name, column(name, value)?)?,
            "size" => set(&mut size, name, column(name, value)?)?,
            "op" => set(&mut op, name, column(name, value)?)?,
            "delimiter" => {
                // `delimiter=,` has been split at its own comma.
                let comma = value.is_empty() && parts.next_if(|next| next.is_empty()).is_some();
                set(
                    &mut delimiter,
                    name,
                    if comma { b',' } else { delimiter_of(value)? },
                )?;
            }
            "header" => match value.trim() {
                "true" => set(&mut header, name, true)?,
                "false" => set(&mut header, name, false)?,
                other => return Err(format!("header is true or false, not `{other}`")),
            },
            other => {
                return Err(format!(
                    "unknown part `{other}` (parts: id, time, size, op, delimiter, header)"
                ));
            }
        }
    }
    let id = id.ok_or("the column of the id is missing (`id=2`)")?;
    let columns = Columns {
        id,
        time,
        size,
        op,
        delimiter: delimiter.unwrap_or(b','),
        header: header.unwrap_or(false),
    };
    let others = [&columns.time, &columns.size, &columns.op].into_iter().flatten();
    let named = [&columns.id]
        .into_iter()
        .chain(others)
        .find_map(|column| match column {
            Column::Name(name) => Some(name.clone()),
            Column::Number(_) => None,
        });
    match named {
        Some(name) if !columns.header => Err(format!(
            "column `{name}` is a name, which needs `header=true`; otherwise give its number"
        )),
        _ => Ok(columns),
    }
}

fn set<T>(slot: &mut Option<T>, name: &str, value: T) -> Result<(), String> {
    if slot.replace(value).is_some() {
        Err(format!("`{name}` is given twice"))
    } else {
        Ok(())
    }
}

fn column(name: &str, value: &str) -> Result<Column, String> {
    let value = value.trim();
    if value.is_empty() {
        return Err(format!("`{name}` has no column"));
    }
    if !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Column::Name(value.to_owned()));
    }
    match value.parse() {
        Ok(number @ 1..=MAX_COLUMN) => Ok(Column::Number(number)),
        _ => Err(format!(
            "`{name}={value}`: columns are numbered from 1 to {MAX_COLUMN}"
        )),
    }
}

fn delimiter_of(value: &str) -> Result<u8, String> {
    match value {
        "comma" => Ok(b','),
        "semicolon" => Ok(b';'),
        "tab" | "\\t" => Ok(b'\t'),
        "space" => Ok(b' '),
        "pipe" => Ok(b'|'),
        _ => match value.as_bytes() {
            [byte]
                if byte.is_ascii()
                    && !byte.is_ascii_alphanumeric()
                    && !matches!(byte, b'"' | b'\r' | b'\n') =>
            {
                Ok(*byte)
            }
            _ => Err(format!(
                "delimiter `{value}` is neither one punctuation character nor comma, semicolon, tab, space or pipe"
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_form_is_understood() {
        let columns: Columns = "time=1,id=2,size=3,op=4,delimiter=;,header=true".parse().unwrap();
        let number = |n| Some(Column::Number(n));
        assert_eq!(
            (columns.time, columns.size, columns.op),
            (number(1), number(3), number(4))
        );
        assert_eq!(
            (columns.id, columns.delimiter, columns.header),
            (Column::Number(2), b';', true)
        );
    }

    #[test]
    fn a_comma_can_be_given_as_delimiter_in_any_place() {
        for spec in [
            "id=1,delimiter=,",
            "id=1,delimiter=,,header=false",
            "delimiter=,,id=1",
            "delimiter=comma,id=1",
        ] {
            let columns: Columns = spec.parse().unwrap_or_else(|error| panic!("{spec}: {error}"));
            assert_eq!(columns.delimiter, b',', "{spec}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (spec, what) in [
            ("", "found ``"),
            ("size=1", "id is missing"),
            ("id=0", "from 1 to 1000"),
            ("id=1001", "from 1 to 1000"),
            ("id=99999999999999999999999", "from 1 to 1000"),
            ("id=key", "needs `header=true`"),
            ("id=1,id=2", "given twice"),
            ("id=1,sise=2", "unknown part `sise`"),
            ("id=1,header=yes", "not `yes`"),
            ("id=1,delimiter=ab", "`ab`"),
            ("id=1,delimiter=5", "`5`"),
            ("id=1,2", "found `2`"),
            ("id=", "no column"),
        ] {
            let message = spec.parse::<Columns>().unwrap_err().to_string();
            assert!(message.contains(what), "{spec}: {message}");
        }
    }
}
