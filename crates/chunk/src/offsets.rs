//! Offsets of a block's contents, packed.

/// The position of every 256th number in `high` is noted.
const SAMPLE: usize = 256;

/// Rising numbers in Elias-Fano coding (Elias 1974, Fano 1971). The lower bits of each number are stored as they are. The upper bits are
/// stored as steps: a one for each number, after a zero for each step up. Memory: `n` numbers below `u` take some `2 + log2(u / n)` bits
/// each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    len: u32,
    low_bits: u32,
    /// The lower bits, from the lowest bit of each word on.
    low: Box<[u64]>,
    /// The upper bits, as steps.
    high: Box<[u64]>,
    /// The bit of `high` that is the one of each 256th number.
    samples: Box<[u32]>,
}

impl Offsets {
    /// Packs numbers; `None` unless each is above the one before.
    pub fn new(offsets: &[u32]) -> Option<Self> {
        let (Some(last), Ok(len)) = (offsets.last(), u32::try_from(offsets.len())) else {
            return Some(Self::default());
        };
        if !offsets.is_sorted_by(|a, b| a < b) {
            return None;
        }
        let low_bits = (last / len).checked_ilog2().unwrap_or(0);
        let [low_words, high_words] = Self::words(len.into(), u64::from(*last), low_bits);
        let mut low = vec![0u64; low_words as usize];
        let mut high = vec![0u64; high_words as usize];
        let mut samples = Vec::with_capacity(offsets.len().div_ceil(SAMPLE));
        for (number, offset) in offsets.iter().enumerate() {
            let bits = u64::from(offset & ((1 << low_bits) - 1));
            let at = number * low_bits as usize;
            if low_bits > 0 {
                low[at / 64] |= bits << (at % 64);
                if at % 64 + low_bits as usize > 64 {
                    low[at / 64 + 1] |= bits >> (64 - at % 64);
                }
            }
            let one = (offset >> low_bits) as usize + number;
            high[one / 64] |= 1 << (one % 64);
            if number % SAMPLE == 0 {
                samples.push(u32::try_from(one).ok()?);
            }
        }
        Some(Self {
            len,
            low_bits,
            low: low.into(),
            high: high.into(),
            samples: samples.into(),
        })
    }

    /// Words of the lower bits and of the steps.
    fn words(len: u64, last: u64, low_bits: u32) -> [u64; 2] {
        let steps = len + (last >> low_bits) + 1;
        [(len * u64::from(low_bits)).div_ceil(64), steps.div_ceil(64)]
    }

    /// The most that [`Offsets::heap_bytes`] is of up to `len` numbers up to `last`. Fewer numbers, or lower ones, take fewer bits in all.
    pub fn heap_bytes_max(len: u64, last: u64) -> u64 {
        let low_bits = (last / len.max(1)).checked_ilog2().unwrap_or(0);
        let words: u64 = Self::words(len, last, low_bits).iter().sum();
        // Of other numbers, each of the two may have an unfinished word more.
        (words + 2) * size_of::<u64>() as u64 + len.div_ceil(SAMPLE as u64) * size_of::<u32>() as u64
    }

    /// How many numbers there are.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// DRAM beside the struct itself, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        (size_of_val(&*self.low) + size_of_val(&*self.high) + size_of_val(&*self.samples)) as u64
    }

    /// The number at position `number`; `None` beyond the last. Cost: a scan of at most 256 numbers' steps.
    pub fn get(&self, number: u32) -> Option<u32> {
        if number >= self.len {
            return None;
        }
        let number = number as usize;
        let start = *self.samples.get(number / SAMPLE)? as usize;
        let mut left = number % SAMPLE;
        let mut at = start / 64;
        let mut word = self.high[at] & u64::MAX << (start % 64);
        while word.count_ones() as usize <= left {
            left -= word.count_ones() as usize;
            at += 1;
            word = *self.high.get(at)?;
        }
        for _ in 0..left {
            word &= word - 1;
        }
        let one = at * 64 + word.trailing_zeros() as usize;
        Some(((one - number) as u32) << self.low_bits | self.low(number))
    }

    fn low(&self, number: usize) -> u32 {
        let (bits, at) = (self.low_bits as usize, number * self.low_bits as usize);
        if bits == 0 {
            return 0;
        }
        let mut low = self.low[at / 64] >> (at % 64);
        if at % 64 + bits > 64 {
            low |= self.low[at / 64 + 1] << (64 - at % 64);
        }
        (low & ((1 << bits) - 1)) as u32
    }

    /// All numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0..self.len).filter_map(|number| self.get(number))
    }
}
