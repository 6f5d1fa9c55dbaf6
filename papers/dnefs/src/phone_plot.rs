//! Plots of the wear of the simulated phone: erasures per hour by purge period, with intervals,
//! beside the paper's; and the distribution of a week's erasures over the blocks of the chip.

use crate::phone_wear::{Mean, ROWS, WearResults, name, printed_erasures};
use crate::phone_week::Purging;
use lacuna_bench::pages::plot::{self, Axes, BLUE, GREEN, GREY, ORANGE, PURPLE};
use lacuna_contracts::Result;
use plotters::prelude::*;
use std::path::Path;

/// Line colours, one for each row of the tables.
const COLOURS: [RGBColor; ROWS.len()] = [GREY, BLACK, BLUE, GREEN, ORANGE, PURPLE, RED];
/// Lower end of the axis of erasures per hour.
const LEAST: f64 = 10.0;

/// Draws the plots into a directory.
pub(crate) fn draw(wear: &WearResults, plots: &Path) -> Result<()> {
    by_period(wear, &plots.join("phone-erasures.svg"))?;
    distribution(wear, &plots.join("phone-wear.svg"))
}

/// Erasures per hour against the purge period, both on logarithmic axes; rates without secure
/// deletion are horizontal lines.
fn by_period(wear: &WearResults, path: &Path) -> Result<()> {
    let minutes = |purging: Purging| match purging {
        Purging::Every(minutes) => Some(minutes as f64),
        Purging::KeysOff | Purging::Never => None,
    };
    let ours: Vec<(Purging, Mean)> = ROWS.into_iter().zip((0..).map(|row| wear.erasures(row))).collect();
    let papers: Vec<(Purging, Mean)> = ROWS
        .into_iter()
        .filter_map(|row| {
            printed_erasures(row).map(|(mean, half)| (row, Mean { mean, half_width: Some(half) }))
        })
        .collect();
    let most = ours
        .iter()
        .chain(&papers)
        .map(|(_, mean)| mean.mean + mean.half_width.unwrap_or(0.0))
        .fold(LEAST, f64::max);
    let axes = Axes {
        x: (0.8..80.0).log_scale(),
        y: (LEAST..most * 1.2).log_scale(),
        x_label: Some((12, &|minutes| format!("{minutes:.0}"))),
        y_label: &|erasures| format!("{erasures:.0}"),
        light_lines: 0,
    };
    plot::to_file(path, (900, 480), |area| {
        let mut chart = plot::chart(area, "Erasures per hour, by minutes between two purges", axes)?;
        for (of, colour, whose) in [(&papers, ORANGE, "paper"), (&ours, BLUE, "here")] {
            let points: Vec<(f64, Mean)> =
                of.iter().filter_map(|(row, mean)| Some((minutes(*row)?, *mean))).collect();
            let line = points.iter().map(|(minutes, mean)| (*minutes, mean.mean));
            chart.line(line, colour.stroke_width(2), 4, format!("{whose}, purging"))?;
            chart.add(points.iter().filter_map(|(minutes, mean)| {
                let half = mean.half_width?;
                let ends = [(mean.mean - half).max(LEAST), mean.mean + half];
                Some(PathElement::new(ends.map(|end| (*minutes, end)).to_vec(), colour.stroke_width(2)))
            }))?;
            if let Some((_, without)) = of.iter().find(|(row, _)| *row == Purging::KeysOff) {
                let level = [0.8, 80.0].map(|minutes| (minutes, without.mean.max(LEAST)));
                chart.line(
                    level,
                    colour.mix(0.5).stroke_width(1),
                    0,
                    format!("{whose}, without secure deletion"),
                )?;
            }
        }
        chart.legend(SeriesLabelPosition::UpperRight)
    })
}

/// Erasures in the week by rank, the most worn block first, averaged over all lives.
fn distribution(wear: &WearResults, path: &Path) -> Result<()> {
    let rows: Vec<Vec<f64>> = (0..ROWS.len()).map(|row| wear.distribution(row)).collect();
    let most = rows.iter().flatten().fold(1.0, |most: f64, erasures| most.max(*erasures));
    let axes = Axes {
        x: 0.0..f64::from(wear.blocks()),
        y: 0.0..most * 1.1,
        x_label: Some((9, &|block| format!("{block:.0}"))),
        y_label: &|erasures| format!("{erasures:.0}"),
        light_lines: 0,
    };
    plot::to_file(path, (900, 480), |area| {
        let mut chart = plot::chart(area, "Erasures of each block in the week, most worn first", axes)?;
        for ((row, erasures), colour) in ROWS.into_iter().zip(&rows).zip(COLOURS) {
            let points = erasures.iter().enumerate().map(|(block, erasures)| (block as f64, *erasures));
            chart.line(points, colour.stroke_width(2), 0, name(row))?;
        }
        chart.legend(SeriesLabelPosition::UpperRight)
    })
}
