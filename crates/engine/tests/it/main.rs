//! The integration tests of this crate, one program: its generic code is compiled once for all of them.

mod clean_stop;
mod clock;
mod common;
mod crash;
mod crash_again;
mod faults;
mod forgotten;
mod hangs;
mod inspect;
mod inspect_fields;
mod large;
mod late_checkpoint;
mod lent_blocks;
mod list;
mod log_hole;
mod lost_checkpoint;
mod model;
mod no_room;
mod peek;
mod pinned;
mod power;
mod sizes;
mod slots;
mod swarm;
mod taken_out;
mod threads;
