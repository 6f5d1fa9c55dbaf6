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
use crate::memory::{Kept, LevelMemory, MOST_KEPT, Pool, Share};
use crate::negotiate::Session;
use crate::perform::{Body, Reply, memory_needed, perform, refusal};
use crate::reporter::Reporter;
use crate::stream::Transport;
use crate::sys::{PAGE, PageBuffer, times_slept};
use crate::wire::{Command, Errno, MAX_REQUEST, Request};
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
pub(crate) struct Crew {
    /// Limit at any speed of the disk.
    pub(crate) workers: usize,
    /// Limit while operations take long.
    pub(crate) max_workers: usize,
}

/// One connection in its transmission phase.
pub(crate) struct Connection<'a, T> {
    transport: &'a T,
    session: Session,
    report: Option<&'a Reporter>,
    stopping: &'a AtomicBool,
    crew: Crew,
    input: Mutex<Input>,
    output: Mutex<()>,
    /// Number of threads that wait for the turn.
    waiting: AtomicUsize,
    threads: AtomicUsize,
    /// Running mean of the time of operations that wait for a device, in nanoseconds; operations
    /// that do not wait count as 0.
    pace: AtomicU32,
    large: Pool,
    level: &'a Arc<LevelMemory>,
    /// Buffers of large requests, kept for the next ones: zeroing and mapping new memory takes as
    /// long as copying the data.
    spare: IdlePool<Buffer>,
    /// Buffers of small requests.
    small: IdlePool<PageBuffer>,
}

/// Memory for a large request.
struct Buffer {
    bytes: PageBuffer,
    /// The right to keep the buffer, which may cover a part of it only.
    kept: Kept,
}

impl Buffer {
    fn may_be_kept(&self) -> bool {
        self.bytes.len() <= self.kept.bytes()
    }
}

/// The resources of a worker during service.
#[derive(Default)]
struct Hands<'a, 's> {
    /// Set while small requests are being served.
    small: Option<PageBuffer>,
    /// Set while a large request is being served.
    large: Option<Buffer>,
    /// Shares of the connection's and the level's memory for large requests, where the right to
    /// keep does not suffice. They are returned after the buffer is freed.
    shared: Option<(Share<'s>, Share<'a>)>,
    jobs: Vec<Job>,
    batches: u32,
}

impl Hands<'_, '_> {
    fn memory(&self) -> &[u8] {
        let small = self.small.as_deref().unwrap_or(&[]);
        self.large.as_ref().map_or(small, |large| &large.bytes[..])
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        let small = self.small.as_deref_mut().unwrap_or(&mut []);
        self.large.as_mut().map_or(small, |large| &mut large.bytes[..])
    }

    /// A watch for one batch in four, because a reading costs two system calls.
    fn watch(&mut self) -> Option<Watch> {
        self.batches = self.batches.wrapping_add(1);
        self.batches.is_multiple_of(4).then(|| Watch { began: Instant::now(), slept: times_slept() })
    }
}

/// Measures operations that wait for a device. Elapsed time alone is not enough: on a busy machine
/// a descheduled thread seems slow, and more threads would make it slower.
struct Watch {
    began: Instant,
    slept: i64,
}

impl Watch {
    fn nanos_asleep(&self) -> u32 {
        if times_slept() == self.slept { 0 } else { self.began.elapsed().as_nanos().min(20_000_000) as u32 }
    }
}

struct Job {
    request: Request,
    verdict: Result<(), Errno>,
    memory: Range<usize>,
}

impl<'a, T: Transport> Connection<'a, T> {
    pub(crate) fn new(
        transport: &'a T,
        session: Session,
        report: Option<&'a Reporter>,
        stopping: &'a AtomicBool,
        crew: Crew,
        level: &'a Arc<LevelMemory>,
    ) -> Self {
        Connection {
            transport,
            session,
            report,
            stopping,
            crew,
            input: Mutex::new(Input::new()),
            output: Mutex::new(()),
            waiting: AtomicUsize::new(0),
            threads: AtomicUsize::new(1),
            pace: AtomicU32::new(0),
            large: Pool::new(LARGE_BUDGET.min(level.large())),
            level,
            spare: IdlePool::default(),
            small: IdlePool::default(),
        }
    }

