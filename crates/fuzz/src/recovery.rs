//! Starts from devices that were damaged, or forged: superblocks, log, checkpoints, pages of mappings, footers, objects.
//!
//! The bytes are edits of the image of a real cache. Whatever they are, a start ends, with a cache or with an error, and takes
//! little memory; so does `inspect`. Where nothing but damage was done, a key holds what it held last, or nothing. Where the log was
//! damaged too, whose end cannot be told from one that was lost, it holds what it held at some time. Where checksums were made to
//! fit, it holds that, unless it was objects that were forged.

use crate::bytes::{Bytes, put_u32};
use crate::image::{self, BLOCK_BYTES, Entry, Image, KEYS, Rig};
use pumice_blocks::footer::TRAILER_BYTES;
use pumice_blocks::geometry::LOG_RECORD_BYTES;
use pumice_blocks::superblock::{SlotContent, Superblock};
use pumice_device::{Device, MemDevice, MemMedium, SECTOR_BYTES};
use pumice_flash::footer::ENTRY_BYTES;
use pumice_flash::inspect::{Finding, Severity, Sink, inspect};
use pumice_record::codec::{checksum, value_checksum};
use pumice_record::{HEADER_BYTES, RecordHeader};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Edits that are made of one input.
const EDITS_MAX: usize = 24;
const SECTOR: usize = SECTOR_BYTES;

pub(crate) fn full(data: &[u8]) {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    run(IMAGES.get_or_init(image::full), data);
}

pub(crate) fn cascade(data: &[u8]) {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    run(IMAGES.get_or_init(image::cascade), data);
}

fn run(images: &[Image], data: &[u8]) {
    let mut from = Bytes(data);
    let image = &images[usize::from(from.u8()) % images.len()];
    let how = from.u8();
    let mut edited = Edited::of(image, how & 1 == 1);
    for _ in 0..EDITS_MAX {
        if from.is_empty() {
            break;
        }
        edited.edit(&mut from);
    }
    edited.check(how & 2 == 0);
}

/// What a range of an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Superblock,
    Log,
    /// A block of a checkpoint.
    Checkpoint,
    Page,
    Trailer,
    Entries,
    Object,
}

/// An image that is being edited.
struct Edited<'a> {
    image: &'a Image,
    superblock: Superblock,
    bytes: Vec<u8>,
    /// How many of the bytes there are.
    len: usize,
    /// Whether checksums are made to fit.
    is_forged: bool,
    touched: Vec<Kind>,
    /// Whether bytes of a block were put elsewhere in it. What a record says does not include where it stands.
    moved_within_block: bool,
}

impl<'a> Edited<'a> {
    fn of(image: &'a Image, is_forged: bool) -> Self {
        let slots = image.bytes.chunks_exact(SECTOR).take(2);
        let superblocks = slots.filter_map(|sector| match Superblock::decode(sector) {
            SlotContent::Valid(superblock) => Some(superblock),
            _ => None,
        });
        Self {
            image,
            superblock: superblocks
                .max_by_key(|superblock| superblock.generation)
                .expect("the image is in order"),
            bytes: image.bytes.clone(),
            len: image.bytes.len(),
            is_forged,
            touched: Vec::new(),
            moved_within_block: false,
        }
    }

    fn kind_of(&self, at: usize) -> Kind {
        let geometry = self.superblock.geometry;
        if at < 2 * SECTOR {
            return Kind::Superblock;
        }
        let Some(block) = geometry.block_of(at as u64) else {
            return Kind::Log;
        };
        let start = geometry.block_offset(block) as usize;
        let bytes = &self.image.bytes;
        if bytes[start + 4..start + 8] == *b"PMcp" {
            return Kind::Checkpoint;
        }
        let sector = at / SECTOR * SECTOR;
        if bytes[sector + 4..sector + 8] == *b"PMAP" {
            return Kind::Page;
        }
        let end = start + BLOCK_BYTES as usize;
        let trailer = end - TRAILER_BYTES;
        let count = u32_at(bytes, trailer + 32) as usize;
        if at >= trailer {
            Kind::Trailer
        } else if at >= trailer.saturating_sub(count.saturating_mul(ENTRY_BYTES)) {
            Kind::Entries
        } else {
            Kind::Object
        }
    }

