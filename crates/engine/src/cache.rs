//! The cache: what it is made of, how it opens and closes, and its background work.

use crate::admit::Admit;
use crate::books::{Books, BooksSnapshot, LeftBehind};
use crate::config::{CacheOptions, FlashWrite, IndexOptions};
use crate::part::KeyHasher;
use locks::Mutex;
use pumice_blocks::{DeviceFailure, Durability};
use pumice_blocks::{Geometry, OpenError};
use pumice_device::{Device, Overdue};
use pumice_flash::recovery::{Opened, open_superblock, recover, settle};
use pumice_flash::{FlashStore, Gone, LayoutOptions, MappingLog, OpenOptions, Recovered, Work};
use pumice_index::cascade::{CascadeShard, History, MapSpace};
use pumice_index::{FullShard, IndexKind, IndexShape, IndexShard, KeyHash};
use pumice_memory::{Buffer, PAGE_BYTES, PagePool, SegmentPool};
use pumice_record::is_expired;
use pumice_tier::{DramShape, DramShard, DramTier};
use pumice_world::{Clock, Spawner, Task};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What one thread brings along: its handle on the device, the time, and somewhere to run background work.
pub struct Cx<D> {
    /// This thread's handle on the flash device.
    pub device: D,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where background work runs.
    pub spawner: Rc<dyn Spawner>,
    /// What to wait for so that log appends do not block this thread, if anything.
    pub log_gate: Option<Rc<dyn Fn() -> Option<Task>>>,
}

impl<D: Clone> Clone for Cx<D> {
    fn clone(&self) -> Self {
        Self {
            device: self.device.clone(),
            clock: Arc::clone(&self.clock),
            spawner: Rc::clone(&self.spawner),
            log_gate: self.log_gate.clone(),
        }
    }
}

impl<D: Device> Cx<D> {
    /// The context of one thread.
    pub fn new(device: D, clock: Arc<dyn Clock>, spawner: Rc<dyn Spawner>) -> Self {
        Self {
            device,
            clock,
            spawner,
            log_gate: None,
        }
    }

    /// What a log append has to wait for first, if anything: where it may block the thread, as on a file system that is frozen.
    pub fn log_wait(&self) -> Option<Task> {
        self.log_gate.as_ref()?()
    }

    pub(crate) fn now(&self) -> u32 {
        self.clock.now_secs()
    }

    /// Whether an expiry has come. The clock is only read where there is one.
    pub(crate) fn is_past(&self, expiry: u32) -> bool {
        expiry != 0 && is_expired(expiry, self.now())
    }
}

/// The mappings of one shard.
pub(crate) struct Shard {
    pub(crate) flash: IndexShard,
    pub(crate) dram: DramShard,
}

impl Shard {
    /// Whether a start might find copies of `hash` in blocks: what is mapped, or what nothing maps, of which only a cascade does not know.
    pub(crate) fn may_be_more(&mut self, hash: KeyHash) -> bool {
        self.flash.cascade().is_some_and(|index| index.may_be_more(hash))
    }

    /// Asks for the memory that questions about `hash` will need.
    pub(crate) fn prefetch(&self, hash: KeyHash) {
        self.flash.prefetch(hash);
        self.dram.prefetch(hash);
    }

    /// Remembers that blocks may have copies of `hash` that no mapping leads to, and that no record voids.
    pub(crate) fn note_unlogged(&mut self, hash: KeyHash) {
        if let Some(index) = self.flash.cascade() {
            index.note_unlogged(hash);
        }
    }
}

/// On cache lines of its own, so that workers in neighbouring shards do not slow each other down.
#[repr(align(128))]
pub(crate) struct LockedShard(pub(crate) Mutex<Shard>);

