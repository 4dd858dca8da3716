//! Lines of columns: one parser for `csv` and for every format that is a row of [`PRESETS`](super::presets::PRESETS).

use super::pages::{Device, Extent, PAGE_BYTES, Pages};
use super::presets::{CSV_OPS, ROW};
use crate::columns::{Column as CsvColumn, Columns};
use crate::fields::{Fault, Field, Fields, Separator, parse_u64};
use crate::format::Format;
use crate::request::{DiskRequests, Op, Request};
use crate::text::LineParser;
use pumice_world::mix64;
use twox_hash::XxHash3_64;

/// What a column says of its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    Nothing,
    /// Nothing, but it is a number.
    Number,
    Time,
    /// The time as `YYYYMMDDhhmmss`.
    Date,
    /// A key that is a number. Of several columns that say a key each is a part of it.
    Id,
    /// A key that is hashed.
    Text,
    /// The same, of the one column that may hold the delimiter.
    WideText,
    /// A key that stands for itself if it is a number, and is hashed otherwise.
    IdOrText,
    /// A volume that is a number below 2^20.
    Volume,
    /// A part of a volume's name.
    VolumeName,
    /// Size of the object, in units of the format.
    Size,
    Op,
    /// Offset and length of a disk request, in units of the format.
    Offset,
    Length,
}

/// A column of a format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    /// Its name in a header; empty if it has none.
    pub(super) name: &'static str,
    /// The name of its fields in messages.
    pub(super) shown: &'static str,
    pub(super) says: Says,
    /// Whether a header may lack it.
    pub(super) is_optional: bool,
    /// Whether it is the same column as the one before, which says a second thing.
    pub(super) is_same: bool,
}

/// The operations of a format.
#[derive(Debug)]
pub(super) struct Ops {
    /// Names, and what a record does; `None`: it is no request. A name that ends in `*` stands for all that begin so.
    pub(super) names: &'static [(&'static str, Option<Op>)],
    pub(super) any_case: bool,
    /// What was expected, in messages.
    pub(super) expected: &'static str,
}

/// Whether a file begins with the names of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    None,
    /// If so, they may come in any order.
    Optional,
    Required,
}

/// How many fields a line has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// As many as there are columns.
    Exact,
    /// Up to the last column that says something; more are ignored.
    Least,
    /// The same, and the last of these may be missing.
    LastMayLack,
}

/// A format that is a list of columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Preset {
    pub(crate) format: Format,
    pub(super) separator: Separator,
    /// The columns, in the order of files without a header.
    pub(super) columns: &'static [Column],
    pub(super) header: Header,
    pub(super) width: Width,
    pub(super) ops: &'static Ops,
    /// Units of time in a second.
    pub(crate) ticks: u64,
    /// Bytes of a unit of sizes, offsets and lengths.
    pub(super) unit: u64,
    /// Texts that stand for a size that is not known.
    pub(super) unknown: &'static [&'static str],
    /// Whether disk requests are split into pages of 4 KiB where no other size is asked for.
    pub(super) always_pages: bool,
    /// What a record looks like, where files hold other lines, too.
    pub(super) among_others: Option<&'static str>,
    /// `None`: a record does not show the format. Else whether a file that begins with one is of no other, by its first 64 KiB: else it may be
    /// csv, too.
    pub(super) is_sure: Option<fn(&Preset, &[u8]) -> bool>,
}

impl Preset {
    fn says(&self, what: Says) -> bool {
        self.columns.iter().any(|column| column.says == what)
    }

    /// Whether its records are disk requests.
    pub(crate) fn has_disk_requests(&self) -> bool {
        self.says(Says::Length)
    }

    /// Whether requests may have no size although the trace has sizes.
    pub(crate) fn may_lack_sizes(&self) -> bool {
        self.says(Says::Size) && (self.has_changes() || !self.unknown.is_empty())
    }

    /// Whether records say that they read or write.
    fn has_changes(&self) -> bool {
        let is_change = |(_, op): &(&str, Option<Op>)| op.is_some_and(|op| op != Op::Get);
        self.ops.names.iter().any(is_change)
    }

    /// Whether a line shows this format: its header, or a record.
    pub(crate) fn shows(&self, line: &[u8]) -> bool {
        let mut rows = Rows::of(self, None);
        self.header != Header::None && rows.is_header(line)
            || self.is_sure.is_some()
                && rows.is_record(line)
                && rows.tells_ops(line)
                && rows.line(line, &mut Vec::new()).is_ok()
    }

