//! A disk whose medium is full: what opening, deleting and closing need is found in the journal,
//! which has had its space since the disk was created, and of which a part is kept for this.
//!
//! A disk enters this state when a write to the medium is refused (it is full, a quota or the
//! largest length of a file is reached, or the system refuses the call): a write of a stream, which
//! fails that request; one that a commit needs, which fails that flush and no other; or one that
//! destages, of which no caller needs to hear. A read that fails in a commit, or where blocks are
//! destaged, is like a refusal: it has changed nothing, and what needs it stays in the journal. In
//! this state:
//! - what has space in its slot goes there, what has none stays in the journal, and the journal is
//!   not retired;
//! - nothing streams, and every write is in the journal before it is acknowledged, so that one that
//!   finds the journal full as well is refused, before anything of it is kept, and nothing
//!   acknowledged is lost;
//! - discards give space back to the medium. As soon as all is destaged, the state ends.
//!
//! The reserve is for a disk that is opened on a full medium: one that finds it full later leaves
//! it to the next opening.

use crate::cache::{Cache, Committed};
use crate::destage::{Destager, for_runs};
use crate::health::Health;
use crate::log::Log;
use lacuna_contracts::{BlockAddr, Error, Kind, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Calls that were refused, or reads that failed, after which the rest is not tried before the next
/// time.
const PATIENCE: u32 = 1000;

/// Whether the medium is full, and what is done then.
pub(crate) struct MediumFull {
    full: AtomicBool,
    /// It was so when the disk was opened: the reserve is for this.
    from_the_start: AtomicBool,
    /// Something was discarded since the last attempt to destage everything.
    discarded: AtomicBool,
    cache: Arc<Cache>,
    health: Arc<Health>,
    /// Blocks of data in one batch.
    batch_blocks: usize,
}

impl MediumFull {
    pub(crate) fn new(cache: Arc<Cache>, health: Arc<Health>, batch_blocks: usize) -> Self {
        let [full, from_the_start, discarded] = [const { AtomicBool::new(false) }; 3];
        MediumFull { full, from_the_start, discarded, cache, health, batch_blocks }
    }

    /// Whether commits may take the reserve.
    pub(crate) fn spends_reserve(&self) -> bool {
        self.from_the_start.load(Ordering::Acquire)
    }

    /// After a failure: whether the disk goes on in this state, because nothing was changed.
    /// Everything is tried once more before the next time that it may help.
    pub(crate) fn enter(&self, failed: &Error) -> bool {
        if !failed.changed_nothing() {
            return false;
        }
        self.discarded.store(true, Ordering::Release);
        self.full.store(true, Ordering::Release);
        true
    }

    pub(crate) fn is_so(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Something was discarded, or somebody else may have freed space.
    pub(crate) fn note_discard(&self) {
        self.discarded.store(true, Ordering::Release);
    }

    /// [`Destager::checkpoint`] at a time when the medium may be full without harm: what finds no
    /// space stays in the journal.
    pub(crate) fn checkpoint_or_stay(&self, destager: &mut Destager, log: &mut Log) -> Result<()> {
        self.health.check()?;
        if !refused(destager.checkpoint(log))? {
            return Ok(());
        }
        if !self.full.swap(true, Ordering::AcqRel) {
            self.from_the_start.store(true, Ordering::Release);
        }
        self.destage_what_fits(destager, log)
    }

    /// Tries again if that may help.
    pub(crate) fn upkeep(&self, destager: &mut Destager, log: &mut Log) -> Result<()> {
        let tried = !self.discarded.swap(false, Ordering::AcqRel);
        if tried { Ok(()) } else { self.destage_what_fits(destager, log) }
    }

    /// The checkpoint of a full medium.
    pub(crate) fn destage_what_fits(&self, destager: &mut Destager, log: &mut Log) -> Result<()> {
        self.health.check()?;
        let is_hole = |block: &BlockAddr| matches!(self.cache.committed(*block), Some(Committed::Hole));
        // Holes first: what they give back serves the others.
        let (holes, data): (BTreeSet<BlockAddr>, BTreeSet<BlockAddr>) =
            log.take_list().into_iter().partition(is_hole);
        let sent = destage_runs(&self.cache, destager, log, &holes)
            .and_then(|()| destage_runs(&self.cache, destager, log, &data));
        if sent.is_err() {
            log.put_back(holes.into_iter().chain(data));
            return sent;
        }
        log.recycle();
        if refused(destager.mover().settle())? {
            return Ok(());
        }
        if !log.is_destaged() {
            return log.compact(self.batch_blocks);
        }
        log.retire()?;
        self.from_the_start.store(false, Ordering::Release);
        self.full.store(false, Ordering::Release);
        Ok(())
    }
}

/// Destages runs as far as there is space; the others stay in the list.
fn destage_runs(
    cache: &Cache,
    destager: &mut Destager,
    log: &mut Log,
    blocks: &BTreeSet<BlockAddr>,
) -> Result<()> {
    let mut patience = PATIENCE;
    for_runs(cache, blocks, |run| {
        let done = if patience == 0 { None } else { Some(destager.destage_run(log, run)) };
        let (stays, cost) = match done {
            None => (true, 0),
            Some(Ok(())) => (false, 0),
            Some(Err(e)) if e.kind().is_refusal() => (true, 1),
            // A read that fails may take seconds; a refusal takes nothing.
            Some(Err(e)) if e.changed_nothing() => (true, PATIENCE / 8),
            Some(Err(e)) => return Err(e),
        };
        if stays {
            patience = patience.saturating_sub(cost);
            log.put_back(run.iter().map(|(block, _)| *block));
        }
        Ok(())
    })
}

/// The refusal of a write for which not even the journal has room.
pub(crate) fn no_room(log: &Log) -> Error {
    Error::new(Kind::NoSpace, "the journal is full, which takes what the medium has no space for or fails to take")
        .found(format!("{} bytes in the journal that cannot go where they belong", log.used()))
        .expected("space on the medium, and reads of it that pass")
        .remedy(
            "free space on the file system that holds the medium, or mend the medium if it cannot be read, then close the disk and \
             open it again; what was acknowledged is safe",
        )
}

/// Whether a call failed that changed nothing, for want of space above all; every other failure
/// stays one.
fn refused(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(false),
        Err(e) if e.changed_nothing() => Ok(true),
        Err(e) => Err(e),
    }
}
