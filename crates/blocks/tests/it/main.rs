//! A small store on blocks, without objects, layouts or an index, under everything that `pumice-testkit` has; and what a start finds.

mod golden;
mod opening;
mod promises;
mod runs;
mod toy;

/// Holds copies: where it cannot go on with them it starts empty.
type Copies = toy::rig::ToyStore<false, false>;
/// Holds the only copy: where it cannot go on it refuses.
type OnlyCopy = toy::rig::ToyStore<true, false>;
/// Copies that survive a power cut.
type Durable = toy::rig::ToyStore<false, true>;
