//! Times as flags take them, and as people read them.

/// Nanoseconds of a flag such as `86us`, above 0 and at most a minute.
pub fn time(text: &str) -> Result<f64, String> {
    let ns = pumice_sim::duration(text).filter(|ns| (1..=60_000_000_000).contains(ns));
    ns.map(|ns| ns as f64).ok_or_else(|| {
        "expected a time above 0 and at most 60s, such as 86us or 2.35ms (ns, us, ms, s)".to_owned()
    })
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
