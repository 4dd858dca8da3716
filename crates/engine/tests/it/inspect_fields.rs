//! One field at a time is made wrong on a device, with right checksums where there are any: `pumice inspect --verify` names it at its
//! place.

use crate::common::{Model, Random, Rig, Weights, cascade, sipq, step};
use pumice::{CacheOptions, IndexOptions, LayoutOptions};
use pumice_blocks::footer::{Trailer, decode_entries, encode_footer};
use pumice_blocks::log::Kind;
use pumice_blocks::superblock::{FORMAT, Superblock};
use pumice_device::{Device, MemDevice, MemMedium};
use pumice_flash::footer::FooterEntry;
use pumice_flash::inspect::{Finding, InspectError, Severity, Sink, Summary, inspect};
use pumice_flash::{LogKind, LogRecord};
use pumice_record::RecordHeader;
use pumice_record::codec::checksum;
use pumice_world::ManualClock;
use std::sync::Arc;

const FLASH_BYTES: u64 = 3 << 20;
const BLOCK: usize = 64 << 10;
const SECTOR: usize = 4096;

#[derive(Default)]
struct Heard(Vec<Finding>);

impl Sink for Heard {
    fn found(&mut self, finding: Finding) {
        self.0.push(finding);
    }
}

/// A device as bytes, with what is on it.
#[derive(Clone)]
struct Image {
    bytes: Vec<u8>,
    summary: Summary,
}

impl Image {
    fn new(index: IndexOptions, clean: bool) -> Self {
        Self::of(index, LayoutOptions::default(), clean)
    }

    fn of(index: IndexOptions, layout: LayoutOptions, clean: bool) -> Self {
        let medium = Arc::new(MemMedium::new(FLASH_BYTES));
        let options = CacheOptions {
            dram_bytes: 640 << 10,
            block_bytes: Some(BLOCK as u64),
            item_bytes_max: 200 << 10,
            index,
            layout,
            ..CacheOptions::default()
        };
        let device = MemDevice::new(medium);
        let rig = Rig::open(device.clone(), Arc::new(ManualClock::new(1_000)), options);
        let weights = Weights::mixed();
        let (mut model, mut random) = (Model::default(), Random(5));
        for n in 0..3_000 {
            step(&rig, &mut model, &mut random, &weights, n, 400, false);
        }
        rig.settle();
        if clean {
            rig.run(rig.cache.close(&rig.cx)).unwrap();
        }
        let mut bytes = vec![0; FLASH_BYTES as usize];
        device.read_log(0, &mut bytes).unwrap();
        let summary = inspect(&bytes[..], &mut Heard::default(), true).unwrap();
        assert_eq!(summary.inconsistencies, 0, "{summary:?}");
        Self { bytes, summary }
    }

    fn cache_id(&self) -> u64 {
        self.summary.superblock.cache_id
    }

    fn block_at(&self, block: u32) -> usize {
        self.summary.superblock.geometry.block_offset(block) as usize
    }

    fn block(&self, block: u32) -> &[u8] {
        &self.bytes[self.block_at(block)..][..BLOCK]
    }

    /// A copy with a change.
    fn edited(&self, edit: impl FnOnce(&mut Self)) -> Self {
        let mut image = self.clone();
        edit(&mut image);
        image
    }

    /// A copy with other bytes from `at` on.
    fn with(&self, at: usize, bytes: &[u8]) -> Self {
        self.edited(|image| image.bytes[at..at + bytes.len()].copy_from_slice(bytes))
    }

    /// A copy with zeros.
    fn without(&self, range: std::ops::Range<usize>) -> Self {
        self.edited(|image| image.bytes[range].fill(0))
    }

    /// Whether losing a block is wrong.
    fn counts(&self, block: u32) -> bool {
        let at = self.block_at(block);
        !self.without(at..at + BLOCK).wrong().is_empty()
    }

    /// A block that does not count.
    fn free(&self) -> u32 {
        let blocks = 0..self.summary.superblock.geometry.blocks;
        let mut free = blocks.filter(|block| !self.counts(*block));
        free.next().expect("some blocks are free")
    }

