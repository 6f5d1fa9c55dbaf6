//! Plot of Figure 6 of PD-DM from the runs here: throughput over the number of the run.

use crate::runs::{RunSeries, mean};
use lacuna_bench::modelled::simulated_disk::Operation;
use lacuna_bench::pages::plot::{self, Axes, BLUE, GREEN, ORANGE, PURPLE};
use lacuna_contracts::Result;
use plotters::prelude::*;
use std::path::Path;

/// A point for each run, filled for sequential requests, and a line at the mean of each job.
pub(crate) fn draw(runs: &RunSeries, path: &Path) -> Result<()> {
    let all = || runs.series().iter().flat_map(|series| &series.rates).map(|rate| rate / 1e6);
    let (low, high) = (all().fold(f64::MAX, f64::min) / 1.5, all().fold(f64::MIN, f64::max) * 1.5);
    let count = runs.series().iter().map(|series| series.rates.len()).max().unwrap_or(1) as f64;
    let axes = Axes {
        // Room for the legend on the right.
        x: 0.0..count * 1.4,
        y: (low..high).log_scale(),
        x_label: Some((10, &|run| if *run > count { String::new() } else { format!("{run:.0}") })),
        y_label: &|speed| if *speed < 1.0 { format!("{speed}") } else { format!("{speed:.0}") },
        light_lines: 4,
    };
    plot::to_file(path, (1100, 520), |area| {
        let mut chart = plot::chart(area, "MB/s over runs on one disk, model of a hard disk", axes)?;
        for series in runs.series() {
            let colour = match series.operation {
                Operation::PublicRead => BLUE,
                Operation::PublicWrite => ORANGE,
                Operation::HiddenRead => GREEN,
                Operation::HiddenWrite => PURPLE,
            };
            let mean = mean(&series.rates) / 1e6;
            chart.add([PathElement::new([(1.0, mean), (count, mean)], colour.mix(0.5))])?;
            let points = (1..).zip(&series.rates).map(|(run, rate)| (f64::from(run), rate / 1e6));
            let style = if series.random { colour.stroke_width(1) } else { colour.filled() };
            chart.points(points, style, 3, series.name())?;
        }
        chart.legend(SeriesLabelPosition::MiddleRight)
    })
}
