//! The slots of a checkpoint, what was invalidated, and what a queue of keys has learned, as they are written and as somebody else might
//! write them. Their checksums are right.

use super::format::{encode_fill, encode_filter, encode_history, encode_slots};
use super::reader::ReadObjects;
use crate::layout::sipq::keys::{KeyQueue, SavedFill};
use crate::layout::{LayoutName, LayoutOptions, Slots};
use pumice_blocks::chain::{NO_BLOCK, PartHeader, StreamReader, chunk_bytes, mix};
use pumice_blocks::geometry::Geometry;
use pumice_blocks::superblock::CheckpointRef;
use pumice_device::{Device, MemDevice, MemMedium, SECTOR_BYTES};
use pumice_index::cascade::{HistoryFilter, SavedHistory};
use pumice_record::codec::checksum;
use pumice_world::Executor;
use pumice_world::Random;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

const CACHE_ID: u64 = 77;
const BLOCK_BYTES: u64 = 64 << 10;
const WIDTHS: [u32; 3] = [1, 4, 6];

fn geometry() -> Geometry {
    Geometry::plan(4 << 20, BLOCK_BYTES).unwrap()
}

/// A device with this stream, and what a superblock would say of it.
fn device_with(stream: &[u8]) -> (MemDevice, CheckpointRef) {
    let geometry = geometry();
    let device = MemDevice::new(Arc::new(MemMedium::new(geometry.capacity)));
    let room = BLOCK_BYTES as usize - SECTOR_BYTES;
    let parts: Vec<&[u8]> = stream.chunks(room).collect();
    for (part, bytes) in parts.iter().enumerate() {
        let chunks = bytes.chunks(chunk_bytes(&geometry));
        let crcs = (0..).zip(chunks).fold(0, |crcs, (chunk, bytes)| {
            mix(crcs, chunk, checksum(CACHE_ID, &[bytes]))
        });
        let ends = part + 1 == parts.len();
        let header = PartHeader {
            id: 1,
            part: part as u32,
            next: if ends { NO_BLOCK } else { part as u32 + 1 },
            len: bytes.len() as u64,
            chunk_crcs: crcs,
        };
        let offset = geometry.block_offset(part as u32);
        device.append_log(offset, &header.encode(CACHE_ID)).unwrap();
        device.append_log(offset + SECTOR_BYTES as u64, bytes).unwrap();
    }
    let checkpoint = CheckpointRef {
        id: 1,
        first_block: 0,
        len: stream.len() as u64,
        log_start: 0,
    };
    (device, checkpoint)
}

/// What a reader makes of the stream: with `$part` of it, which must be all.
macro_rules! read_with {
    ($stream:expr, |$reader:ident| $part:expr) => {{
        let (geometry, (device, checkpoint)) = (geometry(), device_with($stream));
        let read = |offset, len| device.read(offset, len);
        let reads = async {
            let mut $reader = StreamReader::open(read, &geometry, CACHE_ID, &checkpoint, 0).await?;
            let part = $part.await?;
            $reader.finish().await.map(|_| part)
        };
        let done: Result<_, Infallible> = Executor::new().block_on(reads, || Ok(()));
        done.unwrap().map_err(|error| error.to_string())
    }};
}

/// The slots, by block, and whether the reader took all of the stream.
fn read(stream: &[u8], bits: u32) -> (BTreeMap<u32, Slots>, Result<(), String>) {
    let mut slots = BTreeMap::new();
    let done = read_with!(stream, |reader| reader
        .slots(bits, |block, saved| drop(slots.insert(block, saved))));
    (slots, done)
}

fn random_slots(bits: u32, objects: u32, random: &mut Random) -> Slots {
    let mut slots = Slots::new(bits);
    for number in 0..objects {
        slots.push(number * 64, random.below(1 << bits) as u32);
    }
    slots
}

fn stream(bits: u32, slots: &BTreeMap<u32, Slots>) -> Vec<u8> {
    let mut bytes = vec![bits as u8];
    slots
        .iter()
        .for_each(|(block, slots)| encode_slots(*block, slots, &mut bytes));
    bytes.extend_from_slice(&NO_BLOCK.to_le_bytes());
    bytes
}

