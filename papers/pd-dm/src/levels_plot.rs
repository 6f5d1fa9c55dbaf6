//! Plot of Figure 4 of PD-DM from the counts here: the cost of a write by spare factor, for several
//! kinds of traffic.

use crate::hot_cold::{HotCold, HotColdTraffic, TRAFFIC, blocks_per_slot};
use lacuna_bench::pages::plot::{self, Axes, BLUE, GREEN, ORANGE, PURPLE};
use lacuna_contracts::Result;
use plotters::prelude::*;
use std::path::Path;

const COLOURS: [RGBColor; TRAFFIC.len()] = [BLUE, GREEN, ORANGE, PURPLE];
/// The first spare factor of the curves, the number of steps, and the step.
const FIRST: f64 = 0.1;
const STEPS: u32 = 80;
const STEP: f64 = 0.005;

/// Lines show the calculated costs (Equation 1 for uniform traffic), points the measured ones.
pub(crate) fn draw(found: &HotCold, path: &Path) -> Result<()> {
    let curve = |traffic: HotColdTraffic| {
        let rho = (0..=STEPS).map(|i| FIRST + f64::from(i) * STEP);
        rho.map(move |rho| (rho, traffic.slots_per_write(rho) * blocks_per_slot()))
    };
    let points = TRAFFIC.into_iter().flat_map(|traffic| found.points(traffic));
    let all = points.chain(TRAFFIC.into_iter().flat_map(curve)).map(|point| point.1);
    let axes = Axes {
        x: 0.08..0.52,
        y: 0.0..all.fold(1.0, f64::max) * 1.05,
        x_label: Some((10, &|rho| format!("{rho:.2}"))),
        y_label: &|blocks| format!("{blocks:.0}"),
        light_lines: 2,
    };
    plot::to_file(path, (900, 480), |area| {
        let caption = "Medium blocks written for one block of level 0, by spare factor";
        let mut chart = plot::chart(area, caption, axes)?;
        for (traffic, colour) in TRAFFIC.into_iter().zip(COLOURS) {
            let line =
                if traffic == TRAFFIC[0] { "Equation 1".into() } else { traffic.name() + ", calculated" };
            chart.line(curve(traffic), colour.mix(0.6).stroke_width(2), 0, line)?;
            chart.points(found.points(traffic), colour.filled(), 4, traffic.name() + ", measured")?;
        }
        chart.legend(SeriesLabelPosition::UpperRight)
    })
}
