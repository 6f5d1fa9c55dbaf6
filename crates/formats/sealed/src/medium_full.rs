//! The full-medium state. Everything that opening, discarding and closing need to write fits the
//! journal, which has had its space since the disk was created and has a part reserved for this.
//!
//! A disk enters this state when the medium refuses a write, because it is full, a quota or the
//! largest file length is reached, or the system refuses the call. The refused write may be part of
//! a stream, which fails that request; of a commit, which fails that flush and no other; or of
//! destaging, which no caller needs to hear of. A failed read in a commit or in destaging counts as
//! a refusal: it has changed nothing, and its blocks stay in the journal. In this state:
//! - blocks with space in their slots are destaged, other blocks stay in the journal, and the
//!   journal is not retired;
//! - nothing streams, and every write is in the journal before it is acknowledged. A write that
//!   finds the journal full as well is refused before any part of it is kept, so nothing
//!   acknowledged is lost;
//! - discards give space back to the medium. As soon as everything is destaged, the state ends.
//!
//! The reserve is for a disk that is opened on a full medium. If the medium becomes full later, the
//! reserve is left to the next opening.

use crate::caches::cache::{CommittedVersion, WriteCache};
use crate::durability::destage::{Destager, for_each_run};
use crate::health::Health;
use crate::log::Log;
use lacuna_contracts::{BlockAddr, Error, Kind, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Refused calls and failed reads after which destaging stops until the next attempt. A failed read
/// counts for many.
const FAILURE_BUDGET: u32 = 1000;

/// The full-medium state of a disk.
pub(crate) struct MediumFull {
    full: AtomicBool,
    /// Whether the medium was full when the disk was opened, so that the reserve may be used.
    was_full_at_open: AtomicBool,
    /// Whether blocks were discarded since the last attempt to destage everything.
    discarded: AtomicBool,
    cache: Arc<WriteCache>,
    health: Arc<Health>,
    /// Blocks of data in one batch.
    batch_blocks: usize,
}

impl MediumFull {
    pub(crate) fn new(cache: Arc<WriteCache>, health: Arc<Health>, batch_blocks: usize) -> Self {
        let [full, from_the_start, discarded] = [const { AtomicBool::new(false) }; 3];
        MediumFull { full, was_full_at_open: from_the_start, discarded, cache, health, batch_blocks }
    }

    /// Whether commits may take the reserve.
    pub(crate) fn spends_reserve(&self) -> bool {
        self.was_full_at_open.load(Ordering::Acquire)
    }

    /// Enters the state after an error that changed nothing, and returns whether it was one.
    /// Everything is tried again at the next upkeep.
    pub(crate) fn enter(&self, failed: &Error) -> bool {
        if !failed.changed_nothing() {
            return false;
        }
        self.discarded.store(true, Ordering::Release);
        self.full.store(true, Ordering::Release);
        true
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Notes that blocks were discarded, or that another program may have freed space.
    pub(crate) fn note_discard(&self) {
        self.discarded.store(true, Ordering::Release);
    }

    /// [`Destager::checkpoint`] where a full medium is acceptable: blocks without space stay in the
    /// journal.
    pub(crate) fn try_checkpoint(&self, destager: &mut Destager, log: &mut Log) -> Result<()> {
        self.health.check()?;
        if !is_refused(destager.checkpoint(log))? {
            return Ok(());
        }
        if !self.full.swap(true, Ordering::AcqRel) {
            self.was_full_at_open.store(true, Ordering::Release);
        }
        self.destage_fitting(destager, log)
    }

    /// Tries to destage again if that may succeed now.
    pub(crate) fn maintain(&self, destager: &mut Destager, log: &mut Log) -> Result<()> {
        let tried = !self.discarded.swap(false, Ordering::AcqRel);
        if tried { Ok(()) } else { self.destage_fitting(destager, log) }
    }

    /// The checkpoint on a full medium.
    pub(crate) fn destage_fitting(&self, destager: &mut Destager, log: &mut Log) -> Result<()> {
        self.health.check()?;
        let is_hole =
            |block: &BlockAddr| matches!(self.cache.committed(*block), Some(CommittedVersion::Hole));
        // Holes first: the space that they free serves the data.
        let (holes, data): (BTreeSet<BlockAddr>, BTreeSet<BlockAddr>) =
            log.take_to_destage().into_iter().partition(is_hole);
        let sent = destage_runs(&self.cache, destager, log, &holes)
            .and_then(|()| destage_runs(&self.cache, destager, log, &data));
        if sent.is_err() {
            log.put_back(holes.into_iter().chain(data));
            return sent;
        }
        log.recycle_buffers();
        if is_refused(destager.remapper().make_durable())? {
            return Ok(());
        }
        if !log.is_destaged() {
            return log.compact(self.batch_blocks);
        }
        log.retire()?;
        self.was_full_at_open.store(false, Ordering::Release);
        self.full.store(false, Ordering::Release);
        Ok(())
    }
}

/// Destages runs as far as there is space; other blocks stay in the list.
fn destage_runs(
    cache: &WriteCache,
    destager: &mut Destager,
    log: &mut Log,
    blocks: &BTreeSet<BlockAddr>,
) -> Result<()> {
    let mut patience = FAILURE_BUDGET;
    for_each_run(cache, blocks, |run| {
        let done = if patience == 0 { None } else { Some(destager.destage_run(log, run)) };
        let (stays, cost) = match done {
            None => (true, 0),
            Some(Ok(())) => (false, 0),
            Some(Err(e)) if e.kind().is_refusal() => (true, 1),
            // A failed read may take seconds; a refusal takes no time.
            Some(Err(e)) if e.changed_nothing() => (true, FAILURE_BUDGET / 8),
            Some(Err(e)) => return Err(e),
        };
        if stays {
            patience = patience.saturating_sub(cost);
            log.put_back(run.iter().map(|(block, _)| *block));
        }
        Ok(())
    })
}

/// The error for a write that not even the journal has room for.
pub(crate) fn no_space_error(log: &Log) -> Error {
    Error::new(
        Kind::NoSpace,
        "the journal is full: it holds the writes that the medium has no space for or refuses",
    )
    .found(format!("{} bytes in the journal that cannot be written to their slots", log.used()))
    .expected("space on the medium, and a medium that can be read")
    .hint(
        "free space on the file system that holds the medium, or repair the medium if it cannot be read, \
         then close the disk and open it again; acknowledged data is safe",
    )
}

/// Turns an error that changed nothing, mostly for lack of space, into `true`. Any other error
/// stays one.
fn is_refused(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(false),
        Err(e) if e.changed_nothing() => Ok(true),
        Err(e) => Err(e),
    }
}
