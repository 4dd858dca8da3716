//! The store as tests have it: on one thread, which runs everything to its end itself.

use super::piece::Place;
use super::recovery::Found;
use super::{Died, NOW, Toy, Types};
use pumice_blocks::footer::Entry;
use pumice_blocks::{Blocks, Durability, Logged, State};
use pumice_device::Device;
use pumice_testkit::FaultyDevice;
use pumice_testkit::{Inspection, Store};
use pumice_world::{Executor, Spawner};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `KEEPS`: it has the only copy. `POWER`: what is committed survives a power cut.
pub struct ToyStore<const KEEPS: bool, const POWER: bool> {
    pub toy: Arc<Toy>,
    pub found: Found,
    executor: Executor,
    pub version: u64,
    /// What was given up is told from this: where each key was when it was last asked.
    known: HashMap<u64, (u32, Place)>,
    second: u32,
}

fn park(device: &FaultyDevice) -> impl FnMut() -> io::Result<()> {
    let device = device.clone();
    move || device.turn(true).map(drop)
}

impl<const KEEPS: bool, const POWER: bool> ToyStore<KEEPS, POWER> {
    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.executor
            .block_on(future, park(&self.toy.device))
            .expect("something is under way")
    }

    fn kick(&self) {
        while let Some(work) = self.toy.take_work() {
            let toy = Arc::clone(&self.toy);
            let work = async move { toy.perform(work).await };
            self.executor.spawner().spawn(Box::pin(work));
        }
    }

    /// Makes a change; `None` where it is refused. Where the log is full a checkpoint makes room, or two: the one before the newest needs
    /// its records too.
    fn change<T>(&mut self, change: impl Fn(&Toy, u64) -> Result<T, Logged>) -> Option<T> {
        self.version += 1;
        for _ in 0..3 {
            match change(&self.toy, self.version) {
                Ok(made) => return Some(made),
                Err(Logged::NoRoom) => self.checkpoint().map(drop).ok()?,
                Err(_) => return None,
            }
        }
        None
    }

    /// What the store is made of.
    pub fn base(&self) -> &Blocks<Types> {
        &self.toy.base
    }

    /// Adds records that say nothing to the log, where there is room; how many.
    pub fn log_nothing(&self, records: u64) -> u64 {
        let append = || self.base().journal.append(&self.toy.device, Died, u64::MAX, 0);
        (0..records).take_while(|_| append() == Logged::Stored).count() as u64
    }

    /// Writes a checkpoint, beside all else; whether no start could go back to the one before.
    pub fn checkpoint(&mut self) -> io::Result<bool> {
        self.run(self.toy.checkpoint(false))
    }

    /// Closes the block that is being filled. It is written by the next work that is done.
    pub fn close_active(&self) {
        let active = self.toy.maps.lock().active.take();
        active
            .into_iter()
            .for_each(|block| self.base().close_block(block));
    }

    /// The oldest sealed block.
    pub fn oldest_sealed(&self) -> u32 {
        let pool = self.base().shared.pool.lock();
        *pool.own.front().expect("one is sealed")
    }

    /// Records that were lost.
    pub fn lost_records(&self) -> u64 {
        self.base().totals.log_failures.load(Ordering::Relaxed)
    }

    /// The sequence of the next block that is opened.
    pub fn next_sequence(&self) -> u64 {
        self.base().shared.pool.lock().next_sequence
    }
}

impl<const KEEPS: bool, const POWER: bool> Store for ToyStore<KEEPS, POWER> {
    const SURVIVES_POWER_CUTS: bool = POWER;

    fn open(device: FaultyDevice) -> Result<Self, String> {
        let executor = Executor::new();
        let durability = match POWER {
            true => Durability::Power,
            false => Durability::Process,
        };
        let opened = executor.block_on(Toy::open(&device, KEEPS, durability), park(&device));
        let opened = opened.map_err(|error| error.to_string())?;
        let (toy, found) = opened.map_err(|error| error.to_string())?;
        let epoch = u64::from(toy.base.journal.superblock.lock().epoch);
        let known = toy.maps.lock().index.clone();
        Ok(Self {
            toy: Arc::new(toy),
            found,
            executor,
            version: epoch << 44,
            known,
            second: NOW,
        })
    }

    fn has_forgotten(&self) -> bool {
        self.found.has_forgotten
    }

    fn set(&mut self, key: u64, value: u64) -> bool {
        self.known.remove(&key);
        let is_there = self.change(|toy, version| toy.set(key, value, version)) == Some(true);
        if let Some(place) = self.toy.maps.lock().index.get(&key) {
            self.known.insert(key, *place);
        }
        self.kick();
        is_there
    }

    fn delete(&mut self, key: u64) {
        self.known.remove(&key);
        self.change(|toy, version| toy.delete(key, version));
    }

    fn commit(&mut self) -> bool {
        let committed = self.run(self.base().journal.commit(&self.toy.device));
        if !self.base().is_out() {
            return committed.is_ok();
        }
        self.kick();
        self.run(self.base().shared.wait_until_settled())
    }

    fn get(&mut self, key: u64) -> Option<u64> {
        self.run(self.toy.get(key))
    }

    fn is_on_device(&mut self, key: u64) -> bool {
        let Some((block, place)) = self.toy.maps.lock().index.get(&key).copied() else {
            return false;
        };
        match self.base().find_open(block) {
            Some(open) => place.range().end <= open.written() as u64,
            None => self.base().blocks[block as usize].state() == State::Sealed,
        }
    }

    fn turn(&mut self) {
        self.second += 1;
        self.base().flush_aged(self.second);
        self.kick();
        let _ = self.toy.device.turn(true);
        self.run(std::future::ready(()));
        self.run(pumice_blocks::give_turn());
    }

    fn settle(&mut self) {
        loop {
            self.kick();
            let is_idle = self.executor.run_until_idle(park(&self.toy.device));
            if is_idle.is_err() || !self.base().has_work() {
                return;
            }
        }
    }

    fn given_up(&mut self) -> Vec<u64> {
        let maps = self.toy.maps.lock();
        let gone: Vec<u64> = (self.known.iter())
            .filter(|(key, place)| maps.index.get(key) != Some(place))
            .map(|(key, _)| *key)
            .collect();
        for key in &gone {
            self.known.remove(key);
        }
        gone
    }

    fn check(&mut self) {
        let maps = self.toy.maps.lock();
        let state = |block: u32| self.base().blocks[block as usize].state();
        for (key, (block, _)) in &maps.index {
            assert!(
                matches!(state(*block), State::Active | State::Sealing | State::Sealed),
                "key {key} is in block {block}, which is {:?}",
                state(*block)
            );
        }
        for id in &self.base().shared.pool.lock().free {
            assert_eq!(state(*id), State::Free);
        }
    }

    fn close(mut self) -> Result<(), String> {
        self.close_active();
        self.settle();
        let closed = self.run(self.toy.checkpoint(true));
        closed.map(drop).map_err(|error| error.to_string())
    }

    fn inspect(device: FaultyDevice) -> Result<Inspection, String> {
        let inspected = Executor::new().block_on(Toy::inspect(&device), park(&device));
        let inspected = inspected.map_err(|error| error.to_string())?;
        let found = inspected.map_err(|error| error.to_string())?;
        let found = found.ok_or("the device is empty")?;
        Ok(Inspection {
            problems: found.problems,
            metadata: found.metadata,
        })
    }
}
