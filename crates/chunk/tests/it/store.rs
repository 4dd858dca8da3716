//! The store under testkit's crashes and faults: a key is a chunk, a value is a content.

use bytes::Bytes;
use pumice_blocks::open::read_superblock;
use pumice_blocks::{BudgetLevel, Durability, Geometry, Maker, OpenError, Task};
use pumice_chunk::store::{BudgetOwner, Chunk, ChunkStore, Filled, Found, Options, STORE, WriteGuard};
use pumice_device::Device;
use pumice_memory::{AlignedBuf, Buffer};
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use pumice_testkit::{Inspection, Store, calm, store_tests, swarms};
use pumice_world::{Executor, Job, Offload, Random, Spawner};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

pub const CHUNK_BYTES: u32 = 4 << 10;
const NOW: u32 = 1_000;

pub fn options() -> Options {
    Options {
        chunk_bytes: CHUNK_BYTES,
        chunks: 1_000,
        volume: 1,
        modified: 0,
        boot: 1,
        mappings: 700,
        contents: 400,
        block_bytes: 64 << 10,
        buffers_max: 3,
        durability: Durability::Process,
        reformat: false,
        maker: Maker::Serve,
        random: 11,
        write_back: false,
        absence_secs_max: None,
        now: NOW,
    }
}

/// A content that says its value, and is compressible to between a part and nothing.
pub fn content(value: u64) -> Vec<u8> {
    let mut random = Random(value);
    let noise = random.below(u64::from(CHUNK_BYTES)) as usize;
    let mut bytes: Vec<u8> = (0..CHUNK_BYTES as usize / 8)
        .flat_map(|_| random.next_u64().to_le_bytes())
        .collect();
    bytes[noise..].fill(value as u8);
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn value(chunk: &Chunk) -> u64 {
    let value = u64::from_le_bytes(chunk.bytes[..8].try_into().unwrap());
    assert_eq!(chunk.start, 0);
    assert!(chunk.bytes == content(value), "a content is mixed or damaged");
    value
}

/// Computes when nothing else is left to do, on the same thread.
#[derive(Default)]
pub struct Later(Mutex<VecDeque<Job>>);

impl Later {
    /// Runs the oldest job; false if there is none.
    pub fn run_one(&self) -> bool {
        let job = self.0.lock().unwrap().pop_front();
        job.map(|job| job()).is_some()
    }
}

impl Offload for Later {
    fn pays(&self, _: usize, _: usize) -> bool {
        true
    }

    fn run(&self, job: Job) {
        self.0.lock().unwrap().push_back(job);
    }
}

/// The store, on one thread. `POWER`: under testkit, its volume never loses what was written, and a power cut brings nothing older back.
pub struct ChunkRig<const POWER: bool> {
    pub store: Arc<ChunkStore<AlignedBuf>>,
    pub device: FaultyDevice,
    executor: Executor,
    pub later: Arc<Later>,
    pub found: Found,
    /// Whether all changes were committed before the volume had them.
    is_committed: bool,
    /// Where each key was when it was last asked.
    known: HashMap<u64, pumice_chunk::Place>,
}

pub type Rig = ChunkRig<false>;
type DurableRig = ChunkRig<true>;

fn park(device: &FaultyDevice) -> impl FnMut() -> io::Result<()> {
    let device = device.clone();
    move || device.turn(true).map(drop)
}

impl<const POWER: bool> ChunkRig<POWER> {
    pub fn try_open(device: FaultyDevice, options: &Options) -> Result<Self, String> {
        Self::try_open_with(device, options, None)
    }

    pub fn try_open_with(
        device: FaultyDevice,
        options: &Options,
        budget: Option<Arc<dyn BudgetOwner>>,
    ) -> Result<Self, String> {
        let executor = Executor::new();
        let started = executor.block_on(ChunkStore::open(&device, options, budget), park(&device));
        let (store, found) = match started {
            Ok(started) => started.map_err(|error| error.to_string())?,
            Err(error) => return Err(error.to_string()),
        };
        let mut rig = Self {
            store: Arc::new(store),
            device,
            executor,
            later: Arc::default(),
            found,
            is_committed: true,
            known: HashMap::new(),
        };
        rig.note_places(1_000);
        Ok(rig)
    }

    fn note_places(&mut self, keys: u64) {
        self.known = (0..keys)
            .filter_map(|key| Some((key, self.store.place(key)?)))
            .collect();
    }

    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let park = || match self.later.run_one() {
            true => Ok(()),
            false => self.device.turn(true).map(drop),
        };
        self.executor
            .block_on(future, park)
            .expect("something is under way")
    }

    /// From now on fingerprints and compression are computed while the fill waits for them.
    pub fn compute_later(&mut self) {
        let store = Arc::get_mut(&mut self.store).expect("nobody uses it yet");
        store.offload_to(Arc::clone(&self.later) as _);
    }

    pub fn kick(&self) {
        while let Some(work) = self.store.take_work() {
            let (store, device) = (Arc::clone(&self.store), self.device.clone());
            let work = async move { store.perform(&device, NOW, work).await };
            self.executor.spawner().spawn(Box::pin(work));
        }
    }

    /// Whether the volume may be written.
    fn commits(&mut self, guard: &WriteGuard<'_, AlignedBuf>) -> bool {
        if !POWER {
            return true;
        }
        // A device that fails while it waits is fenced by background work.
        let work = || {
            self.kick();
            self.device.turn(true).map(drop)
        };
        let committed = self.executor.block_on(guard.commit(&self.device), work);
        let is_committed = matches!(committed, Ok(Ok(())));
        self.is_committed &= is_committed;
        is_committed
    }

    /// A write to the volume, which the rig is the model of.
    pub fn write(&mut self, address: u64, start: u32, bytes: &[u8]) -> Filled {
        self.known.remove(&address);
        let store = Arc::clone(&self.store);
        let mut guard = store.begin_write(&self.device, address..address + 1).unwrap();
        let filled = match self.commits(&guard) {
            true => self.run(guard.fill(&self.device, address, start, Bytes::copy_from_slice(bytes))),
            false => Filled::NoRoom,
        };
        drop(guard);
        if let Some(place) = self.store.place(address) {
            self.known.insert(address, place);
        }
        self.kick();
        filled
    }

    /// The volume is flushed, as it always is.
    fn clear(&self) -> io::Result<()> {
        self.run(
            self.store
                .clear(&self.device, &self.store.addresses().quiet_regions(true)),
        )
    }
}

