//! The figures of paper 004, drawn from our runs: its figure 3, throughput by request size, and its figure 4, what
//! a random IV costs on writes. The paper's text gives ranges alone, which are drawn as bands.

use crate::ciphers::SIZES;
use crate::fio::{Direction, size_name};
use crate::image::Image;
use crate::rados::{BASE, LAYOUTS, Rados, job, random};
use lacuna_core::{Error, Kind, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

/// For the lines, then for the two without metadata.
const COLOURS: [RGBColor; 7] = [
    RGBColor(27, 98, 165),
    RGBColor(214, 120, 30),
    RGBColor(128, 60, 140),
    RGBColor(50, 140, 70),
    RGBColor(190, 30, 60),
    RGBColor(0, 0, 0),
    RGBColor(130, 130, 130),
];
/// Object end against the baseline: "1%-22% performance loss, depending on the IO size" on writes.
const PAPER_WRITE_LOSS: (f64, f64) = (1.0, 22.0);
/// On reads "the biggest difference we measure is 3%".
const PAPER_READ_LOSS: (f64, f64) = (0.0, 3.0);

/// Room to the right of the lines of figure 4, in units of its axis.
const LEGEND: f64 = 2.1;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn failed(e: impl std::fmt::Display) -> Error {
    Error::new(Kind::Other, "cannot draw a plot").found(e.to_string())
}

/// The lines of every plot: random IVs in all layouts, authentication in ours.
fn lines() -> Vec<Image> {
    LAYOUTS
        .map(|layout| random("xts-random", layout))
        .into_iter()
        .chain([random("gcm", LAYOUTS[0])])
        .collect()
}

/// Figure 3: reads on the left, writes on the right.
pub(crate) fn throughput(rados: &Rados, path: &Path) -> Result<()> {
    let area = SVGBackend::new(path, (1280, 520)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let (left, right) = area.split_horizontally(640);
    speeds(rados, Direction::Read, PAPER_READ_LOSS, &left)?;
    speeds(rados, Direction::Write, PAPER_WRITE_LOSS, &right)?;
    area.present().map_err(failed)
}

fn speeds(rados: &Rados, direction: Direction, loss: (f64, f64), area: &Area<'_>) -> Result<()> {
    let speed = |image: Image, size: u32| Some(rados.grid.median(image, job(direction, size))? / 1e6);
    let images: Vec<Image> = lines().into_iter().chain([BASE, Image::RbdLuks]).collect();
    let all: Vec<f64> =
        images.iter().flat_map(|image| SIZES.iter().filter_map(|size| speed(*image, *size))).collect();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min) / 1.3;
    let most = all.iter().copied().fold(0.0, f64::max) * 1.3;
    let mut chart = ChartBuilder::on(area)
        .caption(format!("Random {}s on Ceph, depth 32, MB/s", direction.name()), ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(35)
        .y_label_area_size(55)
        .build_cartesian_2d(-0.2..SIZES.len() as f64 - 0.8, (least..most).log_scale())
        .map_err(failed)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_labels(0).y_label_style(("sans-serif", 16));
    mesh.y_label_formatter(&|value| format!("{value:.0}")).draw().map_err(failed)?;
    let kept = |percent: f64| move |(i, base): (f64, f64)| (i, base * (1.0 - percent / 100.0));
    let base = points(|size| speed(BASE, size));
    let band = base.iter().copied().map(kept(loss.0)).chain(base.iter().rev().copied().map(kept(loss.1)));
    let grey = BLACK.mix(0.12).filled();
    let drawn = chart.draw_series([Polygon::new(band.collect::<Vec<_>>(), grey)]).map_err(failed)?;
    let label = format!("xts less {}% to {}%: paper, object end", loss.0, loss.1);
    drawn.label(label).legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], grey));
    for (i, image) in images.iter().enumerate() {
        let colour = COLOURS[i];
        let series =
            LineSeries::new(points(|size| speed(*image, size)), colour.stroke_width(2)).point_size(3);
        let drawn = chart.draw_series(series).map_err(failed)?;
        drawn
            .label(image.short())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 12, y)], colour.stroke_width(2)));
    }
    let labels = SIZES.iter().enumerate().map(|(i, size)| {
        EmptyElement::at((i as f64, least)) + Text::new(size_name(*size), (-18, 8), ("sans-serif", 15))
    });
    chart.draw_series(labels).map_err(failed)?;
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::LowerRight).background_style(WHITE.mix(0.8)).border_style(BLACK);
    legend.label_font(("sans-serif", 15)).draw().map_err(failed)
}

/// Figure 4: percent lost against `xts` on writes; less is better, and below zero something else was slower.
pub(crate) fn overhead(rados: &Rados, path: &Path) -> Result<()> {
    let loss = |image: Image, size: u32| {
        rados.grid.ratio(image, BASE, job(Direction::Write, size)).map(|ratio| (1.0 - ratio) * 100.0)
    };
    let all = lines().into_iter().flat_map(|image| SIZES.iter().filter_map(move |size| loss(image, *size)));
    let (least, most) =
        all.fold((-5.0, PAPER_WRITE_LOSS.1), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
    let (least, most) = (least - 5.0, most + 5.0);
    let right = SIZES.len() as f64 - 0.8;
    let area = SVGBackend::new(path, (900, 480)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Random writes on Ceph: percent lost against xts", ("sans-serif", 24))
        .margin(12)
        .x_label_area_size(35)
        .y_label_area_size(50)
        .build_cartesian_2d(-0.2..right + LEGEND, least..most)
        .map_err(failed)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_labels(0).y_label_style(("sans-serif", 16)).y_max_light_lines(2);
    mesh.y_label_formatter(&|value| format!("{value:.0}%")).draw().map_err(failed)?;
    let grey = BLACK.mix(0.12).filled();
    let band = Rectangle::new([(-0.2, PAPER_WRITE_LOSS.0), (right, PAPER_WRITE_LOSS.1)], grey);
    let drawn = chart.draw_series([band]).map_err(failed)?;
    drawn
        .label("paper, object end: 1% to 22%")
        .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], grey));
    chart.draw_series([PathElement::new([(-0.2, 0.0), (right, 0.0)], BLACK)]).map_err(failed)?;
    for (i, image) in lines().into_iter().enumerate() {
        let colour = COLOURS[i];
        let series = LineSeries::new(points(|size| loss(image, size)), colour.stroke_width(2)).point_size(3);
        let drawn = chart.draw_series(series).map_err(failed)?;
        drawn
            .label(image.short())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 12, y)], colour.stroke_width(2)));
    }
    let labels = SIZES.iter().enumerate().map(|(i, size)| {
        EmptyElement::at((i as f64, least)) + Text::new(size_name(*size), (-18, 8), ("sans-serif", 16))
    });
    chart.draw_series(labels).map_err(failed)?;
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::UpperRight).background_style(WHITE.mix(0.8)).border_style(BLACK);
    legend.label_font(("sans-serif", 16)).draw().map_err(failed)?;
    area.present().map_err(failed)
}

/// A point for every size that has a value.
fn points(value: impl Fn(u32) -> Option<f64>) -> Vec<(f64, f64)> {
    SIZES.iter().enumerate().filter_map(|(i, size)| Some((i as f64, value(*size)?))).collect()
}
