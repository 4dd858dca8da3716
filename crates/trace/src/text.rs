//! Formats made of lines: one reader for all of them, with a parser for each.

use crate::error::TraceError;
use crate::fields::Fault;
use crate::records::Place;
use crate::request::{BATCH_REQUESTS, DiskRequests, Progress, Records, Request, RequestReader, next_batch};
use crate::window::{MAX_LINE_BYTES, Window, WindowError};

/// Turns the lines of one format into requests.
pub(crate) trait LineParser: Send {
    /// Whether requests carry sizes.
    fn has_sizes(&self) -> bool {
        true
    }

    /// Whether records say what they do.
    fn has_ops(&self) -> bool {
        false
    }

    /// What a record looks like, in formats whose files hold other lines too, which are skipped; else `None`.
    fn record_form(&self) -> Option<&'static str> {
        None
    }

    /// Whether a line is a record, in formats that have a [`record_form`](LineParser::record_form).
    fn is_record(&self, _line: &[u8]) -> bool {
        true
    }

    /// The disk requests so far, in formats whose records are split into pages.
    fn disk_requests(&self) -> Option<DiskRequests> {
        None
    }

    /// Looks at the first line that is not blank; returns whether it was a header, not a record.
    fn header(&mut self, _line: &[u8]) -> Result<bool, Fault> {
        Ok(false)
    }

    /// Parses one record. Requests go to `out`, or are kept for [`resume`](LineParser::resume) if there may be many.
    fn line(&mut self, line: &[u8], out: &mut Vec<Request>) -> Result<(), Fault>;

    /// Puts requests that were kept into `out` until it holds [`BATCH_REQUESTS`] or none are left.
    fn resume(&mut self, _out: &mut Vec<Request>) {}
}

/// Reads a format made of lines. Blank lines are skipped, and those that are no records where files hold such.
pub(crate) struct TextReader<P> {
    window: Window,
    place: Place,
    parser: P,
    started: bool,
    ended: bool,
}

impl<P: LineParser> TextReader<P> {
    pub(crate) fn new(window: Window, place: Place, parser: P) -> Self {
        TextReader {
            window,
            place,
            parser,
            started: false,
            ended: false,
        }
    }

    fn read(&mut self, out: &mut Vec<Request>) -> Result<(), TraceError> {
        loop {
            self.parser.resume(out);
            if out.len() >= BATCH_REQUESTS {
                return Ok(());
            }
            let (offset, line) = match self.window.next_line() {
                Ok(Some(found)) => found,
                Ok(None) => {
                    if let Some(form) = self.parser.record_form()
                        && self.place.records == 0
                        && self.window.offset() > 0
                    {
                        return Err(self.place.damaged(0, format!("no line is a record ({form})")));
                    }
                    self.ended = true;
                    return Ok(());
                }
                Err(WindowError::Io(error)) => {
                    return Err(self.place.read_error(self.window.read_offset(), error));
                }
                Err(WindowError::LineTooLong) => {
                    let what = format!("a line longer than {MAX_LINE_BYTES} bytes");
                    return Err(self.place.damaged(self.window.offset(), what));
                }
            };
            if line.iter().all(|byte| matches!(byte, b' ' | b'\t')) {
                continue;
            }
            if !self.parser.is_record(line) {
                continue;
            }
            let fault_at = |fault: Fault, place: &Place| place.damaged(offset + fault.at as u64, fault.what);
            if !self.started {
                self.started = true;
                if self
                    .parser
                    .header(line)
                    .map_err(|fault| fault_at(fault, &self.place))?
                {
                    continue;
                }
            }
            self.parser
                .line(line, out)
                .map_err(|fault| fault_at(fault, &self.place))?;
            self.place.records += 1;
        }
    }
}

impl<P: LineParser> RequestReader for TextReader<P> {
    fn next_batch(&mut self, out: &mut Vec<Request>) -> Result<bool, TraceError> {
        next_batch(self, out, |reader| &mut reader.ended, Self::read)
    }

    fn has_sizes(&self) -> bool {
        self.parser.has_sizes()
    }

    fn format_name(&self) -> &'static str {
        self.place.format.name()
    }

    fn records(&self) -> Records {
        Records {
            count: self.place.records,
            have_ops: self.parser.has_ops(),
            disk: self.parser.disk_requests(),
            ..Records::default()
        }
    }

    fn progress(&self) -> Progress {
        self.place.progress()
    }
}