impl<const POWER: bool> Store for ChunkRig<POWER> {
    const SURVIVES_POWER_CUTS: bool = POWER;

    fn open(device: FaultyDevice) -> Result<Self, String> {
        let (durability, boot) = match POWER {
            // Each start may be one after a power cut.
            true => (Durability::Power, 0),
            false => (Durability::Process, 1),
        };
        let options = Options {
            durability,
            boot,
            ..options()
        };
        Self::try_open(device, &options)
    }

    fn has_forgotten(&self) -> bool {
        self.found == Found::Forgotten
    }

    fn set(&mut self, key: u64, value: u64) -> bool {
        self.write(key, 0, &content(value));
        self.store.place(key).is_some()
    }

    fn delete(&mut self, key: u64) {
        self.known.remove(&key);
        let store = Arc::clone(&self.store);
        self.commits(&store.begin_write(&self.device, key..key + 1).unwrap());
    }

    fn commit(&mut self) -> bool {
        self.is_committed
    }

    fn get(&mut self, key: u64) -> Option<u64> {
        let chunk = self.run(self.store.read(&self.device, key)).unwrap();
        chunk.map(|chunk| value(&chunk))
    }

    fn is_on_device(&mut self, key: u64) -> bool {
        self.store.is_on_device(key)
    }

    fn turn(&mut self) {
        self.kick();
        let _ = self.device.turn(true);
        self.run(std::future::ready(()));
        self.run(pumice_blocks::give_turn());
    }

    fn settle(&mut self) {
        loop {
            self.kick();
            if self.executor.run_until_idle(park(&self.device)).is_err() || !self.store.has_work() {
                break;
            }
        }
        if POWER {
            // Else the marks stay.
            let _ = self.clear();
        }
    }

