//! A store, the volume behind it, and the background work of a server: cleaning, reclaims, checkpoints.

use super::{CHUNK, Checkpoints, Cleaner, Damage, Steps};
use futures_channel::oneshot;
use pumice_blocks::{BudgetLevel, Work};
use pumice_chunk::store::{BudgetOwner, ChunkStore, Chunks, Copied};
use pumice_device::Device;
use pumice_memory::AlignedBuf;
use pumice_testkit::FaultyDevice;
use pumice_testkit::{Life, SECTOR};
use pumice_world::{LocalSpawner, Random, Spawner};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

/// Lets reclaims keep what they want, or nothing.
pub(super) struct Keeps(pub(super) bool);

impl BudgetOwner for Keeps {
    fn resume(&self, _: BudgetLevel, _: Option<u64>) {}

    fn left(&self, _: u64) -> BudgetLevel {
        BudgetLevel::default()
    }

    fn may_keep(&self, _: u64) -> bool {
        self.0
    }
}

/// The volume behind the cache; it has a write cache.
pub(super) struct Volume {
    pub(super) now: Vec<u8>,
    pub(super) durable: Vec<u8>,
    /// Writes since the last flush.
    pub(super) since: Vec<(usize, Vec<u8>)>,
}

impl Volume {
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.now[offset..][..bytes.len()].copy_from_slice(bytes);
        self.since.push((offset, bytes.to_vec()));
    }

    pub(super) fn flush(&mut self) {
        for (offset, bytes) in self.since.drain(..) {
            self.durable[offset..][..bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// Of each write that was not flushed all, nothing or some sectors stay.
    pub(super) fn cut_power(&mut self, random: &mut Random) {
        for (offset, bytes) in self.since.drain(..) {
            let kept = random.below(3);
            for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                if kept == 0 || kept == 1 && random.below(2) == 0 {
                    self.durable[offset + number * SECTOR..][..SECTOR].copy_from_slice(sector);
                }
            }
        }
        self.now.clone_from(&self.durable);
    }

    pub(super) fn chunk(&self, address: u64) -> Vec<u8> {
        self.now[address as usize * CHUNK..][..CHUNK].to_vec()
    }
}

/// A store, and what the program does with it in the background.
pub(super) struct Host {
    pub(super) store: ChunkStore<AlignedBuf>,
    pub(super) device: FaultyDevice,
    pub(super) volume: Rc<RefCell<Volume>>,
    pub(super) spawner: LocalSpawner,
    /// Chunks that are copied to the volume, or that a change goes through to.
    pub(super) held: RefCell<HashSet<u64>>,
    /// Cleanings that wait for operations of the client.
    pub(super) paused: RefCell<Vec<oneshot::Sender<()>>>,
    pub(super) random: RefCell<Random>,
    pub(super) life: Life,
    pub(super) now: Cell<u32>,
    pub(super) cleaned: Cell<u64>,
    pub(super) what: String,
}

impl Host {
    /// On a healthy device nothing fails.
    pub(super) fn failed(&self, what: &str, error: &dyn std::fmt::Display) {
        if !self.device.medium().is_crashed() && self.life.get::<Damage>() == Damage::None {
            self.wrong(&format!("{what}: {error}"));
        }
    }

    pub(super) fn wrong(&self, what: &str) -> ! {
        panic!("{}: {what}; {}", self.what, self.life.describe())
    }

    pub(super) fn kick(self: &Rc<Self>) {
        while let Some(work) = self.store.take_work() {
            let host = Rc::clone(self);
            self.spawner
                .spawn(Box::pin(async move { host.perform(work).await }));
        }
    }

    /// Lets the device go on, and in the end what waits for the client.
    pub(super) fn park(self: &Rc<Self>, idle: &mut u32) -> io::Result<()> {
        self.kick();
        match self.device.turn(true)? {
            0 => *idle += 1,
            _ => *idle = 0,
        }
        match *idle {
            0..10 => Ok(()),
            10..100 => {
                self.release();
                Ok(())
            }
            _ => Err(io::Error::other("nothing is under way")),
        }
    }

    pub(super) async fn perform(&self, work: Work<Chunks<AlignedBuf>>) {
        let dirty = self.store.dirty_in_work(&work, 4096).await;
        if !dirty.is_empty() {
            let cleaned = match self.life.get::<Cleaner>() {
                Cleaner::Reclaim | Cleaner::Both => self.clean(dirty, false).await,
                Cleaner::Never | Cleaner::Subset => 0,
            };
            if cleaned == 0 && !self.store.is_log_short() {
                self.store.pause_reclaims();
            }
        }
        self.store.perform(&self.device, self.now.get(), work).await;
    }

    /// Cleans chunks that nobody holds. Returns how many.
    pub(super) async fn clean(&self, mut addresses: Vec<u64>, by_client: bool) -> u64 {
        if !by_client && self.store.is_log_short() {
            return 0;
        }
        let pauses = by_client && self.life.get::<Steps>() == Steps::Apart;
        addresses.retain(|address| self.held.borrow_mut().insert(*address));
        let copied = self.copy_out(&addresses, pauses).await;
        addresses.iter().for_each(|address| {
            self.held.borrow_mut().remove(address);
        });
        self.made_clean(copied, by_client, pauses).await
    }

    pub(super) async fn copy_out(&self, addresses: &[u64], pauses: bool) -> Vec<Copied> {
        let (mut chunks, mut copied) = (Vec::new(), Vec::new());
        for address in addresses {
            match self.store.read_dirty(&self.device, *address).await {
                Ok(Some((chunk, read))) => {
                    chunks.push((*address as usize * CHUNK + chunk.start as usize, chunk.bytes));
                    copied.push(read);
                }
                Ok(None) => {}
                Err(error) => self.failed("read_dirty", &error),
            }
        }
        self.pause(pauses).await;
        let persisted = self.store.persist(&self.device).await;
        self.pause(pauses).await;
        if let Err(error) = persisted {
            self.failed("persist", &error);
            self.store.addresses().forget_copies(&copied);
            return Vec::new();
        }
        for (offset, bytes) in chunks {
            if !self.device.medium().is_crashed() {
                self.volume.borrow_mut().write(offset, &bytes);
            }
        }
        copied
    }

    pub(super) async fn made_clean(&self, copied: Vec<Copied>, may_wait: bool, pauses: bool) -> u64 {
        self.pause(pauses).await;
        if self.device.medium().is_crashed() {
            return 0;
        }
        self.volume.borrow_mut().flush();
        self.pause(pauses).await;
        let mut wait = pin!(self.store.wait_for_log(u64::MAX));
        if may_wait && self.life.get::<Checkpoints>() == Checkpoints::Often && self.is_one_of(3) {
            // A checkpoint is due meanwhile.
            let _ = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        let made = self.store.made_clean(&self.device, &copied, may_wait).await;
        made.as_ref()
            .err()
            .into_iter()
            .for_each(|error| self.failed("made_clean", error));
        self.cleaned.set(self.cleaned.get() + made.as_ref().unwrap_or(&0));
        made.unwrap_or(0)
    }

    /// Waits for some operations of the client.
    pub(super) async fn pause(&self, pauses: bool) {
        if pauses && self.is_one_of(2) {
            let (sender, receiver) = oneshot::channel();
            self.paused.borrow_mut().push(sender);
            let _ = receiver.await;
        }
    }

    /// One of so many.
    pub(super) fn is_one_of(&self, count: u64) -> bool {
        self.random.borrow_mut().below(count) == 0
    }

    pub(super) fn release(&self) {
        drop(self.paused.take());
    }

    /// Holds chunks, if nobody does.
    pub(super) fn hold(&self, chunks: Range<u64>) -> bool {
        let mut held = self.held.borrow_mut();
        let is_free = !chunks.clone().any(|chunk| held.contains(&chunk));
        held.extend(chunks.filter(|_| is_free));
        is_free
    }
}
