//! DRAM of the indexes of a full cache, by their own account and by the system's, as one JSON object.
//!
//! `cargo run --release -p pumice-chunk --example index_dram -- CONTENTS`: so many distinct contents of chunks of 32 KiB that compress to a half,
//! and twice as many addresses, of a volume of four times as many.

use pumice_blocks::Geometry;
use pumice_chunk::{FpIndex, LbaIndex, Offsets, Place, PlaceBits};
use pumice_world::mix64;

const CHUNK_BYTES: u64 = 32 << 10;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

fn main() {
    let contents = std::env::args().nth(1).and_then(|count| count.parse().ok());
    let contents: u64 = contents.unwrap_or(10_000_000).max(1_000);
    let capacity = contents / 2 * CHUNK_BYTES;
    let block_bytes = Geometry::block_bytes_for(capacity, 4 * CHUNK_BYTES, 1, u64::MAX);
    let blocks = u32::try_from(capacity / block_bytes).expect("fewer than 2^32 blocks");
    let bits = PlaceBits::new(blocks, (block_bytes / (CHUNK_BYTES / 4)) as u32);
    let in_block = contents.div_ceil(u64::from(blocks));
    let (addresses, mappings) = (contents * 4, contents * 2);

    let before = resident_bytes();
    let mut lba = LbaIndex::new(addresses, mappings, bits, 1).expect("narrow slots");
    // As many slots for each content as the replay of the store has.
    let mut fp = FpIndex::new(contents * 11 / 10, bits).expect("narrow slots");
    let place = |content: u64| Place {
        block: (content / in_block) as u32,
        number: (content % in_block) as u32,
    };
    for content in 0..contents {
        fp.insert(mix64(content), place(content));
    }
    // A stride that meets each address of the volume once: as many as there are slots, and a quarter more.
    for n in 0..mappings + mappings / 4 {
        let address = n.wrapping_mul(0x9e37_79b1) % addresses;
        lba.insert(address, place(mix64(n) % contents), false);
    }
    let starts: Vec<Offsets> = (0..blocks)
        .map(|block| {
            // Lengths between a quarter and three quarters of a chunk, in units of 16 bytes.
            let mut at = 0;
            let starts = (0..in_block).map(|number| {
                let start = at;
                at += 512 + (mix64(u64::from(block) << 32 | number) % 1024) as u32;
                start
            });
            Offsets::new(&starts.collect::<Vec<u32>>()).expect("they rise")
        })
        .collect();
    let resident = resident_bytes().saturating_sub(before);
    let offsets: u64 = starts.iter().map(Offsets::heap_bytes).sum::<u64>() + size_of_val(&*starts) as u64;
    let (mapped, known) = (lba.len(), fp.len());
    println!(
        "{{\"contents\": {known}, \"mapped\": {mapped}, \"mappings\": {mappings}, \"fingerprints\": {contents}, \"address_dram_bytes\": {}, \"content_dram_bytes\": {}, \"resident_bytes\": {resident}}}",
        lba.dram_bytes(),
        fp.dram_bytes() + offsets
    );
}
