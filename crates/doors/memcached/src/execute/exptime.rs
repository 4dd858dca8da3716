//! From the protocol's expiry times to absolute ones.

use crate::parse::Exptime;

/// Times up to this many seconds count from now; larger ones are Unix time.
const MAX_RELATIVE_SECS: i64 = 60 * 60 * 24 * 30;

/// An absolute time that has always passed.
const LONG_AGO: u32 = 1;

/// The Unix time in seconds at which an object expires, 0 for never; [`LONG_AGO`] where it is expired at once.
pub(super) fn absolute(exptime: Exptime, now: u32) -> u32 {
    match exptime.0 {
        0 => 0,
        at_once if at_once < 0 => LONG_AGO,
        relative if relative <= MAX_RELATIVE_SECS => saturate(i64::from(now) + relative),
        absolute => saturate(absolute),
    }
}

/// The Unix time in seconds of a flush; none where it is to happen at once.
pub(super) fn flush_time(delay: Option<Exptime>, now: u32) -> Option<u32> {
    let at = absolute(delay?, now);
    (at > now).then_some(at)
}

fn saturate(secs: i64) -> u32 {
    u32::try_from(secs).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u32 = 1_800_000_000;

    #[test]
    fn thirty_days_divide_relative_from_absolute() {
        let month = u32::try_from(MAX_RELATIVE_SECS).unwrap();
        assert_eq!(absolute(Exptime(0), NOW), 0);
        assert_eq!(absolute(Exptime(1), NOW), NOW + 1);
        assert_eq!(absolute(Exptime(MAX_RELATIVE_SECS), NOW), NOW + month);
        assert_eq!(absolute(Exptime(MAX_RELATIVE_SECS + 1), NOW), month + 1);
        assert_eq!(absolute(Exptime(i64::from(NOW) + 5), NOW), NOW + 5);
    }

    #[test]
    fn negative_times_have_passed_and_huge_ones_saturate() {
        assert_eq!(absolute(Exptime(-1), NOW), LONG_AGO);
        assert_eq!(absolute(Exptime(i64::MIN), NOW), LONG_AGO);
        assert_eq!(absolute(Exptime(i64::MAX), NOW), u32::MAX);
        assert_eq!(absolute(Exptime(100), u32::MAX), u32::MAX);
    }

    #[test]
    fn a_flush_in_the_past_is_now() {
        assert_eq!(flush_time(None, NOW), None);
        assert_eq!(flush_time(Some(Exptime(0)), NOW), None);
        assert_eq!(flush_time(Some(Exptime(-1)), NOW), None);
        assert_eq!(flush_time(Some(Exptime(10)), NOW), Some(NOW + 10));
    }
}
