//! For tests alone: crashes and faults for any kind of store, and what any kind of device must do.
//!
//! A device runs the suite of [`conformance`]. [`FaultyDevice`] is one in memory that fails as its plan says, from one seed.
//!
//! A new kind of store implements [`Store`], a dozen short methods, and has from its first day a crash at each of its writes and
//! appends ([`crash_at_every_write`]), crashes within the starts that follow ([`crash_within_starts`]), power cuts ([`power_cuts`]), and
//! the faults of the simulated device together, but for hangs and death ([`swarm`]). Each compares the store with a plain map, both ways:
//! nothing wrong is served, and what must be there is. What its readers say of a device is compared with what was done to that
//! ([`inspect_names_damage`], and after each crash).
//!
//! A store of the only copy has [`Disk`], the contents that a client may read after an end of any kind, and [`dimensions!`], for a model that
//! draws each dimension of a use with each other.
//!
//! The runs are deterministic: a failure names its seed and its point.

pub mod conformance;
mod disk;
mod drawn;
mod faulty;
mod model;
mod plans;
mod runs;

pub use disk::{Disk, SECTOR};
pub use drawn::{Dimension, Drawn, Life, Pairs, content, draw_lives};
pub use faulty::{CrashPoint, FaultCounts, FaultPlan, FaultyDevice, FaultyMedium};
pub use model::{Model, Seen};
pub use plans::{any_faults, calm, crash_at, volatile};
pub use runs::{
    Load, Totals, crash_at_every_write, crash_within_starts, inspect_names_damage, power_cuts, swarm, swarms,
};

use std::ops::Range;

/// What the readers of a store say of a device.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// What must not be. What a crash may leave is no problem.
    pub problems: Vec<String>,
    /// Bytes that say what is on the device: after a clean stop a changed bit among them is a problem.
    pub metadata: Vec<Range<u64>>,
}

/// A store of numbers under numbers, on a device that may fail. It runs everything to its end itself: its futures, and the device with
/// [`turn`](pumice_device::Device::turn).
pub trait Store: Sized {
    /// Whether a change that was committed survives a power cut. Without that a power cut may bring what was before it back.
    const SURVIVES_POWER_CUTS: bool = false;

    /// Opens what is on a device, formats an empty one.
    ///
    /// # Errors
    /// Where the device fails while it starts.
    fn open(device: FaultyDevice) -> Result<Self, String>;

    /// Whether this start found something and had to forget all of it.
    fn has_forgotten(&self) -> bool;

    /// Stores a value; whether it is there afterwards. Where it is not, nothing is.
    fn set(&mut self, key: u64, value: u64) -> bool;

    /// Deletes a value.
    fn delete(&mut self, key: u64);

    /// Waits until all changes are durable; whether they are. Asked only where the store survives power cuts.
    fn commit(&mut self) -> bool {
        true
    }

    /// The value, if it is there.
    fn get(&mut self, key: u64) -> Option<u64>;

    /// Whether the value under a key is on the device, so that a crash leaves it there.
    fn is_on_device(&mut self, key: u64) -> bool;

    /// Lets some background work go on.
    fn turn(&mut self);

    /// Runs all background work to its end.
    fn settle(&mut self);

    /// The keys whose values were given up since this was last asked, to make room or because they could not be read.
    fn given_up(&mut self) -> Vec<u64>;

    /// Checks the store's own accounting.
    ///
    /// # Panics
    /// Where it does not agree with itself.
    fn check(&mut self);

    /// Ends it as a clean stop does.
    ///
    /// # Errors
    /// Where the device fails.
    fn close(self) -> Result<(), String>;

    /// Says what is wrong on a device, and writes nothing.
    ///
    /// # Errors
    /// Where the device has no store, or none that could be opened.
    fn inspect(device: FaultyDevice) -> Result<Inspection, String>;
}
