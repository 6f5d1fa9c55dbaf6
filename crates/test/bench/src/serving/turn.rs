//! One turn: executes a job on a server from start to end, timed or counted.

use crate::measuring::counters::{KernelCounts, TracedCount};
use crate::measuring::processor::{ProcessorClocks, ProcessorTime};
use crate::measuring::samples::Samples;
use crate::serving::client::LoadClient;
use crate::serving::job::{CacheState, Direction, IoJob};
use crate::serving::request_offsets::{RequestOffsets, WritePosition, WritePositions};
use crate::serving::server::RunningServer;
use crate::serving::stop_cost::{StopCost, StopCosts};
use crate::workspace::Workspace;
use lacuna_contracts::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Slices of a turn, with processor times read separately: a disturbance of the machine of some
/// milliseconds affects only some of them.
const SLICES: u64 = 8;
/// The requests of a slice are at least this multiple of the depth, because fewer requests are in
/// flight while a slice drains.
const PIPELINES: u64 = 8;
/// Pause between the last answer of a slice and the reading of the clocks.
const PAUSE: Duration = Duration::from_micros(200);

/// The measurements of one turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnResult {
    /// Answered requests.
    pub requests: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Time until the last answer.
    pub answered: Duration,
    /// Time until all writes are durable; for reads equal to `answered`.
    pub durable: Duration,
    /// Median latency of a request.
    pub p50: Duration,
    /// 99th percentile of the latency of a request.
    pub p99: Duration,
    /// Processor time per request in each slice, in nanoseconds: of the whole server, and of its
    /// background threads.
    pub slices: Vec<(f64, f64)>,
    /// Processor time after the last answer until the end of the server, per request, in
    /// nanoseconds; 0 for reads.
    pub after_answer: f64,
}

/// A job on an export of a disk.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    /// The kind of load.
    pub job: IoJob,
    /// Bytes of the disk.
    pub disk: u64,
    /// Requests of the job.
    pub requests: u64,
    /// The name of the export.
    pub export: &'a str,
    /// A second export that gets the same writes meanwhile, so that hidden writes find cover.
    pub cover_export: Option<&'a str>,
    /// Seed of the places; the same for all servers.
    pub seed: u64,
    /// The places where sequential writes go on; without them, each job begins at the start of the
    /// disk.
    pub positions: Option<&'a WritePositions>,
}

impl Task<'static> {
    /// A job on the export of a disk that has only one, from the start of the disk.
    pub(crate) fn alone(job: IoJob, disk: u64, requests: u64, seed: u64) -> Task<'static> {
        Task { job, disk, requests, export: "", cover_export: None, seed, positions: None }
    }
}

