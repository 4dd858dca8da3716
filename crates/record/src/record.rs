//! An object as it stands on flash: header, key, the owner's bytes, value, padding; and read from there, or from the DRAM tier, where its header is shorter.

use crate::codec::value_checksum;
use crate::header::{
    DRAM_MORE_BYTES, DRAM_START_BYTES, RecordHeader, START_BYTES, dram_len_of, head_checksum, len_of,
};
use pumice_memory::{Buffer, Payload, SECTOR_BYTES};
use std::sync::Arc;

/// Length of the value of the head of a large object in bytes. What it says is not known here.
pub const MANIFEST_BYTES: usize = 20;

/// Which part of an object a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceId {
    /// The whole object.
    Whole,
    /// The head of an object that is stored in slices; its value describes them.
    Head,
    /// Slice number 0, 1, …
    Part(u32),
}

impl SliceId {
    /// As it stands in a header.
    pub fn encode(self) -> u32 {
        match self {
            SliceId::Whole => 0,
            SliceId::Head => u32::MAX,
            SliceId::Part(number) => number + 1,
        }
    }

    /// Reads what [`SliceId::encode`] wrote; every code means something.
    pub fn decode(code: u32) -> Self {
        match code {
            0 => SliceId::Whole,
            u32::MAX => SliceId::Head,
            number => SliceId::Part(number - 1),
        }
    }
}

/// What a record is made from.
#[derive(Clone, Copy, Debug)]
pub struct RecordParts<'a> {
    /// The version given at set.
    pub version: u64,
    /// Unix seconds from which on the object is gone; 0 = never.
    pub expiry: u32,
    /// The client's flags; of a slice, how long the whole value is, in KiB.
    pub flags: u32,
    /// What else is said of the object; means nothing here.
    pub marks: u8,
    /// Which part of the object.
    pub slice: SliceId,
    /// The full key.
    pub key: &'a [u8],
    /// Bytes of the owner's that go with a whole object or a head.
    pub head: &'a [u8],
    /// The value, or the slice of it.
    pub value: Payload<'a>,
    /// CRC-32C of the value, 0 where it has no bytes.
    pub value_crc: u32,
}

impl<'a> RecordParts<'a> {
    /// Length in bytes without padding.
    pub fn encoded_len(&self) -> usize {
        self.header(0).encoded_len()
    }

    /// Length in bytes of the item in the DRAM tier that these parts make, without padding: `encoded_len` and four.
    pub fn dram_len(&self) -> usize {
        self.encoded_len() + DRAM_MORE_BYTES
    }

    /// Writes the item of these parts for the DRAM tier, with 64 bits that say where the object's copy on flash is.
    ///
    /// # Safety
    /// The [`RecordParts::dram_len`] bytes from `at` on are the caller's alone, and nothing reads them yet ([`Buffer::put`]).
    pub unsafe fn put_dram<B: Buffer>(&self, buffer: &B, at: usize, backing: u64) {
        let header = self.header(0).encode_dram(backing);
        // SAFETY: the range is the caller's.
        unsafe {
            put_head(buffer, at, &header, [self.key, self.head]);
            buffer.put(at + header.len() + self.key.len() + self.head.len(), self.value);
        }
    }

    /// The header to store with these parts in a block with `sequence`.
    pub fn header(&self, sequence: u64) -> RecordHeader {
        RecordHeader {
            value_crc: self.value_crc,
            version: self.version,
            sequence,
            expiry: self.expiry,
            flags: self.flags,
            value_len: u32::try_from(self.value.len()).expect("values are at most a slice long"),
            key_len: u8::try_from(self.key.len()).expect("keys are short"),
            head_len: u16::try_from(self.head.len()).expect("an owner has few bytes"),
            marks: self.marks,
            slice: self.slice,
        }
    }
}

/// CRC-32C of a payload, 0 where it has no bytes.
pub fn payload_checksum(value: Payload<'_>) -> u32 {
    match value {
        Payload::Bytes(bytes) => value_checksum(bytes),
        Payload::Void(_) => 0,
    }
}

/// Header and key of the record at `at`, where their checksum is right, which covers the owner's bytes too; the value is not read, and
/// need not be there.
pub fn read_head<B: Buffer>(
    buffer: &B,
    at: usize,
    cache_id: u64,
    sequence: u64,
) -> Option<(RecordHeader, &[u8])> {
    let len = len_of(buffer.bytes(at, START_BYTES)?)?;
    let bytes = buffer.bytes(at, len)?;
    let header = RecordHeader::decode_unchecked(bytes, sequence)?;
    let named = buffer.bytes(at + len, header.named_len())?;
    let (key, head) = named.split_at(usize::from(header.key_len));
    let crc = u32::from_le_bytes(*bytes.first_chunk()?);
    (crc == head_checksum(cache_id, sequence, bytes, &[key, head])).then_some((header, key))
}

