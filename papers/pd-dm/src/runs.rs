//! Figure 6 of PD-DM: throughput over many runs of the same job on the same disk, on the model of
//! the paper's disk.

use crate::paper_tables::{megabytes, name};
use lacuna_bench::modelled::simulated_disk::{MediumModel, Operation, SimulatedDisk};
use lacuna_bench::modelled::{ModelledDisk, Sizes};
use lacuna_bench::pages::requirement::{Bound, Requirement};
use lacuna_bench::pages::table::{Table, figure};
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::{Budget, Result};

/// The paper's number of runs.
const RUNS: usize = 40;
/// Runs until the log has wrapped around; after that it has blocks to carry.
const SETTLING: usize = 5;
/// Number of last runs, which are compared with the same number of runs before them.
const TAIL: usize = 10;
/// Minimum ratio of the last runs to the runs before them.
const MIN_TAIL_RATIO: f64 = 0.95;

/// Tables 2 and 3 of the paper: mean and standard error of 40 runs, in MB/s.
const PAPER: [(bool, Operation, f64, f64); 8] = [
    (false, Operation::PublicRead, 17.452, 0.367),
    (false, Operation::PublicWrite, 1.347, 0.093),
    (false, Operation::HiddenRead, 12.030, 0.088),
    (false, Operation::HiddenWrite, 1.456, 0.086),
    (true, Operation::PublicRead, 0.309, 0.005),
    (true, Operation::PublicWrite, 0.276, 0.017),
    (true, Operation::HiddenRead, 0.309, 0.011),
    (true, Operation::HiddenWrite, 0.282, 0.024),
];

/// The runs of one job, in bytes per second.
pub(crate) struct Series {
    /// Whether the requests are random.
    pub random: bool,
    /// The operation of the job.
    pub operation: Operation,
    /// The rate of each run; the first sequential run uses a newly created disk.
    pub rates: Vec<f64>,
}

pub(crate) struct RunSeries {
    series: Vec<Series>,
    runs: usize,
}

pub(crate) fn measure(work: &Workspace) -> Result<RunSeries> {
    let sizes = Sizes::of(work)?;
    let runs = if work.scale.quick { 2 } else { RUNS };
    let mut series = PAPER.map(|(random, operation, ..)| Series { random, operation, rates: Vec::new() });
    for random in [false, true] {
        work.report_progress(&format!(
            "models: {runs} runs, {}",
            if random { "random" } else { "sequential" }
        ))?;
        let mut simulated_disk = SimulatedDisk::new(sizes.medium, sizes.full_level_blocks / 2, |medium| {
            ModelledDisk::Half.open(medium, Budget::bytes(sizes.budget))
        })?;
        if random {
            // Fill the disk, so that reads find data.
            simulated_disk.write(false, simulated_disk.span)?;
        }
        for _ in 0..runs {
            work.interrupt.check()?;
            for (model, operation, rate) in simulated_disk.run_jobs(random)? {
                let of = series.iter_mut().find(|of| (of.random, of.operation) == (random, operation));
                of.filter(|_| model == MediumModel::HardDisk).into_iter().for_each(|of| of.rates.push(rate));
            }
        }
    }
    Ok(RunSeries { series: series.into(), runs })
}

pub(crate) fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}

/// Standard deviation relative to the mean.
fn spread(rates: &[f64]) -> f64 {
    let middle = mean(rates);
    let squares: f64 = rates.iter().map(|rate| (rate - middle).powi(2)).sum();
    (squares / (rates.len().max(2) - 1) as f64).sqrt() / middle
}

/// The minimum for part 0, the median for 1, the maximum for 2.
fn rank(rates: &[f64], part: usize) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) * part / 2).copied().unwrap_or(0.0)
}

/// Ratio of the median of the last runs to the median of the runs before them; `None` if there are
/// too few runs.
fn tail_ratio(rates: &[f64]) -> Option<f64> {
    let last = rates.len().checked_sub(TAIL)?;
    let before = last.checked_sub(TAIL)?;
    Some(rank(&rates[last..], 1) / rank(&rates[before..last], 1))
}

