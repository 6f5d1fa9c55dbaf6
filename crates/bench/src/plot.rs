//! The plots, as SVG; text is left to the viewer's fonts.

use crate::ciphers::{self, Ciphers, GCM, SIZES, XTS_RANDOM};
use crate::fio::{Direction, size_name};
use crate::peers::{JOBS, Peers, SUBJECTS};
use crate::subject::{Subject, XTS};
use lacuna_core::{Error, Kind, Result};
use plotters::prelude::*;
use std::path::Path;

const COLOURS: [RGBColor; 4] =
    [RGBColor(27, 98, 165), RGBColor(214, 120, 30), RGBColor(128, 60, 140), RGBColor(110, 110, 110)];
/// Paper 004, figure 4: object end keeps this much of the baseline, depending on the request size.
const PAPER_BAND: (f64, f64) = (0.78, 0.99);

fn failed(e: impl std::fmt::Display) -> Error {
    Error::new(Kind::Other, "cannot draw a plot").found(e.to_string())
}

/// Bars: every server in every job, as multiples of the server without encryption (of ours without that one).
pub(crate) fn peers(peers: &Peers, path: &Path) -> Result<()> {
    let jobs = JOBS.map(|(job, ..)| job);
    let base = if peers.grid.has(Subject::NbdkitFile, jobs[0]) { Subject::NbdkitFile } else { XTS };
    let ratio = |subject, job| peers.grid.ratio(subject, base, job);
    let all = SUBJECTS.iter().flat_map(|subject| jobs.iter().filter_map(|job| ratio(*subject, *job)));
    let top = all.fold(1.0, f64::max) * 1.1;
    let area = SVGBackend::new(path, (1180, 480)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("Speed as a multiple of {}", base.name()), ("sans-serif", 24))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(45)
        .build_cartesian_2d(0.0..jobs.len() as f64 + 1.0, 0.0..top)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_label_style(("sans-serif", 16))
        .draw()
        .map_err(failed)?;
    for (i, subject) in SUBJECTS.iter().enumerate() {
        let bars = jobs.iter().enumerate().filter_map(|(group, job)| {
            let left = group as f64 + 0.1 + 0.2 * i as f64;
            let height = ratio(*subject, *job)?;
            Some(Rectangle::new([(left, 0.0), (left + 0.18, height)], COLOURS[i].filled()))
        });
        let drawn = chart.draw_series(bars).map_err(failed)?;
        drawn
            .label(subject.name())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], COLOURS[i].filled()));
    }
    let labels = jobs.iter().enumerate().map(|(group, job)| {
        let text = format!("{} {}, depth {}", size_name(job.size), job.direction.name(), job.depth);
        EmptyElement::at((group as f64, 0.0)) + Text::new(text, (12, 8), ("sans-serif", 16))
    });
    chart.draw_series(labels).map_err(failed)?;
    let mut legend = chart.configure_series_labels();
    legend
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .label_font(("sans-serif", 16))
        .draw()
        .map_err(failed)?;
    area.present().map_err(failed)
}

/// Lines: the ratio of each cipher to `xts` over the request size, above the band of the paper.
pub(crate) fn ratios(ciphers: &Ciphers, path: &Path) -> Result<()> {
    let lines = [
        (XTS_RANDOM, Direction::Write, "xts-random, writes"),
        (XTS_RANDOM, Direction::Read, "xts-random, reads"),
        (GCM, Direction::Write, "gcm, writes"),
        (GCM, Direction::Read, "gcm, reads"),
    ];
    let series = lines.map(|(subject, direction, label)| {
        let ratio = |size: u32| ciphers.grid.ratio(subject, XTS, ciphers::job(direction, size));
        let points = SIZES.iter().enumerate().filter_map(|(i, size)| Some((i as f64, ratio(*size)?)));
        (label, points.collect::<Vec<_>>())
    });
    let top = series.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(1.1, f64::max) * 1.05;
    let last = SIZES.len() as f64 - 1.0;
    let area = SVGBackend::new(path, (900, 480)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Speed as a multiple of xts, by request size", ("sans-serif", 24))
        .margin(12)
        .x_label_area_size(35)
        .y_label_area_size(45)
        .build_cartesian_2d(-0.2..last + 0.2, 0.0..top)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_label_style(("sans-serif", 16))
        .draw()
        .map_err(failed)?;
    let band = Rectangle::new([(-0.2, PAPER_BAND.0), (last + 0.2, PAPER_BAND.1)], BLACK.mix(0.1).filled());
    let drawn = chart.draw_series([band]).map_err(failed)?;
    drawn
        .label("paper 004, writes on Ceph")
        .legend(|(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], BLACK.mix(0.1).filled()));
    for (i, (label, points)) in series.into_iter().enumerate() {
        let drawn = chart
            .draw_series(LineSeries::new(points, COLOURS[i].stroke_width(2)).point_size(3))
            .map_err(failed)?;
        drawn
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 12, y)], COLOURS[i].stroke_width(2)));
    }
    let labels = SIZES.iter().enumerate().map(|(i, size)| {
        EmptyElement::at((i as f64, 0.0)) + Text::new(size_name(*size), (-18, 8), ("sans-serif", 16))
    });
    chart.draw_series(labels).map_err(failed)?;
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::LowerRight).background_style(WHITE.mix(0.8)).border_style(BLACK);
    legend.label_font(("sans-serif", 16)).draw().map_err(failed)?;
    area.present().map_err(failed)
}
