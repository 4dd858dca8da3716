//! Listing what the cache holds, a small piece at a time.
//!
//! The index knows no keys: they stand beside the values, in the DRAM tier and on flash. So a listing goes through the DRAM
//! tier's tables for what only DRAM has, then through the blocks for all that is mapped there, and through the tables once more for
//! what flash has lost meanwhile. It leaves no trace: nothing counts as a hit, goes to DRAM or expires.

use crate::cache::{Cx, Inner, ObjectCache};
use crate::large::Manifest;
use crate::object::Meta;
use crate::part::PartId;
use pumice_device::Device;
use pumice_flash::record::HEADER_BYTES;
use pumice_flash::{BlockWalk, Record, RecordHeader, SliceId, Step, Walked};
use pumice_memory::{Buffer, Payload};

/// Buckets of a shard's table that are gone through under one lock: some 400 items.
const BUCKETS: usize = 16;

/// An object that is there.
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
    fn of(key: Vec<u8>, header: &RecordHeader, value: Payload<'_>, hits: u64) -> Option<Self> {
        let value_len = match header.slice {
            SliceId::Whole => u64::from(header.value_len),
            SliceId::Head => Manifest::value_len_of(value)?,
            SliceId::Part(_) => return None,
        };
        Some(Self {
            key,
            version: header.version,
            expiry: header.expiry,
            value_len,
            is_used: hits > 0 || header.marks & Meta::USED != 0,
        })
    }

    /// Bytes of the object as it is stored, without padding: header, key and value. Of a large object what its slices have beside
    /// the value is left out.
    pub fn bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.key.len() as u64 + self.value_len
    }
}

/// A listing that is under way; see [`ObjectCache::list`].
pub struct Listing {
    stage: Stage,
    /// How far it is in the DRAM tier's tables.
    shard: usize,
    from: u64,
    walk: BlockWalk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What only DRAM has.
    Dram,
    Flash,
    /// What was on flash when the listing began, and is in DRAM alone now.
    DramAgain,
    End,
}

impl<D: Device + Clone> ObjectCache<D> {
    /// Begins a listing. It holds some 100 KiB, and 16 bytes for each block of the device.
    pub fn begin_listing(&self) -> Listing {
        Listing {
            stage: Stage::Dram,
            shard: 0,
            from: 0,
            walk: self.inner.store().begin_walk(),
        }
    }

    /// Does a small piece of a listing, and adds what it finds to `found`: some thousand objects at most, often none. False where
    /// nothing is left.
    ///
    /// An object that is there from the beginning to the end, unchanged, is listed once, whatever tiers have it. It may be listed
    /// twice where a reclaim moves it meanwhile or it goes to flash only now, and is missed if a reclaim moves it more than once. One that
    /// is set, touched or otherwise changed after the beginning may be listed as it was, or not at all. A large object that
    /// has lost a slice is listed until somebody asks for it.
    ///
    /// Cost: under a shard's lock some 400 items of the DRAM tier are looked at; of flash at most one read of 64 KiB is made, or
    /// with a cascade index some reads of pages of mappings. In all it reads the footers, and around every object that is mapped; of
    /// what is longer than a sector only the beginning. With a cascade index it also reads a page of mappings for each object of
    /// which DRAM cannot tell whether it was replaced.
    pub async fn list(&self, cx: &Cx<D>, listing: &mut Listing, found: &mut Vec<Listed>) -> bool {
        self.flush_if_due(cx);
        match listing.stage {
            Stage::Dram | Stage::DramAgain => self.inner.list_dram(cx.now(), listing, found),
            Stage::Flash => self.list_flash(cx, listing, found).await,
            Stage::End => {}
        }
        listing.stage != Stage::End
    }

    async fn list_flash(&self, cx: &Cx<D>, listing: &mut Listing, found: &mut Vec<Listed>) {
        let inner = &*self.inner;
        let mut walked = Vec::new();
        let step = inner
            .store()
            .walk(&cx.device, inner, cx.now(), &mut listing.walk, &mut walked)
            .await;
        if step == Step::End {
            listing.stage = Stage::DramAgain;
        }
        found.extend(walked.into_iter().filter_map(|walked| inner.listed(walked)));
    }
}

impl<B: Buffer> Inner<B> {
    fn listed(&self, walked: Walked) -> Option<Listed> {
        let Walked {
            hash,
            location,
            header,
            key,
            manifest,
        } = walked;
        // A footer's entry that was damaged might lead to another key's record.
        if self.hasher.hash(&PartId::object(&key)) != hash {
            return None;
        }
        let mut hits = 0;
        let shard = self.lock(hash);
        if let Some((address, in_dram)) = shard.dram.at_home(&self.tier, hash, self.home(location)) {
            // What was read from flash was hit then, and only the item says so.
            let (item, _) = self.tier.read(address);
            hits = in_dram + u64::from(item.header().marks & Meta::USED);
        }
        drop(shard);
        Listed::of(key, &header, Payload::Bytes(&manifest), hits)
    }

    /// Some items that flash has no copy of.
    fn list_dram(&self, now: u32, listing: &mut Listing, found: &mut Vec<Listed>) {
        let Some(shard) = self.shards.get(listing.shard) else {
            listing.stage = match listing.stage {
                Stage::Dram => Stage::Flash,
                _ => Stage::End,
            };
            (listing.shard, listing.from) = (0, 0);
            return;
        };
        let shard = shard.0.lock();
        let next = shard.dram.visit_from(listing.from, BUCKETS, |address, hits| {
            let (record, home) = self.tier.read(address);
            let header = *record.header();
            let is_wanted = header.version < listing.walk.versions_end() && !header.is_expired(now);
            if !is_wanted || !self.is_turn(listing, home) {
                return;
            }
            let hash = self.hasher.hash(&PartId::of(&record.parts()));
            if !self.is_home(&shard, hash, home) {
                found.extend(listed_item(&record, hits));
            }
        });
        match next {
            Some(next) => listing.from = next,
            None => (listing.shard, listing.from) = (listing.shard + 1, 0),
        }
    }

    /// Whether an item with this home is to be listed in this stage, if flash has no copy of it. One whose block went since the
    /// listing began comes last, and only if the walk had not come to the block by then.
    fn is_turn(&self, listing: &Listing, home: u64) -> bool {
        let Some(location) = self.location_of(home) else {
            return listing.stage == Stage::Dram;
        };
        let (at_start, walked) = self.store().walked_at(&listing.walk, location);
        let is_life = |sequence| sequence != 0 && self.home_in(location, sequence) == home;
        match listing.stage {
            Stage::Dram => !is_life(at_start) || is_life(self.store().sequence_at(location)),
            _ => is_life(at_start) && !is_life(walked),
        }
    }
}

fn listed_item<B: Buffer>(record: &Record<B>, hits: u64) -> Option<Listed> {
    Listed::of(record.key().to_vec(), record.header(), record.value(), hits)
}