/// The runs after the first [`SETTLING`]; all runs if there are too few.
fn settled(rates: &[f64]) -> &[f64] {
    rates.get(SETTLING..).filter(|settled| !settled.is_empty()).unwrap_or(rates)
}

impl Series {
    pub(crate) fn name(&self) -> String {
        format!("{} {}s", if self.random { "random" } else { "sequential" }, name(self.operation))
    }

    /// The cells of a row: figures here, then those of the paper.
    fn cells(&self, (paper, error): (f64, f64)) -> Vec<String> {
        let first = self.rates.first().copied().unwrap_or(0.0);
        let later = settled(&self.rates);
        let figures = [first, rank(later, 0), rank(later, 1), rank(later, 2), mean(later)];
        let deviation = error * (RUNS as f64).sqrt() / paper * 100.0;
        let mut cells = figures.map(|rate| megabytes(rate / 1e6)).to_vec();
        cells.extend([format!("{:.1}%", spread(later) * 100.0), figure(tail_ratio(&self.rates), 3)]);
        cells.extend([format!("{paper:.3}"), format!("{deviation:.0}%")]);
        cells
    }
}

impl RunSeries {
    /// All jobs with their runs.
    pub(crate) fn series(&self) -> &[Series] {
        &self.series
    }

    pub(crate) fn table(&self) -> Table {
        let head = [
            "MB/s",
            "first run",
            "settled: least",
            "median",
            "most",
            "mean",
            "standard deviation",
            "last ten to the previous ten",
            "PD-DM, mean",
            "PD-DM, standard deviation",
        ];
        let title = format!("{} runs one after another, hard disk (paper 000, Figure 6)", self.runs);
        let mut table = Table::new(title, head);
        for (series, (.., mean, error)) in self.series.iter().zip(PAPER) {
            table.row(series.name(), series.cells((mean, error)));
        }
        table
    }

    /// The requirement that throughput does not fall from run to run.
    pub(crate) fn requirement(&self) -> Requirement {
        let line = "many runs on one disk: the last ten to the previous ten";
        let empty = Requirement::new(line, Bound::AtLeast(MIN_TAIL_RATIO), "");
        self.series.iter().fold(empty, |all, series| all.case(series.name(), tail_ratio(&series.rates)))
    }

    /// How the figures are obtained.
    pub(crate) fn method(&self) -> String {
        format!(
            "- Figure 6: the jobs of Tables 2 and 3 on *half* run {runs} times one after another on the same \
disk, without a write-back cache: public writes, public reads, hidden writes, hidden reads. The sequential \
series begins on a new disk, the random one after one pass from end to end. A disk has nothing to carry \
until its log has come round, so the columns after the first leave out the first {SETTLING} runs. The column \
about the last ten compares medians. The paper prints a plot of its hidden volume and, in Tables 2 and 3, \
means with standard errors of {RUNS} runs; its standard deviation here is that error times √{RUNS}. The \
paper measured a real disk below a file system, and a large part of its spread does not come from the \
mapper. Our spread comes from the log alone, because a model charges the same time for the same calls.\n",
            runs = self.runs,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::float_cmp, reason = "small whole numbers are exact")]
    fn the_last_runs_are_compared_with_those_before() {
        let rates: Vec<f64> = (0..25).map(|run| if run < 15 { 2.0 } else { 1.0 }).collect();
        assert_eq!(tail_ratio(&rates), Some(0.5));
        assert_eq!(tail_ratio(&rates[..19]), None);
        assert_eq!((settled(&rates).len(), settled(&rates[..5]).len()), (20, 5));
        assert_eq!([0, 1, 2].map(|part| rank(&[3.0, 1.0, 2.0], part)), [1.0, 2.0, 3.0]);
        assert!((spread(&[1.0, 2.0, 3.0]) - 0.5).abs() < 1e-9);
        assert!(spread(&[7.0; 3]) < 1e-9);
    }
}
