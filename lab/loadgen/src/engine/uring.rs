//! Sockets through io_uring: receives stay armed and fill buffers of the kernel's choice, sends are queued, and one
//! system call a turn submits all sends and waits.

use super::receive::{GROUP, ReceiveBuffers};
use super::{TICK, Wait, Worker};
use io_uring::types::{Fixed, SubmitArgs, TimeoutFlags, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::{Shutdown, shutdown};
use std::io;
use std::mem::ManuallyDrop;

const RECEIVE: u64 = 0;
const SEND: u64 = 1;
const CLOCK: u64 = 2;
/// Larger sends may not fit the socket's buffer at once, so no turn counts on their being done when it begins to wait.
const PROMPT_BYTES: usize = 16 << 10;
/// Turns that the end waits for connections to let go of their memory.
const LAST_TURNS: usize = 1000;

/// Sockets and what they have yet to send.
pub struct UringTransport {
    // Memory that the kernel may use is given up only when it is known not to: see `drop`.
    ring: ManuallyDrop<IoUring>,
    buffers: ManuallyDrop<ReceiveBuffers>,
    slots: ManuallyDrop<Vec<Slot>>,
    /// Completions of the turn that is being worked off.
    done: Vec<cqueue::Entry>,
    /// Sends of this turn that will be done when the wait begins.
    prompt: usize,
    /// Connections to be reported.
    ended: Vec<(usize, Option<io::Error>)>,
    tick: Box<Timespec>,
}

#[derive(Default)]
struct Slot {
    socket: Option<OwnedFd>,
    out: Vec<u8>,
    /// What the kernel is sending; must stay in place until it says that it is done.
    sending: Vec<u8>,
    sent: usize,
    is_sending: bool,
    is_receiving: bool,
    is_closing: bool,
    error: Option<io::Error>,
}

fn build(entries: u32, completions: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_cqsize(completions)
        .build(entries)
}

/// Whether the kernel lets this process use io_uring, and is new enough: one that defers its work (6.1) also has
/// receives that stay armed and rings of buffers.
pub(super) fn probe() -> io::Result<()> {
    let ring = build(2, 4)?;
    let mut probe = io_uring::Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [opcode::RecvMulti::CODE, opcode::Send::CODE, opcode::Timeout::CODE];
    if !needed.iter().all(|code| probe.is_supported(*code)) || !ring.params().is_feature_nodrop() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel's io_uring is too old",
        ));
    }
    let mut buffers = ManuallyDrop::new(ReceiveBuffers::new(1, 4096));
    // SAFETY: the ring is dropped first; nothing receives.
    let registered = unsafe { buffers.register(&ring) };
    drop(ring);
    drop(ManuallyDrop::into_inner(buffers));
    registered
}

impl UringTransport {
    /// Room for `connections`, with receives of up to `receive_bytes`.
    pub fn new(connections: usize, receive_bytes: usize) -> io::Result<Self> {
        // At most one receive and one send of each are queued at a time, and the clock; a full queue is submitted.
        let entries = (connections * 2 + 2).next_power_of_two().min(4096) as u32;
        let ring = build(entries, entries * 4)?;
        // Sockets that are registered are not looked up for each request.
        ring.submitter()
            .register_files_sparse(connections.max(1) as u32)?;
        let mut buffers = ReceiveBuffers::new(connections, receive_bytes);
        // SAFETY: `drop` lets go of the buffers only when all connections have ended and the ring is gone.
        unsafe { buffers.register(&ring)? };
        let mut transport = UringTransport {
            ring: ManuallyDrop::new(ring),
            buffers: ManuallyDrop::new(buffers),
            slots: ManuallyDrop::new((0..connections).map(|_| Slot::default()).collect()),
            done: Vec::with_capacity(entries as usize * 2),
            prompt: 0,
            ended: Vec::new(),
            tick: Box::new(Timespec::from(TICK)),
        };
        transport.arm_clock()?;
        Ok(transport)
    }