    /// Serves until the client leaves, the stream fails, or the server stops. Every request that
    /// was read whole has been performed when this returns.
    pub(crate) fn run(&self) {
        self.spare.watch();
        self.small.watch();
        thread::scope(|scope| self.work(scope));
        self.transport.finish();
    }

    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let _careful = HangUpOnPanic(self.transport);
        if self.serve(scope).is_err() {
            self.transport.hang_up();
            self.input.lock().ended = true;
        }
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }

    /// The loop of one worker. An error means that the connection is unusable.
    fn serve<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> io::Result<()> {
        let mut hands = Hands { jobs: Vec::with_capacity(BATCH), ..Hands::default() };
        let mut kept = None;
        loop {
            let Some(mut turn) = kept.take().or_else(|| self.wait_for_turn()) else { return Ok(()) };
            if !self.read_jobs(&mut turn, &mut hands).unwrap_or(false) {
                // The client has left, or its stream cannot be parsed any more: the other threads
                // finish their requests.
                turn.ended = true;
                return Ok(());
            }
            if self.worth_passing_on(&turn, &hands.jobs) {
                let slow = !self.fast() || hands.jobs.iter().any(|job| !is_transfer(&job.request));
                self.pass_on(turn, scope, slow);
            } else {
                kept = Some(turn);
            }
            let replies = self.carry_out(&mut hands);
            self.answer(&hands, &replies, &mut kept, scope)?;
            self.keep(&mut hands);
        }
    }

    /// `None`: there is nothing more to read, or enough other threads wait.
    fn wait_for_turn(&self) -> Option<MutexGuard<'_, Input>> {
        if self.waiting.fetch_add(1, Ordering::SeqCst) > self.crew.workers {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let turn = self.input.lock();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        (!turn.ended).then_some(turn)
    }

    /// Lets another thread read. If none waits for the turn, starts one; the limit is higher while
    /// a `slow` operation runs.
    fn pass_on<'scope>(
        &'scope self,
        turn: MutexGuard<'scope, Input>,
        scope: &'scope Scope<'scope, '_>,
        slow: bool,
    ) {
        drop(turn);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return;
        }
        let most = if slow { self.crew.max_workers } else { self.crew.workers };
        if self.threads.fetch_add(1, Ordering::Relaxed) >= most {
            self.threads.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let started =
            thread::Builder::new().name("lacuna-nbd".into()).spawn_scoped(scope, || self.work(scope));
        if started.is_err() {
            // The system has no thread left: continue with the existing threads.
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn fast(&self) -> bool {
        self.pace.load(Ordering::Relaxed) < SLOW_NANOS
    }

    fn worth_passing_on(&self, input: &Input, jobs: &[Job]) -> bool {
        input.buffered() > 0 || !self.fast() || jobs.iter().any(|job| !quick(&job.request))
    }

    /// Reads one request and the small requests that arrived with it. Returns `false` at the end.
    fn read_jobs<'s>(&'s self, input: &mut Input, hands: &mut Hands<'a, 's>) -> io::Result<bool> {
        hands.jobs.clear();
        if self.stopping.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Some(header) = input.header(self.transport)? else {
            return Ok(false);
        };
        let request = Request::parse(&header).map_err(|_| ErrorKind::InvalidData)?;
        if request.command == Command::Disconnect || self.stopping.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let needed = memory_needed(&request);
        let verdict = request.check(self.session.structured, self.session.allocation);
        if let Err(errno) = verdict.and_then(|()| self.room(hands, needed)) {
            if request.command == Command::Write {
                input.skip(self.transport, u64::from(request.length))?;
            }
            hands.jobs.push(Job { request, verdict: Err(errno), memory: 0..0 });
            return Ok(true);
        }
        if request.command == Command::Write {
            input.payload(self.transport, &mut hands.memory_mut()[..needed])?;
        }
        hands.jobs.push(Job { request, verdict, memory: 0..needed });
        if self.fast() && quick(&request) {
            self.join_jobs(input, hands)?;
        }
        Ok(true)
    }

    /// Makes `hands` hold `needed` bytes. Memory that may not be kept is shared with other
    /// requests: the wait for requests of the same connection has no limit; the wait for requests
    /// of other connections has one on level 0.
    fn room<'s>(&'s self, hands: &mut Hands<'a, 's>, needed: usize) -> Result<(), Errno> {
        if needed <= SMALL {
            hands.small = self.small.take(|_| true).or_else(|| PageBuffer::try_new(SMALL));
            return hands.small.as_ref().map(|_| ()).ok_or(Errno::NO_MEMORY);
        }
        let needed = needed.next_multiple_of(PAGE);
        let fits = |spare: &Buffer| spare.bytes.len() >= needed;
        // Otherwise a buffer that is too small gives up its right for a larger one.
        hands.large = self.spare.take(fits).or_else(|| self.spare.take(|_| needed <= MOST_KEPT));
        if hands.large.as_ref().is_some_and(fits) {
            return Ok(());
        }
        let mut kept = hands.large.take().map_or_else(|| self.level.keep(), |too_small| too_small.kept);
        if !kept.covers(needed) {
            let own = self.large.share(needed, None).ok_or(Errno::NO_MEMORY)?;
            hands.shared = Some((own, self.level.share(needed).ok_or(Errno::NO_MEMORY)?));
        }
        let bytes = PageBuffer::try_new(needed).ok_or(Errno::NO_MEMORY)?;
        hands.large = Some(Buffer { bytes, kept });
        Ok(())
    }

    /// Keeps the buffers for the next requests, if allowed.
    fn keep(&self, hands: &mut Hands<'_, '_>) {
        if let Some(small) = hands.small.take() {
            self.small.give(small, self.crew.max_workers);
        }
        if let Some(large) = hands.large.take().filter(Buffer::may_be_kept) {
            self.spare.give(large, MOST_SPARE);
        }
        hands.shared = None;
    }

    /// Adds the small requests that are completely buffered.
    fn join_jobs(&self, input: &mut Input, hands: &mut Hands) -> io::Result<()> {
        while hands.jobs.len() < BATCH {
            let Some(request) = input.peek().and_then(|header| Request::parse(header).ok()) else {
                break;
            };
            let start = hands.jobs.last().map_or(0, |job| job.memory.end.next_multiple_of(PAGE));
            let memory = start..start + request.length as usize;
            let verdict = request.check(self.session.structured, self.session.allocation);
            let written = if request.command == Command::Write { request.length as usize } else { 0 };
            let whole = input.buffered() >= crate::wire::REQUEST_LEN + written;
            if verdict.is_err() || !quick(&request) || memory.end > SMALL || !whole {
                break;
            }
            input.header(self.transport)?;
            input.payload(self.transport, &mut hands.memory_mut()[start..start + written])?;
            hands.jobs.push(Job { request, verdict, memory });
        }
        Ok(())
    }

    fn carry_out(&self, hands: &mut Hands) -> Vec<Reply> {
        let watch = hands.jobs.iter().all(|job| is_transfer(&job.request)).then(|| hands.watch()).flatten();
        let mut replies = Vec::with_capacity(hands.jobs.len());
        let jobs = std::mem::take(&mut hands.jobs);
        let memory = hands.memory_mut();
        for job in &jobs {
            replies.push(match job.verdict {
                Ok(()) => {
                    let memory = &mut memory[job.memory.clone()];
                    perform(&self.session, self.report, self.stopping, &job.request, memory)
                }
                Err(errno) => refusal(&self.session, &job.request, errno),
            });
        }
        hands.jobs = jobs;
        if let Some(watch) = watch {
            let each = watch.nanos_asleep() / hands.jobs.len() as u32;
            let pace = self.pace.load(Ordering::Relaxed);
            self.pace.store(pace - pace / 4 + each / 4, Ordering::Relaxed);
        }
        replies
    }

    /// Sends the replies. If the client is slow to take them, another thread gets the turn
    /// meanwhile.
    fn answer<'scope>(
        &'scope self,
        hands: &Hands,
        replies: &[Reply],
        kept: &mut Option<MutexGuard<'scope, Input>>,
        scope: &'scope Scope<'scope, '_>,
    ) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); 2 * BATCH];
        for (i, (job, reply)) in hands.jobs.iter().zip(replies).enumerate() {
            slices[2 * i] = IoSlice::new(reply.head.bytes());
            slices[2 * i + 1] = IoSlice::new(match &reply.body {
                Body::Empty => &[],
                Body::Data => &hands.memory()[job.memory.clone()],
                Body::Extents(bytes) => bytes,
            });
        }
        let mut left = &mut slices[..2 * replies.len()];
        // While no thread reads, this thread must wait neither for the socket nor for another
        // sender: the client may send all its requests before it takes a reply.
        let in_order = match self.output.try_lock() {
            Some(in_order) => {
                self.transport.send_now(&mut left)?;
                if left.is_empty() {
                    return Ok(());
                }
                Some(in_order)
            }
            None => None,
        };
        if let Some(turn) = kept.take().or_else(|| self.input.try_lock()) {
            self.pass_on(turn, scope, true);
        }
        let _in_order = in_order.unwrap_or_else(|| self.output.lock());
        self.transport.send(left)
    }
}

/// Whether a request only moves data, and so is not known to take long.
fn is_transfer(request: &Request) -> bool {
    matches!(request.command, Command::Read | Command::Write) && !request.fua()
}

/// Whether a request is small enough for a batch.
fn quick(request: &Request) -> bool {
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
