//! An open sealed disk: what it consists of, how it is created and opened, and the `Disk` that front ends see.

use crate::Layout;
use crate::cache::Cache;
use crate::commit::Committer;
use crate::cow_segment::CowSegments;
use crate::geometry::{MAP_ENTRY, Params};
use crate::journal::Journal;
use crate::layout::Store;
use crate::locks::ChunkLocks;
use crate::map::SegmentMap;
use crate::medium_full::MediumFull;
use crate::overlay::Overlay;
use crate::recovery;
use crate::stream::StreamDetector;
use crate::worker::{Signals, Worker};
use lacuna_core::{
    BLOCK_SIZE, BlockAddr, Budget, Disk, Error, Extent, FailStop, Kind, Result, SEGMENT_BLOCKS, Secret,
    Status, StatusItem, defect,
};
use lacuna_crypto::{BlockCipher, RandomSource, derive};
use lacuna_medium::Medium;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How to open a disk.
pub struct OpenOptions {
    /// Memory for all caches of the disk.
    pub budget: Budget,
    /// Refuse writes.
    pub read_only: bool,
    /// Acknowledge a write or discard when it is durable, rather than gather them until a flush.
    pub write_through: bool,
    /// Whether a thread commits in the background. Without it, the thread that fills the cache commits: the order of
    /// medium operations is then a function of the calls alone, as tests need it.
    pub background: bool,
    /// The source of all randomness.
    pub random: Arc<dyn RandomSource>,
}

/// What all threads of an open disk share.
pub(crate) struct Core {
    pub(crate) params: Params,
    pub(crate) store: Store,
    pub(crate) cipher: BlockCipher,
    pub(crate) map: SegmentMap,
    pub(crate) locks: ChunkLocks,
    pub(crate) cache: Cache,
    pub(crate) cow_segments: CowSegments,
    pub(crate) streams: StreamDetector,
    pub(crate) random: Arc<dyn RandomSource>,
    pub(crate) signals: Signals,
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    pub(crate) committer: Mutex<Committer>,
    pub(crate) full_commits: AtomicU64,
    pub(crate) read_only: bool,
    pub(crate) write_through: bool,
    pub(crate) background: bool,
    pub(crate) medium_full: MediumFull,
    health: FailStop,
}

/// Bounds on what is pending in memory, in bytes.
pub(crate) struct Limits {
    /// At this much in memory alone, writers wait.
    pub(crate) dirty: u64,
    /// At this much, the background commits.
    pub(crate) dirty_low: u64,
    /// At this much in the journal and not destaged, it is destaged.
    pub(crate) to_destage: u64,
    /// Blocks of data in one batch.
    pub(crate) batch_blocks: usize,
}

/// Counts for `status`.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) batches: AtomicU64,
    pub(crate) journal_bytes: AtomicU64,
    pub(crate) journal_used: AtomicU64,
    pub(crate) moves: AtomicU64,
    pub(crate) blocks_destaged: AtomicU64,
    pub(crate) retirements: AtomicU64,
    pub(crate) replayed: AtomicU64,
}

impl Core {
    pub(crate) fn committer(&self) -> MutexGuard<'_, Committer> {
        self.committer.lock().unwrap_or_else(|poisoned| {
            self.fail(defect());
            poisoned.into_inner()
        })
    }

    /// Enters fail-stop for good and gives the error back.
    pub(crate) fn fail(&self, e: Error) -> Error {
        let e = self.health.fail(e);
        self.signals.wake_writers();
        self.signals.wake_worker();
        e
    }

    /// The standing refusal after a failure on the write path.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.health.check()
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.health.cause()
    }
}

/// A sealed disk, open.
pub struct Sealed {
    core: Arc<Core>,
    worker: Mutex<Option<Worker>>,
}

impl Sealed {
    /// Lays a new disk on a medium, which must be as long as the geometry says. The header is the caller's.
    pub fn create(medium: &dyn Medium, params: &Params, master: &Secret<32>) -> Result<()> {
        let g = params.geometry();
        if medium.len() < g.medium_len() {
            return Err(Error::new(Kind::NoSpace, "the disk does not fit its medium")
                .found(format!("{} bytes", medium.len()))
                .expected(format!("{} bytes", g.medium_len())));
        }
        medium.discard(g.map, g.kv.0 - g.map)?;
        Self::reserve_map(medium, params)?;
        if g.kv.1 > 0 {
            medium.discard(g.kv.0, g.kv.1)?;
        }
        Journal::create(medium, g.journal, params.journal_len, master)?;
        medium.sync()
    }

    /// Takes the space of the map entries of a disk that is about to have these parameters, so that they can be written
    /// when the medium is full.
    pub fn reserve_map(medium: &dyn Medium, params: &Params) -> Result<()> {
        let g = params.geometry();
        // A medium that cannot take space ahead fails later, if at all.
        medium.allocate(g.map, u64::from(g.segments) * MAP_ENTRY).map(drop)
    }

