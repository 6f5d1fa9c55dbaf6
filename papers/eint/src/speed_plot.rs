//! Plots of Figures 12 and 13 of EINT: the time to write and read a MiB by block size, both axes
//! logarithmic.

use crate::files::FileClass;
use crate::measure::MeasuredScheme;
use crate::paper::SIZES;
use crate::speed::{Speeds, both_times};
use lacuna_bench::pages::plot::{self, Axes, BLUE, GREEN, GREY, ORANGE, PURPLE};
use lacuna_contracts::Result;
use plotters::prelude::*;
use std::path::Path;

/// Lines, colours and widths: the vault's schemes have thick lines.
const LINES: [(MeasuredScheme, RGBColor, u32); 8] = [
    (MeasuredScheme::Aes, GREY, 1),
    (MeasuredScheme::Wide, BLACK, 1),
    (MeasuredScheme::ReferenceMt, ORANGE, 1),
    (MeasuredScheme::ReferenceRand, BLUE, 1),
    (MeasuredScheme::ReferenceComp, GREEN, 1),
    (MeasuredScheme::FILES[1], ORANGE, 3),
    (MeasuredScheme::FILES[2], BLUE, 3),
    (MeasuredScheme::FILES[3], PURPLE, 3),
];

/// Draws both plots into a directory.
pub(crate) fn draw(speeds: &Speeds, plots: &Path) -> Result<()> {
    one(speeds, &FileClass::LOW_ENTROPY, "text, objects, executables", &plots.join("integrity-low.svg"))?;
    one(speeds, &FileClass::HIGH_ENTROPY, "images, compressed", &plots.join("integrity-high.svg"))
}

fn one(speeds: &Speeds, classes: &[FileClass], which: &str, path: &Path) -> Result<()> {
    let points = |subject: MeasuredScheme| -> Vec<(f64, f64)> {
        let of = |size: &usize| {
            let blocks = f64::from(1 << 20) / *size as f64;
            Some((*size as f64, speeds.mean(both_times, subject, classes, *size)? * blocks / 1e6))
        };
        SIZES.iter().filter_map(of).collect()
    };
    let all: Vec<f64> =
        LINES.iter().flat_map(|(subject, ..)| points(*subject)).map(|point| point.1).collect();
    let (least, most) =
        (all.iter().copied().fold(f64::MAX, f64::min), all.iter().copied().fold(0.0, f64::max));
    let axes = Axes {
        x: (110.0..4800.0).log_scale(),
        y: (least / 1.3..most * 1.3).log_scale(),
        x_label: Some((8, &|size| format!("{size:.0}"))),
        y_label: &|ms| format!("{ms:.1}"),
        light_lines: 0,
    };
    plot::to_file(path, (900, 520), |area| {
        let mut chart =
            plot::chart(area, format!("ms to write and read a MiB by block size: {which}"), axes)?;
        for (subject, colour, width) in LINES {
            chart.line(points(subject), colour.stroke_width(width), 3, subject.name())?;
        }
        chart.legend(SeriesLabelPosition::UpperRight)
    })
}