    /// The fullest block of objects that counts.
    fn sealed(&self) -> (u32, Trailer, Vec<FooterEntry>) {
        (0..self.summary.superblock.geometry.blocks)
            .filter_map(|block| {
                let trailer = Trailer::decode(self.cache_id(), self.block(block))?;
                let entries =
                    decode_entries::<FooterEntry>(self.cache_id(), &trailer, self.block(block), BLOCK)?;
                (entries.len() > 10 && self.counts(block)).then_some((block, trailer, entries))
            })
            .max_by_key(|(_, _, entries)| entries.len())
            .expect("a block has more than ten objects")
    }

    /// Writes a footer with right checksums.
    fn put_footer(&mut self, at: u32, cache_id: u64, trailer: &Trailer, entries: &[FooterEntry]) {
        let (footer, _) = encode_footer(
            cache_id,
            trailer.block,
            trailer.sequence,
            trailer.time,
            trailer.own,
            entries,
        );
        let end = self.block_at(at) + BLOCK;
        self.bytes[end - footer.len()..end].copy_from_slice(&footer);
    }

    /// A copy with a change of the stream of its checkpoint, which is one block long, and right sums.
    fn with_checkpoint(&self, edit: impl FnOnce(&mut [u8])) -> Self {
        let checkpoint = self.summary.checkpoint.expect("there is one");
        assert_eq!(checkpoint.blocks, 1, "the sums are made for one chunk");
        let (at, cache_id) = (self.block_at(checkpoint.first_block), self.cache_id());
        self.edited(|image| {
            let stream = &mut image.bytes[at + SECTOR..][..checkpoint.bytes as usize];
            edit(stream);
            let crc = checksum(cache_id, &[stream]);
            let header = &mut image.bytes[at..at + 40];
            header[32..40].copy_from_slice(&u64::from(crc).to_le_bytes());
            let crc = checksum(cache_id, &[&header[4..]]);
            header[..4].copy_from_slice(&crc.to_le_bytes());
        })
    }

    fn edit_record(&mut self, block: u32, entry: &FooterEntry, edit: impl FnOnce(&mut RecordHeader)) {
        let (at, cache_id) = (self.block_at(block) + entry.offset as usize, self.cache_id());
        let sequence = Trailer::decode(cache_id, self.block(block)).unwrap().sequence;
        let mut header = RecordHeader::decode_unchecked(&self.bytes[at..], sequence).unwrap();
        let len = header.header_len();
        let key = self.bytes[at + len..][..usize::from(header.key_len)].to_vec();
        edit(&mut header);
        self.bytes[at..at + len].copy_from_slice(&header.encode(cache_id, &key, b""));
    }

    fn slot_at(&self, position: u64) -> usize {
        let geometry = &self.summary.superblock.geometry;
        (geometry.log_offset + position % geometry.log_slots * 32) as usize
    }

    fn wrong(&self) -> Vec<Finding> {
        let mut heard = Heard::default();
        inspect(&self.bytes[..], &mut heard, true).expect("it is a cache");
        heard
            .0
            .retain(|finding| finding.severity == Severity::Inconsistency);
        heard.0
    }

    /// Asserts that something in `range` is said to be wrong in these words.
    fn names(&self, range: std::ops::Range<usize>, words: &str) {
        let wrong = self.wrong();
        let is_named = wrong
            .iter()
            .any(|finding| range.contains(&(finding.offset as usize)) && finding.what.contains(words));
        assert!(is_named, "{words:?} in {range:?} is not among {wrong:#?}");
    }
}

