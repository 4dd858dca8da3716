//! Replies waiting to be sent: text, and large values where they are.

use pumice::Object;
use pumice_device::{Buffer, Payload};
use pumice_net::Share;
use std::io::IoSlice;

/// Values from this size on are sent from the object's own memory.
const PIN_BYTES: usize = 16 << 10;

/// At most this many slices are handed to one write.
const MAX_SLICES: usize = 64;

/// Zeros, to stand for payload without content.
static ZEROS: [u8; 4096] = [0; 4096];

/// Replies of one connection in order: text that was copied together, with objects in between.
pub(crate) struct Output<B: Buffer> {
    text: Vec<u8>,
    /// Objects, each before the byte of the text at that position.
    pinned: Vec<Pinned<B>>,
    pinned_bytes: usize,
}

struct Pinned<B: Buffer> {
    at: usize,
    object: Object<B>,
    /// Of the budget that the object was read under, if it was read for this reply.
    share: Option<Share>,
}

impl<B: Buffer> Output<B> {
    pub(crate) fn new() -> Self {
        Self {
            text: Vec::new(),
            pinned: Vec::new(),
            pinned_bytes: 0,
        }
    }

    /// Bytes that wait.
    pub(crate) fn pending(&self) -> usize {
        self.text.len() + self.pinned_bytes
    }

    /// Appends text.
    pub(crate) fn text(&mut self, text: impl AsRef<[u8]>) {
        self.text.extend_from_slice(text.as_ref());
    }

    /// Appends text unless no reply is wanted.
    pub(crate) fn unless(&mut self, noreply: bool, text: &str) {
        if !noreply {
            self.text(text);
        }
    }

    /// Appends a number in decimal.
    pub(crate) fn number(&mut self, mut number: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            let digit = (number % 10) as u8;
            digits[at] = b'0' + digit;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.text.extend_from_slice(&digits[at..]);
    }

    /// Appends the value of an object: copies a small one, keeps a large one in its place with the share it was read under.
    pub(crate) fn value(&mut self, mut object: Object<B>, share: Option<Share>) {
        let len = object.value_len();
        if len < PIN_BYTES {
            copy_value(&object, &mut self.text);
        } else {
            if object.pins_block() {
                object.detach();
            }
            self.pinned_bytes += len;
            self.pinned.push(Pinned {
                at: self.text.len(),
                object,
                share,
            });
        }
    }

    /// Whether objects wait in their places.
    pub(crate) fn holds_objects(&self) -> bool {
        !self.pinned.is_empty()
    }

    /// Whether an object waits with a share of the large lane.
    pub(crate) fn holds_large_share(&self) -> bool {
        self.pinned
            .iter()
            .any(|pinned| pinned.share.as_ref().is_some_and(Share::is_large))
    }

    /// Copies what stands in the cache's memory, and gives back shares of the small lane.
    pub(crate) fn detach(&mut self) {
        for pinned in &mut self.pinned {
            pinned.object.detach();
            pinned.share = pinned.share.take().filter(Share::is_large);
        }
    }

    /// Hands `write` the bytes from `sent` on, in one or more slices; it says how many it took. Returns the new number
    /// of bytes sent. Cost: the positions of the objects are walked through on each call.
    pub(crate) fn write_from(
        &self,
        sent: usize,
        write: impl FnOnce(&[IoSlice<'_>]) -> std::io::Result<usize>,
    ) -> std::io::Result<usize> {
        if self.pinned.is_empty() {
            return Ok(sent + write(&[IoSlice::new(&self.text[sent..])])?);
        }
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(MAX_SLICES);
        let mut skip = sent;
        let mut push = |bytes| {
            let bytes: &[u8] = bytes;
            if skip >= bytes.len() {
                skip -= bytes.len();
            } else {
                slices.push(IoSlice::new(&bytes[skip..]));
                skip = 0;
            }
            slices.len() < MAX_SLICES
        };
        self.each_slice(&mut push);
        Ok(sent + write(&slices)?)
    }

    /// Calls `each` with every piece in order until it returns false.
    fn each_slice<'s>(&'s self, each: &mut impl FnMut(&'s [u8]) -> bool) -> bool {
        let mut at = 0;
        for pinned in &self.pinned {
            if !each(&self.text[at..pinned.at]) {
                return false;
            }
            at = pinned.at;
            for part in pinned.object.parts() {
                let go_on = match part {
                    Payload::Bytes(bytes) => each(bytes),
                    Payload::Void(len) => void_slices(len).all(&mut *each),
                };
                if !go_on {
                    return false;
                }
            }
        }
        each(&self.text[at..])
    }

    /// Forgets what was sent.
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.pinned.clear();
        self.pinned_bytes = 0;
    }
}

/// Memory that the replies of an idle connection may keep.
const KEEP_BYTES: usize = 1 << 10;

impl<B: Buffer> Output<B> {
    /// Gives memory back while nothing waits.
    pub(crate) fn release(&mut self) {
        if self.pending() == 0 {
            self.text.shrink_to(KEEP_BYTES);
            self.pinned = Vec::new();
        }
    }
}

fn void_slices<'s>(len: usize) -> impl Iterator<Item = &'s [u8]> {
    let whole = len / ZEROS.len();
    std::iter::repeat_n(&ZEROS[..], whole).chain(std::iter::once(&ZEROS[..len % ZEROS.len()]))
}

/// Appends the value of `object` to `to`. Payload without content (simulation) becomes zeros.
pub(super) fn copy_value<B: Buffer>(object: &Object<B>, to: &mut Vec<u8>) {
    for part in object.parts() {
        match part {
            Payload::Bytes(bytes) => to.extend_from_slice(bytes),
            Payload::Void(len) => to.resize(to.len() + len, 0),
        }
    }
}