    fn given_up(&mut self) -> Vec<u64> {
        let gone: Vec<u64> = (self.known.iter())
            .filter(|(key, place)| self.store.place(**key) != Some(**place))
            .map(|(key, _)| *key)
            .collect();
        // What was moved may be moved again.
        for key in &gone {
            match self.store.place(*key) {
                Some(place) => self.known.insert(*key, place),
                None => self.known.remove(key),
            };
        }
        gone
    }

    fn check(&mut self) {
        self.store.check_invariants();
    }

    fn close(mut self) -> Result<(), String> {
        self.settle();
        let closed = self
            .clear()
            .and_then(|()| self.run(self.store.close(&self.device, NOW, || Ok(0))));
        closed.map_err(|error| error.to_string())
    }

    fn inspect(device: FaultyDevice) -> Result<Inspection, String> {
        let inspected = Executor::new().block_on(ChunkStore::inspect(&device), park(&device));
        let inspected = inspected.map_err(|error| error.to_string())?;
        let found = inspected.map_err(|error| error.to_string())?;
        let found = found.ok_or("the device is empty")?;
        Ok(Inspection {
            problems: found.problems,
            metadata: found.metadata,
        })
    }
}

store_tests!(Rig);

#[test]
fn no_fault_brings_a_wrong_value_back() {
    // Under seed 416 a block is reclaimed and filled anew between a checkpoint and a crash.
    swarms::<Rig>((0..120).chain([416]));
}

#[test]
fn no_fault_and_no_power_cut_brings_a_wrong_value_back() {
    let all = swarms::<DurableRig>(0..60);
    assert!(all.power_cuts > 100 && all.lost_in_power_cuts > 100);
}

#[test]
fn a_clean_stop_leaves_everything() {
    let medium = Arc::new(FaultyMedium::new(1 << 20, 3, FaultPlan::default()));
    let device = || FaultyDevice::new(Arc::clone(&medium));
    let mut rig = Rig::open(device()).unwrap();
    for key in 0..60 {
        assert!(rig.set(key, key * 7));
        rig.settle();
    }
    rig.close().unwrap();
    let mut rig = Rig::open(device()).unwrap();
    assert!(rig.found == Found::Cache);
    for key in 0..60 {
        assert_eq!(rig.get(key), Some(key * 7), "key {key}");
    }
    rig.check();
}

/// Writes contents to addresses, and stops: the checkpoint takes no more than is reserved for one, and has everything. Returns its bytes.
fn fill_and_stop(capacity: u64, options: &Options, writes: impl Iterator<Item = (u64, Vec<u8>)>) -> u64 {
    let medium = Arc::new(FaultyMedium::new(capacity, 3, FaultPlan::default()));
    let device = || FaultyDevice::new(Arc::clone(&medium));
    let mut rig = Rig::try_open(device(), options).unwrap();
    for (turn, (address, bytes)) in writes.enumerate() {
        rig.write(address, 0, &bytes);
        if turn % 16 == 0 {
            rig.settle();
        }
    }
    rig.settle();
    let before = rig.store.block_counts();
    assert!(before.checkpoints > 0 && before.log_failures == 0, "{before:?}");
    let (geometry, shape) = (
        Geometry::plan(capacity, options.block_bytes).unwrap(),
        *rig.store.shape(),
    );
    let planned = shape.index_bytes(&geometry).unwrap();
    for (taken, planned) in rig.store.index_bytes().iter().zip(&planned) {
        assert!(taken <= planned, "{taken} bytes of an index, of {planned}");
    }
    let in_use = rig.store.in_use();
    rig.run(rig.store.close(&rig.device, NOW, || Ok(0))).unwrap();
    let after = rig.store.block_counts();
    assert_eq!(after.checkpoints, before.checkpoints + 1);
    let (taken, reserved) = (
        after.checkpoint_bytes - before.checkpoint_bytes,
        shape.checkpoint_blocks(&geometry),
    );
    assert!(
        taken <= reserved as u64 * geometry.block_bytes,
        "{taken} bytes, in {reserved} blocks"
    );
    let rig = Rig::try_open(device(), options).unwrap();
    assert_eq!((rig.found, rig.store.in_use()), (Found::Cache, in_use));
    taken
}