    /// A part that counts, and the bytes in it from some place on.
    fn place(&self, from: &mut Bytes<'_>) -> Range<usize> {
        let parts = &self.image.parts;
        let part = &parts[usize::from(from.u16()) % parts.len()];
        part.start + usize::from(from.u16()) % part.len()..part.end
    }

    fn edit(&mut self, from: &mut Bytes<'_>) {
        const NUMBERS: [u64; 8] = [
            0,
            1,
            2,
            0x7fff_ffff,
            0xffff_fffe,
            0xffff_ffff,
            u64::MAX >> 1,
            u64::MAX,
        ];
        let what = from.u8();
        let to = self.place(from);
        let to = match what % 8 {
            0 => {
                self.bytes[to.start] ^= from.u8().max(1);
                to.start..to.start + 1
            }
            1 => {
                let len = usize::from(from.u8() % 16 + 1).min(to.len());
                let to = to.start..to.start + len;
                self.bytes[to.clone()].copy_from_slice(&bytes_of(from, len));
                to
            }
            2 => {
                let to = to.start..to.end.min(to.start + usize::from(from.u16()) + 1);
                self.bytes[to.clone()].fill(what & 0x80);
                to
            }
            // A number that is at an edge, or near what was there.
            3 | 4 => {
                let width = [1, 2, 4, 8][usize::from(from.u8() % 4)];
                let to = to.start..(to.start + width).min(to.end);
                let mut number = [0; 8];
                number[..to.len()].copy_from_slice(&self.bytes[to.clone()]);
                let number = match what % 8 {
                    3 => NUMBERS[usize::from(from.u8()) % NUMBERS.len()],
                    _ => u64::from_le_bytes(number).wrapping_add_signed(i64::from(from.u8() as i8)),
                };
                self.bytes[to.clone()].copy_from_slice(&number.to_le_bytes()[..to.len()]);
                to
            }
            // What stands elsewhere, of before the edits.
            5 => {
                let source = self.place(from);
                self.copy(source.start, to.start, source.len().min(to.len()))
            }
            // Whole sectors or a block, as a write or read that went astray.
            6 => {
                let source = self.place(from);
                let unit = if what & 0x80 == 0 {
                    SECTOR
                } else {
                    BLOCK_BYTES as usize
                };
                let align = |at: usize| match self.superblock.geometry.block_of(at as u64) {
                    Some(block) if unit > SECTOR => self.superblock.geometry.block_offset(block) as usize,
                    _ => at / SECTOR * SECTOR,
                };
                let (source, to) = (align(source.start), align(to.start));
                self.copy(source, to, unit)
            }
            // A file that was cut, or whose end is zeros.
            _ => {
                if what & 0x80 == 0 {
                    self.len = self.len.min(to.start / SECTOR * SECTOR);
                } else {
                    self.bytes[to.start..].fill(0);
                }
                to.start..self.bytes.len()
            }
        };
        let inside = |part: &&Range<usize>| part.start < to.end && to.start < part.end;
        let parts: Vec<_> = self.image.parts.iter().filter(inside).cloned().collect();
        for part in parts {
            let kind = self.kind_of(part.start);
            self.touched.push(kind);
            if self.is_forged {
                self.fix(kind, &part);
            }
        }
    }

    fn copy(&mut self, from: usize, to: usize, len: usize) -> Range<usize> {
        let end = self.bytes.len();
        let len = len.min(end - from).min(end - to);
        self.bytes[to..to + len].copy_from_slice(&self.image.bytes[from..from + len]);
        let geometry = self.superblock.geometry;
        self.moved_within_block |= geometry.block_of(from as u64) == geometry.block_of(to as u64);
        to..to + len
    }

