//! How long flash lasts.

use pumice_advise::Endurance;
use pumice_device::DeviceCounts;
use pumice_server::lifetime::{Pace, endurance};
use pumice_server::settings::Layers;
use pumice_server::settings::Settings;
use std::time::Duration;

fn layers(pairs: &[(&str, &str)]) -> Layers {
    let text: String = pairs
        .iter()
        .map(|(name, value)| format!("{name} = \"{value}\"\n"))
        .collect();
    Layers::collect(toml::from_str::<Settings>(&text).unwrap(), None).unwrap()
}

fn endurance_by(pairs: &[(&str, &str)]) -> Option<Endurance> {
    let layers = layers(pairs);
    let found = endurance(&layers).unwrap();
    found.map(|(endurance, _)| endurance)
}

#[test]
fn a_server_says_how_long_its_flash_lasts_from_its_first_hour_on() {
    let counts = DeviceCounts {
        written_bytes: 39_000_000_000,
        log_bytes: 1_000_000_000,
        ..DeviceCounts::default()
    };
    let endurance = endurance_by(&[("tbw", "600")]);
    let figures = |secs, counts: &DeviceCounts, endurance| {
        let pace = Pace::of(Duration::from_secs(secs), counts, endurance);
        let figures = pace.group().figures;
        let figures = figures.iter().map(|figure| (figure.name, figure.value));
        (figures.collect::<Vec<_>>(), pace.line())
    };
    assert_eq!(
        figures(3599, &counts, endurance),
        (vec![("host_bytes", 40e9)], None)
    );
    let (found, line) = figures(7200, &counts, endurance);
    // 600 TB at 480 GB a day.
    let years = 600e12 / 480e9 / 365.0;
    assert_eq!(
        found,
        [("host_bytes", 40e9), ("day_bytes", 480e9), ("years", years)]
    );
    assert_eq!(
        line.unwrap(),
        "40.000 GB sent to the flash device in 2.0 hours, 480.000 GB a day: the rating lasts 3.4 years"
    );
    let (found, line) = figures(7200, &counts, None);
    assert_eq!((found.len(), line.unwrap().contains("years")), (2, false));
    let (found, _) = figures(7200, &DeviceCounts::default(), endurance);
    assert_eq!(found, [("host_bytes", 0.0), ("day_bytes", 0.0)]);
}

#[test]
fn a_rating_that_says_nothing_names_its_setting() {
    let years = |pairs: &[_]| endurance_by(pairs).map(|endurance| endurance.years(1e12));
    let dwpd = [("dwpd", "1"), ("drive-size", "1000"), ("warranty", "3")];
    assert_eq!(years(&dwpd), Some(3.0));
    // 730 cycles of 1 TB at 1 TB a day.
    assert_eq!(years(&[("cycles", "730"), ("drive-size", "1000")]), Some(2.0));
    assert_eq!(years(&[]), None);
    for (pairs, named) in [
        (vec![("tbw", "0")], "tbw"),
        (vec![("tbw", "600TB")], "tbw"),
        (vec![("tbw", "1"), ("dwpd", "1"), ("drive-size", "1")], "dwpd"),
        (vec![("dwpd", "1")], "dwpd"),
        (vec![("drive-size", "1")], "drive-size"),
        (vec![("warranty", "1"), ("tbw", "1")], "warranty"),
        (vec![("cycles", "1")], "cycles"),
        (vec![("cycles", "-1"), ("drive-size", "1")], "cycles"),
        (vec![("cycles", "1"), ("tbw", "1")], "cycles"),
        (
            vec![("cycles", "1"), ("drive-size", "1"), ("warranty", "1")],
            "warranty",
        ),
    ] {
        let layers = layers(&pairs);
        let error = endurance(&layers).unwrap_err();
        // The place of the setting comes before its text and what is wrong.
        let error = error.to_string();
        assert!(
            error.split(" `").next().unwrap().ends_with(named),
            "{pairs:?}: {error}"
        );
    }
}
