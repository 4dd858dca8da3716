//! Replies waiting to be sent: text, and large values where they are.

use pumice::{Object, Pieces};
use pumice_device::{Buffer, Payload};
use pumice_net::Share;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Values from this size on are sent from the object's own memory.
const PIN_BYTES: usize = 16 << 10;

/// At most this many slices are handed to one write.
const MAX_SLICES: usize = 64;

/// Zeros, to stand for payload without content.
static ZEROS: [u8; 4096] = [0; 4096];

/// Replies of one connection in order: text that was copied together, with values in between.
pub(crate) struct Output<B: Buffer> {
    text: Vec<u8>,
    /// Values, or pieces of such, each before the byte of the text at that position.
    pinned: Vec<Pinned<B>>,
    pinned_bytes: usize,
    /// Values of large objects that have to be read yet.
    large: VecDeque<Large<B>>,
}

struct Pinned<B: Buffer> {
    at: usize,
    value: Pieces<B>,
    /// Of the budget that the value was read under, if it was read for this reply.
    share: Option<Share>,
}

/// The value of a large object, whose place is behind what stands before the byte of the text at that position.
pub(crate) struct Large<B: Buffer> {
    at: usize,
    /// All but the value.
    pub(crate) object: Object<B>,
    /// Where in the value it begins.
    pub(crate) from: u64,
    /// What has been read was read under this share, and the rest is to be: no later read takes more than the first.
    pub(crate) share: Option<Share>,
}

impl<B: Buffer> Output<B> {
    pub(crate) fn new() -> Self {
        Self {
            text: Vec::new(),
            pinned: Vec::new(),
            pinned_bytes: 0,
            large: VecDeque::new(),
        }
    }

    /// Bytes that wait, those of large values that have to be read yet included.
    pub(crate) fn pending(&self) -> usize {
        let large = (self.large.iter()).map(|large| large.object.value_len() - large.from as usize);
        self.text.len() + self.pinned_bytes + large.sum::<usize>()
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

    /// Appends the value of an object: copies a small one, keeps a longer one in its place with the share it was read under. What is not
    /// there of a large one is read when its turn to be sent comes.
    pub(crate) fn value(&mut self, mut object: Object<B>, share: Option<Share>) {
        if !object.is_large() && object.value_len() < PIN_BYTES {
            return copy_value(&object, &mut self.text);
        }
        if object.pins_block() {
            object.detach();
        }
        let value = object.take_value();
        let (at, from) = (self.text.len(), value.len());
        let goes_on = object.is_large() && from < object.value_len();
        let (share, of_rest) = if goes_on { (None, share) } else { (share, None) };
        if from > 0 {
            self.pieces(value, share);
        }
        if goes_on {
            self.large.push_back(Large {
                at,
                object,
                from: from as u64,
                share: of_rest,
            });
        }
    }

    /// Appends bytes of a value, with the share they were read under.
    pub(crate) fn pieces(&mut self, value: Pieces<B>, share: Option<Share>) {
        self.pinned_bytes += value.len();
        self.pinned.push(Pinned {
            at: self.text.len(),
            value,
            share,
        });
    }

    /// Cuts at the first value that has to be read yet: keeps what stands before it, and returns it with what stands behind.
    pub(crate) fn cut_at_large(&mut self) -> Option<(Large<B>, Self)> {
        let large = self.large.pop_front()?;
        let mut rest = Self::new();
        rest.text = self.text.split_off(large.at);
        rest.large = std::mem::take(&mut self.large);
        let before = self.pinned.partition_point(|pinned| pinned.at <= large.at);
        rest.pinned = self.pinned.split_off(before);
        let places = rest.pinned.iter_mut().map(|pinned| &mut pinned.at);
        for at in places.chain(rest.large.iter_mut().map(|large| &mut large.at)) {
            *at -= large.at;
        }
        rest.pinned_bytes = rest.pinned.iter().map(|pinned| pinned.value.len()).sum();
        self.pinned_bytes -= rest.pinned_bytes;
        Some((large, rest))
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
            pinned.value.detach();
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
            for part in pinned.value.parts() {
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