    /// Whether a file that begins with `sample`, and whose first line shows this format, may be csv as well.
    pub(crate) fn may_be_csv(&self, first: &[u8], sample: &[u8]) -> bool {
        let is_header = self.header != Header::None && Rows::of(self, None).is_header(first);
        !is_header && self.is_sure.is_some_and(|is_sure| !is_sure(self, sample))
    }

    /// Whether lines of this format stand among others.
    pub(crate) fn is_among_others(&self) -> bool {
        self.among_others.is_some()
    }
}

/// A column that is looked for.
struct Wanted {
    /// By its name in the header, if there is one.
    name: Option<String>,
    /// Else by its number, from 0.
    index: usize,
    shown: &'static str,
    says: Says,
    is_optional: bool,
}

/// A field of a line.
#[derive(Debug, Clone, Copy)]
struct Place {
    shown: &'static str,
    says: Says,
    /// Whether it is the same field as the one before.
    is_same: bool,
}

/// What a line says, while it is read.
struct Row<'a> {
    request: Request,
    has_key: bool,
    size: Option<u64>,
    /// Whether it is a request.
    counts: bool,
    volume: Option<Field<'a>>,
    device: Device,
    offset: Option<Field<'a>>,
    length: Option<Field<'a>>,
}

/// Reads lines of one of the formats.
pub(crate) struct Rows {
    preset: Preset,
    wanted: Vec<Wanted>,
    places: Vec<Place>,
    has_sizes: bool,
    has_ops: bool,
    pages: Option<Pages>,
}

impl Rows {
    /// A reader of a preset; disk requests are split into pages of `page_bytes`.
    pub(crate) fn of(preset: &Preset, page_bytes: Option<u64>) -> Self {
        let page_bytes = page_bytes.or(preset.always_pages.then_some(PAGE_BYTES));
        let mut index = 0;
        let wanted = preset.columns.iter().enumerate().map(|(at, column)| {
            index += usize::from(at > 0 && !column.is_same);
            Wanted {
                name: Some(column.name.to_owned()).filter(|name| !name.is_empty()),
                index,
                shown: column.shown,
                says: column.says,
                is_optional: column.is_optional || column.says == Says::Nothing,
            }
        });
        Self::new(*preset, wanted.collect(), page_bytes)
    }

    /// A reader of csv.
    pub(crate) fn csv(columns: &Columns) -> Self {
        let all = [
            (Some(&columns.id), "id", Says::IdOrText),
            (columns.time.as_ref(), "time", Says::Time),
            (columns.size.as_ref(), "size", Says::Size),
            (columns.op.as_ref(), "op", Says::Op),
        ];
        let wanted = all.into_iter().filter_map(|(column, shown, says)| {
            let (name, index) = match column? {
                CsvColumn::Number(number) => (None, number.saturating_sub(1)),
                CsvColumn::Name(name) => (Some(name.clone()), 0),
            };
            Some(Wanted {
                name,
                index,
                shown,
                says,
                is_optional: false,
            })
        });
        let preset = Preset {
            separator: Separator::Quoted(columns.delimiter),
            header: match columns.header {
                true => Header::Required,
                false => Header::None,
            },
            width: Width::Least,
            ops: &CSV_OPS,
            unknown: &[""],
            ..ROW
        };
        Self::new(preset, wanted.collect(), None)
    }

    fn new(preset: Preset, wanted: Vec<Wanted>, page_bytes: Option<u64>) -> Self {
        let says = |what: Says| wanted.iter().any(|column| column.says == what);
        let mut rows = Self {
            has_sizes: says(Says::Size) || says(Says::Length),
            has_ops: says(Says::Op) && preset.has_changes(),
            places: Vec::new(),
            pages: page_bytes.map(Pages::new),
            preset,
            wanted,
        };
        // Those of a file without a header.
        rows.places = rows.places_by(None).unwrap_or_default();
        rows
    }

