//! `vscsi`: disk requests of virtual machines as VMware's vscsiStats records them, version 1.

use super::pages::{Device, DiskRequest, Pages, SECTOR_BYTES};
use crate::error::TraceError;
use crate::records::{Place, bytes_at};
use crate::request::{BATCH_REQUESTS, Op, Progress, Records, Request, RequestReader, next_batch};
use crate::window::Window;

/// Bytes of a record.
const RECORD_BYTES: usize = 32;

/// Reads little-endian records: u32 number, u32 length in bytes, u32 segments, u16 command (of SCSI), u16 version (in the
/// upper byte), u64 sector, u64 time in microseconds.
pub(crate) struct VscsiReader {
    window: Window,
    place: Place,
    pages: Pages,
    ended: bool,
}

/// A record, or what is wrong at which of its bytes.
fn decode(record: &[u8]) -> Result<DiskRequest<'static>, (u64, String)> {
    let version = u16::from_le_bytes(bytes_at(record, 14)) >> 8;
    if version != 1 {
        return Err((14, format!("version: expected 1, found {version}")));
    }
    let command = u16::from_le_bytes(bytes_at(record, 12));
    let op = match command {
        // READ and WRITE with 6, 10, 12 and 16 bytes.
        0x08 | 0x28 | 0xa8 | 0x88 => Op::Get,
        0x0a | 0x2a | 0xaa | 0x8a => Op::Set,
        _ => {
            let what = format!("command: expected a SCSI read (0x28) or write (0x2a), found 0x{command:02x}");
            return Err((12, what));
        }
    };
    Ok(DiskRequest {
        time: u64::from_le_bytes(bytes_at(record, 24)),
        op,
        device: Device::None,
        sector: u64::from_le_bytes(bytes_at(record, 16)),
        unit: SECTOR_BYTES,
        bytes: u64::from(u32::from_le_bytes(bytes_at(record, 4))),
        contents: &[],
    })
}

impl VscsiReader {
    pub(crate) fn new(window: Window, place: Place, page_bytes: u64) -> Self {
        VscsiReader {
            window,
            place,
            pages: Pages::new(page_bytes),
            ended: false,
        }
    }

    fn read(&mut self, out: &mut Vec<Request>) -> Result<(), TraceError> {
        loop {
            self.pages.resume(out);
            if out.len() >= BATCH_REQUESTS {
                return Ok(());
            }
            let Some(available) = self.place.whole_record(&mut self.window, RECORD_BYTES)? else {
                self.ended = true;
                return Ok(());
            };
            let split = decode(&available[..RECORD_BYTES]).and_then(|request| {
                let misfit = self.pages.split(request).err();
                misfit.map_or(Ok(()), |misfit| {
                    Err((16, format!("sector: expected {}", misfit.expected())))
                })
            });
            if let Err((at, what)) = split {
                return Err(self.place.damaged(self.window.offset() + at, what));
            }
            self.window.consume(RECORD_BYTES);
            self.place.records += 1;
        }
    }
}

impl RequestReader for VscsiReader {
    fn next_batch(&mut self, out: &mut Vec<Request>) -> Result<bool, TraceError> {
        next_batch(self, out, |reader| &mut reader.ended, Self::read)
    }

    fn has_sizes(&self) -> bool {
        true
    }

    fn format_name(&self) -> &'static str {
        self.place.format.name()
    }

    fn records(&self) -> Records {
        Records {
            count: self.place.records,
            have_ops: true,
            disk: Some(self.pages.counts()),
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

    fn record(bytes: u32, command: u16, version: u16, sector: u64, time: u64) -> Vec<u8> {
        let mut record = Vec::new();
        for word in [7, bytes, 1] {
            record.extend(word.to_le_bytes());
        }
        record.extend(command.to_le_bytes());
        record.extend(version.to_le_bytes());
        record.extend(sector.to_le_bytes());
        record.extend(time.to_le_bytes());
        record
    }

    #[test]
    fn records_are_split_into_pages() {
        let bytes = [record(4096, 0x2a, 0x100, 15, 50), record(512, 0x28, 0x100, 0, 51)].concat();
        let page = |key, time, op| request(key, Some(4096), time, op);
        assert_eq!(
            requests(Format::Vscsi, &bytes),
            [page(1, 50, Op::Set), page(2, 50, Op::Set), page(0, 51, Op::Get)]
        );
    }

    #[test]
    fn more_pages_than_a_batch_and_more_records_than_the_window_lose_none() {
        let bytes: Vec<u8> = (0..9000)
            .flat_map(|n| record(8192, 0x28, 0x100, n * 16, n))
            .collect();
        let read = requests(Format::Vscsi, &bytes);
        assert!(read.iter().map(|r| r.key).eq(0..18_000));
        let long = requests(Format::Vscsi, &record(8 << 20, 0x28, 0x100, 0, 0));
        assert!(long.iter().map(|r| r.key).eq(0..2048));
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let damaged = |bad: Vec<u8>| damage(Format::Vscsi, &[record(512, 0x28, 0x100, 0, 0), bad].concat());
        let what = "version: expected 1, found 2".to_owned();
        assert_eq!(damaged(record(512, 0x28, 0x200, 0, 0)), (2, 46, what));
        let (record_number, offset, what) = damaged(record(512, 0x12, 0x100, 0, 0));
        assert_eq!((record_number, offset), (2, 44));
        assert!(what.ends_with("found 0x12"), "{what}");
        assert_eq!(damaged(record(512, 0x28, 0x100, 1 << 55, 0)).1, 48);
        let what = "truncated record: 32 bytes expected, 31 found".to_owned();
        assert_eq!(damaged(vec![0; 31]), (2, 32, what));
    }
}
