//! Plot of the processor time of every server in every job, as multiples of the server without
//! encryption (of our `xts` if that server is missing).

use crate::nbd::disks::{BESIDE_PEERS, DiskResults, PEER_JOBS};
use crate::pages::plot::{self, Axes, BLUE, GREEN, GREY, ORANGE, PURPLE};
use crate::serving::job::RequestSize;
use crate::serving::subject::{Subject, XTS};
use lacuna_contracts::Result;
use plotters::prelude::*;
use std::path::Path;

const COLOURS: [RGBColor; 5] = [BLUE, GREEN, ORANGE, PURPLE, GREY];

pub(crate) fn draw(disks: &DiskResults, path: &Path) -> Result<()> {
    let jobs = PEER_JOBS.map(|(job, ..)| job);
    let base = if disks.grid.has(Subject::NbdkitFile, jobs[0]) { Subject::NbdkitFile } else { XTS };
    let ratio = |subject, job| disks.grid.processor_ratio(subject, base, job);
    let all = BESIDE_PEERS.iter().flat_map(|subject| jobs.iter().filter_map(|job| ratio(*subject, *job)));
    let axes = Axes {
        x: 0.0..jobs.len() as f64 + 1.0,
        y: 0.0..all.fold(1.0, f64::max) * 1.1,
        x_label: None,
        y_label: &|ratio| format!("{ratio:.1}"),
        light_lines: 10,
    };
    plot::to_file(path, (1180, 480), |area| {
        let mut chart = plot::chart(
            area,
            format!("Processor time as a multiple of {}; less is better", base.name()),
            axes,
        )?;
        for (i, (subject, colour)) in BESIDE_PEERS.into_iter().zip(COLOURS).enumerate() {
            let bars = jobs.iter().enumerate().filter_map(|(group, job)| {
                let left = group as f64 + 0.1 + 0.16 * i as f64;
                Some(Rectangle::new([(left, 0.0), (left + 0.15, ratio(subject, *job)?)], colour.filled()))
            });
            chart.areas(bars, colour.filled(), subject.name())?;
        }
        chart.add(jobs.iter().enumerate().map(|(group, job)| {
            let text = format!("{} {}, depth {}", RequestSize(job.size), job.direction.name(), job.depth);
            EmptyElement::at((group as f64, 0.0)) + Text::new(text, (12, 8), ("sans-serif", 16))
        }))?;
        chart.legend(SeriesLabelPosition::UpperRight)
    })
}
