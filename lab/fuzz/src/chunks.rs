//! Starts of a cached volume from cache devices that were damaged, or forged: superblocks, log, checkpoints, footers, contents.
//!
//! The bytes are edits of the image of a real chunk store, in write-back with dirty chunks or in write-through. Whatever they are, a
//! start ends, with a volume or with an error, and takes little memory; so does `inspect`. Where nothing but damage was done, a chunk is
//! what was written to it last, or it cannot be read: that only where the cache has the only copy, and its bytes were damaged. So a
//! dirty chunk is never replaced by the older bytes of the backing device. Three kinds of damage cannot be told from a crash, or from an
//! empty device: of the log, of both superblocks, and of a block that was being filled. Then a chunk has sectors that were written to it
//! at some time. Where checksums were made to fit, a sector was written to some chunk at some time, unless contents were forged.

use crate::bytes::{Bytes, put_u32};
use crate::edits::{EDITS_MAX, Edits, medium_of, u32_at};
use crate::volumes::{BOOT, CHUNK, CHUNKS, Image, Kind, Ram, Rig, SECTOR, content, look, survey};
use pumice_blocks::OpenError;
use pumice_chunk::piece::{Entry, HEADER_BYTES, REFERENCE_BYTES};
use pumice_chunk::store::Found;
use pumice_device::MemMedium;
use pumice_record::codec::checksum;
use pumice_volume::Mode;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Length of a footer's entry.
const ENTRY_BYTES: usize = <Entry as pumice_blocks::footer::Entry>::BYTES;

pub(crate) fn run(data: &[u8]) {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    // An input names an image by its place here, so new ones come last.
    let images = IMAGES.get_or_init(|| {
        let (back, through) = (Mode::WriteBack, Mode::WriteThrough);
        vec![
            Image::make(back, false, 1),
            Image::make(back, true, 2),
            Image::make(through, false, 3),
            Image::make(through, true, 4),
            Image::make(back, false, 5),
        ]
    });
    let mut from = Bytes(data);
    let image = &images[usize::from(from.u8()) % images.len()];
    let how = from.u8();
    let mut edited = Edited {
        image,
        edits: Edits::of(&image.bytes, &image.parts),
        is_forged: how & 1 == 1,
        touched: Vec::new(),
    };
    for _ in 0..EDITS_MAX {
        if from.is_empty() {
            break;
        }
        edited.edit(&mut from);
    }
    let mode = match how >> 2 & 7 {
        4 => Mode::WriteBack,
        5 => Mode::WriteThrough,
        6 => Mode::ReadOnly,
        7 => Mode::PassThrough,
        _ => image.mode,
    };
    // In another run of the machine a start goes by the marks of regions, and lets the log have gaps.
    edited.check(mode, BOOT + u64::from(how >> 5 & 1), how & 2 == 0);
}

/// An image that is being edited.
struct Edited<'a> {
    image: &'a Image,
    edits: Edits<'a>,
    /// Whether checksums are made to fit.
    is_forged: bool,
    touched: Vec<Range<usize>>,
}

