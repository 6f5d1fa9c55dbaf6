//! The snapshot mark: an object beside the data objects which proves that the store keeps a
//! snapshot.
//!
//! A store that has lost a snapshot, or never made it, answers queries for it with the present
//! objects, or with none; ciphers without authentication accept either. So the mark holds the
//! number of a snapshot while the snapshot is made, and no number afterwards: only at that snapshot
//! does it hold the number, as long as the store keeps the snapshot.

use crate::snapshots::table::{SnapshotNumber, SnapshotRecord, SnapshotState};
use lacuna_contracts::{Action, Error, Hint, Kind, LeWriter, Result, Secret};
use lacuna_crypto::{constant_time_eq, keyed_hash};
use lacuna_medium::{KeySelection, ObjectStep, ObjectStore, ObjectTransaction, Query, ReadExtent};

/// The object of the data store that holds the mark: beyond all objects of any disk.
pub(crate) const MARK_OBJECT: u64 = 1 << 32;

const MAGIC: &[u8; 8] = b"LACMARK1";
const MARK_LEN: usize = 64;
/// The bytes before the tag.
const SIGNED: usize = 32;
/// The value when no snapshot is being made.
const NONE: SnapshotNumber = SnapshotNumber(0);

/// Makes and reads the mark of one disk. Its key is that of the table of snapshots.
pub(crate) struct SnapshotMark<'a>(pub(crate) &'a Secret<32>);

impl SnapshotMark<'_> {
    fn encode(&self, number: SnapshotNumber) -> [u8; MARK_LEN] {
        let mut bytes = [0; MARK_LEN];
        LeWriter(&mut bytes).put(0, MAGIC).u32(8, number.0);
        let tag = keyed_hash(self.0, &[&bytes[..SIGNED]]);
        bytes[SIGNED..].copy_from_slice(&tag);
        bytes
    }

    fn write(&self, store: &dyn ObjectStore, number: SnapshotNumber) -> Result<()> {
        let bytes = self.encode(number);
        let steps =
            vec![ObjectStep::Write { offset: 0, data: &bytes }, ObjectStep::Truncate(MARK_LEN as u64)];
        let written = store.apply_one(ObjectTransaction { object: MARK_OBJECT, steps });
        written.map(drop).map_err(|e| e.context("writing the mark of a snapshot"))
    }

    /// Writes the number of the snapshot that is about to be made.
    pub(crate) fn set(&self, store: &dyn ObjectStore, number: SnapshotNumber) -> Result<()> {
        self.write(store, number)
    }

    /// Resets the mark. A store that was told of the snapshot keeps the old value for it.
    pub(crate) fn reset(&self, store: &dyn ObjectStore) -> Result<()> {
        self.write(store, NONE)
    }

    /// Whether `view` is of the snapshot with this number.
    pub(crate) fn matches(&self, view: &dyn ObjectStore, number: SnapshotNumber) -> Result<bool> {
        let mut bytes = [0; MARK_LEN];
        let extents = vec![ReadExtent { offset: 0, buf: &mut bytes }];
        match view.query_one(Query { object: MARK_OBJECT, extents, keys: KeySelection::None }) {
            // Some stores report the missing snapshot themselves.
            Err(e) if e.kind() == Kind::NotFound => Ok(false),
            Err(e) => Err(e.context("reading the mark of a snapshot")),
            Ok(_) => Ok(constant_time_eq(&bytes, &self.encode(number))),
        }
    }
}

/// The error for a snapshot that the store no longer has as it was made.
pub(crate) fn lost_snapshot(record: &SnapshotRecord, found: &str) -> Error {
    let error =
        Error::new(Kind::Corrupt, format!("the snapshot {} is not in the store any more", record.name))
            .found(found)
            .expected("the objects that the store kept for it when it was made");
    // The disk cannot be opened to remove it.
    if record.state == SnapshotState::RollingBack {
        return error.hint(
            Hint::from("the interrupted rollback to it cannot be finished: ")
                .action(Action("rescue"))
                .text(" copies what there is"),
        );
    }
    error.hint(
        "it can be neither read nor rolled back to: remove it; if the objects were copied from another pool, read the snapshot there",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sim::MemoryObjects;

    #[test]
    fn a_mark_holds_its_number_only_at_its_snapshot() {
        let (key, other) = (Secret::copy_from(&[1; 32]), Secret::copy_from(&[2; 32]));
        let (store, mark) = (MemoryObjects::new(false), SnapshotMark(&key));
        let mut ids = vec![];
        for number in [1, 2] {
            mark.set(&store, SnapshotNumber(number)).unwrap();
            assert!(mark.matches(&store, SnapshotNumber(number)).unwrap());
            ids.push(store.create_snapshot().unwrap());
            store.set_snapshots(&ids).unwrap();
            mark.reset(&store).unwrap();
        }
        for (nth, id) in (1..).zip(&ids) {
            let view = store.at_snapshot(*id).unwrap();
            for number in 0..4 {
                assert_eq!(mark.matches(&*view, SnapshotNumber(number)).unwrap(), number == nth);
                assert!(!SnapshotMark(&other).matches(&*view, SnapshotNumber(number)).unwrap());
            }
            assert!(!mark.matches(&store, SnapshotNumber(nth)).unwrap());
            store.remove_snapshot(*id).unwrap();
            assert!(!mark.matches(&*view, SnapshotNumber(nth)).unwrap());
        }
    }
}
