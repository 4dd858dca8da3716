//! The device of two.

use super::choose::READS_A_ROUND;
use super::format::{UPPER_DATA_OFFSET, UpperSuperblock};
use super::{Catalog, PATIENCE_SECS, Stage, Tier, add};
use crate::Side;
use crate::split::Part;
use futures_util::future::{Either, FutureExt, join_all};
use pumice_device::{Device, Operation, Overdue, SECTOR_BYTES, forward};
use pumice_world::Spawner;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Places that are looked at together at a start.
const ADOPTS_AT_ONCE: usize = 16;

/// A handle adds its reads to those of all others by so many.
const READS_AT_ONCE: u64 = 32;

/// How a tier begins; see [`Tiered::start`].
pub struct Start {
    /// Id of the cache on the lower device.
    pub owner: u64,
    /// Whether the upper device is made anew. What is in its places counts as at any start.
    pub makes: bool,
    /// Which blocks are whole.
    pub catalog: Catalog,
}

/// One thread's handle on a device and on the copies of it that a faster one holds; without the latter it passes everything on.
pub struct Tiered<L, U> {
    pub(super) lower: L,
    pub(super) upper: Option<Upper<U>>,
}

pub(super) struct Upper<U> {
    pub(super) device: U,
    pub(super) tier: Arc<Tier>,
    spawner: Rc<dyn Spawner>,
    /// Reads of this handle that are not added to the others' yet.
    reads: Rc<Cell<u64>>,
    part: Rc<Part>,
}

impl<U: Clone> Clone for Upper<U> {
    fn clone(&self) -> Self {
        Self {
            device: self.device.clone(),
            tier: Arc::clone(&self.tier),
            spawner: Rc::clone(&self.spawner),
            reads: Rc::clone(&self.reads),
            part: Rc::clone(&self.part),
        }
    }
}

impl<L: Clone, U: Clone> Clone for Tiered<L, U> {
    fn clone(&self) -> Self {
        Self {
            lower: self.lower.clone(),
            upper: self.upper.clone(),
        }
    }
}

impl<L: Device, U: Device<Buf = L::Buf>> Tiered<L, U> {
    /// A handle on `lower` alone.
    pub fn without(lower: L) -> Self {
        Self { lower, upper: None }
    }

    /// A handle on `lower`, and on its copies on `upper`. Copies are made by tasks of `spawner`.
    pub fn new(lower: L, upper: U, tier: Arc<Tier>, spawner: Rc<dyn Spawner>) -> Self {
        let upper = Some(Upper {
            part: Rc::new(Part::new(&tier.split)),
            device: upper,
            tier,
            spawner,
            reads: Rc::default(),
        });
        Self { lower, upper }
    }
}

impl<L: Device, U: Device<Buf = L::Buf>> Tiered<L, U> {
    /// A second has passed: ends what the upper device owes an answer. For handles whose lower device is watched by itself; others call
    /// [`Device::tick`].
    pub fn tick_upper(&self) {
        self.end_overdue(PATIENCE_SECS);
    }

    fn end_overdue(&self, patience: u32) {
        let Some(upper) = &self.upper else { return };
        for overdue in upper.device.tick(patience.min(PATIENCE_SECS)) {
            upper.tier.note_error(&overdue.into());
        }
    }
}

impl<U: Device> Upper<U> {
    pub(super) fn place_offset(&self, place: u32) -> u64 {
        UPPER_DATA_OFFSET + u64::from(place) * self.tier.table.division().block_bytes
    }
}

impl<L: Device + Clone, U: Device<Buf = L::Buf> + Clone> Tiered<L, U> {
    /// Begins to use the upper device: finds out which copies on it count. To be called once, on one handle, when the store is open.
    /// What fails leaves the upper device alone.
    pub async fn start(&self, start: Start) {
        let Some(upper) = &self.upper else { return };
        let tier = &upper.tier;
        let division = *tier.table.division();
        if start.makes {
            let superblock = UpperSuperblock {
                owner: start.owner,
                bytes: upper.device.capacity(),
                block_bytes: division.block_bytes,
            };
            if let Err(error) = upper.device.append_log(0, &superblock.encode()) {
                return tier.leave_out(format!("its superblock cannot be written: {error}"));
            }
        }
        if tier.catalog.set(start.catalog).is_err() {
            return;
        }
        // Until all places were looked at none may be written to; but what is found is read.
        tier.is_copying.store(true, Ordering::Release);
        let claim = Claim(Arc::clone(tier));
        let (waits, works) = (Stage::Waits as u8, Stage::Works as u8);
        let _ = tier
            .stage
            .compare_exchange(waits, works, Ordering::AcqRel, Ordering::Relaxed);
        let places: Vec<u32> = (0..tier.places()).collect();
        for some in places.chunks(ADOPTS_AT_ONCE) {
            if !tier.works() {
                return;
            }
            join_all(some.iter().map(|place| self.adopt(upper, *place))).await;
        }
        let free = u64::from(tier.places()) - tier.copies();
        if start.makes {
            // What the lower device holds was written once.
            add(&tier.earned_bytes, free * division.block_bytes);
        }
        drop(claim);
    }

