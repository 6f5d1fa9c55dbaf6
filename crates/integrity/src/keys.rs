//! The keys of one file, and what they make of a block: initialisation vectors, tweaks, tags of tree pages.

use crate::counter::{Counter, Session};
use crate::untrusted::Part;
use lacuna_core::{Result, Secret};
use lacuna_crypto::{AesBlock, GcmKey, Hctr2Key, XtsKey, derive, derive_ciphers, keyed_hash};
use std::sync::{Arc, OnceLock};

/// A keyed tag: of a block, or of a page of a tree.
pub(crate) type Tag = [u8; 16];

/// The labels of the key derivations (`docs/format/integrity.md`).
mod label {
    pub(super) const FILE: &str = "integrity file";
    pub(super) const BLOCKS: &str = "integrity blocks";
    pub(super) const TREE: &str = "integrity tree";
    pub(super) const WIDE: &str = "integrity wide blocks";
    pub(super) const PAGES: &str = "integrity pages";
    pub(super) const PLAIN: &str = "integrity plain blocks";
}

/// The keys of one file. Those that not every file needs are made when they are first used.
pub struct FileKeys {
    file: Secret<32>,
    gcm: GcmKey,
    prf: AesBlock,
    tree: OnceLock<Secret<32>>,
    wide: OnceLock<Hctr2Key>,
    pages: OnceLock<Hctr2Key>,
    xts: OnceLock<XtsKey>,
}

impl FileKeys {
    /// The keys of the file of this number, which no two files under one master key may share, not even one after the other.
    /// Errors: [`lacuna_core::Kind::Memory`].
    pub fn derive(master: &Secret<32>, file: u64) -> Result<Arc<FileKeys>> {
        let file: Secret<32> = derive(master, label::FILE, &file.to_le_bytes());
        let (gcm, prf) = derive_ciphers(&file, label::BLOCKS, &[])?;
        let (tree, wide) = (OnceLock::new(), OnceLock::new());
        let (pages, xts) = (OnceLock::new(), OnceLock::new());
        Ok(Arc::new(FileKeys { file, gcm, prf, tree, wide, pages, xts }))
    }

    /// AES-256-GCM over blocks.
    pub(crate) fn gcm(&self) -> &GcmKey {
        &self.gcm
    }

    /// The initialisation vectors of blocks, one after the other.
    pub(crate) fn vectors(&self) -> Vectors<'_> {
        Vectors { prf: &self.prf, held: None }
    }

    /// The tag of a page of a tree: HMAC-SHA256 of its level and its entries. Never zero, which means a page that is absent.
    pub(crate) fn page_tag(&self, level: u8, entries: &[u8]) -> Tag {
        let key = self.tree.get_or_init(|| derive(&self.file, label::TREE, &[]));
        let mut tag: Tag = *keyed_hash(key, &[&[level], entries]).first_chunk().expect("HMAC gives 32 bytes");
        if tag == [0; 16] {
            tag[0] = 1;
        }
        tag
    }

    /// The keyed hash of an array of Figure 6, which `which` names (outside of the levels of trees).
    pub(crate) fn array_hash(&self, which: u8, array: &[u8]) -> Tag {
        debug_assert!(which >= ARRAYS);
        self.page_tag(which, array)
    }

    /// HCTR2 over blocks.
    pub(crate) fn wide(&self) -> &Hctr2Key {
        self.wide.get_or_init(|| hctr2(&derive(&self.file, label::WIDE, &[])))
    }

    /// AES-256-XTS over blocks, of the scheme that notices nothing.
    pub(crate) fn xts(&self) -> &XtsKey {
        self.xts.get_or_init(|| {
            XtsKey::new(&derive(&self.file, label::PLAIN, &[])).expect("two halves of a derived key differ")
        })
    }

    /// Encrypts a page of US other than one of a tree.
    pub(crate) fn seal_page(&self, part: Part, page: u64, plain: &[u8], sealed: &mut [u8]) {
        self.pages().encrypt(&page_tweak(part, page), plain, sealed);
    }

    /// Undoes [`FileKeys::seal_page`].
    pub(crate) fn open_page(&self, part: Part, page: u64, bytes: &mut [u8]) {
        self.pages().decrypt_in_place(&page_tweak(part, page), bytes);
    }

    fn pages(&self) -> &Hctr2Key {
        self.pages.get_or_init(|| hctr2(&derive(&self.file, label::PAGES, &[])))
    }
}

/// The numbers of arrays in keyed hashes begin here; levels of trees are smaller.
pub(crate) const ARRAYS: u8 = 0x80;

fn hctr2(key: &Secret<32>) -> Hctr2Key {
    Hctr2Key::new(key).expect("an AES-256 key has the right length")
}

/// The tweak of a page: which part, and which page of it.
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

/// Initialisation vectors (Figure 3): a PRF of index and write counter. The PRF is CBC-MAC with AES-256 over exactly two AES
/// blocks, session and pass in the first, the index in the second; blocks that share a counter share the first step.
pub(crate) struct Vectors<'k> {
    prf: &'k AesBlock,
    held: Option<(Counter, [u8; 16])>,
}

impl Vectors<'_> {
    pub(crate) fn of(&mut self, block: u64, counter: Counter) -> [u8; 12] {
        let mut state = match self.held {
            Some((held, state)) if held == counter => state,
            _ => {
                let Counter { session: Session(session), pass } = counter;
                let mut first = [0; 16];
                first[..8].copy_from_slice(&session.to_le_bytes());
                first[8..12].copy_from_slice(&pass.to_le_bytes());
                let state = self.prf.encrypt(first);
                self.held = Some((counter, state));
                state
            }
        };
        state.iter_mut().zip(block.to_le_bytes()).for_each(|(s, b)| *s ^= b);
        *self.prf.encrypt(state).first_chunk().expect("an AES block has 16 bytes")
    }
}
