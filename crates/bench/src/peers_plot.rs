//! Bars: every server in every job, as multiples of the server without encryption (of ours without that one).

use crate::fio::size_name;
use crate::peers::{JOBS, Peers, SUBJECTS};
use crate::plot::{self, Axes, BLUE, GREY, ORANGE, PURPLE};
use crate::subject::{Subject, XTS};
use lacuna_core::Result;
use plotters::prelude::*;
use std::path::Path;

const COLOURS: [RGBColor; 4] = [BLUE, ORANGE, PURPLE, GREY];

pub(crate) fn draw(peers: &Peers, path: &Path) -> Result<()> {
    let jobs = JOBS.map(|(job, ..)| job);
    let base = if peers.grid.has(Subject::NbdkitFile, jobs[0]) { Subject::NbdkitFile } else { XTS };
    let ratio = |subject, job| peers.grid.ratio(subject, base, job);
    let all = SUBJECTS.iter().flat_map(|subject| jobs.iter().filter_map(|job| ratio(*subject, *job)));
    let axes = Axes {
        x: 0.0..jobs.len() as f64 + 1.0,
        y: 0.0..all.fold(1.0, f64::max) * 1.1,
        x_label: None,
        y_label: &|ratio| format!("{ratio:.1}"),
        light_lines: 10,
    };
    plot::to_file(path, (1180, 480), |area| {
        let mut chart = plot::chart(area, format!("Speed as a multiple of {}", base.name()), axes)?;
        for (i, (subject, colour)) in SUBJECTS.into_iter().zip(COLOURS).enumerate() {
            let bars = jobs.iter().enumerate().filter_map(|(group, job)| {
                let left = group as f64 + 0.1 + 0.2 * i as f64;
                Some(Rectangle::new([(left, 0.0), (left + 0.18, ratio(subject, *job)?)], colour.filled()))
            });
            chart.areas(bars, colour.filled(), subject.name())?;
        }
        chart.add(jobs.iter().enumerate().map(|(group, job)| {
            let text = format!("{} {}, depth {}", size_name(job.size), job.direction.name(), job.depth);
            EmptyElement::at((group as f64, 0.0)) + Text::new(text, (12, 8), ("sans-serif", 16))
        }))?;
        chart.legend(SeriesLabelPosition::UpperRight)
    })
}