    /// Makes the checksums of a part fit what stands there.
    fn fix(&mut self, kind: Kind, part: &Range<usize>) {
        let (geometry, id) = (self.superblock.geometry, self.superblock.cache_id);
        let bytes = &mut self.bytes;
        let block = |at: usize| {
            let block = geometry.block_of(at as u64).expect("in a block");
            geometry.block_offset(block) as usize
        };
        match kind {
            Kind::Superblock => {
                let at = part.start / SECTOR * SECTOR;
                let crc = checksum(0, &[&bytes[at..at + 12], &bytes[at + 16..at + SECTOR]]);
                put_u32(bytes, at + 12, crc);
            }
            Kind::Log => {
                let record = LOG_RECORD_BYTES as usize;
                let first = (part.start - 2 * SECTOR) / record;
                let last = (part.end - 1 - 2 * SECTOR) / record;
                for slot in first..=last {
                    sign(bytes, id, 2 * SECTOR + slot * record, record);
                }
            }
            Kind::Checkpoint => {
                // At this block size the stream in a block is one chunk.
                let at = block(part.start);
                let room = BLOCK_BYTES as usize - SECTOR;
                let len = (u64_at(bytes, at + 24) as usize).min(room);
                let crc = checksum(id, &[&bytes[at + SECTOR..at + SECTOR + len]]);
                bytes[at + 32..at + 40].copy_from_slice(&u64::from(crc).to_le_bytes());
                sign(bytes, id, at, 40);
            }
            Kind::Page => sign(bytes, id, part.start / SECTOR * SECTOR, SECTOR),
            Kind::Trailer | Kind::Entries => {
                let at = block(part.start) + BLOCK_BYTES as usize - TRAILER_BYTES;
                let count = u32_at(bytes, at + 32) as usize;
                let len = count.saturating_mul(ENTRY_BYTES);
                if len <= BLOCK_BYTES as usize - TRAILER_BYTES {
                    let crc = checksum(id, &[&bytes[at - len..at]]);
                    put_u32(bytes, at + 36, crc);
                }
                sign(bytes, id, at, TRAILER_BYTES);
            }
            Kind::Object => {
                let at = part.start;
                let end = block(at) + BLOCK_BYTES as usize;
                let Some(header) = RecordHeader::decode_unchecked(&bytes[at..end]) else {
                    return;
                };
                let key = at + HEADER_BYTES..at + HEADER_BYTES + usize::from(header.key_len);
                let value = key.end..key.end.saturating_add(header.value_len as usize);
                if value.end <= end {
                    let crc = value_checksum(&bytes[value]);
                    put_u32(bytes, at + 4, crc);
                }
                if key.end <= end {
                    sign(bytes, id, at, key.end - at);
                }
            }
        }
    }

