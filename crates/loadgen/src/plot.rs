//! The report as a picture: latency percentiles, and throughput over time.

use crate::report::Report;
use plotters::prelude::*;

type PlotError = Box<dyn std::error::Error>;

const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 96, 20),
    RGBColor(44, 140, 60),
    RGBColor(170, 40, 60),
    RGBColor(120, 90, 170),
    RGBColor(90, 90, 90),
];

/// The report as SVG: above, latency (logarithmic) against percentile, with a nine more at each step; below, requests
/// per second.
///
/// # Errors
/// What the drawing says; it is not expected to fail.
pub fn svg(report: &Report) -> Result<String, String> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw(report: &Report, text: &mut String) -> Result<(), PlotError> {
    let area = SVGBackend::with_string(text, (900, 800)).into_drawing_area();
    area.fill(&WHITE)?;
    let (above, below) = area.split_vertically(450);
    percentiles(report, &above)?;
    throughput(report, &below)?;
    area.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn percentiles(report: &Report, area: &Area<'_>) -> Result<(), PlotError> {
    let curves: Vec<(&str, Vec<(f64, f64)>)> = report
        .kinds
        .iter()
        .filter_map(|(name, kind)| Some((*name, kind.latency.as_ref()?)))
        .map(|(name, latency)| {
            let nines = |percentile: f64| -(1.0 - percentile / 100.0).log10();
            (
                name,
                latency
                    .curve
                    .iter()
                    .map(|(at, micros)| (nines(*at), micros.max(0.1)))
                    .collect(),
            )
        })
        .collect();
    let points = || curves.iter().flat_map(|(_, curve)| curve);
    let last = points().map(|(nines, _)| *nines).fold(1.0, f64::max);
    let low = points()
        .map(|(_, micros)| *micros)
        .fold(f64::INFINITY, f64::min)
        .min(1000.0);
    let high = points().map(|(_, micros)| *micros).fold(low * 10.0, f64::max) * 1.2;
    let title = format!(
        "Latency, {} against {}",
        report.settings.mix, report.settings.target
    );
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .margin_right(36)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..last, (low * 0.8..high).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("percentile")
        .y_desc("microseconds")
        .x_labels(last.ceil() as usize + 1)
        .x_label_formatter(&|nines| percentile_name(*nines))
        .y_label_formatter(&|micros| format!("{micros:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for ((name, curve), colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let line = LineSeries::new(curve.iter().copied(), colour.stroke_width(2));
        chart
            .draw_series(line)?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    if !curves.is_empty() {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(COLOURS[5])
            .draw()?;
    }
    Ok(())
}

fn throughput(report: &Report, area: &Area<'_>) -> Result<(), PlotError> {
    // The last second may be a part, which would look like a fall.
    let whole = (report.seconds as usize).min(report.series.len());
    let mut series: Vec<(f64, f64)> = report.series[..whole]
        .iter()
        .enumerate()
        .map(|(second, count)| (second as f64 + 0.5, *count as f64))
        .collect();
    if series.is_empty() {
        series.push((report.seconds / 2.0, report.requests_per_second));
    }
    let high = series.iter().map(|(_, count)| *count).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption("Requests per second", ("sans-serif", 18))
        .margin(12)
        .margin_right(36)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..report.seconds.max(1.0), 0.0..high)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_label_formatter(&|count| format!("{count:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    chart.draw_series(LineSeries::new(
        series.iter().copied(),
        COLOURS[0].stroke_width(2),
    ))?;
    chart.draw_series(
        series
            .iter()
            .map(|point| Circle::new(*point, 3, COLOURS[0].filled())),
    )?;
    Ok(())
}

/// 0, 90, 99, 99.9, ...
fn percentile_name(nines: f64) -> String {
    let percentile = 100.0 * (1.0 - 10f64.powf(-nines));
    let decimals = (nines.round() as usize).saturating_sub(2);
    format!("{percentile:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nines_are_named() {
        let names: Vec<String> = (0..6).map(|nines| percentile_name(f64::from(nines))).collect();
        assert_eq!(names, ["0", "90", "99", "99.9", "99.99", "99.999"]);
    }
}
