//! A sealed disk: creates and opens it, and implements the `Disk` of front ends.

use crate::access::{Access, StreamPolicy};
use crate::caches::cache::WriteCache;
use crate::counters::{Count, Counters};
use crate::durability::batch_builder::BatchBuilder;
use crate::durability::commit::{Committer, RecoveryEnd};
use crate::durability::destage::Destager;
use crate::durability::flush::Flusher;
use crate::durability::worker::CommitWorker;
use crate::geometry::{MAP_ENTRY, Params};
use crate::health::Health;
use crate::journal::Journal;
use crate::kept_writes::KeptWrites;
use crate::limits::Limits;
use crate::log::Log;
use crate::map::SegmentMap;
use crate::medium_full::MediumFull;
use crate::recovery::{ReplayIndex, adopt_kept};
use crate::sealer::Sealer;
use crate::segments::Segments;
use crate::segments::remapper::Remapper;
use crate::slot_store::SlotStore;
use lacuna_contracts::{BlockAddr, Budget, Disk, Error, Extent, Kind, Result, Secret, Status, StatusItem};
use lacuna_crypto::{BlockCipher, RandomSource, derive};
use lacuna_kept_memory::{KeptMemory, PoolLayout};
use lacuna_medium::Medium;
use std::sync::Arc;

/// How to open a disk.
pub struct OpenOptions {
    /// Memory for all caches of the disk.
    pub budget: Budget,
    /// Refuse writes.
    pub read_only: bool,
    /// Acknowledge a write or discard only when it is durable, rather than gather writes until a
    /// flush.
    pub write_through: bool,
    /// Whether a thread commits in the background. Without it, the thread that fills the cache
    /// commits, and the order of medium operations depends on the calls alone, as tests need.
    pub background: bool,
    /// The source of all randomness.
    pub random: Arc<dyn RandomSource>,
    /// Where acknowledged writes are until they are durable, of the layout that
    /// [`SealedDisk::kept_layout`] says; the memory of a predecessor is taken over. None: memory of
    /// this process alone.
    pub kept: Option<KeptMemory>,
    /// The pages of the slots that the system has cached.
    pub cached: CachedSlots,
}

/// What an opening does with pages of the slots that the system has cached. Pages of the header,
/// the journal and the map are dropped in any case, so that these are read from the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedSlots {
    /// It drops them: some may be in the cache alone, after a sync that failed.
    Dropped,
    /// It keeps them: the caller knows that no writer has changed the medium since the disk was
    /// closed without an error. They are dropped all the same if the journal is not empty, as after
    /// a crash.
    Kept,
}

/// An open sealed disk.
pub struct SealedDisk {
    params: Params,
    read_only: bool,
    write_through: bool,
    access: Access,
    worker: Arc<CommitWorker>,
    flusher: Arc<Flusher>,
    medium_full: Arc<MediumFull>,
    health: Arc<Health>,
    // Only for `status`.
    cache: Arc<WriteCache>,
    segments: Arc<Segments>,
    store: Arc<SlotStore>,
    counters: Arc<Counters>,
    journal_damaged: bool,
}

impl SealedDisk {
    /// Lays a new disk on a medium, which must be as long as the geometry requires. The caller
    /// writes the header.
    pub fn create(medium: &dyn Medium, params: &Params, master: &Secret<32>) -> Result<()> {
        let g = params.geometry();
        if medium.len() < g.end() {
            return Err(Error::new(Kind::NoSpace, "the disk does not fit its medium")
                .found(format!("{} bytes", medium.len()))
                .expected(format!("{} bytes", g.end())));
        }
        medium.discard(g.map, g.map_end - g.map)?;
        Self::reserve_map(medium, params)?;
        Journal::create(medium, g.journal, params.journal_len, master)?;
        medium.sync()
    }

    /// Allocates the space of the map entries of a disk that is about to have these parameters, so
    /// that they can be written when the medium is full.
    pub fn reserve_map(medium: &dyn Medium, params: &Params) -> Result<()> {
        let g = params.geometry();
        // A medium that cannot allocate ahead fails later, if at all.
        medium.allocate(g.map, u64::from(g.segments) * MAP_ENTRY).map(drop)
    }

    /// The layout of the memory for acknowledged writes of a disk that is opened with these
    /// options.
    pub fn kept_layout(params: &Params, budget: Budget) -> Vec<PoolLayout> {
        KeptWrites::layout(params, &Limits::of(params, budget, true))
    }

    /// Opens a disk and replays its journal; read-only, only in memory. `master` is the level's
    /// key, `uuid` the header's.
    ///
    /// Errors: [`Kind::Corrupt`] if journal or parameters do not verify, [`Kind::RolledBack`] if
    /// the disk has grown since it had these parameters and has data there, and errors of the
    /// medium.
    pub fn open(
        medium: Arc<dyn Medium>,
        params: &Params,
        master: &Secret<32>,
        uuid: &[u8; 16],
        options: OpenOptions,
    ) -> Result<SealedDisk> {
        Self::open_or_rescue(medium, params, master, uuid, options, false)
    }