#[test]
fn a_checkpoint_fits_however_short_the_contents_are() {
    let options = Options {
        chunks: 200_000,
        ..options()
    };
    let writes = (0..100_000).map(|turn: u64| (turn, turn.to_le_bytes().to_vec()));
    fill_and_stop(16 << 20, &options, writes);
}

#[test]
fn a_checkpoint_fits_with_a_full_index_and_all_regions_marked() {
    let options = Options {
        chunks: 4_095 * 64,
        mappings: 88 * 128,
        contents: 128,
        ..options()
    };
    let writes = (0..18_000).map(|turn| (turn * 43 % options.chunks, vec![1; 512]));
    let taken = fill_and_stop(41 << 16, &options, writes);
    assert!(
        taken > options.block_bytes,
        "without the regions it fits one block"
    );
}

/// Nobody can have made such settings. The DRAM of an inspection has a bound all the same.
#[test]
fn an_inspection_refuses_indexes_that_no_checkpoint_could_hold() {
    let medium = Arc::new(FaultyMedium::new(1 << 20, 1, FaultPlan::default()));
    let device = FaultyDevice::new(medium);
    drop(Rig::try_open(device.clone(), &options()).unwrap());
    let inspect = || {
        let inspected = Executor::new().block_on(ChunkStore::inspect(&device), park(&device));
        inspected.expect("something is under way")
    };
    assert_eq!(inspect().unwrap().unwrap().problems, [""; 0]);
    let whole = read_superblock(&device, STORE).unwrap().unwrap();
    // Chunks of the volume, mappings, contents.
    for [at, other] in [[16, 8], [24, 24], [8, 8]] {
        for value in [1 << 20, 1 << 40, u64::MAX] {
            let mut forged = whole;
            forged.own[at..at + 8].copy_from_slice(&value.to_le_bytes());
            forged.own[other..other + 8].copy_from_slice(&value.to_le_bytes());
            device.append_log(forged.slot_offset(), &forged.encode()).unwrap();
            match inspect() {
                Err(OpenError::UnknownSettings) => {}
                // A large volume may have a small index.
                Ok(Some(_)) if at == 8 && value < u64::MAX => {}
                other => panic!("{at}, {value}: {other:?}"),
            }
        }
    }
}

/// Chunks that only take free room: none of them makes another leave, and what reclaims and checkpoints free is no free room.
#[test]
fn free_room_ends_before_anything_leaves_and_does_not_come_back() {
    for (capacity, mappings, ends_by_slots) in [(1 << 20, 700, false), (4 << 20, 100, true)] {
        let medium = Arc::new(FaultyMedium::new(capacity, 3, FaultPlan::default()));
        let options = Options {
            mappings,
            ..options()
        };
        let mut rig = Rig::try_open(FaultyDevice::new(medium), &options).unwrap();
        let mut random = Random(capacity);
        let mut entered = 0;
        for address in 0..options.chunks {
            if rig.store.has_free_room(address..address + 1) {
                assert_eq!(rig.write(address, 0, &content(address)), Filled::Stored);
                entered += 1;
            }
            rig.settle();
        }
        let counts = rig.store.counts();
        assert!(entered > 80 && entered < 600, "{entered} of {capacity} bytes");
        assert_eq!((counts.reclaimed_blocks, counts.evicted_mappings), (0, 0));
        assert_eq!(rig.store.in_use().0, entered);
        assert!(!rig.store.has_free_room(0..options.chunks));
        if ends_by_slots {
            // What has a slot does not need another.
            assert!(rig.store.has_free_room(0..1) && entered == 128);
            continue;
        }
        for _ in 0..4_000 {
            let value = random.next_u64();
            rig.write(value % options.chunks, 0, &content(value));
            rig.kick();
            assert!(!rig.store.has_free_room(0..1));
            rig.settle();
            assert!(!rig.store.has_free_room(0..1));
        }
        assert!(rig.store.counts().reclaimed_blocks > 100);
        assert!(rig.store.block_counts().checkpoints > 10);
    }
}

