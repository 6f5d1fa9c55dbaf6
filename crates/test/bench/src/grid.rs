//! The figures of one section: for each subject and job all turns, for each subject what its
//! sessions take to end, and what tables say of them.

use crate::ending::Endings;
use crate::job::{Direction, Job};
use crate::samples::Samples;
use crate::subject::Subject;
use crate::table::figure;
use crate::turn::{Counted, Took, Turns};
use std::collections::HashMap;
use std::hash::Hash;

/// All figures of a section, whose subjects are servers of files unless it says otherwise.
pub(crate) struct Grid<S = Subject> {
    cells: HashMap<(S, Job), Turns>,
    endings: HashMap<S, Endings>,
}

impl<S> Default for Grid<S> {
    fn default() -> Self {
        Grid { cells: HashMap::new(), endings: HashMap::new() }
    }
}

impl<S: Copy + Eq + Hash> Grid<S> {
    /// Adds what a subject took in one round.
    pub(crate) fn add(&mut self, subject: S, job: Job, took: &Took) {
        self.turns_mut(subject, job).push(took);
    }

    /// What sessions of a subject took to end, to add to.
    pub(crate) fn endings_mut(&mut self, subject: S) -> &mut Endings {
        self.endings.entry(subject).or_default()
    }

    /// What sessions of a subject took to end, if that was measured.
    pub(crate) fn endings(&self, subject: S) -> Option<&Endings> {
        self.endings.get(&subject)
    }

    /// Takes what any session takes to end out of all jobs that write, after the last turn.
    pub(crate) fn take_out_endings(&mut self) {
        for ((subject, job), turns) in &mut self.cells {
            if let (Direction::Write, Some(endings)) = (job.direction, self.endings.get(subject)) {
                turns.take_out(endings);
            }
        }
    }

    /// The turns of a subject at a job, to add to.
    pub(crate) fn turns_mut(&mut self, subject: S, job: Job) -> &mut Turns {
        self.cells.entry((subject, job)).or_default()
    }

    /// The turns of a subject at a job, if it did it.
    pub(crate) fn turns(&self, subject: S, job: Job) -> Option<&Turns> {
        self.cells.get(&(subject, job))
    }

    /// Whether this subject did this job.
    pub(crate) fn has(&self, subject: S, job: Job) -> bool {
        self.cells.contains_key(&(subject, job))
    }

    /// Median bytes per second, writes until they are durable.
    pub(crate) fn median(&self, subject: S, job: Job) -> Option<f64> {
        Some(self.turns(subject, job)?.bytes_per_second(true).median())
    }

    /// The speed of one subject to another's in each round, if both did the job in all.
    pub(crate) fn ratios(&self, subject: S, to: S, job: Job, durable: bool) -> Option<Samples> {
        // The same work was done by both, so the times are compared the other way round.
        self.turns(to, job)?.seconds(durable).ratios(self.turns(subject, job)?.seconds(durable))
    }

    /// The median of the speed ratios, writes until they are durable.
    pub(crate) fn ratio(&self, subject: S, to: S, job: Job) -> Option<f64> {
        Some(self.ratios(subject, to, job, true)?.median())
    }

    /// The processor time of one subject to another's, for the same work.
    pub(crate) fn processor_ratio(&self, subject: S, to: S, job: Job) -> Option<f64> {
        let time = |subject| self.turns(subject, job).map(Turns::processor_in_all);
        Some(time(subject)? / time(to)?)
    }

    /// A cell of a table: the ratio of speeds, marked if it moves too much.
    pub(crate) fn ratio_cell(&self, subject: S, to: S, job: Job, durable: bool) -> String {
        let Some(ratios) = self.ratios(subject, to, job, durable) else { return "-".into() };
        format!("{}{}", figure(Some(ratios.median()), 2), ratios.mark())
    }

    /// A cell of a table: the ratio of processor times.
    pub(crate) fn processor_ratio_cell(&self, subject: S, to: S, job: Job) -> String {
        figure(self.processor_ratio(subject, to, job), 2)
    }

    /// A cell of a table: MB/s for large requests, thousands of requests per second for small ones,
    /// marked if it moves too much.
    pub(crate) fn cell(&self, subject: S, job: Job, durable: bool) -> String {
        let Some(turns) = self.turns(subject, job) else { return "-".into() };
        if job.in_bytes() {
            let bytes = turns.bytes_per_second(durable);
            format!("{:.0} MB/s{}", bytes.median() / 1e6, bytes.mark())
        } else {
            let requests = turns.requests_per_second(durable);
            format!("{:.1}k/s{}", requests.median() / 1e3, requests.mark())
        }
    }

    /// A cell of a table: processor time for a GiB in milliseconds, or for a thousand requests;
    /// after a plus sign what of it is spent behind the requests, where that is anything.
    pub(crate) fn processor_cell(&self, subject: S, job: Job) -> String {
        let Some(turns) = self.turns(subject, job) else { return "-".into() };
        let (foreground, background) = turns.processor();
        let scale = if job.in_bytes() { f64::from(1 << 30) / f64::from(job.size) / 1e3 } else { 1.0 };
        let (foreground, background) = (foreground * scale, background * scale);
        let decimals = usize::from(foreground < 100.0);
        if background >= 0.005 * foreground {
            return format!("{foreground:.decimals$} + {background:.decimals$} ms");
        }
        format!("{foreground:.decimals$} ms")
    }

    /// A cell of a table: microseconds that half of the requests, and 99 of a hundred, do not
    /// exceed.
    pub(crate) fn latency_cell(&self, subject: S, job: Job) -> String {
        let Some(turns) = self.turns(subject, job) else { return "-".into() };
        let (p50, p99) = turns.latency();
        format!("{p50:.0} / {p99:.0}")
    }

    /// What the kernel counted.
    pub(crate) fn counted(&self, subject: S, job: Job) -> Option<Counted> {
        self.turns(subject, job)?.counted()
    }
}
