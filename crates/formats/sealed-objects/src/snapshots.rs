//! The snapshots of an open disk: the table in the book, and the snapshots of the two stores.
//!
//! The stores keep overwritten data only for snapshots named to them by `set_snapshots`. They are
//! named from the verified table when the disk is opened for writing, and whenever the table
//! changes.
//!
//! With a cipher that authenticates, the version table records the generation of the table after
//! each change of it. So an older table is refused before anything is done on its behalf: it may
//! say that a rollback or a removal is under way, and lack later snapshots.
//!
//! # Power cuts
//! - A snapshot is made in this order: write its number to the mark, get numbers from the stores,
//!   name it to the stores, reset the mark, write the record to the table; nothing else is written
//!   to the disk meanwhile. A power cut before the record leaves unused numbers, for which a store
//!   keeps at most the mark. A cut after it leaves the snapshot, and the next opening names it.
//! - A removal marks the record, stops naming the snapshot, removes it from the stores, and drops
//!   the record. A power cut leaves the marked record, and the next opening for writing repeats the
//!   removal; a snapshot that the stores have already removed is no error.
//! - A rollback marks the record as well; see `rollback.rs`.

pub(crate) mod mark;
pub(crate) mod rollback;
pub(crate) mod table;

use crate::Stores;
use crate::snapshots::mark::{SnapshotMark, lost_snapshot};
use crate::snapshots::table::{
    FIRST_GENERATION, MAX_SNAPSHOTS, NewestSnapshot, SnapshotNumber, SnapshotRecord, SnapshotState,
    SnapshotTable, TABLE_MAX, check_name, older_table, restore_table, table_key,
};
use crate::versions::page::HeadsTag;
use lacuna_contracts::{Error, Kind, Result, Secret};
use lacuna_medium::{
    KeySelection, ObjectStep, ObjectStore, ObjectTransaction, Query, ReadExtent, SnapshotId,
};
use parking_lot::Mutex;

/// The object of the book that holds the table.
const TABLE_OBJECT: u64 = 0;

/// The snapshots of an open disk.
pub(crate) struct DiskSnapshots {
    stores: Stores,
    key: Secret<32>,
    newest: NewestSnapshot,
    stored: Mutex<StoredTable>,
}

/// The attributes of a snapshot to be made, except its number.
pub(crate) struct NewSnapshot<'a> {
    pub(crate) name: &'a str,
    /// Seconds since 1970.
    pub(crate) time: u64,
    /// Length of the disk in blocks.
    pub(crate) blocks: u64,
    /// The tag of the version table; zeros without one.
    pub(crate) heads: HeadsTag,
}

/// The table in the book.
struct StoredTable {
    table: SnapshotTable,
    version: u64,
}

/// The snapshots of a disk, for display: the list is not authenticated, since reading it takes no
/// key. `book` holds the disk's table. Errors: [`Kind::Corrupt`] if there is no snapshot table.
pub fn list_snapshots(book: &dyn ObjectStore) -> Result<Vec<SnapshotRecord>> {
    Ok(SnapshotTable::parse(&read_table(book)?.0)?.records)
}

fn read_table(book: &dyn ObjectStore) -> Result<(Vec<u8>, u64)> {
    let mut bytes = vec![0; TABLE_MAX];
    let extents = vec![ReadExtent { offset: 0, buf: &mut bytes }];
    let found = book
        .query_one(Query { object: TABLE_OBJECT, extents, keys: KeySelection::None })
        .map_err(|e| e.context("reading the table of snapshots"))?;
    let version = found.version.ok_or_else(|| {
        Error::new(Kind::Corrupt, "the table of snapshots (object 0 of the book) does not exist")
            .found("no such object")
            .expected("the table that every disk has")
            .hint(restore_table())
    })?;
    Ok((bytes, version))
}

fn write_table(book: &dyn ObjectStore, guard: Option<u64>, bytes: &[u8]) -> Result<u64> {
    let mut steps: Vec<ObjectStep<'_>> = guard.map(ObjectStep::Expect).into_iter().collect();
    steps.extend([ObjectStep::Write { offset: 0, data: bytes }, ObjectStep::Truncate(bytes.len() as u64)]);
    book.apply_one(ObjectTransaction { object: TABLE_OBJECT, steps })
        .map_err(|e| e.context("writing the table of snapshots"))
}

impl DiskSnapshots {
    /// Creates the table of a new disk, without snapshots.
    pub(crate) fn create(book: &dyn ObjectStore, master: &Secret<32>, uuid: &[u8; 16]) -> Result<()> {
        let table = SnapshotTable { generation: FIRST_GENERATION, ..SnapshotTable::default() };
        write_table(book, None, &table.encode(&table_key(master, uuid))).map(drop)
    }

    /// Reads and verifies the table, and changes nothing.
    pub(crate) fn open(stores: &Stores, master: &Secret<32>, uuid: &[u8; 16]) -> Result<DiskSnapshots> {
        let key = table_key(master, uuid);
        let (bytes, version) = read_table(&*stores.book)?;
        let table = SnapshotTable::decode(&bytes, &key)?;
        let newest = NewestSnapshot::new(table.newest);
        let stored = Mutex::new(StoredTable { table, version });
        Ok(DiskSnapshots { stores: stores.clone(), key, newest, stored })
    }

