//! The namespace's tables in redb, on a [`DbBackend`].
//!
//! After one failed read redb refuses every operation, also of other threads. Here one block that
//! does not verify must not block the rest, so after a failure the database is reopened on the same
//! backend, and reads that failed because of it are repeated.

use super::db_backend::{DbBackend, SharedBackend, failure_in};
use super::tables::{TABLES, Table};
use lacuna_contracts::{Budget, Error, Kind, Result};
use parking_lot::Mutex;
use redb::{ReadOnlyTable, ReadableDatabase, TableDefinition};
use std::sync::Arc;

type TableBytes = &'static [u8];

const fn definition(table: Table) -> TableDefinition<'static, TableBytes, TableBytes> {
    TableDefinition::new(table.name())
}

/// A key of one table and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// The tables at one moment. Stays readable while the database changes.
pub(crate) struct TableSnapshot(Vec<ReadOnlyTable<TableBytes, TableBytes>>);

impl TableSnapshot {
    /// The value of a key; its first byte is the table.
    pub(crate) fn get(&self, key: &[u8]) -> std::result::Result<Option<Vec<u8>>, redb::StorageError> {
        let value = self.0[usize::from(key[0])].get(&key[1..])?;
        Ok(value.map(|value| value.value().to_vec()))
    }

    /// The pairs with keys that are at least `from` and begin with `prefix`, in order, as long as
    /// `each` returns true.
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
    backend: Arc<DbBackend>,
    cache: Budget,
    redb: Mutex<Option<redb::Database>>,
}

impl Database {
    /// Opens the database.
    pub(crate) fn open(backend: Arc<DbBackend>, cache: Budget) -> Result<Database> {
        let database = Database { backend, cache, redb: Mutex::new(None) };
        *database.redb.lock() = Some(database.open_redb()?);
        Ok(database)
    }

    /// Makes the tables of a new database.
    pub(crate) fn create_tables(&self) -> Result<()> {
        self.change(|txn| {
            TABLES
                .iter()
                .try_for_each(|table| txn.open_table(definition(*table)).map(drop).map_err(Into::into))
        })
    }

    /// The current tables.
    pub(crate) fn snapshot(&self) -> Result<TableSnapshot> {
        let mut redb = self.redb.lock();
        let mut first = true;
        loop {
            if redb.is_none() {
                *redb = Some(self.open_redb()?);
            }
            let open = redb.as_ref().expect("it was just opened");
            let tables = || -> std::result::Result<_, redb::Error> {
                let txn = open.begin_read()?;
                let open = |table: &Table| txn.open_table(definition(*table)).map_err(redb::Error::from);
                TABLES.iter().map(open).collect()
            };
            let e = match tables() {
                Ok(tables) => return Ok(TableSnapshot(tables)),
                Err(e) => e,
            };
            *redb = None;
            if !first || !ended_before(&e) {
                return Err(error_of(&e));
            }
            first = false;
        }
    }

    /// The current tables, after reopening the database.
    pub(crate) fn renewed(&self) -> Result<TableSnapshot> {
        *self.redb.lock() = None;
        self.snapshot()
    }

    /// Applies changes. Keys begin with their tables and are sorted.
    pub(crate) fn apply(&self, changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Result<()> {
        self.change(|txn| {
            for of_table in changes.chunk_by(|(a, _), (b, _)| a[0] == b[0]) {
                let table = TABLES[usize::from(of_table[0].0[0])];
                let mut open = txn.open_table(definition(table))?;
                for (key, value) in of_table {
                    match value {
                        Some(value) => drop(open.insert(&key[1..], value.as_slice())?),
                        None => drop(open.remove(&key[1..])?),
                    }
                }
            }
            Ok(())
        })
    }

    fn change(
        &self,
        work: impl Fn(&redb::WriteTransaction) -> std::result::Result<(), redb::Error>,
    ) -> Result<()> {
        let mut redb = self.redb.lock();
        let mut first = true;
        loop {
            if redb.is_none() {
                *redb = Some(self.open_redb()?);
            }
            let open = redb.as_ref().expect("it was just opened");
            let done = || -> std::result::Result<(), redb::Error> {
                let mut txn = open.begin_write()?;
                // An opening after a crash must not walk through the whole database.
                txn.set_quick_repair(true);
                work(&txn)?;
                Ok(txn.commit()?)
            };
            let Err(e) = done() else { return Ok(()) };
            *redb = None;
            if !first || !ended_before(&e) {
                return Err(error_of(&e));
            }
            first = false;
        }
    }

    fn open_redb(&self) -> Result<redb::Database> {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(self.cache.get() as usize);
        builder.create_with_backend(SharedBackend(self.backend.clone())).map_err(|e| error_of(&e.into()))
    }
}

/// Whether an earlier failed read had ended the database: this operation itself is not at fault.
fn ended_before(e: &redb::Error) -> bool {
    matches!(e, redb::Error::PreviousIo | redb::Error::DatabaseClosed)
}

/// Whether a read failed only because another one had ended the database.
pub(crate) fn is_earlier_failure(e: &redb::StorageError) -> bool {
    matches!(e, redb::StorageError::PreviousIo | redb::StorageError::DatabaseClosed)
}

/// The full failure of the backend, or the database's message.
pub(crate) fn error_of(e: &redb::Error) -> Error {
    let passed = if let redb::Error::Io(e) = e { failure_in(e) } else { None };
    passed.unwrap_or_else(|| Error::new(Kind::Corrupt, "cannot use the namespace").found(e.to_string()))
}
