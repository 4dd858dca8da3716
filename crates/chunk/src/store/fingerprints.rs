//! Fingerprints of contents, and the places that may hold them. Fingerprints and contents as they are stored are computed here, or on
//! another thread.

use crate::content::{Coding, Fingerprint, compress};
use crate::fp::FpIndex;
use crate::place::Place;
use bytes::Bytes;
use futures_channel::oneshot;
use locks::{Mutex, MutexGuard};
use pumice_blocks::give_turn;
use pumice_record::codec::checksum;
use pumice_world::Offload;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most candidates that are read for one content.
const CANDIDATES_MAX: usize = 4;

thread_local! {
    /// Where contents are compressed: some more bytes than a chunk has.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A content as it is stored.
pub(super) struct Coded<'a> {
    pub(super) coding: Coding,
    pub(super) stored: &'a [u8],
    /// Checksum of the stored bytes.
    pub(super) crc: u32,
}

/// The same, from another thread.
pub(super) struct Sent {
    coding: Coding,
    stored: Bytes,
    crc: u32,
}

impl Coded<'_> {
    /// Gives `then` the content as it is stored.
    pub(super) fn with<T>(cache_id: u64, bytes: &[u8], then: impl FnOnce(&Coded<'_>) -> T) -> T {
        SCRATCH.with_borrow_mut(|scratch| {
            let (coding, stored) = compress(bytes, scratch);
            let crc = checksum(cache_id, &[stored]);
            then(&Coded { coding, stored, crc })
        })
    }
}

impl Sent {
    fn new(cache_id: u64, bytes: &Bytes) -> Self {
        Coded::with(cache_id, bytes, |coded| Self {
            coding: coded.coding,
            stored: match coded.coding {
                Coding::Plain => bytes.clone(),
                Coding::Lz4 => Bytes::copy_from_slice(coded.stored),
            },
            crc: coded.crc,
        })
    }

    pub(super) fn coded(&self) -> Coded<'_> {
        Coded {
            coding: self.coding,
            stored: &self.stored,
            crc: self.crc,
        }
    }
}

/// Counts a content that is computed, until dropped.
struct Computing<'a>(&'a AtomicUsize);

impl<'a> Computing<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Computing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The side of the fingerprints: which places may hold a content.
pub(super) struct Fingerprints {
    /// Shared with computations on other threads. Its lock is acquired last.
    index: Arc<Mutex<FpIndex>>,
    offload: Option<Arc<dyn Offload>>,
    /// Contents that are computed, or are about to be.
    computing: AtomicUsize,
    cache_id: u64,
}

impl Fingerprints {
    /// Those of the contents that a start has found. All is computed on the caller's thread.
    pub(super) fn new(index: FpIndex, cache_id: u64) -> Self {
        Self {
            index: Arc::new(Mutex::new(index)),
            offload: None,
            computing: AtomicUsize::new(0),
            cache_id,
        }
    }

    /// From now on contents are computed there if that pays.
    pub(super) fn offload_to(&mut self, offload: Arc<dyn Offload>) {
        self.offload = Some(offload);
    }

    /// Places that may have a content, the newest first. Each may have a newer content by the time that it is read: the fingerprint in the
    /// header decides.
    pub(super) fn candidates(&self, fingerprint: &Fingerprint) -> Vec<Place> {
        let index = self.lock();
        let candidates = index.candidates(fingerprint.hash());
        candidates.take(CANDIDATES_MAX).collect()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, FpIndex> {
        self.index.lock()
    }

    /// The fingerprint of a content, on another thread if that pays: then it is also compressed there, unless the FP-index has a candidate.
    pub(super) async fn compute(&self, start: u32, bytes: &Bytes) -> (Fingerprint, Option<Sent>) {
        let Some(offload) = &self.offload else {
            return (Fingerprint::of(start, bytes), None);
        };
        if !offload.pays(bytes.len(), 1) {
            return (Fingerprint::of(start, bytes), None);
        }
        let computing = Computing::enter(&self.computing);
        // Tasks that are ready come to this point.
        give_turn().await;
        if !offload.pays(bytes.len(), computing.0.load(Ordering::Relaxed) - 1) {
            return (Fingerprint::of(start, bytes), None);
        }
        let (sender, receiver) = oneshot::channel();
        let (bytes, index, cache_id) = (bytes.clone(), Arc::clone(&self.index), self.cache_id);
        offload.run(Box::new(move || {
            let fingerprint = Fingerprint::of(start, &bytes);
            let is_known = index.lock().candidates(fingerprint.hash()).next().is_some();
            let sent = (!is_known).then(|| Sent::new(cache_id, &bytes));
            // Nobody waits for it if the fill was dropped.
            let _ = sender.send((fingerprint, sent));
        }));
        receiver.await.expect("every job is run to its end")
    }
}
