//! Curves as a picture: a hit ratio by size, a line for each cache.

use pumice_trace::Human;
use std::fmt::Write as _;

/// The picture, and in it the part with the curves; names stand right of it.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 660.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 430.0;
/// Least distance of two labels of sizes.
const LABEL: f64 = 70.0;
/// A curve of more points has no dots.
const POINTS_MAX: usize = 40;
const COLOURS: [&str; 8] = [
    "#1b6ca8", "#d1495b", "#3a7d44", "#edae49", "#7a4988", "#00798c", "#8d5524", "#555555",
];

/// A curve.
#[derive(Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Sizes, and the share from 0 to 1 at each.
    pub(crate) points: Vec<(u64, f64)>,
}

/// The picture as SVG, with a title, and what sizes are of. They are bytes or numbers of objects; equal ratios of sizes are equally far apart.
pub(crate) fn svg(title: &str, sizes_of: &str, lines: &[Line], is_bytes: bool) -> String {
    let mut sizes: Vec<u64> = points(lines).map(|(size, _)| size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let log = |size: u64| (size.max(1) as f64).ln();
    let (least, most) = (
        sizes.first().map_or(0.0, |size| log(*size)),
        sizes.last().map_or(0.0, |size| log(*size)),
    );
    // One size stands in the middle.
    let (from, span) = if most > least {
        (least, most - least)
    } else {
        (least - 0.5, 1.0)
    };
    let x = |size: u64| LEFT + 20.0 + (log(size) - from) / span * (RIGHT - LEFT - 40.0);
    let highest = points(lines).map(|(_, share)| share).fold(0.0, f64::max);
    let steps = (highest * 10.0).ceil().clamp(1.0, 10.0) as u32;
    let y = |share: f64| BOTTOM - share * 10.0 / f64::from(steps) * (BOTTOM - TOP);

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"14\">{0}</text>\n",
        escaped(title)
    );
    let mut put = |text: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{text}");
    };
    for step in 0..=steps {
        let at = y(f64::from(step) / 10.0);
        put(format_args!(
            "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{} %</text>",
            LEFT - 6.0,
            at + 4.0,
            step * 10
        ));
    }
    let mut last = f64::NEG_INFINITY;
    for size in sizes {
        let at = x(size);
        if at - last >= LABEL {
            last = at;
            put(format_args!("<path d=\"M{at:.1} {BOTTOM}v5\" stroke=\"#888\"/>"));
            let label = if is_bytes {
                Human(size).to_string()
            } else {
                size.to_string()
            };
            put(format_args!(
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                BOTTOM + 20.0
            ));
        }
    }
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        // Lines of the same colour are told apart by their dashes.
        let dashes = 2 * (number / COLOURS.len());
        let at: Vec<String> = line
            .points
            .iter()
            .map(|(size, share)| format!("{:.1},{:.1}", x(*size), y(*share)))
            .collect();
        let stroke = format!(
            "stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{}\"",
            match dashes {
                0 => "none".to_owned(),
                dashes => format!("{dashes} 3"),
            }
        );
        put(format_args!(
            "<polyline points=\"{}\" fill=\"none\" {stroke}/>",
            at.join(" ")
        ));
        // Of a curve of many points they would hide it.
        for point in at.iter().filter(|_| at.len() <= POINTS_MAX) {
            let (x, y) = point.split_once(',').unwrap_or_default();
            put(format_args!(
                "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>"
            ));
        }
        let at = TOP + 8.0 + 18.0 * number as f64;
        put(format_args!(
            "<path d=\"M{} {at:.1}h20\" {stroke}/><text x=\"{}\" y=\"{:.1}\">{}</text>",
            RIGHT + 15.0,
            RIGHT + 41.0,
            at + 4.0,
            escaped(&line.name)
        ));
    }
    put(format_args!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{sizes_of}</text>",
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 40.0
    ));
    out.push_str("</svg>\n");
    out
}

fn points(lines: &[Line]) -> impl Iterator<Item = (u64, f64)> {
    lines.iter().flat_map(|line| line.points.iter().copied())
}

/// Text as it stands in SVG and HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_rises_from_left_to_right_and_names_are_escaped() {
        let line = Line {
            name: "a<b".into(),
            points: vec![(1 << 20, 0.2), (1 << 21, 0.5), (1 << 22, 0.8)],
        };
        let found = svg("t&u", "sizes", &[line], true);
        assert!(
            found.contains(">t&amp;u<") && found.contains(">a&lt;b<"),
            "{found}"
        );
        // Doublings are equally far apart; the highest line is that of 80 %.
        assert!(
            found.contains("points=\"80.0,332.5 360.0,186.2 640.0,40.0\""),
            "{found}"
        );
        assert!(
            found.contains(">1 MiB<") && found.contains(">80 %<") && !found.contains(">90 %<"),
            "{found}"
        );
        assert!(svg("", "", &[], false).ends_with("</svg>\n"));
    }
}
