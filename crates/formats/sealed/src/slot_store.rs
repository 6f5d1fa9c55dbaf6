//! The slots on the medium: the ciphertext of a segment in one piece, and its metadata in another,
//! beside that of seven other slots. Harnik et al. keep the two apart like this in Figure 2 (b),
//! *object end*; there the metadata follows the ciphertext.
//!
//! The caller holds the chunk locks of all blocks that it accesses. Metadata entries are 16 or 32
//! bytes at offsets that are multiples of their size, so none straddles a 512-byte boundary.

use crate::address::{SlotAddr, SlotNo};
use crate::caches::meta_cache::{MetaCache, PAGE_LEN};
use crate::geometry::{CHUNK_META, Geometry, NO_META, Params};
use lacuna_contracts::{BLOCK_SIZE, Budget, Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_crypto::is_zero;
use lacuna_medium::Medium;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The slots of a disk with their metadata.
pub(crate) struct SlotStore {
    medium: Arc<dyn Medium>,
    geometry: Geometry,
    meta_size: usize,
    /// None for a cipher without metadata.
    meta: Option<MetaCache>,
}

impl SlotStore {
    /// The slots of a disk; `budget` is for the metadata cache.
    pub(crate) fn new(medium: Arc<dyn Medium>, params: &Params, budget: Budget) -> SlotStore {
        let geometry = params.geometry();
        let meta_size = params.cipher.meta_size();
        let meta = (meta_size > 0).then(|| MetaCache::new(medium.clone(), budget));
        SlotStore { medium, geometry, meta_size, meta }
    }

    /// The medium that holds the slots.
    pub(crate) fn medium(&self) -> &dyn Medium {
        &*self.medium
    }

    /// Bytes of metadata per block.
    pub(crate) fn meta_size(&self) -> usize {
        self.meta_size
    }

    /// Asks the medium to prefetch consecutive blocks of a slot, and the metadata from their start
    /// to the end of the slot: a sequential reader needs it next, and would wait for each missing
    /// page.
    pub(crate) fn will_read(&self, at: SlotAddr, count: u64) {
        self.medium.will_read(self.data_at(at), count * BLOCK);
        if self.meta.is_some() {
            let left = (SEGMENT_BLOCKS - at.index) * self.meta_size as u64;
            self.medium.will_read(self.meta_at(at), left);
        }
    }

    /// Asks the medium to prefetch the metadata of blocks that are about to be written. Each of
    /// them changes a part of a page, which is read first.
    pub(crate) fn will_write(&self, blocks: impl Iterator<Item = SlotAddr>) {
        if self.meta.is_none() {
            return;
        }
        let mut last = None;
        for at in blocks {
            let page = self.meta_at(at) / PAGE_LEN as u64;
            if last.replace(page) != Some(page) {
                self.medium.will_read(page * PAGE_LEN as u64, PAGE_LEN as u64);
            }
        }
    }

    /// Tells the medium that the blocks of a slot are complete and synced soon.
    pub(crate) fn will_sync(&self, slot: SlotNo) {
        self.medium.will_sync(self.data_at(slot.start()), SEGMENT_BLOCKS * BLOCK);
    }

    /// Reads ciphertext and metadata of consecutive blocks of a slot.
    pub(crate) fn read(&self, at: SlotAddr, data: &mut [u8], meta: &mut [u8]) -> Result<()> {
        self.read_data(at, data)?;
        self.read_meta(at, meta)
    }

    /// Reads ciphertext only, for a copy-on-write segment, which has its metadata in memory.
    pub(crate) fn read_data(&self, at: SlotAddr, data: &mut [u8]) -> Result<()> {
        self.medium.read_at(self.data_at(at), data).map_err(Error::of_read)
    }

    fn read_meta(&self, at: SlotAddr, meta: &mut [u8]) -> Result<()> {
        match &self.meta {
            Some(cache) => cache.read(self.meta_at(at), meta),
            None => Ok(()),
        }
    }

    /// Writes ciphertext and metadata of consecutive blocks of a slot.
    pub(crate) fn write(&self, at: SlotAddr, data: &[u8], meta: &[u8]) -> Result<()> {
        self.write_data(at, data)?;
        self.write_meta(at, meta)
    }

    /// Writes ciphertext only, for a copy-on-write segment.
    pub(crate) fn write_data(&self, at: SlotAddr, data: &[u8]) -> Result<()> {
        self.medium.write_at(self.data_at(at), data)
    }

    /// Writes metadata only.
    pub(crate) fn write_meta(&self, at: SlotAddr, meta: &[u8]) -> Result<()> {
        match &self.meta {
            Some(cache) => cache.write(self.meta_at(at), meta),
            None => Ok(()),
        }
    }

    /// Makes blocks of one chunk of a slot unwritten and gives their space back.
    pub(crate) fn erase(&self, at: SlotAddr, count: u64) -> Result<()> {
        self.medium.discard(self.data_at(at), count * BLOCK)?;
        self.write_meta(at, &NO_META[..count as usize * self.meta_size])
    }

    /// Makes blocks of a copy-on-write segment unwritten, if there is no metadata. Otherwise the
    /// metadata in memory marks them unwritten.
    pub(crate) fn erase_data(&self, at: SlotAddr, count: u64) -> Result<()> {
        match self.meta {
            Some(_) => Ok(()),
            None => self.medium.discard(self.data_at(at), count * BLOCK),
        }
    }

    /// Makes a whole slot read as unwritten, whatever it held. The slot must be settled before it
    /// is used.
    pub(crate) fn prepare(&self, slot: SlotNo) -> Result<()> {
        match &self.meta {
            Some(cache) => cache.discard(self.meta_at(slot.start()), self.segment_meta()),
            None => self.release_space(slot),
        }
    }

    /// Gives the space of a free slot back to the medium.
    pub(crate) fn release_space(&self, slot: SlotNo) -> Result<()> {
        self.medium.discard(self.data_at(slot.start()), SEGMENT_BLOCKS * BLOCK)?;
        match &self.meta {
            Some(cache) => cache.discard(self.meta_at(slot.start()), self.segment_meta()),
            None => Ok(()),
        }
    }

    /// Writes all metadata that is only in memory to the medium. Not synced.
    pub(crate) fn write_dirty_meta(&self) -> Result<()> {
        self.meta.as_ref().map_or(Ok(()), MetaCache::write_dirty)
    }

    /// Makes everything written so far durable.
    pub(crate) fn make_durable(&self) -> Result<()> {
        self.write_dirty_meta()?;
        self.sync()
    }

    /// Syncs the medium. A failed sync never counts as a full medium, whatever its error: it is
    /// unknown which writes were lost, so the disk cannot continue as after a refused write.
    pub(crate) fn sync(&self) -> Result<()> {
        self.medium.sync().map_err(|e| e.with_kind(Kind::Io))
    }

    /// Hits and misses of the metadata cache.
    pub(crate) fn meta_counts(&self) -> (u64, u64) {
        self.meta.as_ref().map_or((0, 0), MetaCache::counts)
    }

    /// The written ones among at most 64 blocks of a slot: one bit for each, the lowest for the
    /// first.
    pub(crate) fn written(&self, at: SlotAddr, count: u64) -> Result<u64> {
        if self.meta_size == 0 {
            // Only the ciphertext itself would tell. All blocks of a mapped segment count as
            // written.
            return Ok(u64::MAX);
        }
        let mut meta = [0; CHUNK_META];
        let meta = &mut meta[..count as usize * self.meta_size];
        self.read_meta(at, meta)?;
        let entries = meta.chunks_exact(self.meta_size).enumerate();
        Ok(entries.fold(0, |bits, (i, entry)| bits | u64::from(!is_zero(entry)) << i))
    }

    /// Bytes of metadata of a segment.
    fn segment_meta(&self) -> u64 {
        SEGMENT_BLOCKS * self.meta_size as u64
    }

    fn data_at(&self, at: SlotAddr) -> u64 {
        self.geometry.data_of(at.slot.get()) + at.index * BLOCK
    }

    fn meta_at(&self, at: SlotAddr) -> u64 {
        self.geometry.meta_of(at.slot.get()) + at.index * self.meta_size as u64
    }
}
