//! Each answer alone, where the model sees only what many of them come to.

use super::*;
use crate::cascade::flash_tiers::FlashTiers;

#[test]
fn what_tier_1_knows_tells_the_copy_that_lives_from_every_other() {
    let mut model = Model::new(1, 400);
    model.set(1);
    let [hash, stranger] = [1, 2].map(Model::hash);
    let lives = model.shard.mapping(hash).unwrap();
    let other = Location {
        offset: lives.location.offset + 4 * BLOCK_BYTES,
        ..lives.location
    };
    assert_eq!(model.shard.known(hash, lives.location), Known::Live(lives));
    assert_eq!(model.shard.known(hash, other), Known::Dead);
    assert_eq!(model.shard.known(stranger, other), Known::Unknown);
    let survivor = |hash, location| {
        let copy = StoredCopy {
            mapping: Mapping { location, note: 0 },
            opened_at: 1_000,
            heard: Heard::Alive,
        };
        model.shard.survivor(hash, &copy)
    };
    assert_eq!(survivor(hash, lives.location), Survivor::Keep(lives));
    assert_eq!(survivor(hash, other), Survivor::Drop);
    assert_eq!(
        survivor(stranger, other),
        Survivor::Drop,
        "flash has no mapping of it"
    );
}

#[test]
fn a_mapping_is_contested_where_a_shield_is_younger_than_another_only() {
    const TAG: u64 = 77;
    // What each page has of the tag: whether it is a shield. A generation follows another where that is merged.
    let is_contested = |pages: &[(usize, bool)]| {
        let mut tiers = FlashTiers::nothing(IndexShape::new(1 << 26, 4, 6), PAGE_ENTRIES);
        for (number, (merged, is_shield)) in (1..).zip(pages) {
            tiers.push(number, *merged, [(TAG, *is_shield)].into_iter());
        }
        tiers.is_contested(TAG)
    };
    assert!(!is_contested(&[]));
    assert!(!is_contested(&[(0, true)]), "a shield of nothing that is left");
    assert!(
        !is_contested(&[(0, false), (0, false)]),
        "of two keys that look alike"
    );
    assert!(!is_contested(&[(0, false), (1, false)]));
    assert!(!is_contested(&[(0, true), (0, false)]));
    assert!(is_contested(&[(0, false), (0, true)]));
    assert!(
        is_contested(&[(0, false), (1, true)]),
        "the first page of its generation"
    );
}

#[test]
fn each_tier_is_counted() {
    let mut model = Model::new(6, 400);
    (0..8_000).for_each(|key| model.set(key));
    model.begun = model.shard.begin_reorganisation(true);
    model.reorganise();
    (8_000..12_000).for_each(|key| model.set(key));
    let counts = model.shard.counts();
    let [tier1, tier2, tier3] = [
        counts.tier1_mappings,
        counts.tier2_mappings,
        counts.tier3_mappings,
    ];
    assert_eq!(tier1 + tier2 + tier3, 12_000, "each key once, and none has left");
    assert_eq!(tier1, model.shard.tier1.len() as u64);
    assert!(tier3 > 7_000 && tier3 <= 8_000, "{counts:?}");
    // Entries of a filter have 11 and 4 bits and what tells their buckets; a mapping in DRAM has more than a tag.
    assert!(
        counts.tier2_bytes * 8 > tier2 * 11 && counts.tier2_bytes < tier2 * 4,
        "{counts:?}"
    );
    assert!(
        counts.tier3_bytes * 8 > tier3 * 4 && counts.tier3_bytes < tier3 * 2,
        "{counts:?}"
    );
    assert!(counts.tier1_bytes > tier1 * 4, "{counts:?}");
    let pages = model.shard.flash.pages().count() * size_of::<PageNumber>();
    let directory = pages as u64..2 * pages as u64 + 2_048;
    assert!(directory.contains(&counts.directory_bytes), "{counts:?}");
}

#[test]
fn a_mapping_to_a_block_that_is_being_reclaimed_is_not_learnt() {
    let mut model = Model::new(6, 0);
    (0..5_000).for_each(|key| model.set(key));
    let on_flash = |model: &Model| {
        let is_on_flash = |hash: &KeyHash| matches!(model.shard.peek(*hash), Lookup::Read(_));
        (0..5_000).map(Model::hash).find(is_on_flash).unwrap()
    };
    let hash = on_flash(&model);
    *model.space.leaving.lock() = Some(model.live[&hash].offset / BLOCK_BYTES);
    assert_eq!(model.get(hash), None);
    assert_eq!(model.shard.mapping(hash), None, "it would outlive the block");
    let other = on_flash(&model);
    *model.space.leaving.lock() = None;
    assert_eq!(model.get(other), Some(model.live[&other]));
    assert!(model.shard.mapping(other).is_some());
}
