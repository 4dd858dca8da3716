//! A store of blocks whose sectors say what they are, over a tier, and a model that knows what each read may find. Operations of both
//! devices are under way at any time and end in any order; they fail, hang, lie, and everything crashes.

use super::format::UPPER_DATA_OFFSET;
use super::{Division, FAILURES_MAX, Start, Tier, TierCounts, Tiered};
use crate::Objective;
use locks::Mutex;
use pumice_device::{
    AlignedBuf, Buffer, Device, MemDevice, MemMedium, Profile, SECTOR_BYTES, Throttle, ThrottledDevice,
    Timeline, VirtualTime,
};
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::{Executor, LocalSpawner, Random, Spawner};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

const SECTOR: u64 = SECTOR_BYTES as u64;
const BLOCKS: u32 = 12;
const PLACES: u32 = 4;
const BLOCK_SECTORS: u32 = 4;
const DIVISION: Division = Division {
    offset: 3 * SECTOR,
    block_bytes: BLOCK_SECTORS as u64 * SECTOR,
    blocks: BLOCKS,
};

type Handle = Tiered<FaultyDevice, FaultyDevice>;

/// What a sector is: block, generation of the block, number in the block.
type Sector = (u32, u64, u32);

fn fill((block, generation, number): Sector) -> Vec<u8> {
    let mut random = Random(u64::from(block) << 40 ^ generation << 8 ^ u64::from(number));
    let mut bytes = Vec::with_capacity(SECTOR_BYTES);
    bytes.extend_from_slice(&block.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&generation.to_le_bytes());
    while bytes.len() < SECTOR_BYTES {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes
}

/// What a sector says it is, if it is whole.
fn sector(bytes: &[u8]) -> Option<Sector> {
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let generation = u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    let found = (word(0)?, generation, word(4)?);
    (fill(found) == bytes).then_some(found)
}

/// Whole sectors, one behind the other.
fn buffer_of(block: u32, generation: u64, sectors: std::ops::Range<u32>) -> Arc<AlignedBuf> {
    let bytes: Vec<u8> = sectors
        .flat_map(|number| fill((block, generation, number)))
        .collect();
    let mut buffer = AlignedBuf::with_len(bytes.len());
    buffer.as_mut_slice().copy_from_slice(&bytes);
    Arc::new(buffer)
}

/// A first start, of the only store.
fn first_start(catalog: super::Catalog) -> Start {
    Start {
        owner: 1,
        makes: true,
        catalog,
    }
}

/// A catalog that takes each whole sector for its block's.
fn trusting() -> super::Catalog {
    Box::new(|bytes| Some(sector(bytes)?.0))
}

fn memory(bytes: u64) -> MemDevice {
    MemDevice::new(Arc::new(MemMedium::new(bytes)))
}

/// Lets everything else run once.
async fn give_turn() {
    let mut is_first = true;
    poll_fn(|context| {
        if std::mem::take(&mut is_first) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

/// What the store knows: the generation of each block that is whole.
type Whole = Arc<Mutex<Vec<Option<u64>>>>;

#[derive(Clone)]
struct Store {
    device: Handle,
    whole: Whole,
    busy: Rc<RefCell<Vec<bool>>>,
    generations: Rc<Cell<u64>>,
    wrong: Rc<RefCell<Vec<String>>>,
    /// Reads accept any whole sector, so that a wrong one shows.
    trusts: bool,
    /// Writes pass by the tier.
    plants: Option<FaultyDevice>,
    /// Blocks are written in place, and known as what they were until that is done.
    overwrites: bool,
}

impl Store {
    fn catalog(&self) -> super::Catalog {
        let whole = Arc::clone(&self.whole);
        Box::new(move |bytes| {
            let (block, generation, number) = sector(bytes)?;
            let is_it =
                number == BLOCK_SECTORS - 1 && whole.lock().get(block as usize) == Some(&Some(generation));
            is_it.then_some(block)
        })
    }

    async fn put(&self, block: u32, generation: u64, sectors: std::ops::Range<u32>) -> bool {
        let offset = DIVISION.block_offset(block) + u64::from(sectors.start) * SECTOR;
        let buffer = buffer_of(block, generation, sectors);
        let range = 0..buffer.len();
        match &self.plants {
            None => self.device.write(offset, buffer, range).await.is_ok(),
            Some(lower) => lower.write(offset, buffer, range).await.is_ok(),
        }
    }

    /// Another generation of a block, written in one piece or two.
    async fn write(self, block: u32, discards: bool, first: u32) {
        if !self.overwrites {
            self.whole.lock()[block as usize] = None;
        }
        if discards && self.plants.is_none() && !self.overwrites {
            self.device
                .discard(DIVISION.block_offset(block), DIVISION.block_bytes);
        }
        let generation = self.generations.get() + 1;
        self.generations.set(generation);
        let mut is_written = true;
        if first > 0 {
            is_written = self.put(block, generation, 0..first).await;
            give_turn().await;
        }
        is_written = is_written && self.put(block, generation, first..BLOCK_SECTORS).await;
        if is_written {
            self.whole.lock()[block as usize] = Some(generation);
        }
        self.busy.borrow_mut()[block as usize] = false;
    }

    /// The generation of a block that is whole and not being written.
    fn generation(&self, block: u32) -> Option<u64> {
        let is_busy = self.busy.borrow()[block as usize];
        self.whole.lock()[block as usize].filter(|_| !is_busy)
    }

    async fn read(self, block: u32, number: u32) {
        let Some(generation) = self.generation(block) else {
            return;
        };
        let offset = DIVISION.block_offset(block) + u64::from(number) * SECTOR;
        let trusts = self.trusts;
        let check = move |bytes: AlignedBuf| {
            let found = sector(bytes.as_slice())?;
            (trusts || found == (block, generation, number)).then_some(found)
        };
        let copy = self.device.read_copy(offset, SECTOR_BYTES, check).await;
        let found = match copy {
            Some(found) => Some(found),
            None => {
                let read = self.device.read(offset, SECTOR_BYTES).await;
                read.ok().and_then(|bytes| sector(bytes.as_slice()))
            }
        };
        if self.generation(block) == Some(generation) && found != Some((block, generation, number)) {
            let what =
                format!("block {block}, generation {generation}, sector {number}: {found:?}, copy {copy:?}");
            self.wrong.borrow_mut().push(what);
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Run {
    seed: u64,
    plants: bool,
    /// The upper device lies: bits flip, writes get lost or go elsewhere.
    lies: bool,
    /// The upper device fails.
    fails: bool,
    /// It is replaced by what it was before, now and then, and has the end of a block that is none of the tier's.
    goes_back: bool,
    overwrites: bool,
}

fn upper_plan(run: &Run, random: &mut Random) -> FaultPlan {
    let some = |is: bool, p: f64| if is { p } else { 0.0 };
    FaultPlan {
        delay: true,
        slow: 0.1,
        read_error: some(run.fails, 0.05),
        write_error: some(run.fails, 0.05),
        hang: some(run.fails, 0.0005),
        dies_at: (run.fails && random.below(3) == 0).then(|| 1 + random.below(600)),
        bit_rot: some(run.lies, 0.02),
        lost_write: some(run.lies, 0.05),
        misdirected_write: some(run.lies, 0.05),
        ..FaultPlan::default()
    }
}

/// Runs it; returns what was wrong, and what the tiers counted.
fn run(run: Run) -> (Vec<String>, TierCounts) {
    let mut random = Random(run.seed);
    let plan = FaultPlan {
        delay: true,
        slow: 0.1,
        ..FaultPlan::default()
    };
    let lower = Arc::new(FaultyMedium::new(
        DIVISION.block_offset(BLOCKS),
        random.next_u64(),
        plan,
    ));
    let upper_bytes = UPPER_DATA_OFFSET + u64::from(PLACES) * DIVISION.block_bytes;
    let upper = Arc::new(FaultyMedium::new(
        upper_bytes,
        random.next_u64(),
        FaultPlan::default(),
    ));
    let mut generations_of_all = vec![None; BLOCKS as usize];
    // The store has a block beyond those that may be copied.
    generations_of_all.push(Some(0));
    let whole: Whole = Arc::new(Mutex::new(generations_of_all));
    let generations = Rc::new(Cell::new(0));
    let wrong = Rc::default();
    let mut counts = TierCounts::default();
    let mut former: Option<Vec<u8>> = None;
    for start in 0..6 {
        let executor = Executor::new();
        let spawner: Rc<LocalSpawner> = Rc::new(executor.spawner());
        let (below, above) = (
            FaultyDevice::new(Arc::clone(&lower)),
            FaultyDevice::new(Arc::clone(&upper)),
        );
        upper.set_plan(FaultPlan::default());
        let mut image = vec![0; usize::try_from(upper_bytes).unwrap()];
        above.read_log(0, &mut image).unwrap();
        if run.goes_back && random.below(2) == 0 {
            let image = former.as_ref().unwrap_or(&image);
            above.append_log(0, image).unwrap();
            let place = random.below(PLACES.into()) + 1;
            let last = UPPER_DATA_OFFSET + place * DIVISION.block_bytes - SECTOR;
            let beyond = fill((BLOCKS, 0, BLOCK_SECTORS - 1));
            above.append_log(last, &beyond).unwrap();
        }
        if start == 0 || random.below(2) == 0 {
            former = Some(image);
        }
        upper.set_plan(upper_plan(&run, &mut random));
        let (load_admit, data_admit) = match run.plants {
            true => (1.0, true),
            false => (0.7 + random.next_f64() / 2.0, random.below(6) > 0),
        };
        let tier = Tier::held(DIVISION, upper_bytes, load_admit, data_admit);
        let device = Tiered::new(
            below.clone(),
            above.clone(),
            Arc::clone(&tier),
            Rc::<LocalSpawner>::clone(&spawner),
        );
        let store = Store {
            device: device.clone(),
            whole: Arc::clone(&whole),
            busy: Rc::new(RefCell::new(vec![false; BLOCKS as usize])),
            generations: Rc::clone(&generations),
            wrong: Rc::clone(&wrong),
            trusts: !run.lies,
            plants: run.plants.then(|| below.clone()),
            overwrites: run.overwrites,
        };
        let begin = Start {
            owner: 1,
            makes: start == 0,
            catalog: store.catalog(),
        };
        let starting = device.clone();
        spawner.spawn(Box::pin(async move { starting.start(begin).await }));
        let steps = 400 + random.below(6_000);
        let steps = async {
            for _ in 0..steps {
                // Few blocks are read most, and which they are changes.
                let spread = 1 + random.below(u64::from(BLOCKS));
                let block = (random.below(spread) + generations.get() / 16) as u32 % BLOCKS;
                match random.below(60) {
                    0 if !store.busy.borrow()[block as usize] => {
                        store.busy.borrow_mut()[block as usize] = true;
                        let (discards, first) =
                            (random.below(2) == 0, random.below(BLOCK_SECTORS.into()) as u32);
                        spawner.spawn(Box::pin(store.clone().write(block, discards, first)));
                    }
                    1 if run.fails => drop(device.tick(30)),
                    2 => {
                        // A reader that gives up.
                        let read = device.read_copy(DIVISION.block_offset(block), SECTOR_BYTES, |_| Some(()));
                        drop(read);
                    }
                    3..20 => {
                        let number = random.below(BLOCK_SECTORS.into()) as u32;
                        spawner.spawn(Box::pin(store.clone().read(block, number)));
                    }
                    20..34 => drop(below.turn(false)),
                    34..48 => drop(above.turn(false)),
                    _ => {}
                }
                give_turn().await;
            }
        };
        let done: Result<(), Infallible> = executor.block_on(steps, || Ok(()));
        let Ok(()) = done;
        assert!(tier.table.copies() <= u64::from(PLACES));
        let written = tier.earned_bytes.load(std::sync::atomic::Ordering::Relaxed);
        assert!(
            tier.counts().copied_bytes <= written,
            "more is copied than was written"
        );
        counts += tier.counts();
        for (generation, is_busy) in whole.lock().iter_mut().zip(&*store.busy.borrow()) {
            *generation = generation.filter(|_| !is_busy);
        }
        // kill -9: what is under way is torn, what is done stays.
        lower.crash();
        upper.crash();
        drop(executor);
        lower.restart();
        upper.restart();
    }
    (wrong.take(), counts)
}

/// 24 runs that differ from others in what `with` sets; none shows anything wrong.
fn runs(with: impl Fn(&mut Run)) -> TierCounts {
    let mut sum = TierCounts::default();
    for seed in 0..24 {
        let mut each = Run::default();
        with(&mut each);
        let (wrong, counts) = run(Run { seed, ..each });
        assert_eq!(wrong, Vec::<String>::new(), "seed {seed}");
        sum += counts;
    }
    sum
}

#[test]
fn no_interleaving_of_writes_copies_reads_and_crashes_shows_a_stale_copy() {
    let counts = runs(|run| run.goes_back = true);
    assert!(counts.copy_reads > 10_000, "{counts:?}");
    for count in [
        counts.copied_blocks,
        counts.void_copies,
        counts.adopted_copies,
        counts.replaced_copies,
        counts.abandoned_copies,
        counts.redirected_reads,
    ] {
        assert!(count > 20, "{counts:?}");
    }
    assert_eq!((counts.made_good, counts.errors), (0, 0), "{counts:?}");
}

#[test]
fn a_block_that_is_known_while_it_is_written_is_not_copied() {
    let counts = runs(|run| run.overwrites = true);
    assert!(
        counts.copy_reads > 10_000 && counts.copied_blocks > 20,
        "{counts:?}"
    );
}

#[test]
fn errors_and_silence_of_the_upper_device_are_made_good() {
    let counts = runs(|run| (run.fails, run.goes_back) = (true, true));
    assert!(
        counts.copy_reads > 1_000 && counts.made_good > 100 && counts.errors > 100,
        "{counts:?}"
    );
}

#[test]
fn what_fails_its_check_is_read_below() {
    let counts = runs(|run| (run.lies, run.fails, run.goes_back) = (true, true, true));
    assert!(
        counts.copy_reads > 1_000 && counts.wrong_copies > 100,
        "{counts:?}"
    );
}

#[test]
fn a_planted_stale_copy_is_caught() {
    let planted = Run {
        plants: true,
        ..Run::default()
    };
    let is_caught = |seed: &u64| {
        !run(Run {
            seed: *seed,
            ..planted
        })
        .0
        .is_empty()
    };
    let caught = (0..8).filter(is_caught);
    assert!(caught.count() >= 6);
}

/// The contract of a device, over a tier that has nothing to copy.
#[test]
fn it_is_a_device() {
    let medium = || Arc::new(MemMedium::new(pumice_testkit::conformance::MIN_CAPACITY));
    let (lower, upper) = (medium(), medium());
    let executor = Executor::new();
    let division = Division {
        offset: 2 * SECTOR,
        block_bytes: 64 << 10,
        blocks: 100,
    };
    let tier = Tier::held(division, upper.capacity(), 1.0, true);
    pumice_testkit::conformance::check(|| {
        Tiered::new(
            MemDevice::new(Arc::clone(&lower)),
            MemDevice::new(Arc::clone(&upper)),
            Arc::clone(&tier),
            Rc::new(executor.spawner()),
        )
    });
}

/// Requests a second of virtual time, of clients that wait for each answer, over blocks of which nearly all have a copy; and the share of
/// reads that were redirected at the end.
fn throughput(reads: u64, tier: &dyn Fn(Division, u64, Arc<VirtualTime>) -> Arc<Tier>) -> (f64, f64) {
    const CLIENTS: u64 = 40;
    let time = Arc::new(VirtualTime::new());
    let throttled = |kind: &str, bytes: u64| {
        let profile: Profile = kind.parse().unwrap();
        let throttle = Arc::new(Throttle::new(&profile, Arc::<VirtualTime>::clone(&time)));
        ThrottledDevice::new(memory(bytes), throttle)
    };
    let division = Division {
        blocks: 40,
        ..DIVISION
    };
    let upper_bytes = UPPER_DATA_OFFSET + 38 * division.block_bytes;
    let lower = throttled("nvme", division.block_offset(division.blocks));
    let upper = throttled("optane", upper_bytes);
    let tier = tier(division, upper_bytes, Arc::clone(&time));
    let executor = Executor::new();
    let device = Tiered::new(
        lower.clone(),
        upper.clone(),
        Arc::clone(&tier),
        Rc::new(executor.spawner()),
    );
    let park = || {
        // Time passes to what is due first, on either device.
        let due = lower
            .delays()
            .next_due_ns()
            .into_iter()
            .chain(upper.delays().next_due_ns())
            .min();
        time.wait_until(due.expect("something is under way"));
        device.turn(false).map(drop)
    };
    let start = async {
        for block in 0..division.blocks {
            let whole = buffer_of(block, 1, 0..BLOCK_SECTORS);
            let range = 0..whole.len();
            let write = device.write(division.block_offset(block), whole, range);
            write.await.unwrap();
        }
        device.start(first_start(trusting())).await;
    };
    executor.block_on(start, park).unwrap();
    let done = Rc::new(Cell::new(0));
    let marks: Rc<RefCell<Vec<(u64, TierCounts)>>> = Rc::default();
    for client in 0..CLIENTS {
        let (device, tier, time) = (device.clone(), Arc::clone(&tier), Arc::clone(&time));
        let (done, marks) = (Rc::clone(&done), Rc::clone(&marks));
        let mut random = Random(client);
        executor.spawner().spawn(Box::pin(async move {
            while done.get() < reads {
                let offset = division.block_offset(random.below(division.blocks.into()) as u32);
                if device.read_copy(offset, SECTOR_BYTES, Some).await.is_none() {
                    device.read(offset, SECTOR_BYTES).await.unwrap();
                }
                done.set(done.get() + 1);
                if done.get() == reads / 2 || done.get() == reads {
                    marks.borrow_mut().push((time.now_ns(), tier.counts()));
                }
            }
        }));
    }
    executor.run_until_idle(park).unwrap();
    let marks = marks.borrow();
    let ((from, before), (to, after)) = (marks[0], marks[1]);
    let redirected = (after.redirected_reads - before.redirected_reads) as f64;
    let answered = (after.copy_reads - before.copy_reads) as f64;
    let rate = (reads / 2) as f64 / ((to - from) as f64 / 1e9);
    (rate, redirected / (redirected + answered))
}

#[test]
fn reads_beyond_what_the_upper_device_can_do_go_below() {
    let held = |load: f64| {
        throughput(30_000, &move |division, bytes, _| {
            Tier::held(division, bytes, load, true)
        })
    };
    let (classic, _) = held(1.0);
    let best = (2..10)
        .map(|part| held(f64::from(part) / 10.0).0)
        .fold(0.0, f64::max);
    let (found, redirected) = throughput(120_000, &|division, bytes, time| {
        Tier::new(division, bytes, Objective::Throughput, time)
    });
    println!("{classic:.0} classic, {best:.0} at best, {found:.0} found with {redirected:.2} redirected");
    assert!(best > 1.2 * classic && found > 0.93 * best);
}

#[test]
fn nothing_is_copied_before_every_place_was_looked_at() {
    let upper_bytes = UPPER_DATA_OFFSET + u64::from(PLACES) * DIVISION.block_bytes;
    let lower = memory(DIVISION.block_offset(BLOCKS));
    let delay = FaultPlan {
        delay: true,
        ..FaultPlan::default()
    };
    let upper = FaultyDevice::new(Arc::new(FaultyMedium::new(upper_bytes, 1, delay)));
    let tier = Tier::held(DIVISION, upper_bytes, 1.0, true);
    let executor = Executor::new();
    let device = Tiered::new(
        lower,
        upper.clone(),
        Arc::clone(&tier),
        Rc::new(executor.spawner()),
    );
    let starting = device.clone();
    executor.spawner().spawn(Box::pin(async move {
        let whole = buffer_of(0, 1, 0..BLOCK_SECTORS);
        let range = 0..whole.len();
        let offset = DIVISION.block_offset(0);
        // As much as a copy of it takes, and more.
        for _ in 0..2 {
            let write = starting.write(offset, Arc::clone(&whole), range.clone());
            write.await.unwrap();
        }
        starting.start(first_start(trusting())).await;
    }));
    let read_a_lot = |turns: bool| {
        let reads = async {
            for _ in 0..1_000 {
                let read = device.read_copy(DIVISION.block_offset(0), SECTOR_BYTES, |_| Some(()));
                drop(read);
                if turns {
                    upper.turn(false).unwrap();
                }
                give_turn().await;
            }
        };
        let Ok(()) = executor.block_on(reads, || Ok::<(), Infallible>(()));
        tier.counts().copied_bytes
    };
    // The upper device has not answered what a start asks first.
    assert_eq!(read_a_lot(false), 0);
    assert!(read_a_lot(true) > 0 && tier.copies() == 1);
}

#[test]
fn a_bad_copy_is_one_failure_however_many_read_it() {
    let upper_bytes = UPPER_DATA_OFFSET + u64::from(PLACES) * DIVISION.block_bytes;
    let (lower, upper) = (memory(DIVISION.block_offset(BLOCKS)), memory(upper_bytes));
    let tier = Tier::held(DIVISION, upper_bytes, 1.0, true);
    let executor = Executor::new();
    let device = Tiered::new(lower, upper, Arc::clone(&tier), Rc::new(executor.spawner()));
    let many = 3 * FAILURES_MAX;
    let reads = async {
        // Nothing is on either device, and so a copy of it.
        device.start(first_start(Box::new(|_| Some(0)))).await;
        assert_eq!(tier.copies(), 1);
        let offset = DIVISION.block_offset(0);
        let reads: Vec<_> = (0..many)
            .map(|_| device.read_copy(offset, SECTOR_BYTES, |_| None::<()>))
            .collect();
        for read in reads {
            assert_eq!(read.await, None);
        }
    };
    let Ok(()) = executor.block_on(reads, || Ok::<(), Infallible>(()));
    let counts = tier.counts();
    assert_eq!(
        (counts.wrong_copies, counts.made_good),
        (many.into(), many.into())
    );
    assert_eq!((tier.copies(), tier.failure()), (0, None));
}

/// Threads that write, copy and read at the same time: what interleavings at whole operations do not show.
#[test]
fn threads_see_no_stale_copy() {
    const ROUNDS: u64 = 100_000;
    let upper_bytes = UPPER_DATA_OFFSET + u64::from(PLACES) * DIVISION.block_bytes;
    let lower = Arc::new(MemMedium::new(DIVISION.block_offset(BLOCKS)));
    let upper = Arc::new(MemMedium::new(upper_bytes));
    let tier = Tier::held(DIVISION, upper_bytes, 1.0, true);
    let whole: Whole = Arc::new(Mutex::new(vec![None; BLOCKS as usize]));
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let with_handle = |work: &mut dyn FnMut(&Executor, &Tiered<MemDevice, MemDevice>)| {
        let executor = Executor::new();
        let below = MemDevice::new(Arc::clone(&lower));
        let above = MemDevice::new(Arc::clone(&upper));
        let device = Tiered::new(below, above, Arc::clone(&tier), Rc::new(executor.spawner()));
        work(&executor, &device);
    };
    let run = |executor: &Executor, future: &mut dyn FnMut() -> pumice_world::Task| {
        let Ok(()) = executor.block_on(future(), || Ok::<(), Infallible>(()));
    };
    let write = |executor: &Executor, device: &Tiered<MemDevice, MemDevice>, block: u32, generation: u64| {
        whole.lock()[block as usize] = None;
        run(executor, &mut || {
            let whole = buffer_of(block, generation, 0..BLOCK_SECTORS);
            let (device, range) = (device.clone(), 0..whole.len());
            Box::pin(async move {
                let written = device.write(DIVISION.block_offset(block), whole, range).await;
                written.unwrap();
            })
        });
        whole.lock()[block as usize] = Some(generation);
    };
    with_handle(&mut |executor, device| {
        (0..BLOCKS).for_each(|block| write(executor, device, block, 1));
        let known = Arc::clone(&whole);
        run(executor, &mut || {
            let (device, known) = (device.clone(), Arc::clone(&known));
            let catalog: super::Catalog = Box::new(move |bytes| {
                let (block, generation, _) = sector(bytes)?;
                (known.lock()[block as usize] == Some(generation)).then_some(block)
            });
            Box::pin(async move { device.start(first_start(catalog)).await })
        });
    });
    let stale = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|seed| {
                let (whole, with_handle, tier) = (&whole, &with_handle, &tier);
                scope.spawn(move || {
                    let stale = RefCell::new(Vec::new());
                    with_handle(&mut |executor, device| {
                        let mut random = Random(seed);
                        let reads = async {
                            for round in 0.. {
                                // The writer may get no processor for long.
                                let is_due = round >= ROUNDS && round % 1_000 == 0;
                                if is_due && (tier.counts().void_copies > 20 || round == 50 * ROUNDS) {
                                    break;
                                }
                                let spread = 1 + random.below(BLOCKS.into());
                                let block =
                                    ((random.below(spread) + round / 2_000) % u64::from(BLOCKS)) as u32;
                                let generation = whole.lock()[block as usize];
                                let number = random.below(BLOCK_SECTORS.into()) as u32;
                                let offset = DIVISION.block_offset(block) + u64::from(number) * SECTOR;
                                let check = |bytes: AlignedBuf| Some(sector(bytes.as_slice()));
                                let copy = device.read_copy(offset, SECTOR_BYTES, check).await;
                                give_turn().await;
                                let (Some(generation), Some(found)) = (generation, copy) else {
                                    continue;
                                };
                                let is_still = whole.lock()[block as usize] == Some(generation);
                                if is_still && found != Some((block, generation, number)) {
                                    stale.borrow_mut().push((block, generation, number, found));
                                }
                            }
                        };
                        let Ok(()) = executor.block_on(reads, || Ok::<(), Infallible>(()));
                    });
                    stale.into_inner()
                })
            })
            .collect();
        let writer = scope.spawn(|| {
            with_handle(&mut |executor, device| {
                let mut random = Random(99);
                for generation in 2.. {
                    if is_done.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    write(executor, device, random.below(BLOCKS.into()) as u32, generation);
                    std::thread::yield_now();
                }
            });
        });
        let stale: Vec<_> = readers
            .into_iter()
            .flat_map(|reader| reader.join().unwrap())
            .collect();
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap();
        stale
    });
    let counts = tier.counts();
    assert_eq!(stale, Vec::new(), "{counts:?}");
    assert!(counts.copy_reads > 1_000 && counts.void_copies > 20, "{counts:?}");
}
