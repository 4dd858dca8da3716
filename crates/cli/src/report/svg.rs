//! Charts as SVG, to stand inside a page: curves, and groups of bars.

use super::page::escape;
use std::fmt::Write;

/// A curve or a kind of bar.
pub struct Series {
    /// For the legend.
    pub name: String,
    /// Values in the order of the axis; `None` leaves a gap.
    pub values: Vec<Option<f64>>,
}

/// What is common to charts. The horizontal axis has one place for each label.
pub struct Chart<'a> {
    /// What it shows.
    pub title: &'a str,
    /// The horizontal axis, with its unit.
    pub x: &'a str,
    /// Its places.
    pub labels: Vec<String>,
    /// The vertical axis, with its unit.
    pub y: &'a str,
    /// What is drawn.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 48.0;
const LEGEND_LINE: f64 = 18.0;
const LEGEND_COLUMNS: usize = 3;
/// Told apart also by those who do not see all colours.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#6a3d9a",
];

impl Chart<'_> {
    /// Points joined by lines; the vertical axis covers what there is.
    pub fn curves(&self) -> String {
        let mut low = f64::INFINITY;
        let mut high = f64::NEG_INFINITY;
        for value in self.values() {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            return String::new();
        }
        let margin = ((high - low) * 0.08).max(high.abs() * 0.002).max(1e-3);
        let scale = Scale::around(low - margin, high + margin);
        self.draw(&scale, |text| {
            for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
                let points: Vec<(f64, f64)> = series
                    .values
                    .iter()
                    .enumerate()
                    .filter_map(|(at, value)| Some((self.place(at, 0.5), scale.height((*value)?))))
                    .collect();
                let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                let _ = write!(
                    text,
                    r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
                    line.join(" ")
                );
                for (x, y) in points {
                    let _ = write!(text, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#);
                }
            }
        })
    }

    /// Bars from zero, those of one place side by side.
    pub fn bars(&self) -> String {
        let high = self.values().fold(0.0, f64::max);
        if high <= 0.0 {
            return String::new();
        }
        let scale = Scale::around(0.0, high * 1.05);
        self.draw(&scale, |text| {
            let kinds = self.series.len() as f64;
            for (kind, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
                for (at, value) in series.values.iter().enumerate() {
                    let Some(value) = value else { continue };
                    let left = self.place(at, 0.1 + 0.8 * kind as f64 / kinds);
                    let right = self.place(at, 0.1 + 0.8 * (kind as f64 + 0.9) / kinds);
                    let (top, zero) = (scale.height(*value), scale.height(0.0));
                    let _ = write!(
                        text,
                        r#"<rect x="{left:.1}" y="{top:.1}" width="{:.1}" height="{:.1}" fill="{colour}"><title>{}, {}: {value:.4}</title></rect>"#,
                        right - left,
                        (zero - top).max(0.0),
                        escape(&series.name),
                        escape(&self.labels[at]),
                    );
                }
            }
        })
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.series
            .iter()
            .flat_map(|series| series.values.iter().flatten().copied())
    }

    /// Where in the place of a label something stands, `part` of the way.
    fn place(&self, at: usize, part: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (at as f64 + part) / self.labels.len() as f64
    }

    fn draw(&self, scale: &Scale, inside: impl Fn(&mut String)) -> String {
        let legend_lines = self.series.len().div_ceil(LEGEND_COLUMNS) as f64;
        let whole = HEIGHT + legend_lines * LEGEND_LINE + 6.0;
        let mut text = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {whole}" role="img" aria-label="{title}"><text class="title" x="{LEFT}" y="18">{title}</text>"#,
            title = escape(self.title)
        );
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in scale.ticks() {
            let y = scale.height(tick);
            let _ = write!(
                text,
                r#"<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1}" y2="{y:.1}"/><text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
                LEFT - 6.0,
                y + 4.0,
                scale.label(tick)
            );
        }
        for (at, label) in self.labels.iter().enumerate() {
            let _ = write!(
                text,
                r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                self.place(at, 0.5),
                bottom + 17.0,
                escape(label)
            );
        }
        let middle = (TOP + bottom) / 2.0;
        let _ = write!(
            text,
            r#"<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/><text x="{:.1}" y="{:.1}" text-anchor="middle">{}</text><text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{}</text>"#,
            (LEFT + right) / 2.0,
            bottom + 37.0,
            escape(self.x),
            escape(self.y)
        );
        inside(&mut text);
        for (at, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let column = (at % LEGEND_COLUMNS) as f64;
            let x = LEFT + column * (WIDTH - LEFT - RIGHT) / LEGEND_COLUMNS as f64;
            let y = HEIGHT + (at / LEGEND_COLUMNS) as f64 * LEGEND_LINE;
            let _ = write!(
                text,
                r#"<rect x="{x:.1}" y="{y:.1}" width="12" height="12" fill="{colour}"/><text x="{:.1}" y="{:.1}">{}</text>"#,
                x + 17.0,
                y + 10.0,
                escape(&series.name)
            );
        }
        text += "</svg>";
        text
    }
}

/// The vertical axis.
struct Scale {
    low: f64,
    high: f64,
    step: f64,
}

impl Scale {
    /// An axis that covers a range and has about five ticks at round numbers.
    fn around(low: f64, high: f64) -> Self {
        let rough = (high - low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|round| round * power)
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        Self { low, high, step }
    }

    fn height(&self, value: f64) -> f64 {
        let bottom = HEIGHT - BOTTOM;
        bottom - (value - self.low) / (self.high - self.low) * (bottom - TOP)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let first = (self.low / self.step).ceil() as i64;
        let last = (self.high / self.step).floor() as i64;
        let step = self.step;
        (first..=last).map(move |tick| tick as f64 * step)
    }

    fn label(&self, tick: f64) -> String {
        let decimals = (-self.step.log10().floor()).max(0.0) as usize;
        format!("{tick:.decimals$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let labels = |low, high| {
            let scale = Scale::around(low, high);
            scale.ticks().map(|tick| scale.label(tick)).collect::<Vec<_>>()
        };
        assert_eq!(labels(0.0, 1.0), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(61.3, 62.2), ["61.4", "61.6", "61.8", "62.0", "62.2"]);
        assert_eq!(
            labels(0.0, 420_000.0),
            ["0", "100000", "200000", "300000", "400000"]
        );
    }

    #[test]
    fn larger_values_stand_higher_and_gaps_are_left_out() {
        let chart = Chart {
            title: "a < b",
            x: "x",
            labels: vec!["1".into(), "2".into()],
            y: "y",
            series: vec![Series {
                name: "s".into(),
                values: vec![Some(1.0), None],
            }],
        };
        assert_eq!(chart.curves().matches("<circle").count(), 1);
        assert_eq!(chart.bars().matches("<title>").count(), 1);
        assert!(chart.bars().contains("a &lt; b"));
        let scale = Scale::around(0.0, 2.0);
        assert!(scale.height(2.0) < scale.height(1.0));
        assert!((scale.height(0.0) - (HEIGHT - BOTTOM)).abs() < 1e-9);
    }
}
