//! What a hit gives, and why there may be nothing to give.

use crate::read::Place;
use pumice_memory::{Buffer, Payload};
use pumice_record::{Record, RecordHeader};

/// What a client says of an object beside its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Opaque to the cache.
    pub flags: u32,
    /// Unix seconds from which on the object is gone; 0 = never.
    pub expiry: u32,
    /// Marks that the object carries until it is replaced, for the caller to give a meaning, but for the upper two: [`Meta::USED`], and
    /// one that the cache shows nobody.
    pub marks: u8,
}

impl Meta {
    /// The object was hit before. The cache sets it where it knows: from hits in the DRAM tier that it has not forgotten, and
    /// when flash is read. It never clears it, but an object that leaves the DRAM tier comes back as its copy on flash says.
    pub const USED: u8 = 0x80;
    /// Admission has kept the object, or the large object that this is a part of, from flash.
    pub(crate) const REFUSED: u8 = 0x40;
}

/// Why an object was not stored. After a set the older object under the key is gone all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// The value is longer than the cache takes.
    #[error("object too large")]
    TooLarge,
    /// The key is empty or longer than 250 bytes.
    #[error("bad key length")]
    KeyLength,
    /// Neither tier has room at the moment.
    #[error("no room in either tier")]
    NoRoom,
    /// The value is not as long as its writer was told, or the owner's bytes are too many.
    #[error("not of the length that was told")]
    Length,
}

/// Which tier answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// DRAM: an item, or a block that is still a buffer.
    Dram,
    /// The flash device.
    Flash,
}

/// A hit. It pins the memory that its value stands in; drop it soon.
#[derive(Debug)]
pub struct Object<B> {
    pub(crate) head: Record<B>,
    pub(crate) parts: Vec<Record<B>>,
    pub(crate) value_len: usize,
    pub(crate) tier: Tier,
    /// Where it was seen, or its head.
    pub(crate) place: Place,
}

impl<B> Clone for Object<B> {
    /// Shares the memory.
    fn clone(&self) -> Self {
        Self {
            head: self.head.clone(),
            parts: self.parts.clone(),
            ..*self
        }
    }
}

impl<B: Buffer> Object<B> {
    pub(crate) fn whole(head: Record<B>, tier: Tier, place: Place) -> Self {
        let value_len = head.header().value_len as usize;
        Self {
            head,
            parts: Vec::new(),
            value_len,
            tier,
            place,
        }
    }

    pub(crate) fn header(&self) -> &RecordHeader {
        self.head.header()
    }

    /// The version: memcached's CAS unique.
    pub fn version(&self) -> u64 {
        self.header().version
    }

    /// The client's flags.
    pub fn flags(&self) -> u32 {
        self.header().flags
    }

    /// Unix seconds from which on the object is gone; 0 = never.
    pub fn expiry(&self) -> u32 {
        self.header().expiry
    }

    /// Flags, expiry and marks.
    pub fn meta(&self) -> Meta {
        Meta {
            flags: self.flags(),
            expiry: self.expiry(),
            marks: self.marks(),
        }
    }

    /// See [`Meta::marks`].
    pub fn marks(&self) -> u8 {
        self.header().marks & !Meta::REFUSED
    }

    /// The full key.
    pub fn key(&self) -> &[u8] {
        self.head.key()
    }

    /// What the owner has stored beside the value.
    pub fn head(&self) -> &[u8] {
        self.head.head()
    }

    /// Length of the value in bytes.
    pub fn value_len(&self) -> usize {
        self.value_len
    }

    /// The value as far as it is there, in consecutive parts: one, unless the object is large.
    pub fn parts(&self) -> impl Iterator<Item = Payload<'_>> {
        let whole = self.parts.is_empty() && !self.is_large();
        let head = whole.then(|| self.head.value());
        head.into_iter().chain(self.parts.iter().map(Record::value))
    }

    /// Takes the value as far as it is there, and shares the memory of one that is not large.
    pub fn take_value(&mut self) -> Pieces<B> {
        let len = self.parts().map(|part| part.len()).sum();
        let records = match self.is_large() {
            true => std::mem::take(&mut self.parts),
            false => vec![self.head.clone()],
        };
        Pieces {
            records,
            skip: 0,
            len,
        }
    }

    /// Whether it is stored in slices: of such an object there is all but the value, which a reader reads
    /// ([`ObjectCache::reader`](crate::ObjectCache::reader)), unless it comes from [`ObjectCache::get`](crate::ObjectCache::get).
    pub fn is_large(&self) -> bool {
        self.header().slice == pumice_record::SliceId::Head
    }

    /// Which tier answered.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Whether the value of an object that is not large stands in a block buffer, of which there are few; what is read of
    /// large ones never does.
    pub fn pins_block(&self) -> bool {
        // Items of the DRAM tier have no sequence.
        self.tier == Tier::Dram && self.header().sequence != 0
    }

    /// Copies what stands in memory that the cache wants back, for holding the object longer than a moment.
    pub fn detach(&mut self) {
        if self.tier == Tier::Dram {
            self.head = self.head.detached();
        }
        for part in &mut self.parts {
            *part = part.detached();
        }
    }

    /// A copy of the value, as far as it is there; bytes that only have a length read as zero.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.parts().map(|part| part.len()).sum());
        for part in self.parts() {
            match part {
                Payload::Bytes(bytes) => out.extend_from_slice(bytes),
                Payload::Void(len) => out.resize(out.len() + len, 0),
            }
        }
        out
    }
}

/// Bytes of a value, in consecutive parts. They pin the memory that they stand in; drop them soon.
#[derive(Debug)]
pub struct Pieces<B> {
    pub(crate) records: Vec<Record<B>>,
    /// Bytes of the first that do not count.
    pub(crate) skip: usize,
    /// Bytes that count.
    pub(crate) len: usize,
}

impl<B: Buffer> Pieces<B> {
    /// How many bytes there are; an empty value has none.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes.
    pub fn parts(&self) -> impl Iterator<Item = Payload<'_>> {
        let (mut skip, mut left) = (self.skip, self.len);
        self.records.iter().map(move |record| {
            let value = record.value();
            let from = std::mem::take(&mut skip);
            let len = (value.len() - from).min(left);
            left -= len;
            value.slice(from, len)
        })
    }

    /// Copies what stands in memory that the cache wants back, for holding it longer than a moment.
    pub fn detach(&mut self) {
        for record in &mut self.records {
            *record = record.detached();
        }
    }
}
