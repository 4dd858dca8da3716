//! Cells of the table of docs/nhc.md, in virtual time.

use pumice_device::Profile;
use pumice_models::{CellOptions, Load, run_cell};
use pumice_nhc::Objective;

fn cell(upper: Profile, lower: Profile, load: Load) -> CellOptions {
    CellOptions {
        upper,
        lower,
        load,
        hits: 0.95,
        cache: None,
        reads: 1.0,
        bytes: 4_096,
        objective: Objective::Throughput,
        seed: 1,
        requests: 300_000,
        then: None,
        then_seconds: 4.0,
        baselines: false,
    }
}

#[test]
fn saturated_it_comes_to_the_best_split() {
    let report = run_cell(&cell(Profile::OPTANE, Profile::NVME, Load::Closed(4.0)));
    assert!(report.best_to_classic > 1.4, "{report:?}");
    assert!(report.nhc_to_best > 0.95, "{report:?}");
    // The paper's model of the same devices: a saturated cache is as fast as the upper device, a split as fast as both.
    assert!(
        (report.classic_most / report.formulas.cache_many - 1.0).abs() < 0.05,
        "{report:?}"
    );
    assert!(report.nhc.per_second < report.formulas.split_many, "{report:?}");
}

#[test]
fn not_to_copy_is_most_of_the_gain_where_hits_are_few() {
    let few = CellOptions {
        hits: 0.8,
        ..cell(Profile::NVM, Profile::OPTANE, Load::Closed(2.0))
    };
    let report = run_cell(&few);
    assert!(report.best_to_classic > 1.4, "{report:?}");
    assert!(report.nhc_to_best > 0.93 && !report.nhc.data_admit, "{report:?}");
}

#[test]
fn below_saturation_it_costs_nothing() {
    for load in [Load::Closed(0.5), Load::Open(0.5)] {
        let report = run_cell(&cell(Profile::NVM, Profile::OPTANE, load));
        assert!(report.nhc_to_classic > 0.97, "{report:?}");
    }
}

#[test]
fn it_follows_a_change_of_the_load() {
    let rising = CellOptions {
        then: Some("load=closed:4".parse().unwrap()),
        ..cell(
            Profile::OPTANE.slower(10),
            Profile::NVME.slower(10),
            Load::Closed(0.5),
        )
    };
    let changed = run_cell(&rising).changed.unwrap();
    assert!(
        changed.settled_seconds.is_some_and(|seconds| seconds < 2.0),
        "{changed:?}"
    );
}

/// Trials there look a little better below the best split, as the queue that this makes is empty again after each window: in turns no request
/// is lost by it, held still one of ten.
#[test]
fn it_stays_at_the_best_split_after_a_change() {
    let rising = CellOptions {
        seed: 3,
        requests: 600_000,
        then: Some("load=closed:4".parse().unwrap()),
        then_seconds: 6.0,
        ..cell(
            Profile::NVME.slower(16),
            Profile::SATA.slower(16),
            Load::Closed(0.5),
        )
    };
    let changed = run_cell(&rising).changed.unwrap();
    assert!(
        changed.settled_seconds.is_some_and(|seconds| seconds < 1.0),
        "{changed:?}"
    );
}

#[test]
fn a_seed_repeats_a_cell() {
    let short = CellOptions {
        requests: 30_000,
        ..cell(Profile::DRAM, Profile::NVM, Load::Open(1.2))
    };
    assert_eq!(run_cell(&short), run_cell(&short));
}

#[test]
fn odd_loads_are_refused() {
    for wrong in ["closed", "closed:0", "half:2", "open:x"] {
        assert!(wrong.parse::<Load>().unwrap_err().contains(wrong));
    }
    for wrong in ["load=2", "set=2", "speed=3", ""] {
        assert!(wrong.parse::<pumice_models::Change>().is_err(), "{wrong}");
    }
    for wrong in ["5", "30/20/1", "0/5/1", "5/10/x", "1/2/0.9/4"] {
        assert!(wrong.parse::<pumice_models::CacheModel>().is_err(), "{wrong}");
    }
}
