//! The encoding of directories: buckets of entries under the keyed hash of their names, which is
//! also the order of reading.
//!
//! A directory's order must not change while it is read, whatever entries are made, renamed and
//! removed meanwhile. The hash of a name never changes, so the position of an entry is its hash and
//! its slot in the bucket of that hash. The hash is keyed, so that a user cannot choose names that
//! share a bucket.
//!
//! A bucket is a list of entries: slot u8, kind u8, inode u64 (little-endian), length of the name
//! u8, name.

use crate::FileKind;
use lacuna_contracts::{Error, Kind, Result, Secret};
use lacuna_crypto::AesBlock;

/// The most entries of a bucket.
const SLOTS: u8 = 16;
/// Bits of the slot in a cookie.
const SLOT_BITS: u32 = 4;
/// Bytes of an entry before its name.
const HEAD: usize = 11;
/// The cookies of "." and "..": below the cookies of all hashes.
pub(crate) const DOT: u64 = 1;
pub(crate) const DOT_DOT: u64 = 2;

/// Hashes names under a key of the vault: AES-256 in CBC-MAC over the name's length and bytes,
/// truncated to 56 bits.
pub(crate) struct NameHash(AesBlock);

impl NameHash {
    pub(crate) fn new(master: &Secret<32>, uuid: &[u8; 16]) -> NameHash {
        NameHash(AesBlock::new(&lacuna_crypto::derive(master, "vault names", uuid)))
    }

    /// The hash of a name, between 1 and 2^56 - 1.
    pub(crate) fn of(&self, name: &[u8]) -> u64 {
        let mut state = [0; 16];
        state[0] = name.len() as u8;
        for piece in name.chunks(16) {
            state = self.0.encrypt(state);
            state.iter_mut().zip(piece).for_each(|(s, p)| *s ^= p);
        }
        let hash = u64::from_le_bytes(self.0.encrypt(state)[..8].try_into().expect("8 bytes"));
        (hash >> 8).max(1)
    }
}

/// The hash of the bucket with a cookie.
pub(crate) const fn hash_of_cookie(cookie: u64) -> u64 {
    cookie >> SLOT_BITS
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketEntry {
    slot: u8,
    pub(crate) kind: FileKind,
    pub(crate) ino: u64,
    pub(crate) name: Vec<u8>,
}

impl BucketEntry {
    pub(crate) fn cookie(&self, hash: u64) -> u64 {
        hash << SLOT_BITS | u64::from(self.slot)
    }
}

/// The entries of one hash in one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket(pub(crate) Vec<BucketEntry>);

impl Bucket {
    /// Parses a bucket. Errors: [`Kind::Corrupt`] for malformed bytes.
    pub(crate) fn parse(mut bytes: &[u8]) -> Result<Bucket> {
        let mut entries = vec![];
        while !bytes.is_empty() {
            let (entry, rest) = parse_entry(bytes).ok_or_else(|| {
                Error::new(Kind::Corrupt, "cannot read a directory of the namespace")
                    .found(format!("an entry of {} bytes", bytes.len()))
            })?;
            entries.push(entry);
            bytes = rest;
        }
        Ok(Bucket(entries))
    }

    /// The encoding; `None` if it is empty.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(self.0.iter().map(|e| HEAD + e.name.len()).sum());
        for entry in &self.0 {
            out.extend([entry.slot, entry.kind as u8]);
            out.extend(entry.ino.to_le_bytes());
            out.push(entry.name.len() as u8);
            out.extend(&entry.name);
        }
        (!out.is_empty()).then_some(out)
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<&BucketEntry> {
        self.0.iter().find(|entry| entry.name == name)
    }

    /// Replaces the entry with this name, or takes a free slot. Returns `false` if there is none.
    pub(crate) fn set(&mut self, name: &[u8], ino: u64, kind: FileKind) -> bool {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.name == name) {
            (entry.ino, entry.kind) = (ino, kind);
            return true;
        }
        let Some(slot) = (0..SLOTS).find(|slot| self.0.iter().all(|entry| entry.slot != *slot)) else {
            return false;
        };
        let at = self.0.partition_point(|entry| entry.slot < slot);
        self.0.insert(at, BucketEntry { slot, kind, ino, name: name.to_vec() });
        true
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        self.0.retain(|entry| entry.name != name);
    }
}

fn parse_entry(bytes: &[u8]) -> Option<(BucketEntry, &[u8])> {
    let head = bytes.get(..HEAD)?;
    let end = HEAD + usize::from(head[10]);
    let entry = BucketEntry {
        slot: head[0],
        kind: FileKind::from_byte(head[1])?,
        ino: u64::from_le_bytes(head[2..10].try_into().ok()?),
        name: bytes.get(HEAD..end)?.to_vec(),
    };
    (entry.slot < SLOTS).then_some((entry, &bytes[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_keep_slots_and_names() {
        let mut bucket = Bucket::default();
        for n in 0..16u64 {
            assert!(bucket.set(format!("name {n}").as_bytes(), n, FileKind::File));
        }
        assert!(!bucket.set(b"one more", 17, FileKind::File));
        assert!(bucket.set(b"name 3", 33, FileKind::Directory));
        bucket.remove(b"name 5");
        assert!(bucket.set(b"another", 18, FileKind::File));
        assert_eq!(bucket.find(b"another").map(|e| e.cookie(7)), Some(7 << 4 | 5));
        let bytes = bucket.encode().unwrap();
        assert_eq!(Bucket::parse(&bytes).unwrap(), bucket);
        assert!((1..HEAD).all(|cut| Bucket::parse(&bytes[..cut]).is_err()));
        bucket.0.clear();
        assert_eq!(bucket.encode(), None);
    }

    #[test]
    fn hashes_leave_room_for_the_dots_and_depend_on_length_and_key() {
        let hash = |key: u8, name: &[u8]| NameHash::new(&Secret::copy_from(&[key; 32]), &[1; 16]).of(name);
        assert!(hash(1, b"a") >= 1 && hash(1, &[b'x'; 255]) < 1 << 56);
        assert_ne!(hash(1, b"a"), hash(1, b"a\0"));
        assert_ne!(hash(1, b"a"), hash(2, b"a"));
    }
}
