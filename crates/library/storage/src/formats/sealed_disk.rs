//! An open sealed disk on a flat medium: the engine, and its replacement when the disk grows.
//!
//! The disk grows like a closed one: requests wait while the engine is closed, the medium and the
//! header grow in the order of `grow.rs`, and the engine is opened again. So a power cut at any
//! moment leaves a state that the resize of a closed disk can also leave, and no promise to clients
//! depends on the old engine.
//!
//! With a keeper, acknowledged writes that are not durable lie in memory that the keeper holds.
//! Each engine has a memory of its own, since its layout depends on the parameters. The first
//! engine adopts the memory that a server left which died.

use crate::format::{OpenContext, OpenFormat, Params};
use crate::header::header_lease::OpenDiskHeader;
use crate::inspect::damaged_medium::DamagedMedium;
use crate::opening::kept_memory;
use crate::opening::open_disk_options::OpenDiskOptions;
use crate::resize::grow;
use lacuna_contracts::{BlockAddr, Disk, Extent, Kind, Result, Secret, Status};
use lacuna_crypto::SystemRandom;
use lacuna_header::{Uuid, open_by_key};
use lacuna_kept_memory::{KeptMemory, MemoryKeeper};
use lacuna_medium::Medium;
use lacuna_sealed::{CachedSlots, OpenOptions, Params as SealedParams, SealedDisk};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The key and options for opening the engine, and for opening it again.
struct EngineOpener {
    master: Secret<32>,
    uuid: [u8; 16],
    options: OpenDiskOptions,
    random: Arc<SystemRandom>,
    keeper: Option<Arc<dyn MemoryKeeper>>,
}

impl EngineOpener {
    fn options(&self, kept: Option<KeptMemory>, cached: CachedSlots) -> OpenOptions {
        OpenOptions {
            budget: self.options.budget,
            read_only: self.options.read_only,
            write_through: self.options.write_through,
            background: true,
            random: self.random.clone(),
            kept,
            cached,
        }
    }

    fn open(
        &self,
        medium: &Arc<dyn Medium>,
        params: &SealedParams,
        cached: CachedSlots,
    ) -> Result<SealedDisk> {
        let options = self.options(self.memory(params)?, cached);
        SealedDisk::open(Arc::clone(medium), params, &self.master, &self.uuid, options)
    }

    /// The memory for acknowledged writes of an engine with these parameters: what the last server
    /// left, or new memory. `None`: that of this process.
    fn memory(&self, params: &SealedParams) -> Result<Option<KeptMemory>> {
        let Some(keeper) = self.keeper.as_ref().filter(|_| !self.options.read_only) else { return Ok(None) };
        let layout = SealedDisk::kept_layout(params, self.options.budget);
        let owner = kept_memory::owner("sealed kept memory", &self.master, &self.uuid, &params.encode());
        kept_memory::of_disk(&**keeper, &owner, &layout)
    }
}

/// An open sealed disk on a flat medium.
pub(crate) struct GrowableSealedDisk {
    /// Shared by requests; exclusive during the replacement.
    engine: RwLock<SealedDisk>,
    /// The engine's number of blocks, readable during the replacement.
    blocks: AtomicU64,
    opener: EngineOpener,
}

impl GrowableSealedDisk {
    pub(crate) fn open(
        medium: &Arc<dyn Medium>,
        params: &SealedParams,
        with: &OpenContext<'_>,
    ) -> Result<Self> {
        let opener = EngineOpener {
            master: with.keys.keys[0].clone(),
            uuid: *with.keys.uuid,
            options: with.options,
            random: Arc::new(SystemRandom::new()?),
            keeper: with.keeper.cloned(),
        };
        let engine = if with.rescue {
            // The engine fails if it cannot read the journal or the map, and verifies both.
            let left = Arc::new(DamagedMedium::new(Arc::clone(medium), params.geometry().end(), true));
            let options = opener.options(None, CachedSlots::Dropped);
            let (master, uuid) = (&opener.master, &opener.uuid);
            let engine = SealedDisk::open_to_rescue(left.clone(), params, master, uuid, options)?;
            // A cipher without authentication must not decrypt garbage.
            left.set_strict();
            engine
        } else {
            let cached = if with.keeps_cached { CachedSlots::Kept } else { CachedSlots::Dropped };
            opener.open(medium, params, cached)?
        };
        Ok(GrowableSealedDisk { engine: RwLock::new(engine), blocks: AtomicU64::new(params.blocks), opener })
    }
}

impl Disk for GrowableSealedDisk {
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

    fn is_read_only(&self) -> bool {
        self.opener.options.read_only
    }
}

impl OpenFormat for GrowableSealedDisk {
    fn disk(&self) -> &dyn Disk {
        self
    }

    fn can_stay_cached(&self) -> bool {
        true
    }

    /// Requests wait meanwhile. After an error with the engine already closed, the disk refuses
    /// everything until it is opened again; the error says so.
    fn grow(&self, header: &OpenDiskHeader, size: Option<u64>) -> Result<Box<dyn Params>> {
        let lease = header.lease()?;
        let medium = lease.medium();
        let mut unlocked = open_by_key(&**medium, Uuid(self.opener.uuid), &self.opener.master)?;
        let before = *self.engine.read().params();
        let device = header.is_on_device().then(|| medium.len());
        let wanted = SealedParams { blocks: grow::target_blocks(&before, size, device)?, ..before };
        if wanted == before {
            return Ok(Box::new(before));
        }
        let former = grow::find_stale_headers(&**medium, &unlocked, &wanted)?;
        // Data flushed now need not be flushed while requests wait.
        self.engine.read().flush()?;
        let mut engine = self.engine.write();
        engine.close()?;
        // A successor finds either size of the disk, and no memory of the other.
        self.opener.keeper.as_ref().map_or(Ok(()), |keeper| keeper.release())?;
        let grown = grow::grow(&**medium, &mut unlocked, &wanted, &former);
        let now = if grown.is_ok() { wanted } else { before };
        *engine = self.opener.open(medium, &now, CachedSlots::Dropped).map_err(|e| {
            e.context("the disk is closed, and could not be opened again after its size was changed")
                .with_kind(Kind::FailStop)
                .hint("close it and open it again: all earlier writes are on the medium")
        })?;
        self.blocks.store(now.blocks, Ordering::SeqCst);
        grown.map(|()| Box::new(now) as Box<dyn Params>)
    }

    fn is_journal_damaged(&self) -> bool {
        self.engine.read().is_journal_damaged()
    }

    fn note(&self) -> Option<&'static str> {
        self.engine.read().is_medium_full().then_some(
            "the host has no space left for this disk, or fails its requests: the last writes stay in its \
             reserve, and little more fits there. Free space on the host, or delete something on the disk and trim it (fstrim)",
        )
    }
}

#[cfg(test)]
#[path = "sealed_disk_tests.rs"]
mod tests;