#[test]
fn trailers_and_footers() {
    let image = Image::new(IndexOptions::Full, true);
    let (block, trailer, entries) = image.sealed();
    let id = image.cache_id();
    let at = image.block_at(block);
    let in_trailer = at + BLOCK - 64..at + BLOCK;
    // What is changed there may make it longer.
    let in_footer = at + BLOCK - trailer.footer_len() - 32..at + BLOCK - 64;
    let change = |cache_id: u64, trailer: Trailer, edit: &dyn Fn(&mut Vec<FooterEntry>)| {
        let mut entries = entries.clone();
        edit(&mut entries);
        image.edited(|image| image.put_footer(block, cache_id, &trailer, &entries))
    };
    let same = |_: &mut Vec<FooterEntry>| {};
    let later = Trailer {
        sequence: trailer.sequence + 1,
        ..trailer
    };
    change(id, later, &same).names(in_trailer.clone(), "its trailer has sequence");
    let elsewhere = Trailer {
        block: block + 1,
        ..trailer
    };
    change(id, elsewhere, &same).names(in_trailer.clone(), &format!("the trailer of block {}", block + 1));
    change(id + 1, trailer, &same).names(in_trailer.clone(), "no trailer of this cache");
    let shorter = change(id, trailer, &|entries| entries.truncate(entries.len() - 1));
    shorter.names(in_trailer.clone(), "its trailer says");

    change(id, trailer, &|entries| entries[3].len = 1 << 20).names(in_footer.clone(), "lies outside");
    change(id, trailer, &|entries| entries[3].len = 0).names(in_footer.clone(), "lies outside");
    // No entry can say that it overlaps the one before.
    change(id, trailer, &|entries| entries[3].offset = entries[2].offset)
        .names(in_footer.clone(), "lies outside");
    change(id, trailer, &|entries| entries.swap(3, 4)).names(in_footer.clone(), "lies outside");
    change(id, trailer, &|entries| entries[3].version = u64::MAX).names(in_footer, "later epoch");
    let record = at + entries[3].offset as usize..at + (entries[3].offset + entries[3].len) as usize;
    change(id, trailer, &|entries| entries[3].version += 1).names(record.clone(), "not as the footer says");
    change(id, trailer, &|entries| entries[3].expiry += 7).names(record.clone(), "not as the footer says");
    change(id, trailer, &|entries| entries[3].len -= 16).names(record, "damaged");

    image
        .without(in_trailer.clone())
        .names(in_trailer.clone(), "no trailer of this cache stands there");
    image
        .with(at + BLOCK - 40, &[0x5A; 10])
        .names(in_trailer, "no trailer of this cache stands there");
}

#[test]
fn records_and_whole_blocks() {
    let image = Image::new(IndexOptions::Full, true);
    let (block, _, entries) = image.sealed();
    let at = image.block_at(block);
    let entry = &entries[3];
    let record = at + entry.offset as usize..at + (entry.offset + entry.len) as usize;
    let edited =
        |edit: &dyn Fn(&mut RecordHeader)| image.edited(|image| image.edit_record(block, entry, edit));
    edited(&|header| header.sequence += 1).names(record.clone(), "of a former generation");
    edited(&|header| header.version -= 1).names(record.clone(), "not as the footer says");
    edited(&|header| header.value_crc ^= 6).names(record.clone(), "damaged");
    edited(&|header| header.value_len += 64).names(record.clone(), "damaged");
    image.with(record.start + 1, &[0x5A; 19]).names(record, "damaged");

    // A misdirected write: one block stands where another must.
    for target in [image.free(), image.sealed().0] {
        let source = (0..target).chain(target + 1..).find(|other| {
            Trailer::decode(image.cache_id(), image.block(*other)).is_some_and(|found| found.block == *other)
        });
        let at = image.block_at(target);
        image
            .with(at, image.block(source.unwrap()))
            .names(at..at + BLOCK, "the trailer of block");
    }
}

