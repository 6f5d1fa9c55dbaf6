//! The keys of one file, and how counters, tweaks and tags of tree pages enter the ciphers.

use crate::counters::counter::{Counter, Session};
use crate::untrusted::Part;
use lacuna_contracts::Secret;
use lacuna_crypto::{AesBlock, HEDGED, Hctr2Key, SivKey, XtsKey, derive, derive_aes, keyed_hash};
use parking_lot::RwLock;
use std::sync::{Arc, OnceLock};

/// A keyed tag: of a block, or of a page of a tree.
pub(crate) type Tag = [u8; 16];

/// The labels of the key derivations (`docs/format/integrity.md`).
mod label {
    pub(super) const FILE: &str = "integrity file";
    pub(super) const BLOCKS: &str = "integrity blocks";
    pub(super) const TAGS: &str = "integrity block tags";
    pub(super) const TREE: &str = "integrity tree";
    pub(super) const WIDE: &str = "integrity wide blocks";
    pub(super) const PAGES: &str = "integrity pages";
    pub(super) const PLAIN: &str = "integrity plain blocks";
}

/// The keys of one file. Keys that not every file needs are derived on first use.
pub struct FileKeys {
    file: Secret<32>,
    sessions: RwLock<SessionKeys>,
    tags: OnceLock<SivKey>,
    tree: OnceLock<Secret<32>>,
    wide: OnceLock<Hctr2Key>,
    pages: OnceLock<Hctr2Key>,
    xts: OnceLock<XtsKey>,
}

impl FileKeys {
    /// The keys of the file number `file`. No two files under one master key may share a number,
    /// not even one after the other.
    pub fn derive(master: &Secret<32>, file: u64) -> Arc<FileKeys> {
        let file: Secret<32> = derive(master, label::FILE, &file.to_le_bytes());
        let sessions = RwLock::default();
        let (tags, tree, wide) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let (pages, xts) = (OnceLock::new(), OnceLock::new());
        Arc::new(FileKeys { file, sessions, tags, tree, wide, pages, xts })
    }

    /// The key of block tags. A tag is also the nonce of the block's encryption.
    pub(crate) fn siv(&self) -> &SivKey {
        self.tags.get_or_init(|| SivKey::derive(&self.file, label::TAGS, &[]))
    }

    /// The key streams of AES-256-GCM for the blocks that a session wrote.
    pub(crate) fn stream(&self, session: Session) -> Arc<AesBlock> {
        if let Some(key) = self.sessions.read().get(session) {
            return key;
        }
        let key = Arc::new(derive_aes(&self.file, label::BLOCKS, &session.0.to_le_bytes()));
        let mut sessions = self.sessions.write();
        if let Some(key) = sessions.get(session) {
            return key;
        }
        sessions.put(session, key.clone());
        key
    }

    /// The tag of a tree page: HMAC-SHA256 of its level and its entries. Never zero, because zero
    /// means an absent page.
    pub(crate) fn page_tag(&self, level: u8, entries: &[u8]) -> Tag {
        let key = self.tree.get_or_init(|| derive(&self.file, label::TREE, &[]));
        let mut tag: Tag = *keyed_hash(key, &[&[level], entries]).first_chunk().expect("HMAC gives 32 bytes");
        if tag == [0; 16] {
            tag[0] = 1;
        }
        tag
    }

    /// The keyed hash of an array of Figure 6; `which` numbers the arrays, apart from the levels of
    /// trees.
    pub(crate) fn array_hash(&self, which: u8, array: &[u8]) -> Tag {
        debug_assert!(which >= ARRAYS);
        self.page_tag(which, array)
    }

    /// HCTR2 over blocks.
    pub(crate) fn wide(&self) -> &Hctr2Key {
        self.wide.get_or_init(|| hctr2(&derive(&self.file, label::WIDE, &[])))
    }

    /// AES-256-XTS over blocks, for the scheme without integrity.
    pub(crate) fn xts(&self) -> &XtsKey {
        self.xts.get_or_init(|| {
            XtsKey::new(&derive(&self.file, label::PLAIN, &[])).expect("two halves of a derived key differ")
        })
    }

    /// Encrypts a page of US that is not a tree page.
    pub(crate) fn seal_page(&self, part: Part, page: u64, plain: &[u8], sealed: &mut [u8]) {
        self.pages().encrypt(&page_tweak(part, page), plain, sealed);
    }

