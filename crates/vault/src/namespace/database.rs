//! The namespace's tables in redb, on a [`Shelf`].
//!
//! redb refuses everything after one failed read. Here one block that does not verify must not take the rest with it, so after
//! a failure the database is opened anew on the same shelf.

use super::shelf::{Backend, Shelf};
use super::tables::{TABLES, Table};
use lacuna_core::{Budget, Error, Kind, Result};
use parking_lot::Mutex;
use redb::{ReadOnlyTable, ReadableDatabase, TableDefinition};
use std::sync::Arc;

type Bytes = &'static [u8];

const fn definition(table: Table) -> TableDefinition<'static, Bytes, Bytes> {
    TableDefinition::new(table.name())
}

/// A key of one table and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// The tables as they were at one moment. It stays readable while the database changes.
pub(crate) struct Snapshot(Vec<ReadOnlyTable<Bytes, Bytes>>);

impl Snapshot {
    /// The value of a key, whose first byte is its table.
    pub(crate) fn get(&self, key: &[u8]) -> std::result::Result<Option<Vec<u8>>, redb::StorageError> {
        let value = self.0[usize::from(key[0])].get(&key[1..])?;
        Ok(value.map(|value| value.value().to_vec()))
    }

    /// The pairs whose keys are at least `from` and begin with `prefix`, in order, as long as `each` returns true.
    pub(crate) fn scan(
        &self,
        from: &[u8],
        prefix: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> std::result::Result<(), redb::StorageError> {
        let mut key = vec![from[0]];
        for pair in self.0[usize::from(from[0])].range::<&[u8]>(&from[1..]..)? {
            let (found, value) = pair?;
            key.truncate(1);
            key.extend_from_slice(found.value());
            if !key.starts_with(prefix) || !each(&key, value.value()) {
                break;
            }
        }
        Ok(())
    }
}

/// The open database.
pub(crate) struct Database {
    shelf: Arc<Shelf>,
    cache: Budget,
    redb: Mutex<Option<redb::Database>>,
}

impl Database {
    /// Opens it, and makes the tables of a new one.
    pub(crate) fn open(shelf: Arc<Shelf>, cache: Budget) -> Result<Database> {
        let database = Database { shelf, cache, redb: Mutex::new(None) };
        *database.redb.lock() = Some(database.open_redb()?);
        Ok(database)
    }

    /// Makes the tables of a new one.
    pub(crate) fn create_tables(&self) -> Result<()> {
        self.change(|txn| {
            TABLES
                .iter()
                .try_for_each(|table| txn.open_table(definition(*table)).map(drop).map_err(Into::into))
        })
    }

    /// The tables as they are now.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        let mut redb = self.redb.lock();
        if redb.is_none() {
            *redb = Some(self.open_redb()?);
        }
        let open = redb.as_ref().expect("it was just opened");
        let tables = || -> std::result::Result<_, redb::Error> {
            let txn = open.begin_read()?;
            let open = |table: &Table| txn.open_table(definition(*table)).map_err(redb::Error::from);
            TABLES.iter().map(open).collect()
        };
        match tables() {
            Ok(tables) => Ok(Snapshot(tables)),
            Err(e) => {
                *redb = None;
                Err(self.error(&e))
            }
        }
    }

    /// Applies changes, whose keys begin with their tables and are sorted.
    pub(crate) fn apply<'a>(
        &self,
        changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> Result<()> {
        let mut changes = changes.peekable();
        self.change(|txn| {
            while let Some(&(key, _)) = changes.peek() {
                let table = TABLES[usize::from(key[0])];
                let mut open = txn.open_table(definition(table))?;
                while let Some((key, value)) = changes.next_if(|(key, _)| key[0] == table as u8) {
                    match value {
                        Some(value) => drop(open.insert(&key[1..], value)?),
                        None => drop(open.remove(&key[1..])?),
                    }
                }
            }
            Ok(())
        })
    }

    /// After a read of a snapshot failed: why, and the database is opened anew.
    pub(crate) fn failed(&self, e: &redb::StorageError) -> Error {
        let words = e.to_string();
        *self.redb.lock() = None;
        self.shelf.take_failure().unwrap_or_else(|| broken(&words))
    }

    fn change(
        &self,
        work: impl FnOnce(&redb::WriteTransaction) -> std::result::Result<(), redb::Error>,
    ) -> Result<()> {
        let mut redb = self.redb.lock();
        if redb.is_none() {
            *redb = Some(self.open_redb()?);
        }
        let open = redb.as_ref().expect("it was just opened");
        let done = || -> std::result::Result<(), redb::Error> {
            let mut txn = open.begin_write()?;
            // Opening after a crash must not walk through the whole database.
            txn.set_quick_repair(true);
            work(&txn)?;
            Ok(txn.commit()?)
        };
        done().map_err(|e| {
            *redb = None;
            self.error(&e)
        })
    }

    fn open_redb(&self) -> Result<redb::Database> {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(self.cache.get() as usize);
        builder.create_with_backend(Backend(self.shelf.clone())).map_err(|e| self.error(&e.into()))
    }

    fn error(&self, e: &redb::Error) -> Error {
        self.shelf.take_failure().unwrap_or_else(|| broken(&e.to_string()))
    }
}

fn broken(words: &str) -> Error {
    Error::new(Kind::Corrupt, "cannot use the namespace").found(words)
}
