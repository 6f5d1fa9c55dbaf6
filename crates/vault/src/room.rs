//! Whether the backing directory has room for one more change: for what it writes, for the record of the commit that makes it durable, and
//! for the places that the journal's pages go to.
//!
//! Invariant: a change that adds something is let in only if everything so far can be committed, and then brought to its place. So a
//! full file system refuses what is new, and never what was acknowledged; what removes something is let in always, and finds the
//! space that is left free here.

use crate::ground::Ground;
use lacuna_core::{Kind, Result};
use lacuna_medium::Space;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of puts for a changed inode that is not written back yet.
const RECORD: u64 = 512;
/// Bytes that any change may take beside its content.
const CHANGE: u64 = 16 << 10;
/// Bytes of puts for content, at most: blocks go elsewhere.
const PUTS: u64 = 64 << 10;
/// Bytes above what must stay free, below which the file system is asked at each change. Beyond, changes take a part of it before it is
/// asked again.
const MUCH: u64 = 256 << 20;
/// That part.
const PART: u64 = 8;

/// The room of an open vault.
pub(crate) struct Room {
    ground: Arc<Ground>,
    /// Bytes that may be taken before the file system is asked again.
    known: AtomicU64,
}

impl Room {
    pub(crate) fn new(ground: Arc<Ground>) -> Room {
        Room { ground, known: AtomicU64::new(0) }
    }

    /// Whether there is room for a change of so many bytes. Takes the journal's part of it.
    pub(crate) fn is_for(&self, bytes: u64) -> Result<bool> {
        let reserved = self.ground.store.reserve_commit(self.puts() + bytes.min(PUTS) + CHANGE);
        match reserved {
            Err(e) if e.kind() == Kind::NoSpace => return Ok(false),
            done => done?,
        }
        let wanted = bytes + CHANGE;
        let taken =
            self.known.fetch_update(Ordering::AcqRel, Ordering::Acquire, |known| known.checked_sub(wanted));
        if taken.is_ok() {
            return Ok(true);
        }
        let space = self.ground.store.space()?;
        let (owed, files) = self.owed();
        if space.free_bytes < owed.saturating_add(wanted)
            || (space.total_files > 0 && space.free_files < files)
        {
            return Ok(false);
        }
        let more = space.free_bytes - owed;
        self.known.store(if more >= MUCH { more / PART } else { 0 }, Ordering::Release);
        Ok(true)
    }

    /// The file system is asked again before the next change: others may have filled it.
    pub(crate) fn look_again(&self) {
        self.known.store(0, Ordering::Release);
    }

    /// Whether the journal has, or finds, space for the commit of what changed so far.
    pub(crate) fn is_for_commit(&self) -> Result<bool> {
        let (store, puts) = (&self.ground.store, self.puts() + CHANGE);
        if store.holds_commit(puts) {
            return Ok(true);
        }
        match store.reserve_commit(puts) {
            Err(e) if e.kind() == Kind::NoSpace => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Space of the backing file system, less what must stay free.
    pub(crate) fn space(&self) -> Result<Space> {
        let space = self.ground.store.space()?;
        let (owed, files) = self.owed();
        Ok(Space {
            free_bytes: space.free_bytes.saturating_sub(owed),
            free_files: space.free_files.saturating_sub(files),
            ..space
        })
    }

    /// Bytes of the next commit's puts, about.
    fn puts(&self) -> u64 {
        let Ground { namespace, inodes, .. } = &*self.ground;
        namespace.pending_bytes() as u64 + RECORD * inodes.changed() as u64
    }

    /// What must stay free: bytes, and files.
    fn owed(&self) -> (u64, u64) {
        let (bytes, files) = self.ground.store.owed();
        (bytes + self.ground.namespace.owed(), files)
    }
}