    /// Decrypts the output of [`FileKeys::seal_page`].
    pub(crate) fn open_page(&self, part: Part, page: u64, bytes: &mut [u8]) {
        self.pages().decrypt_in_place(&page_tweak(part, page), bytes);
    }

    fn pages(&self) -> &Hctr2Key {
        self.pages.get_or_init(|| hctr2(&derive(&self.file, label::PAGES, &[])))
    }
}

/// The first number of an array in keyed hashes; levels of trees are smaller.
pub(crate) const ARRAYS: u8 = 0x80;

fn hctr2(key: &Secret<32>) -> Hctr2Key {
    Hctr2Key::new(key).expect("an AES-256 key has the right length")
}

/// The tweak of a page: its part and its number.
fn page_tweak(part: Part, page: u64) -> [u8; 9] {
    let number = match part {
        Part::Tree(_) => unreachable!("pages of trees are not encrypted"),
        Part::Counters => 1,
        Part::Intervals => 2,
        Part::Order => 3,
        Part::Position => 4,
    };
    let mut tweak = [number; 9];
    tweak[1..].copy_from_slice(&page.to_le_bytes());
    tweak
}

/// The tweak of a block under HCTR2: its index and its write counter.
pub(crate) fn wide_tweak(block: u64, counter: Counter) -> [u8; 20] {
    let mut tweak = [0; 20];
    tweak[..8].copy_from_slice(&block.to_le_bytes());
    tweak[8..16].copy_from_slice(&counter.session.0.to_le_bytes());
    tweak[16..].copy_from_slice(&counter.pass.to_le_bytes());
    tweak
}

/// The data besides the index that the tag of a block binds: its write counter.
pub(crate) fn tag_counter(Counter { session, pass }: Counter) -> [u8; HEDGED] {
    let mut bytes = [0; HEDGED];
    bytes[..8].copy_from_slice(&session.0.to_le_bytes());
    bytes[8..12].copy_from_slice(&pass.to_le_bytes());
    bytes
}

/// The most session keys that are cached: a run of blocks seldom has more sessions.
const SESSIONS: usize = 8;

/// A cache of session keys, first in, first out.
#[derive(Default)]
struct SessionKeys {
    keys: Vec<(Session, Arc<AesBlock>)>,
    /// The next entry to replace.
    oldest: usize,
}

impl SessionKeys {
    fn get(&self, session: Session) -> Option<Arc<AesBlock>> {
        self.keys.iter().find(|(held, _)| *held == session).map(|(_, key)| key.clone())
    }

    fn put(&mut self, session: Session, key: Arc<AesBlock>) {
        if self.keys.len() < SESSIONS {
            return self.keys.push((session, key));
        }
        self.keys[self.oldest] = (session, key);
        self.oldest = (self.oldest + 1) % SESSIONS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_session_keys_are_cached_and_each_is_derived_again() {
        let keys = FileKeys::derive(&Secret::copy_from(&[7; 32]), 1);
        let seal = |session| {
            let (key, mut sealed) = (keys.stream(Session(session)), [0; 32]);
            keys.siv().seal(&key, &[5; HEDGED], &[], &[9; 32], &mut sealed);
            sealed
        };
        let all: Vec<_> = (0..40).map(seal).collect();
        for (one, first) in all.iter().enumerate() {
            assert!(!all[..one].contains(first));
        }
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (seal, all) = (&seal, &all);
                scope.spawn(move || {
                    (0..400).for_each(|n| {
                        let session = (n * (thread + 1) / 3) % 40;
                        assert!(seal(session) == all[session as usize]);
                    });
                });
            }
        });
        assert_eq!(keys.sessions.read().keys.len(), SESSIONS);
    }

    #[test]
    fn the_tag_of_a_page_binds_its_level_and_its_length() {
        let keys = FileKeys::derive(&Secret::copy_from(&[7; 32]), 1);
        let page = [3; 64];
        let tags: Vec<Tag> = (0..8).map(|level| keys.page_tag(level, &page)).collect();
        for (level, tag) in tags.iter().enumerate() {
            assert!(!tags[..level].contains(tag));
            assert!(*tag != keys.page_tag(level as u8, &page[..48]));
            assert!(*tag != keys.array_hash(ARRAYS + level as u8, &page));
        }
    }
}
