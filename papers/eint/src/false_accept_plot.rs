//! Plot of the tail of IsRand's statistic on random blocks: the counts, and the derived bound.

use crate::false_accept::FalseAccept;
use lacuna_bench::pages::plot::{self, Axes, BLUE, GREEN, GREY, ORANGE, PURPLE};
use lacuna_contracts::Result;
use plotters::prelude::*;
use std::path::Path;

/// A colour for each block size.
const COLOURS: [RGBColor; 6] = [GREY, PURPLE, GREEN, ORANGE, BLACK, BLUE];
/// Lower end of the probability axis, as a logarithm to base 2: below that of the thresholds.
const LEAST: f64 = -110.0;
/// Points of a line.
const POINTS: u64 = 60;

/// Lines show the bound up to the threshold, points the counts. The abscissa is the divergence
/// above the least observed one, relative to the threshold.
pub(crate) fn draw(found: &FalseAccept, path: &Path) -> Result<()> {
    let axes = Axes {
        x: 0.0..1.05,
        y: LEAST..4.0,
        x_label: Some((11, &|part| format!("{part:.1}"))),
        y_label: &|log| format!("2^{log:.0}"),
        light_lines: 0,
    };
    plot::to_file(path, (900, 520), |area| {
        let caption = "Probability of at least this divergence in a random block (1 = the threshold)";
        let mut chart = plot::chart(area, caption, axes)?;
        for (counted, colour) in found.counted().iter().zip(COLOURS) {
            // The abscissa starts at the least observed divergence and is 1 at the threshold.
            let least = counted.points().next().map_or(0, |(bits, ..)| bits);
            let threshold = counted.threshold();
            let place = |bits: u64| (bits - least) as f64 / (threshold - least).max(1) as f64;
            let bits = (0..=POINTS).map(|part| least + (threshold - least) * part / POINTS);
            let bound = bits.map(|bits| (place(bits), counted.bound(bits)));
            chart.line(
                bound,
                colour.mix(0.7).stroke_width(2),
                0,
                format!("bound, {} bytes", counted.size),
            )?;
            let seen = counted.points().map(|(bits, _, p)| (place(bits), p.log2()));
            chart.points(seen, colour.filled(), 2, format!("counted, {} bytes", counted.size))?;
        }
        chart.legend(SeriesLabelPosition::LowerLeft)
    })
}
