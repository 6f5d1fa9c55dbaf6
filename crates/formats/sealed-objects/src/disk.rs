//! An open sealed disk on objects: its creation, opening and assembly from parts, and the `Disk`
//! for front ends. It keeps no state of its own.

use crate::check::ObjectCheck;
use crate::layouts::chain::ChainKey;
use crate::layouts::new_placement;
use crate::layouts::placement::Placement;
use crate::read_path::ReadPath;
use crate::snapshots::rollback::Rollback;
use crate::snapshots::table::{SnapshotNumber, SnapshotRecord};
use crate::snapshots::{DiskSnapshots, NewSnapshot};
use crate::versions::page::HeadsTag;
use crate::versions::seal::SealPlace;
use crate::versions::store::VersionStore;
use crate::versions::table::{VersionTable, VersionTableOptions};
use crate::writing::buffers::{CiphertextBuffers, InFlightLimit};
use crate::writing::dirty_cache::DirtyCache;
use crate::writing::encryptor::Encryptor;
use crate::writing::transactor::Transactor;
use crate::writing::write_path::WritePath;
use crate::writing::write_records::WriteRecords;
use crate::{ObjectParams, Stores};
use lacuna_contracts::{
    BLOCK_SIZE, BadBlock, BlockAddr, Budget, Disk, DiskCheckReport, Error, Extent, Hint, Kind, Result,
    Secret, Setting, Status, StatusItem,
};
use lacuna_crypto::{BlockCipher, RandomSource};
use lacuna_kept_memory::{KeptMemory, PoolLayout};
use lacuna_medium::ObjectStore;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The purpose for which a disk is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectAccess {
    /// Read and write it.
    Write,
    /// Refuse writes.
    Read,
    /// Open a damaged disk, read-only: also in the middle of a rollback, and with an older table of
    /// snapshots or without one. All content that verifies can be read.
    Rescue,
}

/// How to open a disk.
pub struct ObjectOptions {
    /// Memory for all caches of the disk.
    pub budget: Budget,
    /// The purpose.
    pub access: ObjectAccess,
    /// Whether threads write in the background. Without them, the thread that fills the cache
    /// writes, so that the order of transactions depends on the calls alone, as tests need.
    pub background: bool,
    /// Whether every write is durable when it returns.
    pub write_through: bool,
    /// Open the disk as it was at the snapshot of this name, read-only.
    pub snapshot: Option<String>,
    /// The source of all randomness.
    pub random: Arc<dyn RandomSource>,
    /// Where acknowledged writes are until they are in the store, of the layout that
    /// [`ObjectDisk::kept_layout`] says; the writes of a predecessor are taken over, unless the
    /// disk is read-only. None: memory of this process alone.
    pub kept: Option<KeptMemory>,
}

/// The number of largest transactions that may be in flight at once; more, if they are smaller.
const MAX_FULL_BATCHES: usize = 16;

/// A sealed disk on objects, open.
pub struct ObjectDisk {
    params: ObjectParams,
    stores: Stores,
    cipher: Arc<BlockCipher>,
    snapshots: Arc<DiskSnapshots>,
    /// Present if the cipher authenticates.
    version_table: Option<Arc<VersionTable>>,
    /// The snapshot with an unfinished rollback to it, if the disk was opened all the same.
    unfinished_rollback: Option<String>,
    /// The error of the table of snapshots, if the disk was opened all the same.
    table_error: Option<Error>,
    reader: ReadPath,
    /// Absent if the disk is read-only.
    writer: Option<WritePath>,
}

/// The parts that the read path and the write path share.
struct SharedParts {
    data: Arc<dyn ObjectStore>,
    cipher: Arc<BlockCipher>,
    placement: Arc<dyn Placement>,
    cache: Arc<DirtyCache>,
    buffers: Arc<CiphertextBuffers>,
    version_table: Option<Arc<VersionTable>>,
}

