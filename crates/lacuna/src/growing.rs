//! A sealed disk on a flat medium that can become larger while it is open.
//!
//! It grows as a closed one does: requests wait while the engine is closed, the medium and the header grow in the order that
//! `enlarge.rs` keeps, and the engine is opened again. A power cut at any moment thus finds what it may find when a
//! closed disk is resized, and nothing that clients were promised depends on the engine that went.

use crate::enlarge;
use crate::held_header::HeaderLease;
use crate::parameters::Parameters;
use crate::remains::Remains;
use lacuna_core::{BlockAddr, Budget, Disk, Error, Extent, Kind, Result, Secret, Status};
use lacuna_crypto::SystemRandom;
use lacuna_header::{Uuid, open_by_key};
use lacuna_medium::Medium;
use lacuna_sealed::{OpenOptions, Params, Sealed};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the disk is opened with, and opened with again.
pub(crate) struct Opener {
    pub(crate) master: Secret<32>,
    pub(crate) uuid: [u8; 16],
    pub(crate) budget: Budget,
    pub(crate) read_only: bool,
    pub(crate) write_through: bool,
    pub(crate) random: Arc<SystemRandom>,
}

impl Opener {
    fn options(&self) -> OpenOptions {
        OpenOptions {
            budget: self.budget,
            read_only: self.read_only,
            write_through: self.write_through,
            background: true,
            random: self.random.clone(),
        }
    }

    fn open(&self, medium: Arc<dyn Medium>, params: &Params) -> Result<Sealed> {
        Sealed::open(medium, params, &self.master, &self.uuid, self.options())
    }
}

/// See the head of this file.
pub(crate) struct Growing {
    /// Shared by requests; alone while it is replaced.
    engine: RwLock<Sealed>,
    /// Of the engine, for those who ask while it is replaced.
    blocks: AtomicU64,
    opener: Opener,
}

impl Growing {
    pub(crate) fn open(medium: Arc<dyn Medium>, params: &Params, opener: Opener) -> Result<Self> {
        let engine = RwLock::new(opener.open(medium, params)?);
        Ok(Growing { engine, blocks: AtomicU64::new(params.blocks), opener })
    }

    /// Opens what is left of a disk, for reading alone.
    pub(crate) fn open_to_rescue(medium: Arc<dyn Medium>, params: &Params, opener: Opener) -> Result<Self> {
        // The engine gives up where it cannot read the journal or the map, and verifies what it reads of them.
        let left = Arc::new(Remains::of(medium, params.geometry().medium_len(), true));
        let (master, uuid) = (&opener.master, &opener.uuid);
        let engine = Sealed::open_to_rescue(left.clone(), params, master, uuid, opener.options())?;
        // A block of a cipher that does not notice it must not be made of rubbish.
        left.be_strict();
        Ok(Growing { engine: RwLock::new(engine), blocks: AtomicU64::new(params.blocks), opener })
    }

    /// Whether a disk that was opened to rescue what there is has a damaged journal.
    pub(crate) fn is_journal_damaged(&self) -> bool {
        self.engine.read().is_journal_damaged()
    }

    /// Whether the medium was found full.
    pub(crate) fn is_medium_full(&self) -> bool {
        self.engine.read().is_medium_full()
    }

    /// Gives the disk `size` bytes, or without a size all of its block device. Requests wait meanwhile. What the disk is then, whether
    /// or not that is a change. `lease` is the header's, and keeps others from it.
    ///
    /// Errors: those of [`crate::resize()`]. After one that came when the engine was closed already, the disk refuses everything
    /// until it is opened anew, which it says.
    pub(crate) fn grow(&self, lease: &HeaderLease<'_>, size: Option<u64>) -> Result<Parameters> {
        let medium = lease.medium();
        let mut unlocked = open_by_key(&**medium, Uuid(self.opener.uuid), &self.opener.master)?;
        let before = Parameters::Flat(*self.engine.read().params());
        let wanted = enlarge::wanted(before, size, medium.len())?;
        if wanted == before {
            return Ok(before);
        }
        let former = enlarge::find_former(&**medium, &unlocked, wanted)?;
        // What is flushed now need not be flushed while requests wait.
        self.engine.read().flush()?;
        let mut engine = self.engine.write();
        engine.close()?;
        let grown = enlarge::grow(&**medium, &mut unlocked, wanted, &former);
        let now = if grown.is_ok() { wanted } else { before };
        let Parameters::Flat(params) = now else { return Err(no_growth()) };
        let opened = self.opener.open(Arc::clone(medium), &params);
        *engine = opened.map_err(|e| {
            e.context("the disk is closed, and could not be opened again after its size was changed")
                .with_kind(Kind::FailStop)
                .remedy("close it and open it again: all that was written before is on the medium")
        })?;
        self.blocks.store(params.blocks, Ordering::SeqCst);
        grown.map(|()| now)
    }
}

/// The refusal to make a disk of another format larger while it is open.
pub(crate) fn no_growth() -> Error {
    Error::new(Kind::Busy, "cannot resize the disk while it is open")
        .found("a disk that is not sealed in a file or on a block device")
        .expected("one that is, or a disk that is closed")
        .remedy("close it first")
}

impl Disk for Growing {
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::SeqCst)
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.engine.read().read(first, buf)
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.engine.read().write(first, data)
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.engine.read().discard(first, count)
    }

    fn flush(&self) -> Result<()> {
        self.engine.read().flush()
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.engine.read().extents(first, count)
    }

    fn status(&self) -> Status {
        self.engine.read().status()
    }

    fn close(&self) -> Result<()> {
        self.engine.read().close()
    }

    fn read_only(&self) -> bool {
        self.opener.read_only
    }
}

#[cfg(test)]
mod tests;
