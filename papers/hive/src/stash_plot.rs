//! Plot of the stash size of an oblivious disk: counted probabilities beside the derived bound.

use crate::stash::{CASES, MAX_SHOWN, StashResults};
use lacuna_bench::pages::plot::{self, Axes, BLUE, GREEN, GREY, ORANGE, PURPLE};
use lacuna_contracts::Result;
use plotters::prelude::*;
use std::path::Path;

/// Colours of lines and points, and sizes of points.
const STYLES: [(RGBColor, u32); CASES.len()] = [(BLUE, 6), (GREEN, 4), (PURPLE, 3), (GREY, 4), (ORANGE, 4)];
/// The range of probabilities of the axis.
const PROBABILITIES: (f64, f64) = (2e-8, 1.5);

/// Lines show the bound for each *k*, points the counts.
pub(crate) fn draw(found: &StashResults, path: &Path) -> Result<()> {
    let axes = Axes {
        x: -0.3..MAX_SHOWN as f64 + 0.3,
        y: (PROBABILITIES.0..PROBABILITIES.1).log_scale(),
        x_label: Some((MAX_SHOWN + 1, &|blocks| format!("{blocks:.0}"))),
        y_label: &|p| format!("{p:.0e}"),
        light_lines: 0,
    };
    plot::to_file(path, (900, 480), |area| {
        let mut chart =
            plot::chart(area, "Probability that at least this number of blocks wait for a cell", axes)?;
        for (case, (colour, size)) in CASES.into_iter().zip(STYLES) {
            let shown = |(blocks, p): (usize, f64)| (p > PROBABILITIES.0).then_some((blocks as f64, p));
            if case.is_first_of_bound() {
                let bound = (0..=MAX_SHOWN).map(|blocks| (blocks, case.bound(blocks)));
                let style = colour.mix(0.6).stroke_width(2);
                chart.line(bound.map_while(shown), style, 0, format!("bound, {}", case.region()))?;
            }
            chart.points(
                found.points(case).into_iter().filter_map(shown),
                colour.filled(),
                size,
                case.name(),
            )?;
        }
        chart.legend(SeriesLabelPosition::UpperRight)
    })
}
