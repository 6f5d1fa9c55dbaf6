//! The slots on the medium: ciphertext, and the metadata where the layout keeps it.
//!
//! The caller holds the chunk lock of whatever it touches. Metadata entries are 16 or 32 bytes at offsets that
//! are multiples of their size, so none straddles 512 bytes.

use crate::address::{SlotAddr, SlotNo};
use crate::geometry::{CHUNK_META, Geometry, NO_META, Params};
use crate::kv::KvStore;
use crate::layout::Layout;
use crate::meta_cache::MetaCache;
use crate::scratch::with_scratch;
use lacuna_core::{BLOCK_SIZE, Budget, Kind, Result, SEGMENT_BLOCKS};
use lacuna_crypto::is_zero;
use lacuna_medium::Medium;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The slots of a disk with their metadata.
pub(crate) struct Store {
    medium: Arc<dyn Medium>,
    geometry: Geometry,
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
            Layout::SegmentEnd => MetaPlace::SegmentEnd(MetaCache::new(medium.clone(), budget)),
            Layout::Interleaved => MetaPlace::Interleaved,
            Layout::Kv => MetaPlace::Kv(KvStore::open(medium.clone(), geometry.kv, meta_size, budget)?),
        };
        Ok(Store { medium, geometry, meta_size, meta })
    }

    /// The medium under the slots.
    pub(crate) fn medium(&self) -> &dyn Medium {
        &*self.medium
    }

    /// Bytes of metadata per block.
    pub(crate) fn meta_size(&self) -> usize {
        self.meta_size
    }

    /// Lets the medium fetch consecutive blocks of a slot, and the metadata from there to the end of the slot: the requests of a
    /// reader who goes on need it, and each page that is missing would hold one up.
    pub(crate) fn will_read(&self, at: SlotAddr, count: u64) {
        self.medium.will_read(self.data_at(at), count * self.unit());
        if let MetaPlace::SegmentEnd(_) = self.meta {
            let left = (SEGMENT_BLOCKS - at.index) * self.meta_size as u64;
            self.medium.will_read(self.meta_at(at), left);
        }
    }

    /// Reads ciphertext and metadata of consecutive blocks of a slot.
    pub(crate) fn read(&self, at: SlotAddr, data: &mut [u8], meta: &mut [u8]) -> Result<()> {
        if let MetaPlace::Interleaved = self.meta {
            return self.read_units(at, data.len() / BLOCK_SIZE, Some(data), Some(meta));
        }
        self.medium.read_at(self.data_at(at), data)?;
        self.read_meta(at, meta)
    }

    /// Reads ciphertext alone, for a copy-on-write segment, whose metadata is in memory.
    pub(crate) fn read_data(&self, at: SlotAddr, data: &mut [u8]) -> Result<()> {
        match self.meta {
            MetaPlace::Interleaved => self.read_units(at, data.len() / BLOCK_SIZE, Some(data), None),
            _ => self.medium.read_at(self.data_at(at), data),
        }
    }

    fn read_meta(&self, at: SlotAddr, meta: &mut [u8]) -> Result<()> {
        match &self.meta {
            MetaPlace::None => Ok(()),
            MetaPlace::SegmentEnd(cache) => cache.read(self.meta_at(at), meta),
            MetaPlace::Kv(kv) => kv.read(kv_key(at), meta),
            MetaPlace::Interleaved => self.read_units(at, meta.len() / self.meta_size, None, Some(meta)),
        }
    }

    /// Writes ciphertext and metadata of consecutive blocks of a slot.
    pub(crate) fn write(&self, at: SlotAddr, data: &[u8], meta: &[u8]) -> Result<()> {
        self.write_data(at, data, meta)?;
        self.write_meta(at, meta)
    }

    /// Writes ciphertext, and metadata only where it lies between the blocks: for a copy-on-write segment.
    pub(crate) fn write_data(&self, at: SlotAddr, data: &[u8], meta: &[u8]) -> Result<()> {
        let MetaPlace::Interleaved = self.meta else {
            return self.medium.write_at(self.data_at(at), data);
        };
        let unit = self.unit() as usize;
        with_scratch(data.len() + meta.len(), |units| {
            let blocks = data.chunks_exact(BLOCK_SIZE).zip(meta.chunks_exact(self.meta_size));
            for (unit, (block, entry)) in units.chunks_exact_mut(unit).zip(blocks) {
                unit[..BLOCK_SIZE].copy_from_slice(block);
                unit[BLOCK_SIZE..].copy_from_slice(entry);
            }
            self.medium.write_at(self.data_at(at), units)
        })
    }

    /// Writes metadata alone where it lies apart from the blocks.
    pub(crate) fn write_meta(&self, at: SlotAddr, meta: &[u8]) -> Result<()> {
        match &self.meta {
            MetaPlace::None | MetaPlace::Interleaved => Ok(()),
            MetaPlace::SegmentEnd(cache) => cache.write(self.meta_at(at), meta),
            MetaPlace::Kv(kv) => kv.write(kv_key(at), meta),
        }
    }

    /// Makes blocks of one chunk of a slot unwritten and gives their space back.
    pub(crate) fn erase(&self, at: SlotAddr, count: u64) -> Result<()> {
        self.medium.discard(self.data_at(at), count * self.unit())?;
        self.write_meta(at, &NO_META[..count as usize * self.meta_size])
    }

    /// Makes the blocks of a copy-on-write segment unwritten where only the medium can say so (the metadata in memory says it
    /// elsewhere).
    pub(crate) fn erase_data(&self, at: SlotAddr, count: u64) -> Result<()> {
        match self.meta {
            MetaPlace::SegmentEnd(_) | MetaPlace::Kv(_) => Ok(()),
            MetaPlace::None | MetaPlace::Interleaved => {
                self.medium.discard(self.data_at(at), count * self.unit())
            }
        }
    }

    /// Makes a slot read as unwritten throughout, whatever lay there. Must be settled before it is used.
    pub(crate) fn prepare(&self, slot: SlotNo) -> Result<()> {
        match &self.meta {
            MetaPlace::SegmentEnd(cache) => cache.discard(self.meta_at(slot.start()), self.segment_meta()),
            MetaPlace::Kv(kv) => kv.write(kv_key(slot.start()), &vec![0; self.segment_meta() as usize]),
            MetaPlace::None | MetaPlace::Interleaved => self.give_back(slot),
        }
    }

    /// Gives the space of a free slot back to the medium.
    pub(crate) fn give_back(&self, slot: SlotNo) -> Result<()> {
        match &self.meta {
            MetaPlace::SegmentEnd(cache) => {
                self.medium.discard(self.data_at(slot.start()), SEGMENT_BLOCKS * BLOCK)?;
                cache.discard(self.meta_at(slot.start()), self.segment_meta())
            }
            _ => self.medium.discard(self.geometry.slot(slot), self.geometry.stride),
        }
    }

    /// Makes everything written so far durable.
    pub(crate) fn settle(&self) -> Result<()> {
        match &self.meta {
            MetaPlace::Kv(kv) => kv.commit()?,
            MetaPlace::SegmentEnd(cache) => cache.settle()?,
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

    /// Whether an error of a write ends all use of it.
    pub(crate) fn ends_with_an_error(&self) -> bool {
        matches!(self.meta, MetaPlace::Kv(_))
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

    /// Which of at most 64 blocks of a slot are written: a bit for each, the first the lowest.
    pub(crate) fn written(&self, at: SlotAddr, count: u64) -> Result<u64> {
        if self.meta_size == 0 {
            // Only the ciphertext itself would tell; a mapped segment counts as written.
            return Ok(u64::MAX);
        }
        let mut meta = [0; CHUNK_META];
        let meta = &mut meta[..count as usize * self.meta_size];
        self.read_meta(at, meta)?;
        let entries = meta.chunks_exact(self.meta_size).enumerate();
        Ok(entries.fold(0, |bits, (i, entry)| bits | u64::from(!is_zero(entry)) << i))
    }

    fn read_units(
        &self,
        at: SlotAddr,
        count: usize,
        data: Option<&mut [u8]>,
        meta: Option<&mut [u8]>,
    ) -> Result<()> {
        let unit = self.unit() as usize;
        with_scratch(count * unit, |units| {
            self.medium.read_at(self.data_at(at), units)?;
            let units = units.chunks_exact(unit);
            for (from, to) in
                units.clone().zip(data.into_iter().flat_map(|data| data.chunks_exact_mut(BLOCK_SIZE)))
            {
                to.copy_from_slice(&from[..BLOCK_SIZE]);
            }
            for (from, to) in
                units.zip(meta.into_iter().flat_map(|meta| meta.chunks_exact_mut(self.meta_size)))
            {
                to.copy_from_slice(&from[BLOCK_SIZE..]);
            }
            Ok(())
        })
    }

    /// Bytes from one block of a slot to the next.
    fn unit(&self) -> u64 {
        match self.meta {
            MetaPlace::Interleaved => BLOCK + self.meta_size as u64,
            _ => BLOCK,
        }
    }

    /// Bytes of metadata of a segment.
    fn segment_meta(&self) -> u64 {
        SEGMENT_BLOCKS * self.meta_size as u64
    }

    fn data_at(&self, at: SlotAddr) -> u64 {
        self.geometry.slot(at.slot) + at.index * self.unit()
    }

    fn meta_at(&self, at: SlotAddr) -> u64 {
        self.geometry.slot(at.slot) + SEGMENT_BLOCKS * BLOCK + at.index * self.meta_size as u64
    }
}

/// The key of a block in the key-value store.
fn kv_key(at: SlotAddr) -> u64 {
    u64::from(at.slot.get()) * SEGMENT_BLOCKS + at.index
}
