//! Without the feature: `--throttle` is refused, and devices are as fast as they are.

use std::io;
use std::str::FromStr;

/// No kinds of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds;

impl FromStr for Kinds {
    type Err = &'static str;

    fn from_str(_: &str) -> Result<Self, Self::Err> {
        Err("this program is built without it; build one with `cargo build --release --features throttle`")
    }
}

impl Kinds {
    /// No device has a kind.
    pub fn beside(self, _: &[&str]) -> Option<&'static str> {
        None
    }

    /// No device has a kind.
    pub fn has(self, _: &str) -> bool {
        false
    }

    /// A device is not slowed down.
    pub fn of(self, _: &str) -> Throttling {
        Throttling
    }
}

/// Devices are not slowed down.
#[derive(Clone)]
pub struct Throttling;

/// A handle on a device.
pub type Paced<D> = D;

/// A handle on a backing device.
pub type PacedBacking<K> = K;

impl Throttling {
    pub fn device<D>(&self, device: D) -> io::Result<Paced<D>> {
        Ok(device)
    }

    pub fn backing<K>(&self, backing: K) -> io::Result<PacedBacking<K>> {
        Ok(backing)
    }
}

/// There is nothing to test.
pub async fn test_all(_: &Kinds) -> io::Result<()> {
    Ok(())
}
