//! An open sealed disk on objects: what it consists of, how it is created and opened, and the `Disk` that front
//! ends see.

use super::buffers::{Buffers, Transit};
use super::cache::Cache;
use super::chain::ChainKey;
use super::layouts::placement;
use super::placement::Placement;
use super::read::segments;
use super::schedule::Schedule;
use super::seal::SealPlace;
use super::snapshot_ops;
use super::snapshots::Snapshots;
use super::version_table::{VersionTable, VersionTableOptions};
use super::writers::Writers;
use super::{ObjectParams, Stores};
use lacuna_core::{
    BLOCK_SIZE, BlockAddr, Budget, Disk, Error, Extent, FailStop, Result, SEGMENT_BLOCKS, Secret, Status,
    StatusItem, closed,
};
use lacuna_crypto::{BlockCipher, RandomSource};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// How to open a disk.
pub struct ObjectOptions {
    /// Memory for all caches of the disk.
    pub budget: Budget,
    /// Refuse writes.
    pub read_only: bool,
    /// Whether threads write in the background. Without them, the thread that fills the cache writes: the order of
    /// transactions is then a function of the calls alone, as tests need it.
    pub background: bool,
    /// Whether every write is durable when it returns.
    pub write_through: bool,
    /// Open the disk as it was at the snapshot of this name, read-only.
    pub snapshot: Option<String>,
    /// The source of all randomness.
    pub random: Arc<dyn RandomSource>,
}

/// What all threads of an open disk share.
pub(crate) struct Core {
    pub(crate) params: ObjectParams,
    pub(crate) stores: Stores,
    pub(crate) cipher: BlockCipher,
    pub(crate) placement: Box<dyn Placement>,
    pub(crate) cache: Cache,
    pub(crate) schedule: Schedule,
    pub(crate) buffers: Buffers,
    /// For transactions out of the cache.
    pub(crate) transit: Transit,
    /// Only with a cipher that authenticates.
    pub(crate) version_table: Option<VersionTable>,
    pub(crate) snapshots: Snapshots,
    pub(crate) random: Arc<dyn RandomSource>,
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    /// Shared by calls that write; alone while the disk is frozen.
    pub(crate) calls: RwLock<()>,
    /// When the version table was written last, in milliseconds of the schedule's clock.
    pub(crate) checkpointed: AtomicU64,
    pub(crate) read_only: bool,
    pub(crate) background: bool,
    pub(crate) write_through: bool,
    /// The number of the snapshot that this is a view of.
    pub(crate) view: Option<u32>,
    keys: (Secret<32>, [u8; 16]),
    health: FailStop,
}

/// Bounds on what is pending in memory.
pub(crate) struct Limits {
    /// At this many bytes writers wait.
    pub(crate) dirty: u64,
    /// At this many bytes the background writes unasked.
    pub(crate) dirty_low: u64,
    /// The most blocks of a transaction out of the cache.
    pub(crate) batch_blocks: usize,
}

impl Limits {
    fn of(budget: Budget) -> Limits {
        let dirty = budget.share(5, 16).get().max(64 * BLOCK_SIZE as u64);
        let batch = in_transit(budget) / (FULL_BATCHES * BLOCK_SIZE);
        Limits { dirty, dirty_low: dirty / 2, batch_blocks: batch.clamp(8, 256) }
    }
}

/// So many transactions of the largest kind are on their way at once; more, if they are smaller.
const FULL_BATCHES: usize = 16;

/// The share of the budget for ciphertext on its way, in bytes. The store's client copies it, for which there is another
/// share like it.
fn in_transit(budget: Budget) -> usize {
    budget.share(1, 8).get() as usize
}

/// Counts for `status`.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) transactions: AtomicU64,
    pub(crate) blocks: AtomicU64,
    pub(crate) direct: AtomicU64,
    /// Objects that were refused, and written anew.
    pub(crate) renewed: AtomicU64,
}