    /// Stands for a table that cannot be used, to rescue a disk: no snapshot is known, and so
    /// content of every number is read.
    pub(crate) fn unknown(stores: &Stores, master: &Secret<32>, uuid: &[u8; 16]) -> DiskSnapshots {
        let newest = NewestSnapshot::new(SnapshotNumber(u32::MAX));
        let stored = Mutex::new(StoredTable { table: SnapshotTable::default(), version: 0 });
        DiskSnapshots { stores: stores.clone(), key: table_key(master, uuid), newest, stored }
    }

    /// Names the snapshots to the stores, which must precede every other write, and finishes
    /// removals.
    pub(crate) fn resume(&self) -> Result<()> {
        let mut held = self.stored.lock();
        self.set_kept_snapshots(&held.table)?;
        self.finish_removals(&mut held)
    }

    /// The generation of the table in the store.
    pub(crate) fn generation(&self) -> u64 {
        self.stored.lock().table.generation
    }

    /// Refuses a table of an earlier generation than `least`, which the version table has recorded.
    /// Errors: [`Kind::Corrupt`].
    pub(crate) fn check_generation(&self, least: u64) -> Result<()> {
        let generation = self.generation();
        if generation >= least { Ok(()) } else { Err(older_table(generation, least)) }
    }

    /// The number of the newest snapshot ever made, shared and updated.
    pub(crate) fn newest(&self) -> &NewestSnapshot {
        &self.newest
    }

    /// The snapshot of this name, if it is not being removed. Errors: [`Kind::NotFound`].
    pub(crate) fn find(&self, name: &str) -> Result<SnapshotRecord> {
        let held = self.stored.lock();
        let record = held.table.find(name)?;
        if record.state == SnapshotState::Removing {
            return Err(Error::new(Kind::NotFound, format!("the snapshot {name} is being removed"))
                .hint("open the disk for writing once to finish that"));
        }
        Ok(record.clone())
    }

    /// The stores' views of a snapshot. Errors: [`Kind::Corrupt`] if the data store no longer has
    /// it, [`Kind::NotFound`] if it was removed meanwhile.
    pub(crate) fn views(&self, record: &SnapshotRecord) -> Result<Stores> {
        let view = |store: &dyn ObjectStore, id| match store.at_snapshot(id) {
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            view => view.map(Some),
        };
        let data = view(&*self.stores.data, record.data_id)?;
        let book = view(&*self.stores.book, record.book_id)?;
        if let (Some(data), Some(book)) = (data, book)
            && SnapshotMark(&self.key).matches(&*data, SnapshotNumber(record.number))?
        {
            return Ok(Stores { data, book });
        }
        self.check_exists(SnapshotNumber(record.number))?;
        Err(lost_snapshot(record, "the present objects, or none"))
    }

    /// Checks that a snapshot still exists. If so, earlier answers of its view are the content of
    /// the snapshot: a removal is recorded in the table before the store forgets anything. Errors:
    /// [`Kind::NotFound`].
    pub(crate) fn check_exists(&self, number: SnapshotNumber) -> Result<()> {
        let (bytes, _) = read_table(&*self.stores.book)?;
        let table = SnapshotTable::decode(&bytes, &self.key)?;
        let kept =
            |record: &SnapshotRecord| record.number == number.0 && record.state != SnapshotState::Removing;
        if table.records.iter().any(kept) {
            return Ok(());
        }
        Err(Error::new(Kind::NotFound, "the snapshot does not exist any more")
            .found("a removal while it was open")
            .hint("close it, and open another one"))
    }

    /// The snapshot with an unfinished rollback to it.
    pub(crate) fn unfinished_rollback(&self) -> Option<SnapshotRecord> {
        let held = self.stored.lock();
        held.table.records.iter().find(|record| record.state == SnapshotState::RollingBack).cloned()
    }

    /// Makes a snapshot of a frozen disk. An error that leaves it unknown whether the snapshot
    /// exists is passed through `fail`: nothing may be written after it.
    pub(crate) fn add(&self, new: &NewSnapshot<'_>, fail: impl Fn(Error) -> Error) -> Result<SnapshotNumber> {
        let mut held = self.stored.lock();
        let &NewSnapshot { name, time, blocks, heads } = new;
        let number = next_number(&held.table, name)?;
        SnapshotMark(&self.key).set(&*self.stores.data, number)?;
        let data_id = self.stores.data.create_snapshot()?;
        let book_id = self.stores.book.create_snapshot().inspect_err(|_| {
            // This number is used nowhere else; the error to report is the first one.
            drop(self.stores.data.remove_snapshot(data_id));
        })?;
        let (name, state) = (name.into(), SnapshotState::Ready);
        let record = SnapshotRecord { number: number.0, name, time, blocks, data_id, book_id, state, heads };
        let mut table = held.table.clone();
        table.newest = number;
        table.records.push(record.clone());
        let kept = self.ensure_kept(&table, &record);
        let made = kept.and_then(|()| match self.update_table(&mut held, |stands| *stands = table) {
            // It is unknown whether the record exists.
            Err(e) if !e.kind().is_refusal() => Ok(Err(fail(e))),
            changed => changed.map(Ok),
        });
        match made {
            Ok(known) => known?,
            Err(e) => {
                // Stop naming the snapshot without a record; the error to report is the first one.
                self.set_kept_snapshots(&held.table).map_err(&fail)?;
                drop(self.stores.data.remove_snapshot(data_id));
                drop(self.stores.book.remove_snapshot(book_id));
                return Err(e);
            }
        }
        self.newest.set(number);
        Ok(number)
    }

