//! The figures of a section: all turns for each subject and job, the ends of sessions for each
//! subject, and table cells of both.

use crate::measuring::samples::Samples;
use crate::pages::table::figure;
use crate::serving::job::{Direction, IoJob};
use crate::serving::stop_cost::StopCosts;
use crate::serving::subject::Subject;
use crate::serving::turn::{CountsPerRequest, TurnResult, TurnResults};
use std::collections::HashMap;
use std::hash::Hash;

/// All figures of a section, with servers of files as subjects by default.
pub(crate) struct Grid<S = Subject> {
    cells: HashMap<(S, IoJob), TurnResults>,
    stop_costs: HashMap<S, StopCosts>,
}

impl<S> Default for Grid<S> {
    fn default() -> Self {
        Grid { cells: HashMap::new(), stop_costs: HashMap::new() }
    }
}

impl<S: Copy + Eq + Hash> Grid<S> {
    /// Adds a turn of a subject.
    pub(crate) fn add(&mut self, subject: S, job: IoJob, took: &TurnResult) {
        self.turns_mut(subject, job).push(took);
    }

    /// The ends of sessions of a subject, for adding to them.
    pub(crate) fn stop_costs_mut(&mut self, subject: S) -> &mut StopCosts {
        self.stop_costs.entry(subject).or_default()
    }

    /// The ends of sessions of a subject, if they were measured.
    pub(crate) fn stop_costs(&self, subject: S) -> Option<&StopCosts> {
        self.stop_costs.get(&subject)
    }

    /// Subtracts the cost of the end of a session from all jobs that write, after the last turn.
    pub(crate) fn subtract_stop_costs(&mut self) {
        for ((subject, job), turns) in &mut self.cells {
            if let (Direction::Write, Some(endings)) = (job.direction, self.stop_costs.get(subject)) {
                turns.subtract_stop(endings);
            }
        }
    }

    /// The turns of a subject at a job, for adding to them.
    pub(crate) fn turns_mut(&mut self, subject: S, job: IoJob) -> &mut TurnResults {
        self.cells.entry((subject, job)).or_default()
    }

    /// The turns of a subject at a job, if there are any.
    pub(crate) fn turns(&self, subject: S, job: IoJob) -> Option<&TurnResults> {
        self.cells.get(&(subject, job))
    }

    /// Whether this subject did this job.
    pub(crate) fn has(&self, subject: S, job: IoJob) -> bool {
        self.cells.contains_key(&(subject, job))
    }

    /// Median bytes per second, with writes until they are durable.
    pub(crate) fn median(&self, subject: S, job: IoJob) -> Option<f64> {
        Some(self.turns(subject, job)?.bytes_per_second(true).median())
    }

    /// The ratios of the speeds of two subjects in each round, if both did the job in all rounds.
    pub(crate) fn ratios(&self, subject: S, to: S, job: IoJob, durable: bool) -> Option<Samples> {
        // Both did the same work, so the ratio of speeds is the inverse ratio of times.
        self.turns(to, job)?.seconds(durable).ratios(self.turns(subject, job)?.seconds(durable))
    }

    /// The median of the speed ratios, with writes until they are durable.
    pub(crate) fn ratio(&self, subject: S, to: S, job: IoJob) -> Option<f64> {
        Some(self.ratios(subject, to, job, true)?.median())
    }

    /// The ratio of the processor times of two subjects, for the same work.
    pub(crate) fn processor_ratio(&self, subject: S, to: S, job: IoJob) -> Option<f64> {
        let time = |subject| self.turns(subject, job).map(TurnResults::total_processor);
        Some(time(subject)? / time(to)?)
    }

    /// A table cell: the ratio of speeds, marked if it varies too much.
    pub(crate) fn ratio_cell(&self, subject: S, to: S, job: IoJob, durable: bool) -> String {
        let Some(ratios) = self.ratios(subject, to, job, durable) else { return "-".into() };
        format!("{}{}", figure(Some(ratios.median()), 2), ratios.mark())
    }

    /// A table cell: the ratio of processor times.
    pub(crate) fn processor_ratio_cell(&self, subject: S, to: S, job: IoJob) -> String {
        figure(self.processor_ratio(subject, to, job), 2)
    }

    /// A table cell: MB/s for large requests, thousands of requests per second for small ones,
    /// marked if it varies too much.
    pub(crate) fn cell(&self, subject: S, job: IoJob, durable: bool) -> String {
        let Some(turns) = self.turns(subject, job) else { return "-".into() };
        if job.in_bytes() {
            let bytes = turns.bytes_per_second(durable);
            format!("{:.0} MB/s{}", bytes.median() / 1e6, bytes.mark())
        } else {
            let requests = turns.requests_per_second(durable);
            format!("{:.1}k/s{}", requests.median() / 1e3, requests.mark())
        }
    }

    /// A table cell: processor time in milliseconds per GiB or per thousand requests; after a plus
    /// sign, the background part, if it is not negligible.
    pub(crate) fn processor_cell(&self, subject: S, job: IoJob) -> String {
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

    /// A table cell: the median and the 99th percentile of the latency, in microseconds.
    pub(crate) fn latency_cell(&self, subject: S, job: IoJob) -> String {
        let Some(turns) = self.turns(subject, job) else { return "-".into() };
        let (p50, p99) = turns.latency();
        format!("{p50:.0} / {p99:.0}")
    }

    /// The kernel's counts.
    pub(crate) fn counted(&self, subject: S, job: IoJob) -> Option<CountsPerRequest> {
        self.turns(subject, job)?.counted()
    }
}
