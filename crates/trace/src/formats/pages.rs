//! Disk requests, with an address and a length, as requests for the pages that they touch.

use crate::fields::{Fault, Field};
use crate::request::{BATCH_REQUESTS, DiskRequests, Op, Request};
use pumice_world::mix64;

/// Bytes of a page where no other size is asked for.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Bytes of a sector, in which addresses are given in most formats.
pub(crate) const SECTOR_BYTES: u64 = 512;
/// Most bytes of one record, which is what 32 bits can say; a record with more is damaged.
const MAX_BYTES: u64 = 4 << 30;
/// Bits of a key that hold the page, in formats with several devices; those above hold the device.
const PAGE_BITS: u32 = 44;

/// What a disk request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Device {
    /// The format has one.
    None,
    Number(u64),
    /// The hash of its name.
    Name(u64),
}

/// One disk request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskRequest<'a> {
    pub(crate) time: u64,
    pub(crate) op: Op,
    pub(crate) device: Device,
    pub(crate) sector: u64,
    /// Bytes of a sector.
    pub(crate) unit: u64,
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
            Misfit::Sector => {
                "a sector whose address is below 2^64 bytes (page below 2^44 with several devices)"
            }
            Misfit::Length => "a length of at most 4 GiB that ends within the address range",
        }
    }
}

/// Splits disk requests into pages, in ascending order. The key of a page is its number, with the device above it in formats
/// with several; or, where devices have names, counted from the hash of its device's. A request of length 0 touches no page.
#[derive(Debug)]
pub(crate) struct Pages {
    page_bytes: u64,
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
    /// Pages of so many bytes, a power of two.
    pub(crate) fn new(page_bytes: u64) -> Self {
        Self {
            page_bytes,
            time: 0,
            op: None,
            next_key: 0,
            pages_left: 0,
            contents: Vec::new(),
            pages_done: 0,
            counts: DiskRequests {
                page_bytes,
                ..DiskRequests::default()
            },
        }
    }

    /// Takes a disk request, whose pages then come from [`resume`](Pages::resume).
    pub(crate) fn split(&mut self, request: DiskRequest<'_>) -> Result<(), Misfit> {
        let DiskRequest { sector, bytes, .. } = request;
        let page_bytes = self.page_bytes;
        let start = sector.checked_mul(request.unit).ok_or(Misfit::Sector)?;
        let end = start
            .checked_add(bytes)
            .filter(|_| bytes <= MAX_BYTES)
            .ok_or(Misfit::Length)?;
        let first_page = start / page_bytes;
        let pages = if bytes == 0 {
            0
        } else {
            (end - 1) / page_bytes - first_page + 1
        };
        let base = match request.device {
            Device::None => 0,
            Device::Number(device) if device >> (u64::BITS - PAGE_BITS) != 0 => return Err(Misfit::Device),
            Device::Number(_) if first_page >> PAGE_BITS != 0 => return Err(Misfit::Sector),
            // The last page has no key, so that the key behind a request's last is one too.
            Device::Number(_) if first_page + pages >= 1 << PAGE_BITS => return Err(Misfit::Length),
            Device::Number(device) => device << PAGE_BITS,
            Device::Name(hash) => hash,
        };
        self.time = request.time;
        self.op = Some(request.op);
        self.next_key = base.wrapping_add(first_page);
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
        if !start.is_multiple_of(page_bytes) || !end.is_multiple_of(page_bytes) {
            counts.unaligned += 1;
        }
        Ok(())
    }

    /// Puts pages that are left into `out` until it holds [`BATCH_REQUESTS`] or none are left.
    pub(crate) fn resume(&mut self, out: &mut Vec<Request>) {
        let count = self
            .pages_left
            .min(BATCH_REQUESTS.saturating_sub(out.len()) as u64);
        let (time, op, page_bytes) = (self.time, self.op.unwrap_or(Op::Get), self.page_bytes);
        let (key, done, contents) = (self.next_key, self.pages_done, &self.contents);
        out.extend((0..count).map(|page| Request {
            key: key.wrapping_add(page),
            size: Some(page_bytes),
            time,
            op,
            content: contents.first().map(|first| {
                let number = done + page;
                let named = contents.get(number as usize).copied();
                named.unwrap_or_else(|| mix64(first ^ number))
            }),
            ..Request::BLANK
        }));
        self.next_key = self.next_key.wrapping_add(count);
        self.pages_done += count;
        self.pages_left -= count;
    }

    pub(crate) fn counts(&self) -> DiskRequests {
        self.counts
    }
}

/// A disk request in a line of text: the fields of its address and its length, which are in units of so many bytes.
pub(crate) struct Extent<'a> {
    pub(crate) device: Option<Field<'a>>,
    pub(crate) sector: Field<'a>,
    pub(crate) sectors: Field<'a>,
    pub(crate) unit: u64,
}

impl Extent<'_> {
    /// The length in bytes.
    pub(crate) fn bytes(&self) -> Result<u64, Fault> {
        let bytes = self.sectors.unsigned()?.checked_mul(self.unit);
        bytes.ok_or_else(|| self.sectors.fault(Misfit::Length.expected()))
    }

    /// The key of the request where it is not split: of its device and address.
    pub(crate) fn key(&self, device: Device) -> Result<u64, Fault> {
        let device = match device {
            Device::None => 0,
            Device::Number(device) | Device::Name(device) => mix64(device),
        };
        let start = self.sector.unsigned()?.checked_mul(self.unit);
        let start = start.ok_or_else(|| self.sector.fault(Misfit::Sector.expected()))?;
        Ok(mix64(device.wrapping_add(mix64(start))))
    }

    /// Splits the request into `pages`; what cannot be is a fault of its field. `contents`: what its pages hold.
    pub(crate) fn split(
        &self,
        pages: &mut Pages,
        time: u64,
        op: Op,
        device: Device,
        contents: &[u64],
    ) -> Result<(), Fault> {
        let request = DiskRequest {
            time,
            op,
            device,
            sector: self.sector.unsigned()?,
            unit: self.unit,
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
        let mut pages = Pages::new(PAGE_BYTES);
        let request = DiskRequest {
            time: 3,
            op: Op::Set,
            device: device.map_or(Device::None, Device::Number),
            sector,
            unit: SECTOR_BYTES,
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
        let mut pages = Pages::new(PAGE_BYTES);
        for (op, sector, bytes) in [
            (Op::Get, 0, 4096),
            (Op::Set, 8, 8192),
            (Op::Set, 1, 4096),
            (Op::Get, 8, 512),
        ] {
            let request = DiskRequest {
                time: 0,
                op,
                device: Device::None,
                sector,
                unit: SECTOR_BYTES,
                bytes,
                contents: &[],
            };
            pages.split(request).unwrap();
        }
        let expected = DiskRequests {
            page_bytes: PAGE_BYTES,
            writes: 2,
            bytes: 4096 + 8192 + 4096 + 512,
            bytes_written: 8192 + 4096,
            unaligned: 2,
        };
        assert_eq!(pages.counts(), expected);
    }
}