impl SharedParts {
    /// The write path of a disk of `blocks` blocks, after it has written the records that a
    /// predecessor left. To be called when everything that a crash interrupted is finished.
    fn writer(&self, options: ObjectOptions, blocks: u64) -> Result<WritePath> {
        let SharedParts { data, cipher, placement, cache, buffers, version_table } = self;
        // The store's client copies the ciphertext in flight; a second share of this size is for
        // that copy.
        let transit = options.budget.share(1, 8).get() as usize;
        let batch_blocks = (transit / (MAX_FULL_BATCHES * BLOCK_SIZE)).clamp(8, 256);
        let encryptor = Encryptor::new(cipher.clone(), options.random, buffers.clone(), placement.slot());
        let (table, transit) = (version_table.clone(), InFlightLimit::new(transit));
        let transactor =
            Transactor::new(data.clone(), encryptor, placement.clone(), table.clone(), transit, blocks);
        let mut writer =
            WritePath::new(cache.clone(), transactor, batch_blocks, blocks, options.write_through);
        if options.background {
            writer.start_threads(table)?;
        }
        writer.adopt(cache.records().take_left(blocks)?)?;
        Ok(writer)
    }

    /// The read path, of a snapshot if there is a view.
    fn reader(self, view: Option<(SnapshotNumber, Arc<DiskSnapshots>)>) -> ReadPath {
        let SharedParts { data, cipher, placement, cache, buffers, version_table } = self;
        ReadPath::new(data, cache, cipher, placement, buffers, version_table, view)
    }
}

/// The state to open: the disk as it is now, or as it was at a snapshot.
struct DiskView {
    stores: Stores,
    params: ObjectParams,
    /// The snapshot, if one is opened.
    snapshot: Option<SnapshotRecord>,
}

impl DiskView {
    /// The state at the snapshot of this name, or the present one if there is no name. Errors:
    /// [`Kind::NotFound`] for an unknown name, and all errors of the store.
    fn of(
        stores: Stores,
        params: &ObjectParams,
        snapshots: &DiskSnapshots,
        name: Option<&str>,
    ) -> Result<DiskView> {
        let Some(name) = name else { return Ok(DiskView { stores, params: *params, snapshot: None }) };
        let record = snapshots.find(name)?;
        let params = params.with_blocks(record.blocks)?;
        Ok(DiskView { stores: snapshots.views(&record)?, params, snapshot: Some(record) })
    }
}

impl ObjectDisk {
    /// Creates a new disk on empty stores. The caller writes the header. Errors: [`Kind::Usage`]
    /// for a layout that the store cannot hold, and all errors of the store.
    pub fn create(
        stores: &Stores,
        params: &ObjectParams,
        master: &Secret<32>,
        uuid: &[u8; 16],
    ) -> Result<()> {
        params.check_store(&*stores.data)?;
        if params.cipher.authenticates() {
            VersionStore::create(&*stores.book, params.segments(), master, uuid)?;
        }
        DiskSnapshots::create(&*stores.book, master, uuid)
    }

    /// The layout of the memory for acknowledged writes of a disk that is opened with these
    /// options. With `write_through` nothing waits there.
    pub fn kept_layout(params: &ObjectParams, budget: Budget, write_through: bool) -> Vec<PoolLayout> {
        if write_through { vec![] } else { WriteRecords::layout(params.segments(), most_dirty(budget)) }
    }