impl Core {
    fn new(
        stores: Stores,
        params: &ObjectParams,
        keys: (Secret<32>, [u8; 16]),
        snapshots: Snapshots,
        options: &ObjectOptions,
        view: Option<u32>,
    ) -> Result<Core> {
        let cipher = BlockCipher::for_objects(params.cipher, &keys.0, &keys.1)?;
        // What a snapshot holds was written before it was made.
        cipher.set_snapshot_number(view.map_or(snapshots.number(), |number| number.saturating_sub(1)));
        let read_only = options.read_only || view.is_some();
        let budget = options.budget;
        let mut core = Core {
            params: *params,
            cipher,
            placement: placement(params, budget.share(1, 4), ChainKey::new(&keys.0, &keys.1)),
            cache: Cache::new(params.segments()),
            schedule: Schedule::new(),
            buffers: Buffers::new(budget.share(1, 16).get() as usize),
            transit: Transit::new(in_transit(budget)),
            version_table: None,
            snapshots,
            random: options.random.clone(),
            limits: Limits::of(budget),
            counters: Counters::default(),
            calls: RwLock::new(()),
            checkpointed: AtomicU64::new(0),
            read_only,
            background: options.background && !read_only,
            write_through: options.write_through,
            view,
            keys,
            health: FailStop::on("store"),
            stores,
        };
        if params.cipher.authenticates() {
            core.version_table = Some(core.open_version_table(VersionTableOptions {
                book: core.stores.book.clone(),
                data: core.stores.data.clone(),
                place: core.seal_place(),
                segments: params.segments(),
                binds: params.binds_entries(),
                budget: budget.share(1, 16),
                read_only,
                view,
                number: core.snapshots.number_cell(),
            })?);
        }
        Ok(core)
    }

    /// A version table under the keys of this disk.
    pub(crate) fn open_version_table(&self, options: VersionTableOptions) -> Result<VersionTable> {
        VersionTable::open(options, &self.keys.0, &self.keys.1)
    }

    /// Where objects keep their seals.
    pub(crate) fn seal_place(&self) -> SealPlace {
        SealPlace::of(self.params.layout, self.cipher.meta_size())
    }

    /// Enters fail-stop for good and gives the error back.
    pub(crate) fn fail(&self, e: Error) -> Error {
        let e = self.health.fail(e);
        self.schedule.wake_all();
        self.cache.wake_all();
        e
    }

    pub(crate) fn has_failed(&self) -> bool {
        !self.health.is_alive()
    }

    /// The standing refusal after a failure on the write path.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.health.check()
    }

    /// Whether an object is known not to be there, and nothing waits to be written to it.
    pub(crate) fn is_absent(&self, segment: u64) -> bool {
        self.cache.is_absent(segment)
    }
}

/// A sealed disk on objects, open.
pub struct ObjectDisk {
    core: Arc<Core>,
    writers: Mutex<Option<Writers>>,
}

impl ObjectDisk {
    /// Lays a new disk on empty stores. The header is the caller's. Errors: [`Kind::Usage`] for a layout that the
    /// store cannot hold, and whatever the store reports.
    pub fn create(
        stores: &Stores,
        params: &ObjectParams,
        master: &Secret<32>,
        uuid: &[u8; 16],
    ) -> Result<()> {
        params.check_store(&*stores.data)?;
        if params.cipher.authenticates() {
            VersionTable::create(&*stores.book, params.segments(), master, uuid)?;
        }
        Snapshots::create(&*stores.book, master, uuid)
    }