    /// Enters the copy that stands at a place, if it is one.
    async fn adopt(&self, upper: &Upper<U>, place: u32) {
        let tier = &upper.tier;
        let division = tier.table.division();
        let last = division.block_bytes - SECTOR_BYTES as u64;
        let copy = match upper
            .device
            .read(upper.place_offset(place) + last, SECTOR_BYTES)
            .await
        {
            Ok(copy) => copy,
            Err(error) => return tier.note_error(&error),
        };
        tier.note_success();
        let Some(block) = tier.block_of(&copy) else { return };
        let Some(seen) = tier.table.begin_copy(block) else {
            return;
        };
        let Ok(truth) = self
            .lower
            .read(division.block_offset(block) + last, SECTOR_BYTES)
            .await
        else {
            return;
        };
        // The catalog is asked again: of what was noted as seen.
        if same(&copy, &truth) && tier.block_of(&truth) == Some(block) {
            tier.chooser.lock().set_owner(place, block);
            if tier.table.enter(block, seen, place) {
                add(&tier.counters.adopted_copies, 1);
            }
        }
    }

    /// Looks now and then whether there is something to decide, or to copy.
    fn look(&self, upper: &Upper<U>) {
        let reads = upper.reads.get() + 1;
        upper.reads.set(reads % READS_AT_ONCE);
        if reads < READS_AT_ONCE {
            return;
        }
        let tier = &upper.tier;
        add(&tier.reads, reads);
        tier.split.look();
        if !tier.works() || !tier.is_choice_due() || tier.is_copying.swap(true, Ordering::AcqRel) {
            return;
        }
        let claim = Claim(Arc::clone(tier));
        let handle = self.clone();
        upper.spawner.spawn(Box::pin(async move {
            handle.copy_what_is_read_most().await;
            drop(claim);
        }));
    }

    /// A read of the lower device that counts. In a box and not inlined, as is that of a copy: so where there is no upper device, a read is no
    /// larger than that of the lower one, and inlined.
    #[inline(never)]
    fn read_lower(
        &self,
        upper: &Upper<U>,
        offset: u64,
        len: usize,
    ) -> std::pin::Pin<Box<impl Operation<L::Buf>>> {
        let request = upper.part.begin();
        Box::pin(self.lower.read(offset, len).map(move |result| {
            if result.is_ok() {
                request.end_read(Side::Lower);
            }
            result
        }))
    }

    /// Begins a read of the copy of a range, if there is one.
    #[inline(never)]
    fn read_upper<T: 'static>(
        &self,
        upper: &Upper<U>,
        offset: u64,
        len: usize,
        check: impl Fn(L::Buf) -> Option<T> + 'static,
    ) -> Option<std::pin::Pin<Box<impl Future<Output = Option<T>> + 'static>>> {
        let tier = &upper.tier;
        let division = tier.table.division();
        let block = division.block_of(offset, len as u64)?;
        tier.table.note_read(block);
        self.look(upper);
        if !tier.works() {
            return None;
        }
        if tier.table.place(block).is_none() {
            upper.part.miss();
            return None;
        }
        if upper.part.route() == Side::Lower {
            add(&tier.counters.redirected_reads, 1);
            return None;
        }
        let place = tier.table.pin(block)?;
        let pin = Pin {
            tier: Arc::clone(tier),
            block,
            place,
        };
        let at = upper.place_offset(place) + (offset - division.block_offset(block));
        let request = upper.part.begin();
        Some(Box::pin(upper.device.read(at, len).map(move |read| {
            let found = pin.judge(read, check);
            if found.is_some() {
                request.end_read(Side::Upper);
            }
            found
        })))
    }
}

impl Tier {
    /// Which block ends with this sector, if that is known to be whole.
    pub(super) fn block_of<B: pumice_device::Buffer>(&self, sector: &B) -> Option<u32> {
        let block = self.catalog.get()?(sector.bytes(0, SECTOR_BYTES)?)?;
        (block < self.table.division().blocks).then_some(block)
    }