    /// What a key may hold, if anything; `None` where nothing can be said.
    fn may_hold(&self, key: u64) -> Option<Vec<&'a Entry>> {
        let history = self
            .image
            .history
            .get(&key)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let is_touched = |kind| self.touched.contains(&kind);
        if self.is_forged && is_touched(Kind::Object) {
            return None;
        }
        let is_last = !self.is_forged && !is_touched(Kind::Log) && !self.moved_within_block;
        let since = if is_last {
            history.len().saturating_sub(1)
        } else {
            0
        };
        Some(history[since..].iter().flatten().collect())
    }

    fn check(&self, stops_well: bool) {
        let bytes = &self.bytes[..self.len];
        let looked_at = look(bytes);
        let medium = Arc::new(MemMedium::new(bytes.len() as u64));
        let device = MemDevice::new(Arc::clone(&medium));
        for (sector, bytes) in (0..).zip(bytes.chunks(SECTOR)) {
            if bytes.iter().any(|byte| *byte != 0) {
                device.append_log(sector * SECTOR as u64, bytes).expect("it fits");
            }
        }
        let opened = Rig::open(&medium, self.image.options, 2);
        if looked_at == Some(0) {
            // `inspect` has found nothing: then there is nothing.
            let recovered = opened.as_ref().map(|(_, recovered)| recovered);
            let recovered = recovered.expect("a start finds what inspect does not");
            assert!(self.is_forged || !recovered.discarded, "{:?}", self.touched);
        }
        let Ok((rig, _)) = opened else { return };
        let mut seen = Vec::new();
        for key in 0..KEYS {
            let got = rig.get(key);
            if let (Some(got), Some(legal)) = (&got, self.may_hold(key)) {
                let names: Vec<String> = legal.iter().map(|entry| entry.head()).collect();
                assert!(
                    legal.contains(&got),
                    "key {key} is {}, and may be {names:?} or missing; {:?} touched",
                    got.head(),
                    self.touched
                );
            }
            seen.push(got);
        }
        if !self.is_forged {
            rig.check();
        }
        self.goes_on(&medium, rig, seen, stops_well);
    }

    /// The cache works, and what is set and deleted now holds after the next start.
    fn goes_on(&self, medium: &Arc<MemMedium>, rig: Rig, mut seen: Vec<Option<Entry>>, stops_well: bool) {
        for key in (0..KEYS).step_by(3) {
            if key % 2 == 0 {
                rig.delete(key);
                seen[key as usize] = None;
            } else {
                let entry = Entry::new(key, 1_000_000, 700);
                seen[key as usize] = rig.store(key, &entry).then_some(entry);
            }
            // With versions and hashes of a forger's choice, old may pass for new.
            let got = rig.get(key);
            assert!(
                self.is_forged || got.is_none() || got == seen[key as usize],
                "key {key}"
            );
        }
        if !self.is_forged {
            rig.check();
        }
        if stops_well {
            rig.close();
        } else {
            rig.settle();
        }
        drop(rig);
        let again = Rig::open(medium, self.image.options, 3);
        let (rig, _) = again.unwrap_or_else(|error| panic!("the second start: {error}"));
        for key in 0..KEYS {
            let got = rig.get(key);
            if self.is_forged || got.is_none() {
                continue;
            }
            let before = &seen[key as usize];
            let is_new = key % 3 == 0;
            // What was missing may have been found again.
            let legal = self.may_hold(key).unwrap_or_default();
            let is_legal =
                got == *before || !is_new && before.is_none() && legal.contains(&got.as_ref().expect("some"));
            assert!(
                is_legal,
                "key {key}: {:?} after {:?}; {:?} touched",
                got.map(|e| e.head()),
                before.as_ref().map(Entry::head),
                self.touched
            );
        }
    }
}

/// How many inconsistencies `inspect` names; nothing where it says that a start would take nothing of it.
fn look(bytes: &[u8]) -> Option<u64> {
    struct Count(u64);
    impl Sink for Count {
        fn found(&mut self, finding: Finding) {
            assert!(!finding.to_string().is_empty());
            self.0 += u64::from(finding.severity == Severity::Inconsistency);
        }
    }
    let mut count = Count(0);
    let summary = inspect(bytes, &mut count, true).ok()?;
    assert_eq!(summary.inconsistencies, count.0);
    (!summary.will_be_emptied).then_some(count.0)
}

/// Puts the checksum of the `len` bytes at `at` where most formats have it: in their first four bytes.
fn sign(bytes: &mut [u8], cache_id: u64, at: usize, len: usize) {
    let crc = checksum(cache_id, &[&bytes[at + 4..at + len]]);
    put_u32(bytes, at, crc);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    Bytes(&bytes[at..]).u32()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    Bytes(&bytes[at..]).u64()
}

/// The next bytes of the input, or zeros.
fn bytes_of(from: &mut Bytes<'_>, len: usize) -> Vec<u8> {
    let mut out = from.take(len).to_vec();
    out.resize(len, 0);
    out
}
