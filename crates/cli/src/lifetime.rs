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

/// What a vendor says of a drive: terabytes written, or drive writes a day, gigabytes of the drive and years of warranty.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rating {
    pub(crate) tbw: Option<f64>,
    pub(crate) dwpd: Option<f64>,
    pub(crate) drive_size: Option<f64>,
    pub(crate) warranty: Option<f64>,
}

impl Rating {
    /// The bytes that it comes to, if it says any.
    ///
    /// # Errors
    /// Usage.
    pub(crate) fn endurance(&self) -> anyhow::Result<Option<Endurance>> {
        let endurance = match (self.tbw, self.dwpd, self.drive_size) {
            (Some(terabytes), ..) => Some(Endurance::of_tbw(terabytes)),
            (None, Some(writes), Some(gigabytes)) => {
                Some(Endurance::of_dwpd(writes, gigabytes * GIGABYTE, self.warranty))
            }
            _ => None,
        };
        endurance
            .transpose()
            .map_err(|error| usage(format!("--tbw or --dwpd: {error}")))
    }

    /// The rating of a server's settings.
    ///
    /// # Errors
    /// Usage, for one that makes no sense or says nothing without another.
    pub(crate) fn of_settings(layers: &Layers) -> anyhow::Result<Self> {
        let number = |given: &Given<'_>| {
            let number = given.text()?.map(positive).transpose();
            number.map_err(|what| given.wrong(what))
        };
        let rating = Self {
            tbw: number(&layers.tbw())?,
            dwpd: number(&layers.dwpd())?,
            drive_size: number(&layers.drive_size())?,
            warranty: number(&layers.warranty())?,
        };
        match (rating.tbw, rating.dwpd, rating.drive_size, rating.warranty) {
            (Some(_), Some(_), ..) => Err(layers
                .dwpd()
                .wrong("--tbw says it already: give only one of them")),
            (_, Some(_), None, _) => Err(layers.dwpd().wrong("of a drive of which size? Give --drive-size")),
            (_, None, Some(_), _) => Err(layers.drive_size().wrong("it is for --dwpd, which is not given")),
            (_, None, _, Some(_)) => Err(layers.warranty().wrong("it is for --dwpd, which is not given")),
            _ => Ok(rating),
        }
    }
}

/// A number of a flag.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &f64| (1e-12..1e18).contains(number));
    number.ok_or_else(|| "expected a number from 1e-12 to 1e18".to_owned())
}

/// What a server has sent to its flash device, and what a day and a life of that pace are.
pub(crate) struct Pace {
    uptime: Duration,
    host_bytes: u64,
    /// Bytes of a day, and years, as far as they can be said.
    day_bytes: Option<f64>,
    years: Option<f64>,
}

impl Pace {
    /// The pace of a server that has run for `uptime`.
    pub(crate) fn of(uptime: Duration, device: &DeviceCounts, endurance: Option<Endurance>) -> Self {
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
    pub(crate) fn group(&self) -> Group {
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
            let help = "Years for which the rating of `tbw` or `dwpd` lasts at the pace since the start; absent in the first hour, and where neither is given";
            gauge("years", help, years)
        });
        figures.extend(day.into_iter().chain(years));
        Group {
            room: "lifetime",
            figures,
        }
    }

    /// For the log; none in the first hour.
    pub(crate) fn line(&self) -> Option<String> {
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

    #[test]
    fn a_server_says_how_long_its_flash_lasts_from_its_first_hour_on() {
        let counts = DeviceCounts {
            written_bytes: 39_000_000_000,
            log_bytes: 1_000_000_000,
            ..DeviceCounts::default()
        };
        let endurance = Rating::of_settings(&layers(&[("tbw", "600")]))
            .unwrap()
            .endurance()
            .unwrap();
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
        let dwpd = Rating::of_settings(&layers(&[
            ("dwpd", "1"),
            ("drive-size", "1000"),
            ("warranty", "3"),
        ]));
        assert_eq!(dwpd.unwrap().endurance().unwrap().unwrap().years(1e12), 3.0);
        assert!(
            Rating::of_settings(&layers(&[]))
                .unwrap()
                .endurance()
                .unwrap()
                .is_none()
        );
        for (pairs, named) in [
            (vec![("tbw", "0")], "tbw"),
            (vec![("tbw", "600TB")], "tbw"),
            (vec![("tbw", "1"), ("dwpd", "1"), ("drive-size", "1")], "dwpd"),
            (vec![("dwpd", "1")], "drive-size"),
            (vec![("drive-size", "1")], "drive-size"),
            (vec![("warranty", "1"), ("tbw", "1")], "warranty"),
        ] {
            let error = Rating::of_settings(&layers(&pairs)).unwrap_err();
            assert!(error.to_string().contains(named), "{pairs:?}: {error}");
        }
    }
}