    /// Queues an entry.
    ///
    /// # Safety
    /// What it points to must stay in place until it is done.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: by the caller's promise.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            retry(|| self.ring.submit())?;
        }
        Ok(())
    }

    /// A completion every now and then, so that waiting needs no time limit of its own.
    fn arm_clock(&mut self) -> io::Result<()> {
        let entry = opcode::Timeout::new(&raw const *self.tick)
            .flags(TimeoutFlags::MULTISHOT)
            .build();
        // SAFETY: the time is in a box that lives as long as the ring, and is read when the entry is submitted.
        unsafe { self.push(&entry.user_data(CLOCK)) }
    }

    fn arm_receive(&mut self, conn: usize) -> io::Result<()> {
        let slot = &mut self.slots[conn];
        slot.is_receiving = true;
        let entry = opcode::RecvMulti::new(Fixed(conn as u32), GROUP).build();
        // SAFETY: points to nothing; the buffers live as long as anything receives.
        unsafe { self.push(&entry.user_data(data(conn, RECEIVE))) }
    }

    /// Sends what is left of `sending`.
    fn send(&mut self, conn: usize) -> io::Result<()> {
        let slot = &mut self.slots[conn];
        slot.is_sending = true;
        let rest = &slot.sending[slot.sent..];
        self.prompt += usize::from(rest.len() <= PROMPT_BYTES);
        let len = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let entry = opcode::Send::new(Fixed(conn as u32), rest.as_ptr(), len)
            .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
            .build();
        // SAFETY: while `is_sending` is set nobody changes `sending`, and the slots live as long as anything sends.
        unsafe { self.push(&entry.user_data(data(conn, SEND))) }
    }

    /// Ends a connection, for this reason if it is the first. Its memory is free, and it is reported, when its
    /// receive and its send have ended.
    fn end(&mut self, conn: usize, error: Option<io::Error>) {
        let slot = &mut self.slots[conn];
        let Some(socket) = &slot.socket else { return };
        if !std::mem::replace(&mut slot.is_closing, true) {
            slot.error = error;
            // Fails where the connection is gone already, which is what is wanted.
            let _ = shutdown(socket, Shutdown::Both);
        }
        self.release(conn);
    }

    fn release(&mut self, conn: usize) {
        let slot = &mut self.slots[conn];
        if slot.is_closing && !slot.is_sending && !slot.is_receiving {
            let error = slot.error.take();
            *slot = Slot::default();
            // The ring lets go of the socket too; where that fails, the next one takes its place.
            let _ = self.ring.submitter().register_files_update(conn as u32, &[-1]);
            self.ended.push((conn, error));
        }
    }

    /// Submits, waits, and takes what is done.
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let want = self.prompt + 1;
        let has_news = !self.ended.is_empty() || !self.ring.completion().is_empty();
        match wait {
            Wait::Tick if !has_news => retry(|| self.ring.submit_and_wait(want))?,
            Wait::For(limit) if !has_news => {
                let limit = Timespec::from(limit);
                let args = SubmitArgs::new().timespec(&limit);
                retry(|| self.ring.submitter().submit_with_args(want, &args))?;
            }
            _ => {
                let queue = self.ring.submission();
                let must_enter = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
                drop(queue);
                if must_enter {
                    retry(|| self.ring.submit())?;
                    // Work that came up while submitting is done by a second look.
                    if self.ring.submission().taskrun() {
                        retry(|| self.ring.submit())?;
                    }
                }
            }
        }
        self.prompt = 0;
        self.done.extend(self.ring.completion());
        Ok(())
    }

    fn receive_done(
        &mut self,
        conn: usize,
        entry: &cqueue::Entry,
        worker: Option<&mut Worker>,
    ) -> io::Result<()> {
        let slot = &mut self.slots[conn];
        slot.is_receiving = cqueue::more(entry.flags());
        let result = entry.result();
        let mut is_kept = true;
        if let Some(buffer) = cqueue::buffer_select(entry.flags()) {
            if result > 0 && !slot.is_closing {
                // SAFETY: this completion names the buffer, which is given back below.
                let bytes = unsafe { self.buffers.received(buffer, result as usize) };
                is_kept = worker.is_none_or(|worker| worker.data(conn, bytes, &mut slot.out));
            }
            self.buffers.give(buffer);
        }
        match -result {
            // The other side has ended the connection.
            0 => self.end(conn, None),
            _ if !is_kept => self.end(conn, None),
            // All buffers were full, or the kernel wants to be asked again.
            libc::ENOBUFS | libc::EINTR | libc::EAGAIN | i32::MIN..0 => {}
            errno => self.end(conn, Some(io::Error::from_raw_os_error(errno))),
        }
        let slot = &self.slots[conn];
        if slot.is_closing {
            self.release(conn);
        } else if !slot.is_receiving {
            self.arm_receive(conn)?;
        }
        Ok(())
    }

    fn send_done(&mut self, conn: usize, result: i32) -> io::Result<()> {
        let slot = &mut self.slots[conn];
        slot.is_sending = false;
        match result {
            0.. => slot.sent += result as usize,
            _ if -result == libc::EINTR || -result == libc::EAGAIN => {}
            _ => self.end(conn, Some(io::Error::from_raw_os_error(-result))),
        }
        let slot = &mut self.slots[conn];
        if slot.is_closing {
            self.release(conn);
        } else if slot.sent < slot.sending.len() {
            self.send(conn)?;
        } else {
            slot.sending.clear();
            slot.sent = 0;
            self.flush_checked(conn)?;
        }
        Ok(())
    }

    fn flush_checked(&mut self, conn: usize) -> io::Result<()> {
        let slot = &mut self.slots[conn];
        if slot.is_sending || slot.is_closing || slot.out.is_empty() {
            return Ok(());
        }
        std::mem::swap(&mut slot.out, &mut slot.sending);
        self.send(conn)
    }
}

