//! The memory as a whole: a page that describes it, and its pools.

use crate::layout::{PoolLayout, PoolPlace};
use crate::mapping::Mapping;
use crate::pool::KeptPool;
use lacuna_contracts::{Error, Kind, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"LACKEPT1");
/// Words of the first page before the words of the pools: the magic, the number of pools, the
/// owner.
const HEAD_WORDS: usize = 6;
/// Words of the first page for each pool: records, words, bytes, and the records ever taken.
const POOL_WORDS: usize = 4;
const MAX_POOLS: usize = (PAGE / 8 - HEAD_WORDS) / POOL_WORDS;

/// Memory that outlives the process that uses it. A clone is the same memory.
#[derive(Clone)]
pub struct KeptMemory {
    file: Option<Arc<File>>,
    pools: Vec<Arc<KeptPool>>,
    /// Whether this process has left the memory to a successor. `None`: there is no successor.
    left: Option<Arc<AtomicBool>>,
    #[cfg(feature = "simulation")]
    mapping: Arc<Mapping>,
    #[cfg(feature = "simulation")]
    head: (Vec<PoolLayout>, [u8; 32]),
}

impl KeptMemory {
    /// Memory that ends with this process.
    pub fn anonymous(pools: &[PoolLayout]) -> Result<KeptMemory> {
        Self::in_this_process(&[0; 32], pools, false)
    }

    /// Memory of this process with a successor that a test simulates
    /// ([`KeptMemory::as_if_died`]).
    #[cfg(feature = "simulation")]
    pub fn simulated(pools: &[PoolLayout]) -> Result<KeptMemory> {
        Self::in_this_process(&[0; 32], pools, true)
    }

    fn in_this_process(owner: &[u8; 32], pools: &[PoolLayout], has_successor: bool) -> Result<KeptMemory> {
        let (mapping, places) = own_pages(owner, pools)?;
        Ok(Self::of(None, mapping, places, owner, has_successor))
    }

    /// Memory that a successor can adopt, if another process keeps a copy of its descriptor.
    /// `owner` identifies the disk.
    pub fn shared(owner: &[u8; 32], pools: &[PoolLayout]) -> Result<KeptMemory> {
        let failed = |e: rustix::io::Errno| Error::io("cannot make memory that outlives a server", &e.into());
        let (places, len) = places(pools);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("lacuna-kept", flags).map_err(failed)?);
        ftruncate(&file, len as u64).map_err(failed)?;
        // Memory that became shorter would end a process that uses it.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(failed)?;
        let mapping = Mapping::of_file(&file, len)?;
        write_head(&mapping, pools, owner);
        Ok(Self::of(Some(file), mapping, places, owner, true))
    }

    /// The memory of a predecessor, which must have ended.
    ///
    /// Errors: [`Kind::Changed`] if it has another version, owner or layout.
    pub fn adopt(file: File, owner: &[u8; 32], pools: &[PoolLayout]) -> Result<KeptMemory> {
        let failed = |e: std::io::Error| Error::io("cannot adopt the memory of the last server", &e);
        let (places, len) = places(pools);
        let seals = fcntl_get_seals(&file).map_err(|e| failed(e.into()))?;
        let found = file.metadata().map_err(failed)?.len();
        if !seals.contains(SealFlags::SHRINK) || found != len as u64 {
            return Err(not_ours().found(format!("{found} bytes")).expected(format!("{len} bytes, sealed")));
        }
        let mapping = Mapping::of_file(&file, len)?;
        if !has_head(&mapping, pools, owner) {
            return Err(not_ours()
                .found("another head")
                .expected("the head that this program writes for this disk"));
        }
        Ok(Self::of(Some(file), mapping, places, owner, true))
    }

    #[cfg_attr(not(feature = "simulation"), allow(unused_variables))]
    fn of(
        file: Option<File>,
        mapping: Mapping,
        places: Vec<PoolPlace>,
        owner: &[u8; 32],
        has_successor: bool,
    ) -> KeptMemory {
        let (mapping, left) = (Arc::new(mapping), Arc::<AtomicBool>::default());
        #[cfg(feature = "simulation")]
        let head = (places.iter().map(|place| place.layout).collect(), *owner);
        let pool = |place| Arc::new(KeptPool::new(mapping.clone(), place, left.clone()));
        let pools = places.into_iter().map(pool).collect();
        KeptMemory {
            file: file.map(Arc::new),
            pools,
            left: has_successor.then_some(left),
            #[cfg(feature = "simulation")]
            mapping,
            #[cfg(feature = "simulation")]
            head,
        }
    }

    /// The file of shared memory. Another process keeps a copy of its descriptor.
    pub fn file(&self) -> Option<&File> {
        self.file.as_deref()
    }

    /// A pool, by its place in the layout.
    pub fn pool(&self, at: usize) -> &Arc<KeptPool> {
        &self.pools[at]
    }

    /// Leaves the memory as a whole to a successor, because this process ends its use of the disk
    /// with writes that it could not make durable: from now on it publishes, withdraws and wipes no
    /// record, and takes none. A disk thus calls this at its end, or when its opening fails. Memory
    /// without a successor stays in use, so that its records are wiped.
    pub fn leave_to_successor(&self) {
        self.left.iter().for_each(|left| left.store(true, Ordering::Release));
    }

    /// Calls `observer` before each record is published or withdrawn, so that a test can let the
    /// process die there.
    #[cfg(feature = "simulation")]
    pub fn observe_changes(&self, observer: impl Fn() + Send + Sync + 'static) {
        let observer: Arc<dyn Fn() + Send + Sync> = Arc::new(observer);
        self.pools.iter().for_each(|pool| pool.observe_changes(observer.clone()));
    }

    /// The memory as a successor would adopt it if this process died now. Nothing else may write to
    /// it meanwhile.
    #[cfg(feature = "simulation")]
    pub fn as_if_died(&self) -> Result<KeptMemory> {
        let (pools, owner) = &self.head;
        let (mapping, places) = own_pages(owner, pools)?;
        for place in &places {
            let reached = self.mapping.word(place.reached).load(Ordering::Acquire);
            mapping.word(place.reached).store(reached, Ordering::Release);
            for index in 0..(reached as u32) {
                let words = place.words_of(index);
                let count = words.len() / 8;
                let (from, to) = (self.mapping.words(words.start, count), mapping.words(words.start, count));
                for (from, to) in from.iter().zip(to) {
                    to.store(from.load(Ordering::Acquire), Ordering::Release);
                }
                mapping.copy_bytes(&self.mapping, place.bytes_of(index));
            }
        }
        Ok(Self::of(None, mapping, places, owner, true))
    }
}