    /// Opens a disk and repeats what the journal holds; read-only in memory alone. `master` is the level's key, `uuid`
    /// the header's.
    ///
    /// Errors: [`Kind::Corrupt`] if journal or parameters do not verify, and whatever the medium reports.
    pub fn open(
        medium: Arc<dyn Medium>,
        params: &Params,
        master: &Secret<32>,
        uuid: &[u8; 16],
        options: OpenOptions,
    ) -> Result<Sealed> {
        medium.forget_cached()?;
        let g = params.geometry();
        if medium.len() < g.medium_len() {
            return Err(Error::new(Kind::Corrupt, "the medium is shorter than its disk")
                .found(format!("{} bytes", medium.len()))
                .expected(format!("{} bytes", g.medium_len()))
                .remedy(format!(
                    "it was cut short: restore it from a backup; if there is none, `truncate -s {}` lets what is left be read",
                    g.medium_len()
                )));
        }
        let mut salt = [0; 16];
        options.random.fill(&mut salt);
        let journal = Journal::open(medium.clone(), g.journal, params.journal_len, master.clone(), salt)?;
        let map = SegmentMap::load(&*medium, g, derive(master, "sealed map", uuid))?;
        let slots: Arc<dyn Medium> = match params.layout {
            Layout::Kv if options.read_only => Arc::new(Overlay::over(medium)),
            _ => medium,
        };
        let usable = params.journal_len - Journal::reserve_of(params.journal_len);
        let dirty = (options.budget.get() / 8).min(usable / 4).max(64 * BLOCK_SIZE as u64);
        let core = Core {
            store: Store::open(slots, params, options.budget.share(3, 8))?,
            cipher: BlockCipher::new(params.cipher, master, uuid)?,
            map,
            locks: ChunkLocks::new(),
            cache: Cache::new(),
            cow_segments: CowSegments::default(),
            streams: StreamDetector::default(),
            random: options.random,
            signals: Signals::default(),
            limits: Limits {
                dirty,
                dirty_low: dirty / 4,
                to_destage: (options.budget.get() / 8).min(params.journal_len / 4),
                batch_blocks: (params.journal_len as usize / BLOCK_SIZE / 16).clamp(64, 512),
            },
            counters: Counters::default(),
            committer: Mutex::new(Committer::new(journal)),
            full_commits: AtomicU64::new(0),
            read_only: options.read_only,
            write_through: options.write_through,
            medium_full: MediumFull::default(),
            background: options.background && !options.read_only,
            health: FailStop::default(),
            params: *params,
        };
        recovery::recover(&core)?;
        let core = Arc::new(core);
        let worker = core.background.then(|| Worker::start(core.clone())).transpose()?;
        Ok(Sealed { core, worker: Mutex::new(worker) })
    }

    /// The parameters it was opened with.
    pub fn params(&self) -> &Params {
        &self.core.params
    }

    /// Whether the medium was found full when the disk was opened, and not everything is where it belongs since.
    pub fn is_medium_full(&self) -> bool {
        self.core.medium_full.is_so()
    }

    fn stop_worker(&self) {
        if let Some(worker) = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.core.signals.stop();
            worker.join();
        }
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        self.stop_worker();
    }
}

impl Disk for Sealed {
    fn blocks(&self) -> u64 {
        self.core.params.blocks
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.core.read(first.0, buf)
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.core.write(first.0, data)
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.core.discard(first.0, count)
    }

    fn flush(&self) -> Result<()> {
        if self.core.read_only { Ok(()) } else { self.core.flush() }
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.core.extents(first.0, count)
    }

    fn status(&self) -> Status {
        let c = &self.core;
        let (hits, misses) = c.store.meta_counts();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let item = |name, value, unit| StatusItem { name, value, unit };
        Status {
            items: vec![
                item("segments_mapped", c.map.mapped(), "segments"),
                item("segments", u64::from(c.store.geometry.segments), "segments"),
                item("dirty", c.cache.dirty_bytes(), "bytes"),
                item("shadows", c.cow_segments.len() as u64, "segments"),
                item("spare_homes", c.map.spare() as u64, "segments"),
                item("ring_used", count(&c.counters.journal_used), "bytes"),
                item("ring_batches", count(&c.counters.batches), "batches"),
                item("ring_written", count(&c.counters.journal_bytes), "bytes"),
                item("ring_retirements", count(&c.counters.retirements), "times"),
                item("sent_home", count(&c.counters.blocks_destaged), "blocks"),
                item("segments_moved", count(&c.counters.moves), "segments"),
                item("medium_full", u64::from(self.is_medium_full()), ""),
                item("batches_replayed", count(&c.counters.replayed), "batches"),
                item("metadata_cache_hits", hits, "pages"),
                item("metadata_cache_misses", misses, "pages"),
            ],
        }
    }

    fn close(&self) -> Result<()> {
        self.stop_worker();
        if self.core.read_only {
            return Ok(());
        }
        let closed = self.core.close();
        self.core.fail(lacuna_core::closed());
        closed
    }

    fn read_only(&self) -> bool {
        self.core.read_only
    }
}

impl Core {
    /// The written and unwritten runs of a range.
    fn extents(&self, first: u64, count: u64) -> Result<Vec<Extent>> {
        let mut runs: Vec<Extent> = vec![];
        let mut add = |written: bool, blocks: u64| match runs.last_mut() {
            Some(run) if run.written == written => run.blocks += blocks,
            _ => runs.push(Extent { blocks, written }),
        };
        let end = first + count;
        let mut at = first;
        while at < end {
            let part = (SEGMENT_BLOCKS - at % SEGMENT_BLOCKS).min(end - at);
            if self.is_untouched(at / SEGMENT_BLOCKS)? {
                add(false, part);
            } else {
                for written in self.written(at, part)? {
                    add(written, 1);
                }
            }
            at += part;
        }
        Ok(runs)
    }
}
