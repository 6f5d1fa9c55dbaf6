//! The figures of one section: for each subject and job the rates of all repeats, and what follows from them.

use crate::fio::{Job, Rate};
use crate::subject::Subject;
use crate::table::figure;
use std::collections::HashMap;
use std::hash::Hash;

/// Repeated measurements of one thing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// One more.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The middle one, or the mean of the two in the middle.
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }

    /// Each measurement over the one of the same repeat; `None` if there are not as many of both.
    pub(crate) fn ratios(&self, to: &Samples) -> Option<Samples> {
        let pairs = self.0.iter().zip(&to.0).map(|(ours, theirs)| ours / theirs);
        (self.0.len() == to.0.len()).then(|| Samples(pairs.collect()))
    }

    /// From the least to the greatest, in percent of the median.
    pub(crate) fn spread(&self) -> f64 {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (greatest - least) / self.median() * 100.0
    }
}

/// All figures of a section, whose subjects are servers of files unless it says otherwise.
pub(crate) struct Grid<S = Subject> {
    cells: HashMap<(S, Job), (Samples, Samples)>,
}

impl<S> Default for Grid<S> {
    fn default() -> Self {
        Grid { cells: HashMap::new() }
    }
}

impl<S: Copy + Eq + Hash> Grid<S> {
    /// Adds what a subject reached in one repeat.
    pub(crate) fn add(&mut self, subject: S, job: Job, rate: Rate) {
        let (bytes, requests) = self.cells.entry((subject, job)).or_default();
        bytes.push(rate.bytes);
        requests.push(rate.requests);
    }

    /// Whether this subject did this job.
    pub(crate) fn has(&self, subject: S, job: Job) -> bool {
        self.cells.contains_key(&(subject, job))
    }

    /// Median bytes per second.
    pub(crate) fn median(&self, subject: S, job: Job) -> Option<f64> {
        self.cells.get(&(subject, job)).map(|(bytes, _)| bytes.median())
    }

    /// One subject to another: the median of the ratios that the repeats gave, if both did the job in all.
    pub(crate) fn ratio(&self, subject: S, to: S, job: Job) -> Option<f64> {
        let (ours, _) = self.cells.get(&(subject, job))?;
        let (theirs, _) = self.cells.get(&(to, job))?;
        ours.ratios(theirs).map(|ratios| ratios.median())
    }

    /// A cell of a table: MB/s for every size, and the spread.
    pub(crate) fn megabytes(&self, subject: S, job: Job) -> String {
        let Some((bytes, _)) = self.cells.get(&(subject, job)) else { return "-".into() };
        let speed = bytes.median() / 1e6;
        let decimals = usize::from(speed < 100.0);
        format!("{speed:.decimals$} ({:.0}%)", bytes.spread())
    }

    /// A cell of a table: the ratio of one to another.
    pub(crate) fn ratio_cell(&self, subject: S, to: S, job: Job) -> String {
        figure(self.ratio(subject, to, job), 2)
    }

    /// A cell of a table: MB/s for large requests, thousands of requests per second for small ones, and the
    /// spread.
    pub(crate) fn cell(&self, subject: S, job: Job) -> String {
        let Some((bytes, requests)) = self.cells.get(&(subject, job)) else { return "-".into() };
        if job.size >= 256 << 10 {
            format!("{:.0} MB/s ({:.0}%)", bytes.median() / 1e6, bytes.spread())
        } else {
            format!("{:.1}k/s ({:.0}%)", requests.median() / 1e3, requests.spread())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Samples;

    #[test]
    #[allow(clippy::float_cmp, reason = "small whole numbers and halves are exact")]
    fn medians_and_spreads() {
        let samples = |values: &[f64]| Samples(values.to_vec());
        assert_eq!(samples(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(samples(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert!(samples(&[]).median().is_nan());
        assert_eq!(samples(&[1.0, 2.0, 3.0]).spread(), 100.0);
        assert_eq!(samples(&[7.0]).spread(), 0.0);
        let ratios = samples(&[1.0, 9.0, 4.0]).ratios(&samples(&[2.0, 3.0, 4.0])).unwrap();
        assert_eq!(ratios.median(), 1.0);
        assert!(samples(&[1.0]).ratios(&samples(&[])).is_none());
    }
}
