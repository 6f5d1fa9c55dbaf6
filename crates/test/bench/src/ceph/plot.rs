//! Plots of figures 3 and 4 of Harnik et al. from our runs: throughput by request size, and the
//! cost of a random IV on writes. The paper's text gives only ranges, which are drawn as bands.

use crate::ceph::image::CephImage;
use crate::ceph::rados::{BASELINE, LAYOUTS, RadosResults, job, random};
use crate::nbd::disks::SIZES;
use crate::pages::plot::{self, Area, Axes, BLUE, DrawResult, GREEN, GREY, ORANGE, PURPLE};
use crate::serving::job::Direction;
use lacuna_contracts::Result;
use plotters::prelude::*;
use std::path::Path;

/// Colours of the lines, then of the two images without metadata.
const COLOURS: [RGBColor; 7] = [BLUE, ORANGE, PURPLE, GREEN, RGBColor(190, 30, 60), BLACK, GREY];
/// Object end against the baseline, on writes: "1%-22% performance loss, depending on the IO size".
const PAPER_WRITE_LOSS: (f64, f64) = (1.0, 22.0);
/// Object end against the baseline, on reads: "the biggest difference we measure is 3%".
const PAPER_READ_LOSS: (f64, f64) = (0.0, 3.0);
/// Right end of the lines on the axis of sizes.
const RIGHT: f64 = SIZES.len() as f64 - 0.8;
/// Room to the right of the lines of figure 4, in units of its axis.
const LEGEND: f64 = 2.1;

/// The lines of every plot: random IVs in all layouts, authentication in our layout.
fn lines() -> Vec<CephImage> {
    let layouts = LAYOUTS.map(|layout| random("xts-random", layout));
    layouts.into_iter().chain([random("gcm", LAYOUTS[0])]).collect()
}

/// Figure 3: reads on the left, writes on the right.
pub(crate) fn throughput(rados: &RadosResults, path: &Path) -> Result<()> {
    plot::to_file(path, (1280, 520), |area| {
        let (left, right) = area.split_horizontally(640);
        speeds(rados, Direction::Read, PAPER_READ_LOSS, &left)?;
        speeds(rados, Direction::Write, PAPER_WRITE_LOSS, &right)
    })
}

fn speeds(rados: &RadosResults, direction: Direction, loss: (f64, f64), area: &Area<'_>) -> DrawResult {
    let speeds =
        |image: CephImage| plot::by_size(|size| Some(rados.grid.median(image, job(direction, size))? / 1e6));
    let images: Vec<CephImage> = lines().into_iter().chain([BASELINE, CephImage::RbdLuks]).collect();
    let all: Vec<f64> = images.iter().flat_map(|image| speeds(*image)).map(|point| point.1).collect();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min) / 1.3;
    let most = all.iter().copied().fold(0.0, f64::max) * 1.3;
    let axes = Axes {
        x: -0.2..RIGHT,
        y: (least..most).log_scale(),
        x_label: None,
        y_label: &|speed| format!("{speed:.0}"),
        light_lines: 10,
    };
    let caption = format!("Random {}s on Ceph, depth 32, MB/s", direction.name());
    let mut chart = plot::chart(area, caption, axes)?;
    let kept = |percent: f64| move |(i, base): (f64, f64)| (i, base * (1.0 - percent / 100.0));
    let base = speeds(BASELINE);
    let band = base.iter().copied().map(kept(loss.0)).chain(base.iter().rev().copied().map(kept(loss.1)));
    let grey = BLACK.mix(0.12).filled();
    let name = format!("xts less {}% to {}%: paper, object end", loss.0, loss.1);
    chart.areas([Polygon::new(band.collect::<Vec<_>>(), grey)], grey, name)?;
    for (image, colour) in images.into_iter().zip(COLOURS) {
        chart.line(speeds(image), colour.stroke_width(2), 3, image.short())?;
    }
    chart.sizes_below(least)?;
    chart.legend(SeriesLabelPosition::LowerRight)
}

/// Figure 4: percent lost against `xts` on writes; less is better, and negative values mean a speed
/// above that of `xts`.
pub(crate) fn overhead(rados: &RadosResults, path: &Path) -> Result<()> {
    let losses = |image: CephImage| {
        let ratio = |size| rados.grid.ratio(image, BASELINE, job(Direction::Write, size));
        plot::by_size(|size| Some((1.0 - ratio(size)?) * 100.0))
    };
    let all = lines().into_iter().flat_map(losses).map(|point| point.1);
    let (least, most) =
        all.fold((-5.0, PAPER_WRITE_LOSS.1), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
    let (least, most) = (least - 5.0, most + 5.0);
    let axes = Axes {
        x: -0.2..RIGHT + LEGEND,
        y: least..most,
        x_label: None,
        y_label: &|percent| format!("{percent:.0}%"),
        light_lines: 2,
    };
    plot::to_file(path, (900, 480), |area| {
        let mut chart = plot::chart(area, "Random writes on Ceph: percent lost against xts", axes)?;
        let grey = BLACK.mix(0.12).filled();
        let band = Rectangle::new([(-0.2, PAPER_WRITE_LOSS.0), (RIGHT, PAPER_WRITE_LOSS.1)], grey);
        chart.areas([band], grey, "paper, object end: 1% to 22%")?;
        chart.add([PathElement::new([(-0.2, 0.0), (RIGHT, 0.0)], BLACK)])?;
        for (image, colour) in lines().into_iter().zip(COLOURS) {
            chart.line(losses(image), colour.stroke_width(2), 3, image.short())?;
        }
        chart.sizes_below(least)?;
        chart.legend(SeriesLabelPosition::UpperRight)
    })
}
