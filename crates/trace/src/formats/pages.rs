//! Disk requests, with an address and a length, as requests for the pages that they touch.

use crate::fields::{Fault, Field};
use crate::request::{BATCH_REQUESTS, DiskRequests, Op, Request};
use pumice_world::mix64;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Bytes of a sector, in which addresses are given.
const SECTOR_BYTES: u64 = 512;
/// Sectors of a page.
pub(super) const PAGE_SECTORS: u64 = PAGE_BYTES / SECTOR_BYTES;
/// Most bytes of one record, which is what 32 bits can say; a record with more is damaged.
const MAX_BYTES: u64 = 4 << 30;
/// Bits of a key that hold the page, in formats with several devices; those above hold the device.
const PAGE_BITS: u32 = 44;

/// One disk request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskRequest<'a> {
    pub(crate) time: u64,
    pub(crate) op: Op,
    /// The device, in formats with several.
    pub(crate) device: Option<u64>,
    pub(crate) sector: u64,
    pub(crate) bytes: u64,
    /// What its pages hold, in order, in formats that say so. Pages beyond the last that is named hold a mix of the first and their number.
    pub(crate) contents: &'a [u64],
}

/// Which part of a disk request cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misfit {
    Device,
    Sector,
    Length,
}

impl Misfit {
    /// What was expected instead.
    pub(crate) fn expected(self) -> &'static str {
        match self {
            Misfit::Device => "a device below 1048576",
            Misfit::Sector => "a sector whose address is below 2^64 bytes (2^56 with several devices)",
            Misfit::Length => "a length of at most 4 GiB that ends within the address range",
        }
    }
}

/// Splits disk requests into pages, in ascending order. The key of a page is its number, with the device above it in
/// formats with several. A request of length 0 touches no page.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    time: u64,
    op: Option<Op>,
    next_key: u64,
    pages_left: u64,
    contents: Vec<u64>,
    /// Pages that have come of the request.
    pages_done: u64,
    counts: DiskRequests,
}

impl Pages {
    /// Takes a disk request, whose pages then come from [`resume`](Pages::resume).
    pub(crate) fn split(&mut self, request: DiskRequest<'_>) -> Result<(), Misfit> {
        let DiskRequest { sector, bytes, .. } = request;
        let start = sector.checked_mul(SECTOR_BYTES).ok_or(Misfit::Sector)?;
        let end = start
            .checked_add(bytes)
            .filter(|_| bytes <= MAX_BYTES)
            .ok_or(Misfit::Length)?;
        let first_page = start / PAGE_BYTES;
        let pages = if bytes == 0 {
            0
        } else {
            (end - 1) / PAGE_BYTES - first_page + 1
        };
        let base = match request.device {
            None => 0,
            Some(device) if device >> (u64::BITS - PAGE_BITS) != 0 => return Err(Misfit::Device),
            Some(_) if first_page >> PAGE_BITS != 0 => return Err(Misfit::Sector),
            // The last page has no key, so that the key behind a request's last is one too.
            Some(_) if first_page + pages >= 1 << PAGE_BITS => return Err(Misfit::Length),
            Some(device) => device << PAGE_BITS,
        };
        self.time = request.time;
        self.op = Some(request.op);
        self.next_key = base + first_page;
        self.pages_left = pages;
        self.pages_done = 0;
        self.contents.clear();
        self.contents.extend_from_slice(request.contents);
        let counts = &mut self.counts;
        counts.bytes = counts.bytes.saturating_add(bytes);
        if request.op != Op::Get {
            counts.writes += 1;
            counts.bytes_written = counts.bytes_written.saturating_add(bytes);
        }
        if !start.is_multiple_of(PAGE_BYTES) || !end.is_multiple_of(PAGE_BYTES) {
            counts.unaligned += 1;
        }
        Ok(())
    }

    /// Puts pages that are left into `out` until it holds [`BATCH_REQUESTS`] or none are left.
    pub(crate) fn resume(&mut self, out: &mut Vec<Request>) {
        let count = self
            .pages_left
            .min(BATCH_REQUESTS.saturating_sub(out.len()) as u64);
        let (time, op) = (self.time, self.op.unwrap_or(Op::Get));
        let (key, done, contents) = (self.next_key, self.pages_done, &self.contents);
        out.extend((0..count).map(|page| Request {
            key: key + page,
            size: Some(PAGE_BYTES),
            time,
            op,
            content: contents.first().map(|first| {
                let number = done + page;
                let named = contents.get(number as usize).copied();
                named.unwrap_or_else(|| mix64(first ^ number))
            }),
            ..Request::BLANK
        }));
        self.next_key += count;
        self.pages_done += count;
        self.pages_left -= count;
    }

    pub(crate) fn counts(&self) -> DiskRequests {
        self.counts
    }
}

