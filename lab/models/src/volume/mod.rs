//! A cached volume in virtual time: what load splitting gains.
//!
//! The volume is the one that serves, over devices of the model of [`pumice_device::Profile`]. Clients wait for each answer, and ask again at
//! once: reads and writes of a chunk, by Zipf's law among those that were read once before; and a share of reads goes to so many
//! other chunks that it misses. A run lasts for some seconds of virtual time, and then counts requests.

mod backing;
mod run;

pub use run::{VolumeOptions, VolumeReport, VolumeRun, run_volume};
