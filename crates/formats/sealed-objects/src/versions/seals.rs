//! The seals of the objects of one disk in the store: fetches them and compares them with the
//! version table. Read-only.

use crate::segment::Segment;
use crate::snapshots::table::{NewestSnapshot, SnapshotNumber};
use crate::versions::pages::VersionEntry;
use crate::versions::seal::{BAD_OBJECT_HINT, SEAL_LEN, Seal, SealKey, SealPlace, WriteCounter};
use crate::versions::store::PageNumber;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{ObjectStore, QueryAnswer};
use std::sync::Arc;

/// The store's answer about an object: its version, if it exists, and its seal, if it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FetchedSeal {
    pub(crate) version: Option<u64>,
    pub(crate) seal: Option<Vec<u8>>,
}

/// Fetches and verifies seals.
#[derive(Clone)]
pub(crate) struct Seals {
    /// The store of the objects.
    pub(crate) data: Arc<dyn ObjectStore>,
    /// The place of the seal in each object.
    pub(crate) place: SealPlace,
    pub(crate) key: SealKey,
    /// The snapshot if `data` is a view of one.
    pub(crate) view: Option<SnapshotNumber>,
    pub(crate) newest: NewestSnapshot,
}

/// The error for an object that existed and is gone.
pub(crate) fn missing_object(segment: Segment, counter: WriteCounter) -> Error {
    Error::new(Kind::Corrupt, format!("{segment} is missing"))
        .found("no object")
        .expected(format!("an object with {} writes", counter.0))
        .hint(BAD_OBJECT_HINT)
}

impl Seals {
    /// Fetches the seals of objects with one batch of queries.
    pub(crate) fn fetch_all(&self, segments: &[Segment]) -> Vec<Result<FetchedSeal>> {
        let mut seals = vec![[0; SEAL_LEN]; segments.len()];
        let mut queries: Vec<_> =
            segments.iter().zip(&mut seals).map(|(segment, seal)| self.place.query(*segment, seal)).collect();
        let answers = self.data.query(&mut queries);
        drop(queries);
        let fetched = |(found, seal): (Result<QueryAnswer>, &[u8; SEAL_LEN])| {
            let fetched = |found: QueryAnswer| FetchedSeal {
                version: found.version,
                seal: self.place.extract(&found, seal),
            };
            found.map(fetched).map_err(Error::of_read)
        };
        answers.into_iter().zip(&seals).map(fetched).collect()
    }

    /// Fetches the seal of one object.
    pub(crate) fn fetch(&self, segment: Segment) -> Result<FetchedSeal> {
        let fetched = self.fetch_all(&[segment]).pop().expect("one answer for one object");
        fetched.map_err(|e| e.context(format!("reading the seal of {segment}")))
    }

    /// The counter in the seal, if it is genuine.
    pub(crate) fn counter(&self, segment: Segment, fetched: &FetchedSeal) -> WriteCounter {
        let seal = fetched.seal.as_ref().and_then(|bytes| self.key.decode(segment, bytes).ok());
        seal.map_or(WriteCounter::default(), |seal| seal.counter)
    }

    /// Compares a seal with the expected entry and returns it. An object that never existed has an
    /// empty seal. Errors: [`Kind::Corrupt`]; then no part of the object may be trusted.
    pub(crate) fn compare(
        &self,
        segment: Segment,
        expected: VersionEntry,
        fetched: &FetchedSeal,
    ) -> Result<Seal> {
        let found = fetched.seal.as_ref().map(|bytes| self.key.decode(segment, bytes)).transpose()?;
        let bad = |what: &str, expected: String| {
            let found = found.map_or("no object, or one without a seal".into(), |seal| {
                let Seal { counter, snapshot, .. } = seal;
                format!("write number {}, made after snapshot number {}", counter.0, snapshot.0)
            });
            Err(Error::new(Kind::Corrupt, format!("{segment} {what}"))
                .found(found)
                .expected(expected)
                .hint(BAD_OBJECT_HINT))
        };
        let VersionEntry { counter, is_exact: exact, first_later_counter: beyond, .. } = expected;
        let expects = format!("write number {}{}", counter.0, if exact { "" } else { " or a later one" });
        let Some(seal) = found else {
            return match (counter, fetched.version) {
                (WriteCounter(0), None) => Ok(Seal::default()),
                (WriteCounter(0), Some(_)) => bad("was not written by this disk", "no object yet".into()),
                _ => bad("is missing", expects),
            };
        };
        if seal.counter < counter {
            return bad("is an older version", expects);
        }
        if seal.counter >= beyond {
            return Err(PageNumber::of(segment).older_page_error(segment, seal.counter));
        }
        if exact && seal.counter > counter {
            return bad("is newer than the version table: the version table is an older version", expects);
        }
        match self.view {
            Some(view) if seal.snapshot >= view => {
                bad("is newer than the snapshot", format!("a write before snapshot number {}", view.0))
            }
            None if seal.snapshot > self.newest.get() => bad(
                "has a later snapshot number than the snapshot table: the table is an older version",
                expects,
            ),
            _ => Ok(seal),
        }
    }
}
