//! Fingerprints and compression of contents, here or on another thread.

use super::ChunkStore;
use crate::content::{Coding, Fingerprint, compress};
use bytes::Bytes;
use futures_channel::oneshot;
use pumice_blocks::give_turn;
use pumice_memory::Buffer;
use pumice_record::codec::checksum;
use pumice_world::Offload;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

impl<B: Buffer> ChunkStore<B> {
    /// From now on contents are computed there if that pays. Until then all is computed on the caller's thread.
    pub fn offload_to(&mut self, offload: Arc<dyn Offload>) {
        self.offload = Some(offload);
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
        let (bytes, maps, cache_id) = (bytes.clone(), Arc::clone(&self.maps), self.base.cache_id);
        offload.run(Box::new(move || {
            let fingerprint = Fingerprint::of(start, &bytes);
            let is_known = maps.lock().fp.candidates(fingerprint.hash()).next().is_some();
            let sent = (!is_known).then(|| Sent::new(cache_id, &bytes));
            // Nobody waits for it if the fill was dropped.
            let _ = sender.send((fingerprint, sent));
        }));
        receiver.await.expect("every job is run to its end")
    }
}
