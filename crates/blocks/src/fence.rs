//! What is known of a device: which reads and writes of it failed, and how far its fence is.

use crate::geometry::Geometry;
use locks::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

/// Blocks in a row in which a read failed, or in which a write failed, before the device is fenced.
pub const IN_A_ROW_MAX: u32 = 8;

/// How far it is with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Stage {
    Works,
    /// It was just fenced.
    Out,
    /// Its superblocks are being written.
    Settling,
    /// They could not be written.
    Unremembered,
    Remembered,
}

/// Reads, or writes.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// Whether the last one failed.
    has_failed: AtomicBool,
    /// Blocks in which an operation failed since the last success, without doubles.
    blocks: Mutex<Vec<u32>>,
}

impl Way {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            has_failed: AtomicBool::new(false),
            blocks: Mutex::default(),
        }
    }

    /// One succeeded.
    pub(crate) fn succeeded(&self) {
        // Nearly always there is nothing to forget.
        if self.has_failed.load(Ordering::Relaxed) {
            let mut blocks = self.blocks.lock();
            blocks.clear();
            self.has_failed.store(false, Ordering::Relaxed);
        }
    }

    /// One failed in `block`; whether that makes too many blocks.
    pub(crate) fn failed(&self, block: u32) -> bool {
        let mut blocks = self.blocks.lock();
        self.has_failed.store(true, Ordering::Relaxed);
        if blocks.len() < IN_A_ROW_MAX as usize && !blocks.contains(&block) {
            blocks.push(block);
        }
        blocks.len() >= IN_A_ROW_MAX as usize
    }
}

/// What is known of a device, of all its handles together.
pub(crate) struct Health {
    pub(crate) geometry: Geometry,
    pub(crate) stage: AtomicU8,
    pub(crate) reads: Way,
    pub(crate) writes: Way,
    /// Whether the work that follows a fence is due.
    pub(crate) is_due: AtomicBool,
    /// Whether everything that leads to it was dropped.
    pub(crate) is_given_up: AtomicBool,
    pub(crate) reason: Mutex<String>,
    /// Deadline for the superblocks of a fenced device; 0 = not known yet.
    pub(crate) settle_until: AtomicU32,
    /// When they are tried again; where the device did not answer.
    pub(crate) retry: Mutex<Option<Retry>>,
}

/// The next try to write the superblocks of a fenced device, which may answer again.
pub(crate) struct Retry {
    /// Time in seconds; 0 = not known yet.
    at: u32,
    /// Deadline of the last try.
    until: u32,
    /// Seconds to it, from the try before. Twice as many each time: a try that is not answered either stays under way in the system.
    pause: u32,
}

impl Retry {
    /// Bounds of the pause.
    const PAUSE_SECS: [u32; 2] = [30, 3_600];

    pub(crate) fn new() -> Self {
        let [pause, _] = Self::PAUSE_SECS;
        Self {
            at: 0,
            until: 0,
            pause,
        }
    }

    /// Whether a try is under way.
    pub(crate) fn is_under_way(&self, now: u32) -> bool {
        now < self.until
    }

    /// Whether it is due; then it has `secs`, and the next is planned.
    pub(crate) fn begin(&mut self, now: u32, secs: u32) -> bool {
        let is_due = self.at != 0 && now >= self.at;
        if is_due {
            self.until = now.saturating_add(secs);
            self.pause = (2 * self.pause).min(Self::PAUSE_SECS[1]);
        }
        if is_due || self.at == 0 {
            self.at = now.saturating_add(self.pause);
        }
        is_due
    }
}

impl Health {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            stage: AtomicU8::new(Stage::Works as u8),
            reads: Way::new("reads of"),
            writes: Way::new("writes of"),
            is_due: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            reason: Mutex::default(),
            settle_until: AtomicU32::new(0),
            retry: Mutex::new(None),
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Works,
            1 => Stage::Out,
            2 => Stage::Settling,
            3 => Stage::Unremembered,
            _ => Stage::Remembered,
        }
    }

    pub(crate) fn is_out(&self) -> bool {
        self.stage() != Stage::Works
    }

    /// Whether everything that leads to a fenced device was dropped.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }

    /// Whether the work that follows a fence is due.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }

    /// Somebody has to see to it.
    pub(crate) fn set_due(&self) {
        self.is_due.store(true, Ordering::Release);
    }
}
