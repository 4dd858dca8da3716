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
        let mut low = vec![0u64; (offsets.len() * low_bits as usize).div_ceil(64)];
        let high_bits = offsets.len() + (last >> low_bits) as usize + 1;
        let mut high = vec![0u64; high_bits.div_ceil(64)];
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
