//! What `advise` prints.

use crate::times::people;
use pumice_advise::Offer;
use pumice_sim::Rule;
use pumice_trace::Human;
use serde::Serialize;
use std::fmt::Write as _;

/// One size on offer, as it is printed. Ratios are fractions; times are in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// Why it is there: advice, cheaper, faster, dram alone, today.
    pub(super) what: &'static str,
    pub(super) dram_bytes: u64,
    pub(super) flash_bytes: u64,
    pub(super) money: f64,
    pub(super) hit_ratio: f64,
    /// Share of gets that DRAM answers.
    pub(super) dram_hit_ratio: f64,
    pub(super) response_ns: f64,
    /// Absolute difference between `response_ns` and the mean response time of a second replay, in virtual time. Null where the engine was
    /// not replayed.
    pub(super) response_error_ns: Option<f64>,
    /// `engine` if the figures are of a replay through the engine, `curve` if they are of exact LRU.
    pub(super) figures_of: &'static str,
    /// Hit ratio of exact LRU of the larger of the two sizes.
    pub(super) curve_hit_ratio: f64,
    /// Mean response time by that and equation 2.
    pub(super) curve_response_ns: f64,
    /// Index of the engine.
    pub(super) index: Option<String>,
    pub(super) index_dram_bytes: Option<u64>,
    /// Bytes sent to the drive during the trace.
    pub(super) bytes_written_host: Option<u64>,
    pub(super) host_bytes_a_day: Option<f64>,
    pub(super) flash_years: Option<f64>,
    /// Bytes that the flash writes for each that is sent to it, as a simulated drive does; with `--cycles`, by which its life comes from that.
    pub(super) device_write_amplification: Option<f64>,
    pub(super) flash_years_by_cycles: Option<f64>,
    /// Mean over the trace.
    pub(super) flash_reads_a_second: Option<f64>,
    /// DRAM that the flash saves, by equal response time (equation 2), and by equal hits (equation 3).
    pub(super) equal_dram_by_response: Option<u64>,
    pub(super) equal_dram_by_hits: Option<u64>,
    /// Share that is saved of the money for that DRAM (by response time), and of all the DRAM that would do without flash.
    pub(super) saved_of_replaced: Option<f64>,
    pub(super) saved_of_whole: Option<f64>,
    /// Of the advice: what becomes of it where less is written to flash.
    pub(super) by_rule: Vec<ByRule>,
    pub(super) command: Option<String>,
}

/// A row under another rule of what goes to flash.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ByRule {
    /// As `--flash-admit` takes it.
    pub(super) rule: String,
    pub(super) hit_ratio: f64,
    pub(super) response_ns: f64,
    pub(super) bytes_written_host: Option<u64>,
    pub(super) flash_years: Option<f64>,
}

impl ByRule {
    /// Of a row that was replayed with the rule.
    pub(super) fn of(rule: Rule, row: &Row) -> Self {
        Self {
            rule: rule.to_string(),
            hit_ratio: row.hit_ratio,
            response_ns: row.response_ns,
            bytes_written_host: row.bytes_written_host,
            flash_years: row.years(),
        }
    }

    /// For people; `all` is what is written without the rule.
    fn text(&self, all: Option<u64>) -> String {
        let share = self.bytes_written_host.zip(all.filter(|all| *all > 0));
        let share = share.map_or_else(String::new, |(bytes, all)| {
            format!("{:.2} x the bytes written, ", bytes as f64 / all as f64)
        });
        let years = self.flash_years;
        let years = years.map_or_else(String::new, |years| format!(", {years:.1} years"));
        format!(
            "with --flash-admit {}: {share}{:.1} % hits, {}{years}",
            self.rule,
            self.hit_ratio * 100.0,
            people(self.response_ns)
        )
    }
}

