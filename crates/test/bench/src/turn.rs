//! One turn: a job done on a server from start to end, timed, or counted.

use crate::client::{Client, Places};
use crate::counters::{Counting, Counts};
use crate::ending::{Ending, Endings};
use crate::job::{Caches, Direction, Job};
use crate::processor::{Processor, Spent};
use crate::samples::Samples;
use crate::server::Server;
use crate::workspace::Workspace;
use lacuna_contracts::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Parts of a turn whose processor time is read apart: what disturbs a machine for some
/// milliseconds disturbs some of them only.
const SLICES: u64 = 8;
/// A slice fills the depth of its job this number of times: while it drains, fewer requests are in
/// flight.
const PIPELINES: u64 = 8;
/// Between the last answer of a slice and the reading of the clocks.
const PAUSE: Duration = Duration::from_micros(200);

/// What one turn took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Took {
    /// Requests that were answered.
    pub requests: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Until the last answer.
    pub answered: Duration,
    /// Until everything was durable; for reads the same.
    pub durable: Duration,
    /// Half of the requests took no longer.
    pub p50: Duration,
    /// Of a hundred requests 99 took no longer.
    pub p99: Duration,
    /// Processor time for a request in each slice, in nanoseconds: of the whole server, and of its
    /// background threads.
    pub slices: Vec<(f64, f64)>,
    /// Processor time after the last answer until the server had ended, for each request, in
    /// nanoseconds; for reads nothing.
    pub after: f64,
}

/// A job on an export of a disk.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    /// What is done.
    pub job: Job,
    /// Bytes of the disk.
    pub disk: u64,
    /// Requests of the job.
    pub requests: u64,
    /// Where it is done: the name of the export.
    pub export: &'a str,
    /// Another export to which the same is written meanwhile, so that hidden writes find cover.
    pub beside: Option<&'a str>,
    /// Decides the places; the same for all servers.
    pub seed: u64,
}

