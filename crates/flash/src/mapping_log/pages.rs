//! The pages themselves: how they are numbered and signed, and where their bytes can be had.

use super::MappingLog;
use pumice_blocks::geometry::Geometry;
use pumice_device::SECTOR_BYTES;
use pumice_index::cascade::{PAGE_PAYLOAD_BYTES, PageNumber};
use pumice_memory::Buffer;
use pumice_record::codec::checksum;
use std::sync::Arc;

pub(super) const HEADER_BYTES: usize = SECTOR_BYTES - PAGE_PAYLOAD_BYTES;
const MAGIC: [u8; 4] = *b"PMAP";

/// How pages are numbered and signed.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(super) geometry: Geometry,
    pub(super) cache_id: u64,
}

impl Shape {
    pub(crate) fn new(geometry: Geometry, cache_id: u64) -> Self {
        Self { geometry, cache_id }
    }

    pub(super) fn pages_per_block(&self) -> u32 {
        u32::try_from(self.geometry.block_bytes / SECTOR_BYTES as u64).expect("blocks of at most 256 MiB")
    }

    /// The block of a page, and its number there.
    pub(crate) fn place(&self, page: PageNumber) -> (u32, u32) {
        (page / self.pages_per_block(), page % self.pages_per_block())
    }

    pub(super) fn header(&self, page: PageNumber, generation: u64, payload: &[u8]) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[4..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&page.to_le_bytes());
        header[12..20].copy_from_slice(&generation.to_le_bytes());
        let crc = checksum(self.cache_id, &[&header[4..], payload]);
        header[..4].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// Whether the sector is that page, put in this generation of its block.
    pub(super) fn is_page(&self, page: PageNumber, generation: u64, sector: &[u8]) -> bool {
        sector
            .split_first_chunk::<HEADER_BYTES>()
            .is_some_and(|(header, payload)| *header == self.header(page, generation, payload))
    }

    /// In which generation of its block the page was put that the sector is; `None` if it is not that page.
    pub(crate) fn generation_of(&self, page: PageNumber, sector: &[u8]) -> Option<u64> {
        let generation = sector.get(12..20)?.try_into().map(u64::from_le_bytes).ok()?;
        // As with all that counts: no device lives to see it.
        (generation < 1 << 62 && self.is_page(page, generation, sector)).then_some(generation)
    }

    /// Where a page stands on the device; `None` where no page can.
    pub(crate) fn offset(&self, page: PageNumber) -> Option<u64> {
        let (block, at) = self.place(page);
        let start = (block < self.geometry.blocks).then(|| self.geometry.block_offset(block))?;
        Some(start + u64::from(at) * SECTOR_BYTES as u64)
    }
}

/// Where a page's bytes can be had.
pub(crate) enum PageSource<B> {
    Memory(MappingBytes<B>),
    Device(u64),
}

/// The bytes of a page.
pub struct MappingBytes<B> {
    buffer: Arc<B>,
    at: usize,
}

impl<B: Buffer> MappingBytes<B> {
    /// What the index put there.
    pub fn payload(&self) -> Option<&[u8]> {
        self.buffer.bytes(self.at + HEADER_BYTES, PAGE_PAYLOAD_BYTES)
    }
}

impl<B: Buffer> MappingLog<B> {
    /// Where a page is; `None` where there can be no such page.
    pub(crate) fn source(&self, page: PageNumber) -> Option<PageSource<B>> {
        let shape = self.shape()?;
        let (block, at) = shape.place(page);
        if let Some((buffer, at)) = self.state.lock().find(block, at) {
            return Some(PageSource::Memory(MappingBytes {
                buffer: Arc::clone(buffer),
                at,
            }));
        }
        Some(PageSource::Device(shape.offset(page)?))
    }

    /// The page that stands at `at` in what was read, if it is that page.
    pub(crate) fn checked(&self, page: PageNumber, buffer: &Arc<B>, at: usize) -> Option<MappingBytes<B>> {
        let sector = buffer.bytes(at, SECTOR_BYTES)?;
        let shape = self.shape()?;
        let generation = self.lender()?.lent_sequence(shape.place(page).0)?;
        shape.is_page(page, generation, sector).then(|| MappingBytes {
            buffer: Arc::clone(buffer),
            at,
        })
    }
}
