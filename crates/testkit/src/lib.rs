//! For tests alone: crashes and faults for any kind of store.
//!
//! A new kind of store implements [`Store`], some ten short methods, and has from its first day a crash at each of its writes and
//! appends ([`crash_at_every_write`]), crashes within the starts that follow ([`crash_within_starts`]), and the faults of the simulated
//! device together, but for power cuts, hangs and death ([`swarm`]). Each compares the store with a plain map, both ways: nothing wrong is served, and what must be there is.
//!
//! The runs are deterministic: a failure names its seed and its point.

mod model;
mod runs;

pub use model::{Model, Seen};
pub use runs::{Load, Totals, crash_at_every_write, crash_within_starts, swarm};

use pumice_device::FaultyDevice;

/// A store of numbers under numbers, on a device that may fail. It runs everything to its end itself: its futures, and the device with
/// [`turn`](pumice_device::Device::turn).
pub trait Store: Sized {
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
}