pub(crate) struct Inner<B: Buffer> {
    pub(crate) store: OnceLock<FlashStore<B>>,
    pub(crate) tier: DramTier<B>,
    pub(crate) shards: Vec<LockedShard>,
    pub(crate) shape: IndexShape,
    /// Hashes say their shard from this bit on.
    pub(crate) shard_shift: u32,
    pub(crate) hasher: KeyHasher,
    pub(crate) books: Books,
    pub(crate) pages: Arc<PagePool>,
    pub(crate) segments: Arc<SegmentPool>,
    pub(crate) flash_write: FlashWrite,
    pub(crate) admit: Option<Box<Admit>>,
    pub(crate) item_bytes_max: usize,
    pub(crate) pages_low: usize,
    /// DRAM of a cascade index for what is on flash from which on blocks are given up, in bytes; 0: no bound.
    pub(crate) index_heap_max: u64,
    pub(crate) lockstep: bool,
    /// The next start is to know when this ran last.
    pub(crate) notes_life: bool,
    /// Lookups that went to flash, by the reads of each that had to wait for each other; the last for that many and more.
    pub(crate) rounds: [AtomicU64; ROUNDS],
    /// Entries whose time was over when their place was wanted; in the books they are among all that expired.
    pub(crate) expired_unasked: AtomicU64,
}

/// Numbers of rounds that are told apart.
pub const ROUNDS: usize = 10;

impl<B: Buffer> Inner<B> {
    pub(crate) fn store(&self) -> &FlashStore<B> {
        self.store.get().expect("set before the cache is handed out")
    }

    pub(crate) fn gone(&self, why: Gone, bytes: u64) {
        match why {
            Gone::Evicted => self.books.evicted.add(bytes),
            Gone::Expired => self.expire_unasked(bytes),
            Gone::Corrupt => self.books.corrupt.add(bytes),
            Gone::Lost => self.books.lost.add(bytes),
        }
    }

    /// Books an entry that no request has found expired.
    pub(crate) fn expire_unasked(&self, bytes: u64) {
        self.books.expired.add(bytes);
        self.expired_unasked.fetch_add(1, Ordering::Relaxed);
    }
}

/// An object cache on DRAM and flash; see the crate's text. Share it by cloning; each thread brings its own [`Cx`].
pub struct ObjectCache<D: Device> {
    pub(crate) inner: Arc<Inner<D::Buf>>,
}

impl<D: Device> Clone for ObjectCache<D> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

/// Rounds in which a clean stop seals blocks.
const STOP_ROUNDS_MAX: usize = 8;

fn unremembered() -> std::io::Error {
    std::io::Error::other(
        "the flash device was taken out, and its superblocks cannot say so: start with --reformat, or what was deleted meanwhile may \
         be served again",
    )
}

/// 2^this shards for a device of `capacity` bytes. It follows from the device and the kind of index alone, since checkpoints are
/// cut by it.
pub(crate) fn shard_bits(capacity: u64, index: IndexKind) -> u32 {
    let shards = match index {
        IndexKind::Full => (capacity / (16 << 20)).clamp(16, 4096),
        // A partition has 30 to 60 thousand objects of 300 bytes, but on very small and very large devices.
        IndexKind::Cascade => (capacity / (22 << 20)).next_power_of_two().clamp(16, 1 << 16),
    };
    63 - shards.leading_zeros()
}