impl Task<'_> {
    fn connect(&self, server: &Server<'_>) -> Result<Client> {
        Client::connect(server.socket(), self.export)
    }

    /// Does the whole job, with something beside it where there is something. A job that writes
    /// ends when all is durable.
    pub(crate) fn perform(&self, server: &Server<'_>) -> Result<(Duration, Duration)> {
        self.perform_in(server, self.requests, drop, |_| Ok(()))
    }

    /// The same in slices of this number of requests: calls `replied` with the time that each
    /// request took, and `sliced` with the number of requests of each slice after its last answer.
    /// The time that this takes does not count.
    fn perform_in(
        &self,
        server: &Server<'_>,
        slice: u64,
        replied: impl FnMut(Duration),
        sliced: impl FnMut(u64) -> Result<()>,
    ) -> Result<(Duration, Duration)> {
        let mut client = self.connect(server)?;
        let Some(public) = self.beside else { return self.perform_on(&mut client, slice, replied, sliced) };
        let goes_on = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let beside = scope.spawn(|| self.go_on_beside(server, public, &goes_on));
            let took = self.perform_on(&mut client, slice, replied, sliced);
            goes_on.store(false, Ordering::Relaxed);
            beside.join().expect("a client does not panic")?;
            took
        })
    }

    fn perform_on(
        &self,
        client: &mut Client,
        slice: u64,
        mut replied: impl FnMut(Duration),
        mut sliced: impl FnMut(u64) -> Result<()>,
    ) -> Result<(Duration, Duration)> {
        let mut places = Places::new(self.seed);
        let (mut answered, mut left) = (Duration::ZERO, self.requests);
        while left > 0 {
            let count = slice.min(left);
            let begin = Instant::now();
            client.perform(self.job, self.disk, &mut places, count, &mut replied)?;
            answered += begin.elapsed();
            left -= count;
            sliced(count)?;
        }
        let begin = Instant::now();
        if self.job.direction == Direction::Write {
            client.flush()?;
        }
        Ok((answered, answered + begin.elapsed()))
    }

    fn go_on_beside(&self, server: &Server<'_>, export: &str, goes_on: &AtomicBool) -> Result<()> {
        let mut client = Client::connect(server.socket(), export)?;
        let mut places = Places::new(self.seed);
        while goes_on.load(Ordering::Relaxed) {
            client.perform(self.job, self.disk, &mut places, u64::from(self.job.depth), drop)?;
        }
        Ok(())
    }

    /// Reads the whole export once.
    fn read_once(&self, server: &Server<'_>) -> Result<()> {
        let job = Job::of_size(Direction::Read, 1 << 20);
        let mut client = self.connect(server)?;
        client.perform(job, self.disk, &mut Places::new(0), self.disk / u64::from(job.size), drop)
    }

    /// Brings the caches of a server that has just started into the state that the job wants.
    pub(crate) fn prepare(&self, work: &Workspace, server: &Server<'_>) -> Result<()> {
        match self.job.caches {
            Caches::Warm => self.read_once(server),
            Caches::JustStarted => Ok(()),
            Caches::Cold => work.forget_pages(),
        }
    }

    /// Does the job on a server that is ready for it, then ends the server, whose work until then
    /// belongs to the job.
    pub(crate) fn timed(&self, server: Server<'_>) -> Result<Took> {
        let clocks = Processor::of(server.pid())?;
        let (mut took, answered) = self.timed_on(&server, &clocks)?;
        let end = server.stop_after(|| clocks.total())?;
        took.after = self.after(answered, end);
        Ok(took)
    }

    /// Does the job on a server that goes on, whose work until all is durable belongs to the job.
    pub(crate) fn timed_beside_others(&self, server: &Server<'_>) -> Result<Took> {
        let clocks = Processor::of(server.pid())?;
        let (mut took, answered) = self.timed_on(server, &clocks)?;
        took.after = self.after(answered, clocks.total()?);
        Ok(took)
    }

    /// Processor time for a request from the last answer until the work of the job had ended.
    fn after(&self, answered: Duration, end: Duration) -> f64 {
        match self.job.direction {
            Direction::Read => 0.0,
            Direction::Write => end.saturating_sub(answered).as_nanos() as f64 / self.requests as f64,
        }
    }

    /// What the job took without the work after the last answer, and the processor time up to that.
    fn timed_on(&self, server: &Server<'_>, clocks: &Processor) -> Result<(Took, Duration)> {
        // A job with flushes has whole groups of writes in each slice.
        let filled = u64::from(self.job.depth) * PIPELINES;
        let slice =
            self.requests.div_ceil(SLICES).max(filled).next_multiple_of(self.job.fsync.unwrap_or(1).into());
        let mut slices = Vec::with_capacity(SLICES as usize);
        let mut latencies = Vec::with_capacity(self.requests as usize);
        let mut before = clocks.spent()?;
        let replied = |latency| latencies.push(latency);
        let sliced = |count| {
            // The kernel counts the time of a thread when it stops running: after the last answer
            // all those stop that serve requests.
            std::thread::sleep(PAUSE);
            let now = clocks.spent()?;
            slices.push(per_request(now.since(before), count));
            before = now;
            Ok(())
        };
        let (answered, durable) = self.perform_in(server, slice, replied, sliced)?;
        let [p50, p99] = percentiles(&mut latencies);
        let (requests, bytes) = (self.requests, self.requests * u64::from(self.job.size));
        Ok((Took { requests, bytes, answered, durable, p50, p99, slices, after: 0.0 }, before.total))
    }

    /// Counts what the server does for the job, of a job that writes until the server has ended.
    pub(crate) fn counted(&self, work: &Workspace, server: Server<'_>) -> Result<Counts> {
        let counting = Counting::begin(work, server.pid())?;
        self.perform(&server)?;
        if self.job.direction == Direction::Read {
            let counts = counting.end()?;
            server.stop()?;
            return Ok(counts);
        }
        server.stop()?;
        counting.end()
    }

    /// What a server takes to end that has got one write and a flush.
    pub(crate) fn ending(&self, server: Server<'_>) -> Result<Ending> {
        self.perform(&server)?;
        let clocks = Processor::of(server.pid())?;
        let (began, before) = (Instant::now(), clocks.total()?);
        let after = server.stop_after(|| clocks.total())?;
        Ok(Ending { processor: after.saturating_sub(before), duration: began.elapsed() })
    }

    /// Counts what such a server does until it has ended.
    pub(crate) fn counted_ending(&self, work: &Workspace, server: Server<'_>) -> Result<Counts> {
        self.perform(&server)?;
        let counting = Counting::begin(work, server.pid())?;
        server.stop()?;
        counting.end()
    }

    /// Counts what a server that goes on does for the job.
    pub(crate) fn counted_beside_others(&self, work: &Workspace, server: &Server<'_>) -> Result<Counts> {
        let counting = Counting::begin(work, server.pid())?;
        self.perform(server)?;
        counting.end()
    }
}

/// Nanoseconds for a request: of the whole server, and of its background threads.
fn per_request(spent: Spent, count: u64) -> (f64, f64) {
    let each = |time: Duration| time.as_nanos() as f64 / count as f64;
    (each(spent.total), each(spent.background))
}

/// The times that half of the requests, and 99 of a hundred, do not exceed.
fn percentiles(latencies: &mut [Duration]) -> [Duration; 2] {
    latencies.sort_unstable();
    [50, 99].map(|part| {
        let at = (latencies.len() * part).div_ceil(100).max(1) - 1;
        latencies.get(at).copied().unwrap_or_default()
    })
}

/// What several turns took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    requests: u64,
    bytes: u64,
    /// Seconds until the last answer, and until all was durable.
    answered: Samples,
    durable: Samples,
    /// Microseconds.
    p50: Samples,
    p99: Samples,
    /// Nanoseconds for a request, in each slice.
    total: Vec<Samples>,
    background: Vec<Samples>,
    after: Samples,
    counts: Option<Counts>,
    /// Nanoseconds of processor time in `after` that any session takes to end, whatever its job
    /// was.
    ending: f64,
}

