//! What operations a phase is made of.

use crate::error::LoadError;
use crate::keys::Distinct;
use crate::mix::Action;
use crate::workload::{Draws, Operation, Workload};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Keys of a preload that a thread takes at once.
const CHUNK_KEYS: u64 = 256;

/// Where operations come from.
pub enum Feed {
    /// Nothing.
    Empty,
    /// A set of every key, shared among threads.
    Preload {
        /// The keys.
        keys: Arc<Distinct>,
        /// The first that no thread has taken.
        next: Arc<AtomicU64>,
        /// This thread's share at the moment.
        chunk: Range<u64>,
        /// For the sizes.
        workload: Arc<Workload>,
    },
    /// Draws from the workload, without end.
    Draws(Draws),
}

impl Feed {
    /// This thread's part of a preload.
    pub fn preload(keys: Arc<Distinct>, next: Arc<AtomicU64>, workload: Arc<Workload>) -> Self {
        Feed::Preload {
            keys,
            next,
            chunk: 0..0,
            workload,
        }
    }

    /// The next operation, or `None` at the end.
    #[inline]
    pub fn next(&mut self) -> Result<Option<Operation>, LoadError> {
        match self {
            Feed::Empty => Ok(None),
            Feed::Draws(draws) => draws.next().map(Some),
            Feed::Preload {
                keys,
                next,
                chunk,
                workload,
            } => {
                if chunk.is_empty() {
                    let first = next.fetch_add(CHUNK_KEYS, Relaxed).min(keys.count());
                    *chunk = first..(first + CHUNK_KEYS).min(keys.count());
                }
                Ok(chunk.next().map(|at| {
                    let (key, recorded) = keys.get(at);
                    Operation {
                        action: Action::Set,
                        key,
                        size: workload.sizes.of(key, recorded),
                    }
                }))
            }
        }
    }

    /// The keys of a scan.
    pub fn scan(&mut self, key: u64, keys: &mut Vec<u64>) -> Result<(), LoadError> {
        match self {
            Feed::Draws(draws) => draws.scan(key, keys),
            Feed::Empty | Feed::Preload { .. } => {
                keys.clear();
                keys.push(key);
                Ok(())
            }
        }
    }
}
