//! Formats made of binary records of fixed size.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Compression, TraceError};
use crate::format::Format;
use crate::input::Input;
use crate::request::{BATCH_REQUESTS, Progress, Records, Request, RequestReader, next_batch};
use crate::window::Window;

/// What a reader knows about where it is, for messages and progress.
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) format: Format,
    pub(crate) compression: Compression,
    pub(crate) consumed: Arc<AtomicU64>,
    pub(crate) length: u64,
    /// Good records so far.
    pub(crate) records: u64,
}

impl Place {
    /// Where reading of `input` starts.
    pub(crate) fn new(name: String, format: Format, input: &Input) -> Self {
        Place {
            name,
            format,
            compression: input.compression,
            consumed: Arc::clone(&input.consumed),
            length: input.length,
            records: 0,
        }
    }

    /// How far reading has come.
    pub(crate) fn progress(&self) -> Progress {
        Progress {
            done: self.consumed.load(Ordering::Relaxed),
            total: self.length,
        }
    }

    /// As many bytes at the start of the window as make a record, and more if they are there; `None` at the end.
    pub(crate) fn whole_record<'w>(
        &self,
        window: &'w mut Window,
        record_bytes: usize,
    ) -> Result<Option<&'w [u8]>, TraceError> {
        if let Err(error) = window.at_least(record_bytes) {
            return Err(self.read_error(window.read_offset(), error));
        }
        match window.unread().len() {
            0 => Ok(None),
            left if left < record_bytes => {
                let what = format!("truncated record: {record_bytes} bytes expected, {left} found");
                Err(self.damaged(window.offset(), what))
            }
            _ => Ok(Some(window.unread())),
        }
    }

    /// The record after the last good one is damaged.
    pub(crate) fn damaged(&self, offset: u64, what: String) -> TraceError {
        TraceError::Damaged {
            name: self.name.clone(),
            record: self.records + 1,
            offset,
            what,
        }
    }

    /// The record after the last good one could not be read.
    pub(crate) fn read_error(&self, offset: u64, source: io::Error) -> TraceError {
        let (name, record) = (self.name.clone(), self.records + 1);
        // What the operating system reports has a number; decompressors' complaints have none.
        if self.compression == Compression::Plain || source.raw_os_error().is_some() {
            TraceError::Read {
                name,
                record,
                offset,
                source,
            }
        } else {
            TraceError::Compressed {
                name,
                compression: self.compression,
                record,
                offset,
                source,
            }
        }
    }
}

/// One binary record.
pub(crate) trait Record: Send + 'static {
    /// Size of a record in bytes.
    const BYTES: usize;
    /// Whether it carries a size.
    const HAS_SIZE: bool;

    /// Decodes `record`, which has [`BYTES`](Record::BYTES) bytes.
    fn decode(record: &[u8]) -> Request;
}

/// libCacheSim's oracleGeneral: little-endian u32 time, u64 id, u32 size, i64 next access (not needed here).
pub(crate) struct OracleGeneral;

impl Record for OracleGeneral {
    const BYTES: usize = 24;
    const HAS_SIZE: bool = true;

    fn decode(record: &[u8]) -> Request {
        Request {
            time: u64::from(u32::from_le_bytes(bytes_at(record, 0))),
            key: u64::from_le_bytes(bytes_at(record, 4)),
            size: Some(u64::from(u32::from_le_bytes(bytes_at(record, 12)))),
            ..Request::BLANK
        }
    }
}

/// Keys alone, of 4 or 8 bytes; those of 4 are sign-extended (their writers are Java programs).
pub(crate) struct Keys<const BYTES: usize, const IS_BIG_ENDIAN: bool>;

impl<const BYTES: usize, const IS_BIG_ENDIAN: bool> Record for Keys<BYTES, IS_BIG_ENDIAN> {
    const BYTES: usize = BYTES;
    const HAS_SIZE: bool = false;

    fn decode(record: &[u8]) -> Request {
        let mut bytes = bytes_at::<BYTES>(record, 0);
        if IS_BIG_ENDIAN {
            bytes.reverse();
        }
        let key = match BYTES {
            4 => i64::from(i32::from_le_bytes(bytes_at(&bytes, 0))),
            _ => i64::from_le_bytes(bytes_at(&bytes, 0)),
        };
        Request {
            key: key.cast_unsigned(),
            ..Request::BLANK
        }
    }
}

