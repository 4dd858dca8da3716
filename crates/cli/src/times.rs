//! Times as flags take them, and as people read them.

/// Nanoseconds of a flag such as `86us`, above 0 and at most a minute.
pub fn time(text: &str) -> Result<f64, String> {
    let ns = pumice_device::duration(text).filter(|ns| (1..=60_000_000_000).contains(ns));
    ns.map(|ns| ns as f64).ok_or_else(|| {
        "expected a time above 0 and at most 60s, such as 86us or 2.35ms (ns, us, ms, s)".to_owned()
    })
}

/// Seconds of a text such as `90`, `90s`, `15m`, `2h` or `1d`; `None` for other text.
pub fn secs(text: &str) -> Option<u32> {
    let units = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];
    let unit = units
        .iter()
        .find_map(|(unit, secs)| Some((text.strip_suffix(unit)?, *secs)));
    let (number, secs) = unit.unwrap_or((text, 1));
    number.parse::<u32>().ok()?.checked_mul(secs)
}

/// Nanoseconds for people.
pub fn people(ns: f64) -> String {
    match ns {
        ns if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        ns if ns >= 1e3 => format!("{:.1} us", ns / 1e3),
        ns => format!("{ns:.0} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_have_a_unit() {
        for (text, expected) in [
            ("0", 0),
            ("90", 90),
            ("90s", 90),
            ("15m", 900),
            ("2h", 7_200),
            ("1d", 86_400),
        ] {
            assert_eq!(secs(text), Some(expected), "{text}");
        }
        for bad in ["", "s", "-1", "1.5h", "1w", "1 m", "5000000000", "60000d"] {
            assert_eq!(secs(bad), None, "{bad}");
        }
    }
}
