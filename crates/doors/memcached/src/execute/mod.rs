//! What each command does to the cache, and what it answers. No sockets: replies go to an [`Output`].

mod executor;
mod exptime;
mod frame;
mod get;
mod key_dump;
mod large;
mod marks;
mod meta;
mod meta_get;
mod modify;
mod output;
mod stats;
mod store;

pub(crate) use executor::Executor;
pub(crate) use get::Ask;
pub(crate) use key_dump::line as key_dump_line;
pub(crate) use meta_get::MetaChange;
pub(crate) use output::{Large, Output};

use crate::counters::Operation;
use crate::parse::{Command, Status};
use executor::{BUSY, Code, NO_MEMORY, NUMBER_BYTES_MAX, bare, echo, scratch, ttl};
use pumice_device::Device;

/// What the door answers to `version`: the level of the protocol that it speaks, as clients derive what they may use
/// from it. Nothing else, since they take it for numbers with points between.
pub(crate) const VERSION: &str = "1.6.18";

/// Whether the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    Close,
}

impl<D: Device + Clone> Executor<D> {
    /// Executes a command that never waits, or returns false.
    pub(crate) fn execute_now(
        &self,
        command: &Command<'_>,
        output: &mut Output<D::Buf>,
    ) -> Option<(Flow, Operation)> {
        match command {
            Command::Store(store) if store::is_immediate(store) => {
                self.set(store, output);
                return Some((Flow::Continue, Operation::Set));
            }
            Command::FlushAll {
                delay,
                noreply,
                frame,
            } => {
                self.counters().cmd_flush.add(1);
                let at = exptime::flush_time(*delay, self.now_secs());
                self.cache.flush_all(&self.cx, at);
                match frame {
                    Some(frame) => output.done(*frame, 0),
                    None => output.unless(*noreply, "OK\r\n"),
                }
            }
            Command::Verbosity { noreply } => output.unless(*noreply, "OK\r\n"),
            Command::Version(Some(frame)) => output.told(*frame, 0, "", VERSION.as_bytes()),
            Command::Version(None) => output.text(format!("VERSION {VERSION}\r\n")),
            Command::Stats { what, frame } => self.statistics(*what, *frame, output),
            Command::Shutdown => output.text("ERROR: shutdown not enabled\r\n"),
            Command::MetaNoop => output.text("MN\r\n"),
            Command::MetaDebug(debug) => self.meta_debug(*debug, output),
            Command::Mechanisms(frame) => match self.shared.config.auth {
                Some(_) => output.told(*frame, 0, "", b"PLAIN"),
                None => output.status(*frame, Status::Unknown),
            },
            Command::Quit(frame) => {
                if let Some(frame) = frame {
                    output.done(*frame, 0);
                }
                return Some((Flow::Close, Operation::Other));
            }
            Command::Http => {
                // As memcached does: whoever has a browser or a server send a request here is not to have its body executed.
                self.refuse_protocol("HTTP");
                return Some((Flow::Close, Operation::Other));
            }
            _ => return None,
        }
        Some((Flow::Continue, Operation::Other))
    }

    /// Executes a command that may have to read flash first. Commands that never wait, and reads that belong into a
    /// run ([`Ask`]), are executed elsewhere.
    pub(crate) async fn execute(&self, command: Command<'_>, output: &mut Output<D::Buf>) -> Operation {
        match command {
            Command::Store(store) => {
                self.store(store, output).await;
                Operation::Set
            }
            Command::TooLarge(large) => {
                self.too_large(large, output).await;
                Operation::Set
            }
            Command::Delete(delete) => {
                self.delete(delete, output).await;
                Operation::Delete
            }
            Command::MetaDelete(delete) => {
                self.meta_delete(delete, output).await;
                Operation::Delete
            }
            Command::MetaDelta(delta) => {
                self.meta_delta(delta, output).await;
                Operation::delta(delta.up)
            }
            Command::Delta(delta) => {
                self.delta(delta, output).await;
                Operation::delta(delta.up)
            }
            Command::Touch(touch) => {
                self.touch(touch, output).await;
                Operation::Touch
            }
            Command::MetaGet(get) => self.meta_get_changing(MetaChange::new(get), output).await,
            _ => Operation::Other,
        }
    }
}
