//! What is written to sectors, and what a sector that was read says.
//!
//! A sector begins with four words: what kind of content it is, the number of the run, and two that name the content. The other 60
//! follow from these, so one look tells a whole content from a damaged one. Half of all contents can be compressed.

use pumice_world::mix64;
use twox_hash::XxHash3_64;

/// Bytes of a sector.
pub const SECTOR_BYTES: usize = 512;
/// Sectors of a content of the pool. It stands at multiples of its length, so that caches find equal chunks.
const POOL_SECTORS: u64 = 128;

const WORDS: usize = SECTOR_BYTES / 8;
const VERSION: u64 = u64::from_be_bytes(*b"PumiceV1");
const POOL: u64 = u64::from_be_bytes(*b"PumiceP1");

const KIND_BITS: u32 = 62;

/// The content of a known sector, in eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content(pub u64);

impl Content {
    /// Not looked at yet: any bytes but those of this run.
    pub const UNKNOWN: Content = Content(0);
    /// Zeros.
    pub const ZERO: Content = Content(1);
    /// Trimmed: any bytes but those of another sector.
    pub const TRIMMED: Content = Content(2);

    /// The content that is written once, to this sector alone.
    pub fn version(version: u64) -> Self {
        Content(1 << KIND_BITS | version)
    }

    /// A content of the pool.
    pub fn pool(number: u32) -> Self {
        Content(2 << KIND_BITS | u64::from(number))
    }

    /// Other bytes, by their hash.
    fn bytes(bytes: &[u8]) -> Self {
        Content(3 << KIND_BITS | XxHash3_64::oneshot(bytes) >> 2)
    }

    /// Whether a sector may have been read as `seen` if this is its content.
    pub fn matches(self, seen: &Seen) -> bool {
        match self {
            _ if self == seen.content => true,
            Content::UNKNOWN => matches!(seen.origin, Origin::Zero | Origin::Strange { .. }),
            Content::TRIMMED => !matches!(seen.origin, Origin::Elsewhere { .. } | Origin::Damaged { .. }),
            _ => false,
        }
    }

    /// Whether both are versions, and this is the older one.
    pub fn is_older(self, than: Content) -> bool {
        self.0 >> KIND_BITS == 1 && than.0 >> KIND_BITS == 1 && self.0 < than.0
    }

    /// Says which it is.
    pub fn text(self) -> String {
        let number = self.0 & ((1 << KIND_BITS) - 1);
        match (self, self.0 >> KIND_BITS) {
            (Content::UNKNOWN, _) => "bytes from before the run".to_owned(),
            (Content::ZERO, _) => "zeros".to_owned(),
            (Content::TRIMMED, _) => "trimmed bytes".to_owned(),
            (_, 1) => format!("version {number}"),
            (_, 2) => format!("pool content {number}"),
            _ => format!("the bytes with hash {number:x} that were read before"),
        }
    }

    /// Makes the bytes of a sector.
    pub fn fill(self, sector: u64, run: u64, out: &mut [u8]) {
        let number = self.0 & ((1 << KIND_BITS) - 1);
        match self.0 >> KIND_BITS {
            1 => fill([VERSION, run, sector, number], out),
            2 => fill([POOL, run, sector % POOL_SECTORS, number], out),
            _ => out.fill(0),
        }
    }
}

fn words([kind, run, place, number]: [u64; 4]) -> impl Iterator<Item = u64> {
    let key = mix64(kind ^ mix64(run ^ mix64(place ^ mix64(number))));
    let period = if number % 2 == 0 { 8 } else { WORDS as u64 };
    let rest = (4..WORDS as u64).map(move |word| mix64(key ^ (word % period)));
    [kind, run, place, number].into_iter().chain(rest)
}

fn fill(head: [u64; 4], out: &mut [u8]) {
    for (out, word) in out.chunks_exact_mut(8).zip(words(head)) {
        out.copy_from_slice(&word.to_le_bytes());
    }
}

/// Where the bytes of a sector come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This sector of this run, or the pool.
    Here,
    /// They are zeros.
    Zero,
    /// Another sector of this run, with its version; or one of the pool, by its place there, with its number.
    Elsewhere {
        is_pooled: bool,
        place: u64,
        number: u64,
    },
    /// A content of this run that is not whole, by what its head says.
    Damaged { place: u64, number: u64 },
    /// Not this run; the first bytes.
    Strange { first: [u8; 8] },
}

