//! What a walk reads of a written block: its footer in pieces, and the beginnings of records.

use super::{Current, Footer, Place, Walked};
use crate::codec::Fields;
use crate::footer::{ENTRY_BYTES, FooterEntry, TRAILER_BYTES, Trailer};
use crate::record::{self, HEADER_BYTES, MANIFEST_BYTES, SliceId};
use crate::store::{FlashStore, add};
use crate::survivors::Run;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::Buffer;

/// Bytes of a footer that are read at a time: some 580 entries.
const FOOTER_BYTES: usize = 16 << 10;

impl<B: Buffer> FlashStore<B> {
    /// Reads the heads of some records.
    pub(super) async fn read_heads<D: Device<Buf = B>>(
        &self,
        device: &D,
        current: &Current,
        run: Run,
        found: &mut Vec<Walked>,
    ) {
        let Ok(len) = usize::try_from(run.bytes()) else {
            return;
        };
        let buffer = match self.shared.read(device, run.sectors.start, len).await {
            Ok(buffer) => buffer,
            Err(error) => {
                tracing::debug!("listing block {}: {error}", current.id);
                add(&self.counters.read_errors, 1);
                return;
            }
        };
        if self.sequence_of(current.id) != current.sequence {
            return;
        }
        for entry in run.entries {
            let location = self.location(current.id, &entry);
            let Ok(at) = usize::try_from(location.offset - run.sectors.start) else {
                continue;
            };
            let head = record::read_head(&buffer, at, self.cache_id, current.sequence);
            let Some((header, key)) = head.filter(|(header, _)| header.version == entry.version) else {
                // A read of the object will find that out, too, and see to it.
                continue;
            };
            let manifest_len = header.value_len as usize;
            let manifest = match header.slice {
                SliceId::Part(_) => continue,
                SliceId::Whole => Some(&[][..]),
                SliceId::Head if manifest_len != MANIFEST_BYTES => None,
                SliceId::Head => buffer.bytes(at + HEADER_BYTES + key.len(), manifest_len),
            };
            let Some(manifest) = manifest else { continue };
            found.push(Walked {
                hash: entry.hash,
                location,
                header,
                key: key.to_vec(),
                manifest: manifest.to_vec(),
            });
        }
    }

    /// The next entries of the footer of a written block; `None` at its end, and where it cannot be read.
    pub(super) async fn next_entries<D: Device<Buf = B>>(
        &self,
        device: &D,
        current: &mut Current,
    ) -> Option<Vec<FooterEntry>> {
        let block_end = self.geometry.block_offset(current.id) + self.geometry.block_bytes;
        let Place::Device(footer) = current.place else {
            return None;
        };
        let Some(footer) = footer else {
            let trailer = self
                .read_part(device, block_end - TRAILER_BYTES as u64, TRAILER_BYTES)
                .await?;
            let trailer = Trailer::decode(self.cache_id, &trailer)?;
            let is_own = trailer.block == current.id && trailer.sequence == current.sequence;
            let fits = trailer.footer_len() as u64 <= self.geometry.block_bytes;
            if !is_own || !fits {
                return None;
            }
            current.place = Place::Device(Some(Footer {
                read: 0,
                count: trailer.count,
            }));
            return Some(Vec::new());
        };
        let count = (footer.count - footer.read).min((FOOTER_BYTES / ENTRY_BYTES) as u32);
        if count == 0 {
            return None;
        }
        let left = u64::from(footer.count - footer.read) * ENTRY_BYTES as u64;
        let footer_at = block_end - TRAILER_BYTES as u64 - left;
        let bytes = self
            .read_part(device, footer_at, count as usize * ENTRY_BYTES)
            .await?;
        current.place = Place::Device(Some(Footer {
            read: footer.read + count,
            ..footer
        }));
        let data_end =
            self.geometry.block_bytes - TRAILER_BYTES as u64 - u64::from(footer.count) * ENTRY_BYTES as u64;
        let mut fields = Fields(&bytes);
        let mut entries = Vec::with_capacity(count as usize);
        let mut former = 0;
        while let Some(entry) = FooterEntry::decode(&mut fields, footer.read + entries.len() as u32) {
            // It is checked as a whole only when it is reclaimed or recovered: nothing here may lead out of the block, or back.
            let end = u64::from(entry.offset) + u64::from(entry.len);
            if entry.len == 0 || end > data_end || entry.offset < former {
                return None;
            }
            former = entry.offset;
            entries.push(entry);
        }
        Some(entries)
    }

    /// Bytes of the device that need not begin or end with a sector; `None` where they cannot be read.
    async fn read_part<D: Device<Buf = B>>(&self, device: &D, offset: u64, len: usize) -> Option<Vec<u8>> {
        let sector = SECTOR_BYTES as u64;
        let start = offset / sector * sector;
        let end = (offset + len as u64).next_multiple_of(sector);
        let sectors = usize::try_from(end - start).ok()?;
        let read = self.shared.read(device, start, sectors).await;
        let buffer = read.inspect_err(|error| {
            tracing::debug!("listing a block: {error}");
            add(&self.counters.read_errors, 1);
        });
        let at = usize::try_from(offset - start).ok()?;
        Some(buffer.ok()?.bytes(at, len)?.to_vec())
    }
}