impl UringTransport {
    /// Takes a connected socket as connection `conn` and receives from it.
    pub fn open(&mut self, conn: usize, socket: OwnedFd) -> io::Result<()> {
        self.ring
            .submitter()
            .register_files_update(conn as u32, &[socket.as_raw_fd()])?;
        self.slots[conn] = Slot {
            socket: Some(socket),
            ..Slot::default()
        };
        self.arm_receive(conn)
    }

    /// Ends a connection. [`Worker::closed`] follows in a later turn.
    pub fn close(&mut self, conn: usize) {
        self.end(conn, None);
    }

    /// Where requests of an open connection are put.
    pub fn out(&mut self, conn: usize) -> &mut Vec<u8> {
        &mut self.slots[conn].out
    }

    /// Sends what is in the buffer, now or when what was sent before has gone; failures are told by [`Worker::closed`].
    pub fn flush(&mut self, conn: usize) {
        if let Err(error) = self.flush_checked(conn) {
            self.end(conn, Some(error));
        }
    }

    /// Waits, and hands over what came; to nobody after the end. Whether anything did.
    pub fn turn(&mut self, wait: Wait, mut worker: Option<&mut Worker>) -> io::Result<bool> {
        self.enter(wait)?;
        if let Some(worker) = &mut worker {
            worker.woke();
        }
        let mut came = !self.ended.is_empty();
        let mut done = std::mem::take(&mut self.done);
        for entry in done.drain(..) {
            let conn = (entry.user_data() >> 2) as usize;
            match entry.user_data() & 3 {
                RECEIVE => {
                    came = true;
                    self.receive_done(conn, &entry, worker.as_deref_mut())?;
                }
                SEND => self.send_done(conn, entry.result())?,
                _ if cqueue::more(entry.flags()) => {}
                _ => self.arm_clock()?,
            }
        }
        self.done = done;
        for (conn, error) in self.ended.drain(..) {
            if let Some(worker) = &mut worker {
                worker.closed(conn, error);
            }
        }
        Ok(came)
    }
}

impl Drop for UringTransport {
    fn drop(&mut self) {
        for conn in 0..self.slots.len() {
            self.end(conn, None);
        }
        let mut turns = LAST_TURNS;
        while self.slots.iter().any(|slot| slot.socket.is_some()) && turns > 0 {
            turns -= 1;
            if self.turn(Wait::Tick, None).is_err() {
                break;
            }
        }
        // SAFETY: each is taken once, here.
        let (ring, buffers, slots) = unsafe {
            (
                ManuallyDrop::take(&mut self.ring),
                ManuallyDrop::take(&mut self.buffers),
                ManuallyDrop::take(&mut self.slots),
            )
        };
        drop(ring);
        if slots.iter().any(|slot| slot.socket.is_some()) {
            // The kernel did not say that it has let go: its memory is left to it.
            std::mem::forget((buffers, slots));
        }
    }
}

fn data(conn: usize, kind: u64) -> u64 {
    (conn as u64) << 2 | kind
}

/// Enters the kernel again where it was interrupted. Where it is out of resources for the moment, or the time is up,
/// results are looked at first.
fn retry(mut enter: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
    loop {
        return match enter() {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN | libc::EBUSY | libc::ETIME) => Ok(()),
                _ => Err(error),
            },
        };
    }
}