/// A reclaim copies a content that six chunks share to the active buffer. Meanwhile one of them is written back: that must not replace the copy.
#[test]
fn a_write_while_a_reclaim_moves_its_content_changes_no_other_chunk() {
    let mut values: Vec<u64> = (0..50).collect();
    values.sort_by_key(|value| Random(*value).below(CHUNK_BYTES.into()));
    let (short, long, chunks) = (values[0], values[49], 6);
    let (mut moved, mut stored) = (0, 0);
    for seed in 0..600 {
        let (turns, written) = (seed / chunks, seed % chunks);
        let medium = Arc::new(FaultyMedium::new(1 << 20, 3, calm()));
        let options = Options {
            write_back: true,
            ..options()
        };
        let mut rig = Rig::try_open(FaultyDevice::new(medium), &options).unwrap();
        let fill = |rig: &Rig, address, value| {
            let ticket = rig.store.begin_fill(address);
            rig.run((rig.store).fill(&rig.device, ticket, 0, content(value).into()));
        };
        (0..chunks).for_each(|address| fill(&rig, address, long));
        for next in 0.. {
            fill(&rig, 100 + next % 800, 100 + next);
            let _ = rig.device.turn(true);
            rig.run(pumice_blocks::give_turn());
            let Some(work) = rig.store.take_work() else {
                continue;
            };
            let is_reclaim = matches!(work.task(), Task::Own(_));
            let (store, device) = (Arc::clone(&rig.store), rig.device.clone());
            let work = async move { store.perform(&device, NOW, work).await };
            rig.executor.spawner().spawn(Box::pin(work));
            if is_reclaim {
                break;
            }
        }
        let filled = rig.run(async {
            for _ in 0..turns {
                let _ = rig.device.turn(true);
                pumice_blocks::give_turn().await;
            }
            let mut guard = rig.store.begin_write_back(written..written + 1);
            let bytes = Bytes::from(content(short));
            guard.fill(&rig.device, written, 0, bytes).await
        });
        // What is dirty is not cleaned here, so that reclaims do not end.
        (0..200).for_each(|_| rig.turn());
        moved += rig.store.counts().moved_contents;
        for address in 0..chunks {
            let is_new = address == written && filled == Filled::Stored;
            let expected = if is_new { short } else { long };
            let found = rig.get(address);
            assert!(
                found.is_none_or(|found| found == expected),
                "{seed}, {filled:?}: {found:?} in chunk {address}, not {expected}"
            );
        }
        stored += u32::from(filled == Filled::Stored);
        rig.check();
    }
    assert!(moved > 600 && stored > 200, "{moved} {stored}");
}

/// A piece of work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    Checkpoint,
    Reclaim,
    Other,
}

/// Fills a cache. `may` says whether a piece of work is performed; else it is due again.
fn fill_and_work(rig: &Rig, fills: Range<u64>, mut may: impl FnMut(Due) -> bool) {
    for next in fills {
        let ticket = rig.store.begin_fill(next % 900);
        rig.run((rig.store).fill(&rig.device, ticket, 0, content(next).into()));
        while let Some(work) = rig.store.take_work() {
            let due = match work.task() {
                Task::Checkpoint => Due::Checkpoint,
                Task::Own(_) => Due::Reclaim,
                _ => Due::Other,
            };
            if !may(due) {
                break;
            }
            let (store, device) = (Arc::clone(&rig.store), rig.device.clone());
            let work = async move { store.perform(&device, NOW, work).await };
            rig.executor.spawner().spawn(Box::pin(work));
        }
        let _ = rig.device.turn(true);
        rig.run(pumice_blocks::give_turn());
    }
}

/// A dirty chunk may have its mapping in a victim alone, and a start may find either of two checkpoints.
#[test]
fn a_reclaim_waits_until_two_checkpoints_have_its_mappings() {
    let options = Options {
        write_back: true,
        ..options()
    };
    let medium = Arc::new(FaultyMedium::new(1 << 20, 3, FaultPlan::default()));
    let rig = Rig::try_open(FaultyDevice::new(medium), &options).unwrap();
    for checkpoints in 0..3 {
        let mut left = checkpoints.min(1);
        fill_and_work(&rig, 0..1_000, |due| {
            due != Due::Checkpoint || std::mem::take(&mut left) > 0
        });
        let counts = rig.store.counts();
        assert!(counts.refused_no_room > 500, "{counts:?}");
        assert_eq!(counts.reclaimed_blocks > 0, checkpoints == 2, "{counts:?}");
    }
}

