//! Listing the objects that the DRAM tier holds, a small piece at a time.
//!
//! The index knows no keys, so objects that are on flash alone are not listed. A listing leaves no trace: nothing counts as a hit or
//! expires.

use crate::cache::{Cx, ObjectCache};
use crate::large::Manifest;
use crate::object::Meta;
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_record::HEADER_BYTES;
use pumice_record::{Record, SliceId};

/// Buckets of a shard's table that are gone through under one lock: some 400 items.
const BUCKETS: usize = 16;

/// An object in the DRAM tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: Vec<u8>,
    /// The version: memcached's CAS unique.
    pub version: u64,
    /// Unix seconds from which on the object is gone; 0 = never.
    pub expiry: u32,
    /// Length of the value in bytes, of a large object the whole.
    pub value_len: u64,
    /// Whether it is known to have been hit: [`Meta::USED`].
    pub is_used: bool,
}

impl Listed {
    fn of<B: Buffer>(record: &Record<B>, hits: u64) -> Option<Self> {
        let header = record.header();
        let value_len = match header.slice {
            SliceId::Whole => u64::from(header.value_len),
            SliceId::Head => Manifest::decode(record)?.value_len,
            SliceId::Part(_) => return None,
        };
        Some(Self {
            key: record.key().to_vec(),
            version: header.version,
            expiry: header.expiry,
            value_len,
            is_used: hits > 0 || header.marks & Meta::USED != 0,
        })
    }

    /// Bytes of the object as it is stored, without padding: the shortest header, key and value. Of a large object what its slices have
    /// beside the value is left out.
    pub fn bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.key.len() as u64 + self.value_len
    }
}

/// A listing that is under way; see [`ObjectCache::list`].
#[derive(Debug, Default)]
pub struct Listing {
    shard: usize,
    /// How far it is in the shard's table.
    from: u64,
}

impl<D: Device + Clone> ObjectCache<D> {
    /// Lists some 400 objects at most, under one shard's lock, from where `listing` is, and adds them to `found`. False where nothing
    /// is left.
    ///
    /// An object that stays in the DRAM tier from the beginning to the end is listed once. A large object that has lost a slice is listed
    /// until somebody asks for it.
    pub fn list(&self, cx: &Cx<D>, listing: &mut Listing, found: &mut Vec<Listed>) -> bool {
        self.flush_if_due(cx);
        let inner = &*self.inner;
        let Some(shard) = inner.shards.get(listing.shard) else {
            return false;
        };
        let next = shard
            .0
            .lock()
            .dram
            .visit_from(listing.from, BUCKETS, |address, hits| {
                let (record, _) = inner.tier.read(address);
                if !record.header().is_expired(cx.now()) {
                    found.extend(Listed::of(&record, hits));
                }
            });
        match next {
            Some(next) => listing.from = next,
            None => (listing.shard, listing.from) = (listing.shard + 1, 0),
        }
        listing.shard < inner.shards.len()
    }
}