impl Edited<'_> {
    fn edit(&mut self, from: &mut Bytes<'_>) {
        let range = self.edits.edit(from);
        for part in self.edits.parts_in(&range) {
            if self.is_forged {
                self.fix(&part);
            }
        }
        self.touched.push(range);
    }

    /// Makes the checksums of a part fit what stands there.
    fn fix(&mut self, part: &Range<usize>) {
        let edits = &mut self.edits;
        let id = edits.superblock.cache_id;
        match self.image.kinds[&part.start] {
            Kind::Superblock(_) => edits.sign_superblock(part),
            Kind::Log => edits.sign_log(part),
            Kind::Checkpoint => edits.sign_checkpoint(part),
            Kind::Footer => edits.sign_footer(part, ENTRY_BYTES),
            Kind::Piece(at) if *part == (at..at + REFERENCE_BYTES) => {
                let crc = checksum(id, &[b"reference", &edits.bytes[at + 4..part.end]]);
                put_u32(&mut edits.bytes, at, crc);
            }
            Kind::Piece(at) => {
                let stored_len = u32_at(&edits.bytes, at + 61) & 0xf_ffff;
                let stored = at + HEADER_BYTES..at + HEADER_BYTES + stored_len as usize;
                if stored.end <= edits.bytes.len() {
                    let crc = checksum(id, &[&edits.bytes[stored]]);
                    put_u32(&mut edits.bytes, at + 4, crc);
                }
                edits.sign(at, HEADER_BYTES);
            }
        }
    }

    fn is_touched(&self, range: &Range<usize>) -> bool {
        let overlaps = |edit: &Range<usize>| edit.start < range.end && range.start < edit.end;
        self.touched.iter().any(overlaps)
    }

    fn touches(&self, is_it: impl Fn(Kind) -> bool) -> bool {
        let parts = &self.image.parts;
        parts
            .iter()
            .any(|part| is_it(self.image.kinds[&part.start]) && self.is_touched(part))
    }

    /// Whether what is there cannot be told from what a crash leaves, or from an empty device. After a clean stop the log says nothing, unless
    /// the start goes back to an older checkpoint.
    fn is_loose(&self) -> bool {
        let is_head = |kind| matches!(kind, Kind::Superblock(_) | Kind::Checkpoint);
        let slots = [0, 1].map(|slot| self.touches(|kind| kind == Kind::Superblock(slot)));
        let needs_log = !self.edits.superblock.clean || self.touches(is_head);
        slots == [true; 2] || needs_log && self.is_log_touched()
    }

    /// Whether a record of the log is damaged that is not the last.
    fn has_gap(&self) -> bool {
        let is_whole =
            |record: &Range<usize>| self.edits.bytes[record.clone()] == self.image.bytes[record.clone()];
        let log = self.image.log.split_last();
        log.is_some_and(|(last, others)| is_whole(last) && !others.iter().all(is_whole))
    }

    /// Its unused records count too: a start may look for the one before the first that it needs.
    fn is_log_touched(&self) -> bool {
        let geometry = self.edits.superblock.geometry;
        self.is_touched(&(geometry.log_offset as usize..geometry.data_offset as usize))
    }

    /// What a start has found in a chunk may be there. `None`: it could not be read.
    fn check_chunk(&self, chunk: usize, found: Option<&[u8]>) {
        let is_filling = self.image.filling.iter().any(|block| self.is_touched(block));
        let is_loose = self.is_loose() || is_filling && self.image.in_filling.contains(&chunk);
        let sectors = found.unwrap_or_default().chunks(SECTOR).enumerate();
        let mut sectors = sectors.map(|(number, bytes)| (number, bytes.to_vec()));
        let is_legal = match found {
            _ if self.is_forged => {
                let is_piece = |kind| matches!(kind, Kind::Piece(_));
                self.touches(is_piece)
                    || is_filling
                    || sectors.all(|sector| self.image.anywhere.contains(&sector))
            }
            None => {
                let home = self.image.dirty[chunk].as_ref();
                is_loose || home.is_some_and(|home| self.is_touched(home))
            }
            Some(_) if is_loose => sectors.all(|(number, bytes)| {
                self.image
                    .written
                    .contains(&(chunk * CHUNK / SECTOR + number, bytes))
            }),
            Some(bytes) => bytes == &self.image.array[chunk * CHUNK..][..CHUNK],
        };
        let dirty = &self.image.dirty[chunk];
        assert!(
            is_legal,
            "chunk {chunk} (dirty: {dirty:?}) is {:?}; {:?} touched",
            found.map(|bytes| &bytes[..16]),
            self.touched
        );
    }

    fn check(&self, mode: Mode, boot: u64, stops_well: bool) {
        let medium = medium_of(self.edits.bytes());
        let looked_at = look(&medium);
        let surveyed = survey(&medium_of(self.edits.bytes()), boot);
        let backing = Ram::of(self.image.backing.clone());
        let opened = Rig::open(&medium, &backing, mode, boot, 2);
        let has_only_copy = self.image.dirty.iter().any(Option::is_some);
        let is_cache = matches!(&opened, Ok(rig) if rig.found == Some(Found::Cache));
        if mode != Mode::PassThrough && !self.is_forged {
            let touches = |is_it: fn(Kind) -> bool| self.touches(is_it);
            let has_contents_alone =
                !touches(|kind| !matches!(kind, Kind::Piece(_))) && self.edits.is_whole();
            let is_clean = self.edits.superblock.clean;
            let looks_well = matches!(&looked_at, Ok(Some(found)) if found.problems.is_empty());
            if has_contents_alone || is_clean && looks_well {
                let error = opened.as_ref().err();
                assert!(is_cache, "{error:?}; {:?} touched", self.touched);
            }
            let counts = boot == BOOT || !has_only_copy;
            if counts && self.has_gap() && !touches(|kind| matches!(kind, Kind::Superblock(_))) {
                assert!(!is_cache, "{:?} touched", self.touched);
            }
        }
        let Ok(rig) = opened else { return };
        if !self.is_forged && has_only_copy && !self.is_loose() {
            // In pass-through, too: what is dirty is not discarded.
            assert_eq!(rig.found, Some(Found::Cache));
        }
        let dirty = rig.store().map_or(0, |store| store.dirty());
        let mut seen: Vec<_> = (0..CHUNKS).map(|chunk| rig.read(chunk)).collect();
        if !self.is_forged && mode != Mode::PassThrough && rig.found == Some(Found::Cache) {
            let unreadable: Vec<usize> = (0..CHUNKS).filter(|chunk| seen[*chunk].is_none()).collect();
            assert_eq!(surveyed, Some((dirty, unreadable)), "{:?} touched", self.touched);
        }
        for (chunk, found) in seen.iter().enumerate() {
            self.check_chunk(chunk, found.as_deref());
        }
        rig.settle();
        if !self.is_forged
            && let Some(store) = rig.store()
        {
            store.check_invariants();
        }
        if mode != Mode::ReadOnly {
            self.write_some(&rig, &mut seen);
        }
        if stops_well {
            let closed = rig.run(rig.volume.close());
            assert!(self.is_forged || closed.is_ok(), "{closed:?}");
        }
        drop(rig);
        self.check_again(&medium, &backing, mode, boot, &seen);
    }

    /// The volume works.
    fn write_some(&self, rig: &Rig, seen: &mut [Option<Vec<u8>>]) {
        for chunk in (0..CHUNKS).step_by(3) {
            let bytes = content(1_000_000 + chunk as u64 / 2);
            let written = rig.write(chunk * CHUNK, &bytes);
            assert!(
                self.is_forged || written.is_ok() || seen[chunk].is_none(),
                "{written:?}"
            );
            if written.is_ok() {
                seen[chunk] = Some(bytes);
            }
            if chunk % 30 == 0 {
                rig.tick();
            }
        }
        let flushed = rig.flush();
        assert!(self.is_forged || flushed.is_ok(), "{flushed:?}");
        rig.settle();
        if !self.is_forged
            && let Some(store) = rig.store()
        {
            assert!(store.failure().is_none());
            store.check_invariants();
        }
    }

    /// What was there is there after the next start.
    fn check_again(
        &self,
        medium: &Arc<MemMedium>,
        backing: &Ram,
        mode: Mode,
        boot: u64,
        seen: &[Option<Vec<u8>>],
    ) {
        let rig = match Rig::open(medium, backing, mode, boot, 3) {
            Ok(rig) => rig,
            // A start after a clean stop needs no footers, so it is the next that misses them.
            Err(OpenError::OnlyCopy(_))
                if self.edits.superblock.clean && self.touches(|kind| kind == Kind::Footer) =>
            {
                return;
            }
            Err(error) => {
                assert!(self.is_forged, "{error}");
                return;
            }
        };
        for (chunk, before) in seen.iter().enumerate() {
            let found = rig.read(chunk);
            if found != *before && !self.is_forged {
                // An older content may have been evicted.
                let is_new = chunk % 3 == 0 && mode != Mode::ReadOnly;
                assert!(self.is_loose() && !is_new, "chunk {chunk}");
                self.check_chunk(chunk, found.as_deref());
            }
        }
    }
}