#[test]
fn checkpoints() {
    let image = Image::new(IndexOptions::Full, true);
    let superblock = image.summary.superblock;
    let checkpoint = image.summary.checkpoint.unwrap();
    let at = image.block_at(checkpoint.first_block);
    let (sealed, ..) = image.sealed();
    let blocks = superblock.geometry.blocks as usize;
    let row = |block: u32| 20 + 17 * block as usize;
    let edited = |edit: &dyn Fn(&mut [u8])| image.with_checkpoint(edit);
    let in_it = at + SECTOR..at + BLOCK;
    let trailer_at = |block: u32| image.block_at(block) + BLOCK - 64;
    let in_trailer = |block: u32| trailer_at(block)..trailer_at(block) + 64;
    edited(&|stream| stream[row(sealed)] ^= 1)
        .names(in_trailer(sealed), "the checkpoint has it sealed with sequence");
    edited(&|stream| stream[row(sealed) + 9] ^= 1)
        .names(in_trailer(sealed), "its trailer says another length");
    edited(&|stream| stream[row(sealed) + 9..row(sealed) + 13].fill(0))
        .names(in_it.clone(), "has a footer of");
    edited(&|stream| stream[row(sealed) + 8] = 7)
        .names(in_it.clone(), &format!("its row of block {sealed} is damaged"));
    edited(&|stream| stream[row(sealed) + 7] = 0x0F).names(in_it.clone(), "has sequence");
    edited(&|stream| stream[row(sealed) + 7] = 0xFF)
        .names(in_it.clone(), &format!("its row of block {sealed} is damaged"));
    let free = image.free();
    let named = edited(&|stream| {
        let (from, to) = (row(sealed), row(free));
        stream.copy_within(from..from + 17, to);
    });
    named.names(in_trailer(free), "the checkpoint has it sealed with sequence");
    edited(&|stream| stream[20 + 17 * blocks + 4] ^= 1).names(in_it.clone(), "shards");
    edited(&|stream| stream[16] ^= 1).names(in_it.clone(), "blocks, and the device has");
    edited(&|stream| stream[8] ^= 1).names(in_it.clone(), "needs the log from");
    // Behind the rows: entries of each block, no places, ranks without lists, then the first shard.
    let shard = 20 + 17 * blocks + 12 + 4 * blocks + 4 + 20 + 4 + 4;
    edited(&|stream| stream[shard + 7] = 1).names(in_it.clone(), "was dumped at log position");
    edited(&|stream| stream[shard + 8] ^= 1).names(at..at + BLOCK, "");
    edited(&|stream| {
        stream[shard + 16..shard + 18].fill(0xFF);
        stream[shard + 18] |= 7;
    })
    .names(in_it, "outside all blocks");

    image
        .without(at..at + 40)
        .names(at..at + 40, "the header of its part 0 is not there, or damaged");
    let mut leads = superblock;
    let slot = leads.slot_offset() as usize;
    leads.checkpoints[0].first_block = superblock.geometry.blocks;
    let moved = image.with(slot, &leads.encode());
    moved.names(slot..slot + SECTOR, "its chain leads to block");
    leads.checkpoints[0].first_block = checkpoint.first_block;
    leads.checkpoints[0].len += 1;
    let moved = image.with(slot, &leads.encode());
    moved.names(at..at + BLOCK, "and the superblock says");
    leads.checkpoints[0].id += 1;
    let moved = image.with(slot, &leads.encode());
    moved.names(at..at + BLOCK, "the header of its part 0");
}