    /// Where the columns are: by the names of a header, or without one.
    fn places_by(&self, header: Option<&[Field<'_>]>) -> Result<Vec<Place>, Fault> {
        let mut found: Vec<(usize, Place)> = Vec::new();
        for column in &self.wanted {
            let at = |name: &String| header?.iter().position(|field| field.bytes == name.as_bytes());
            let index = match (&column.name, header) {
                (_, None) => column.index,
                (None, Some(_)) if column.says == Says::Nothing => continue,
                (None, Some(_)) => column.index,
                (Some(name), Some(_)) => match at(name) {
                    Some(index) => index,
                    None if column.is_optional => continue,
                    None => {
                        let what = format!("the header has no column `{name}`");
                        return Err(Fault { at: 0, what });
                    }
                },
            };
            let Wanted { shown, says, .. } = *column;
            let is_same = found.iter().any(|(other, _)| *other == index);
            let place = Place { shown, says, is_same };
            found.push((index, place));
        }
        let is_exact = self.preset.width == Width::Exact;
        let counts = |place: &Place| is_exact || place.says != Says::Nothing;
        let ends = found.iter().filter(|(_, place)| counts(place));
        let end = ends.map(|(index, _)| index + 1).max().unwrap_or(0);
        let width = header.filter(|_| is_exact).map_or(end, <[Field<'_>]>::len);
        let mut places = Vec::new();
        for index in 0..width {
            let before = places.len();
            let here = found.iter().filter(|(at, _)| *at == index);
            places.extend(here.map(|(_, place)| *place));
            if places.len() == before {
                places.push(Place {
                    shown: "last column",
                    says: Says::Nothing,
                    is_same: false,
                });
            }
        }
        Ok(places)
    }

    fn fields<'a>(&self, line: &'a [u8]) -> Fields<'a> {
        Fields::new(line, self.preset.separator)
    }

    fn names<'a>(&self, line: &'a [u8]) -> Result<Vec<Field<'a>>, Fault> {
        let mut fields = self.fields(line);
        std::iter::from_fn(|| fields.try_next("name").transpose()).collect()
    }

    /// Whether a line names all columns, those too that say nothing.
    fn is_header(&self, line: &[u8]) -> bool {
        self.names(line).is_ok_and(|names| {
            let has = |name: &String| names.iter().any(|field| field.bytes == name.as_bytes());
            let named = |column: &Wanted| column.name.as_ref().is_none_or(has);
            self.wanted
                .iter()
                .all(|column| column.is_optional && column.says != Says::Nothing || named(column))
        })
    }

    /// Whether no operation of a record is empty.
    fn tells_ops(&self, line: &[u8]) -> bool {
        let mut fields = self.fields(line);
        let mut places = self.places.iter().filter(|place| !place.is_same);
        places.all(|place| {
            let is_empty = fields
                .next(place.shown)
                .is_none_or(|field| field.bytes.is_empty());
            place.says != Says::Op || !is_empty
        })
    }

    fn op_of(&self, field: Field<'_>) -> Result<Option<Op>, Fault> {
        let Ops {
            names,
            any_case,
            expected,
        } = *self.preset.ops;
        let is = |name: &str| match name.strip_suffix('*') {
            Some(start) => field.bytes.starts_with(start.as_bytes()),
            None if any_case => field.bytes.eq_ignore_ascii_case(name.as_bytes()),
            None => field.bytes == name.as_bytes(),
        };
        let found = names.iter().find(|(name, _)| is(name));
        found.map(|(_, op)| *op).ok_or_else(|| field.fault(expected))
    }

    fn size_of(&self, field: Field<'_>) -> Result<Option<u64>, Fault> {
        if self
            .preset
            .unknown
            .iter()
            .any(|text| field.bytes == text.as_bytes())
        {
            return Ok(None);
        }
        let bytes = field.unsigned()?.checked_mul(self.preset.unit);
        bytes
            .map(Some)
            .ok_or_else(|| field.fault("a size below 2^64 bytes"))
    }

    /// Adds what a field says to its row.
    #[inline]
    fn take<'a>(&self, row: &mut Row<'a>, says: Says, field: Field<'a>) -> Result<(), Fault> {
        let request = &mut row.request;
        match says {
            Says::Nothing => {}
            Says::Number => drop(field.unsigned()?),
            Says::Time => request.time = field.time()?,
            Says::Date => request.time = date(field)?,
            Says::Id | Says::Text | Says::WideText | Says::IdOrText => {
                let part = match says {
                    Says::Id => field.integer_key()?,
                    Says::IdOrText => field.any_key()?,
                    _ => field.text_key()?,
                };
                request.key = match row.has_key {
                    false => part,
                    true => mix64(request.key).wrapping_add(part),
                };
                row.has_key = true;
            }
            Says::Volume => {
                row.volume = Some(field);
                row.device = Device::Number(field.unsigned()?);
            }
            Says::VolumeName => {
                let before = match row.device {
                    Device::Name(hash) => hash,
                    _ => 0,
                };
                row.device = Device::Name(XxHash3_64::oneshot_with_seed(before, field.bytes));
            }
            Says::Size => row.size = self.size_of(field)?,
            Says::Op => match self.op_of(field)? {
                Some(op) => request.op = op,
                None => row.counts = false,
            },
            Says::Offset => row.offset = Some(field),
            Says::Length => row.length = Some(field),
        }
        Ok(())
    }

    /// What a line says, and the fields behind those that are looked at.
    fn row<'a>(&self, line: &'a [u8]) -> Result<(Row<'a>, Fields<'a>), Fault> {
        let mut row = Row {
            request: Request::BLANK,
            has_key: false,
            size: None,
            counts: true,
            volume: None,
            device: Device::None,
            offset: None,
            length: None,
        };
        let mut fields = self.fields(line);
        let mut field = Field {
            name: "field",
            bytes: b"",
            at: 0,
        };
        let mut seen = 0;
        for place in &self.places {
            if !place.is_same {
                field = match (place.says, fields.try_next(place.shown)?) {
                    (Says::WideText, Some(field)) => fields.widen(
                        field,
                        (fields.left() + seen + 1).saturating_sub(self.places.len()),
                    ),
                    (_, Some(field)) => field,
                    (_, None) if self.preset.width == Width::LastMayLack && seen + 1 == self.places.len() => {
                        break;
                    }
                    (_, None) if self.preset.format == Format::Csv => {
                        let wanted = self.places.iter().filter(|place| !place.is_same).count();
                        let what = format!("expected at least {wanted} columns, found {seen}");
                        return Err(Fault { at: line.len(), what });
                    }
                    (_, None) => return Err(fields.ended(place.shown)),
                };
                seen += 1;
            }
            self.take(
                &mut row,
                place.says,
                Field {
                    name: place.shown,
                    ..field
                },
            )?;
        }
        Ok((row, fields))
    }
}

