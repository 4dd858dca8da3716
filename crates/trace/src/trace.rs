//! A trace by name: a file or a generator, opened as often as needed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use crate::columns::Columns;
use crate::detect::{SAMPLE_BYTES, detect, headed_columns};
use crate::error::TraceError;
use crate::format::{Format, TraceKey};
use crate::formats::{Arc, Fiu, Mooncake, PAGE_BYTES, Preset, Rows, VscsiReader, preset};
use crate::generator::Generator;
use crate::input::Input;
use crate::next_sizes::NextSizes;
use crate::records::{Keys, OracleGeneral, Place, RecordReader};
use crate::request::RequestReader;
use crate::text::TextReader;
use crate::window::Window;

/// Bytes that a page may have.
const PAGES_BYTES: std::ops::RangeInclusive<u64> = 512..=1 << 30;

/// How a file is to be read.
#[derive(Debug, Clone, Default)]
pub struct TraceOptions {
    /// The format; `None` finds it by content, except that columns mean csv.
    pub format: Option<Format>,
    /// The columns of format csv.
    pub columns: Option<Columns>,
}

/// A trace that can be opened.
#[derive(Debug, Clone)]
pub struct Trace {
    name: String,
    source: Source,
    key: TraceKey,
}

#[derive(Debug, Clone)]
enum Source {
    File { path: PathBuf, options: TraceOptions },
    Generator(Generator),
}

impl Trace {
    /// A trace by the name given on the command line: a generator ([`Generator`]) if it starts with a generator's
    /// kind and a colon, such as `zipf:` (write `./zipf:…` for a file of that name), else the path of a file. Opens no
    /// trace file yet.
    ///
    /// # Errors
    /// Those of parsing a generator's name; [`TraceError::ColumnsWithout`] for columns with another format than csv.
    pub fn new(name: impl AsRef<OsStr>, options: TraceOptions) -> Result<Self, TraceError> {
        let (path, name) = (
            PathBuf::from(name.as_ref()),
            name.as_ref().to_string_lossy().into_owned(),
        );
        if Generator::is_generator_name(&name) {
            let source = Source::Generator(name.parse()?);
            return Ok(Trace {
                name,
                source,
                key: TraceKey::Object,
            });
        }
        check_options(&name, &options)?;
        Ok(Trace {
            name,
            source: Source::File { path, options },
            key: TraceKey::Object,
        })
    }

    /// The same trace with something else for the key of its requests. Whether it has that shows when it is opened.
    #[must_use]
    pub fn with_key(self, key: TraceKey) -> Self {
        Trace { key, ..self }
    }

    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The seed, where it is generated.
    pub fn seed(&self) -> Option<u64> {
        match &self.source {
            Source::File { .. } => None,
            Source::Generator(generator) => Some(generator.seed()),
        }
    }

