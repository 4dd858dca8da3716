//! How long flash lasts: what its vendor says, from flags or settings, and the figures of a running server.

use crate::settings::{Given, Layers};
use crate::usage::usage;
use pumice_advise::Endurance;
use pumice_device::DeviceCounts;
use pumice_door_admin::Group;
use pumice_world::{Figure, Kind};
use std::time::Duration;

/// How long a server runs before its pace says something of a day.
const PACE: Duration = Duration::from_secs(3600);
const DAY_SECONDS: f64 = 86_400.0;
const GIGABYTE: f64 = 1e9;

/// What a vendor says of a drive: terabytes written, drive writes a day, or how often each cell can be written; gigabytes of the drive; years
/// of warranty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rating {
    /// Terabytes (10^12 bytes) written.
    pub tbw: Option<f64>,
    /// Drive writes a day, during the warranty.
    pub dwpd: Option<f64>,
    /// Times that each cell can be written.
    pub cycles: Option<f64>,
    /// Gigabytes (10^9 bytes).
    pub drive_size: Option<f64>,
    /// Years.
    pub warranty: Option<f64>,
}

impl Rating {
    /// The bytes that it comes to, if it says any. By cycles, those that a drive can write itself.
    ///
    /// # Errors
    /// Usage.
    pub fn endurance(&self) -> anyhow::Result<Option<Endurance>> {
        let size = self.drive_size.map(|gigabytes| gigabytes * GIGABYTE);
        let endurance = match (self.tbw, self.dwpd, self.cycles, size) {
            (Some(terabytes), ..) => Some(Endurance::of_tbw(terabytes)),
            (_, Some(writes), _, Some(size)) => Some(Endurance::of_dwpd(writes, size, self.warranty)),
            (.., Some(cycles), Some(size)) => Some(Endurance::of_cycles(cycles, size)),
            _ => None,
        };
        endurance
            .transpose()
            .map_err(|error| usage(format!("the rating of the drive: {error}")))
    }

    /// The endurance by a server's settings, and the setting that has it.
    ///
    /// # Errors
    /// Usage, for a setting that makes no sense or says nothing without another.
    pub fn of_settings(layers: &Layers) -> anyhow::Result<Option<(Endurance, Given<'_>)>> {
        let number = |given: &Given<'_>| {
            let number = given.text()?.map(positive).transpose();
            number.map_err(|what| given.wrong(what))
        };
        let rating = Self {
            tbw: number(&layers.tbw())?,
            dwpd: number(&layers.dwpd())?,
            cycles: number(&layers.cycles())?,
            drive_size: number(&layers.drive_size())?,
            warranty: number(&layers.warranty())?,
        };
        let given = [
            (rating.tbw, layers.tbw()),
            (rating.dwpd, layers.dwpd()),
            (rating.cycles, layers.cycles()),
        ];
        let mut given = given.into_iter().filter(|(number, _)| number.is_some());
        let (first, second) = (given.next(), given.next());
        if let Some((_, second)) = second {
            return Err(second.wrong("give only one of --tbw, --dwpd and --cycles"));
        }
        let needs_size = rating.dwpd.is_some() || rating.cycles.is_some();
        if needs_size
            && rating.drive_size.is_none()
            && let Some((_, first)) = &first
        {
            return Err(first.wrong("of a drive of which size? Give --drive-size"));
        }
        if !needs_size && rating.drive_size.is_some() {
            return Err(layers
                .drive_size()
                .wrong("it is for --dwpd or --cycles, which are not given"));
        }
        if rating.dwpd.is_none() && rating.warranty.is_some() {
            return Err(layers.warranty().wrong("it is for --dwpd, which is not given"));
        }
        Ok(rating.endurance()?.zip(first.map(|(_, first)| first)))
    }
}

/// A number of a flag.
///
/// # Errors
/// It is none, or outside 1e-12 to 1e18.
pub fn positive(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &f64| (1e-12..1e18).contains(number));
    number.ok_or_else(|| "expected a number from 1e-12 to 1e18".to_owned())
}

/// What a server has sent to its flash device, and what a day and a life of that pace are.
pub struct Pace {
    uptime: Duration,
    host_bytes: u64,
    /// Bytes of a day, and years, as far as they can be said.
    day_bytes: Option<f64>,
    years: Option<f64>,
}

impl Pace {
    /// The pace of a server that has run for `uptime`.
    pub fn of(uptime: Duration, device: &DeviceCounts, endurance: Option<Endurance>) -> Self {
        let host_bytes = device.written_bytes + device.log_bytes;
        let day_bytes = (uptime >= PACE).then(|| host_bytes as f64 * DAY_SECONDS / uptime.as_secs_f64());
        // Where nothing is written it lasts for ever, which is no number.
        let written = day_bytes.filter(|bytes| *bytes > 0.0);
        Self {
            uptime,
            host_bytes,
            day_bytes,
            years: endurance
                .zip(written)
                .map(|(endurance, day_bytes)| endurance.years(day_bytes)),
        }
    }

    /// For metrics.
    pub fn group(&self) -> Group {
        let gauge = |name, help, value| Figure {
            name,
            help,
            kind: Kind::Gauge,
            value,
        };
        let mut figures = vec![Figure::documented(
            "host_bytes",
            "Bytes sent to the flash device since the start",
            Kind::Counter,
            self.host_bytes,
        )];
        let day = self.day_bytes.map(|bytes| {
            let help = "Bytes sent to the flash device in a day, at the pace since the start; absent in the first hour";
            gauge("day_bytes", help, bytes)
        });
        let years = self.years.map(|years| {
            let help = "Years for which the rating of `tbw`, `dwpd` or `cycles` lasts at the pace since the start, by `cycles` to be divided by the drive's write amplification; absent in the first hour, and where none is given";
            gauge("years", help, years)
        });
        figures.extend(day.into_iter().chain(years));
        Group {
            room: "lifetime",
            figures,
        }
    }

    /// For the log; none in the first hour.
    pub fn line(&self) -> Option<String> {
        let day_bytes = self.day_bytes?;
        let years = self.years.map_or_else(String::new, |years| {
            format!(": the rating lasts {years:.1} years")
        });
        Some(format!(
            "{:.3} GB sent to the flash device in {:.1} hours, {:.3} GB a day{years}",
            self.host_bytes as f64 / GIGABYTE,
            self.uptime.as_secs_f64() / 3600.0,
            day_bytes / GIGABYTE,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn layers(pairs: &[(&str, &str)]) -> Layers {
        let text: String = pairs
            .iter()
            .map(|(name, value)| format!("{name} = \"{value}\"\n"))
            .collect();
        Layers::collect(toml::from_str::<Settings>(&text).unwrap(), None).unwrap()
    }

    fn endurance_by(pairs: &[(&str, &str)]) -> Option<Endurance> {
        let layers = layers(pairs);
        let found = Rating::of_settings(&layers).unwrap();
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
            let error = Rating::of_settings(&layers).unwrap_err();
            // The place of the setting comes before its text and what is wrong.
            let error = error.to_string();
            assert!(
                error.split(" `").next().unwrap().ends_with(named),
                "{pairs:?}: {error}"
            );
        }
    }
}
