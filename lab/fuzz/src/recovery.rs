//! Starts from devices that were damaged, or forged: superblocks, log, checkpoints, pages of mappings, footers, objects.
//!
//! The bytes are edits of the image of a real cache. Whatever they are, a start ends, with a cache or with an error, and takes
//! little memory; so does `inspect`. Where nothing but damage was done, a key holds what it held last, or nothing. Where the log was
//! damaged too, whose end cannot be told from one that was lost, it holds what it held at some time. Where checksums were made to
//! fit, it holds that, unless it was objects that were forged.

use crate::bytes::Bytes;
use crate::edits::{BLOCK_BYTES, EDITS_MAX, Edits, medium_of, u32_at, u64_at};
use crate::image::{self, Entry, Image, KEYS, Rig};
use pumice_blocks::footer::TRAILER_BYTES;
use pumice_device::{MemMedium, SECTOR_BYTES};
use pumice_flash::footer::FooterEntry;
use pumice_flash::inspect::{Finding, Severity, Sink, inspect};
use pumice_record::RecordHeader;
use pumice_record::codec::value_checksum;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

const SECTOR: usize = SECTOR_BYTES;
const ENTRY_BYTES: usize = <FooterEntry as pumice_blocks::footer::Entry>::BYTES;

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
    edits: Edits<'a>,
    /// Whether checksums are made to fit.
    is_forged: bool,
    touched: Vec<Kind>,
}

impl<'a> Edited<'a> {
    fn of(image: &'a Image, is_forged: bool) -> Self {
        Self {
            image,
            edits: Edits::of(&image.bytes, &image.parts),
            is_forged,
            touched: Vec::new(),
        }
    }

    fn kind_of(&self, at: usize) -> Kind {
        let geometry = self.edits.superblock.geometry;
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

    fn edit(&mut self, from: &mut Bytes<'_>) {
        let to = self.edits.edit(from);
        for part in self.edits.parts_in(&to) {
            let kind = self.kind_of(part.start);
            self.touched.push(kind);
            if self.is_forged {
                self.fix(kind, &part);
            }
        }
    }

    /// Makes the checksums of a part fit what stands there.
    fn fix(&mut self, kind: Kind, part: &Range<usize>) {
        let edits = &mut self.edits;
        match kind {
            Kind::Superblock => edits.sign_superblock(part),
            Kind::Log => edits.sign_log(part),
            Kind::Checkpoint => edits.sign_checkpoint(part),
            Kind::Page => edits.sign(part.start / SECTOR * SECTOR, SECTOR),
            Kind::Trailer | Kind::Entries => edits.sign_footer(part, ENTRY_BYTES),
            Kind::Object => {
                let at = part.start;
                let end = edits.block(at).expect("in a block") + BLOCK_BYTES as usize;
                let sequence = u64_at(&edits.bytes, end - TRAILER_BYTES + 16);
                let Some(mut header) = RecordHeader::decode_unchecked(&edits.bytes[at..end], sequence) else {
                    return;
                };
                let key = at + header.header_len()..at + header.header_len() + header.named_len();
                let value = key.end..key.end.saturating_add(header.value_len as usize);
                if value.end <= end {
                    header.value_crc = value_checksum(&edits.bytes[value]);
                }
                if key.end <= end {
                    let signed = header.encode(edits.superblock.cache_id, &edits.bytes[key.clone()], b"");
                    edits.bytes[at..key.start].copy_from_slice(&signed);
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
        // What a record says does not include where it stands in its block.
        let is_last = !self.is_forged && !is_touched(Kind::Log) && !self.edits.moved_within_block;
        let since = if is_last {
            history.len().saturating_sub(1)
        } else {
            0
        };
        Some(history[since..].iter().flatten().collect())
    }

    fn check(&self, stops_well: bool) {
        let looked_at = look(self.edits.bytes());
        let medium = medium_of(self.edits.bytes());
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