    /// Whether it can be opened more than once: not so for pipes.
    pub fn is_rereadable(&self) -> bool {
        match &self.source {
            Source::File { path, .. } => std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file()),
            Source::Generator(_) => true,
        }
    }

    /// Opens the trace at its start.
    ///
    /// # Errors
    /// [`TraceError`] for a file that cannot be opened or whose format does not show.
    pub fn open(&self) -> Result<Box<dyn RequestReader>, TraceError> {
        match &self.source {
            Source::Generator(generator) => {
                let reader = generator.open();
                self.check_key(reader.format_name())?;
                Ok(reader)
            }
            Source::File { path, options } => {
                let open = |source| TraceError::Open {
                    name: self.name.clone(),
                    source,
                };
                let file = File::open(path).map_err(open)?;
                let metadata = file.metadata().map_err(open)?;
                let length = if metadata.is_file() { metadata.len() } else { 0 };
                Self::read_keyed(&self.name, file, length, options, self.key)
            }
        }
    }

    fn check_key(&self, format: &'static str) -> Result<(), TraceError> {
        match self.key {
            TraceKey::Object => Ok(()),
            TraceKey::Fingerprint => Err(no_fingerprints(&self.name, format)),
            TraceKey::Pages(_) => Err(no_pages(&self.name, format)),
        }
    }

    /// Reads a trace from any source of bytes; `name` is for messages, `length` for progress (0 if not known).
    ///
    /// # Errors
    /// As [`open`](Trace::open).
    pub fn read_from(
        name: &str,
        bytes: impl Read + Send + 'static,
        length: u64,
        options: &TraceOptions,
    ) -> Result<Box<dyn RequestReader>, TraceError> {
        Self::read_keyed(name, bytes, length, options, TraceKey::Object)
    }

    /// The same with a choice of what stands for the object.
    ///
    /// # Errors
    /// As [`open`](Trace::open).
    pub fn read_keyed(
        name: &str,
        bytes: impl Read + Send + 'static,
        length: u64,
        options: &TraceOptions,
        key: TraceKey,
    ) -> Result<Box<dyn RequestReader>, TraceError> {
        check_options(name, options)?;
        let input = Input::new(bytes, length).map_err(|source| TraceError::Open {
            name: name.to_owned(),
            source,
        })?;
        // The format in the place is set again once it is known.
        let mut place = Place::new(name.to_owned(), Format::Csv, &input);
        let mut window = Window::new(input.bytes);
        let mut columns = options.columns.clone();
        let format = match (options.format, &options.columns) {
            (Some(format), _) => format,
            (None, Some(_)) => Format::Csv,
            (None, None) => {
                let sample = window
                    .at_least(SAMPLE_BYTES)
                    .map_err(|error| place.read_error(0, error))?;
                let sample = sample.get(..SAMPLE_BYTES).unwrap_or(sample);
                columns = headed_columns(sample);
                match columns {
                    Some(_) => Format::Csv,
                    None => detect(sample).map_err(|reason| TraceError::Undetected {
                        name: name.to_owned(),
                        reason,
                    })?,
                }
            }
        };
        place.format = format;
        if key == TraceKey::Fingerprint && format != Format::Fiu {
            return Err(no_fingerprints(name, format.name()));
        }
        let page_bytes = match key {
            TraceKey::Pages(bytes) if !bytes.is_power_of_two() || !PAGES_BYTES.contains(&bytes) => {
                return Err(TraceError::PageSize(bytes));
            }
            TraceKey::Pages(_) if !format.has_disk_requests() => return Err(no_pages(name, format.name())),
            TraceKey::Pages(bytes) => Some(bytes),
            _ => None,
        };
        let of_disk = page_bytes.unwrap_or(PAGE_BYTES);
        let preset = preset(format);
        let reader: Box<dyn RequestReader> = match (format, preset) {
            (_, Some(preset)) => Box::new(TextReader::new(window, place, Rows::of(preset, page_bytes))),
            (Format::OracleGeneral, _) => Box::new(RecordReader::<OracleGeneral>::new(window, place)),
            (Format::KeysBeU32, _) => Box::new(RecordReader::<Keys<4, true>>::new(window, place)),
            (Format::KeysBeI64, _) => Box::new(RecordReader::<Keys<8, true>>::new(window, place)),
            (Format::KeysLeU32, _) => Box::new(RecordReader::<Keys<4, false>>::new(window, place)),
            (Format::Mooncake, _) => Box::new(TextReader::new(window, place, Mooncake::default())),
            (Format::Arc, _) => Box::new(TextReader::new(window, place, Arc::default())),
            (Format::Vscsi, _) => Box::new(VscsiReader::new(window, place, of_disk)),
            (Format::Fiu, _) => Box::new(TextReader::new(window, place, Fiu::new(key, of_disk))),
            _ => match columns {
                Some(columns) => Box::new(TextReader::new(window, place, Rows::csv(&columns))),
                None => {
                    return Err(TraceError::NoColumns(name.to_owned()));
                }
            },
        };
        let may_lack_sizes = format == Format::Csv || preset.is_some_and(Preset::may_lack_sizes);
        Ok(match may_lack_sizes && reader.has_sizes() {
            true => Box::new(NextSizes::new(reader)),
            false => reader,
        })
    }
}

fn no_fingerprints(name: &str, format: &'static str) -> TraceError {
    TraceError::NoFingerprints {
        name: name.to_owned(),
        format,
    }
}

fn no_pages(name: &str, format: &'static str) -> TraceError {
    TraceError::NoPages {
        name: name.to_owned(),
        format,
    }
}

fn check_options(name: &str, options: &TraceOptions) -> Result<(), TraceError> {
    match (options.format, &options.columns) {
        (Some(Format::Csv), None) => Err(TraceError::NoColumns(name.to_owned())),
        (Some(format), Some(_)) if format != Format::Csv => Err(TraceError::ColumnsWithout {
            name: name.to_owned(),
            format,
        }),
        _ => Ok(()),
    }
}
