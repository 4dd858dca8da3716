//! The bytes of an object: its header on flash and in DRAM, its slices; and the codec of every format on a device.
//!
//! A record is header, key and value in one piece. It is the same on flash and in the DRAM tier but for the first field of the header, so
//! that an object moves between the two without its value being encoded again. The bytes are described in `docs/formats.md`.

pub mod codec;
mod header;
mod record;

pub use header::{EPOCH_SHIFT, HEADER_BYTES, HEADER_BYTES_MAX, HeaderBytes, RecordHeader};
pub use record::{
    MANIFEST_BYTES, Record, RecordParts, SliceId, is_expired, payload_checksum, put_head, read_head,
};
