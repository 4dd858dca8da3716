//! lru_crawler metadump: a line for each object in the DRAM tier, as memcached writes it.

use super::{Executor, Output};
use pumice::{Listed, Listing};
use pumice_device::{Buffer, Device};
use std::sync::atomic::Ordering;

/// As memcached says it.
const BUSY: &str = "BUSY currently processing crawler request\r\n";

/// A dump that is under way. There is one at a time in the whole door.
pub(crate) struct KeyDump<'e, D: Device + Clone> {
    executor: &'e Executor<D>,
    listing: Listing,
    found: Vec<Listed>,
}

impl<'e, D: Device + Clone> KeyDump<'e, D> {
    /// Begins a dump, or answers that there is one already.
    pub(crate) fn begin(executor: &'e Executor<D>, output: &mut Output<D::Buf>) -> Option<Self> {
        if executor.shared.is_dumping.swap(true, Ordering::AcqRel) {
            executor.shared.is_dump_wanted.store(true, Ordering::Release);
            output.text(BUSY);
            return None;
        }
        Some(Self {
            executor,
            listing: Listing::default(),
            found: Vec::new(),
        })
    }

    /// Whether another client has asked for a list since the last step.
    pub(crate) fn is_wanted(&self) -> bool {
        self.executor.shared.is_dump_wanted.load(Ordering::Acquire)
    }

    /// Does a small piece, and writes what it found; false at the end, which is written, too.
    pub(crate) fn step(&mut self, output: &mut Output<D::Buf>) -> bool {
        let Executor { cache, shared, .. } = self.executor;
        shared.is_dump_wanted.store(false, Ordering::Release);
        let goes_on = cache.list(&self.executor.cx, &mut self.listing, &mut self.found);
        for listed in self.found.drain(..) {
            line(&listed, output);
        }
        if !goes_on {
            end(output);
        }
        goes_on
    }
}

impl<D: Device + Clone> Drop for KeyDump<'_, D> {
    fn drop(&mut self) {
        self.executor.shared.is_dumping.store(false, Ordering::Release);
    }
}

/// Ends a dump, also one of classes that have nothing.
pub(crate) fn end<B: Buffer>(output: &mut Output<B>) {
    output.text("END\r\n");
}

/// memcached ends these lines with a lone LF. Pumice keeps no time of the last access, and has one class.
fn line<B: Buffer>(listed: &Listed, output: &mut Output<B>) {
    output.text("key=");
    percent_encoded(&listed.key, output);
    match listed.expiry {
        0 => output.text(" exp=-1"),
        expiry => {
            output.text(" exp=");
            output.number(u64::from(expiry));
        }
    }
    output.text(" la=0 cas=");
    output.number(listed.version);
    output.text(if listed.is_used { " fetch=yes" } else { " fetch=no" });
    output.text(" cls=1 size=");
    output.number(listed.bytes());
    output.text("\n");
}

/// As in a URI: all but letters, digits and `-._~` as `%` and two digits.
fn percent_encoded<B: Buffer>(key: &[u8], output: &mut Output<B>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in key {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => output.text([*byte]),
            _ => output.text([
                b'%',
                DIGITS[usize::from(byte >> 4)],
                DIGITS[usize::from(byte & 15)],
            ]),
        }
    }
}
