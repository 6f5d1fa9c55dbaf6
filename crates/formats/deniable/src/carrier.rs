//! Reading ahead of need what stripes carry on.
//!
//! Invariants: stripes are read one after another without a gap. Each is read between its own sync
//! and the write that overwrites it, so it does not change meanwhile. A stripe that the system
//! refuses to read is not lost and stops nothing: the operation that needs it is told why, and it
//! is read again when the next one asks, or after a while.

use crate::carried::Carried;
use crate::health::{Health, LOOK_AGAIN, Wake};
use crate::log::Log;
use crate::place::Seq;
use crate::view::View;
use lacuna_contracts::{Error, Result};
use lacuna_levels::Entry;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Stripes that are read ahead.
const AHEAD: usize = 16;
/// Stripes after which the thread that loads leaves is told what was found: waking it costs more
/// than the rest.
const TOLD_AFTER: u64 = AHEAD as u64 / 4;

/// Blocks of hidden levels, each with its level.
pub(crate) type Found = Vec<(u8, u64)>;

/// What reads stripes before they are carried on.
pub(crate) struct Carrier {
    log: Arc<Log>,
    view: Arc<View>,
    health: Arc<Health>,
    ahead: Mutex<Ahead>,
    moved: Condvar,
}

#[derive(Default)]
struct Ahead {
    /// By the stripe that carries them on, without gaps.
    ready: VecDeque<(Seq, Carried)>,
    /// A thread reads ahead.
    threaded: bool,
    /// A thread waits for what is being read.
    awaited: bool,
    /// Why the system refused to read the next stripe, from that try on to the next that is asked
    /// for.
    refused: Option<Error>,
    ended: bool,
}

impl Carrier {
    pub(crate) fn new(log: Arc<Log>, view: Arc<View>, health: Arc<Health>) -> Arc<Carrier> {
        let carrier = Carrier { log, view, health, ahead: Mutex::default(), moved: Condvar::new() };
        let carrier = Arc::new(carrier);
        carrier.health.watch(&carrier);
        carrier
    }

    /// From now on a thread reads ahead.
    pub(crate) fn start(&self) {
        self.ahead.lock().threaded = true;
    }

    /// The thread is to end, and all that wait for it.
    pub(crate) fn end(&self) {
        self.ahead.lock().ended = true;
        self.moved.notify_all();
    }

    /// What stripe `seq`, the next one, carries on. Waits for the thread that reads ahead; without
    /// it, it is read now.
    ///
    /// Errors: why the system refuses to read it, after another try; it can be asked for again.
    pub(crate) fn take(&self, seq: Seq) -> Result<Carried> {
        let mut ahead = self.ahead.lock();
        if !ahead.threaded {
            drop(ahead);
            return Carried::read(&self.log, seq, |_, listed| vec![true; listed.len()]);
        }
        if ahead.refused.take().is_some() {
            self.moved.notify_all();
        }
        while ahead.ready.front().is_none_or(|(ready, _)| *ready != seq) {
            self.health.check()?;
            if ahead.ended {
                return Err(self.health.refusal());
            }
            if let Some(refused) = &ahead.refused {
                return Err(refused.clone());
            }
            ahead.awaited = true;
            self.moved.wait_for(&mut ahead, LOOK_AGAIN);
            ahead.awaited = false;
        }
        let (_, carried) = ahead.ready.pop_front().expect("it is ready");
        // The thread that reads is woken for several at once.
        let wake = ahead.ready.len() <= AHEAD / 2;
        drop(ahead);
        if wake {
            self.moved.notify_all();
        }
        Ok(carried)
    }

    /// Keeps what stripe `seq` carries on. Waits while much has been read ahead; false when the
    /// thread is to end.
    fn put(&self, seq: Seq, carried: Carried) -> bool {
        let mut ahead = self.ahead.lock();
        if ahead.ready.len() >= AHEAD {
            while ahead.ready.len() > AHEAD / 2 && !ahead.ended {
                self.moved.wait(&mut ahead);
            }
        }
        ahead.ready.push_back((seq, carried));
        ahead.refused = None;
        let goes_on = !ahead.ended;
        let awaited = ahead.awaited;
        drop(ahead);
        if awaited {
            self.moved.notify_all();
        }
        goes_on
    }

    /// The system refused to read the next stripe, which the operation that waits for it is told.
    /// Waits until another try is asked for, or for as long as a look takes; false when the thread
    /// is to end.
    fn hold(&self, refused: Error) -> bool {
        let mut ahead = self.ahead.lock();
        ahead.refused = Some(refused);
        self.moved.notify_all();
        if !ahead.ended {
            self.moved.wait_for(&mut ahead, LOOK_AGAIN);
        }
        !ahead.ended
    }

    /// The work of the thread that reads ahead, from stripe `seq` on. It tells `to_warm` of the
    /// hidden blocks that it found.
    pub(crate) fn read_ahead(&self, mut seq: Seq, to_warm: &SyncSender<Found>) {
        let _guard = self.health.fail_on_panic();
        let mut found = Found::new();
        loop {
            let live = |from, listed: &[_]| self.view.still_live(from, listed);
            let carried = match Carried::read(&self.log, seq, live) {
                Ok(carried) => carried,
                Err(e) if e.kind().is_refusal() => {
                    if self.hold(e) {
                        continue;
                    }
                    return;
                }
                Err(e) => return drop(self.health.fail(e)),
            };
            found.extend(carried.hidden.entries().iter().filter_map(|(level, entry)| match entry {
                Entry::Data(addr) | Entry::Lost(addr) => Some((*level, *addr)),
                _ => None,
            }));
            if !self.put(seq, carried) {
                return;
            }
            if seq.0.is_multiple_of(TOLD_AFTER) {
                // A full channel means that the maps are behind: then the leaves are loaded when
                // they are needed.
                let _full = to_warm.try_send(std::mem::take(&mut found));
            }
            seq = seq.next();
        }
    }
}

impl Wake for Carrier {
    fn wake(&self) {
        self.end();
    }
}