impl Task<'_> {
    fn connect(&self, server: &RunningServer<'_>) -> Result<LoadClient> {
        LoadClient::connect(server.socket(), self.export)
    }

    /// Executes the whole job, with the same writes to the second export if it is set. Returns the
    /// times until the last answer and until all writes are durable.
    pub(crate) fn perform(&self, server: &RunningServer<'_>) -> Result<(Duration, Duration)> {
        self.perform_in(server, self.requests, drop, |_| Ok(()))
    }

    /// Executes the job in slices of `slice` requests: calls `replied` with the latency of each
    /// request, and `sliced` with the number of requests of each slice after its last answer. The
    /// time in `sliced` does not count.
    fn perform_in(
        &self,
        server: &RunningServer<'_>,
        slice: u64,
        replied: impl FnMut(Duration),
        sliced: impl FnMut(u64) -> Result<()>,
    ) -> Result<(Duration, Duration)> {
        let mut client = self.connect(server)?;
        let Some(public) = self.cover_export else {
            return self.perform_on(&mut client, slice, replied, sliced);
        };
        let is_running = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let beside = scope.spawn(|| self.write_cover(server, public, &is_running));
            let took = self.perform_on(&mut client, slice, replied, sliced);
            is_running.store(false, Ordering::Relaxed);
            beside.join().expect("a client does not panic")?;
            took
        })
    }

    fn perform_on(
        &self,
        client: &mut LoadClient,
        slice: u64,
        mut replied: impl FnMut(Duration),
        mut sliced: impl FnMut(u64) -> Result<()>,
    ) -> Result<(Duration, Duration)> {
        let position = self.positions.map(|positions| &positions.job);
        let mut places = self.places_from(position);
        let (mut answered, mut left) = (Duration::ZERO, self.requests);
        while left > 0 {
            let count = slice.min(left);
            let begin = Instant::now();
            client.perform(self.job, self.disk, &mut places, count, &mut replied)?;
            answered += begin.elapsed();
            left -= count;
            sliced(count)?;
        }
        self.move_to_end(position, &places);
        let begin = Instant::now();
        if self.job.direction == Direction::Write {
            client.flush()?;
        }
        Ok((answered, answered + begin.elapsed()))
    }

    fn write_cover(&self, server: &RunningServer<'_>, export: &str, is_running: &AtomicBool) -> Result<()> {
        let mut client = LoadClient::connect(server.socket(), export)?;
        let position = self.positions.map(|positions| &positions.cover);
        let mut places = self.places_from(position);
        while is_running.load(Ordering::Relaxed) {
            client.perform(self.job, self.disk, &mut places, u64::from(self.job.depth), drop)?;
        }
        self.move_to_end(position, &places);
        Ok(())
    }

    /// The places of the requests, which go on from a position if there is one.
    fn places_from(&self, position: Option<&WritePosition>) -> RequestOffsets {
        match position {
            Some(position) => position.offsets(self.job, self.seed),
            None => RequestOffsets::new(self.seed),
        }
    }

    fn move_to_end(&self, position: Option<&WritePosition>, places: &RequestOffsets) {
        if let Some(position) = position {
            position.move_to_end(self.job, places);
        }
    }

    /// Reads the whole export once.
    fn read_once(&self, server: &RunningServer<'_>) -> Result<()> {
        let job = IoJob::of_size(Direction::Read, 1 << 20);
        let mut client = self.connect(server)?;
        client.perform(job, self.disk, &mut RequestOffsets::new(0), self.disk / u64::from(job.size), drop)
    }

    /// Prepares the caches of a server that has just started for the job.
    pub(crate) fn prepare(&self, work: &Workspace, server: &RunningServer<'_>) -> Result<()> {
        match self.job.caches {
            CacheState::Warm => self.read_once(server),
            CacheState::JustStarted => Ok(()),
            CacheState::Cold => work.drop_caches(),
        }
    }

    /// Executes the job on a server that is ready for it, then stops the server; its work until
    /// then counts for the job.
    pub(crate) fn timed(&self, server: RunningServer<'_>) -> Result<TurnResult> {
        let clocks = ProcessorClocks::of(server.pid())?;
        let (mut took, answered) = self.timed_on(&server, &clocks)?;
        let end = server.stop_after(|| clocks.total())?;
        took.after_answer = self.after_answer(answered, end);
        Ok(took)
    }

    /// Executes the job on a server that continues to run; its work until all writes are durable
    /// counts for the job.
    pub(crate) fn timed_on_running(&self, server: &RunningServer<'_>) -> Result<TurnResult> {
        let clocks = ProcessorClocks::of(server.pid())?;
        let (mut took, answered) = self.timed_on(server, &clocks)?;
        took.after_answer = self.after_answer(answered, clocks.total()?);
        Ok(took)
    }

    /// Processor time per request after the last answer.
    fn after_answer(&self, answered: Duration, end: Duration) -> f64 {
        match self.job.direction {
            Direction::Read => 0.0,
            Direction::Write => end.saturating_sub(answered).as_nanos() as f64 / self.requests as f64,
        }
    }

    /// Measurements of the job without the work after the last answer, and the processor time up to
    /// the last answer.
    fn timed_on(
        &self,
        server: &RunningServer<'_>,
        clocks: &ProcessorClocks,
    ) -> Result<(TurnResult, Duration)> {
        // With flushes, each slice is a multiple of the writes between two flushes.
        let filled = u64::from(self.job.depth) * PIPELINES;
        let slice =
            self.requests.div_ceil(SLICES).max(filled).next_multiple_of(self.job.fsync.unwrap_or(1).into());
        let mut slices = Vec::with_capacity(SLICES as usize);
        let mut latencies = Vec::with_capacity(self.requests as usize);
        let mut before = clocks.spent()?;
        let replied = |latency| latencies.push(latency);
        let sliced = |count| {
            // The kernel accounts the time of a thread when it stops running; after the last answer
            // all threads that serve requests stop.
            std::thread::sleep(PAUSE);
            let now = clocks.spent()?;
            slices.push(per_request(now.since(before), count));
            before = now;
            Ok(())
        };
        let (answered, durable) = self.perform_in(server, slice, replied, sliced)?;
        let [p50, p99] = percentiles(&mut latencies);
        let (requests, bytes) = (self.requests, self.requests * u64::from(self.job.size));
        Ok((
            TurnResult { requests, bytes, answered, durable, p50, p99, slices, after_answer: 0.0 },
            before.total,
        ))
    }

    /// Counts the operations of the server for the job; if it writes, until the server has ended.
    pub(crate) fn counted(&self, work: &Workspace, server: RunningServer<'_>) -> Result<KernelCounts> {
        let counting = TracedCount::begin(work, server.pid())?;
        self.perform(&server)?;
        if self.job.direction == Direction::Read {
            let counts = counting.end()?;
            server.stop()?;
            return Ok(counts);
        }
        server.stop()?;
        counting.end()
    }

    /// Measures the end of a server after one write and a flush.
    pub(crate) fn measure_stop(&self, server: RunningServer<'_>) -> Result<StopCost> {
        self.perform(&server)?;
        let clocks = ProcessorClocks::of(server.pid())?;
        let (began, before) = (Instant::now(), clocks.total()?);
        let after = server.stop_after(|| clocks.total())?;
        Ok(StopCost { processor: after.saturating_sub(before), duration: began.elapsed() })
    }

    /// Counts the operations of such a server until it has ended.
    pub(crate) fn counted_stop(&self, work: &Workspace, server: RunningServer<'_>) -> Result<KernelCounts> {
        self.perform(&server)?;
        let counting = TracedCount::begin(work, server.pid())?;
        server.stop()?;
        counting.end()
    }

    /// Counts the operations for the job of a server that continues to run.
    pub(crate) fn counted_on_running(
        &self,
        work: &Workspace,
        server: &RunningServer<'_>,
    ) -> Result<KernelCounts> {
        let counting = TracedCount::begin(work, server.pid())?;
        self.perform(server)?;
        counting.end()
    }
}

