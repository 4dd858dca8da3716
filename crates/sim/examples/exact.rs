//! Replays a trace under layout `exact` and prints the report: a way to measure the speed of replays.
//!
//! `cargo run --release -p pumice-sim --example exact -- TRACE POLICY SIZE [FORMAT]`

use std::error::Error;

use pumice_sim::{ExactOptions, ReplayRules, replay_exact};
use pumice_trace::{Format, Trace, TraceOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, policy, size, rest @ ..] = arguments.as_slice() else {
        return Err("usage: exact TRACE POLICY SIZE [FORMAT]".into());
    };
    let format = Format::parse_or_auto(rest.first().map_or("auto", String::as_str))?;
    let trace = Trace::new(
        name,
        TraceOptions {
            format,
            columns: None,
        },
    )?;
    let options = ExactOptions {
        policy: policy.clone(),
        size: size.parse()?,
        object_bytes_max: None,
        rules: ReplayRules::default(),
    };
    let report = replay_exact(&trace, &options, &mut |_| {})?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