    pub(super) fn is_choice_due(&self) -> bool {
        let blocks = u64::from(self.table.division().blocks);
        let reads = self.reads.load(Ordering::Relaxed);
        // Another thread may have chosen since, at more reads.
        let since = reads.saturating_sub(self.chosen_at.load(Ordering::Relaxed));
        since >= READS_A_ROUND * blocks && self.split.switch().data_admit()
    }
}

/// Whether two buffers of a sector hold the same.
pub(super) fn same<B: pumice_device::Buffer>(a: &B, b: &B) -> bool {
    let (a, b) = (a.bytes(0, SECTOR_BYTES), b.bytes(0, SECTOR_BYTES));
    a.is_some() && a == b
}

/// The one who copies; gives that back however it ends.
struct Claim(Arc<Tier>);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.is_copying.store(false, Ordering::Release);
    }
}

/// A read of a place that is under way.
struct Pin {
    tier: Arc<Tier>,
    block: u32,
    place: u32,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.tier.table.unpin(self.place);
    }
}

impl Pin {
    /// What the caller makes of the bytes.
    fn judge<B, T>(&self, read: io::Result<B>, check: impl Fn(B) -> Option<T>) -> Option<T> {
        let tier = &self.tier;
        let bad = match read.map(check) {
            Ok(Some(found)) => {
                add(&tier.counters.copy_reads, 1);
                tier.note_success();
                return Some(found);
            }
            Ok(None) => None,
            Err(error) => Some(error),
        };
        add(&tier.counters.made_good, 1);
        // Many may read one bad copy at the same time, and one bad copy is no bad device: only the first counts as a failure.
        let is_first = tier.table.give_up(self.block, self.place, true);
        match bad {
            Some(error) if is_first || Overdue::is(&error) => tier.note_error(&error),
            Some(_) => add(&tier.counters.errors, 1),
            None => {
                add(&tier.counters.wrong_copies, 1);
                if is_first {
                    tier.note_failure(&"a copy with a wrong checksum");
                }
            }
        }
        None
    }
}

impl<L: Device + Clone, U: Device<Buf = L::Buf> + Clone> Device for Tiered<L, U> {
    type Buf = L::Buf;
    forward!(lower: capacity, append_log, read_log, is_hole, sync);

    #[inline]
    fn read(&self, offset: u64, len: usize) -> impl Operation<Self::Buf> {
        match &self.upper {
            None => Either::Left(self.lower.read(offset, len)),
            Some(upper) => Either::Right(self.read_lower(upper, offset, len)),
        }
    }

    #[inline]
    fn read_copy<T: 'static>(
        &self,
        offset: u64,
        len: usize,
        check: impl Fn(Self::Buf) -> Option<T> + 'static,
    ) -> impl Future<Output = Option<T>> + 'static {
        let reading = match &self.upper {
            None => None,
            Some(upper) => self.read_upper(upper, offset, len, check),
        };
        async move { reading?.await }
    }

    fn write(&self, offset: u64, data: Arc<Self::Buf>, range: Range<usize>) -> impl Operation<()> {
        let len = range.len() as u64;
        let tier = self.upper.as_ref().map(|upper| Arc::clone(&upper.tier));
        if let Some(tier) = &tier {
            tier.table.begin_write(offset, len);
            add(&tier.earned_bytes, len);
        }
        let request = self.upper.as_ref().map(|upper| upper.part.begin());
        self.lower.write(offset, data, range).map(move |result| {
            if let (Some(request), Ok(())) = (request, &result) {
                request.end_write();
            }
            // Of a write that got no answer, as of one whose future was dropped, nobody knows the end: its blocks stay without copies.
            if let Some(tier) = tier
                && !result.as_ref().is_err_and(Overdue::is)
            {
                tier.table.end_write(offset, len, result.is_ok());
            }
            result
        })
    }

    fn discard(&self, offset: u64, len: u64) {
        if let Some(upper) = &self.upper {
            upper.tier.table.discard(offset, len);
        }
        self.lower.discard(offset, len);
    }

    fn tick(&self, patience: u32) -> Vec<Overdue> {
        self.end_overdue(patience);
        self.lower.tick(patience)
    }

    fn turn(&self, block: bool) -> io::Result<usize> {
        let turn_upper = |block| {
            let Some(upper) = &self.upper else { return 0 };
            upper.device.turn(block).unwrap_or_else(|error| {
                upper.tier.note_error(&error);
                0
            })
        };
        let done = self.lower.turn(false)? + turn_upper(false);
        if done > 0 || !block {
            return Ok(done);
        }
        match self.lower.turn(true)? {
            0 => Ok(turn_upper(true)),
            done => Ok(done),
        }
    }
}
