//! What was admitted and what was not.

use std::sync::atomic::AtomicU64;

pumice_world::figures! {
    /// The figures of an [`Admission`](crate::Admission).
    pub struct AdmissionFigures;
    of
    /// Running totals.
    pub(crate) struct Cells: AtomicU64;
    /// Bytes of objects that were to be written to flash, whether they were let in or not.
    Counter asked_bytes,
    /// Objects that were let onto flash.
    Counter admitted_objects,
    /// Objects that the rule kept off flash.
    Counter refused_by_rule_objects,
    /// Objects kept off flash because the write budget had nothing left for them.
    Counter refused_by_budget_objects,
    /// Objects kept off flash because they are too large.
    Counter refused_size_objects,
    /// Objects kept off flash because they expire too soon.
    Counter refused_expiry_objects,
    /// How often second-hit has fallen back to random.
    Counter fallbacks,
    /// Objects of a million that chance lets onto flash while second-hit has fallen back; 0: it has not.
    Gauge random_ppm,
    /// New keys of a million that second-hit takes for known ones, about.
    Gauge mistaken_ppm,
    /// DRAM of what second-hit remembers of keys.
    Gauge dram_bytes,
    /// Bytes of the write budget that may be sent to flash now.
    Gauge budget_left_bytes,
}
