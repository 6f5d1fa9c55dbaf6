//! Reads ahead the blocks that stripes carry.
//!
//! Invariants: stripes are read one after another without a gap. Each is read after its own sync
//! and before the write that overwrites it, so it does not change meanwhile. If the system refuses
//! to read a stripe, nothing is lost and nothing stops: the operation that needs it gets the error,
//! and the read is tried again when the next operation asks for it, or after a while.

use crate::health::{Health, RECHECK_INTERVAL, Wake};
use crate::log::Log;
use crate::place::StripeSeq;
use crate::public_view::PublicView;
use crate::stripe::carried::CarriedSlots;
use lacuna_contracts::{Error, Result};
use lacuna_levels::SlotEntry;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Stripes that are read ahead.
const READ_AHEAD: usize = 16;
/// Stripes after which the thread that loads leaves is notified: waking it costs more than the
/// rest.
const NOTIFY_INTERVAL: u64 = READ_AHEAD as u64 / 4;

/// Blocks of hidden levels, each with its level.
pub(crate) type HiddenBlocks = Vec<(u8, u64)>;

/// Reads stripes before they are carried.
pub(crate) struct Carrier {
    log: Arc<Log>,
    view: Arc<PublicView>,
    health: Arc<Health>,
    state: Mutex<ReadAheadState>,
    changed: Condvar,
}

#[derive(Default)]
struct ReadAheadState {
    /// The slots to carry and the stripe that carries them, in order without gaps.
    ready: VecDeque<(StripeSeq, CarriedSlots)>,
    /// Whether a thread reads ahead.
    has_thread: bool,
    /// Whether a thread waits for the stripe that is being read.
    has_waiter: bool,
    /// Why the system refused to read the next stripe; kept until another try is requested or
    /// succeeds.
    refused: Option<Error>,
    ended: bool,
}

impl Carrier {
    pub(crate) fn new(log: Arc<Log>, view: Arc<PublicView>, health: Arc<Health>) -> Arc<Carrier> {
        let carrier = Carrier { log, view, health, state: Mutex::default(), changed: Condvar::new() };
        let carrier = Arc::new(carrier);
        carrier.health.register(&carrier);
        carrier
    }

    /// Records that a thread reads ahead.
    pub(crate) fn start(&self) {
        self.state.lock().has_thread = true;
    }

    /// Ends the thread, and all waiting for it.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// Takes the slots that stripe `seq`, the next one, carries. Waits for the thread that reads
    /// ahead; without that thread it reads them now.
    ///
    /// Errors: the reason why the system refuses to read them, after another try. The caller may
    /// ask again.
    pub(crate) fn take(&self, seq: StripeSeq) -> Result<CarriedSlots> {
        let mut ahead = self.state.lock();
        if !ahead.has_thread {
            drop(ahead);
            return CarriedSlots::read(&self.log, seq, |_, listed| vec![true; listed.len()]);
        }
        if ahead.refused.take().is_some() {
            self.changed.notify_all();
        }
        while ahead.ready.front().is_none_or(|(ready, _)| *ready != seq) {
            self.health.check()?;
            if ahead.ended {
                return Err(self.health.refusal());
            }
            if let Some(refused) = &ahead.refused {
                return Err(refused.clone());
            }
            ahead.has_waiter = true;
            self.changed.wait_for(&mut ahead, RECHECK_INTERVAL);
            ahead.has_waiter = false;
        }
        let (_, carried) = ahead.ready.pop_front().expect("it is ready");
        // Wake the thread that reads ahead for several stripes at once.
        let wake = ahead.ready.len() <= READ_AHEAD / 2;
        drop(ahead);
        if wake {
            self.changed.notify_all();
        }
        Ok(carried)
    }

    /// Keeps the slots that stripe `seq` carries. Waits while enough has been read ahead. Returns
    /// false when the thread must end.
    fn put(&self, seq: StripeSeq, carried: CarriedSlots) -> bool {
        let mut ahead = self.state.lock();
        if ahead.ready.len() >= READ_AHEAD {
            while ahead.ready.len() > READ_AHEAD / 2 && !ahead.ended {
                self.changed.wait(&mut ahead);
            }
        }
        ahead.ready.push_back((seq, carried));
        ahead.refused = None;
        let is_running = !ahead.ended;
        let awaited = ahead.has_waiter;
        drop(ahead);
        if awaited {
            self.changed.notify_all();
        }
        is_running
    }

    /// Records that the system refused to read the next stripe; an operation that waits for it gets
    /// the error. Waits until another try is requested or `RECHECK_INTERVAL` has passed. Returns
    /// false when the thread must end.
    fn wait_after_refusal(&self, refused: Error) -> bool {
        let mut ahead = self.state.lock();
        ahead.refused = Some(refused);
        self.changed.notify_all();
        if !ahead.ended {
            self.changed.wait_for(&mut ahead, RECHECK_INTERVAL);
        }
        !ahead.ended
    }

    /// The work of the thread that reads ahead, starting at stripe `seq`. It sends the hidden
    /// blocks that it found to `to_warm`.
    pub(crate) fn read_ahead(&self, mut seq: StripeSeq, to_warm: &SyncSender<HiddenBlocks>) {
        let _guard = self.health.fail_on_panic();
        let mut found = HiddenBlocks::new();
        loop {
            let live = |from, listed: &[_]| self.view.are_still_live(from, listed);
            let carried = match CarriedSlots::read(&self.log, seq, live) {
                Ok(carried) => carried,
                Err(e) if e.kind().is_refusal() => {
                    if self.wait_after_refusal(e) {
                        continue;
                    }
                    return;
                }
                Err(e) => return drop(self.health.fail(e)),
            };
            found.extend(carried.hidden.entries().iter().filter_map(|(level, entry)| match entry {
                SlotEntry::Data(addr) | SlotEntry::Lost(addr) => Some((*level, *addr)),
                _ => None,
            }));
            if !self.put(seq, carried) {
                return;
            }
            if seq.0.is_multiple_of(NOTIFY_INTERVAL) {
                // A full channel means that the maps are behind: the leaves are then loaded when
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
