//! Replies in frames.

use super::Output;
use super::get::Found;
use crate::parse::{Frame, HEAD_BYTES, Status};
use pumice_device::Buffer;

/// The extras of a reply that has an object: its flags.
const FLAGS_BYTES: usize = 4;

impl<B: Buffer> Output<B> {
    /// Says that it is done, with the CAS unique of what was stored, if anything was; a quiet command does not want to hear it.
    pub(crate) fn done(&mut self, frame: Frame, unique: u64) {
        if !frame.quiet {
            self.text(frame.reply(Status::Done, unique, [0; 3]));
        }
    }

    /// Says why it is not done, quiet or not.
    pub(crate) fn status(&mut self, frame: Frame, status: Status) {
        let message = status.message();
        self.text(frame.reply(status, 0, [0, 0, message.len()]));
        self.text(message);
    }

    /// A reply with no more than a key and a value.
    pub(crate) fn told(&mut self, frame: Frame, unique: u64, key: &str, value: &[u8]) {
        self.text(frame.reply(Status::Done, unique, [0, key.len(), value.len()]));
        self.text(key);
        self.text(value);
    }

    /// What stands before the value of an object, of which the reply is to have `value_len` bytes.
    pub(super) fn found(&mut self, frame: Frame, key: &[u8], found: &Found, value_len: usize) {
        let key: &[u8] = if frame.with_key { key } else { b"" };
        let mut head = [0; HEAD_BYTES + FLAGS_BYTES];
        head[..HEAD_BYTES].copy_from_slice(&frame.reply(
            Status::Done,
            found.version,
            [FLAGS_BYTES, key.len(), value_len],
        ));
        head[HEAD_BYTES..].copy_from_slice(&found.flags.to_be_bytes());
        self.text(head);
        self.text(key);
    }

    /// A miss of get and gat: with the key in place of a message, if the key is wanted.
    pub(super) fn missed(&mut self, frame: Frame, key: &[u8]) {
        match frame {
            Frame { quiet: true, .. } => {}
            Frame { with_key: true, .. } => {
                self.text(frame.reply(Status::NotFound, 0, [0, key.len(), 0]));
                self.text(key);
            }
            _ => self.status(frame, Status::NotFound),
        }
    }

    /// Says why it is not done, in the words or the status of the protocol that was asked in.
    pub(super) fn failed(&mut self, frame: Option<Frame>, said: Said) {
        match frame {
            Some(frame) => self.status(frame, said.status),
            None => self.text(said.text),
        }
    }
}

/// What both protocols have for the same.
#[derive(Clone, Copy)]
pub(super) struct Said {
    pub(super) text: &'static str,
    pub(super) status: Status,
}
