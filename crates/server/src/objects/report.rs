//! What a server of objects says about itself in its log.

use super::config::{DURABILITIES, ServeConfig};
use super::door::config::Own;
use super::flash::Target;
use super::memory::Division;
use super::performance::Performance;
use crate::host::line;
use crate::lifetime::Pace;
use pumice::{IndexKind, LeftBehind, MemoryPlan, Recovered};
use pumice_console::VERSION;
use pumice_device::FileShared;
use pumice_flash::{LayoutName, LayoutOptions, slot_bits};
use pumice_trace::Human;
use std::time::Duration;

/// What is known before the cache is opened.
pub fn start(
    config: &ServeConfig,
    flash: &FileShared,
    target: &Target,
    division: &Division,
    performance: Option<&Performance>,
) {
    let plan = &division.plan;
    line(format_args!("pumice {VERSION}"));
    line(format_args!(
        "dram: {} = {} for items and index + {} for {} block buffers + {} for connections + {} for the program",
        Human(plan.total),
        Human(plan.pool),
        Human(plan.block_buffers),
        plan.buffers,
        Human(plan.connections),
        Human(plan.base),
    ));
    line(format_args!(
        "flash: {}, {} in blocks of {}, {}, layout {}, policy {}, index {}, durability {}",
        config.flash.display(),
        Human(flash.capacity()),
        Human(plan.block_bytes),
        io_of(flash),
        target.layout.layout,
        target.layout.policy.name(),
        division.index,
        (DURABILITIES.iter().find(|(_, level)| *level == config.durability)).map_or("", |(name, _)| name),
    ));
    if let Own::Http(door) = &config.door.own {
        let policy = match target.layout.layout {
            LayoutName::Ripq if !config.is_policy_given => {
                "; policy gdsf-3, as none is given: it hits more objects, slru-3 more bytes"
            }
            _ => "",
        };
        line(format_args!(
            "origin: {}, bodies of up to {} are stored{policy}",
            door.origin.url,
            Human(config.door.object_bytes_max(target.capacity)),
        ));
    }
    if let Some(Performance { shared, tier, .. }) = performance {
        line(format_args!(
            "performance tier: {}, {} for copies of {} blocks, {}",
            shared.path().display(),
            Human(shared.capacity()),
            tier.places(),
            io_of(shared),
        ));
    }
    if let Some(choice) = &division.choice {
        let (fits, why) = match (choice.full_bytes <= choice.pool, choice.kind) {
            (true, _) => ("fit in", ""),
            (false, IndexKind::Full) => (
                "do not fit in",
                "; cascade, which would hold more, costs more DRAM than there is at any number of objects",
            ),
            (false, _) => ("do not fit in", ""),
        };
        line(format_args!(
            "index: {} by choice: {:.1} million objects of 300 bytes find room on flash; a full index of them takes {}, which {fits} \
             the {} for items and index{why}",
            choice.kind,
            choice.objects as f64 / 1e6,
            Human(choice.full_bytes),
            Human(choice.pool),
        ));
    }
    if division.index == IndexKind::Cascade {
        line(format_args!(
            "index: cascade keeps hot mappings among items and index, and up to {} of the program's part for what is on flash: \
             enough for objects of {} bytes and more",
            Human(plan.index_heap),
            smallest_value(flash.capacity(), plan.index_heap, &target.layout),
        ));
    }
}

/// How a device is read and written.
fn io_of(device: &FileShared) -> String {
    let way = match device.is_direct() {
        true => "O_DIRECT",
        false => "buffered I/O",
    };
    format!("{way} with {}", device.engine())
}

/// Bytes of a record beside its value: header, a key of some bytes, padding, and its part of the footer.
const BESIDE_VALUES: u64 = 84;

/// About the smallest value of which flash can be full before a cascade index gives up blocks early.
fn smallest_value(flash: u64, index_heap: u64, layout: &LayoutOptions) -> u64 {
    let slots = u64::from(slot_bits(layout, IndexKind::Cascade)) * 100 / 8;
    let centibytes = MemoryPlan::FILTER_CENTIBYTES + slots;
    // Blocks are given up from three quarters on.
    (flash / 100 * centibytes / (index_heap * 3 / 4).max(1)).saturating_sub(BESIDE_VALUES)
}

/// What was found on the device.
pub fn recovered(recovered: &Recovered, took: Duration) {
    let seconds = took.as_secs_f64();
    if recovered.formatted {
        return line(format_args!(
            "recovered: nothing, the flash device is new ({seconds:.3} s)"
        ));
    }
    if let Some(secs) = recovered.absent_secs {
        line(format_args!(
            "recovered: nothing ran for {secs} s, --max-absence or longer: what was there may be out of date, and is forgotten"
        ));
    }
    let stop = match (recovered.clean, recovered.discarded) {
        (_, true) if recovered.absent_secs.is_some() => "the cache begins empty",
        (_, true) => "what was there could not be trusted and is forgotten",
        (true, false) => "after a clean stop",
        (false, false) => "after a stop that was not clean",
    };
    line(format_args!(
        "recovered: {} objects, {}, {stop} ({} read in {seconds:.3} s)",
        recovered.objects,
        Human(recovered.bytes),
        Human(recovered.bytes_read),
    ));
    if recovered.no_memory > 0 {
        line(format_args!(
            "recovered: {} more objects were left out, there is no DRAM for their index; a larger --dram keeps them",
            recovered.no_memory
        ));
    }
}

/// What the flash device had to take, once there is a pace.
pub fn lifetime(pace: &Pace) {
    if let Some(text) = pace.line() {
        line(format_args!("lifetime: {text}"));
    }
}

/// What a stop could not keep.
pub fn left_behind(left: &LeftBehind) {
    if left.sum() > 0 {
        let why = [
            (
                left.displaced,
                "evicted from flash to make room for what only DRAM held",
            ),
            (
                left.no_room,
                "in DRAM, without a free block on flash; a larger flash device keeps them",
            ),
            (
                left.no_memory,
                "in DRAM, without DRAM for their index; a larger --dram keeps them",
            ),
            (
                left.same_tag,
                "in DRAM, where flash has another key with the same bits of the hash",
            ),
            (left.lost, "in blocks that the device failed to write"),
            (
                left.refused,
                "in DRAM, kept from flash by --flash-admit, its limits or the write budget",
            ),
            (left.taken_out, "in DRAM, as the flash device was taken out"),
        ];
        let why = why.iter().filter(|(count, _)| *count > 0);
        let why: Vec<String> = why.map(|(count, why)| format!("{count} {why}")).collect();
        line(format_args!(
            "left behind: {} objects: {}",
            left.sum(),
            why.join("; ")
        ));
    }
}
