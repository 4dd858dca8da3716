//! The seam between real bytes and simulated lengths.

/// The bytes of a value: real, or only their number where a workload is simulated and values do not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// Real bytes.
    Bytes(&'a [u8]),
    /// That many bytes of no content.
    Void(usize),
}

impl Payload<'_> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Void(len) => *len,
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part `at..at + len`.
    ///
    /// # Panics
    /// Where that reaches past the end.
    pub fn slice(&self, at: usize, len: usize) -> Self {
        match self {
            Payload::Bytes(bytes) => Payload::Bytes(&bytes[at..at + len]),
            Payload::Void(all) => {
                assert!(at + len <= *all, "payload slice past the end");
                Payload::Void(len)
            }
        }
    }
}

/// A piece of memory of fixed length that is filled by parts and read by parts.
///
/// Two implementations: [`crate::AlignedBuf`] holds every byte; [`crate::SparseBuf`] holds the parts that were put
/// as bytes and forgets the content of what was put as [`Payload::Void`]. A store that is generic over its buffer is
/// thereby generic over its payload: headers, footers, mappings and logs stay real bytes, value bytes vanish.
///
/// Writing goes through a shared reference because several threads fill one block at once, each its own part.
pub trait Buffer: Send + Sync + Sized + 'static {
    /// A buffer of `len` bytes, a multiple of [`crate::SECTOR_BYTES`]; until put it holds zeros or no content, nothing older.
    fn with_len(len: usize) -> Self;

    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the buffer ready for other content; the old content is unspecified afterwards.
    fn reset(&mut self) {}

    /// Gives the memory behind the content back to the operating system, where that makes sense; the content is
    /// unspecified afterwards, the buffer stays usable.
    ///
    /// # Safety
    /// As for [`Buffer::put`] over the whole buffer.
    unsafe fn discard(&self) {}

    /// Copies `payload` to `at`.
    ///
    /// # Safety
    /// While the call runs, no other thread reads or writes any byte of `at..at + payload.len()` of this buffer,
    /// and no reference that [`Buffer::bytes`] or [`Buffer::payload`] gave out for these bytes is alive.
    ///
    /// # Panics
    /// Where the range reaches past the end.
    unsafe fn put(&self, at: usize, payload: Payload<'_>);

    /// As [`Buffer::put`], for payloads that come one behind the other: the place of the next may be brought to the processor's
    /// caches, so that its copy need not wait for what it overwrites.
    ///
    /// # Safety
    /// As for [`Buffer::put`].
    ///
    /// # Panics
    /// As [`Buffer::put`].
    unsafe fn put_in_sequence(&self, at: usize, payload: Payload<'_>) {
        // SAFETY: the caller's promise.
        unsafe { self.put(at, payload) }
    }

    /// The bytes of `at..at + len`, all of them put before in one piece (a header, a footer) or real anyway.
    /// `None` where the range reaches past the end or holds bytes that only have a length.
    fn bytes(&self, at: usize, len: usize) -> Option<&[u8]>;

    /// The payload in `at..at + len`: bytes where they are real, else the length. `None` past the end.
    fn payload(&self, at: usize, len: usize) -> Option<Payload<'_>>;
}
