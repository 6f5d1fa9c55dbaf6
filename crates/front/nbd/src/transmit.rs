//! The transmission engine: a few threads per connection that take turns reading the socket.
//!
//! The thread that has the turn reads requests and then performs them itself, so that no request
//! moves between threads. Whether it keeps the turn meanwhile depends on the recent speed of the
//! disk:
//!
//! - Fast disk (the caches answer): the thread takes a few small requests that have arrived
//!   together and answers them with one send. It keeps the turn unless more requests wait, because
//!   waking another thread would cost more than the operation.
//! - Slow disk, flushes, large requests: the thread passes the turn on before the operation, and
//!   starts another thread if none waits for the turn.
//!
//! A thread passes the turn on before it waits for the client to take its replies.
//!
//! Memory of requests holds plaintext. A thread that waits for a request has none: the memory is in
//! pools, which are emptied when the connection is idle.

use crate::input::Input;
use crate::memory::{KeepQuota, LevelMemory, MOST_KEPT, MemoryPool, PoolShare};
use crate::negotiate::ExportSession;
use crate::perform::{Reply, ReplyBody, memory_needed, perform, refusal};
use crate::reporter::Reporter;
use crate::stream::Transport;
use crate::sys::{PAGE, PageBuffer, times_slept};
use crate::wire::{MAX_REQUEST, NbdCommand, NbdErrno, NbdRequest};
use lacuna_contracts::IdlePool;
use parking_lot::{Mutex, MutexGuard};
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::Instant;

/// Maximum number of requests answered by one send. With more, server and client wait for each
/// other in turn.
const BATCH: usize = 4;
/// Size of the buffer for requests up to this length, and the limit for a batch of several
/// requests.
const SMALL: usize = 256 << 10;
/// The longest request that joins a batch.
const BATCHED_REQUEST: usize = 64 << 10;
/// Maximum number of buffers that a connection keeps between large requests: an inactive client
/// must leave some for other clients.
const MOST_SPARE: usize = 4;
/// Memory that the large requests of one connection share when they have no kept buffer.
const LARGE_BUDGET: usize = 2 * MAX_REQUEST as usize;
/// Mean time of an operation above which a disk counts as slow.
const SLOW_NANOS: u32 = 50_000;

/// Maximum number of threads of a connection.
#[derive(Clone, Copy)]
pub(crate) struct ThreadLimits {
    /// Limit at any speed of the disk.
    pub(crate) workers: usize,
    /// Limit while operations take long.
    pub(crate) max_workers: usize,
}

/// One connection in its transmission phase.
pub(crate) struct Connection<'a, T> {
    transport: &'a T,
    session: ExportSession,
    report: Option<&'a Reporter>,
    stopping: &'a AtomicBool,
    limits: ThreadLimits,
    input: Mutex<Input>,
    output: Mutex<()>,
    /// Number of threads that wait for the turn.
    waiting: AtomicUsize,
    threads: AtomicUsize,
    /// Running mean of the time of operations that wait for a device, in nanoseconds; operations
    /// that do not wait count as 0.
    mean_wait: AtomicU32,
    large: MemoryPool,
    level: &'a Arc<LevelMemory>,
    /// Buffers of large requests, kept for the next ones: zeroing and mapping new memory takes as
    /// long as copying the data.
    spare: IdlePool<LargeBuffer>,
    /// Buffers of small requests.
    small: IdlePool<PageBuffer>,
}

/// Memory for a large request.
struct LargeBuffer {
    bytes: PageBuffer,
    /// The right to keep the buffer, which may cover a part of it only.
    quota: KeepQuota,
}

impl LargeBuffer {
    fn may_be_kept(&self) -> bool {
        self.bytes.len() <= self.quota.bytes()
    }
}

/// The resources of a worker during service.
#[derive(Default)]
struct WorkerState<'a, 's> {
    /// Set while small requests are being served.
    small: Option<PageBuffer>,
    /// Set while a large request is being served.
    large: Option<LargeBuffer>,
    /// Shares of the connection's and the level's memory for large requests, where the right to
    /// keep does not suffice. They are returned after the buffer is freed.
    shared: Option<(PoolShare<'s>, PoolShare<'a>)>,
    requests: Vec<ReceivedRequest>,
    batches: u32,
}

