//! Sockets through epoll: a turn sends what there is, waits, and takes what came.

use super::{TICK, Wait, Worker};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::time::Duration;

/// Sockets that are told of at once; the others are in the next turn.
const EVENTS_MAX: usize = 1024;

/// Sockets and what they have yet to send.
pub struct Sockets {
    epoll: OwnedFd,
    slots: Vec<Slot>,
    events: Vec<Event>,
    buffer: Vec<u8>,
    /// Connections to be reported.
    ended: Vec<(usize, Option<io::Error>)>,
}

#[derive(Default)]
struct Slot {
    socket: Option<OwnedFd>,
    out: Vec<u8>,
    /// Bytes of `out` that were sent.
    sent: usize,
    /// The socket's buffer is full.
    is_blocked: bool,
}

impl Sockets {
    /// Room for `connections`, with receives of up to `receive_bytes`.
    pub fn new(connections: usize, receive_bytes: usize) -> io::Result<Self> {
        Ok(Sockets {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            slots: (0..connections).map(|_| Slot::default()).collect(),
            events: Vec::with_capacity(connections.clamp(1, EVENTS_MAX)),
            buffer: vec![0; receive_bytes],
            ended: Vec::new(),
        })
    }

    /// Takes a connected socket, which does not block, as connection `conn`.
    pub fn open(&mut self, conn: usize, socket: OwnedFd) -> io::Result<()> {
        epoll::add(
            &self.epoll,
            &socket,
            EventData::new_u64(conn as u64),
            EventFlags::IN,
        )?;
        self.slots[conn] = Slot {
            socket: Some(socket),
            ..Slot::default()
        };
        Ok(())
    }

    /// Ends a connection. [`Worker::closed`] follows in a later turn.
    pub fn close(&mut self, conn: usize) {
        self.end(conn, None);
    }

    fn end(&mut self, conn: usize, error: Option<io::Error>) {
        if std::mem::take(&mut self.slots[conn]).socket.is_some() {
            self.ended.push((conn, error));
        }
    }

    /// Where requests of an open connection are put.
    pub fn out(&mut self, conn: usize) -> &mut Vec<u8> {
        &mut self.slots[conn].out
    }

    /// Sends what is in the buffer, now or when there is room; failures are told by [`Worker::closed`].
    pub fn flush(&mut self, conn: usize) {
        if !self.slots[conn].is_blocked
            && let Err(error) = self.send(conn)
        {
            self.end(conn, Some(error));
        }
    }

    fn send(&mut self, conn: usize) -> io::Result<()> {
        let slot = &mut self.slots[conn];
        let Some(socket) = &slot.socket else {
            return Ok(());
        };
        while slot.sent < slot.out.len() {
            match send(socket, &slot.out[slot.sent..], SendFlags::NOSIGNAL) {
                Ok(sent) => slot.sent += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let was_blocked = slot.is_blocked;
        slot.is_blocked = slot.sent < slot.out.len();
        if !slot.is_blocked {
            slot.out.clear();
            slot.sent = 0;
        }
        if was_blocked != slot.is_blocked {
            let room = if slot.is_blocked {
                EventFlags::OUT
            } else {
                EventFlags::empty()
            };
            let data = EventData::new_u64(conn as u64);
            epoll::modify(&self.epoll, socket, data, EventFlags::IN | room)?;
        }
        Ok(())
    }

    fn receive(&mut self, conn: usize, worker: &mut Worker) {
        let slot = &mut self.slots[conn];
        let Some(socket) = &slot.socket else { return };
        match recv(socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((0, _)) => self.end(conn, None),
            Ok((len, _)) => {
                if !worker.data(conn, &self.buffer[..len], &mut slot.out) {
                    self.end(conn, None);
                }
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => self.end(conn, Some(error.into())),
        }
    }

    /// Waits, and hands over what came. Whether anything did.
    pub fn turn(&mut self, wait: Wait, worker: &mut Worker) -> io::Result<bool> {
        let limit = match wait {
            _ if !self.ended.is_empty() => Duration::ZERO,
            Wait::Poll => Duration::ZERO,
            Wait::Tick => TICK,
            Wait::For(limit) => {
                // A wait of epoll has milliseconds, that of poll is exact.
                let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
                retry(|| poll(&mut fds, Some(&timespec(limit))))?;
                Duration::ZERO
            }
        };
        self.events.clear();
        let limit = timespec(limit);
        retry(|| {
            epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut self.events),
                Some(&limit),
            )
        })?;
        worker.woke();
        let came = !self.events.is_empty() || !self.ended.is_empty();
        let events = std::mem::take(&mut self.events);
        for event in &events {
            let (flags, conn) = (event.flags, event.data.u64() as usize);
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                self.receive(conn, worker);
            }
            if flags.contains(EventFlags::OUT)
                && let Err(error) = self.send(conn)
            {
                self.end(conn, Some(error));
            }
        }
        self.events = events;
        for (conn, error) in self.ended.drain(..) {
            worker.closed(conn, error);
        }
        Ok(came)
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// An interrupted wait is over.
fn retry(mut wait: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<()> {
    match wait() {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
