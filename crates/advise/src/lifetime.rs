//! How long flash lasts.

const DAYS: f64 = 365.0;
const WARRANTY_YEARS: f64 = 5.0;
const GIGABYTE: f64 = 1e9;

/// What a vendor says of a drive: terabytes written, drive writes a day, or how often each cell can be written; gigabytes of the drive; years
/// of warranty. Units are decimal, as vendors count; all numbers are [`positive`].
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
    /// Years; 5 if nothing is said.
    pub warranty: Option<f64>,
}

impl Rating {
    /// The bytes that it comes to, if it says any. By cycles, those that a drive can write itself.
    pub fn endurance(&self) -> Option<Endurance> {
        let size = self.drive_size.map(|gigabytes| gigabytes * GIGABYTE);
        let rated_bytes = match (self.tbw, self.dwpd, self.cycles, size) {
            (Some(terabytes), ..) => terabytes * 1e12,
            (_, Some(writes), _, Some(size)) => {
                writes * size * DAYS * self.warranty.unwrap_or(WARRANTY_YEARS)
            }
            (.., Some(cycles), Some(size)) => cycles * size,
            _ => return None,
        };
        Some(Endurance { rated_bytes })
    }
}

/// A number of a rating.
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

/// Bytes that a drive is rated to take: from its host, or by cycles from itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Endurance {
    rated_bytes: f64,
}

impl Endurance {
    /// Years until the rating is used up; infinite if nothing is written.
    pub fn years(&self, bytes_a_day: f64) -> f64 {
        self.rated_bytes / bytes_a_day / DAYS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rating_lasts_as_long_as_bytes_are_left() {
        let years = |rating: Rating, bytes_a_day| rating.endurance().unwrap().years(bytes_a_day);
        // 600 TBW at 200 GB a day.
        let drive = Rating {
            tbw: Some(600.0),
            ..Rating::default()
        };
        let found = years(drive, 200e9);
        assert!((found - 8.219).abs() < 0.001, "{found}");
        // One drive write a day for 5 years, of which half is used.
        let drive = Rating {
            dwpd: Some(1.0),
            drive_size: Some(1000.0),
            ..Rating::default()
        };
        assert_eq!(years(drive, 0.5e12), 10.0);
        let warranty = Some(3.0);
        assert_eq!(years(Rating { warranty, ..drive }, 1e12), 3.0);
        // 3000 cycles of 1 TB at 1.5 TB a day.
        let drive = Rating {
            cycles: Some(3000.0),
            drive_size: Some(1000.0),
            ..Rating::default()
        };
        assert_eq!(years(drive, 1.5e12), 2000.0 / 365.0);
        for bad in ["0", "-1", "NaN", "inf", "1e18", "x", ""] {
            assert!(positive(bad).is_err(), "{bad}");
        }
    }
}
