//! A device in memory that fails as its plan says, from one seed.
//!
//! # Fault model
//!
//! What [`FaultPlan`] can inject, and what a store on top must survive:
//!
//! | fault | what happens | what the store must do |
//! |-------|--------------|------------------------|
//! | crash at a write | the n-th write is torn: of its sectors, only a first part, only a last part or a scattered choice is new, possibly none or all. Every other write under way is torn likewise. From then on every operation fails until [`FaultyMedium::restart`] | after a restart, serve nothing wrong; a torn block is not a block |
//! | crash at a log append | the n-th append is cut at some byte | ignore the torn record; all earlier ones count |
//! | lost write | reported done, never happens: the old content stays | recognise stale content by its sequence |
//! | bit rot on read | one bit of what a read returns is wrong; the next read may be right | checksum everything; corruption is a miss |
//! | bit rot at an offset | [`FaultyMedium::rot_at`] flips one stored bit, for good | the same |
//! | read error | the read fails, by chance or always in a given range | a miss, or try elsewhere; go on |
//! | write error | the write fails, by chance or always in a given range; each of its sectors is old or new | do not count on the range until it is written again |
//! | misdirected write | reported done, and goes to another place where writes go; its own keeps the old content | recognise bytes that are not its own by number, sequence and checksum |
//! | no space | a write or an append fails with [`StorageFull`](std::io::ErrorKind::StorageFull), and nothing is written | as for other errors |
//! | append error | the append fails, by chance or always in a given range, and any first part of it may be there | do not acknowledge what the record stands for |
//! | delay | operations stay under way until [`turn`](pumice_device::Device::turn), which applies and completes some of them in a seeded order; a write whose future was dropped may not happen | assume no order between operations that overlap in time |
//! | slow operation | with delay: it stays under way while later ones are completed | wait for it alone |
//! | hang | an operation stays under way, by chance, or all from some moment on. [`tick`](pumice_device::Device::tick) of any handle counts for all handles and ends it as if its future had been dropped; what it was to do may be done when the device goes on | do not wait for it for ever; expect nothing of its outcome |
//! | death | from some operation on all fail, the write of that moment torn | go on without, acknowledge nothing that is not so |
//! | power cut | [`FaultyMedium::cut_power`]: a crash after which, of what was completed and not synced, only a choice of sectors, and of each page of appends only a first part is there: writes are lost, or seem reordered | believe nothing that was not synced |
//!
//! A crash is the death of the process: completed writes and appends survive it. Misdirected reads are not in this model.
//!
//! The same seed, plan and sequence of calls give the same faults. With several threads the calls interleave as they
//! will, and only the plan holds.

mod device;
mod medium;
mod operations;
mod plan;
mod power;
mod state;
#[cfg(test)]
mod tests;

pub use device::FaultyDevice;
pub use medium::FaultyMedium;
pub use plan::{CrashPoint, FaultCounts, FaultPlan};