/// A sector that was read.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// What it has.
    pub content: Content,
    /// Where that comes from.
    pub origin: Origin,
}

impl Seen {
    /// Looks at the bytes of a sector.
    pub fn new(bytes: &[u8], sector: u64, run: u64) -> Self {
        let mut read = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        let head: [u64; 4] = std::array::from_fn(|_| read.next().unwrap_or_default());
        let [kind, of_run, place, number] = head;
        let origin = match kind {
            VERSION | POOL if of_run == run => {
                let is_pooled = kind == POOL;
                let here = if is_pooled { sector % POOL_SECTORS } else { sector };
                match read.eq(words(head).skip(4)) {
                    true if place == here => Origin::Here,
                    true => Origin::Elsewhere {
                        is_pooled,
                        place,
                        number,
                    },
                    false => Origin::Damaged { place, number },
                }
            }
            0 if head == [0; 4] && read.all(|word| word == 0) => Origin::Zero,
            _ => Origin::Strange {
                first: kind.to_le_bytes(),
            },
        };
        let content = match origin {
            Origin::Here if kind == VERSION => Content::version(number),
            Origin::Here => Content::pool(number as u32),
            Origin::Zero => Content::ZERO,
            _ => Content::bytes(bytes),
        };
        Seen { content, origin }
    }

    /// Says what it is.
    pub fn text(&self) -> String {
        match self.origin {
            Origin::Here | Origin::Zero => self.content.text(),
            Origin::Elsewhere {
                is_pooled: false,
                place,
                number,
            } => format!("content of sector {place}, its version {number}"),
            Origin::Elsewhere { place, number, .. } => {
                format!("pool content {number}, but its part {place}, which belongs elsewhere")
            }
            Origin::Damaged { place, number } => {
                format!("damaged bytes with the head of sector {place}, number {number}")
            }
            Origin::Strange { first } => {
                let first: String = first.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("unknown bytes, {first}…")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: u64 = 77;

    fn sector(content: Content, sector: u64) -> Vec<u8> {
        let mut bytes = vec![1; SECTOR_BYTES];
        content.fill(sector, RUN, &mut bytes);
        bytes
    }

    #[test]
    fn a_content_is_recognised_where_it_belongs_and_nowhere_else() {
        for content in [
            Content::version(3),
            Content::version(8),
            Content::pool(5),
            Content::ZERO,
        ] {
            let bytes = sector(content, 300);
            assert_eq!(Seen::new(&bytes, 300, RUN).content, content);
            let other = Seen::new(&bytes, 301, RUN);
            assert_eq!(other.content == content, content == Content::ZERO);
            let other = Seen::new(&bytes, 300, RUN + 1);
            assert_eq!(other.content == content, content == Content::ZERO);
        }
        // The pool repeats: equal contents at equal places.
        assert_eq!(
            sector(Content::pool(5), 300),
            sector(Content::pool(5), 300 + POOL_SECTORS)
        );
        assert_eq!(
            Seen::new(&sector(Content::version(3), 300), 9, RUN).text(),
            "content of sector 300, its version 3"
        );
    }

    #[test]
    fn each_changed_byte_is_found() {
        for content in [Content::version(4), Content::pool(1), Content::ZERO] {
            for at in 0..SECTOR_BYTES {
                let mut bytes = sector(content, 6);
                bytes[at] ^= 1;
                let seen = Seen::new(&bytes, 6, RUN);
                assert!(!content.matches(&seen) && seen.origin != Origin::Here, "{at}");
            }
        }
    }

    #[test]
    fn unknown_and_trimmed_sectors_have_nothing_foreign() {
        let own = Seen::new(&sector(Content::version(3), 6), 6, RUN);
        let foreign = Seen::new(&sector(Content::version(3), 7), 6, RUN);
        let strange = Seen::new(&[9; SECTOR_BYTES], 6, RUN);
        let says = |content: Content| [own, foreign, strange].map(|seen| content.matches(&seen));
        assert_eq!(says(Content::UNKNOWN), [false, false, true]);
        assert_eq!(says(Content::TRIMMED), [true, false, true]);
        assert_eq!(says(Content::version(3)), [true, false, false]);
    }
}
