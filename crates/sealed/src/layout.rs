//! Where per-block metadata rests: the three layouts of paper 004 (Figure 2), behind one store of slots.
//!
//! The caller holds the chunk lock of whatever it touches. Metadata entries are 16 or 32 bytes at offsets that
//! are multiples of their size, so none straddles 512 bytes.

use crate::Params;
use crate::geometry::Geometry;
use crate::kv::KvStore;
use crate::meta_cache::MetaCache;
use lacuna_core::{BLOCK_SIZE, Budget, Kind, Result, SEGMENT_BLOCKS};
use lacuna_medium::Medium;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Where the metadata of a block is kept (paper 004, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All metadata of a segment after its data: the paper's *object end*. The default.
    SegmentEnd,
    /// Each block followed by its metadata: the paper's *unaligned*.
    Interleaved,
    /// In an embedded key-value store: the paper's *OMAP*.
    Kv,
}

impl Layout {
    /// All of them.
    pub const ALL: [Layout; 3] = [Layout::SegmentEnd, Layout::Interleaved, Layout::Kv];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::SegmentEnd => "segment-end",
            Layout::Interleaved => "interleaved",
            Layout::Kv => "kv",
        }
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Layout::SegmentEnd => 0,
            Layout::Interleaved => 1,
            Layout::Kv => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Layout> {
        Layout::ALL.into_iter().find(|l| l.code() == code)
    }
}

/// The slots on the medium, with their metadata.
pub(crate) struct Store {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) geometry: Geometry,
    meta_size: usize,
    meta: MetaPlace,
}

enum MetaPlace {
    None,
    SegmentEnd(MetaCache),
    Interleaved,
    Kv(KvStore),
}

impl Store {
    pub(crate) fn open(medium: Arc<dyn Medium>, params: &Params, budget: Budget) -> Result<Store> {
        let geometry = params.geometry();
        let meta_size = params.cipher.meta_size();
        let meta = match params.layout {
            _ if meta_size == 0 => MetaPlace::None,
            Layout::SegmentEnd => MetaPlace::SegmentEnd(MetaCache::new(budget)),
            Layout::Interleaved => MetaPlace::Interleaved,
            Layout::Kv => MetaPlace::Kv(KvStore::open(medium.clone(), geometry.kv, meta_size, budget)?),
        };
        Ok(Store { medium, geometry, meta_size, meta })
    }

    /// Reads ciphertext and metadata of consecutive blocks of a slot.
    pub(crate) fn read(&self, slot: u32, index: u64, data: &mut [u8], meta: &mut [u8]) -> Result<()> {
        if let MetaPlace::Interleaved = self.meta {
            return self.read_units(slot, index, data, Some(meta));
        }
        self.medium.read_at(self.data_at(slot, index), data)?;
        self.read_meta(slot, index, meta)
    }

    /// Reads ciphertext alone, for a copy-on-write segment, whose metadata is in memory.
    pub(crate) fn read_data(&self, slot: u32, index: u64, data: &mut [u8]) -> Result<()> {
        match self.meta {
            MetaPlace::Interleaved => self.read_units(slot, index, data, None),
            _ => self.medium.read_at(self.data_at(slot, index), data),
        }
    }

    /// Reads metadata alone.
    pub(crate) fn read_meta(&self, slot: u32, index: u64, meta: &mut [u8]) -> Result<()> {
        match &self.meta {
            MetaPlace::None => Ok(()),
            MetaPlace::SegmentEnd(cache) => cache.read(&*self.medium, self.meta_at(slot, index), meta),
            MetaPlace::Kv(kv) => kv.read(place(slot, index), meta),
            MetaPlace::Interleaved => {
                let mut data = vec![0; meta.len() / self.meta_size * BLOCK_SIZE];
                self.read_units(slot, index, &mut data, Some(meta))
            }
        }
    }

    /// Writes ciphertext and metadata of consecutive blocks of a slot.
    pub(crate) fn write(&self, slot: u32, index: u64, data: &[u8], meta: &[u8]) -> Result<()> {
        self.write_data(slot, index, data, meta)?;
        self.write_meta(slot, index, meta)
    }

    /// Writes ciphertext, and metadata only where it lies between the blocks: for a copy-on-write segment.
    pub(crate) fn write_data(&self, slot: u32, index: u64, data: &[u8], meta: &[u8]) -> Result<()> {
        match self.meta {
            MetaPlace::Interleaved => {
                let mut units = Vec::with_capacity(data.len() + meta.len());
                for (block, entry) in data.chunks_exact(BLOCK_SIZE).zip(meta.chunks_exact(self.meta_size)) {
                    units.extend_from_slice(block);
                    units.extend_from_slice(entry);
                }
                self.medium.write_at(self.data_at(slot, index), &units)
            }
            _ => self.medium.write_at(self.data_at(slot, index), data),
        }
    }

    /// Writes metadata alone where it lies apart from the blocks.
    pub(crate) fn write_meta(&self, slot: u32, index: u64, meta: &[u8]) -> Result<()> {
        match &self.meta {
            MetaPlace::None | MetaPlace::Interleaved => Ok(()),
            MetaPlace::SegmentEnd(cache) => cache.write(&*self.medium, self.meta_at(slot, index), meta),
            MetaPlace::Kv(kv) => kv.write(place(slot, index), meta),
        }
    }