/// `N` bytes of `record` from `at`; zeros where the record is too short, which callers rule out.
pub(crate) fn bytes_at<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    record
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .unwrap_or([0; N])
}

/// Reads a format made of records of fixed size.
pub(crate) struct RecordReader<R> {
    window: Window,
    place: Place,
    ended: bool,
    record: std::marker::PhantomData<fn() -> R>,
}

impl<R: Record> RecordReader<R> {
    pub(crate) fn new(window: Window, place: Place) -> Self {
        RecordReader {
            window,
            place,
            ended: false,
            record: std::marker::PhantomData,
        }
    }

    fn read(&mut self, out: &mut Vec<Request>) -> Result<(), TraceError> {
        while out.len() < BATCH_REQUESTS {
            let Some(available) = self.place.whole_record(&mut self.window, R::BYTES)? else {
                self.ended = true;
                return Ok(());
            };
            let records = available.chunks_exact(R::BYTES);
            let whole = records.len().min(BATCH_REQUESTS - out.len());
            out.extend(records.take(whole).map(R::decode));
            self.window.consume(whole * R::BYTES);
            self.place.records += whole as u64;
        }
        Ok(())
    }
}

impl<R: Record> RequestReader for RecordReader<R> {
    fn next_batch(&mut self, out: &mut Vec<Request>) -> Result<bool, TraceError> {
        next_batch(self, out, |reader| &mut reader.ended, Self::read)
    }

    fn has_sizes(&self) -> bool {
        R::HAS_SIZE
    }

    fn format_name(&self) -> &'static str {
        self.place.format.name()
    }

    fn records(&self) -> Records {
        Records {
            count: self.place.records,
            ..Records::default()
        }
    }

    fn progress(&self) -> Progress {
        self.place.progress()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{damage, request, requests};
    use crate::{Format, Op};

    #[test]
    fn oracle_general_fields_are_where_they_belong() {
        let mut bytes = Vec::new();
        for (time, id, size, next) in [(7u32, 1u64 << 40, 300u32, -1i64), (8, u64::MAX, u32::MAX, 2)] {
            bytes.extend(time.to_le_bytes());
            bytes.extend(id.to_le_bytes());
            bytes.extend(size.to_le_bytes());
            bytes.extend(next.to_le_bytes());
        }
        let read = requests(Format::OracleGeneral, &bytes);
        let expected = [
            request(1 << 40, Some(300), 7, Op::Get),
            request(u64::MAX, Some(0xffff_ffff), 8, Op::Get),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn keys_keep_their_sign_and_byte_order() {
        let keys = |format, bytes: &[u8]| {
            requests(format, bytes)
                .iter()
                .map(|r| r.key)
                .collect::<Vec<u64>>()
        };
        let bytes = [0, 0, 1, 2, 0xff, 0xff, 0xff, 0xfe];
        assert_eq!(keys(Format::KeysBeU32, &bytes), [0x102, u64::MAX - 1]);
        assert_eq!(
            keys(Format::KeysLeU32, &bytes),
            [0x0201_0000, 0xffff_ffff_feff_ffff]
        );
        assert_eq!(keys(Format::KeysBeI64, &bytes), [0x0000_0102_ffff_fffe]);
    }

    #[test]
    fn more_records_than_a_batch_and_than_the_window_lose_none() {
        let bytes: Vec<u8> = (0..200_000u32).flat_map(u32::to_be_bytes).collect();
        let read = requests(Format::KeysBeU32, &bytes);
        assert!(read.iter().map(|r| r.key).eq(0..200_000));
    }

    #[test]
    fn a_truncated_record_is_named_by_record_and_byte() {
        for (format, size) in [
            (Format::OracleGeneral, 24),
            (Format::KeysBeU32, 4),
            (Format::KeysLeU32, 4),
            (Format::KeysBeI64, 8),
        ] {
            let bytes = vec![0; 1000 * size + size - 1];
            let (record, offset, what) = damage(format, &bytes);
            assert_eq!((record, offset), (1001, 1000 * size as u64), "{format}");
            assert_eq!(
                what,
                format!("truncated record: {size} bytes expected, {} found", size - 1)
            );
        }
    }
}