/// Writes header, key and the owner's bytes in one piece, as buffers that keep only pieces want it.
///
/// # Safety
/// The bytes from `at` on, as many as all have, are the caller's alone, and nothing reads them yet ([`Buffer::put`]).
pub unsafe fn put_head<B: Buffer>(buffer: &B, at: usize, header: &[u8], [key, owned]: [&[u8]; 2]) {
    const INLINE: usize = 320;
    let len = header.len() + key.len() + owned.len();
    let mut inline = [0; INLINE];
    let heap;
    let head: &[u8] = if len <= INLINE {
        inline[..header.len()].copy_from_slice(header);
        inline[header.len()..header.len() + key.len()].copy_from_slice(key);
        inline[header.len() + key.len()..len].copy_from_slice(owned);
        &inline[..len]
    } else {
        heap = [header, key, owned].concat();
        &heap
    };
    // SAFETY: the range is the caller's.
    unsafe { buffer.put(at, Payload::Bytes(head)) };
}

/// Whether an expiry (0 = never) has passed at `now`.
pub fn is_expired(expiry: u32, now: u32) -> bool {
    expiry != 0 && expiry <= now
}

/// A record that was read and verified; it pins the memory it stands in.
#[derive(Debug)]
pub struct Record<B> {
    buffer: Arc<B>,
    /// Where its key begins.
    key_at: usize,
    header: RecordHeader,
}

impl<B> Clone for Record<B> {
    fn clone(&self) -> Self {
        Self {
            buffer: Arc::clone(&self.buffer),
            key_at: self.key_at,
            header: self.header,
        }
    }
}

impl<B: Buffer> Record<B> {
    /// Checks the record at `at` of `buffer`, which must not reach past `at + len`.
    ///
    /// `verify`: check the checksum of the value, too, as for bytes that come from a device.
    /// `None` where anything is off.
    pub fn decode(
        buffer: Arc<B>,
        at: usize,
        len: usize,
        cache_id: u64,
        sequence: u64,
        verify: bool,
    ) -> Option<Self> {
        let (header, _) = read_head(&*buffer, at, cache_id, sequence)?;
        if header.encoded_len() > len {
            return None;
        }
        let key_at = at + header.header_len();
        let value = buffer.payload(key_at + header.named_len(), header.value_len as usize)?;
        if verify && payload_checksum(value) != header.value_crc {
            return None;
        }
        Some(Self {
            buffer,
            key_at,
            header,
        })
    }

    /// Reads the item at `at` of a DRAM segment; nothing rots there. Returns its backing location too, see [`RecordParts::put_dram`].
    pub fn decode_dram(buffer: Arc<B>, at: usize) -> Option<(Self, u64)> {
        let len = dram_len_of(buffer.bytes(at, DRAM_START_BYTES)?)?;
        let (header, backing) = RecordHeader::decode_dram(buffer.bytes(at, len)?)?;
        let record = Self {
            buffer,
            key_at: at + len,
            header,
        };
        Some((record, backing))
    }

    /// A copy in memory of its own, so that the record no longer pins what it stood in. Like an item of DRAM it has no sequence.
    pub fn detached(&self) -> Self {
        Self::of(&self.parts())
    }

    /// A record in memory of its own.
    pub fn of(parts: &RecordParts<'_>) -> Self {
        let copy = B::with_len(parts.dram_len().next_multiple_of(SECTOR_BYTES));
        // SAFETY: the buffer was just made; nothing else has it.
        unsafe { parts.put_dram(&copy, 0, 0) };
        Self {
            buffer: Arc::new(copy),
            key_at: parts.dram_len() - parts.key.len() - parts.head.len() - parts.value.len(),
            header: parts.header(0),
        }
    }

    /// The header.
    pub fn header(&self) -> &RecordHeader {
        &self.header
    }

    /// The same record with these marks too, as far as this value tells; what it was read from stays as it is.
    pub fn marked(mut self, marks: u8) -> Self {
        self.header.marks |= marks;
        self
    }

    /// The full key.
    pub fn key(&self) -> &[u8] {
        self.buffer
            .bytes(self.key_at, usize::from(self.header.key_len))
            .expect("checked when the record was read")
    }

    /// The owner's bytes.
    pub fn head(&self) -> &[u8] {
        let at = self.key_at + usize::from(self.header.key_len);
        self.buffer
            .bytes(at, usize::from(self.header.head_len))
            .expect("checked when the record was read")
    }

    /// The value.
    pub fn value(&self) -> Payload<'_> {
        self.buffer
            .payload(
                self.key_at + self.header.named_len(),
                self.header.value_len as usize,
            )
            .expect("checked when the record was read")
    }

    /// What this record was made from, to write it again elsewhere.
    pub fn parts(&self) -> RecordParts<'_> {
        RecordParts {
            version: self.header.version,
            expiry: self.header.expiry,
            flags: self.header.flags,
            marks: self.header.marks,
            slice: self.header.slice,
            key: self.key(),
            head: self.head(),
            value: self.value(),
            value_crc: self.header.value_crc,
        }
    }
}
