//! The cost of the end of a session after one write, which does not depend on the earlier work of
//! the session. Disks with levels write the cover of a close at that time; if it counted for a job,
//! figures per byte would depend on the length of the job.

use crate::measuring::counters::KernelCounts;
use crate::measuring::samples::Samples;
use std::time::Duration;

/// The measurements of one end, from the signal until the process of the server has ended.
pub(crate) struct StopCost {
    /// Processor time of the server.
    pub processor: Duration,
    /// Elapsed time.
    pub duration: Duration,
}

/// The measurements of several ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopCosts {
    /// Processor time in nanoseconds.
    processor: Samples,
    seconds: Samples,
    counts: Option<KernelCounts>,
}

impl StopCosts {
    /// Adds an end.
    pub(crate) fn push(&mut self, ending: &StopCost) {
        self.processor.push(ending.processor.as_nanos() as f64);
        self.seconds.push(ending.duration.as_secs_f64());
    }

    /// Sets the counts, from an end of their own.
    pub(crate) fn count(&mut self, counts: KernelCounts) {
        self.counts = Some(counts);
    }

    /// Processor time in nanoseconds: the lower quartile, because other work on the machine only
    /// adds to it.
    pub(crate) fn processor(&self) -> f64 {
        self.processor.lower_quartile()
    }

    /// The median of the seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds.median()
    }

    /// The kernel's counts, if it counts.
    pub(crate) fn counts(&self) -> Option<KernelCounts> {
        self.counts
    }
}