    /// Opens a disk. `master` is the level's key, `uuid` the header's. The caller ensures that
    /// there is no other writer to these objects, and that there was none since the predecessor
    /// that left its writes.
    ///
    /// Errors: [`Kind::Usage`] for a layout that the store cannot hold, [`Kind::NotFound`] for an
    /// unknown snapshot, [`Kind::Corrupt`] if the snapshot table or the version table does not
    /// verify or is an older version, or if the store has lost the snapshot, and all errors of the
    /// store.
    pub fn open(
        stores: Stores,
        params: &ObjectParams,
        master: &Secret<32>,
        uuid: &[u8; 16],
        options: ObjectOptions,
    ) -> Result<ObjectDisk> {
        params.check_store(&*stores.data)?;
        let read_only = options.access != ObjectAccess::Write || options.snapshot.is_some();
        let rescue = options.access == ObjectAccess::Rescue;
        let (snapshots, table_error) = open_snapshots(&stores, master, uuid, &options)?;
        let DiskView { stores, params, snapshot } =
            DiskView::of(stores, params, &snapshots, options.snapshot.as_deref())?;
        let number = snapshot.as_ref().map(|record| SnapshotNumber(record.number));
        let cipher = Arc::new(BlockCipher::for_objects(params.cipher, master, uuid)?);
        // Data of a snapshot was written before the snapshot was made.
        let newest = number.map_or(snapshots.newest().get().0, |number| number.0.saturating_sub(1));
        cipher.set_snapshot_number(newest);
        let table_options = VersionTableOptions {
            stores: stores.clone(),
            place: SealPlace::of(params.layout, cipher.meta_size()),
            segments: params.segments(),
            binds_entries: params.binds_entries(),
            budget: options.budget.share(1, 16),
            read_only,
            view: number,
            newest: snapshots.newest().clone(),
        };
        let open_table = || VersionTable::open(table_options, master, uuid);
        let mut version_table = params.cipher.authenticates().then(open_table).transpose()?;
        match (&version_table, &snapshot) {
            (Some(table), Some(record)) => table.check_matches(record)?,
            (Some(table), None) => check_table(&snapshots, table, &cipher, rescue)?,
            (None, _) => {}
        }
        if !read_only {
            prepare_writing(&snapshots, version_table.as_mut())?;
        }
        let version_table = version_table.map(Arc::new);
        let mut unfinished_rollback = snapshots.unfinished_rollback().filter(|_| number.is_none());
        if let Some(record) = unfinished_rollback.take_if(|_| !rescue) {
            if read_only {
                return Err(unfinished_rollback_error(&record.name));
            }
            let (table, segments) = (version_table.as_deref(), params.segments());
            Rollback::new(&stores, &snapshots, table, segments, options.background, record)?.resume()?;
        }
        let records = WriteRecords::new(memory_of(&params, &options)?);
        let shared = SharedParts {
            data: stores.data.clone(),
            cipher: cipher.clone(),
            placement: new_placement(&params, options.budget.share(1, 4), ChainKey::new(master, uuid)),
            cache: Arc::new(DirtyCache::new(params.segments(), most_dirty(options.budget), records)),
            buffers: Arc::new(CiphertextBuffers::new(options.budget.share(1, 16).get() as usize)),
            version_table: version_table.clone(),
        };
        let writer = if read_only { None } else { Some(shared.writer(options, params.blocks)?) };
        let reader = shared.reader(number.map(|number| (number, snapshots.clone())));
        Ok(ObjectDisk {
            params,
            stores,
            cipher,
            snapshots,
            version_table,
            unfinished_rollback: unfinished_rollback.map(|record| record.name),
            table_error,
            reader,
            writer,
        })
    }

    /// The snapshot with an interrupted rollback to it, if the disk was opened for rescue in the
    /// middle of that: each object is then as before the rollback, or as at the snapshot.
    pub fn unfinished_rollback(&self) -> Option<&str> {
        self.unfinished_rollback.as_deref()
    }

    /// The error of the table of snapshots, if the disk was opened for rescue without it: no
    /// snapshot can be read, and a rollback may have been interrupted.
    pub fn table_error(&self) -> Option<&Error> {
        self.table_error.as_ref()
    }

    /// The parameters of the open disk; for a snapshot, those at its time.
    pub fn params(&self) -> &ObjectParams {
        &self.params
    }

    /// Reads every block. Calls `progress` with the number of blocks done and `bad`, in ascending
    /// order, with each block that fails and its object. The cipher limits the verification: with
    /// `gcm`, every bit of every object, its presence and its freshness; with other ciphers,
    /// readability alone.
    ///
    /// Errors: as [`lacuna_contracts::check_disk`].
    pub fn check(
        &self,
        progress: impl FnMut(u64) -> Result<()>,
        bad: impl FnMut(BadBlock),
    ) -> Result<DiskCheckReport> {
        ObjectCheck { disk: self, version_table: self.version_table.as_deref() }.run(progress, bad)
    }

