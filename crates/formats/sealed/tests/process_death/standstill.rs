//! The death of a process with several threads: all of them stand still at one instant.
//!
//! A thread passes an *event* before each write, discard and sync of the medium, and before each
//! change of the kept memory. At a chosen event the process begins to die: this thread stops there,
//! and every other thread at its next event, so that a request that a thread had begun is in
//! flight. The threads that reach no event have ended or wait for a stopped one; if one is only
//! slow, it stops at its next event. So the state is that of a process that died at this moment.
//! Then the medium loses its power, and the threads go on to their errors.

use lacuna_contracts::Result;
use lacuna_medium::{Medium, WriteExtent};
use lacuna_sim::MediumInterceptor;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// The time after which threads that reach no event count as ended or waiting.
const SETTLED: Duration = Duration::from_millis(20);

/// The events at which a process may begin to die.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeathEvents {
    /// Requests to the medium: most threads that stop are in one.
    Requests,
    /// Requests, and changes of the memory.
    RequestsAndChanges,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The process lives, and begins to die after this number of further events.
    Alive(u64),
    /// Threads stop at events that count.
    Dying,
    /// Threads stop at every event.
    Still,
    /// The threads end with errors.
    Dead,
}

struct ThreadStates {
    stage: Stage,
    events: DeathEvents,
    /// The threads that work, stopped ones too.
    working: usize,
    /// The threads that stopped.
    stopped: usize,
}

/// Lets a process die.
pub(crate) struct Standstill {
    threads: Mutex<ThreadStates>,
    changed: Condvar,
}

impl Standstill {
    /// A process that lives, without threads that work.
    pub(crate) fn new(events: DeathEvents) -> Self {
        let threads = ThreadStates { stage: Stage::Alive(u64::MAX), events, working: 0, stopped: 0 };
        Standstill { threads: Mutex::new(threads), changed: Condvar::new() }
    }

    fn threads(&self) -> MutexGuard<'_, ThreadStates> {
        self.threads.lock().unwrap()
    }

    /// Begins the work of this number of threads, and lets the process die after this number of
    /// events.
    pub(crate) fn arm(&self, threads: usize, events: u64) {
        let mut state = self.threads();
        state.stage = Stage::Alive(events);
        state.working = threads;
    }

    /// Whether the process may begin to die at a change of the memory.
    pub(crate) fn counts_changes(&self) -> bool {
        self.threads().events == DeathEvents::RequestsAndChanges
    }

    /// Whether the process has not begun to die.
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.threads().stage, Stage::Alive(_))
    }

    /// An event before a request to the medium.
    pub(crate) fn pass_request(&self) {
        self.pass(self.threads(), true);
    }

    /// An event before a change of the memory.
    pub(crate) fn pass_change(&self) {
        let state = self.threads();
        let counts = state.events == DeathEvents::RequestsAndChanges;
        self.pass(state, counts);
    }

    /// Passes an event, unless the thread stops at it until the process is dead. `counts`: whether
    /// the process may begin to die there.
    fn pass(&self, mut state: MutexGuard<'_, ThreadStates>, counts: bool) {
        let stage = state.stage;
        match stage {
            Stage::Alive(0) if counts => state.stage = Stage::Dying,
            Stage::Alive(events) if counts => {
                state.stage = Stage::Alive(events - 1);
                return;
            }
            Stage::Dying if counts => {}
            Stage::Still => {}
            Stage::Alive(_) | Stage::Dying | Stage::Dead => return,
        }
        state.stopped += 1;
        self.changed.notify_all();
        let is_stopped = |state: &mut ThreadStates| matches!(state.stage, Stage::Dying | Stage::Still);
        drop(self.changed.wait_while(state, is_stopped).unwrap());
    }

    /// Waits until the process dies or its threads have ended, and all of them stand still.
    pub(crate) fn wait(&self) {
        let lives = |state: &mut ThreadStates| state.working > 0 && matches!(state.stage, Stage::Alive(_));
        let mut state = self.changed.wait_while(self.threads(), lives).unwrap();
        state.stage = Stage::Dying;
        let mut moves = true;
        while moves && state.stopped < state.working {
            let before = (state.working, state.stopped);
            let is_same = |state: &mut ThreadStates| (state.working, state.stopped) == before;
            let (now, waited) = self.changed.wait_timeout_while(state, SETTLED, is_same).unwrap();
            state = now;
            moves = !waited.timed_out();
        }
        state.stage = Stage::Still;
    }

    /// Lets the threads of the dead process go on. Their medium must have no power.
    pub(crate) fn release(&self) {
        self.threads().stage = Stage::Dead;
        self.changed.notify_all();
    }

    /// The work of one of the threads, which ends when this is dropped.
    pub(crate) fn work(&self) -> ThreadWork<'_> {
        ThreadWork(self)
    }
}

/// The work of a thread. A panic ends it too.
pub(crate) struct ThreadWork<'a>(&'a Standstill);

impl Drop for ThreadWork<'_> {
    fn drop(&mut self) {
        self.0.threads().working -= 1;
        self.0.changed.notify_all();
    }
}

/// A medium that makes each request an event. A thread that only reads does not stop.
pub(crate) struct EventMedium {
    pub(crate) below: Arc<dyn Medium>,
    pub(crate) standstill: Arc<Standstill>,
}

impl EventMedium {
    /// The medium below, after an event.
    fn after_event(&self) -> &dyn Medium {
        self.standstill.pass_request();
        &*self.below
    }
}

impl MediumInterceptor for EventMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.below
    }
    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.after_event().write(batch)
    }
    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.after_event().write_durable(batch)
    }
    fn sync(&self) -> Result<()> {
        self.after_event().sync()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.after_event().discard(offset, len)
    }
}