impl Row {
    /// The figures that the curve has of an offer.
    pub(super) fn of_curve(what: &'static str, offer: &Offer) -> Self {
        Self {
            what,
            dram_bytes: offer.dram,
            flash_bytes: offer.flash,
            money: offer.money,
            hit_ratio: offer.hits,
            dram_hit_ratio: offer.dram_hits,
            response_ns: offer.response_ns,
            response_error_ns: None,
            figures_of: "curve",
            curve_hit_ratio: offer.hits,
            curve_response_ns: offer.response_ns,
            index: None,
            index_dram_bytes: None,
            bytes_written_host: None,
            host_bytes_a_day: None,
            flash_years: None,
            device_write_amplification: None,
            flash_years_by_cycles: None,
            flash_reads_a_second: None,
            equal_dram_by_response: None,
            equal_dram_by_hits: None,
            saved_of_replaced: None,
            saved_of_whole: None,
            by_rule: Vec::new(),
            command: None,
        }
    }

    /// The first row that costs as much as another and is no faster, and that other; of two that are equal the later is the one. Today's sizes
    /// are none that are offered.
    pub(super) fn no_bargain(rows: &[Self]) -> Option<(usize, usize)> {
        let is_as_good =
            |row: &Self, other: &Self| row.money <= other.money && row.response_ns <= other.response_ns;
        let is_offer = |at: &usize| rows[*at].what != "today";
        let mut offered = (0..rows.len()).filter(is_offer);
        offered.find_map(|at| {
            let mut others = (0..rows.len()).filter(is_offer).filter(|other| *other != at);
            let is_better = |other: &usize| {
                let (row, other_row) = (&rows[at], &rows[*other]);
                is_as_good(other_row, row) && (*other < at || !is_as_good(row, other_row))
            };
            others.find(is_better).map(|other| (at, other))
        })
    }

    /// A line for each other rule of what goes to flash.
    pub(super) fn rules(&self) -> impl Iterator<Item = String> {
        (self.by_rule.iter()).map(|by_rule| by_rule.text(self.bytes_written_host))
    }

    /// What is said of an advice without flash.
    pub(super) fn no_flash(&self) -> String {
        format!(
            "no flash is needed: {} of DRAM alone are the advice",
            Human(self.dram_bytes)
        )
    }

    /// The error of the response time, for people.
    pub(super) fn error(&self) -> String {
        let share = |ns: f64| ns / self.response_ns * 100.0;
        (self.response_error_ns.map(share)).map_or_else(String::new, |percent| format!("± {percent:.1} %"))
    }

