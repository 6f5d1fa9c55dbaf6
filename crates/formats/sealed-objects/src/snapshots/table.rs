//! The table of a disk's snapshots, stored in object 0 of the book: readable without a key,
//! authenticated with one.

use crate::versions::page::{HEADS_TAG_LEN, HeadsTag};
use lacuna_contracts::{Action, Error, Hint, Kind, LeReader, LeWriter, Result, SEGMENT_BLOCKS, Secret};
use lacuna_crypto::{constant_time_eq, derive, keyed_hash};
use lacuna_medium::SnapshotId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The largest number of snapshots of a disk.
pub(crate) const MAX_SNAPSHOTS: usize = 512;
/// The generation of the table of a new disk.
pub(crate) const FIRST_GENERATION: u64 = 1;
/// The longest table in bytes.
pub(crate) const TABLE_MAX: usize = HEAD + MAX_SNAPSHOTS * RECORD;

const MAGIC: &[u8; 8] = b"LACSNAP1";
const HEAD: usize = 64;
/// The head's bytes before the tag.
const SIGNED: usize = 32;
const RECORD: usize = 128;
const HEADS_AT: usize = 40;
const NAME_AT: usize = HEADS_AT + HEADS_TAG_LEN;
/// Longest name in bytes.
const NAME_MAX: usize = 64;

/// The number of a snapshot among all ever made of a disk, starting at 1; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SnapshotNumber(pub(crate) u32);

/// The number of the newest snapshot ever made of an open disk, shared by all parts that store it.
#[derive(Clone)]
pub(crate) struct NewestSnapshot(Arc<AtomicU32>);

impl NewestSnapshot {
    pub(crate) fn new(number: SnapshotNumber) -> NewestSnapshot {
        NewestSnapshot(Arc::new(number.0.into()))
    }

    pub(crate) fn get(&self) -> SnapshotNumber {
        SnapshotNumber(self.0.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, number: SnapshotNumber) {
        self.0.store(number.0, Ordering::Release);
    }
}

/// The state of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotState {
    /// It can be read.
    Ready = 0,
    /// It is being removed. After a power cut, the next opening for writing finishes that.
    Removing = 1,
    /// The disk is being rolled back to it. After a power cut, the next opening for writing
    /// finishes that.
    RollingBack = 2,
}

impl SnapshotState {
    const ALL: [SnapshotState; 3] =
        [SnapshotState::Ready, SnapshotState::Removing, SnapshotState::RollingBack];

    /// The name in messages and scripts.
    pub const fn name(self) -> &'static str {
        match self {
            SnapshotState::Ready => "ready",
            SnapshotState::Removing => "being removed",
            SnapshotState::RollingBack => "being rolled back to",
        }
    }
}

/// One snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// Its number among all snapshots ever made of this disk, starting at 1.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// When it was made, in seconds since 1970 (UTC).
    pub time: u64,
    /// Length of the disk at that time, in blocks.
    pub blocks: u64,
    /// Its identifier in the data store.
    pub data_id: SnapshotId,
    /// Its identifier in the store of the book.
    pub book_id: SnapshotId,
    /// Its state.
    pub state: SnapshotState,
    /// The tag of the version table at that time; zeros without one.
    pub(crate) heads: HeadsTag,
}

impl SnapshotRecord {
    /// Segments of the disk at that time.
    pub(crate) fn segments(&self) -> u64 {
        self.blocks.div_ceil(SEGMENT_BLOCKS)
    }
}

/// All snapshots of a disk, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotTable {
    /// Rises by one with each write, from [`FIRST_GENERATION`].
    pub(crate) generation: u64,
    /// The newest snapshot ever made.
    pub(crate) newest: SnapshotNumber,
    pub(crate) records: Vec<SnapshotRecord>,
}

/// Checks a name: 1 to 64 letters, digits, `-`, `_`, `.` and `:`, starting with a letter or digit.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || b"-_.:".contains(&c);
    let begins = name.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if begins && name.len() <= NAME_MAX && name.bytes().all(fits) {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "cannot use this name for a snapshot")
        .found(format!("{name:?}"))
        .expected("1 to 64 letters (a to z, A to Z), digits, `-`, `_`, `.` and `:`, beginning with a letter or digit")
        .hint("choose such a name"))
}