impl Turns {
    /// One more turn.
    pub(crate) fn push(&mut self, took: &Took) {
        (self.requests, self.bytes) = (took.requests, took.bytes);
        self.answered.push(took.answered.as_secs_f64());
        self.durable.push(took.durable.as_secs_f64());
        self.p50.push(took.p50.as_secs_f64() * 1e6);
        self.p99.push(took.p99.as_secs_f64() * 1e6);
        self.total.resize(took.slices.len(), Samples::default());
        self.background.resize(took.slices.len(), Samples::default());
        for (slice, (total, background)) in took.slices.iter().enumerate() {
            self.total[slice].push(*total);
            self.background[slice].push(*background);
        }
        self.after.push(took.after);
    }

    /// What was counted in a turn of its own.
    pub(crate) fn count(&mut self, counts: Counts) {
        self.counts = Some(counts);
    }

    /// Takes what any session on the same disk takes to end out of these turns, each of which
    /// lasted until its server had ended.
    pub(crate) fn take_out(&mut self, endings: &Endings) {
        self.ending = endings.processor();
        if let (Some(counts), Some(ending)) = (&mut self.counts, endings.counts()) {
            *counts = counts.without(ending);
        }
    }

    /// Seconds of each turn, until the last answer or until all was durable.
    pub(crate) fn seconds(&self, durable: bool) -> &Samples {
        if durable { &self.durable } else { &self.answered }
    }

    /// Bytes per second of each turn.
    pub(crate) fn bytes_per_second(&self, durable: bool) -> Samples {
        self.seconds(durable).each(|seconds| self.bytes as f64 / seconds)
    }

    /// Requests per second of each turn.
    pub(crate) fn requests_per_second(&self, durable: bool) -> Samples {
        self.seconds(durable).each(|seconds| self.requests as f64 / seconds)
    }

    /// Microseconds that half of the requests, and 99 of a hundred, do not exceed.
    pub(crate) fn latency(&self) -> (f64, f64) {
        (self.p50.median(), self.p99.median())
    }

    /// Microseconds of processor time for a request: before the answer, and behind it. Of each
    /// slice, and of the work after the last answer, the lower quartile of all turns, for other
    /// work on the machine only adds; then the mean of the slices, so that work that a server does
    /// in bursts counts where it comes at the same point of every turn.
    pub(crate) fn processor(&self) -> (f64, f64) {
        let mean =
            |slices: &[Samples]| slices.iter().map(Samples::lower_quartile).collect::<Samples>().mean();
        let (total, background) = (mean(&self.total), mean(&self.background));
        let after = (self.after.lower_quartile() - self.ending / self.requests as f64).max(0.0);
        ((total - background) / 1e3, (background + after) / 1e3)
    }

    /// Microseconds of processor time for a request in all.
    pub(crate) fn processor_in_all(&self) -> f64 {
        let (foreground, background) = self.processor();
        foreground + background
    }

    /// What the kernel counted, for each request; bytes for each byte asked for.
    pub(crate) fn counted(&self) -> Option<Counted> {
        let counts = self.counts?;
        let each = |count: u64| count as f64 / self.requests as f64;
        let per_byte = |bytes: u64| bytes as f64 / self.bytes as f64;
        Some(Counted {
            calls: each(counts.calls),
            switches: each(counts.switches),
            copied: per_byte(counts.copied),
            read: per_byte(counts.read),
            written: per_byte(counts.written),
            medium: each(counts.requests),
            syncs: each(counts.syncs) * 1000.0,
        })
    }
}

/// What the kernel counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// System calls for a request.
    pub calls: f64,
    /// Switches of threads for a request.
    pub switches: f64,
    /// Bytes copied for a byte.
    pub copied: f64,
    /// Bytes read from the medium for a byte.
    pub read: f64,
    /// Bytes written to the medium for a byte.
    pub written: f64,
    /// Reads and writes of the medium for a request.
    pub medium: f64,
    /// Syncs of the medium for a thousand requests.
    pub syncs: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let mut times: Vec<Duration> = (1..=200).rev().map(Duration::from_micros).collect();
        assert_eq!(percentiles(&mut times), [100, 198].map(Duration::from_micros));
        assert_eq!(percentiles(&mut []), [Duration::ZERO; 2]);
    }

    #[test]
    fn a_disturbed_turn_does_not_count_and_bursts_and_late_work_do() {
        let mut turns = Turns::default();
        for disturbed in [1.0, 1.0, 1.0, 9.0] {
            // The last slice has a burst of background work in every turn.
            let slices = vec![(1000.0, 0.0), (1000.0, 0.0), (1000.0 * disturbed, 0.0), (3000.0, 2000.0)];
            turns.push(&Took { requests: 10, bytes: 40_960, slices, after: 500.0, ..Took::default() });
        }
        let (foreground, background) = turns.processor();
        let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
        assert!(near(foreground, 1.0) && near(background, 1.0), "{foreground} {background}");
    }
}
