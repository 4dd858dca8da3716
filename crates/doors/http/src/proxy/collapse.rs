//! One request to the origin for one key, over all workers and connections: a flight. Who asks for a key that has one rides along, and hears
//! what has come of it; each rider then reads the body by itself.

use super::marks::Marks;
use crate::decide::{Decision, Found, decide};
use crate::head::Head;
use crate::key::{EngineKey, Target};
use crate::origin::OriginError;
use crate::vary::{VariantId, Variants};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use locks::Mutex;
use pumice::Follow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::{Notify, watch};

/// How long requests for a key go to the origin each for itself, after an answer that was for one alone.
const ALONE_SECS: i64 = 10;

/// What riders know of a flight.
#[derive(Clone)]
pub(super) enum Stage {
    /// The origin has not answered yet.
    Asking,
    /// This comes, and is stored.
    Coming(Arc<Coming>),
    /// What is stored is good still.
    Freshened,
    /// The answer is for the one that asked.
    Alone,
    /// It is an error with this status; what is stale may do.
    Answered(StatusCode),
    /// There is none.
    Failed(OriginError),
    /// Whoever asked is gone.
    Gone,
}

/// A response that comes and is stored.
pub(super) struct Coming {
    /// As it is stored.
    pub(super) head: Vec<u8>,
    /// Length of the body, where it is known.
    pub(super) body_bytes: Option<u64>,
    /// What it varies on, and which variant it would be in a list of its own.
    vary: Vec<HeaderName>,
    id: VariantId,
    /// Where the body comes from.
    pub(super) follow: Follow,
    /// Not all of it does.
    is_cut: AtomicBool,
}

/// Which variant a request asks for: as if there were no other.
fn id(target: &Target, names: &[HeaderName], request: &HeaderMap) -> VariantId {
    Variants::new(0).insert(target, names, request).0
}

impl Coming {
    pub(super) fn new(
        target: &Target,
        request: &HeaderMap,
        vary: Vec<HeaderName>,
        (head, body_bytes): (Vec<u8>, Option<u64>),
        follow: Follow,
    ) -> Self {
        Self {
            id: id(target, &vary, request),
            head,
            body_bytes,
            vary,
            follow,
            is_cut: AtomicBool::new(false),
        }
    }

    /// The rest of the body comes to nobody but the one that asked.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Its head; a length that is not known yet is taken for the largest.
    pub(super) fn head(&self) -> Head<'_> {
        let body_bytes = self.body_bytes.unwrap_or(u64::MAX);
        Head::decode(&self.head, body_bytes).expect("just encoded")
    }

    /// Whether it answers another request for the same URL.
    pub(super) fn fits(&self, target: &Target, method: &Method, request: &HeaderMap, now_secs: i64) -> bool {
        let decision = decide(method, request, Found::Response(&self.head()), now_secs);
        matches!(decision, Decision::Serve { .. }) && self.is_variant_of(target, request)
    }

    /// Whether it is the variant that a request asks for.
    pub(super) fn is_variant_of(&self, target: &Target, request: &HeaderMap) -> bool {
        id(target, &self.vary, request) == self.id
    }
}

/// A request to the origin.
pub(super) struct Flight {
    key: EngineKey,
    stage: watch::Sender<Stage>,
    riders: AtomicUsize,
    /// Whether it goes on where nobody rides.
    goes_on: AtomicBool,
    /// Told when the last rider leaves.
    left: Notify,
}

/// All flights that may be joined.
#[derive(Default)]
pub(crate) struct Flights {
    table: Mutex<HashMap<EngineKey, Arc<Flight>>>,
    alone: Marks,
}

/// Who waits for a flight, or reads what it brings.
pub(super) struct Rider(Arc<Flight>);

