use super::*;
use pumice_world::Random;

const BLOCK_BYTES: u64 = 1 << 20;

fn below(random: &mut Random, n: u32) -> u32 {
    random.below(n.into()) as u32
}

fn widths() -> [u32; 3] {
    [1, 4, 7]
}

/// Slots, and the offset and slot of each object, by number.
fn filled(bits: u32, objects: u32, random: &mut Random) -> (Slots, Vec<(u32, u32)>) {
    let (mut slots, mut model) = (Slots::new(bits), Vec::new());
    let mut offset = below(random, 3) * 16;
    for number in 0..objects {
        let slot = below(random, 1 << bits);
        assert_eq!(slots.push(offset, slot), number);
        model.push((offset, slot));
        offset += 16 * (1 + below(random, 20));
    }
    (slots, model)
}

fn check(slots: &Slots, model: &[(u32, u32)]) {
    assert_eq!(slots.len() as usize, model.len());
    for (number, (offset, slot)) in (0..).zip(model) {
        assert_eq!(slots.get(number), *slot, "object {number}");
        // All that a mapping says of the number is its low bits.
        assert_eq!(slots.number(*offset, number % STRIDE), Some(number));
        assert_eq!(
            slots.number(*offset, number),
            Some(number),
            "upper bits are no matter"
        );
    }
}

#[test]
fn the_low_bits_and_the_offset_give_the_number_and_each_slot_is_its_own() {
    let mut random = Random(7);
    for bits in widths() {
        for objects in [1, 2, 63, 64, 65, 128, 129, 700, 3_001] {
            let (mut slots, mut model) = filled(bits, objects, &mut random);
            check(&slots, &model);
            for _ in 0..2 * objects {
                let (number, slot) = (below(&mut random, objects), below(&mut random, 1 << bits));
                slots.set(number, slot);
                model[number as usize].1 = slot;
            }
            // What is too wide changes no neighbour.
            let number = below(&mut random, objects);
            slots.set(number, u32::MAX);
            model[number as usize].1 = (1 << bits) - 1;
            check(&slots, &model);
        }
    }
}

#[test]
fn no_number_is_given_to_what_has_no_slot() {
    let mut random = Random(9);
    for bits in widths() {
        assert_eq!(Slots::new(bits).number(0, 0), None);
        let mut slots = Slots::new(bits);
        for number in 0..130 {
            slots.push(48 + number * 32, 0);
        }
        for low in 0..STRIDE {
            assert_eq!(slots.number(47, low), None, "below the first");
            // Above the last two objects there is nothing.
            let wanted = (low < 2).then_some(128 + low);
            assert_eq!(slots.number(48 + 130 * 32, low), wanted);
            assert_eq!(slots.number(u32::MAX, low), wanted);
        }
        let (slots, model) = filled(bits, 500, &mut random);
        for _ in 0..2_000 {
            let (offset, low) = (below(&mut random, 200_000), below(&mut random, STRIDE));
            if let Some(number) = slots.number(offset, low) {
                assert!(number < 500 && number % STRIDE == low);
                let first = number / STRIDE * STRIDE;
                assert!(model[first as usize].0 <= offset);
                let next = model.get((first + STRIDE) as usize);
                assert!(next.is_none_or(|(next, _)| offset < *next));
            }
        }
    }
}

#[test]
fn parts_make_the_same_slots_and_others_are_refused() {
    let mut random = Random(11);
    for bits in widths() {
        for objects in [0, 1, 64, 65, 641, 1_000] {
            let (slots, model) = filled(bits, objects, &mut random);
            let (len, strides, words) = slots.parts();
            let (strides, words) = (strides.to_vec(), words.to_vec());
            let make = |len, strides: &[u32], words: &[u64], block_bytes| {
                Slots::from_parts(bits, len, strides.to_vec(), words.to_vec(), block_bytes)
            };
            assert_eq!(
                (strides.len(), words.len()),
                (
                    objects.div_ceil(64) as usize,
                    objects.div_ceil(64 / bits) as usize
                )
            );
            let mut again = make(len, &strides, &words, BLOCK_BYTES).expect("as they were");
            assert_eq!(again, slots);
            check(&again, &model);
            let offset = model.last().map_or(0, |(offset, _)| offset + 16);
            assert_eq!(again.push(offset, 1), objects, "they go on");

            let longer_strides = [&strides[..], &[u32::from(u16::MAX) * 16]].concat();
            let longer_words = [&words[..], &[0]].concat();
            assert_eq!(make(len, &longer_strides, &words, BLOCK_BYTES), None);
            assert_eq!(make(len, &strides, &longer_words, BLOCK_BYTES), None);
            let Some(last) = strides.last() else { continue };
            let mut between = strides.to_vec();
            between[0] += 1;
            assert_eq!(
                make(len, &between, &words, BLOCK_BYTES),
                None,
                "no object starts there"
            );
            assert_eq!(make(len, &strides[1..], &words, BLOCK_BYTES), None);
            assert_eq!(make(len, &strides, &words[1..], BLOCK_BYTES), None);
            assert_eq!(make(len + 64, &strides, &words, BLOCK_BYTES), None);
            assert_eq!(make(0, &strides, &words, BLOCK_BYTES), None);
            assert_eq!(make(u32::MAX, &strides, &words, BLOCK_BYTES), None);
            let end = u64::from(*last);
            assert_eq!(make(len, &strides, &words, end), None, "outside the block");
            assert!(make(len, &strides, &words, end + 1).is_some());
            if strides.len() > 1 {
                let mut swapped = strides.to_vec();
                swapped.swap(0, 1);
                assert_eq!(make(len, &swapped, &words, BLOCK_BYTES), None, "not in order");
                let twice = vec![*last; strides.len()];
                assert_eq!(make(len, &twice, &words, BLOCK_BYTES), None, "one offset twice");
            }
        }
    }
}

#[test]
fn dram_is_the_bits_and_half_a_one_where_words_are_whole() {
    for (bits, wanted) in [(1, 1.5), (4, 4.5), (6, 6.9)] {
        let (mut slots, _) = filled(bits, 64_000, &mut Random(3));
        slots.shrink();
        let each = slots.dram_bytes() as f64 * 8.0 / 64_000.0;
        assert!(
            (each - wanted).abs() < 0.01,
            "{each} bits an object of width {bits}"
        );
    }
}

#[test]
fn a_footer_of_a_start_makes_new_slots() {
    let entries: Vec<FooterEntry> = (0..200)
        .map(|number| FooterEntry {
            hash: 1,
            version: 1,
            offset: number * 48,
            len: 48,
            expiry: 0,
            number,
        })
        .collect();
    for bits in widths() {
        let slots = Slots::of_entries(bits, &entries);
        let model: Vec<(u32, u32)> = entries.iter().map(|entry| (entry.offset, 0)).collect();
        check(&slots, &model);
    }
    assert_eq!(Slots::of_entries(0, &entries).len(), 0);
}
