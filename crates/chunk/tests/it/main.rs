//! The room's tests: both indexes and the offsets against plain maps.

mod budget;
mod compute;
mod drawn;
mod fp;
mod lba;
mod model;
mod offsets;
mod store;