/// Nanoseconds per request: of the whole server, and of its background threads.
fn per_request(spent: ProcessorTime, count: u64) -> (f64, f64) {
    let each = |time: Duration| time.as_nanos() as f64 / count as f64;
    (each(spent.total), each(spent.background))
}

/// The median and the 99th percentile.
fn percentiles(latencies: &mut [Duration]) -> [Duration; 2] {
    latencies.sort_unstable();
    [50, 99].map(|part| {
        let at = (latencies.len() * part).div_ceil(100).max(1) - 1;
        latencies.get(at).copied().unwrap_or_default()
    })
}

/// The measurements of several turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnResults {
    requests: u64,
    bytes: u64,
    /// Seconds until the last answer, and until all writes are durable.
    answered: Samples,
    durable: Samples,
    /// Latencies in microseconds.
    p50: Samples,
    p99: Samples,
    /// Nanoseconds per request, for each slice.
    total: Vec<Samples>,
    background: Vec<Samples>,
    after_answer: Samples,
    counts: Option<KernelCounts>,
    /// Nanoseconds of processor time in `after` that the end of any session takes, whatever its job
    /// was.
    stop_cost: f64,
}

impl TurnResults {
    /// Adds a turn.
    pub(crate) fn push(&mut self, took: &TurnResult) {
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
        self.after_answer.push(took.after_answer);
    }