    /// Years that the flash lasts by the rating that ends first.
    pub(super) fn years(&self) -> Option<f64> {
        match (self.flash_years, self.flash_years_by_cycles) {
            (Some(years), Some(cycles)) => Some(years.min(cycles)),
            (years, cycles) => years.or(cycles),
        }
    }
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub(super) struct Advice {
    pub(super) trace: String,
    pub(super) requests: u64,
    pub(super) sets: u64,
    pub(super) objects: u64,
    pub(super) footprint_bytes: u64,
    /// Share of the keys that the curve is made of.
    pub(super) sampling_rate: f64,
    pub(super) hit_ratio_max: f64,
    pub(super) dram_ns: f64,
    pub(super) flash_ns: f64,
    pub(super) miss_ns: f64,
    /// What was asked for: money, response, or neither (near the fastest).
    pub(super) limit: &'static str,
    pub(super) rows: Vec<Row>,
    /// What the trace cannot say, and which sizes do not last.
    pub(super) notes: Vec<String>,
    /// The advice under other prices and latencies.
    pub(super) turns: Vec<Turn>,
    /// The first row under twice the traffic, if it has flash.
    pub(super) twice: Option<Twice>,
    /// Seconds that the trace took, as given or by its times.
    pub(super) span_seconds: Option<f64>,
    /// Time for the pass that made the curve.
    pub(super) curve_seconds: f64,
    /// Sizes beyond which more is worth much less, with the hit ratio of exact LRU.
    pub(super) knees: Vec<(u64, f64)>,
    /// Size, and hit ratio of requests and of bytes of exact LRU, from a thousandth of the bytes of all objects to all.
    pub(super) curve: Vec<(u64, f64, f64)>,
}

/// The advice if something were otherwise.
#[derive(Debug, Serialize)]
pub(super) struct Turn {
    pub(super) what: &'static str,
    pub(super) dram_bytes: u64,
    pub(super) flash_bytes: u64,
    pub(super) is_other: bool,
}

/// What twice the requests a second do to a row: its hits and response time stay, as long as nothing has to queue.
#[derive(Debug, Serialize)]
pub(super) struct Twice {
    pub(super) flash_reads_a_second: Option<f64>,
    pub(super) flash_years: Option<f64>,
    /// Whether that is less than `--years`.
    pub(super) is_too_short: bool,
}

impl Twice {
    /// None of a row that was not replayed.
    pub(super) fn of(row: &Row, wanted: Option<f64>) -> Option<Self> {
        row.bytes_written_host?;
        let flash_years = row.years().map(|years| years / 2.0);
        Some(Self {
            flash_reads_a_second: row.flash_reads_a_second.map(|reads| reads * 2.0),
            flash_years,
            is_too_short: flash_years
                .zip(wanted)
                .is_some_and(|(years, wanted)| years < wanted),
        })
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = "if there were twice the traffic: the same sizes".to_owned();
        if let Some(reads) = self.flash_reads_a_second {
            text += &format!("; the flash would have to take {reads:.0} reads a second");
        }
        if let Some(years) = self.flash_years {
            text += &format!("; it would last {years:.1} years");
        }
        if self.is_too_short {
            text += ", less than --years";
        }
        text
    }
}

impl Advice {
    /// The knees of the curve, for people.
    pub(super) fn bends(&self) -> String {
        let knees = self.knees.iter();
        let knees: Vec<String> = knees
            .map(|(size, ratio)| format!("{} ({:.1} %)", Human(*size), ratio * 100.0))
            .collect();
        match knees.is_empty() {
            true => "LRU's curve has no knee: its hits rise evenly with the size".to_owned(),
            false => format!(
                "knees of LRU's curve, where the next doubling brings at most half the hits of the last: {}",
                knees.join(", ")
            ),
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        let percent = |ratio: f64| format!("{:.1} %", ratio * 100.0);
        let _ = writeln!(
            out,
            "{}: {} gets of {} objects, {} in all; a cache of everything would have {} hits",
            self.trace,
            self.requests,
            self.objects,
            Human(self.footprint_bytes),
            percent(self.hit_ratio_max)
        );
        if let Some(seconds) = self.span_seconds {
            let _ = writeln!(out, "it was recorded in {:.2} hours", seconds / 3600.0);
        }
        let _ = writeln!(
            out,
            "a request takes {} from DRAM, {} from flash, {} on a miss\n",
            people(self.dram_ns),
            people(self.flash_ns),
            people(self.miss_ns)
        );
        let _ = writeln!(
            out,
            "{:<12}{:>10}{:>10}{:>9}{:>10}{:>12}{:>9}{:>11}{:>13}{:>12}",
            "", "DRAM", "flash", "hits", "of DRAM", "response", "", "money", "written/day", "years"
        );
        for row in &self.rows {
            let day = row
                .host_bytes_a_day
                .map_or("-".into(), |bytes| format!("{:.1} GB", bytes / 1e9));
            let years = row.years().map_or("-".into(), |years| format!("{years:.1}"));
            let _ = writeln!(
                out,
                "{:<12}{:>10}{:>10}{:>9}{:>10}{:>12}{:>9}{:>11.2}{:>13}{:>12}",
                row.what,
                Human(row.dram_bytes).to_string(),
                Human(row.flash_bytes).to_string(),
                percent(row.hit_ratio),
                percent(row.dram_hit_ratio),
                people(row.response_ns),
                row.error(),
                row.money,
                day,
                years
            );
        }
        out.push_str("\nfigures are of look-aside: a get that misses is followed by a set of the object\n");
        let _ = writeln!(out, "{}\n", self.bends());
        if self.rows.iter().any(|row| row.figures_of == "curve") {
            let _ = writeln!(out, "figures of rows without bytes written are of exact LRU\n");
        }
        if self.rows.iter().any(|row| row.response_error_ns.is_some()) {
            out.push_str("± is how much a replay of request after request, in virtual time, differs\n\n");
        }
        let best = self.rows.first();
        if best.is_some_and(|row| row.what == "nearest") {
            let what = if self.limit == "money" {
                "--budget"
            } else {
                "--response"
            };
            let _ = writeln!(out, "no sizes keep {what}; the nearest are shown");
        }
        if let Some(row) = best.filter(|row| row.flash_bytes == 0) {
            let _ = writeln!(out, "{}", row.no_flash());
            row.command.iter().for_each(|command| {
                let _ = writeln!(out, "run: {command}");
            });
        }
        if let Some(row) = best.filter(|row| row.flash_bytes > 0) {
            if let (Some(equal), Some(replaced), Some(whole)) = (
                row.equal_dram_by_response,
                row.saved_of_replaced,
                row.saved_of_whole,
            ) {
                let _ = writeln!(
                    out,
                    "by LRU's curve, {} of flash beside {} of DRAM equal {} more of DRAM by response time (by hits {}): that saves {} of the money for the DRAM replaced, {} of the whole",
                    Human(row.flash_bytes),
                    Human(row.dram_bytes),
                    Human(equal),
                    Human(row.equal_dram_by_hits.unwrap_or(0)),
                    percent(replaced),
                    percent(whole)
                );
            }
            if let Some((years, amplification)) =
                row.flash_years_by_cycles.zip(row.device_write_amplification)
            {
                let by_rating = row
                    .flash_years
                    .map_or_else(String::new, |years| format!(", by bytes written {years:.1}"));
                let _ = writeln!(
                    out,
                    "by --cycles the flash lasts {years:.1} years{by_rating}: a drive writes {amplification:.3} bytes for each that it is sent"
                );
            }
            if let Some(command) = &row.command {
                let _ = writeln!(out, "run: {command}");
                row.rules().for_each(|line| {
                    let _ = writeln!(out, "{line}");
                });
            }
        }
        let (other, same): (Vec<_>, Vec<_>) = self.turns.iter().partition(|turn| turn.is_other);
        for turn in other {
            let _ = writeln!(
                out,
                "if {}: {} of DRAM, {} of flash",
                turn.what,
                Human(turn.dram_bytes),
                Human(turn.flash_bytes)
            );
        }
        if !same.is_empty() {
            let names: Vec<_> = same.iter().map(|turn| turn.what).collect();
            let _ = writeln!(out, "the advice is the same if {}", names.join("; "));
        }
        if let Some(twice) = &self.twice {
            let _ = writeln!(out, "{}", twice.text());
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(of: &[(&'static str, f64, f64)]) -> Vec<Row> {
        let row = |(what, money, response_ns): &(&'static str, f64, f64)| {
            let offer = Offer {
                dram: 1,
                flash: 0,
                dram_items: 1,
                dram_hits: 0.0,
                hits: 0.0,
                response_ns: *response_ns,
                money: *money,
            };
            Row::of_curve(what, &offer)
        };
        of.iter().map(row).collect()
    }

    #[test]
    fn a_row_that_costs_as_much_as_another_is_faster_or_it_is_none() {
        for (of, expected) in [
            (
                &[
                    ("advice", 2.0, 5.0),
                    ("cheaper", 1.0, 9.0),
                    ("faster", 3.0, 4.0),
                    ("today", 9.0, 9.0),
                ][..],
                None,
            ),
            (&[("advice", 2.0, 5.0), ("faster", 3.0, 6.0)], Some((1, 0))),
            (&[("advice", 2.0, 5.0), ("cheaper", 1.0, 4.0)], Some((0, 1))),
            (
                &[
                    ("advice", 2.0, 5.0),
                    ("today", 2.0, 4.0),
                    ("dram alone", 8.0, 5.0),
                ],
                Some((2, 0)),
            ),
            (&[("advice", 2.0, 5.0), ("faster", 2.0, 5.0)], Some((1, 0))),
        ] {
            assert_eq!(Row::no_bargain(&rows(of)), expected, "{of:?}");
        }
    }
}
