//! What is still recoverable, since when, and what purges did about it: the account that `status`
//! and the policy look at.
//!
//! Invariant: the account never says less than what is true. It dates a deletion from the write or
//! discard that asked for it, not from the moment when it reaches the flash.

use crate::purger::Purged;
use lacuna_contracts::{Clock, StatusItem};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// What a disk has not forgotten yet, and what its purges did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgetting {
    /// Versions of blocks that were deleted or overwritten and can still be recovered by somebody
    /// with the flash and every passphrase, at most. Blocks in the write buffer count: each of them
    /// may replace one on the flash. After a crash every key that may encrypt something counts.
    pub recoverable: u64,
    /// Of these, those that are known to have been deleted or overwritten.
    pub recoverable_known: u64,
    /// Seconds since the oldest of these deletions; since the disk was opened if it is older than
    /// that, which is the case after a crash alone. `None` if nothing is recoverable.
    pub recoverable_for: Option<u64>,
    /// Seconds until the next purge by period is due, 0 if it is due now. `None` if nothing is
    /// recoverable, or if the disk was opened without a policy.
    pub purge_in: Option<u64>,
    /// A purge has begun and is not finished: it is under way, or failed; on a disk that is open
    /// for reading alone, it was cut.
    pub purge_wanted: bool,
    /// Purges that were completed since the disk was opened.
    pub purges: u64,
    /// Purges that were completed since the disk was made.
    pub epoch: u64,
    /// Deleted keys that the last purge since the opening destroyed.
    pub last_purge_keys: u64,
    /// Of these, those that encrypted a block for sure.
    pub last_purge_known: u64,
    /// Blocks of the key storage area that it replaced.
    pub last_purge_key_blocks: u64,
}

impl Forgetting {
    /// The same as counters. What is `None` is left out.
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
struct State {
    /// When the oldest deletion was asked for that is not purged, by the clock.
    since: Option<Duration>,
    purges: u64,
    epoch: u64,
    last: Purged,
}

/// The account of an open disk.
pub(crate) struct Account {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

impl Account {
    /// After an opening. `recoverable`: something from before is.
    pub(crate) fn new(clock: Arc<dyn Clock>, epoch: u64, recoverable: bool) -> Account {
        let since = recoverable.then(|| clock.now());
        Account { clock, state: Mutex::new(State { since, epoch, ..State::default() }) }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// A write is in the buffer, which may replace something on the flash.
    pub(crate) fn write(&self) {
        let mut state = self.state.lock();
        if state.since.is_none() {
            state.since = Some(self.clock.now());
        }
    }

    /// Something that began then changed the flash. `none`: nothing is recoverable, and nothing is
    /// in the buffer. It is asked under the lock, so that a write that comes meanwhile is dated
    /// after this.
    pub(crate) fn settle(&self, began: Duration, none: impl Fn() -> bool) {
        let mut state = self.state.lock();
        state.since = if none() { None } else { state.since.or(Some(began)) };
    }

    /// A purge is complete. What came since it began is dated when its turn is settled.
    pub(crate) fn purged(&self, epoch: u64, purged: Purged) {
        let mut state = self.state.lock();
        state.since = None;
        state.epoch = epoch;
        state.purges += 1;
        state.last = purged;
    }

    /// When the oldest deletion was asked for that is not purged.
    pub(crate) fn since(&self) -> Option<Duration> {
        self.state.lock().since
    }

    /// The account, of so many blocks. `period`: of the policy.
    pub(crate) fn tell(&self, recoverable: u64, period: Option<Duration>) -> Forgetting {
        let state = self.state.lock();
        let age = state.since.filter(|_| recoverable > 0).map(|since| self.clock.now().saturating_sub(since));
        let left = |age: Duration| period.map(|period| period.saturating_sub(age).as_secs());
        Forgetting {
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