    /// Opens a damaged disk for rescue, read-only: the verifiable part of the journal is replayed.
    /// Blocks that were only in the rest of it read as their older versions.
    ///
    /// Errors: those of [`SealedDisk::open`], except for a damaged journal.
    pub fn open_to_rescue(
        medium: Arc<dyn Medium>,
        params: &Params,
        master: &Secret<32>,
        uuid: &[u8; 16],
        options: OpenOptions,
    ) -> Result<SealedDisk> {
        let options = OpenOptions { read_only: true, ..options };
        Self::open_or_rescue(medium, params, master, uuid, options, true)
    }

    fn open_or_rescue(
        medium: Arc<dyn Medium>,
        params: &Params,
        master: &Secret<32>,
        uuid: &[u8; 16],
        options: OpenOptions,
        rescue: bool,
    ) -> Result<SealedDisk> {
        let g = params.geometry();
        match options.cached {
            CachedSlots::Dropped => medium.forget_cached()?,
            CachedSlots::Kept => medium.forget_cached_outside(g.data..g.end())?,
        }
        if medium.len() < g.end() {
            return Err(Error::new(Kind::Corrupt, "the medium is shorter than its disk")
                .found(format!("{} bytes", medium.len()))
                .expected(format!("{} bytes", g.end()))
                .hint(
                    "restore it from a backup; without one, make it as long as it was, and the rest can be read",
                ));
        }
        let mut random = [0; 16];
        options.random.fill(&mut random);
        let mut journal =
            Journal::open(medium.clone(), g.journal, params.journal_len, master.clone(), random, rescue)?;
        let map = SegmentMap::load(&*medium, params, derive(master, "sealed map", uuid), options.read_only)?;
        let replayed = ReplayIndex::of(&mut journal, &map, params)?;
        if options.cached == CachedSlots::Kept && replayed.batches > 0 {
            // The medium does not say that the disk was closed well.
            medium.forget_cached()?;
        }
        let store = Arc::new(SlotStore::new(medium, params, options.budget.share(3, 8)));
        let cipher = BlockCipher::new(params.cipher, master, uuid)?;
        Self::assemble(params, options, journal, map, store, cipher, replayed)
    }

    /// Assembles the parts from the bottom up, and applies the replayed journal.
    fn assemble(
        params: &Params,
        options: OpenOptions,
        journal: Journal,
        map: SegmentMap,
        store: Arc<SlotStore>,
        cipher: BlockCipher,
        replayed: ReplayIndex,
    ) -> Result<SealedDisk> {
        let OpenOptions { read_only, write_through, .. } = options;
        let journal_damaged = journal.is_damaged();
        let background = options.background && !read_only;
        let limits = Limits::of(params, options.budget, background);
        let kept = KeptWrites::of(options.kept, params, &limits)?;
        let (health, counters) = (Arc::<Health>::default(), Arc::<Counters>::default());
        let cache = Arc::new(WriteCache::new(kept.clone()));
        let sealer = Arc::new(Sealer::new(cipher, options.random));
        let segments = Arc::new(Segments::new(map, kept.clone()));
        counters.set(Count::Replayed, replayed.batches);
        let medium_full = Arc::new(MediumFull::new(cache.clone(), health.clone(), limits.batch_blocks));

        // Slots of streams are taken before the replay needs any.
        let adopted = !read_only && adopt_kept(&kept, params, &replayed, &segments, &cache)?;
        let parts = CommitParts { cache, segments, store, sealer, counters, health, medium_full };
        let mut committer = parts.committer(journal, limits, background);
        let end = match (read_only, background) {
            (true, _) => RecoveryEnd::Never,
            (false, true) => RecoveryEnd::FirstCommit,
            (false, false) => RecoveryEnd::Opening,
        };
        if adopted { committer.recover_adopted(replayed) } else { committer.recover(replayed, end) }?;
        let CommitParts { cache, segments, store, sealer, counters, health, medium_full } = parts;

        let flusher = Arc::new(Flusher::new(committer, health.clone()));
        let worker = CommitWorker::new(
            flusher.clone(),
            cache.clone(),
            segments.clone(),
            health.clone(),
            medium_full.clone(),
            limits,
            background,
        );
        let worker = Arc::new(worker);
        worker.start()?;
        let access = Access::new(
            params.blocks,
            cache.clone(),
            segments.clone(),
            store.clone(),
            sealer,
            health.clone(),
            limits.cow_segments,
        );
        Ok(SealedDisk {
            params: *params,
            read_only,
            write_through,
            access,
            worker,
            flusher,
            medium_full,
            health,
            cache,
            segments,
            store,
            counters,
            journal_damaged,
        })
    }

