//! The tail of IsRand's statistic on random blocks, drawn: what was counted, below the bound that is derived.

use crate::false_accept::FalseAccept;
use lacuna_bench::plot::{self, Axes, BLUE, GREEN, GREY, ORANGE, PURPLE};
use lacuna_contracts::Result;
use plotters::prelude::*;
use std::path::Path;

/// One for each size of blocks.
const COLOURS: [RGBColor; 6] = [GREY, PURPLE, GREEN, ORANGE, BLACK, BLUE];
/// The least probability of the axis, as a logarithm to base 2: that of the thresholds, and some room.
const LEAST: f64 = -110.0;
/// Points of a line.
const POINTS: u64 = 60;

/// Lines: the bound, up to the threshold; points: what was counted. The abscissa is the divergence above the least one seen,
/// as a part of the threshold's.
pub(crate) fn draw(found: &FalseAccept, path: &Path) -> Result<()> {
    let axes = Axes {
        x: 0.0..1.05,
        y: LEAST..4.0,
        x_label: Some((11, &|part| format!("{part:.1}"))),
        y_label: &|log| format!("2^{log:.0}"),
        light_lines: 0,
    };
    plot::to_file(path, (900, 520), |area| {
        let caption = "Probability of so much divergence or more in a random block (1 = the threshold)";
        let mut chart = plot::chart(area, caption, axes)?;
        for (counted, colour) in found.counted().iter().zip(COLOURS) {
            // Random blocks have no less than all bytes as different as they can be; from there to the threshold.
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
