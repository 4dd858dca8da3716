//! The rule that says which objects go to flash, with the room that it has for what it remembers.

use crate::config::CacheOptions;
use crate::plan::OBJECT_FLASH_BYTES;
use pumice_admit::{Admission, AdmissionOptions};
use pumice_blocks::Geometry;
use pumice_index::{IndexKind, KeyHash};
use pumice_memory::PagePool;
use pumice_record::{RecordParts, SliceId};
use std::sync::Arc;

/// The rule of a cache where anything may be refused.
pub(crate) struct Admit {
    pub(crate) admission: Admission,
}

/// Objects that a rule may remember, at two bytes each, so that the index has its pages. A full one takes six times as much of an object. A
/// cascade takes less, but a flash that is not filled for want of its pages is worse than a rule that remembers fewer keys.
fn remembered_max(options: &CacheOptions) -> u64 {
    let share = match options.index.kind() {
        IndexKind::Full => 7,
        IndexKind::Cascade => 4,
    };
    match options.dram_bytes as u64 {
        // No bound.
        0 => u64::MAX,
        bytes => bytes / share / 2,
    }
}

impl Admit {
    /// `None` where everything goes in. What the rule remembers is in `pages`, which keeps `spare_pages` for the index.
    pub(crate) fn of(
        options: &CacheOptions,
        geometry: &Geometry,
        pages: &Arc<PagePool>,
        spare_pages: usize,
    ) -> Option<Box<Self>> {
        let flash_bytes = u64::from(geometry.blocks) * geometry.block_bytes;
        let admission = AdmissionOptions {
            flash_bytes,
            objects: (flash_bytes / OBJECT_FLASH_BYTES).min(remembered_max(options)),
            ..options.admission
        };
        admission.is_any().then(|| {
            Box::new(Self {
                admission: Admission::new(admission, pages, spare_pages),
            })
        })
    }

    /// Tells the filter that a read was answered from flash.
    pub(crate) fn note_flash_hit(&self, hash: KeyHash, parts: &RecordParts<'_>) {
        if !matches!(parts.slice, SliceId::Part(_)) {
            self.admission.hit(hash);
        }
    }
}
