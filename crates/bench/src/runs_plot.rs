//! Figure 6 of paper 000, drawn from our runs: throughput over the number of the run.

use crate::bed::Operation;
use crate::runs::{Runs, Series};
use lacuna_core::{Error, Kind, Result};
use plotters::prelude::*;
use std::path::Path;

fn failed(e: impl std::fmt::Display) -> Error {
    Error::new(Kind::Other, "cannot draw a plot").found(e.to_string())
}

fn colour(operation: Operation) -> RGBColor {
    match operation {
        Operation::PublicRead => RGBColor(27, 98, 165),
        Operation::PublicWrite => RGBColor(214, 120, 30),
        Operation::HiddenRead => RGBColor(50, 140, 70),
        Operation::HiddenWrite => RGBColor(128, 60, 140),
    }
}

fn point(series: &Series) -> ShapeStyle {
    let colour = colour(series.operation);
    if series.random { colour.stroke_width(1) } else { colour.filled() }
}

/// A point for each run, filled where requests are sequential, and a line at the mean of each job.
pub(crate) fn draw(runs: &Runs, path: &Path) -> Result<()> {
    let all = || runs.series().iter().flat_map(|series| &series.rates).map(|rate| rate / 1e6);
    let (low, high) = (all().fold(f64::MAX, f64::min) / 1.5, all().fold(f64::MIN, f64::max) * 1.5);
    let count = runs.series().iter().map(|series| series.rates.len()).max().unwrap_or(1) as f64;
    let area = SVGBackend::new(path, (1100, 520)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("MB/s over runs on one disk, model of a hard disk", ("sans-serif", 24))
        .margin(12)
        .x_label_area_size(35)
        .y_label_area_size(50)
        // Room for the legend on the right.
        .build_cartesian_2d(0.0..count * 1.4, (low..high).log_scale())
        .map_err(failed)?;
    let number = |run: &f64| if *run > count { String::new() } else { format!("{run:.0}") };
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_label_style(("sans-serif", 16)).y_label_style(("sans-serif", 16));
    mesh.x_label_formatter(&number);
    mesh.y_max_light_lines(4).draw().map_err(failed)?;
    for series in runs.series() {
        let style = point(series);
        let mean = series.rates.iter().sum::<f64>() / series.rates.len().max(1) as f64 / 1e6;
        let line = LineSeries::new([(1.0, mean), (count, mean)], colour(series.operation).mix(0.5));
        chart.draw_series(line).map_err(failed)?;
        let points = (1..).zip(&series.rates);
        let points = points.map(|(run, rate)| Circle::new((f64::from(run), rate / 1e6), 3, style));
        let drawn = chart.draw_series(points).map_err(failed)?;
        drawn.label(series.name()).legend(move |at| Circle::new(at, 4, style));
    }
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::MiddleRight).background_style(WHITE.mix(0.8)).border_style(BLACK);
    legend.label_font(("sans-serif", 16)).draw().map_err(failed)?;
    area.present().map_err(failed)
}
