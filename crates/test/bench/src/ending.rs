//! What the end of a session takes after one write, which is the same whatever the session did
//! before. Disks with levels write the cover of a closing then; if it counted as work of a job, a
//! figure for each byte would say how short the job was.

use crate::counters::Counts;
use crate::samples::Samples;
use std::time::Duration;

/// What one end took, from a signal until the process of the server was gone.
pub(crate) struct Ending {
    /// Processor time of the server.
    pub processor: Duration,
    /// Time on the clock.
    pub duration: Duration,
}

/// What several ends took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Endings {
    /// Nanoseconds.
    processor: Samples,
    seconds: Samples,
    counts: Option<Counts>,
}

impl Endings {
    /// One more end.
    pub(crate) fn push(&mut self, ending: &Ending) {
        self.processor.push(ending.processor.as_nanos() as f64);
        self.seconds.push(ending.duration.as_secs_f64());
    }

    /// What was counted in an end of its own.
    pub(crate) fn count(&mut self, counts: Counts) {
        self.counts = Some(counts);
    }

    /// Nanoseconds of processor time: the lower quartile, for other work on the machine only adds
    /// to it.
    pub(crate) fn processor(&self) -> f64 {
        self.processor.lower_quartile()
    }

    /// The median of the seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds.median()
    }

    /// What the kernel counted, where it counts.
    pub(crate) fn counts(&self) -> Option<Counts> {
        self.counts
    }
}