/// Slots of some blocks, and the stream with them.
fn saved(bits: u32, random: &mut Random) -> (BTreeMap<u32, Slots>, Vec<u8>) {
    let objects = |block: u32| [1, 63, 64, 65, 640, 1_000][block as usize % 6];
    let blocks = (0..geometry().blocks).step_by(3);
    let slots = blocks.map(|block| (block, random_slots(bits, objects(block), random)));
    let slots = slots.collect();
    let bytes = stream(bits, &slots);
    (slots, bytes)
}

#[test]
fn slots_read_back_as_they_were_written_and_others_widths_are_left_out() {
    let mut random = Random(3);
    for bits in WIDTHS {
        let (slots, stream) = saved(bits, &mut random);
        for wanted in WIDTHS {
            let (found, done) = read(&stream, wanted);
            assert_eq!(done, Ok(()));
            if wanted == bits {
                assert_eq!(found, slots);
            } else {
                assert!(found.is_empty(), "slots of {bits} bits for {wanted}");
            }
        }
    }
}

#[test]
fn what_a_virtual_cache_cannot_have_learned_is_refused() {
    let geometry = geometry();
    let layout = LayoutOptions::new(LayoutName::Sipq, None, None, None).unwrap();
    let read = |bytes: &[u8]| {
        let mut stream = layout.policy_checksum().to_le_bytes().to_vec();
        stream.extend_from_slice(bytes);
        stream.extend_from_slice(&0u32.to_le_bytes());
        let mut cache = KeyQueue::of(&layout, &geometry);
        let done: Result<u32, String> = read_with!(&stream, |reader| reader
            .keys(layout.policy_checksum(), Some(&mut cache)));
        done.map(|_| cache.fill())
    };
    let fill = SavedFill {
        has_been_full: true,
        blocks: geometry.blocks,
        block_mean: geometry.block_bytes as f64,
    };
    let with = |edit: &dyn Fn(&mut SavedFill)| {
        let (mut fill, mut bytes) = (fill, Vec::new());
        edit(&mut fill);
        encode_fill(fill, &mut bytes);
        bytes
    };
    for learned in [
        fill,
        SavedFill {
            has_been_full: false,
            blocks: 0,
            block_mean: 0.0,
        },
    ] {
        assert_eq!(read(&with(&|fill| *fill = learned)), Ok(learned));
    }
    let mut flag = with(&|_| ());
    flag[0] = 2;
    let mut wrong = vec![flag, with(&|fill| fill.blocks += 1)];
    wrong.extend(
        [-1.0, geometry.block_bytes as f64 + 1.0, f64::NAN, f64::INFINITY]
            .map(|mean| with(&|fill| fill.block_mean = mean)),
    );
    for bytes in wrong {
        let error = read(&bytes).unwrap_err();
        assert!(error.contains("keys are damaged"), "{bytes:?}: {error}");
    }
}

#[test]
fn a_stream_that_is_cut_off_anywhere_is_refused() {
    let mut random = Random(4);
    for bits in WIDTHS {
        let (_, stream) = saved(bits, &mut random);
        for _ in 0..60 {
            let len = 1 + random.below(stream.len() as u64 - 1) as usize;
            let (_, done) = read(&stream[..len], bits);
            assert!(done.is_err(), "{len} of {} bytes", stream.len());
        }
    }
}

#[test]
fn what_cannot_be_the_slots_of_a_block_is_refused() {
    let blocks = geometry().blocks;
    let mut random = Random(5);
    for bits in WIDTHS {
        let good = random_slots(bits, 200, &mut random);
        let refused = |what: &str, stream: &[u8]| {
            let (_, done) = read(stream, bits);
            let error = done.expect_err(what);
            assert!(error.contains("slots are damaged"), "{what}: {error}");
        };
        let with = |at: usize, value: u32| {
            let mut bytes = stream(bits, &BTreeMap::from([(3, good.clone())]));
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            // So that it does not just end early.
            bytes.resize(bytes.len() + (256 << 10), 0);
            bytes
        };
        let mut wide = with(1, 3);
        assert_eq!(read(&wide, bits).1, Ok(()), "nothing was changed");
        for width in [9, 64, u8::MAX] {
            wide[0] = width;
            refused("a width that no slot has", &wide);
        }
        for block in [blocks, blocks + 1, u32::MAX - 1] {
            refused("a block outside the device", &with(1, block));
        }
        for len in [BLOCK_BYTES as u32 + 1, 1 << 31, u32::MAX] {
            refused("more objects than a block has bytes", &with(5, len));
        }
        // The offsets follow the length.
        refused("an offset outside the block", &with(9 + 12, BLOCK_BYTES as u32));
        refused("offsets that do not rise", &with(9 + 4, 0));
        refused("offsets that do not rise", &with(9, 64 * 64));
        refused("more objects than offsets", &with(5, 300));
    }
}

