//! The allocator: jemalloc, told to give memory back soon, because `--dram` is a promise about resident memory.

use std::ffi::c_char;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's settings, read by it before `main`:
/// - freed pages go back to the system after 1 s, by a background thread (which sleeps while nothing is dirty), and at
///   once where they were only lazily freed;
/// - one arena, since each keeps slack of its own: with one more for threads that compute, volumes of 128 KiB chunks had 20 MiB more resident.
///   Items and blocks are in our own mappings, and each thread caches what is small, so contention is no concern.
const SETTINGS: &[u8] = b"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0,narenas:1\0";

/// Where jemalloc looks for its settings: a pointer to a C string.
// SAFETY: the name is jemalloc's own (with the crate's prefix) and the type is what it declares, `const char *`; no
// other symbol has this name.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_CONF: Option<&'static c_char> = Some({
    // SAFETY: points to a static C string with its end mark; u8 and c_char have the same layout.
    unsafe { &*SETTINGS.as_ptr().cast::<c_char>() }
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_are_a_c_string() {
        assert_eq!(
            SETTINGS.iter().position(|byte| *byte == 0),
            Some(SETTINGS.len() - 1)
        );
        assert!(MALLOC_CONF.is_some());
    }
}
