//! A disk whose medium is full: what opening, deleting and closing need is found in the journal, which has had its space
//! since the disk was created, and of which a part is kept for this.
//!
//! A disk enters this state when it is opened, or closed, and what the journal holds finds no space in its slot. Then:
//! - what has space in its slot goes there, what has none stays in the journal, and the journal is not retired;
//! - nothing streams, and every write is in the journal before it is acknowledged, so that one that finds the journal full as
//!   well is refused and nothing acknowledged is lost;
//! - discards give space back to the medium. As soon as all is destaged, the state ends.
//!
//! If a write finds the medium full, none of this happens: the disk refuses writes, and the reserve is kept for the next
//! opening.

use crate::cache::Committed;
use crate::commit::Committer;
use crate::disk::Core;
use crate::journal::Batch;
use lacuna_core::{Error, Kind, Result};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// Refused writes after which the rest is not tried before the next time.
const PATIENCE: u32 = 1000;

/// Whether the medium is full.
#[derive(Default)]
pub(crate) struct MediumFull {
    full: AtomicBool,
    /// Something was discarded since the last attempt to destage everything.
    discarded: AtomicBool,
}

impl MediumFull {
    pub(crate) fn is_so(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    pub(crate) fn note_discard(&self) {
        self.discarded.store(true, Ordering::Release);
    }
}

impl Core {
    /// [`Core::checkpoint`] at a time when the medium may be full without harm: what finds no space stays in the journal.
    pub(crate) fn checkpoint_or_stay(&self, c: &mut Committer) -> Result<()> {
        self.check_alive()?;
        if !refused(self.store.prepare_settling())? && !refused(self.checkpoint(c))? {
            return Ok(());
        }
        self.medium_full.full.store(true, Ordering::Release);
        self.send_what_fits(c)
    }

    /// Tries again if that may help.
    pub(crate) fn upkeep_when_full(&self, c: &mut Committer) -> Result<()> {
        let tried = !self.medium_full.discarded.swap(false, Ordering::AcqRel);
        if tried { Ok(()) } else { self.send_what_fits(c) }
    }

    /// The checkpoint of a full medium.
    pub(crate) fn send_what_fits(&self, c: &mut Committer) -> Result<()> {
        self.check_alive()?;
        if refused(self.store.prepare_settling())? {
            return Ok(());
        }
        let blocks = std::mem::take(&mut c.to_destage);
        let is_hole = |block: &u64| matches!(self.cache.committed(*block), Some(Committed::Hole));
        // Holes first: what they give back serves the others.
        let (holes, data): (BTreeSet<u64>, BTreeSet<u64>) = blocks.into_iter().partition(is_hole);
        let mut patience = PATIENCE;
        let sent = self.send_runs(c, &holes, &mut patience).and_then(|()| {
            patience = PATIENCE;
            self.send_runs(c, &data, &mut patience)
        });
        if sent.is_err() {
            c.to_destage.extend(holes.union(&data).copied());
            return sent;
        }
        c.bytes_to_destage = 0;
        c.recycle();
        if refused(self.settle_slots(c))? {
            return Ok(());
        }
        if !c.to_destage.is_empty() {
            return self.compact(c);
        }
        self.retire_journal(c)?;
        self.medium_full.full.store(false, Ordering::Release);
        Ok(())
    }

    /// Destages runs as far as there is space; the others stay in `c.to_destage`.
    fn send_runs(&self, c: &mut Committer, blocks: &BTreeSet<u64>, patience: &mut u32) -> Result<()> {
        self.for_runs(blocks, |run| {
            let stays = *patience == 0 || refused(self.destage_run(c, run))?;
            if stays {
                *patience = patience.saturating_sub(1);
                c.to_destage.extend(run.iter().map(|(block, _)| *block));
            }
            Ok(())
        })
    }

    /// Writes what must stay in the journal anew behind everything else, and retires what is before it. What was destaged must
    /// be durable there, and the map too.
    fn compact(&self, c: &mut Committer) -> Result<()> {
        let blocks: Vec<u64> = c.to_destage.iter().copied().collect();
        let lens = blocks.chunks(self.limits.batch_blocks).map(|part| Batch::len_for(part.len(), part.len()));
        let (needed, longest) =
            lens.fold((0, 0), |(sum, most): (usize, usize), len| (sum + len, most.max(len)));
        // A batch that does not fit before the end of the journal wastes less than its length.
        if needed as u64 > c.journal.used() / 2 || !c.journal.fits(needed + longest) {
            return Ok(());
        }
        let mark = c.journal.mark();
        for part in blocks.chunks(self.limits.batch_blocks) {
            self.append_again(c, part)?;
        }
        c.journal.retire_before(mark)?;
        self.counters.journal_used.store(c.journal.used(), Ordering::Relaxed);
        self.counters.retirements.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The refusal of a write for which not even the journal has room.
    pub(crate) fn no_room(&self, c: &Committer) -> Error {
        Error::new(Kind::NoSpace, "the medium is full, and so is the journal, which takes what has no space")
            .found(format!("{} bytes in the journal that cannot go where they belong", c.journal.used()))
            .expected("space on the medium")
            .remedy(
                "free space on the file system that holds the medium, then close the disk and open it again; what was \
                 acknowledged is safe",
            )
    }
}

/// Whether something was refused for want of space; every other failure stays one.
fn refused(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(false),
        Err(e) if e.kind() == Kind::NoSpace => Ok(true),
        Err(e) => Err(e),
    }
}
