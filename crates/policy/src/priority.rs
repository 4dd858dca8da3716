//! The contract of policies: they give objects priorities, and keep no object themselves.
//!
//! Whoever keeps the objects (an exact queue, or a flash layout that approximates one) evicts the object of the lowest
//! priority, and tells the policy where an object stands when it is hit. After the three operations of RIPQ (FAST '15,
//! section 4.1): insert, increase, delete-min.

use std::fmt;

/// Where in the queue an object is to stand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Priority {
    /// A position in [0, 1]: the share of the bytes in the queue that the object is to be on top of, itself among them; 1 is the top.
    Relative(f64),
    /// A value on the policy's own scale, higher is better; whoever keeps the objects translates it.
    Absolute(f64),
}

impl Priority {
    /// That of a new object as long as nothing has had to go for room: a relative one is the top. Until then there is no order that
    /// would decide anything, and shares are of what has come so far: with each object that is put in at a share some others, which
    /// nobody asked for again, rise above it, and whether those are large or small ones depends on the borders between objects.
    /// Textbook SLRU fills its upper lists with new objects, too.
    pub fn while_filling(self) -> Self {
        match self {
            Priority::Relative(_) => Priority::Relative(1.0),
            Priority::Absolute(_) => self,
        }
    }

    /// The same, but where it is relative not below a position.
    pub fn at_least(self, position: f64) -> Self {
        match self {
            Priority::Relative(share) => Priority::Relative(share.max(position)),
            Priority::Absolute(_) => self,
        }
    }
}

/// What is known of an object that was hit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// Where it stands in [0, 1]: the bytes below it plus half its own place, over all bytes of the queue.
    pub position: f64,
    /// Accesses since it was inserted, that one and this hit included, counted up to [`Policy::accesses_max`].
    pub accesses: u32,
    /// Its size in bytes, never 0.
    pub size: u64,
    /// For absolute priorities: the lowest one in the queue, which never falls.
    pub lowest: f64,
}

/// Gives priorities. Without state of its own: all that changes stands in the queue, so one value serves all threads.
pub trait Policy: fmt::Debug + Send + Sync {
    /// Its name on the command line, such as `slru-3`.
    fn name(&self) -> String;

    /// Whether its priorities are absolute; else all are relative.
    fn is_absolute(&self) -> bool;

    /// The number that accesses are counted up to, from 1 (they need not be counted) to 4.
    fn accesses_max(&self) -> u32;

    /// The priority of a new object of `size` bytes; `lowest` as in [`Hit::lowest`].
    fn on_insert(&self, size: u64, lowest: f64) -> Priority;

    /// The priority that a hit gives; `None` leaves the object where it is. Nothing ever makes an object fall: a priority below
    /// the one that it has counts for nothing.
    fn on_hit(&self, hit: &Hit) -> Option<Priority>;

    /// The logical occupancy θ, in [0, 1], that RIPQ has with this policy where none is given: it saves writes, and loses few hits.
    /// What stands lower is soon to go all the same.
    fn theta(&self) -> f64 {
        1.0
    }
}
