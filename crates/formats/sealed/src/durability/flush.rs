//! The commit lock: one thread commits at a time. Flushes that arrive during a commit share the
//! next one.

use crate::durability::commit::{CommitScope, Committer};
use crate::health::Health;
use lacuna_contracts::{BlockAddr, Result, panic_error};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The committer and the lock around it.
pub(crate) struct Flusher {
    /// A mutex of the standard library, because a panic under it must end the disk.
    committer: Mutex<Committer>,
    full_commits: Arc<AtomicU64>,
    health: Arc<Health>,
}

impl Flusher {
    pub(crate) fn new(committer: Committer, health: Arc<Health>) -> Self {
        let full_commits = committer.full_commits().clone();
        Flusher { committer: Mutex::new(committer), full_commits, health }
    }

    /// Waits for the commit lock.
    pub(crate) fn committer(&self) -> MutexGuard<'_, Committer> {
        self.committer.lock().unwrap_or_else(|poisoned| {
            self.health.fail(panic_error());
            poisoned.into_inner()
        })
    }

    /// [`Committer::write_on_full_medium`].
    pub(crate) fn write_on_full_medium(
        &self,
        first: BlockAddr,
        data: &[u8],
        put: impl Fn(BlockAddr, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.health.check()?;
        self.committer().write_on_full_medium(first, data, put)
    }

    /// Makes a checkpoint if one is due. The commit lock is free while the slots are synced.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let begun = self.committer().begin_checkpoint()?;
        let Some(begun) = begun else { return Ok(()) };
        let synced = begun.sync();
        self.committer().end_checkpoint(&begun, synced)
    }

    /// Makes everything acknowledged before the call durable.
    pub(crate) fn flush(&self) -> Result<()> {
        self.health.check()?;
        let before = self.full_commits.load(Ordering::SeqCst);
        let mut committer = self.committer();
        // A full commit that began after this call is complete, since the lock was free. Its
        // failure is in the health, its refusal in the committer.
        if self.full_commits.load(Ordering::SeqCst) > before && !committer.was_refused() {
            return self.health.check();
        }
        committer.commit(CommitScope::All)?;
        committer.maintain()
    }
}