    /// Sets the counts, from a turn of their own.
    pub(crate) fn count(&mut self, counts: KernelCounts) {
        self.counts = Some(counts);
    }

    /// Subtracts the cost of the end of any session on the same disk from these turns, because they
    /// lasted until the server had ended.
    pub(crate) fn subtract_stop(&mut self, endings: &StopCosts) {
        self.stop_cost = endings.processor();
        if let (Some(counts), Some(ending)) = (&mut self.counts, endings.counts()) {
            *counts = counts.without(ending);
        }
    }

    /// Seconds of each turn, until the last answer or until all writes are durable.
    pub(crate) fn seconds(&self, durable: bool) -> &Samples {
        if durable { &self.durable } else { &self.answered }
    }

    /// Bytes per second of each turn.
    pub(crate) fn bytes_per_second(&self, durable: bool) -> Samples {
        self.seconds(durable).map(|seconds| self.bytes as f64 / seconds)
    }

    /// Requests per second of each turn.
    pub(crate) fn requests_per_second(&self, durable: bool) -> Samples {
        self.seconds(durable).map(|seconds| self.requests as f64 / seconds)
    }

    /// The median and the 99th percentile of the latency, in microseconds.
    pub(crate) fn latency(&self) -> (f64, f64) {
        (self.p50.median(), self.p99.median())
    }

    /// Microseconds of processor time per request: before the answer, and after it. The lower
    /// quartile over all turns is taken for each slice and for the work after the last answer,
    /// because other work on the machine only adds; then the mean of the slices, so that a server's
    /// bursts of work count if they occur at the same point of every turn.
    pub(crate) fn processor(&self) -> (f64, f64) {
        let mean =
            |slices: &[Samples]| slices.iter().map(Samples::lower_quartile).collect::<Samples>().mean();
        let (total, background) = (mean(&self.total), mean(&self.background));
        let after = (self.after_answer.lower_quartile() - self.stop_cost / self.requests as f64).max(0.0);
        ((total - background) / 1e3, (background + after) / 1e3)
    }

    /// Total microseconds of processor time per request.
    pub(crate) fn total_processor(&self) -> f64 {
        let (foreground, background) = self.processor();
        foreground + background
    }

    /// The kernel's counts per request; bytes per requested byte.
    pub(crate) fn counted(&self) -> Option<CountsPerRequest> {
        let counts = self.counts?;
        let each = |count: u64| count as f64 / self.requests as f64;
        let per_byte = |bytes: u64| bytes as f64 / self.bytes as f64;
        Some(CountsPerRequest {
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

/// The kernel's counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountsPerRequest {
    /// System calls per request.
    pub calls: f64,
    /// Thread switches per request.
    pub switches: f64,
    /// Bytes copied per byte.
    pub copied: f64,
    /// Bytes read from the medium per byte.
    pub read: f64,
    /// Bytes written to the medium per byte.
    pub written: f64,
    /// Reads and writes of the medium per request.
    pub medium: f64,
    /// Syncs of the medium per thousand requests.
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
        let mut turns = TurnResults::default();
        for disturbed in [1.0, 1.0, 1.0, 9.0] {
            // The last slice has a burst of background work in every turn.
            let slices = vec![(1000.0, 0.0), (1000.0, 0.0), (1000.0 * disturbed, 0.0), (3000.0, 2000.0)];
            turns.push(&TurnResult {
                requests: 10,
                bytes: 40_960,
                slices,
                after_answer: 500.0,
                ..TurnResult::default()
            });
        }
        let (foreground, background) = turns.processor();
        let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
        assert!(near(foreground, 1.0) && near(background, 1.0), "{foreground} {background}");
    }
}