/// The key of the table's tag.
pub(crate) fn table_key(master: &Secret<32>, uuid: &[u8; 16]) -> Secret<32> {
    derive(master, "sealed objects snapshots", uuid)
}

fn bad_table(found: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, "the table of snapshots (object 0 of the book) does not verify")
        .found(found)
        .expected("the table that this disk wrote")
        .hint(restore_table())
}

/// The advice for a table that is lost or altered.
pub(crate) fn restore_table() -> Hint {
    Hint::from("restore the object from a backup; without one, ")
        .action(Action("rescue"))
        .text(" copies the content of the disk")
}

/// The error for a table of an earlier generation than the version table has recorded.
pub(crate) fn older_table(generation: u64, least: u64) -> Error {
    Error::new(Kind::Corrupt, "the table of snapshots (object 0 of the book) is an older version")
        .found(format!("generation {generation}"))
        .expected(format!("generation {least} or a later one"))
        .hint(
            Hint::from("put back the newest version of that object; if it is lost, ")
                .action(Action("rescue"))
                .text(" copies what there is"),
        )
}

impl SnapshotTable {
    /// The bytes of the table.
    pub(crate) fn encode(&self, key: &Secret<32>) -> Vec<u8> {
        let mut bytes = vec![0; HEAD + self.records.len() * RECORD];
        let mut head = LeWriter(&mut bytes);
        head.put(0, MAGIC).u32(8, self.newest.0).u32(12, self.records.len() as u32).u64(16, self.generation);
        for (record, out) in self.records.iter().zip(bytes[HEAD..].chunks_exact_mut(RECORD)) {
            let (mut out, name) = (LeWriter(out), record.name.as_bytes());
            out.u32(0, record.number).put(4, &[record.state as u8, name.len() as u8]);
            out.u64(8, record.time).u64(16, record.blocks).u64(24, record.data_id).u64(32, record.book_id);
            out.put(HEADS_AT, &record.heads).put(NAME_AT, name);
        }
        let tag = keyed_hash(key, &[&bytes[..SIGNED], &bytes[HEAD..]]);
        bytes[SIGNED..HEAD].copy_from_slice(&tag);
        bytes
    }

    /// Parses the table without a key, for display: its author is unknown. `bytes` may be longer.
    /// Errors: [`Kind::Corrupt`] for malformed tables.
    pub(crate) fn parse(bytes: &[u8]) -> Result<SnapshotTable> {
        let (head, records) =
            bytes.split_at_checked(HEAD).ok_or_else(|| bad_table("fewer bytes than a head"))?;
        if head[..8] != *MAGIC {
            return Err(bad_table("no table of snapshots"));
        }
        let newest = SnapshotNumber(LeReader(head).u32(8));
        let count = LeReader(head).u32(12) as usize;
        let records = match count.checked_mul(RECORD).and_then(|len| records.get(..len)) {
            Some(records) if count <= MAX_SNAPSHOTS && head[24..32] == [0; 8] => records,
            _ => return Err(bad_table(format!("a head with {count} snapshots"))),
        };
        let records: Vec<SnapshotRecord> =
            records.chunks_exact(RECORD).map(parse_record).collect::<Result<_>>()?;
        let numbers = || std::iter::once(0).chain(records.iter().map(|r| r.number));
        let rising = numbers().zip(numbers().skip(1)).all(|(a, b)| a < b);
        if !rising || records.last().is_some_and(|last| last.number > newest.0) {
            return Err(bad_table("snapshots out of order"));
        }
        Ok(SnapshotTable { generation: LeReader(head).u64(16), newest, records })
    }

    /// Parses and verifies the table. Errors: [`Kind::Corrupt`] if this disk did not write it.
    pub(crate) fn decode(bytes: &[u8], key: &Secret<32>) -> Result<SnapshotTable> {
        let table = SnapshotTable::parse(bytes)?;
        let end = HEAD + table.records.len() * RECORD;
        let tag = keyed_hash(key, &[&bytes[..SIGNED], &bytes[HEAD..end]]);
        if constant_time_eq(&tag, &bytes[SIGNED..HEAD]) {
            Ok(table)
        } else {
            Err(bad_table("a table that was altered"))
        }
    }

