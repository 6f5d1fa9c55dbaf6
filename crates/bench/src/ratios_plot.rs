//! Lines: the ratio of each cipher to `xts` over the request size, above the band of paper 004.

use crate::ciphers::{self, Ciphers, GCM, SIZES, XTS_RANDOM};
use crate::fio::Direction;
use crate::plot::{self, Axes, BLUE, GREY, ORANGE, PURPLE};
use crate::subject::XTS;
use lacuna_core::Result;
use plotters::prelude::*;
use std::path::Path;

/// Its figure 4: object end keeps this much of the baseline, depending on the request size.
const PAPER_BAND: (f64, f64) = (0.78, 0.99);

pub(crate) fn draw(ciphers: &Ciphers, path: &Path) -> Result<()> {
    let lines = [
        (XTS_RANDOM, Direction::Write, "xts-random, writes", BLUE),
        (XTS_RANDOM, Direction::Read, "xts-random, reads", ORANGE),
        (GCM, Direction::Write, "gcm, writes", PURPLE),
        (GCM, Direction::Read, "gcm, reads", GREY),
    ];
    let series = lines.map(|(subject, direction, name, colour)| {
        let ratio = |size| ciphers.grid.ratio(subject, XTS, ciphers::job(direction, size));
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
        let mut chart = plot::chart(area, "Speed as a multiple of xts, by request size", axes)?;
        let grey = BLACK.mix(0.1).filled();
        let band = Rectangle::new([(-0.2, PAPER_BAND.0), (right, PAPER_BAND.1)], grey);
        chart.areas([band], grey, "paper 004, writes on Ceph")?;
        for (points, name, colour) in series {
            chart.line(points, colour.stroke_width(2), 3, name)?;
        }
        chart.sizes_below(0.0)?;
        chart.legend(SeriesLabelPosition::LowerRight)
    })
}