/// Seconds since 1970 of a time as `YYYYMMDDhhmmss`.
fn date(field: Field<'_>) -> Result<u64, Fault> {
    let wrong = || field.fault("a time such as 20260131235959");
    let digits = parse_u64(field.bytes).filter(|_| field.bytes.len() == 14);
    let mut left = digits.ok_or_else(wrong)?;
    let mut last_two = || {
        let two = left % 100;
        left /= 100;
        two
    };
    let [second, minute, hour, day, month] = std::array::from_fn(|_| last_two());
    let year = left;
    if year < 1970
        || !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return Err(wrong());
    }
    // Days of years that begin in March, so that the day that leaps is a year's last; 719,468 of them were before 1970.
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Ok(((days * 24 + hour) * 60 + minute) * 60 + second)
}

impl LineParser for Rows {
    fn has_sizes(&self) -> bool {
        self.has_sizes
    }

    fn has_ops(&self) -> bool {
        self.has_ops
    }

    fn record_form(&self) -> Option<&'static str> {
        self.preset.among_others
    }

    fn is_record(&self, line: &[u8]) -> bool {
        if self.preset.among_others.is_none() {
            return true;
        }
        let mut fields = self.fields(line);
        let all = self
            .places
            .iter()
            .all(|place| match fields.try_next(place.shown) {
                Ok(Some(field)) => place.says != Says::Op || self.op_of(field).is_ok(),
                _ => false,
            });
        all && fields.finish().is_ok()
    }

    fn disk_requests(&self) -> Option<DiskRequests> {
        self.pages.as_ref().map(Pages::counts)
    }

    fn header(&mut self, line: &[u8]) -> Result<bool, Fault> {
        let starts_with_digit = |field: &Field<'_>| field.bytes.first().is_some_and(u8::is_ascii_digit);
        let is_header = match self.preset.header {
            Header::None => false,
            Header::Required => true,
            Header::Optional => self.is_header(line) || !self.names(line)?.iter().any(starts_with_digit),
        };
        if is_header {
            self.places = self.places_by(Some(&self.names(line)?))?;
        }
        Ok(is_header)
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<Request>) -> Result<(), Fault> {
        let (row, mut fields) = self.row(line)?;
        if self.preset.width == Width::Exact {
            fields.finish()?;
        } else if self.preset.format == Format::Csv {
            // A quote that does not end may stand in any field.
            while fields.try_next("field")?.is_some() {}
        }
        let Row { request, size, .. } = row;
        if !row.counts {
            return Ok(());
        }
        if let (Some(sector), Some(sectors)) = (row.offset, row.length) {
            let extent = Extent {
                device: row.volume,
                sector,
                sectors,
                unit: self.preset.unit,
            };
            match &mut self.pages {
                Some(pages) => extent.split(pages, request.time, request.op, row.device, &[])?,
                None => out.push(Request {
                    key: extent.key(row.device)?,
                    size: Some(extent.bytes()?),
                    ..request
                }),
            }
            return Ok(());
        }
        out.push(match self.has_sizes && self.has_ops {
            true => request.with_size(size),
            false => Request { size, ..request },
        });
        Ok(())
    }

    fn resume(&mut self, out: &mut Vec<Request>) {
        if let Some(pages) = &mut self.pages {
            pages.resume(out);
        }
    }
}
