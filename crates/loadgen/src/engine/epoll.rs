//! Sockets through epoll: where io_uring is not to be had.

use super::{Sink, TICK, Transport, Wait};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::time::Timespec;
use std::io;
use std::time::Duration;

/// Sockets and what they have yet to send.
pub struct EpollTransport {
    epoll: OwnedFd,
    slots: Vec<Slot>,
    events: Vec<Event>,
    buffer: Vec<u8>,
    /// Connections that failed on sending or were ended by us, and are to be reported.
    ended: Vec<(usize, Option<io::Error>)>,
}

#[derive(Default)]
struct Slot {
    socket: Option<OwnedFd>,
    out: Vec<u8>,
    sent: usize,
    waits_for_room: bool,
}

impl EpollTransport {
    /// Room for `connections`.
    pub fn new(connections: usize, receive_bytes: usize) -> io::Result<Self> {
        Ok(EpollTransport {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            slots: (0..connections).map(|_| Slot::default()).collect(),
            events: Vec::with_capacity(connections.max(1)),
            buffer: vec![0; receive_bytes.max(64 << 10)],
            ended: Vec::new(),
        })
    }

    /// Lets go of a socket, to be reported.
    fn end(&mut self, conn: usize, error: Option<io::Error>) {
        let slot = &mut self.slots[conn];
        if slot.socket.take().is_some() {
            // The kernel forgets a socket that is closed.
            slot.out.clear();
            (slot.sent, slot.waits_for_room) = (0, false);
            self.ended.push((conn, error));
        }
    }
}

impl Transport for EpollTransport {
    fn open(&mut self, conn: usize, socket: OwnedFd) -> io::Result<()> {
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

    fn close(&mut self, conn: usize) {
        self.end(conn, None);
    }

    fn out(&mut self, conn: usize) -> &mut Vec<u8> {
        &mut self.slots[conn].out
    }

    fn flush(&mut self, conn: usize) {
        let slot = &mut self.slots[conn];
        let Some(socket) = &slot.socket else { return };
        let mut error = None;
        while slot.sent < slot.out.len() {
            match send(socket, &slot.out[slot.sent..], SendFlags::NOSIGNAL) {
                Ok(sent) => slot.sent += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => {
                    error = Some(errno);
                    break;
                }
            }
        }
        let is_all = slot.sent == slot.out.len();
        if is_all {
            slot.out.clear();
            slot.sent = 0;
        }
        if error.is_none() && slot.waits_for_room == is_all {
            slot.waits_for_room = !is_all;
            let flags = if is_all {
                EventFlags::IN
            } else {
                EventFlags::IN | EventFlags::OUT
            };
            error = epoll::modify(&self.epoll, socket, EventData::new_u64(conn as u64), flags).err();
        }
        if let Some(errno) = error {
            self.end(conn, Some(errno.into()));
        }
    }

    fn turn(&mut self, wait: Wait, sink: &mut impl Sink) -> io::Result<bool> {
        let wait = match wait {
            _ if !self.ended.is_empty() => Duration::ZERO,
            Wait::Tick => TICK,
            Wait::For(wait) => wait,
            Wait::Poll => Duration::ZERO,
        };
        let timeout = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        self.events.clear();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            Some(&timeout),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        sink.woke();
        let events = std::mem::take(&mut self.events);
        for event in &events {
            let (data, flags) = (event.data, event.flags);
            let conn = data.u64() as usize;
            if flags.contains(EventFlags::OUT) {
                self.flush(conn);
            }
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                let slot = &mut self.slots[conn];
                let Some(socket) = &slot.socket else { continue };
                match recv(socket, &mut self.buffer[..], RecvFlags::empty()) {
                    Ok((_, 0)) => self.end(conn, None),
                    Ok((_, len)) => {
                        if !sink.data(conn, &self.buffer[..len], &mut slot.out) {
                            self.end(conn, None);
                        }
                    }
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(errno) => self.end(conn, Some(errno.into())),
                }
            }
        }
        let mut came = !events.is_empty();
        self.events = events;
        for (conn, error) in self.ended.drain(..) {
            came = true;
            sink.closed(conn, error);
        }
        Ok(came)
    }
}