    /// The snapshot of this name. Errors: [`Kind::NotFound`], with the existing names.
    pub(crate) fn find(&self, name: &str) -> Result<&SnapshotRecord> {
        self.records.iter().find(|record| record.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.records.iter().map(|record| record.name.as_str()).collect();
            let found = if names.is_empty() { "no snapshots".into() } else { names.join(", ") };
            Error::new(Kind::NotFound, format!("the disk has no snapshot {name}"))
                .found(found)
                .hint("choose one that the disk has")
        })
    }
}

fn parse_record(bytes: &[u8]) -> Result<SnapshotRecord> {
    let state = SnapshotState::ALL.into_iter().find(|state| *state as u8 == bytes[4]);
    let state = state.ok_or_else(|| bad_table(format!("a snapshot in state {}", bytes[4])))?;
    let (name, rest) = bytes[NAME_AT..]
        .split_at_checked(bytes[5] as usize)
        .ok_or_else(|| bad_table(format!("a name of {} bytes", bytes[5])))?;
    let name = std::str::from_utf8(name).map_err(|_| bad_table("a name that is not UTF-8"))?;
    check_name(name).map_err(|_| bad_table(format!("a snapshot named {name:?}")))?;
    let zeros = bytes[6..8].iter().chain(rest).all(|b| *b == 0);
    if !zeros {
        return Err(bad_table("bytes of a newer version of lacuna"));
    }
    Ok(SnapshotRecord {
        number: LeReader(bytes).u32(0),
        name: name.into(),
        time: LeReader(bytes).u64(8),
        blocks: LeReader(bytes).u64(16),
        data_id: LeReader(bytes).u64(24),
        book_id: LeReader(bytes).u64(32),
        state,
        heads: *bytes[HEADS_AT..].first_chunk().expect("a record is longer"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u32, name: &str) -> SnapshotRecord {
        SnapshotRecord {
            number,
            name: name.into(),
            time: 1_700_000_000,
            blocks: 5000,
            data_id: 77,
            book_id: 78,
            state: SnapshotState::Ready,
            heads: [number as u8; HEADS_TAG_LEN],
        }
    }

    fn key() -> Secret<32> {
        table_key(&Secret::copy_from(&[1; 32]), &[2; 16])
    }

    #[test]
    fn a_table_survives_encoding_and_every_flipped_bit_is_refused() {
        let mut table = SnapshotTable {
            generation: 4,
            newest: SnapshotNumber(9),
            records: vec![record(2, "a"), record(9, "b:1")],
        };
        table.records[1].state = SnapshotState::RollingBack;
        let mut bytes = table.encode(&key());
        let len = bytes.len();
        for bit in 0..len * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SnapshotTable::decode(&bad, &key()).unwrap_err().kind(), Kind::Corrupt, "bit {bit}");
            // Without the key, some altered bits parse as a different table, which can be encoded.
            if let Ok(other) = SnapshotTable::parse(&bad) {
                assert_eq!(SnapshotTable::decode(&other.encode(&key()), &key()).unwrap(), other, "bit {bit}");
            }
        }
        for end in 0..len {
            assert!(SnapshotTable::decode(&bytes[..end], &key()).is_err());
        }
        bytes.resize(TABLE_MAX, 0);
        assert_eq!(SnapshotTable::decode(&bytes, &key()).unwrap(), table);
        assert_eq!(table.find("b:1").unwrap().number, 9);
        let missing = table.find("c").unwrap_err();
        assert_eq!(missing.kind(), Kind::NotFound);
        assert!(missing.to_string().contains("a, b:1"), "{missing}");
    }

    #[test]
    fn a_malformed_table_is_refused_without_a_key() {
        let refused = |table: SnapshotTable| SnapshotTable::parse(&table.encode(&key())).unwrap_err();
        let one = |record| SnapshotTable { generation: 1, newest: SnapshotNumber(5), records: vec![record] };
        for name in ["", ".a", "a b", "a/b", "-"] {
            assert!(refused(one(record(1, name))).to_string().contains("named"));
        }
        for numbers in [[1, 1], [2, 1], [0, 1], [5, 6]] {
            let records = numbers.map(|n| record(n, "x")).to_vec();
            refused(SnapshotTable { generation: 1, newest: SnapshotNumber(5), records });
        }
        let records: Vec<_> = (1..=MAX_SNAPSHOTS as u32 + 1).map(|n| record(n, "x")).collect();
        refused(SnapshotTable { generation: 1, newest: SnapshotNumber(1000), records });
    }
}