impl Rider {
    fn of(flight: &Arc<Flight>) -> Self {
        flight.riders.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(flight))
    }

    /// Waits until it is known what comes of the flight.
    pub(super) async fn stage(&self) -> Stage {
        let mut stage = self.0.stage.subscribe();
        let known = stage.wait_for(|stage| !matches!(stage, Stage::Asking)).await;
        known.map_or(Stage::Gone, |stage| stage.clone())
    }

    /// Leaves a flight that is to go on all the same.
    pub(super) fn leave(self) {
        self.0.goes_on.store(true, Ordering::Relaxed);
    }
}

impl Drop for Rider {
    fn drop(&mut self) {
        if self.0.riders.fetch_sub(1, Ordering::Release) == 1 {
            self.0.left.notify_one();
        }
    }
}

/// Who asks the origin. When it is dropped the flight is over.
pub(super) struct Pilot {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
}

impl Flights {
    /// Joins the flight of a key, or begins one. What is marked as for one alone has a flight for each.
    pub(super) fn board(self: &Arc<Self>, key: EngineKey, now_secs: i64) -> (Rider, Option<Pilot>) {
        let is_alone = self.alone.is_set(&key, now_secs);
        let mut table = self.table.lock();
        if let Some(flight) = table.get(&key).filter(|_| !is_alone) {
            return (Rider::of(flight), None);
        }
        let (rider, pilot) = self.begin(key);
        if !is_alone {
            table.insert(key, Arc::clone(&pilot.flight));
        }
        (rider, Some(pilot))
    }

    /// Begins a flight that nobody can join.
    pub(super) fn begin(self: &Arc<Self>, key: EngineKey) -> (Rider, Pilot) {
        let flight = Arc::new(Flight {
            key,
            stage: watch::Sender::new(Stage::Asking),
            riders: AtomicUsize::new(0),
            goes_on: AtomicBool::new(false),
            left: Notify::new(),
        });
        let rider = Rider::of(&flight);
        let flights = Arc::clone(self);
        (rider, Pilot { flights, flight })
    }

    /// For a while nobody joins a flight of the rider's key: what it brought was for one alone.
    pub(super) fn part_ways(&self, rider: &Rider, now_secs: i64) {
        self.alone.set(&rider.0.key, now_secs + ALONE_SECS);
    }

    /// Nobody joins the flight of a key any more: what it brings may be void.
    pub(super) fn part_with(&self, key: &EngineKey) {
        self.table.lock().remove(key);
    }
}

impl Pilot {
    /// Says what has come of it.
    pub(super) fn say(&self, stage: Stage, now_secs: i64) {
        if matches!(stage, Stage::Alone) {
            self.flights.alone.set(&self.flight.key, now_secs + ALONE_SECS);
            self.delist();
        }
        self.flight.stage.send_replace(stage);
    }

    /// Ready when nobody is interested any more, and nobody can be.
    pub(super) async fn abandoned(&self) {
        loop {
            let mut table = self.flights.table.lock();
            if !self.is_ridden() && !self.flight.goes_on.load(Ordering::Relaxed) {
                self.delist_in(&mut table);
                return;
            }
            drop(table);
            self.flight.left.notified().await;
        }
    }

    /// Waits until nobody rides any more, and lets nobody join.
    pub(super) async fn landed(&self) {
        self.delist();
        while self.is_ridden() {
            self.flight.left.notified().await;
        }
    }

    fn is_ridden(&self) -> bool {
        self.flight.riders.load(Ordering::Acquire) > 0
    }

    fn delist(&self) {
        self.delist_in(&mut self.flights.table.lock());
    }

    fn delist_in(&self, table: &mut HashMap<EngineKey, Arc<Flight>>) {
        let key = &self.flight.key;
        if table
            .get(key)
            .is_some_and(|listed| Arc::ptr_eq(listed, &self.flight))
        {
            table.remove(key);
        }
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        self.delist();
        let gone = |stage: &mut Stage| {
            let is_asking = matches!(stage, Stage::Asking);
            if is_asking {
                *stage = Stage::Gone;
            }
            is_asking
        };
        self.flight.stage.send_if_modified(gone);
    }
}