/// Else a start after a power cut would take what a block has by then for damage, and refuse to go on without its dirty chunks.
#[test]
fn what_a_reclaim_has_logged_is_durable_before_its_blocks_are_free() {
    for seed in 0..20 {
        let plan = FaultPlan {
            volatile: true,
            ..FaultPlan::default()
        };
        let medium = Arc::new(FaultyMedium::new(1 << 20, seed, plan));
        let options = Options {
            write_back: true,
            durability: Durability::Power,
            ..options()
        };
        let rig = Rig::try_open(FaultyDevice::new(Arc::clone(&medium)), &options).unwrap();
        let mut fills = (0..1_000).map(|next| next..next + 1);
        while rig.store.counts().reclaimed_blocks == 0 {
            fill_and_work(&rig, fills.next().expect("a reclaim by then"), |_| true);
        }
        let geometry = Geometry::plan(1 << 20, options.block_bytes).unwrap();
        let log_bytes = (geometry.block_offset(0) - geometry.log_offset) as usize;
        let log = |device: &FaultyDevice| {
            let read = device.read(geometry.log_offset, log_bytes);
            let log = Executor::new().block_on(read, park(device)).unwrap().unwrap();
            log.bytes(0, log_bytes).unwrap().to_vec()
        };
        let before = log(&rig.device);
        drop(rig);
        medium.cut_power();
        medium.restart();
        assert!(log(&FaultyDevice::new(medium)) == before, "seed {seed}");
    }
}

/// Lets reclaims keep nothing.
struct KeepsNothing;

impl BudgetOwner for KeepsNothing {
    fn resume(&self, _: BudgetLevel, _: Option<u64>) {}

    fn left(&self, _: u64) -> BudgetLevel {
        BudgetLevel::default()
    }

    fn may_keep(&self, _: u64) -> bool {
        false
    }
}

/// A victim may have the last durable content of a dirty chunk that was written since, and is not flushed.
#[test]
fn what_took_the_place_of_a_victims_content_is_durable_before_the_victim_is_free() {
    let medium = Arc::new(FaultyMedium::new(1 << 20, 3, FaultPlan::default()));
    let options = Options {
        write_back: true,
        ..options()
    };
    let open = || {
        let device = FaultyDevice::new(Arc::clone(&medium));
        Rig::try_open_with(device, &options, Some(Arc::new(KeepsNothing))).unwrap()
    };
    let write = |rig: &Rig, value| {
        let mut guard = rig.store.begin_write_back(0..1);
        let filled = rig.run(guard.fill(&rig.device, 0, 0, content(value).into()));
        assert_eq!(filled, Filled::Stored);
    };
    let mut rig = open();
    write(&rig, 1);
    let work = || {
        rig.kick();
        rig.device.turn(true).map(drop)
    };
    let flushed = rig.executor.block_on(rig.store.persist(&rig.device), work);
    flushed.unwrap().unwrap();
    // Its block is the first that is reclaimed. Right before that it is written again.
    for next in 0.. {
        let ticket = rig.store.begin_fill(100 + next % 800);
        rig.run((rig.store).fill(&rig.device, ticket, 0, content(100 + next).into()));
        let _ = rig.device.turn(true);
        rig.run(pumice_blocks::give_turn());
        let Some(work) = rig.store.take_work() else {
            continue;
        };
        let is_reclaim = matches!(work.task(), Task::Own(_));
        if is_reclaim {
            write(&rig, 2);
        }
        let (store, device) = (Arc::clone(&rig.store), rig.device.clone());
        let work = async move { store.perform(&device, NOW, work).await };
        rig.executor.spawner().spawn(Box::pin(work));
        if is_reclaim {
            break;
        }
    }
    let mut turns = 0..1_000;
    while rig.store.counts().reclaimed_blocks == 0 {
        turns.next().expect("it ends");
        rig.turn();
    }
    medium.crash();
    drop(rig);
    medium.restart();
    assert_eq!(open().get(0), Some(2));
}