    /// Whether a disk that was opened for rescue has a damaged journal.
    pub fn is_journal_damaged(&self) -> bool {
        self.journal_damaged
    }

    /// The parameters it was opened with.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Handles a request that the medium refused: ends the open streams, so that later writes go to
    /// the journal.
    fn unless_refused(&self, done: Result<()>) -> Result<()> {
        let Err(e) = done else { return Ok(()) };
        if self.medium_full.enter(&e)
            && let Err(flushed) = self.flusher.flush()
            && !flushed.changed_nothing()
        {
            return Err(flushed);
        }
        Err(e)
    }

    /// Whether the medium was full, or a call failed that changed nothing, and not everything has
    /// been destaged since.
    pub fn is_medium_full(&self) -> bool {
        self.medium_full.is_full()
    }
}

/// The parts that a commit uses.
struct CommitParts {
    cache: Arc<WriteCache>,
    segments: Arc<Segments>,
    store: Arc<SlotStore>,
    sealer: Arc<Sealer>,
    counters: Arc<Counters>,
    health: Arc<Health>,
    medium_full: Arc<MediumFull>,
}

impl CommitParts {
    /// Makes a committer from them. `background`: whether a thread makes checkpoints.
    fn committer(&self, journal: Journal, limits: Limits, background: bool) -> Committer {
        let CommitParts { cache, segments, store, sealer, counters, health, medium_full } = self;
        let log = Log::new(journal, cache.clone(), counters.clone());
        let mover =
            Remapper::new(cache.clone(), segments.clone(), store.clone(), sealer.clone(), counters.clone());
        let second_handle = match background.then(|| store.medium().reopened()) {
            Some(Ok(handle)) => handle,
            // Checkpoints hold the commit lock. The disk works all the same, and its status says
            // so.
            Some(Err(_)) | None => None,
        };
        counters.set(Count::BesideCommits, u64::from(second_handle.is_some()));
        let destager = Destager::new(
            mover,
            cache.clone(),
            segments.clone(),
            store.clone(),
            counters.clone(),
            health.clone(),
            second_handle,
        );
        let gatherer = BatchBuilder::new(cache.clone(), segments.clone(), store.clone(), sealer.clone());
        Committer::new(log, destager, gatherer, medium_full.clone(), segments.clone(), health.clone(), limits)
    }
}

impl Drop for SealedDisk {
    fn drop(&mut self) {
        self.worker.stop();
    }
}

impl Disk for SealedDisk {
    fn blocks(&self) -> u64 {
        self.params.blocks
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.access.read(first, buf)
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        if self.is_medium_full() {
            let put = |at, piece: &[u8]| self.access.write(at, piece, StreamPolicy::None, &|| Ok(()));
            return self.flusher.write_on_full_medium(first, data, put);
        }
        let streams = if self.write_through { StreamPolicy::WholeSegments } else { StreamPolicy::Any };
        let written = self.access.write(first, data, streams, &|| self.worker.wait_for_spare());
        self.unless_refused(written)?;
        if self.write_through { self.flusher.flush() } else { self.worker.keep_within_limits() }
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        let discarded = self.access.discard(first, count);
        self.unless_refused(discarded)?;
        self.medium_full.note_discard();
        if self.write_through { self.flusher.flush() } else { self.worker.keep_within_limits() }
    }

    fn flush(&self) -> Result<()> {
        if self.read_only { Ok(()) } else { self.flusher.flush() }
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.access.extents(first, count)
    }

    fn status(&self) -> Status {
        let (hits, misses) = self.store.meta_counts();
        let count = |count| self.counters.get(count);
        let item = StatusItem::new;
        let items = vec![
            item("segments_mapped", self.segments.mapped(), "segments"),
            item("segments", u64::from(self.params.geometry().segments), "segments"),
            item("dirty", self.cache.dirty_bytes(), "bytes"),
            item("copy_on_write_segments", self.segments.count_cow_segments() as u64, "segments"),
            item("spare_slots", self.segments.spare() as u64, "segments"),
            item("journal_used", count(Count::JournalUsed), "bytes"),
            item("journal_batches", count(Count::Batches), "batches"),
            item("journal_written", count(Count::JournalBytes), "bytes"),
            item("journal_retirements", count(Count::Retirements), "times"),
            item("checkpoints_beside_commits", count(Count::BesideCommits), ""),
            item("destaged", count(Count::Destaged), "blocks"),
            item("segments_moved", count(Count::Moves), "segments"),
            item("medium_full", u64::from(self.is_medium_full()), ""),
            item("batches_replayed", count(Count::Replayed), "batches"),
            item("metadata_cache_hits", hits, "pages"),
            item("metadata_cache_misses", misses, "pages"),
        ];
        Status { items }
    }

    fn close(&self) -> Result<()> {
        self.worker.stop();
        if self.read_only {
            return Ok(());
        }
        let closed = self.flusher.committer().close();
        self.health.fail(lacuna_contracts::closed_error());
        closed
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }
}