    /// Makes a snapshot of all acknowledged data. It can be opened by its name until it is removed.
    ///
    /// Errors: [`Kind::Usage`] for an invalid name, [`Kind::Exists`] for a name in use, and all
    /// errors of the stores.
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        let writer = self.writer("change of snapshots")?;
        writer.freeze(|| {
            let add = |heads| {
                let new = NewSnapshot { name, time: now(), blocks: self.params.blocks, heads };
                self.snapshots.add(&new, |e| writer.fail(e))
            };
            let number = match &self.version_table {
                Some(version_table) => {
                    version_table.checkpoint().map_err(|e| writer.fail_unless_refused(e))?;
                    version_table.with_frozen_heads(add)?
                }
                None => add(HeadsTag::default())?,
            };
            self.cipher.set_snapshot_number(number.0);
            self.bind_snapshots().map_err(|e| writer.fail(e))
        })
    }

    /// Removes a snapshot; the store frees the space kept for it. Errors: [`Kind::NotFound`], and
    /// all errors of the stores. A removal that failed half-way continues at the next opening for
    /// writing.
    pub fn remove_snapshot(&self, name: &str) -> Result<()> {
        let writer = self.writer("change of snapshots")?;
        writer.check_alive()?;
        let removed = self.snapshots.remove(name);
        removed.and(self.bind_snapshots().map_err(|e| writer.fail(e)))
    }

    /// Restores the content that the disk had when the snapshot was made. The snapshot stays, and
    /// the disk keeps its present length. Data written since then is lost, unless a later snapshot
    /// has it.
    ///
    /// Errors: [`Kind::NotFound`], [`Kind::Corrupt`] if an object of the snapshot does not verify
    /// (then nothing has changed), and all errors of the stores. A rollback that failed half-way
    /// continues at the next opening for writing, and the disk accepts no writes before that.
    pub fn rollback(&self, name: &str) -> Result<()> {
        let writer = self.writer("change of snapshots")?;
        writer.freeze(|| {
            let (table, segments) = (self.version_table.as_deref(), self.params.segments());
            let to = self.snapshots.find(name)?;
            let threads = writer.has_threads();
            let mut rollback = Rollback::new(&self.stores, &self.snapshots, table, segments, threads, to)?;
            rollback.verify()?;
            let rolled = rollback.start();
            self.reader.invalidate_all();
            rolled.map_err(|e| writer.fail(e))
        })
    }

    /// Binds the present table of snapshots to the version table, if there is one.
    fn bind_snapshots(&self) -> Result<()> {
        self.version_table.as_ref().map_or(Ok(()), |table| bind_snapshots(&self.snapshots, table))
    }

    /// The write path; `what` names the refused operation. Errors: [`Kind::ReadOnly`] for a
    /// read-only disk.
    fn writer(&self, what: &str) -> Result<&WritePath> {
        self.writer.as_ref().ok_or_else(|| {
            let advice = Hint::from("open it without ").setting(Setting("read_only"));
            Error::new(Kind::ReadOnly, format!("{what} refused"))
                .found("a disk opened read-only")
                .hint(advice.text(", and not at a snapshot"))
        })
    }
}

impl Disk for ObjectDisk {
    fn blocks(&self) -> u64 {
        self.params.blocks
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.reader.read(first, buf)
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.writer("write")?.write(first, data)
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.writer("discard")?.discard(first, count)
    }

    fn flush(&self) -> Result<()> {
        self.writer.as_ref().map_or(Ok(()), WritePath::flush)
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.reader.extents(first, count)
    }

    fn status(&self) -> Status {
        let [reads, hits, misses] = self.reader.counts();
        let [dirty, transactions, blocks, direct, renewed] =
            self.writer.as_ref().map_or([0; 5], WritePath::counts);
        Status {
            items: vec![
                StatusItem::new("segments", self.params.segments(), "segments"),
                StatusItem::new("dirty", dirty, "bytes"),
                StatusItem::new("reads", reads, "reads"),
                StatusItem::new("transactions", transactions, "transactions"),
                StatusItem::new("transacted", blocks, "blocks"),
                StatusItem::new("written_past_the_cache", direct, "transactions"),
                StatusItem::new("written_anew_after_refusal", renewed, "objects"),
                StatusItem::new("metadata_cache_hits", hits, "pages"),
                StatusItem::new("metadata_cache_misses", misses, "pages"),
                StatusItem::new("snapshots_made", self.snapshots.newest().get().0.into(), "snapshots"),
            ],
        }
    }

