//! What the door keeps of an object in its marks (see docs/formats.md, "Record"), beside [`Meta::USED`], which the cache sets.

use pumice::Meta;

/// The object was invalidated; clients may use it while one of them fetches it anew.
pub(super) const STALE: u8 = 1;

/// One client was told to fetch the object anew.
pub(super) const WON: u8 = 2;

/// The marks of an object that is read and written again at once: the DRAM tier would forget that it was hit.
pub(super) fn used(meta: Meta) -> Meta {
    Meta {
        marks: meta.marks | Meta::USED,
        ..meta
    }
}
