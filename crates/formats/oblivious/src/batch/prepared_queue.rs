//! Prepares the next batches in a thread before their turn, without any lock that front ends wait
//! for.
//!
//! Invariant: batches are taken in the order of drawing, so that public randomness is used in the
//! order of operations (deniability contract). If the system refuses to read the cells of a batch,
//! it stays the next: the operation that needs it gets the error, and the read is tried again when
//! the next operation asks for it, or after a while.

use crate::batch::prepared::{BatchPreparer, PreparedBatch};
use crate::durability::RECHECK_INTERVAL;
use lacuna_contracts::{BlockAddr, Error, FailStop, IdlePool, Result, WipeOnDrop};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// Batches that are prepared ahead.
pub(crate) const PREPARED_DEPTH: usize = 2;

/// Prepared batches, between the thread that prepares them and the operations that write them.
pub(crate) struct PreparedQueue {
    preparer: BatchPreparer,
    health: Arc<FailStop>,
    state: Mutex<PreparedQueueState>,
    changed: Condvar,
    /// Memory of written batches for later ones. Unused memory is wiped.
    spare: IdlePool<WipeOnDrop<Vec<u8>>>,
}

/// The addresses that a prepared batch will look up in the maps.
pub(crate) struct LeafRequest {
    /// The number of the batch among all prepared ones.
    pub(crate) number: u64,
    /// For each level.
    pub(crate) addrs: Vec<Vec<BlockAddr>>,
}

#[derive(Default)]
struct PreparedQueueState {
    ready: VecDeque<Result<PreparedBatch>>,
    /// Ready batches with leaves that have not been loaded yet.
    leaf_requests: VecDeque<LeafRequest>,
    /// The number of batches that were prepared, ready ones included.
    prepared: u64,
    /// Whether there are threads.
    running: bool,
    /// Why the system refused to read the cells of the next batch; kept until another try is
    /// requested or succeeds.
    refused: Option<Error>,
}

impl PreparedQueueState {
    /// The number of the last batch that was taken.
    fn taken(&self) -> u64 {
        self.prepared - self.ready.len() as u64
    }
}

impl PreparedQueue {
    pub(crate) fn new(preparer: BatchPreparer, health: Arc<FailStop>) -> PreparedQueue {
        let spare = IdlePool::default();
        spare.register_for_sweep();
        PreparedQueue { preparer, health, state: Mutex::default(), changed: Condvar::new(), spare }
    }

    /// Sets whether threads prepare batches and look ahead; they end if not.
    pub(crate) fn set_running(&self, running: bool) {
        let mut state = self.state.lock();
        state.running = running;
        state.ready.clear();
        state.leaf_requests.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Wakes all waiting threads, after a failure.
    pub(crate) fn wake_all(&self) {
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// The work of the thread that prepares batches.
    pub(crate) fn prepare_batches(&self) {
        while let Some(memory) = self.wait_for_room() {
            let prepared = self.preparer.prepare(memory, |refused| self.wait_after_refusal(refused));
            let failed = prepared.is_err();
            self.push(prepared);
            if failed {
                return;
            }
        }
    }

    /// Records that the system refused to read the cells of the next batch; an operation that waits
    /// for it gets the error. Waits until another try is requested or `RECHECK_INTERVAL` has
    /// passed. Errors: the refusal, if the thread must end.
    fn wait_after_refusal(&self, refused: Error) -> Result<()> {
        let mut state = self.state.lock();
        state.refused = Some(refused.clone());
        self.changed.notify_all();
        let is_running = |state: &PreparedQueueState| state.running && self.health.is_alive();
        if is_running(&state) {
            self.changed.wait_for(&mut state, RECHECK_INTERVAL);
        }
        if is_running(&state) { Ok(()) } else { Err(refused) }
    }

    /// Waits until another batch is to be prepared, and returns memory for it; none at the end.
    fn wait_for_room(&self) -> Option<WipeOnDrop<Vec<u8>>> {
        let mut state = self.state.lock();
        loop {
            if !state.running || !self.health.is_alive() {
                drop(state);
                // Some failures do not wake a thread that waits for a batch.
                self.changed.notify_all();
                return None;
            }
            if state.ready.len() < PREPARED_DEPTH {
                return Some(self.memory());
            }
            self.changed.wait(&mut state);
        }
    }

    fn push(&self, prepared: Result<PreparedBatch>) {
        let addrs = prepared.as_ref().map_or_else(|_| Vec::new(), PreparedBatch::data_by_level);
        let mut state = self.state.lock();
        if state.running {
            state.refused = None;
            state.ready.push_back(prepared);
            state.prepared += 1;
            let number = state.prepared;
            state.leaf_requests.push_back(LeafRequest { number, addrs });
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Whether a batch is ready and not taken yet.
    pub(crate) fn is_pending(&self, number: u64) -> bool {
        let state = self.state.lock();
        state.running && number > state.taken() && self.health.is_alive()
    }

    /// Waits for a batch with leaves that have not been loaded; none at the end.
    pub(crate) fn next_leaf_request(&self) -> Option<LeafRequest> {
        let mut state = self.state.lock();
        loop {
            if !state.running || !self.health.is_alive() {
                return None;
            }
            if let Some(due) = state.leaf_requests.pop_front() {
                return Some(due);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Takes the next batch once it is prepared; prepares it here if there is no thread.
    ///
    /// Errors: the reason why the system refuses to read its cells, after another try. The caller
    /// may ask again.
    pub(crate) fn take(&self) -> Result<PreparedBatch> {
        let mut state = self.state.lock();
        if state.refused.take().is_some() {
            self.changed.notify_all();
        }
        while state.running {
            if let Some(prepared) = state.ready.pop_front() {
                let taken = state.taken();
                state.leaf_requests.retain(|due| due.number > taken);
                drop(state);
                self.changed.notify_all();
                return prepared;
            }
            self.health.check()?;
            if let Some(refused) = &state.refused {
                return Err(refused.clone());
            }
            self.changed.wait(&mut state);
        }
        drop(state);
        self.preparer.prepare(self.memory(), Err)
    }

    /// Memory for a batch.
    fn memory(&self) -> WipeOnDrop<Vec<u8>> {
        self.spare.take(|_| true).unwrap_or_default()
    }

    /// Returns memory for a later batch.
    pub(crate) fn recycle(&self, old: WipeOnDrop<Vec<u8>>) {
        self.spare.give(old, PREPARED_DEPTH + 1);
    }
}
