//! What waits for a cell of an oblivious disk, drawn: how often it was counted, above the bound that is derived.

use crate::stash::{CASES, MOST, Stash};
use lacuna_core::{Error, Kind, Result};
use plotters::prelude::*;
use std::path::Path;

const COLOURS: [RGBColor; CASES.len()] = [
    RGBColor(27, 98, 165),
    RGBColor(50, 140, 70),
    RGBColor(128, 60, 140),
    RGBColor(110, 110, 110),
    RGBColor(214, 120, 30),
];
/// Of the points.
const RADII: [i32; CASES.len()] = [6, 4, 3, 4, 4];
/// The probabilities of the axis.
const PROBABILITIES: (f64, f64) = (2e-8, 1.5);

fn failed(e: impl std::fmt::Display) -> Error {
    Error::new(Kind::Other, "cannot draw a plot").found(e.to_string())
}

/// Lines: the bound for each *k*; points: what was counted.
pub(crate) fn tails(found: &Stash, path: &Path) -> Result<()> {
    let area = SVGBackend::new(path, (900, 480)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Probability that so many blocks or more wait for a cell", ("sans-serif", 24))
        .margin(12)
        .x_label_area_size(35)
        .y_label_area_size(70)
        .build_cartesian_2d(-0.3..MOST as f64 + 0.3, (PROBABILITIES.0..PROBABILITIES.1).log_scale())
        .map_err(failed)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_label_style(("sans-serif", 16)).y_label_style(("sans-serif", 16));
    mesh.x_labels(MOST + 1).x_label_formatter(&|blocks| format!("{blocks:.0}"));
    mesh.y_max_light_lines(0).y_label_formatter(&|p| format!("{p:.0e}")).draw().map_err(failed)?;
    for (at, (case, colour)) in CASES.into_iter().zip(COLOURS).enumerate() {
        if !CASES[..at].iter().any(|before| before.has_bound_of(case)) {
            let bound = (0..=MOST).map(|blocks| (blocks as f64, case.bound(blocks)));
            let shown = bound.take_while(|point| point.1 > PROBABILITIES.0);
            let line = LineSeries::new(shown, colour.mix(0.6).stroke_width(2));
            let drawn = chart.draw_series(line).map_err(failed)?;
            drawn.label(format!("bound, {}", case.region())).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 16, y)], colour.mix(0.6).stroke_width(2))
            });
        }
        let points = found.points(case).into_iter().map(|(blocks, p)| (blocks as f64, p));
        let shown = points.filter(|point| point.1 > PROBABILITIES.0);
        let points = shown.map(|point| Circle::new(point, RADII[at], colour.filled()));
        let drawn = chart.draw_series(points).map_err(failed)?;
        drawn.label(case.name()).legend(move |(x, y)| Circle::new((x + 8, y), RADII[at], colour.filled()));
    }
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::UpperRight).background_style(WHITE.mix(0.8)).border_style(BLACK);
    legend.label_font(("sans-serif", 16)).draw().map_err(failed)?;
    area.present().map_err(failed)
}
