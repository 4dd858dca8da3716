//! Opening a file and undoing its compression, which is found by magic bytes.

use std::io::{self, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Compression;

/// Bytes asked of the file at a time.
const CHUNK_BYTES: usize = 256 * 1024;
/// Largest zstd window: 128 MiB, the decompressor's own default, stated because it bounds memory.
const ZSTD_WINDOW_LOG: u32 = 27;
/// Most memory the xz decompressor may ask for; the largest preset of xz needs 65 MiB.
const XZ_MEMORY_BYTES: u64 = 512 << 20;

/// The decompressed bytes of a file.
pub(crate) struct Input {
    /// Yields decompressed bytes.
    pub(crate) bytes: Box<dyn Read + Send>,
    /// How the file is compressed.
    pub(crate) compression: Compression,
    /// Bytes of the file consumed so far.
    pub(crate) consumed: Arc<AtomicU64>,
    /// Length of the file, 0 if not known.
    pub(crate) length: u64,
}

impl Input {
    /// Looks at the first bytes of `file` and puts the right decompressor on top.
    pub(crate) fn new(file: impl Read + Send + 'static, length: u64) -> io::Result<Self> {
        let consumed = Arc::new(AtomicU64::new(0));
        let mut file = Counted {
            inner: file,
            consumed: Arc::clone(&consumed),
        };
        let mut magic = Vec::with_capacity(6);
        file.by_ref().take(6).read_to_end(&mut magic)?;
        let compression = compression_of(&magic);
        let whole = Cursor::new(magic).chain(file);
        let bytes: Box<dyn Read + Send> = match compression {
            Compression::Plain => Box::new(whole),
            Compression::Zstd => {
                let buffered = io::BufReader::with_capacity(CHUNK_BYTES, whole);
                let mut decoder = zstd::stream::read::Decoder::with_buffer(buffered)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Box::new(decoder)
            }
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(
                io::BufReader::with_capacity(CHUNK_BYTES, whole),
            )),
            Compression::Xz => {
                let buffered = io::BufReader::with_capacity(CHUNK_BYTES, whole);
                let stream = liblzma::stream::Stream::new_stream_decoder(
                    XZ_MEMORY_BYTES,
                    liblzma::stream::CONCATENATED,
                )?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(buffered, stream))
            }
        };
        Ok(Input {
            bytes,
            compression,
            consumed,
            length,
        })
    }
}

/// Recognises a compression by the first bytes of a file.
///
/// A headerless binary file whose first key happens to start with a magic number is taken for a compressed one; with
/// three bytes or more of magic each, that is rare, and compressing the file resolves it.
fn compression_of(magic: &[u8]) -> Compression {
    match magic {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
        // A zstd file may start with a skippable frame.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        [0x1f, 0x8b, 0x08, ..] => Compression::Gzip,
        [0xfd, b'7', b'z', b'X', b'Z', 0x00] => Compression::Xz,
        _ => Compression::Plain,
    }
}

/// Counts the bytes that pass.
struct Counted<R> {
    inner: R,
    consumed: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(out)?;
        self.consumed.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
