//! Figure 4 of paper 000, drawn from our counts: what a write costs over the spare factor, for several kinds of traffic.

use crate::hot_cold::{HotCold, TRAFFIC, Traffic, blocks_per_slot};
use lacuna_core::{Error, Kind, Result};
use plotters::prelude::*;
use std::path::Path;

const COLOURS: [RGBColor; TRAFFIC.len()] =
    [RGBColor(27, 98, 165), RGBColor(50, 140, 70), RGBColor(214, 120, 30), RGBColor(128, 60, 140)];
/// The spare factors of the axis.
const RHO: (f64, f64) = (0.08, 0.52);
/// The curves begin here, and go on in so many steps of so much.
const FIRST: f64 = 0.1;
const STEPS: u32 = 80;
const STEP: f64 = 0.005;

fn failed(e: impl std::fmt::Display) -> Error {
    Error::new(Kind::Other, "cannot draw a plot").found(e.to_string())
}

/// Lines: what is calculated for each kind of traffic, Equation 1 for uniform traffic; points: what was measured.
pub(crate) fn writes(found: &HotCold, path: &Path) -> Result<()> {
    let curve = |traffic: Traffic| {
        let rho = (0..=STEPS).map(|i| FIRST + f64::from(i) * STEP);
        rho.map(move |rho| (rho, traffic.slots_per_write(rho) * blocks_per_slot()))
    };
    let points = TRAFFIC.iter().flat_map(|traffic| found.points(*traffic));
    let top =
        points.chain(TRAFFIC.into_iter().flat_map(curve)).map(|point| point.1).fold(1.0, f64::max) * 1.05;
    let area = SVGBackend::new(path, (900, 480)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Medium blocks written for one block of level 0, by spare factor", ("sans-serif", 24))
        .margin(12)
        .x_label_area_size(35)
        .y_label_area_size(45)
        .build_cartesian_2d(RHO.0..RHO.1, 0.0..top)
        .map_err(failed)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_label_style(("sans-serif", 16)).y_label_style(("sans-serif", 16));
    mesh.y_max_light_lines(2).y_label_formatter(&|blocks| format!("{blocks:.0}"));
    mesh.x_label_formatter(&|rho| format!("{rho:.2}")).draw().map_err(failed)?;
    for (traffic, colour) in TRAFFIC.into_iter().zip(COLOURS) {
        let line = LineSeries::new(curve(traffic), colour.mix(0.6).stroke_width(2));
        let label = if traffic == TRAFFIC[0] {
            "uniform: measured, and Equation 1".into()
        } else {
            format!("{}: measured, and calculated", traffic.name())
        };
        let drawn = chart.draw_series(line).map_err(failed)?;
        drawn.label(label).legend(move |(x, y)| {
            EmptyElement::at((x, y))
                + PathElement::new([(0, 0), (16, 0)], colour.mix(0.6).stroke_width(2))
                + Circle::new((8, 0), 4, colour.filled())
        });
        let points = found.points(traffic).into_iter().map(|point| Circle::new(point, 4, colour.filled()));
        chart.draw_series(points).map_err(failed)?;
    }
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::UpperRight).background_style(WHITE.mix(0.8)).border_style(BLACK);
    legend.label_font(("sans-serif", 16)).draw().map_err(failed)?;
    area.present().map_err(failed)
}