    /// Makes blocks of a slot unwritten and gives their space back.
    pub(crate) fn erase(&self, slot: u32, index: u64, count: u64) -> Result<()> {
        self.medium.discard(self.data_at(slot, index), count * self.unit())?;
        self.write_meta(slot, index, &vec![0; count as usize * self.meta_size])
    }

    /// Makes the blocks of a copy-on-write segment unwritten where only the medium can say so (the metadata in memory says it
    /// elsewhere).
    pub(crate) fn erase_data(&self, slot: u32, index: u64, count: u64) -> Result<()> {
        match self.meta {
            MetaPlace::SegmentEnd(_) | MetaPlace::Kv(_) => Ok(()),
            MetaPlace::None | MetaPlace::Interleaved => {
                self.medium.discard(self.data_at(slot, index), count * self.unit())
            }
        }
    }

    /// Makes a slot read as unwritten throughout, whatever lay there. Must be settled before it is used.
    pub(crate) fn prepare(&self, slot: u32) -> Result<()> {
        match &self.meta {
            MetaPlace::SegmentEnd(cache) => {
                cache.discard(&*self.medium, self.meta_at(slot, 0), SEGMENT_BLOCKS * self.meta_size as u64)
            }
            MetaPlace::Kv(kv) => kv.write(place(slot, 0), &vec![0; SEGMENT_BLOCKS as usize * self.meta_size]),
            MetaPlace::None | MetaPlace::Interleaved => self.give_back(slot),
        }
    }

    /// Gives the space of a free slot back to the medium.
    pub(crate) fn give_back(&self, slot: u32) -> Result<()> {
        match &self.meta {
            MetaPlace::SegmentEnd(cache) => {
                self.medium.discard(self.data_at(slot, 0), SEGMENT_BLOCKS * BLOCK)?;
                let meta_len = SEGMENT_BLOCKS * self.meta_size as u64;
                cache.discard(&*self.medium, self.meta_at(slot, 0), meta_len)
            }
            _ => self.medium.discard(self.geometry.slot(slot), self.geometry.stride),
        }
    }

    /// Makes everything written so far durable.
    pub(crate) fn settle(&self) -> Result<()> {
        match &self.meta {
            MetaPlace::Kv(kv) => kv.commit()?,
            MetaPlace::SegmentEnd(cache) => cache.settle(&*self.medium)?,
            MetaPlace::None | MetaPlace::Interleaved => {}
        }
        self.sync()
    }

    /// Whether what is to be settled finds space. Errors: [`Kind::NoSpace`]; the store of the layout `kv`, which takes no
    /// more after an error, was not touched then.
    pub(crate) fn prepare_settling(&self) -> Result<()> {
        match &self.meta {
            MetaPlace::Kv(kv) => kv.prepare_growth(),
            MetaPlace::None | MetaPlace::SegmentEnd(_) | MetaPlace::Interleaved => Ok(()),
        }
    }

    /// Syncs the medium. A sync that fails never counts as a full medium, whatever it says: what was dropped is
    /// unknown, so nobody may go on as after a refused write.
    pub(crate) fn sync(&self) -> Result<()> {
        self.medium.sync().map_err(|e| e.with_kind(Kind::Io))
    }

    /// Hits and misses of the metadata cache.
    pub(crate) fn meta_counts(&self) -> (u64, u64) {
        match &self.meta {
            MetaPlace::SegmentEnd(cache) => cache.counts(),
            _ => (0, 0),
        }
    }

    /// Which of `count` blocks of a slot are written.
    pub(crate) fn written(&self, slot: u32, index: u64, count: u64) -> Result<Vec<bool>> {
        if self.meta_size == 0 {
            // Only the ciphertext itself would tell; a mapped segment counts as written.
            return Ok(vec![true; count as usize]);
        }
        let mut meta = vec![0; count as usize * self.meta_size];
        self.read_meta(slot, index, &mut meta)?;
        Ok(meta.chunks_exact(self.meta_size).map(|entry| !lacuna_crypto::is_zero(entry)).collect())
    }

    fn read_units(&self, slot: u32, index: u64, data: &mut [u8], meta: Option<&mut [u8]>) -> Result<()> {
        let unit = self.unit() as usize;
        let mut units = vec![0; data.len() / BLOCK_SIZE * unit];
        self.medium.read_at(self.data_at(slot, index), &mut units)?;
        for (from, to) in units.chunks_exact(unit).zip(data.chunks_exact_mut(BLOCK_SIZE)) {
            to.copy_from_slice(&from[..BLOCK_SIZE]);
        }
        if let Some(meta) = meta {
            for (from, to) in units.chunks_exact(unit).zip(meta.chunks_exact_mut(self.meta_size)) {
                to.copy_from_slice(&from[BLOCK_SIZE..]);
            }
        }
        Ok(())
    }

    /// Bytes from one block of a slot to the next.
    fn unit(&self) -> u64 {
        match self.meta {
            MetaPlace::Interleaved => BLOCK + self.meta_size as u64,
            _ => BLOCK,
        }
    }

    fn data_at(&self, slot: u32, index: u64) -> u64 {
        self.geometry.slot(slot) + index * self.unit()
    }

    fn meta_at(&self, slot: u32, index: u64) -> u64 {
        self.geometry.slot(slot) + SEGMENT_BLOCKS * BLOCK + index * self.meta_size as u64
    }
}

/// The key of a block in the key-value store.
fn place(slot: u32, index: u64) -> u64 {
    u64::from(slot) * SEGMENT_BLOCKS + index
}