impl<D: Device + Clone> ObjectCache<D> {
    /// Opens the cache on `cx.device`: formats an empty device, recovers a used one.
    ///
    /// # Errors
    /// [`OpenError`]; the device is then as it was.
    pub async fn open(cx: &Cx<D>, options: CacheOptions) -> Result<(Self, Recovered), OpenError> {
        let capacity = cx.device.capacity();
        let block_bytes = options
            .block_bytes
            .unwrap_or_else(|| Geometry::block_bytes_for(capacity, options.block_bytes_min, 1, u64::MAX));
        let shard_bits = shard_bits(capacity, options.index.kind());
        let note_bits = options.index.kind().note_bits(options.layout.layout.note_bits());
        let shape = IndexShape::new(capacity, shard_bits, note_bits);
        let mapping_log = Arc::new(MappingLog::default());
        let open = OpenOptions {
            block_bytes,
            check_block_bytes: options.block_bytes.is_some(),
            reformat: options.reformat,
            maker: options.maker,
            accept_clock: options.accept_clock,
            absence_secs_max: options.absence_secs_max,
            has_tier: options.has_tier,
            durability: options.durability,
            flush_interval_secs: options.flush_interval_secs,
            buffers_max: options.buffers_max.max(2),
            unit_bytes: shape.unit_bytes(),
            layout: options.layout,
            index: options.index.kind(),
            lockstep: options.lockstep,
            now: cx.now(),
            random: options.random,
        };
        let opened = open_superblock(&cx.device, &open).await?;
        let assembled = Self::assemble(&options, shape, shard_bits, &opened, &mapping_log);
        let inner = assembled.map_err(|source| OpenError::Device {
            what: "reserving memory",
            source,
        })?;
        let mapping_log = (!options.index.kind().is_authoritative()).then_some(&mapping_log);
        let (store, recovered) = recover(&cx.device, opened, &open, &inner, mapping_log).await?;
        if inner.store.set(store).is_err() {
            unreachable!("the store is set here only");
        }
        cx.clock.not_before(recovered.time);
        inner.resume_budget(cx, &recovered);
        settle(inner.store(), &cx.device, &inner, cx.now(), &recovered).await;
        // Recovery reports totals, not single entries; book them as sums.
        inner.books.recovered.add_many(recovered.objects, recovered.bytes);
        let cache = Self {
            inner: Arc::new(inner),
        };
        cache.kick(cx);
        Ok((cache, recovered))
    }

    fn assemble(
        options: &CacheOptions,
        shape: IndexShape,
        shard_bits: u32,
        opened: &Opened,
        mapping_log: &Arc<MappingLog<D::Buf>>,
    ) -> std::io::Result<Inner<D::Buf>> {
        let shards = shape.shards();
        // Without a budget the index may take what it needs: address space costs nothing until it is touched.
        let has_dram = options.dram_bytes > 0;
        let segment_bytes: usize = if has_dram {
            (1usize << (options.dram_bytes / 48).max(1).ilog2()).clamp(64 << 10, 1 << 20)
        } else {
            1 << 20
        };
        let total = if has_dram { options.dram_bytes } else { 1 << 36 } / segment_bytes;
        let ghost_entries = if has_dram { options.dram_bytes / 512 } else { 0 };
        // To begin with the index has a page for each shard and tier, and some to grow with; it takes more as it needs.
        let pages_low = (segment_bytes / 2).max(128 << 10) / PAGE_BYTES;
        let ghost_segments = (ghost_entries * 8).div_ceil(segment_bytes);
        let first = ((shards * 2 + pages_low) * PAGE_BYTES)
            .div_ceil(segment_bytes)
            .min(total);
        let limit = if has_dram { first } else { total };
        let segments = Arc::new(SegmentPool::with_limit(total, segment_bytes, limit)?);
        let pages = PagePool::new(Arc::clone(&segments));
        for _ in 0..first {
            pages.grow();
        }
        let tier_segments = if has_dram {
            total.saturating_sub(first + ghost_segments)
        } else {
            0
        };
        let tier = DramTier::new(tier_segments, segment_bytes, ghost_entries);
        let dram_shape = DramShape::new(tier.address_end(), shard_bits, shape.identity_bits());
        let geometry = opened.geometry();
        let history = Arc::new(History::new(shape, geometry.capacity, geometry.blocks));
        let flash = |partition: usize| match options.index {
            IndexOptions::Full => IndexShard::Full(FullShard::new(shape, Arc::clone(&pages))),
            IndexOptions::Cascade(cascade) => {
                let space: Arc<dyn MapSpace> = Arc::<MappingLog<D::Buf>>::clone(mapping_log);
                let partition = u32::try_from(partition).expect("at most 2^16 shards");
                let shard = CascadeShard::new(
                    shape,
                    partition,
                    cascade,
                    Arc::clone(&pages),
                    space,
                    Arc::clone(&history),
                );
                IndexShard::Cascade(Box::new(shard))
            }
        };
        let shards = (0..shards)
            .map(|partition| {
                LockedShard(Mutex::new(Shard {
                    flash: flash(partition),
                    dram: DramShard::new(dram_shape, Arc::clone(&pages)),
                }))
            })
            .collect();
        Ok(Inner {
            store: OnceLock::new(),
            tier,
            shards,
            shape,
            shard_shift: u64::BITS - shard_bits,
            hasher: KeyHasher::new(opened.hash_seed(), options.hash_limit),
            books: Books::default(),
            admit: Admit::of(options, &geometry, &pages, pages_low),
            pages,
            segments,
            flash_write: options.flash_write,
            item_bytes_max: options.item_bytes_max.min(crate::large::VALUE_BYTES_MAX),
            pages_low,
            // What is given up is free when its partitions have been reorganised.
            index_heap_max: options.index_heap_bytes as u64 / 4 * 3,
            rounds: [const { AtomicU64::new(0) }; ROUNDS],
            expired_unasked: AtomicU64::new(0),
            lockstep: options.lockstep,
            notes_life: options.absence_secs_max.is_some(),
        })
    }