#[test]
fn a_count_of_what_is_not_there_ends_early() {
    for bits in WIDTHS {
        // It says that there is as much as a block can have, and that is not there.
        let mut bytes = vec![bits as u8];
        for field in [3, BLOCK_BYTES as u32] {
            bytes.extend_from_slice(&u32::to_le_bytes(field));
        }
        let (found, done) = read(&bytes, bits);
        assert!(found.is_empty());
        assert!(done.is_err_and(|error| error.contains("ends early")));
    }
}

#[test]
fn one_block_again_and_again_is_one_block() {
    for bits in WIDTHS {
        let slots = random_slots(bits, 100, &mut Random(6));
        let mut bytes = vec![bits as u8];
        for _ in 0..2_000 {
            encode_slots(5, &slots, &mut bytes);
        }
        bytes.extend_from_slice(&NO_BLOCK.to_le_bytes());
        let (found, done) = read(&bytes, bits);
        assert_eq!(done, Ok(()));
        assert_eq!(found, BTreeMap::from([(5, slots)]));
    }
}

#[test]
fn any_bytes_end_in_an_error_or_in_slots_that_can_be_used() {
    let mut random = Random(8);
    let (mut good, mut refused) = (0, 0);
    for round in 0..3_000 {
        let bits = WIDTHS[round % 3];
        let (_, mut stream) = saved(bits, &mut random);
        for _ in 0..=random.below(3) {
            let at = random.below(stream.len() as u64) as usize;
            let small = [0, 1, 64, 255][random.below(4) as usize];
            stream[at] = if random.below(2) == 0 {
                small
            } else {
                random.below(256) as u8
            };
        }
        let (found, done) = read(&stream, bits);
        let counter = if done.is_ok() { &mut good } else { &mut refused };
        *counter += 1;
        let mut bytes = 0;
        for (block, mut slots) in found {
            assert!(block < geometry().blocks);
            slots.shrink();
            bytes += slots.dram_bytes();
            for number in 0..slots.len() {
                let slot = slots.get(number);
                assert!(slot < 1 << bits);
                slots.set(number, slot);
            }
            for low in 0..64 {
                let number = slots.number(random.below(BLOCK_BYTES) as u32, low);
                assert!(number.is_none_or(|number| number < slots.len()));
            }
        }
        assert!(
            bytes <= stream.len(),
            "{bytes} bytes of DRAM for {}",
            stream.len()
        );
    }
    println!("{good} good, {refused} refused");
    assert!(good > 500 && refused > 200);
}

/// What was invalidated.
fn read_history(stream: &[u8], words_max: usize) -> Result<SavedHistory, String> {
    read_with!(stream, |reader| reader.history(words_max))
}

#[test]
fn what_was_invalidated_reads_back_as_it_was_written_and_what_cannot_be_is_refused() {
    let words = SavedHistory::words(geometry().capacity);
    let mut random = Random(11);
    let filters = (1..=SavedHistory::FILTERS_MAX).map(|n| HistoryFilter {
        bits: (0..words).map(|_| random.next_u64()).collect(),
        hashes: 600 + n,
        closed_at: if n == SavedHistory::FILTERS_MAX {
            u64::MAX
        } else {
            20 + n as u64
        },
    });
    let written = SavedHistory {
        known_from: 17,
        filters: filters.collect(),
    };
    let mut stream = Vec::new();
    encode_history(written.known_from, written.filters.len(), &mut stream);
    for filter in &written.filters {
        encode_filter(filter, &mut stream);
    }
    assert_eq!(read_history(&stream, words), Ok(written));
    for (at, value) in [(8, 9u32), (8, u32::MAX), (28, u32::MAX), (32, 1)] {
        let mut forged = stream.clone();
        forged[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let error = read_history(&forged, words).err().unwrap();
        assert!(error.contains("invalidated are damaged"), "{at}: {error}");
    }
    assert!(read_history(&stream[..stream.len() - 8], words).is_err());
}