impl WorkerState<'_, '_> {
    fn memory(&self) -> &[u8] {
        let small = self.small.as_deref().unwrap_or(&[]);
        self.large.as_ref().map_or(small, |large| &large.bytes[..])
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        let small = self.small.as_deref_mut().unwrap_or(&mut []);
        self.large.as_mut().map_or(small, |large| &mut large.bytes[..])
    }

    /// A timer for one batch in four, because a reading costs two system calls.
    fn start_timer(&mut self) -> Option<SleepTimer> {
        self.batches = self.batches.wrapping_add(1);
        self.batches.is_multiple_of(4).then(|| SleepTimer { began: Instant::now(), slept: times_slept() })
    }
}

/// Measures operations that wait for a device. Elapsed time alone is not enough: on a busy machine
/// a descheduled thread seems slow, and more threads would make it slower.
struct SleepTimer {
    began: Instant,
    slept: i64,
}

impl SleepTimer {
    fn nanos_asleep(&self) -> u32 {
        if times_slept() == self.slept { 0 } else { self.began.elapsed().as_nanos().min(20_000_000) as u32 }
    }
}

struct ReceivedRequest {
    request: NbdRequest,
    verdict: Result<(), NbdErrno>,
    range: Range<usize>,
}

impl<'a, T: Transport> Connection<'a, T> {
    pub(crate) fn new(
        transport: &'a T,
        session: ExportSession,
        report: Option<&'a Reporter>,
        stopping: &'a AtomicBool,
        limits: ThreadLimits,
        level: &'a Arc<LevelMemory>,
    ) -> Self {
        Connection {
            transport,
            session,
            report,
            stopping,
            limits,
            input: Mutex::new(Input::new()),
            output: Mutex::new(()),
            waiting: AtomicUsize::new(0),
            threads: AtomicUsize::new(1),
            mean_wait: AtomicU32::new(0),
            large: MemoryPool::new(LARGE_BUDGET.min(level.large())),
            level,
            spare: IdlePool::default(),
            small: IdlePool::default(),
        }
    }

    /// Serves until the client leaves, the stream fails, or the server stops. Every request that
    /// was read whole has been performed when this returns.
    pub(crate) fn run(&self) {
        self.spare.register_for_sweep();
        self.small.register_for_sweep();
        thread::scope(|scope| self.run_worker(scope));
        self.transport.finish();
    }