    fn close(&self) -> Result<()> {
        let close_table =
            || self.version_table.as_ref().map_or(Ok(()), |version_table| version_table.close());
        self.writer.as_ref().map_or(Ok(()), |writer| writer.close(close_table))
    }

    fn is_read_only(&self) -> bool {
        self.writer.is_none()
    }
}

/// The snapshots of a disk. Without their table, if only the present content is to be rescued,
/// which verifies without it; then also the error of the table.
fn open_snapshots(
    stores: &Stores,
    master: &Secret<32>,
    uuid: &[u8; 16],
    options: &ObjectOptions,
) -> Result<(Arc<DiskSnapshots>, Option<Error>)> {
    let can_lack = options.access == ObjectAccess::Rescue && options.snapshot.is_none();
    match DiskSnapshots::open(stores, master, uuid) {
        Err(e) if can_lack && is_lost_table(&e) => {
            Ok((Arc::new(DiskSnapshots::unknown(stores, master, uuid)), Some(e)))
        }
        opened => Ok((Arc::new(opened?), None)),
    }
}

/// Whether this error of reading the table of snapshots says that it is lost, or cannot be read.
fn is_lost_table(e: &Error) -> bool {
    matches!(e.kind(), Kind::Corrupt | Kind::Io | Kind::TimedOut)
}

/// At this number of bytes in the cache writers wait.
fn most_dirty(budget: Budget) -> u64 {
    budget.share(5, 16).get().max(64 * BLOCK_SIZE as u64)
}

/// The memory for acknowledged writes: the given one, or memory of this process alone.
fn memory_of(params: &ObjectParams, options: &ObjectOptions) -> Result<KeptMemory> {
    match &options.kept {
        Some(memory) if !options.write_through => Ok(memory.clone()),
        _ => KeptMemory::anonymous(&ObjectDisk::kept_layout(params, options.budget, false)),
    }
}

/// Refuses a table of snapshots that is older than the version table knows, except to `rescue` a
/// disk. Errors: [`Kind::Corrupt`].
fn check_table(
    snapshots: &DiskSnapshots,
    version_table: &VersionTable,
    cipher: &BlockCipher,
    rescue: bool,
) -> Result<()> {
    let checked = snapshots.check_generation(version_table.least_table_generation());
    if rescue && checked.is_err() {
        // The newest snapshot is not known: data of every number is read.
        snapshots.newest().set(SnapshotNumber(u32::MAX));
        cipher.set_snapshot_number(u32::MAX);
        return Ok(());
    }
    checked
}

/// Prepares the first write to a disk: the stores keep its snapshots from now on, removals of
/// snapshots are finished, and a grown disk has its whole version table.
fn prepare_writing(snapshots: &DiskSnapshots, version_table: Option<&mut VersionTable>) -> Result<()> {
    snapshots.resume()?;
    let Some(version_table) = version_table else { return Ok(()) };
    version_table.extend()?;
    bind_snapshots(snapshots, version_table)
}

/// Binds the present table of snapshots to the version table. A store without space refuses that;
/// the next checkpoint does it then.
fn bind_snapshots(snapshots: &DiskSnapshots, version_table: &VersionTable) -> Result<()> {
    match version_table.bind_table(snapshots.generation()) {
        Err(e) if e.kind().is_refusal() => Ok(()),
        bound => bound,
    }
}

/// The error for a rollback that only an opening for writing can finish.
fn unfinished_rollback_error(name: &str) -> Error {
    Error::new(Kind::ReadOnly, "cannot open the disk read-only")
        .found(format!("an interrupted rollback to the snapshot {name}"))
        .expected("a completed rollback")
        .hint("open it for writing once to finish the rollback, or open a snapshot")
}

/// Seconds since 1970, for display: nothing depends on it.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
