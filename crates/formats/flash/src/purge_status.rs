//! The deletion status: the number of recoverable blocks, the age of the oldest deletion, and past
//! purges. `status` and the policy read it.
//!
//! Invariant: the status never understates. It dates a deletion from the write or discard that
//! caused it, not from the moment when it reaches the flash.

use crate::key_storage::purger::PurgeResult;
use lacuna_contracts::{Clock, StatusItem};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The deletion status of a disk: data that is not purged yet, and past purges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurgeStatus {
    /// The most versions of blocks that were deleted or overwritten and that an adversary with the
    /// flash and every passphrase can still recover. Blocks in the write buffer count: each may
    /// replace one on the flash. After a crash every key that may encrypt something counts.
    pub recoverable: u64,
    /// Versions among these that are known to have been deleted or overwritten.
    pub recoverable_known: u64,
    /// Seconds since the oldest of these deletions. If that was before the disk was opened, which
    /// only happens after a crash, seconds since the opening. `None` if nothing is recoverable.
    pub recoverable_for: Option<u64>,
    /// Seconds until the next purge by period is due, 0 if it is due now. `None` if nothing is
    /// recoverable, or if the disk was opened without a policy.
    pub purge_in: Option<u64>,
    /// Whether a purge has begun and is not finished: it is under way, or failed, or, on a disk
    /// that is open read-only, was interrupted.
    pub purge_wanted: bool,
    /// Purges that were completed since the disk was opened.
    pub purges: u64,
    /// Purges that were completed since the disk was made.
    pub epoch: u64,
    /// Deleted keys that the last purge since the opening destroyed.
    pub last_purge_keys: u64,
    /// Keys among them that certainly encrypted a block.
    pub last_purge_known: u64,
    /// Blocks of the key storage area that it replaced.
    pub last_purge_key_blocks: u64,
}

impl PurgeStatus {
    /// The status as counters. `None` fields are left out.
    pub fn items(&self) -> Vec<StatusItem> {
        let mut items = vec![
            StatusItem::new("recoverable", self.recoverable, "blocks"),
            StatusItem::new("recoverable_known", self.recoverable_known, "blocks"),
        ];
        items.extend(self.recoverable_for.map(|age| StatusItem::new("recoverable_for", age, "seconds")));
        items.extend(self.purge_in.map(|left| StatusItem::new("purge_in", left, "seconds")));
        items.extend([
            StatusItem::new("purge_wanted", self.purge_wanted.into(), "flag"),
            StatusItem::new("purges", self.purges, "purges"),
            StatusItem::new("epoch", self.epoch, "purges"),
            StatusItem::new("last_purge_keys", self.last_purge_keys, "keys"),
            StatusItem::new("last_purge_known", self.last_purge_known, "blocks"),
            StatusItem::new("last_purge_key_blocks", self.last_purge_key_blocks, "blocks"),
        ]);
        items
    }
}

#[derive(Default)]
struct PurgeStatsState {
    /// When the oldest deletion that is not purged was requested, by the clock.
    since: Option<Duration>,
    purges: u64,
    epoch: u64,
    last: PurgeResult,
}

/// The deletion status of an open disk.
pub(crate) struct PurgeStats {
    clock: Arc<dyn Clock>,
    state: Mutex<PurgeStatsState>,
}

impl PurgeStats {
    /// The status after an opening. `recoverable`: whether data from before the opening is
    /// recoverable.
    pub(crate) fn new(clock: Arc<dyn Clock>, epoch: u64, recoverable: bool) -> PurgeStats {
        let since = recoverable.then(|| clock.now());
        PurgeStats {
            clock,
            state: Mutex::new(PurgeStatsState { since, epoch, ..PurgeStatsState::default() }),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Notes a write to the buffer, which may replace a block on the flash.
    pub(crate) fn note_write(&self) {
        let mut state = self.state.lock();
        if state.since.is_none() {
            state.since = Some(self.clock.now());
        }
    }

    /// Notes the end of an operation that began at `began` and may have changed the flash. `none`
    /// returns whether nothing is recoverable and the buffer is empty. It is called under the lock,
    /// so that a concurrent write is dated after this.
    pub(crate) fn note_operation(&self, began: Duration, none: impl Fn() -> bool) {
        let mut state = self.state.lock();
        state.since = if none() { None } else { state.since.or(Some(began)) };
    }

    /// Notes a complete purge. Deletions since its start are dated by
    /// [`PurgeStats::note_operation`].
    pub(crate) fn note_purged(&self, epoch: u64, purged: PurgeResult) {
        let mut state = self.state.lock();
        state.since = None;
        state.epoch = epoch;
        state.purges += 1;
        state.last = purged;
    }

    /// When the oldest deletion that is not purged was requested.
    pub(crate) fn since(&self) -> Option<Duration> {
        self.state.lock().since
    }

    /// The status with `recoverable` blocks. `period` is that of the policy.
    pub(crate) fn status(&self, recoverable: u64, period: Option<Duration>) -> PurgeStatus {
        let state = self.state.lock();
        let age = state.since.filter(|_| recoverable > 0).map(|since| self.clock.now().saturating_sub(since));
        let left = |age: Duration| period.map(|period| period.saturating_sub(age).as_secs());
        PurgeStatus {
            recoverable,
            recoverable_known: 0,
            recoverable_for: age.map(|age| age.as_secs()),
            purge_in: age.and_then(left),
            purge_wanted: false,
            purges: state.purges,
            epoch: state.epoch,
            last_purge_keys: state.last.keys,
            last_purge_known: state.last.known,
            last_purge_key_blocks: state.last.key_blocks,
        }
    }
}