    fn run_worker<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let _careful = HangUpOnPanic(self.transport);
        if self.worker_loop(scope).is_err() {
            self.transport.hang_up();
            self.input.lock().ended = true;
        }
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }

    /// The loop of one worker. An error means that the connection is unusable.
    fn worker_loop<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> io::Result<()> {
        let mut worker = WorkerState { requests: Vec::with_capacity(BATCH), ..WorkerState::default() };
        let mut kept = None;
        loop {
            let Some(mut reader) = kept.take().or_else(|| self.wait_to_read()) else { return Ok(()) };
            if !self.read_requests(&mut reader, &mut worker).unwrap_or(false) {
                // The client has left, or its stream cannot be parsed any more: the other threads
                // finish their requests.
                reader.ended = true;
                return Ok(());
            }
            if self.should_hand_over(&reader, &worker.requests) {
                let slow = !self.is_fast() || worker.requests.iter().any(|job| !is_transfer(&job.request));
                self.hand_over_reading(reader, scope, slow);
            } else {
                kept = Some(reader);
            }
            let replies = self.perform_all(&mut worker);
            self.send_replies(&worker, &replies, &mut kept, scope)?;
            self.release_buffers(&mut worker);
        }
    }

    /// `None`: there is nothing more to read, or enough other threads wait.
    fn wait_to_read(&self) -> Option<MutexGuard<'_, Input>> {
        if self.waiting.fetch_add(1, Ordering::SeqCst) > self.limits.workers {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let reader = self.input.lock();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        (!reader.ended).then_some(reader)
    }

    /// Lets another thread read. If none waits for the turn, starts one; the limit is higher while
    /// a `slow` operation runs.
    fn hand_over_reading<'scope>(
        &'scope self,
        reader: MutexGuard<'scope, Input>,
        scope: &'scope Scope<'scope, '_>,
        slow: bool,
    ) {
        drop(reader);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return;
        }
        let most = if slow { self.limits.max_workers } else { self.limits.workers };
        if self.threads.fetch_add(1, Ordering::Relaxed) >= most {
            self.threads.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let started =
            thread::Builder::new().name("lacuna-nbd".into()).spawn_scoped(scope, || self.run_worker(scope));
        if started.is_err() {
            // The system has no thread left: continue with the existing threads.
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn is_fast(&self) -> bool {
        self.mean_wait.load(Ordering::Relaxed) < SLOW_NANOS
    }

    fn should_hand_over(&self, input: &Input, jobs: &[ReceivedRequest]) -> bool {
        input.buffered() > 0 || !self.is_fast() || jobs.iter().any(|job| !quick(&job.request))
    }

    /// Reads one request and the small requests that arrived with it. Returns `false` at the end.
    fn read_requests<'s>(&'s self, input: &mut Input, worker: &mut WorkerState<'a, 's>) -> io::Result<bool> {
        worker.requests.clear();
        if self.stopping.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Some(header) = input.header(self.transport)? else {
            return Ok(false);
        };
        let request = NbdRequest::parse(&header).map_err(|_| ErrorKind::InvalidData)?;
        if request.command == NbdCommand::Disconnect || self.stopping.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let needed = memory_needed(&request);
        let verdict = request.check(self.session.structured, self.session.allocation);
        if let Err(errno) = verdict.and_then(|()| self.acquire_buffer(worker, needed)) {
            if request.command == NbdCommand::Write {
                input.skip(self.transport, u64::from(request.length))?;
            }
            worker.requests.push(ReceivedRequest { request, verdict: Err(errno), range: 0..0 });
            return Ok(true);
        }
        if request.command == NbdCommand::Write {
            input.payload(self.transport, &mut worker.memory_mut()[..needed])?;
        }
        worker.requests.push(ReceivedRequest { request, verdict, range: 0..needed });
        if self.is_fast() && quick(&request) {
            self.read_buffered_requests(input, worker)?;
        }
        Ok(true)
    }

    /// Makes `worker` hold `needed` bytes. Memory that may not be kept is shared with other
    /// requests: the wait for requests of the same connection has no limit; the wait for requests
    /// of other connections has one on level 0.
    fn acquire_buffer<'s>(&'s self, worker: &mut WorkerState<'a, 's>, needed: usize) -> Result<(), NbdErrno> {
        if needed <= SMALL {
            worker.small = self.small.take(|_| true).or_else(|| PageBuffer::try_new(SMALL));
            return worker.small.as_ref().map(|_| ()).ok_or(NbdErrno::NO_MEMORY);
        }
        let needed = needed.next_multiple_of(PAGE);
        let fits = |spare: &LargeBuffer| spare.bytes.len() >= needed;
        // Otherwise a buffer that is too small gives up its right for a larger one.
        worker.large = self.spare.take(fits).or_else(|| self.spare.take(|_| needed <= MOST_KEPT));
        if worker.large.as_ref().is_some_and(fits) {
            return Ok(());
        }
        let mut kept =
            worker.large.take().map_or_else(|| self.level.keep_quota(), |too_small| too_small.quota);
        if !kept.try_grow_to(needed) {
            let own = self.large.share(needed, None).ok_or(NbdErrno::NO_MEMORY)?;
            worker.shared = Some((own, self.level.share(needed).ok_or(NbdErrno::NO_MEMORY)?));
        }
        let bytes = PageBuffer::try_new(needed).ok_or(NbdErrno::NO_MEMORY)?;
        worker.large = Some(LargeBuffer { bytes, quota: kept });
        Ok(())
    }

    /// Keeps the buffers for the next requests, if allowed.
    fn release_buffers(&self, worker: &mut WorkerState<'_, '_>) {
        if let Some(small) = worker.small.take() {
            self.small.give(small, self.limits.max_workers);
        }
        if let Some(large) = worker.large.take().filter(LargeBuffer::may_be_kept) {
            self.spare.give(large, MOST_SPARE);
        }
        worker.shared = None;
    }

    /// Adds the small requests that are completely buffered.
    fn read_buffered_requests(&self, input: &mut Input, worker: &mut WorkerState) -> io::Result<()> {
        while worker.requests.len() < BATCH {
            let Some(request) = input.peek().and_then(|header| NbdRequest::parse(header).ok()) else {
                break;
            };
            let start = worker.requests.last().map_or(0, |job| job.range.end.next_multiple_of(PAGE));
            let memory = start..start + request.length as usize;
            let verdict = request.check(self.session.structured, self.session.allocation);
            let written = if request.command == NbdCommand::Write { request.length as usize } else { 0 };
            let whole = input.buffered() >= crate::wire::REQUEST_LEN + written;
            if verdict.is_err() || !quick(&request) || memory.end > SMALL || !whole {
                break;
            }
            input.header(self.transport)?;
            input.payload(self.transport, &mut worker.memory_mut()[start..start + written])?;
            worker.requests.push(ReceivedRequest { request, verdict, range: memory });
        }
        Ok(())
    }

    fn perform_all(&self, worker: &mut WorkerState) -> Vec<Reply> {
        let timer = worker
            .requests
            .iter()
            .all(|job| is_transfer(&job.request))
            .then(|| worker.start_timer())
            .flatten();
        let mut replies = Vec::with_capacity(worker.requests.len());
        let jobs = std::mem::take(&mut worker.requests);
        let memory = worker.memory_mut();
        for job in &jobs {
            replies.push(match job.verdict {
                Ok(()) => {
                    let memory = &mut memory[job.range.clone()];
                    perform(&self.session, self.report, self.stopping, &job.request, memory)
                }
                Err(errno) => refusal(&self.session, &job.request, errno),
            });
        }
        worker.requests = jobs;
        if let Some(watch) = timer {
            let each = watch.nanos_asleep() / worker.requests.len() as u32;
            let pace = self.mean_wait.load(Ordering::Relaxed);
            self.mean_wait.store(pace - pace / 4 + each / 4, Ordering::Relaxed);
        }
        replies
    }

    /// Sends the replies. If the client is slow to take them, another thread gets the turn
    /// meanwhile.
    fn send_replies<'scope>(
        &'scope self,
        worker: &WorkerState,
        replies: &[Reply],
        kept: &mut Option<MutexGuard<'scope, Input>>,
        scope: &'scope Scope<'scope, '_>,
    ) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); 2 * BATCH];
        for (i, (job, reply)) in worker.requests.iter().zip(replies).enumerate() {
            slices[2 * i] = IoSlice::new(reply.header.bytes());
            slices[2 * i + 1] = IoSlice::new(match &reply.body {
                ReplyBody::Empty => &[],
                ReplyBody::Data => &worker.memory()[job.range.clone()],
                ReplyBody::Extents(bytes) => bytes,
            });
        }
        let mut left = &mut slices[..2 * replies.len()];
        // While no thread reads, this thread must wait neither for the socket nor for another
        // sender: the client may send all its requests before it takes a reply.
        let in_order = match self.output.try_lock() {
            Some(in_order) => {
                self.transport.try_send(&mut left)?;
                if left.is_empty() {
                    return Ok(());
                }
                Some(in_order)
            }
            None => None,
        };
        if let Some(reader) = kept.take().or_else(|| self.input.try_lock()) {
            self.hand_over_reading(reader, scope, true);
        }
        let _in_order = in_order.unwrap_or_else(|| self.output.lock());
        self.transport.send(left)
    }
}

/// Whether a request only moves data, and so is not known to take long.
fn is_transfer(request: &NbdRequest) -> bool {
    matches!(request.command, NbdCommand::Read | NbdCommand::Write) && !request.fua()
}

/// Whether a request is small enough for a batch.
fn quick(request: &NbdRequest) -> bool {
    is_transfer(request) && request.length as usize <= BATCHED_REQUEST
}

/// A request that was read must be answered. If its thread panics instead, close the connection.
struct HangUpOnPanic<'a, T: Transport>(&'a T);

impl<T: Transport> Drop for HangUpOnPanic<'_, T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.hang_up();
        }
    }
}

#[cfg(test)]
#[path = "transmit_tests.rs"]
mod tests;