    /// Makes the stores keep a snapshot, and verifies that they do. `table` already contains its
    /// record.
    fn ensure_kept(&self, table: &SnapshotTable, record: &SnapshotRecord) -> Result<()> {
        self.set_kept_snapshots(table)?;
        SnapshotMark(&self.key).reset(&*self.stores.data)?;
        let view = self.stores.data.at_snapshot(record.data_id)?;
        if SnapshotMark(&self.key).matches(&*view, SnapshotNumber(record.number))? {
            return Ok(());
        }
        Err(Error::new(Kind::Io, format!("cannot make the snapshot {}", record.name))
            .found(format!("a store that keeps nothing for its snapshot {}", record.data_id))
            .expected("a number above those of all earlier snapshots")
            .hint("if the objects were copied from another pool, remove the snapshots that the disk had there, and try again: each \
                 try takes the next number"))
    }

    /// Removes a snapshot. Errors: [`Kind::NotFound`], and all errors of the stores.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let mut held = self.stored.lock();
        let number = held.table.find(name)?.number;
        self.update_table(&mut held, |table| set_state(table, number, SnapshotState::Removing))?;
        self.set_kept_snapshots(&held.table)?;
        self.finish_removals(&mut held)
    }

    /// Records the state of a snapshot.
    pub(crate) fn record_state(&self, snapshot: &SnapshotRecord, state: SnapshotState) -> Result<()> {
        self.update_table(&mut self.stored.lock(), |table| set_state(table, snapshot.number, state))
    }

    fn finish_removals(&self, held: &mut StoredTable) -> Result<()> {
        while let Some(record) = held.table.records.iter().find(|r| r.state == SnapshotState::Removing) {
            let number = record.number;
            remove_from_store(&*self.stores.data, record.data_id)?;
            remove_from_store(&*self.stores.book, record.book_id)?;
            self.update_table(held, |table| table.records.retain(|record| record.number != number))?;
        }
        Ok(())
    }

    /// Changes the table, durably.
    fn update_table(&self, held: &mut StoredTable, f: impl FnOnce(&mut SnapshotTable)) -> Result<()> {
        let mut table = held.table.clone();
        f(&mut table);
        table.generation += 1;
        held.version = write_table(&*self.stores.book, Some(held.version), &table.encode(&self.key))?;
        held.table = table;
        Ok(())
    }

    fn set_kept_snapshots(&self, table: &SnapshotTable) -> Result<()> {
        let kept = || table.records.iter().filter(|record| record.state != SnapshotState::Removing);
        let ids: Vec<SnapshotId> = kept().map(|record| record.data_id).collect();
        self.stores.data.set_snapshots(&ids)?;
        let ids: Vec<SnapshotId> = kept().map(|record| record.book_id).collect();
        self.stores.book.set_snapshots(&ids)
    }
}

/// The number of the next snapshot, if a snapshot of this name may be made.
fn next_number(table: &SnapshotTable, name: &str) -> Result<SnapshotNumber> {
    check_name(name)?;
    let cannot = || Error::new(Kind::Usage, format!("cannot make the snapshot {name}"));
    if table.records.iter().any(|record| record.name == name) {
        return Err(cannot()
            .with_kind(Kind::Exists)
            .found("a snapshot of this name")
            .hint("choose another name, or remove that one"));
    }
    if table.records.len() >= MAX_SNAPSHOTS {
        return Err(cannot()
            .found(format!("{} snapshots", table.records.len()))
            .expected(format!("at most {MAX_SNAPSHOTS}"))
            .hint("remove one"));
    }
    let next = table.newest.0.checked_add(1).map(SnapshotNumber);
    next.ok_or_else(|| cannot().found("2^32 snapshots made so far").expected("fewer"))
}

fn set_state(table: &mut SnapshotTable, number: u32, state: SnapshotState) {
    if let Some(record) = table.records.iter_mut().find(|record| record.number == number) {
        record.state = state;
    }
}

/// Removes a snapshot from a store, if it is still there.
fn remove_from_store(store: &dyn ObjectStore, id: SnapshotId) -> Result<()> {
    match store.remove_snapshot(id) {
        Err(e) if e.kind() == Kind::NotFound => Ok(()),
        other => other.map_err(|e| e.context("removing a snapshot from the store")),
    }
}