#[test]
fn the_queue_of_sipq_in_a_checkpoint() {
    let image = Image::of(IndexOptions::Full, sipq(), true);
    let checkpoint = image.summary.checkpoint.unwrap();
    let at = image.block_at(checkpoint.first_block) + SECTOR;
    let stream = &image.bytes[at..][..checkpoint.bytes as usize];
    // From the end: no further batch, one batch of keys with their number before it, what was learned.
    let (key_bytes, end) = (21, stream.len() - 4);
    let number = |at: usize| u32::from_le_bytes(stream[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(number(end), 0);
    let batches = (1..end / key_bytes).filter(|keys| number(end - keys * key_bytes - 4) == *keys);
    let [keys] = batches.collect::<Vec<_>>()[..] else {
        panic!("the keys are one batch")
    };
    let fill = end - keys * key_bytes - 4 - 13;
    let (full, blocks, mean) = (fill, fill + 1..fill + 5, fill + 5..fill + 13);
    assert_eq!(stream[full], 1, "it has been full");
    let edited = |edit: &dyn Fn(&mut [u8])| image.with_checkpoint(edit);
    let geometry = image.summary.superblock.geometry;
    let put_blocks = |stream: &mut [u8], number: u32| {
        stream[blocks.clone()].copy_from_slice(&number.to_le_bytes());
    };
    let put_mean = |stream: &mut [u8], value: f64| {
        stream[mean.clone()].copy_from_slice(&value.to_bits().to_le_bytes());
    };
    // What can be is let by, to the last.
    let all = edited(&|stream| {
        put_blocks(stream, geometry.blocks);
        put_mean(stream, BLOCK as f64);
    });
    assert!(all.wrong().is_empty(), "{:#?}", all.wrong());
    for wrong in [
        edited(&|stream| stream[full] = 2),
        edited(&|stream| put_blocks(stream, geometry.blocks + 1)),
        edited(&|stream| put_mean(stream, -1.0)),
        edited(&|stream| put_mean(stream, BLOCK as f64 + 1.0)),
        edited(&|stream| put_mean(stream, f64::NAN)),
    ] {
        wrong.names(
            at - SECTOR..at - SECTOR + BLOCK,
            "what the queue has learned cannot be",
        );
    }
    edited(&|stream| stream[fill + 13..fill + 17].copy_from_slice(&4097u32.to_le_bytes()))
        .names(at - SECTOR..at - SECTOR + BLOCK, "a batch of 4097 is too long");
}

#[test]
fn superblocks() {
    let image = Image::new(IndexOptions::Full, true);
    let newest = image.summary.superblock;
    let other = SECTOR - newest.slot_offset() as usize;
    let with = |sector: Vec<u8>| image.with(other, &sector);
    let older = Superblock {
        generation: newest.generation - 1,
        ..newest
    };
    assert!(with(older.encode()).wrong().is_empty());
    // Of two of one generation the one in slot 1 counts.
    let copied = match other {
        0 => "the generation does not fit",
        _ => "the other slot",
    };
    let changed = |change: &dyn Fn(&mut Superblock)| {
        let mut older = older;
        change(&mut older);
        older.encode()
    };
    let mut damaged = older.encode();
    damaged[40..48].fill(0x5A);
    for (sector, words) in [
        (vec![0; SECTOR], "all zero"),
        (vec![7; SECTOR], "does not begin with `PUMICE`"),
        (
            image.bytes[newest.slot_offset() as usize..][..SECTOR].to_vec(),
            copied,
        ),
        (
            changed(&|older| {
                let settings = pumice_flash::Settings {
                    layout: pumice::LayoutName::Sipq,
                    ..image.summary.settings
                };
                older.own = settings.encode();
            }),
            "the copies disagree: the settings",
        ),
        (
            changed(&|older| older.store.format += 1),
            "the copies disagree: the store",
        ),
        (
            changed(&|older| (older.cache_id, older.generation) = (older.cache_id + 1, older.generation - 2)),
            "the copies disagree: the cache id",
        ),
        (
            changed(&|older| older.generation -= 2),
            "the copies disagree: the generation",
        ),
        (damaged, "its checksum is wrong"),
    ] {
        let slot = if words == copied {
            0..2 * SECTOR
        } else {
            other..other + SECTOR
        };
        with(sector).names(slot, words);
    }
}

#[test]
fn the_log() {
    let image = Image::new(IndexOptions::Full, false);
    let log = image.summary.log;
    assert!(log.records > 20, "{log:?}");
    let middle = log.next - 5;
    let slot = image.slot_at(middle)..image.slot_at(middle) + 32;
    let holed = image.without(slot.clone());
    holed.names(slot.clone(), "are missing before the log's end");
    let record = LogRecord::decode(image.cache_id(), &image.bytes[slot.clone()]).unwrap();
    let with = |record: LogRecord| image.with(slot.start, &record.encode(image.cache_id()));
    with(LogRecord {
        position: middle + 1,
        ..record
    })
    .names(slot.clone(), "are missing before the log's end");
    let nowhere = LogRecord {
        kind: Kind::Reclaim,
        a: 1 << 40,
        ..record
    };
    with(nowhere).names(slot.clone(), "there is none");
    let future = LogRecord {
        kind: Kind::Own(LogKind::Invalidate),
        b: u64::MAX,
        ..record
    };
    with(future).names(slot.clone(), "epoch");
    let never = LogRecord {
        kind: Kind::Own(LogKind::FlushAt),
        a: 1 << 40,
        ..record
    };
    with(never).names(slot.clone(), "can never be");
    // A log that ends before a checkpoint that was written later.
    let checkpoint = image.summary.superblock.checkpoints[0];
    let geometry = image.summary.superblock.geometry;
    let lost = image.without(geometry.log_offset as usize..geometry.data_offset as usize);
    assert!(checkpoint.id != 0 && checkpoint.log_start > 0, "{checkpoint:?}");
    let wrong = lost.wrong();
    let is_lost = |finding: &Finding| finding.what.contains("the log is not the one that was written");
    assert!(wrong.iter().any(is_lost), "{wrong:#?}");
}

#[test]
fn pages_of_mappings() {
    let image = Image::new(cascade(), true);
    let is_page = |at: &usize| image.bytes[at + 4..at + 8] == *b"PMAP";
    let named = |at: &usize| !image.without(*at..at + SECTOR).wrong().is_empty();
    let data = image.summary.superblock.geometry.data_offset as usize;
    let pages: Vec<usize> = (data..image.bytes.len())
        .step_by(SECTOR)
        .filter(is_page)
        .filter(named)
        .take(2)
        .collect();
    let [first, second] = pages[..] else {
        panic!("{pages:?}")
    };
    let with = |edit: &dyn Fn(&mut [u8])| {
        let mut sector = image.bytes[first..first + SECTOR].to_vec();
        edit(&mut sector);
        let crc = checksum(image.cache_id(), &[&sector[4..]]);
        sector[..4].copy_from_slice(&crc.to_le_bytes());
        image.with(first, &sector)
    };
    let place = first..first + SECTOR;
    let other = image.bytes[second..second + SECTOR].to_vec();
    with(&|sector| sector.copy_from_slice(&other)).names(place.clone(), "not there");
    with(&|sector| sector.fill(0)).names(place.clone(), "damaged, or not there");
    with(&|sector| sector[12..20].fill(0)).names(place.clone(), "it is of generation 0");
    with(&|sector| sector[36] ^= 1).names(place.clone(), "it is of another partition");
    with(&|sector| sector[33] = 9).names(place.clone(), "too many entries");
    with(&|sector| sector[24] = 1).names(place.clone(), "damaged, or not there");
    with(&|sector| sector[40..52].fill(0xFF)).names(place.clone(), "not in order of tags");
    let blank = image.without(place.clone());
    blank.names(place, "damaged, or not there");
}

#[test]
fn what_is_no_cache_is_told_apart() {
    let image = Image::new(IndexOptions::Full, true);
    let look = |bytes: &[u8]| inspect(bytes, &mut Heard::default(), true).map(drop).unwrap_err();
    assert!(matches!(look(&[]), InspectError::Empty));
    assert!(matches!(
        look(&image.bytes[..5_000]),
        InspectError::TooShort { len: 5_000 }
    ));
    let cut = image.bytes.len() - SECTOR;
    let error = look(&image.bytes[..cut]);
    assert!(
        matches!(error, InspectError::Truncated { len, capacity } if (len, capacity) == (cut as u64, FLASH_BYTES))
    );
    assert!(matches!(look(&vec![0; 1 << 20]), InspectError::Blank));
    assert!(matches!(look(&vec![7; 1 << 20]), InspectError::NotACache));
    // Superblocks that are whole.
    let with_slots = |edit: &dyn Fn(&mut [u8])| {
        let mut bytes = image.bytes.clone();
        for slot in bytes[..2 * SECTOR].chunks_exact_mut(SECTOR) {
            edit(slot);
            let crc = checksum(0, &[&slot[..12], &slot[16..]]);
            slot[12..16].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    };
    let newer = with_slots(&|slot| slot[8..12].copy_from_slice(&(FORMAT + 1).to_le_bytes()));
    assert!(matches!(look(&newer), InspectError::OtherFormat(found) if found == FORMAT + 1));
    let mut damaged = image.bytes.clone();
    damaged[100] ^= 1;
    damaged[SECTOR + 100] ^= 1;
    assert!(matches!(look(&damaged), InspectError::Damaged));
    // A layout that there is not.
    let unknown = with_slots(&|slot| slot[176 + 8] = 99);
    assert!(matches!(
        look(&unknown),
        InspectError::UnknownSettings { at: 0 | 4096 }
    ));
    // What stands behind the cache is not looked at.
    let longer = [&image.bytes[..], &[7; 8192]].concat();
    let summary = inspect(&longer[..], &mut Heard::default(), true).unwrap();
    assert_eq!(
        (summary.inconsistencies, summary.device_bytes),
        (0, FLASH_BYTES + 8192)
    );
}

#[test]
fn no_bytes_make_it_panic_or_take_memory() {
    let image = Image::new(cascade(), false);
    let mut random = Random(9);
    for _ in 0..150 {
        let mut damaged = image.bytes.clone();
        for _ in 0..1 + random.below(20) {
            let len = (1 << random.below(14)).min(damaged.len() as u64);
            let at = random.below(damaged.len() as u64 - len) as usize;
            let fill = random.next_u64() as u8;
            damaged[at..at + len as usize]
                .iter_mut()
                .for_each(|byte| *byte = byte.wrapping_mul(fill | 1) ^ fill);
        }
        let _ = inspect(&damaged[..], &mut Heard::default(), true);
    }
    // Streams whose sums are right and whose counts are not.
    let image = Image::new(IndexOptions::Full, true);
    let len = image.summary.checkpoint.unwrap().bytes;
    for _ in 0..200 {
        let (at, with) = (random.below(len - 8) as usize, random.next_u64());
        let width = [1, 2, 4, 8][random.below(4) as usize];
        let edited = image.with_checkpoint(|stream| {
            stream[at..at + width].copy_from_slice(&with.to_le_bytes()[..width]);
        });
        let _ = edited.wrong();
    }
}