    /// How objects are arranged on flash.
    pub fn layout(&self) -> &LayoutOptions {
        self.inner.store().order.options()
    }

    /// Tells this cache from those that were on the device before; a start that has to begin with an empty flash tier changes it.
    pub fn cache_id(&self) -> u64 {
        self.inner.store().cache_id
    }

    /// The block of the device whose last sector this is, if it is a block of objects that is written as a whole and not being reclaimed.
    pub fn sealed_block(&self, last_sector: &[u8]) -> Option<u32> {
        self.inner.store().sealed_block(last_sector)
    }

    /// Re-derives the accounting of the flash layout's queue, and compares it with the index. For tests, while nothing else runs.
    ///
    /// # Panics
    /// Where a rule of it does not hold.
    pub fn check_order(&self) {
        self.inner.store().check_order();
        let mut mappings = Vec::new();
        for shard in &self.inner.shards {
            shard.0.lock().flash.for_each(|mapping| mappings.push(mapping));
        }
        self.inner.store().order.check_seats(mappings.into_iter());
    }

    /// Starts background work that is due: blocks to write, blocks to reclaim, a checkpoint.
    pub(crate) fn kick(&self, cx: &Cx<D>) {
        let store = self.inner.store();
        while store.has_work() {
            let Some(work) = store.take_work() else { return };
            let (cache, cx_task) = (self.clone(), cx.clone());
            cx.spawner
                .spawn(Box::pin(async move { cache.work(cx_task, work).await }));
        }
    }

    pub(crate) async fn work(&self, cx: Cx<D>, work: Work<D::Buf>) {
        let inner = &*self.inner;
        if let Some(wait) = cx.log_wait().filter(|_| !inner.store().is_out()) {
            wait.await;
        }
        inner.store().perform(&cx.device, inner, cx.now(), work).await;
        // One piece of work often makes another due: a sealed block, a reclaim.
        self.kick(&cx);
    }

