//! What a seal says of the entries of its object: for each chunk the tag of the newest link of its chain.
//!
//! The first link is the chunk's page, each further one a delta that carries the tag of the link before it. So the
//! tags in the seal bind every entry of the object: none can be altered, put back or taken away under the same seal.

use super::chunks::CHUNK_BLOCKS;
use super::version_pages::Seen;
use lacuna_core::{Budget, SEGMENT_BLOCKS, Secret};
use lacuna_crypto::{constant_time_eq, derive, keyed_hash};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Chunks of an object.
pub(crate) const CHUNKS: usize = (SEGMENT_BLOCKS / CHUNK_BLOCKS) as usize;
/// Bytes of a tag.
pub(crate) const TAG_LEN: usize = 16;
/// Bytes of the tails of an object.
pub(crate) const TAILS_LEN: usize = CHUNKS * (TAG_LEN + 1);

/// Binds a link and all before it. Zeros: there is none.
pub(crate) type Tag = [u8; TAG_LEN];

/// Where the chain of a chunk ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The tag of the newest link.
    pub(crate) tag: Tag,
    /// The deltas of the chain.
    pub(crate) deltas: u8,
}

/// Where the chains of an object end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tails([Tail; CHUNKS]);

impl Tails {
    pub(crate) fn of(&self, chunk: u64) -> &Tail {
        &self.0[chunk as usize]
    }

    pub(crate) fn set(&mut self, chunk: u64, tail: Tail) {
        self.0[chunk as usize] = tail;
    }

    /// All tags, then all numbers of deltas.
    pub(crate) fn encode(&self) -> [u8; TAILS_LEN] {
        let mut bytes = [0; TAILS_LEN];
        let (tags, deltas) = bytes.split_at_mut(CHUNKS * TAG_LEN);
        for (tail, (tag, number)) in self.0.iter().zip(tags.chunks_exact_mut(TAG_LEN).zip(deltas)) {
            tag.copy_from_slice(&tail.tag);
            *number = tail.deltas;
        }
        bytes
    }

    /// What [`Tails::encode`] wrote.
    pub(crate) fn decode(bytes: &[u8; TAILS_LEN]) -> Tails {
        let (tags, deltas) = bytes.split_at(CHUNKS * TAG_LEN);
        let mut tails = Tails::default();
        for (tail, (tag, number)) in tails.0.iter_mut().zip(tags.chunks_exact(TAG_LEN).zip(deltas)) {
            tail.tag.copy_from_slice(tag);
            tail.deltas = *number;
        }
        tails
    }
}

/// What a link is.
#[derive(Clone, Copy)]
pub(crate) enum Link {
    Page,
    /// The delta of this number, less than 255.
    Delta(u8),
}

impl Link {
    const fn code(self) -> u8 {
        match self {
            Link::Page => u8::MAX,
            Link::Delta(number) => number,
        }
    }
}

/// Makes the tags of one disk.
pub(crate) struct ChainKey(Secret<32>);

impl ChainKey {
    pub(crate) fn new(master: &Secret<32>, uuid: &[u8; 16]) -> ChainKey {
        ChainKey(derive(master, "sealed objects chain", uuid))
    }

    /// The tag of a link with this value.
    pub(crate) fn tag(&self, object: u64, chunk: u64, link: Link, value: &[u8]) -> Tag {
        let place = [&object.to_le_bytes()[..], &[chunk as u8, link.code()]].concat();
        *keyed_hash(&self.0, &[&place, value]).first_chunk().expect("a hash is longer than a tag")
    }

    /// Whether the tag is that of the link.
    pub(crate) fn is_tag_of(&self, tag: &Tag, object: u64, chunk: u64, link: Link, value: &[u8]) -> bool {
        constant_time_eq(tag, &self.tag(object, chunk, link, value))
    }
}

/// What is remembered of an object beside its tails.
const KNOWN_COST: u64 = 320;

/// The tails of objects as they were last seen or written, in a bounded number: the younger half of what was used, and
/// what is left of the half before it.
pub(crate) struct KnownTails {
    half: usize,
    state: Mutex<Halves>,
}

#[derive(Default)]
struct Halves {
    young: HashMap<u64, (Seen, Tails)>,
    old: HashMap<u64, (Seen, Tails)>,
}

impl KnownTails {
    /// As many as the budget has room for.
    pub(crate) fn new(budget: Budget) -> KnownTails {
        let half = (budget.get() / KNOWN_COST / 2).max(8) as usize;
        KnownTails { half, state: Mutex::default() }
    }

    /// The tails of an object of this version.
    pub(crate) fn get(&self, object: u64, version: Seen) -> Option<Tails> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = state.old.remove(&object) {
            state.put(object, known, self.half);
        }
        state.young.get(&object).filter(|(seen, _)| *seen == version).map(|(_, tails)| *tails)
    }

    /// Remembers the tails of an object of this version.
    pub(crate) fn put(&self, object: u64, version: Seen, tails: Tails) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.old.remove(&object);
        state.put(object, (version, tails), self.half);
    }
}

impl Halves {
    fn put(&mut self, object: u64, known: (Seen, Tails), half: usize) {
        if self.young.len() >= half && !self.young.contains_key(&object) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(object, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_survive_their_bytes() {
        let mut tails = Tails::default();
        for chunk in 0..CHUNKS as u64 {
            tails.set(chunk, Tail { tag: [chunk as u8 + 1; TAG_LEN], deltas: 200 + chunk as u8 });
        }
        assert_eq!(Tails::decode(&tails.encode()), tails);
    }

    #[test]
    fn what_is_used_is_remembered_and_the_bound_is_kept() {
        let known = KnownTails::new(Budget::bytes(2 * 10 * KNOWN_COST));
        let version = |object| Seen::of(Some(object + 1));
        for object in 0..1000 {
            known.put(object, version(object), Tails::default());
            assert!(known.get(0, version(0)).is_some(), "{object}");
            let state = known.state.lock().unwrap();
            assert!(state.young.len() <= 10 && state.old.len() <= 10);
        }
        assert_eq!(known.get(1, version(1)), None);
        assert_eq!(known.get(999, version(7)), None, "another version");
    }
}
