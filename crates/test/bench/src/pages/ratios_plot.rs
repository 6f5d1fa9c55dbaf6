//! Plot of the processor time of each cipher relative to `xts`, by request size.

use crate::nbd::disks::{DiskResults, GCM, SIZES, XTS_RANDOM};
use crate::pages::plot::{self, Axes, BLUE, GREY, ORANGE, PURPLE};
use crate::serving::job::{Direction, IoJob};
use crate::serving::subject::XTS;
use lacuna_contracts::Result;
use plotters::prelude::*;
use std::path::Path;

pub(crate) fn draw(disks: &DiskResults, path: &Path) -> Result<()> {
    let lines = [
        (XTS_RANDOM, Direction::Write, "xts-random, writes", BLUE),
        (XTS_RANDOM, Direction::Read, "xts-random, reads", ORANGE),
        (GCM, Direction::Write, "gcm, writes", PURPLE),
        (GCM, Direction::Read, "gcm, reads", GREY),
    ];
    let series = lines.map(|(subject, direction, name, colour)| {
        let ratio = |size| disks.grid.processor_ratio(subject, XTS, IoJob::of_size(direction, size));
        (plot::by_size(ratio), name, colour)
    });
    let all = series.iter().flat_map(|(points, ..)| points).map(|point| point.1);
    let right = SIZES.len() as f64 - 0.8;
    let axes = Axes {
        x: -0.2..right,
        y: 0.0..all.fold(1.1, f64::max) * 1.05,
        x_label: None,
        y_label: &|ratio| format!("{ratio:.1}"),
        light_lines: 10,
    };
    plot::to_file(path, (900, 480), |area| {
        let mut chart = plot::chart(area, "Processor time as a multiple of xts, by request size", axes)?;
        for (points, name, colour) in series {
            chart.line(points, colour.stroke_width(2), 3, name)?;
        }
        chart.sizes_below(0.0)?;
        chart.legend(SeriesLabelPosition::LowerRight)
    })
}
