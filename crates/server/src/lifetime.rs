//! How long flash lasts: what its vendor says, from flags or settings, and the figures of a running server.

use crate::settings::{Given, Layers};
use pumice_advise::{Endurance, Rating, positive};
use pumice_device::DeviceCounts;
use pumice_door_admin::{Group, group};
use std::time::Duration;

/// How long a server runs before its pace says something of a day.
const PACE: Duration = Duration::from_secs(3600);
const DAY_SECONDS: f64 = 86_400.0;
const GIGABYTE: f64 = 1e9;

/// The endurance by a server's settings, and the setting that has it.
///
/// # Errors
/// Usage, for a setting that makes no sense or says nothing without another.
pub fn endurance(layers: &Layers) -> anyhow::Result<Option<(Endurance, Given<'_>)>> {
    let number = |given: &Given<'_>| given.read(positive);
    let rating = Rating {
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
    Ok(rating.endurance().zip(first.map(|(_, first)| first)))
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
        let day = self.day_bytes.map(|bytes| {
            group! { "";
                Gauge day_bytes "Bytes sent to the flash device in a day, at the pace since the start; absent in the first hour" = bytes;
            }
        });
        let years = self.years.map(|years| {
            group! { "";
                Gauge years "Years for which the rating of `tbw`, `dwpd` or `cycles` lasts at the pace since the start, by `cycles` to be divided by the drive's write amplification; absent in the first hour, and where none is given" = years;
            }
        });
        let figures = |group: Option<Group>| group.map_or_else(Vec::new, |group| group.figures);
        group! { "lifetime", figures(day), figures(years);
            Counter host_bytes "Bytes sent to the flash device since the start" = self.host_bytes;
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
