//! What an index maps: the hash of a key to the place of an object.

/// The hash that stands for a key: XXH3-64, seeded per cache.
pub type KeyHash = u64;

/// Where an object's encoded bytes stand on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// Byte offset from the start of the device, a multiple of the index's unit.
    pub offset: u64,
    /// Length in bytes, padding included, a multiple of the index's unit.
    pub len: u32,
}

/// Where an object is, and what its layout wants kept with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where the bytes are.
    pub location: Location,
    /// The layout's note, as many bits as [`IndexShape`](crate::IndexShape) was given; 0 to begin with.
    pub note: u32,
}