/// The operation of a field that is `R` or `W`.
pub(super) fn read_or_write(field: Field<'_>) -> Option<Op> {
    match field.bytes {
        b"R" => Some(Op::Get),
        b"W" => Some(Op::Set),
        _ => None,
    }
}

/// A disk request in a line of text: the fields of its sector and its length, which is in sectors.
pub(crate) struct Extent<'a> {
    pub(crate) device: Option<Field<'a>>,
    pub(crate) sector: Field<'a>,
    pub(crate) sectors: Field<'a>,
}

impl Extent<'_> {
    /// The length in bytes.
    pub(crate) fn bytes(&self) -> Result<u64, Fault> {
        let bytes = self.sectors.unsigned()?.checked_mul(SECTOR_BYTES);
        bytes.ok_or_else(|| self.sectors.fault(Misfit::Length.expected()))
    }

    /// Splits the request into `pages`; what cannot be is a fault of its field. `device` stands for the device's field where
    /// that is not its number, `contents` for what its pages hold.
    pub(crate) fn split(
        &self,
        pages: &mut Pages,
        time: u64,
        op: Op,
        device: Option<u64>,
        contents: &[u64],
    ) -> Result<(), Fault> {
        let device = match (device, self.device) {
            (None, Some(field)) => Some(field.unsigned()?),
            (device, _) => device,
        };
        let request = DiskRequest {
            time,
            op,
            device,
            sector: self.sector.unsigned()?,
            bytes: self.bytes()?,
            contents,
        };
        pages.split(request).map_err(|misfit| {
            let field = match misfit {
                Misfit::Device => self.device.unwrap_or(self.sector),
                Misfit::Sector => self.sector,
                Misfit::Length => self.sectors,
            };
            field.fault(misfit.expected())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(device: Option<u64>, sector: u64, bytes: u64) -> Result<Vec<u64>, Misfit> {
        let mut pages = Pages::default();
        let request = DiskRequest {
            time: 3,
            op: Op::Set,
            device,
            sector,
            bytes,
            contents: &[],
        };
        pages.split(request)?;
        let mut out = Vec::new();
        pages.resume(&mut out);
        assert!(
            out.iter()
                .all(|r| r.size == Some(4096) && r.time == 3 && r.op == Op::Set)
        );
        Ok(out.iter().map(|request| request.key).collect())
    }

    #[test]
    fn a_request_is_the_pages_it_touches() {
        assert_eq!(split(None, 0, 4096), Ok(vec![0]));
        assert_eq!(split(None, 7, 512), Ok(vec![0]));
        assert_eq!(split(None, 7, 513), Ok(vec![0, 1]));
        assert_eq!(split(None, 8, 8192), Ok(vec![1, 2]));
        assert_eq!(split(None, 15, 8192), Ok(vec![1, 2, 3]));
        assert_eq!(split(None, 15, 0), Ok(vec![]));
        assert_eq!(split(Some(0), 8, 1), Ok(vec![1]));
        assert_eq!(split(Some(3), 8, 1), Ok(vec![3 << 44 | 1]));
    }

    #[test]
    fn what_has_no_key_is_refused() {
        let last = (1 << 55) - 1;
        assert_eq!(split(None, last, 511), Ok(vec![(1 << 52) - 1]));
        assert_eq!(split(None, last, 513), Err(Misfit::Length));
        assert_eq!(split(None, 1 << 55, 1), Err(Misfit::Sector));
        assert_eq!(split(None, 0, (4 << 30) + 1), Err(Misfit::Length));
        assert_eq!(split(Some((1 << 20) - 1), 0, 1), Ok(vec![((1 << 20) - 1) << 44]));
        assert_eq!(split(Some(1 << 20), 0, 1), Err(Misfit::Device));
        assert_eq!(split(Some(1), 1 << 47, 1), Err(Misfit::Sector));
        let (device, page) = ((1 << 20) - 1, (1 << 44) - 2);
        assert_eq!(split(Some(device), page * 8, 4096), Ok(vec![device << 44 | page]));
        assert_eq!(split(Some(device), page * 8, 4097), Err(Misfit::Length));
        assert_eq!(split(Some(device), page * 8 + 8, 1), Err(Misfit::Length));
    }

    #[test]
    fn requests_are_counted_before_they_are_split() {
        let mut pages = Pages::default();
        for (op, sector, bytes) in [
            (Op::Get, 0, 4096),
            (Op::Set, 8, 8192),
            (Op::Set, 1, 4096),
            (Op::Get, 8, 512),
        ] {
            let request = DiskRequest {
                time: 0,
                op,
                device: None,
                sector,
                bytes,
                contents: &[],
            };
            pages.split(request).unwrap();
        }
        let expected = DiskRequests {
            writes: 2,
            bytes: 4096 + 8192 + 4096 + 512,
            bytes_written: 8192 + 4096,
            unaligned: 2,
        };
        assert_eq!(pages.counts(), expected);
    }
}
