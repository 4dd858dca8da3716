//! How long flash lasts.

use thiserror::Error;

const DAYS: f64 = 365.0;
const WARRANTY_YEARS: f64 = 5.0;

/// Bytes that a drive is rated to take from its host. Units are decimal, as vendors count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Endurance {
    rated_bytes: f64,
}

/// Why a rating makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EnduranceError {
    /// Zero, negative, or no number.
    #[error("must be a number above 0")]
    Positive,
}

fn positive(value: f64) -> Result<f64, EnduranceError> {
    (value.is_finite() && value > 0.0)
        .then_some(value)
        .ok_or(EnduranceError::Positive)
}

impl Endurance {
    /// TBW: terabytes written.
    ///
    /// # Errors
    /// [`EnduranceError`].
    pub fn of_tbw(terabytes: f64) -> Result<Self, EnduranceError> {
        Ok(Self {
            rated_bytes: positive(terabytes)? * 1e12,
        })
    }

    /// DWPD: drive writes a day, of a drive of `bytes`, during its warranty (5 years by default).
    ///
    /// # Errors
    /// [`EnduranceError`].
    pub fn of_dwpd(writes: f64, bytes: f64, warranty_years: Option<f64>) -> Result<Self, EnduranceError> {
        let years = positive(warranty_years.unwrap_or(WARRANTY_YEARS))?;
        Ok(Self {
            rated_bytes: positive(writes)? * positive(bytes)? * DAYS * years,
        })
    }

    /// Times that each of `bytes` of flash can be written: years are then of what the drive writes itself.
    ///
    /// # Errors
    /// [`EnduranceError`].
    pub fn of_cycles(cycles: f64, bytes: f64) -> Result<Self, EnduranceError> {
        Ok(Self {
            rated_bytes: positive(cycles)? * positive(bytes)?,
        })
    }

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
        // 600 TBW at 200 GB a day.
        let years = Endurance::of_tbw(600.0).unwrap().years(200e9);
        assert!((years - 8.219).abs() < 0.001, "{years}");
        // One drive write a day for 5 years, of which half is used.
        let drive = Endurance::of_dwpd(1.0, 1e12, None).unwrap();
        assert_eq!(drive.years(0.5e12), 10.0);
        assert_eq!(Endurance::of_dwpd(1.0, 1e12, Some(3.0)).unwrap().years(1e12), 3.0);
        // 3000 cycles of 1 TB at 1.5 TB a day.
        assert_eq!(
            Endurance::of_cycles(3000.0, 1e12).unwrap().years(1.5e12),
            2000.0 / 365.0
        );
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Endurance::of_tbw(bad), Err(EnduranceError::Positive));
        }
    }
}
