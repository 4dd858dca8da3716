//! The evaluation as comma-separated values, one line a replay.

use anyhow::Context;
use pumice_flash::Layout;
use pumice_sim::{Evaluation, Qualification, Report, Run, Setup};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::fmt;

/// What stands before the fields of a replay's report.
const BEFORE: [&str; 18] = [
    "run",
    "part",
    "workload",
    "qualifies",
    "inserted_per_cache",
    "cache_percent",
    "warmup",
    "alpha",
    "theta",
    "min_raise",
    "superblock_blocks",
    "block_bytes",
    "blocks",
    "twin_of",
    "object_loss_points",
    "byte_loss_points",
    "write_bytes",
    "utilisation",
];

/// One line: values by their columns' names.
type Line = Vec<(String, String)>;

/// The table, with a header. Twins have lines of their own, which name the line that they are the twin of.
///
/// # Errors
/// None is expected.
pub fn csv(evaluation: &Evaluation) -> anyhow::Result<String> {
    let mut lines: Vec<Line> = Vec::new();
    for run in &evaluation.runs {
        let number = lines.len() + 1;
        lines.push(replay(evaluation, run, &run.result, None)?);
        if let Some(twin) = &run.twin {
            lines.push(replay(evaluation, run, twin, Some(number))?);
        }
    }
    let names = lines.iter().max_by_key(|line| line.len()).context("no replay")?;
    let reported = names.iter().map(|(name, _)| name.clone());
    let mut header: Vec<String> = BEFORE.map(str::to_owned).to_vec();
    header.extend(reported.filter(|name| !BEFORE.contains(&name.as_str()) && name != "error"));
    header.push("error".to_owned());
    for row in evaluation.write_sizes.iter().flatten() {
        lines.push(named(&[
            ("part", "figure 2".to_owned()),
            ("write_bytes", row.write_bytes.to_string()),
            ("utilisation", row.utilisation.to_string()),
            (
                "device_write_amplification",
                row.device_write_amplification.to_string(),
            ),
        ]));
    }
    let mut text = header.join(",") + "\n";
    for (at, line) in lines.iter().enumerate() {
        let number = (at + 1).to_string();
        let values: Vec<String> = header
            .iter()
            .map(|name| match line.iter().find(|(of, _)| of == name) {
                Some((_, value)) => quoted(value),
                None if name == "run" => number.clone(),
                None => String::new(),
            })
            .collect();
        text += &values.join(",");
        text.push('\n');
    }
    Ok(text)
}

fn named(values: &[(&str, String)]) -> Line {
    values
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect()
}

/// The line of a replay, or of its twin.
fn replay(
    evaluation: &Evaluation,
    run: &Run,
    result: &Result<Report, String>,
    twin_of: Option<usize>,
) -> anyhow::Result<Line> {
    let plan = &evaluation.plan;
    let optional = |number: Option<f64>| number.map_or(String::new(), |number| number.to_string());
    let qualification = evaluation.qualification(run.workload);
    let mut line = named(&[
        ("part", plan.parts(&run.setup).join(";")),
        ("workload", evaluation.workloads[run.workload].name.clone()),
        (
            "qualifies",
            qualification.is_some_and(Qualification::qualifies).to_string(),
        ),
        (
            "inserted_per_cache",
            optional(qualification.map(|counts| counts.inserted_per_cache)),
        ),
        ("warmup", plan.warmup.to_string()),
    ]);
    match (&run.setup, twin_of) {
        (Setup::Exact { percent, .. }, _) => {
            line.extend(named(&[("cache_percent", percent.to_string())]));
        }
        (_, Some(of)) => line.extend(named(&[("twin_of", of.to_string())])),
        (
            Setup::Flash {
                layout,
                alpha,
                theta,
                min_raise,
                superblock_blocks,
                ..
            },
            None,
        ) => {
            line.extend(named(&[
                ("cache_percent", plan.percent.to_string()),
                ("superblock_blocks", superblock_blocks.to_string()),
                ("object_loss_points", optional(run.object_loss())),
                ("byte_loss_points", optional(run.byte_loss())),
            ]));
            if *layout == Layout::Ripq {
                line.extend(named(&[
                    ("alpha", alpha.to_string()),
                    ("min_raise", min_raise.to_string()),
                ]));
            }
            if *layout != Layout::Fifo {
                line.extend(named(&[("theta", theta.to_string())]));
            }
            if let Some(blocks) = run.blocks {
                line.extend(named(&[
                    ("block_bytes", blocks.block_bytes.to_string()),
                    ("blocks", blocks.blocks.to_string()),
                ]));
            }
        }
    }
    match result {
        Ok(report) => line.extend(fields(report)?),
        Err(error) => {
            // What a report would say itself.
            let (layout, policy) = match &run.setup {
                Setup::Exact { policy, .. } => ("exact", *policy),
                Setup::Flash { policy, .. } if twin_of.is_some() => ("exact", *policy),
                Setup::Flash { layout, policy, .. } => (layout.name(), *policy),
            };
            line.extend(named(&[
                ("layout", layout.to_owned()),
                ("policy", policy.to_owned()),
                ("error", error.clone()),
            ]));
        }
    }
    Ok(line)
}

/// The fields of a report, in the order of its contract.
fn fields(report: &Report) -> anyhow::Result<Line> {
    let text = serde_json::to_string(report).context("cannot write a report")?;
    let Fields(line) = serde_json::from_str(&text).context("cannot read a report")?;
    Ok(line)
}

struct Fields(Line);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut line = Line::new();
                while let Some((name, value)) = map.next_entry::<String, serde_json::Value>()? {
                    let value = match value {
                        serde_json::Value::Null => String::new(),
                        serde_json::Value::String(text) => text,
                        other => other.to_string(),
                    };
                    line.push((name, value));
                }
                Ok(Fields(line))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

fn quoted(value: &str) -> String {
    if value.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", value.replace('"', "\"\""))
    } else {
        value.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_commas_and_quotes_are_quoted() {
        assert_eq!(quoted("a b"), "a b");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }

    #[test]
    fn a_replay_that_failed_says_which_it_was() {
        let options = pumice_trace::TraceOptions {
            format: Some("time-id-size".parse().unwrap()),
            columns: None,
        };
        let evaluation = pumice_sim::evaluate(
            vec![pumice_sim::Workload {
                name: "gone".to_owned(),
                source: "gone".to_owned(),
                trace: pumice_trace::Trace::new("/no/such/trace", options).unwrap(),
            }],
            pumice_sim::Plan {
                write_sizes: pumice_sim::WriteSizeOptions {
                    write_bytes: Vec::new(),
                    ..Default::default()
                },
                ..pumice_sim::Plan::quick()
            },
            1,
            &mut |_| (),
        );
        let table = csv(&evaluation).unwrap();
        let mut lines = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let header = lines.next().unwrap();
        let at = |name| header.iter().position(|of| *of == name).unwrap();
        let (layout, policy, error) = (at("layout"), at("policy"), at("error"));
        let mut seen = std::collections::BTreeSet::new();
        for line in lines {
            assert!(line[error].contains("/no/such/trace"), "{line:?}");
            seen.insert((line[layout].to_owned(), line[policy].to_owned()));
        }
        assert!(
            seen.contains(&("ripq".to_owned(), "slru-3".to_owned())),
            "{seen:?}"
        );
        assert!(
            seen.contains(&("exact".to_owned(), "gdsf-2".to_owned())),
            "{seen:?}"
        );
    }
}
