//! One connection: its requests that wait for a reply, and a reply that has not come whole.

use crate::versions::Ticket;
use std::collections::VecDeque;

/// Not yet sent.
pub const UNSTAMPED: u64 = u64::MAX;

/// What a request is, and so which replies fit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `get` of one key.
    Get,
    /// `get` of one key; a miss is followed by a set.
    GetOrFill,
    /// `set`.
    Set,
    /// `set` of a new key.
    Insert,
    /// `delete`.
    Delete,
    /// `gets`; a hit is followed by a `cas`.
    Gets,
    /// `cas`.
    Cas,
    /// `get` of the connection's next scan keys.
    Scan,
}

/// A request that waits for its reply.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// The key; of a scan its first.
    pub key: u64,
    /// When it was sent, or was to be sent: nanoseconds of the run's clock.
    pub began: u64,
    /// Of a write its version; of a read the floor of its key, as the base.
    pub ticket: Ticket,
    /// Bytes of the value, should one be written; of a scan the keys that are left.
    pub size: u32,
    /// What it is.
    pub command: Command,
    /// Whether a value has come.
    pub is_hit: bool,
}

/// One connection.
#[derive(Debug, Default)]
pub struct Connection {
    /// Requests in the order of their replies.
    pub pending: VecDeque<Pending>,
    /// How many of them, at the end, are not stamped yet.
    pub unstamped: usize,
    /// Keys of the scans under way with their floors, in the order asked for.
    pub scans: VecDeque<(u64, u32)>,
    /// The number that the last `VALUE` of a `gets` carried.
    pub cas: u64,
    /// The start of a reply whose end has not come.
    pub carry: Vec<u8>,
    /// With fewer bytes than this `carry` is not a whole reply.
    pub carry_need: usize,
    /// Since when the reply that is due has been waited for.
    pub waiting_since: u64,
    /// Whether it can be used.
    pub is_up: bool,
    /// Whether it has requests that were not handed to the kernel.
    pub is_dirty: bool,
    /// Whether it is among those that can take requests.
    pub is_ready: bool,
    /// Whether why it was closed has been counted.
    pub is_blamed: bool,
}

impl Connection {
    /// Stamps requests that are about to be sent.
    pub fn stamp(&mut self, now: u64) {
        let all = self.pending.len();
        if self.unstamped == all {
            self.waiting_since = now;
        }
        for request in self.pending.range_mut(all - self.unstamped.min(all)..) {
            if request.began == UNSTAMPED {
                request.began = now;
            }
        }
        self.unstamped = 0;
    }

    /// Forgets everything under way; returns how many requests have no reply.
    pub fn reset(&mut self) -> usize {
        let lost = self.pending.len();
        self.pending.clear();
        self.scans.clear();
        self.carry.clear();
        (self.carry_need, self.unstamped) = (0, 0);
        (self.is_up, self.is_blamed) = (false, false);
        lost
    }
}