/// New pages of this process alone, with their head, and the places of the pools.
fn own_pages(owner: &[u8; 32], pools: &[PoolLayout]) -> Result<(Mapping, Vec<PoolPlace>)> {
    let (places, len) = places(pools);
    let mapping = Mapping::anonymous(len)?;
    write_head(&mapping, pools, owner);
    Ok((mapping, places))
}

fn not_ours() -> Error {
    Error::new(Kind::Changed, "the memory of the last server does not belong to this disk as it is now")
        .hint("writes that were not flushed are lost; check the file system that lies on the disk")
}

/// The places of pools, and the length of the memory.
fn places(pools: &[PoolLayout]) -> (Vec<PoolPlace>, usize) {
    assert!(pools.len() <= MAX_POOLS, "too many pools");
    let mut end = PAGE;
    let mut take = |len: usize| {
        let start = end;
        end += len.next_multiple_of(PAGE);
        start
    };
    let place = |(at, layout): (usize, &PoolLayout)| {
        let records = layout.records as usize;
        PoolPlace {
            layout: *layout,
            reached: 8 * (HEAD_WORDS + at * POOL_WORDS + 3),
            words: take(records * 8 * (1 + layout.words as usize)),
            bytes: take(records * layout.bytes as usize),
        }
    };
    let places = pools.iter().enumerate().map(place).collect();
    (places, end)
}

/// The words of the first page, without the counts of records.
fn head(pools: &[PoolLayout], owner: &[u8; 32]) -> Vec<(usize, u64)> {
    let mut words = vec![(0, MAGIC), (1, pools.len() as u64)];
    let owner = owner.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    words.extend((2..).zip(owner));
    for (pool, layout) in pools.iter().enumerate() {
        let at = HEAD_WORDS + pool * POOL_WORDS;
        let sizes = [layout.records, layout.words, layout.bytes];
        words.extend((at..).zip(sizes.map(u64::from)));
    }
    words
}

fn write_head(mapping: &Mapping, pools: &[PoolLayout], owner: &[u8; 32]) {
    for (at, word) in head(pools, owner) {
        mapping.word(8 * at).store(word, Ordering::Release);
    }
}

fn has_head(mapping: &Mapping, pools: &[PoolLayout], owner: &[u8; 32]) -> bool {
    head(pools, owner).iter().all(|(at, word)| mapping.word(8 * at).load(Ordering::Acquire) == *word)
}

#[cfg(test)]
mod tests;