    /// Opens a disk. `master` is the level's key, `uuid` the header's. The caller sees to it that nobody else
    /// writes to these objects meanwhile.
    ///
    /// Errors: [`Kind::Usage`] for a layout that the store cannot hold, [`Kind::NotFound`] for an unknown
    /// snapshot, [`Kind::Corrupt`] if table or version table do not verify, and whatever the store reports.
    pub fn open(
        mut stores: Stores,
        params: &ObjectParams,
        master: &Secret<32>,
        uuid: &[u8; 16],
        options: ObjectOptions,
    ) -> Result<ObjectDisk> {
        params.check_store(&*stores.data)?;
        let read_only = options.read_only || options.snapshot.is_some();
        let snapshots = Snapshots::open(&stores, master, uuid, read_only)?;
        let mut params = *params;
        let mut view = None;
        if let Some(name) = &options.snapshot {
            let record = snapshots.find(name)?;
            params = params.with_blocks(record.blocks)?;
            stores = Stores {
                data: stores.data.at_snapshot(record.data_id)?,
                book: stores.book.at_snapshot(record.book_id)?,
            };
            view = Some(record.number);
        }
        let core = Core::new(stores, &params, (master.clone(), *uuid), snapshots, &options, view)?;
        if view.is_none() {
            snapshot_ops::finish_rollback(&core)?;
        }
        let core = Arc::new(core);
        let writers = core.background.then(|| Writers::start(&core)).transpose()?;
        Ok(ObjectDisk { core, writers: Mutex::new(writers) })
    }

    /// The parameters it was opened with; at a snapshot, those of that time.
    pub fn params(&self) -> &ObjectParams {
        &self.core.params
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Writes everything and says so in the version table.
    fn write_all(&self) -> Result<()> {
        self.core.freeze(|| {
            self.stop_writers();
            match &self.core.version_table {
                Some(version_table) => version_table.close().map_err(|e| self.core.fail(e)),
                None => Ok(()),
            }
        })
    }

    fn stop_writers(&self) {
        if let Some(writers) = self.writers.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.core.schedule.stop();
            writers.join();
        }
    }
}

impl Drop for ObjectDisk {
    fn drop(&mut self) {
        self.stop_writers();
    }
}

impl Disk for ObjectDisk {
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
        if self.core.read_only { Ok(()) } else { self.core.flush_cache() }
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.core.extents(first.0, count)
    }

    fn status(&self) -> Status {
        let core = &self.core;
        let (hits, misses) = core.placement.counts();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let item = |name, value, unit| StatusItem { name, value, unit };
        Status {
            items: vec![
                item("segments", core.params.segments(), "segments"),
                item("dirty", core.cache.dirty_bytes(), "bytes"),
                item("reads", count(&core.counters.reads), "reads"),
                item("transactions", count(&core.counters.transactions), "transactions"),
                item("transacted", count(&core.counters.blocks), "blocks"),
                item("written_past_the_cache", count(&core.counters.direct), "transactions"),
                item("written_anew_after_refusal", count(&core.counters.renewed), "objects"),
                item("metadata_cache_hits", hits, "pages"),
                item("metadata_cache_misses", misses, "pages"),
                item("snapshots_made", u64::from(core.snapshots.number()), "snapshots"),
            ],
        }
    }

    fn close(&self) -> Result<()> {
        let written = if self.core.read_only { Ok(()) } else { self.write_all() };
        self.stop_writers();
        self.core.fail(closed());
        written
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
        // Segments that must be asked about are asked about together.
        let mut unknown: Option<(u64, u64)> = None;
        for (segment, range) in segments(first, count) {
            let (at, blocks) = (segment * SEGMENT_BLOCKS + range.start, range.end - range.start);
            if !self.is_absent(segment) {
                unknown = Some(unknown.map_or((at, blocks), |(from, known)| (from, known + blocks)));
                continue;
            }
            if let Some((from, blocks)) = unknown.take() {
                self.written(from, blocks)?.into_iter().for_each(|written| add(written, 1));
            }
            add(false, blocks);
        }
        if let Some((from, blocks)) = unknown {
            self.written(from, blocks)?.into_iter().for_each(|written| add(written, 1));
        }
        Ok(runs)
    }
}
