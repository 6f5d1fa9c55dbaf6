//! The transmission engine: a few threads per connection that take turns reading the socket.
//!
//! The thread that has the turn reads requests and then carries them out itself, so that no request
//! changes hands between threads. What it does with the turn meanwhile depends on how fast the disk
//! has been of late:
//!
//! - Fast disk (the caches answer): it takes a few small requests that have arrived together and
//!   answers them with one send. It keeps the turn unless more requests wait, because waking
//!   another thread would cost more than the operation.
//! - Slow disk, flushes, large requests: it passes the turn on before the operation, and another
//!   thread is started if none is waiting for it.
//!
//! A thread that would have to wait for the client to take its replies passes the turn on first.
//!
//! Memory of requests holds plaintext. A thread that waits for a request has none: it lies in
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

/// Most requests answered by one send. With more, server and client wait for each other by turns.
const BATCH: usize = 4;
/// Memory for all requests that are no longer, and the most that a batch of several requests uses.
const SMALL: usize = 256 << 10;
/// The longest request that joins a batch.
const BATCHED_REQUEST: usize = 64 << 10;
/// What a connection keeps between large requests, in buffers: a client that does nothing must
/// leave some to others.
const MOST_SPARE: usize = 4;
/// Memory that those requests of one connection share for which none is kept.
const LARGE_BUDGET: usize = 2 * MAX_REQUEST as usize;
/// Mean time of an operation above which a disk is slow.
const SLOW_NANOS: u32 = 50_000;

/// How many threads a connection may have.
#[derive(Clone, Copy)]
pub(crate) struct Crew {
    /// As many may run whatever the disk does.
    pub(crate) workers: usize,
    /// As many may run while operations take long.
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
    /// Threads waiting for the turn.
    waiting: AtomicUsize,
    threads: AtomicUsize,
    /// Running mean of the time that operations take which wait for a device, in nanoseconds;
    /// others count as 0.
    pace: AtomicU32,
    large: Pool,
    level: &'a Arc<LevelMemory>,
    /// Memory that large requests have used, for the next ones: to have it zeroed and mapped anew
    /// costs as much as to copy what they move.
    spare: IdlePool<Buffer>,
    /// The same for the others.
    small: IdlePool<PageBuffer>,
}

/// Memory for a large request.
struct Buffer {
    bytes: PageBuffer,
    /// The right to keep it, or some of it.
    kept: Kept,
}

impl Buffer {
    fn may_be_kept(&self) -> bool {
        self.bytes.len() <= self.kept.bytes()
    }
}

/// What a worker holds while it serves.
#[derive(Default)]
struct Hands<'a, 's> {
    /// While small requests are being served.
    small: Option<PageBuffer>,
    /// While a large request is being served.
    large: Option<Buffer>,
    /// Where the right to keep it does not suffice: parts of what the connection and the level have
    /// for such requests. They go back after the memory.
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

    /// A watch for one batch in four, because reading it costs two system calls.
    fn watch(&mut self) -> Option<Watch> {
        self.batches = self.batches.wrapping_add(1);
        self.batches.is_multiple_of(4).then(|| Watch { began: Instant::now(), slept: times_slept() })
    }
}

/// Measures operations that wait for a device. Time alone would not do: on a busy machine a thread
/// that is merely out of turn seems slow, and more threads would make it slower.
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

    /// Serves until the client leaves, the stream fails, or the server stops; every request that
    /// was read whole has then been carried out.
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

    /// One worker. An error means that the connection is of no more use.
    fn serve<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> io::Result<()> {
        let mut hands = Hands { jobs: Vec::with_capacity(BATCH), ..Hands::default() };
        let mut kept = None;
        loop {
            let Some(mut turn) = kept.take().or_else(|| self.wait_for_turn()) else { return Ok(()) };
            if !self.read_jobs(&mut turn, &mut hands).unwrap_or(false) {
                // The client has left, or cannot be understood any more: others finish what they
                // have.
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

    /// `None`: there is nothing more to read, or enough others are waiting.
    fn wait_for_turn(&self) -> Option<MutexGuard<'_, Input>> {
        if self.waiting.fetch_add(1, Ordering::SeqCst) > self.crew.workers {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let turn = self.input.lock();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        (!turn.ended).then_some(turn)
    }

    /// Lets another thread read. If none is waiting for that, starts one; while something `slow` is
    /// being done, there may be more of them.
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
            // The system has no thread to give: the ones there are will do.
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn fast(&self) -> bool {
        self.pace.load(Ordering::Relaxed) < SLOW_NANOS
    }

    fn worth_passing_on(&self, input: &Input, jobs: &[Job]) -> bool {
        input.buffered() > 0 || !self.fast() || jobs.iter().any(|job| !quick(&job.request))
    }

    /// Reads one request, and those small ones that have arrived with it. `false` at the end.
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

    /// Makes `hands` hold `needed` bytes. What may not be kept is shared with other requests: those
    /// of the same connection are waited for as long as they take, those of others only for a
    /// while.
    fn room<'s>(&'s self, hands: &mut Hands<'a, 's>, needed: usize) -> Result<(), Errno> {
        if needed <= SMALL {
            hands.small = self.small.take(|_| true).or_else(|| PageBuffer::try_new(SMALL));
            return hands.small.as_ref().map(|_| ()).ok_or(Errno::NO_MEMORY);
        }
        let needed = needed.next_multiple_of(PAGE);
        let fits = |spare: &Buffer| spare.bytes.len() >= needed;
        // Otherwise one that is too small gives up its right for a larger one.
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

    /// Keeps memory for the next requests, if it may.
    fn keep(&self, hands: &mut Hands<'_, '_>) {
        if let Some(small) = hands.small.take() {
            self.small.give(small, self.crew.max_workers);
        }
        if let Some(large) = hands.large.take().filter(Buffer::may_be_kept) {
            self.spare.give(large, MOST_SPARE);
        }
        hands.shared = None;
    }

    /// Adds the small requests that are buffered whole.
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

    /// Sends the replies. If the client is slow to take them, the turn goes to another thread
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
        // Neither the socket nor another sender is waited for while nobody reads: the client may be
        // one that sends all its requests before it takes a reply.
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

/// Whether a request moves data and does nothing else: not one that is known to take long.
fn is_transfer(request: &Request) -> bool {
    matches!(request.command, Command::Read | Command::Write) && !request.fua()
}

/// Whether a request does little enough to be carried out in a batch.
fn quick(request: &Request) -> bool {
    is_transfer(request) && request.length as usize <= BATCHED_REQUEST
}

/// A request that was read must be answered; if its thread dies instead, so does the connection.
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
