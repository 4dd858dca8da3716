//! What `ripq` keeps of each object: where it counts, and how often it was asked for.

use super::queue::Mark;
use crate::layout::ground::NotePlace;
use pumice_policy::Policy;

/// Bits of a mark, and of the count of accesses, where mappings have room for both.
const MARK_BITS: u32 = 9;
const ACCESS_BITS: u32 = 2;
/// Bits of a note in a mapping.
pub(crate) const WIDE_BITS: u32 = MARK_BITS + ACCESS_BITS;
/// Bits of a note in a slot.
pub(crate) const SLOT_BITS: u32 = 7;

/// Where an object counts, and how often it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// 0: the object counts where it is.
    pub(super) mark: Mark,
    /// Accesses since it was inserted, from 1 to 4.
    pub(super) accesses: u32,
}

impl Note {
    /// Of an object that was just written.
    pub(super) const NEW: Note = Note { mark: 0, accesses: 1 };
}

/// How notes are written in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// In a mapping: mark and accesses.
    Wide,
    /// In a slot: where the object counts, or that it is dead.
    Seat,
    /// In a slot: that, and how often it was asked for.
    SeatAndAccesses,
}

impl Code {
    pub(super) fn of(policy: &dyn Policy, notes: NotePlace) -> Self {
        match notes {
            NotePlace::Nowhere | NotePlace::Mapping => Code::Wide,
            // Two accesses are told by a seat that was changed; of relative policies none tells three from more.
            NotePlace::Slot if policy.accesses_max() <= 2 || !policy.is_absolute() => Code::Seat,
            NotePlace::Slot => Code::SeatAndAccesses,
        }
    }

    /// Bits that say where an object counts.
    pub(super) fn seat_bits(self) -> u32 {
        match self {
            Code::Wide => MARK_BITS,
            Code::Seat => SLOT_BITS,
            Code::SeatAndAccesses => SLOT_BITS - ACCESS_BITS,
        }
    }

    /// The seat of an object that counts nowhere any more; a mapping needs none.
    pub(super) fn dead(self) -> u32 {
        match self {
            Code::Wide => u32::MAX,
            Code::Seat | Code::SeatAndAccesses => (1 << self.seat_bits()) - 1,
        }
    }

    /// The seat of one that counts in its block, and was asked for since it was new: where accesses are not kept, 0 is a new one.
    pub(super) fn hit(self) -> u32 {
        self.dead() - 1
    }

    /// Marks that a queue can give out, plus one.
    pub(super) fn marks(self) -> Mark {
        match self {
            Code::Wide => 1 << MARK_BITS,
            Code::Seat => self.hit(),
            Code::SeatAndAccesses => self.dead(),
        }
    }

    pub(super) fn encode(self, note: Note) -> u32 {
        match self {
            Code::Wide | Code::SeatAndAccesses => (note.accesses - 1) << self.seat_bits() | note.mark,
            Code::Seat if note.mark == 0 && note.accesses > 1 => self.hit(),
            Code::Seat => note.mark,
        }
    }

    /// `None` of a dead object.
    pub(super) fn decode(self, bits: u32) -> Option<Note> {
        let seat = bits & ((1 << self.seat_bits()) - 1);
        let note = match self {
            Code::Wide | Code::SeatAndAccesses => Note {
                mark: seat,
                accesses: (bits >> self.seat_bits()) + 1,
            },
            Code::Seat => Note {
                mark: if seat == self.hit() { 0 } else { seat },
                accesses: u32::from(seat != 0) + 1,
            },
        };
        (seat != self.dead()).then_some(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::options::policy;

    #[test]
    fn a_slot_of_seven_bits_says_new_hit_one_of_125_groups_or_dead() {
        let code = Code::Seat;
        assert_eq!((code.marks() - 1, code.seat_bits()), (125, 7));
        assert_eq!(code.encode(Note::NEW), 0, "what a start writes for new objects");
        assert_eq!(code.decode(0), Some(Note::NEW));
        let hit = Note { mark: 0, accesses: 2 };
        assert_eq!(code.encode(hit), code.hit());
        assert_eq!(code.decode(code.hit()), Some(hit));
        for mark in 1..code.marks() {
            let note = Note { mark, accesses: 2 };
            assert_eq!(code.decode(code.encode(note)), Some(note));
            assert_eq!(code.encode(Note { mark, accesses: 1 }), code.encode(note));
        }
        assert_eq!(code.decode(code.dead()), None);
        for bits in (0..1 << SLOT_BITS).filter(|bits| *bits != code.dead()) {
            assert_eq!(
                code.encode(code.decode(bits).unwrap()),
                bits,
                "each says something else"
            );
        }
    }

    #[test]
    fn a_slot_with_accesses_has_thirty_groups_and_a_mapping_511() {
        for (code, groups, bits) in [
            (Code::SeatAndAccesses, 30, SLOT_BITS),
            (Code::Wide, 511, WIDE_BITS),
        ] {
            assert_eq!(code.marks() - 1, groups);
            assert_eq!(code.encode(Note::NEW), 0, "what a start writes for new objects");
            let mut codes = Vec::new();
            for mark in 0..code.marks() {
                for accesses in 1..=4 {
                    let note = Note { mark, accesses };
                    let bits = code.encode(note);
                    assert_eq!(code.decode(bits), Some(note));
                    codes.push(bits);
                }
            }
            if code != Code::Wide {
                for accesses in 0..4 {
                    let dead = accesses << code.seat_bits() | code.dead();
                    assert_eq!(code.decode(dead), None);
                    codes.push(dead);
                }
            }
            codes.sort_unstable();
            let all: Vec<u32> = (0..1 << bits).collect();
            assert_eq!(codes, all);
        }
    }

    #[test]
    fn a_code_follows_from_the_place_of_notes_and_the_policy() {
        for (name, code) in [
            ("slru-3", Code::Seat),
            ("gdsf-2", Code::Seat),
            ("gdsf-3", Code::SeatAndAccesses),
            ("gdsf-4", Code::SeatAndAccesses),
            ("lfu", Code::SeatAndAccesses),
        ] {
            let policy = policy(name).unwrap();
            assert_eq!(Code::of(policy, NotePlace::Slot), code, "{name}");
            assert_eq!(Code::of(policy, NotePlace::Mapping), Code::Wide, "{name}");
        }
    }
}