    /// What a change has to wait for first, if anything: [`Cx::log_wait`], and a log without room. Whoever changes anything without
    /// waiting is served all the same; where the log is full then, a crash empties the cache.
    pub fn change_wait(&self, cx: &Cx<D>) -> Option<impl Future<Output = ()> + use<'_, D>> {
        let store = self.inner.store();
        let gate = cx.log_wait();
        let is_short = store.journal.is_short();
        if is_short {
            // The checkpoint that it waits for.
            self.kick(cx);
        }
        (gate.is_some() || is_short).then_some(async move {
            if let Some(gate) = gate {
                gate.await;
            }
            if is_short {
                store.journal.wait_for_room(1).await;
            }
        })
    }

    /// Waits until what was invalidated is as durable as the cache promises; at once unless that is `power`, or the flash device
    /// has just been taken out and its superblocks do not say so yet. Call it before replying to writes.
    ///
    /// # Errors
    /// With durability `power`, where the device was taken out and its superblocks cannot say so: what was deleted since may come
    /// back at the next start.
    pub async fn commit(&self, cx: &Cx<D>) -> std::io::Result<()> {
        let store = self.inner.store();
        let committed = store.journal.commit(&cx.device).await;
        if !store.is_out() {
            return committed;
        }
        self.kick(cx);
        if store.shared.wait_until_settled().await || store.durability != Durability::Power {
            return Ok(());
        }
        Err(unremembered())
    }

    /// Why the flash device was taken out, if it was. DRAM then serves alone until the next start, which begins with an empty
    /// flash tier.
    pub fn flash_failure(&self) -> Option<DeviceFailure> {
        self.inner.store().shared.failure()
    }

    /// A second has passed, or about that: to be called by every thread that has a handle on the device, with it. What has been in a
    /// buffer alone for the flush interval is written ([`CacheOptions::flush_interval_secs`]). Where the device was taken out, what still
    /// waits for it on this handle is ended, and what is to be done then is begun. How long a device may take to answer is for the caller
    /// to say, with [`Device::tick`].
    pub fn tick(&self, cx: &Cx<D>) {
        let store = self.inner.store();
        if store.is_out() {
            cx.device.tick(store.shared.tick_when_out(cx.now()));
        }
        store.flush_aged(cx.now());
        if self.inner.notes_life && store.journal.should_note_alive(cx.now()) {
            let (cache, task) = (self.clone(), cx.clone());
            cx.spawner.spawn(Box::pin(async move {
                if let Some(wait) = task.log_wait() {
                    wait.await;
                }
                let journal = &cache.inner.store().journal;
                journal.note_alive(&task.device, task.now());
            }));
        }
        self.inner.tick_budget(cx);
        self.kick(cx);
    }

    /// The device owes an answer: one of what [`Device::tick`] has ended. That takes it out, also where nobody waited for the answer any
    /// more and so nobody else learns of it.
    pub fn flash_is_overdue(&self, cx: &Cx<D>, overdue: Overdue) {
        self.inner.store().shared.saw_overdue(overdue);
        self.kick(cx);
    }

    /// Waits until no background work is under way.
    pub async fn quiesce(&self, cx: &Cx<D>) {
        loop {
            self.kick(cx);
            self.inner.store().quiesce().await;
            if !self.inner.store().has_work() {
                return;
            }
        }
    }

    /// A clean stop: objects that only DRAM holds go to flash, blocks are sealed, a checkpoint is written. No request may run
    /// while this does, nor come after it. Where the device was taken out there is nothing to store but that. Returns what could not be
    /// kept.
    ///
    /// # Errors
    /// What the device said; the next start then recovers as after a crash. Where the device was taken out, that its
    /// superblocks cannot say so.
    pub async fn close(&self, cx: &Cx<D>) -> std::io::Result<LeftBehind> {
        let closed = self.store_all(cx).await;
        let store = self.inner.store();
        if !store.is_out() {
            return closed;
        }
        self.quiesce(cx).await;
        if store.shared.is_remembered() {
            let (taken_out, _) = self.inner.books.snapshot().resident();
            return Ok(LeftBehind {
                taken_out,
                ..LeftBehind::default()
            });
        }
        Err(unremembered())
    }

    async fn store_all(&self, cx: &Cx<D>) -> std::io::Result<LeftBehind> {
        self.quiesce(cx).await;
        let before = self.inner.books.snapshot();
        let mut left = self.flush_dram(cx).await;
        // A reclaim that is under way moves objects to blocks that it opens: until there is none of either.
        for _ in 0..STOP_ROUNDS_MAX {
            self.quiesce(cx).await;
            self.inner.store().retire_active();
            self.quiesce(cx).await;
            if self.inner.store().unsealed_backlog() == 0 {
                break;
            }
        }
        let store = self.inner.store();
        if store.is_out() {
            return Ok(left);
        }
        store.checkpoint(&cx.device, &*self.inner, cx.now(), true).await?;
        let after = self.inner.books.snapshot();
        let from_dram = left.sum();
        left.refused = after.refused.0 - before.refused.0;
        // A cascade index learns of some at their block's reclaim only, which books them as overwritten; nobody sets anything now.
        let gone = |books: &BooksSnapshot| books.evicted.0 + books.overwritten.0;
        left.displaced = (gone(&after) - gone(&before)).saturating_sub(from_dram);
        left.lost = after.lost.0 - before.lost.0;
        // The checkpoint is the last thing that a device is asked for that is not out.
        store.shared.sync(&cx.device).await.map(|()| left)
    }
}
