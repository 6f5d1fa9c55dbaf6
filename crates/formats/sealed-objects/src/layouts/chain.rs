//! The part of a seal about the entries of its object: for each chunk, the tag of the newest link
//! of its chain.
//!
//! The first link is the chunk's page, each further one a delta with the tag of the previous link.
//! So the tags in the seal bind every entry of the object: no entry can be altered, replayed or
//! removed under the same seal.

use crate::layouts::chunks::CHUNK_BLOCKS;
use crate::segment::Segment;
use lacuna_contracts::{SEGMENT_BLOCKS, Secret};
use lacuna_crypto::{constant_time_eq, derive, keyed_hash};

/// Chunks of an object.
pub(crate) const CHUNKS: usize = (SEGMENT_BLOCKS / CHUNK_BLOCKS) as usize;
/// Bytes of a tag.
pub(crate) const TAG_LEN: usize = 16;
/// Bytes of the tails of an object.
pub(crate) const TAILS_LEN: usize = CHUNKS * (TAG_LEN + 1);

/// Binds a link and all links before it. Zeros: there is none.
pub(crate) type ChainTag = [u8; TAG_LEN];

/// The end of the chain of one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainTail {
    /// The tag of the newest link.
    pub(crate) tag: ChainTag,
    /// The number of deltas in the chain.
    pub(crate) deltas: u8,
}

/// The ends of the chains of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainTails([ChainTail; CHUNKS]);

impl ChainTails {
    pub(crate) fn of(&self, chunk: u64) -> &ChainTail {
        &self.0[chunk as usize]
    }

    pub(crate) fn set(&mut self, chunk: u64, tail: ChainTail) {
        self.0[chunk as usize] = tail;
    }

    /// All tags, then all delta counts.
    pub(crate) fn encode(&self) -> [u8; TAILS_LEN] {
        let mut bytes = [0; TAILS_LEN];
        let (tags, deltas) = bytes.split_at_mut(CHUNKS * TAG_LEN);
        for (tail, (tag, number)) in self.0.iter().zip(tags.chunks_exact_mut(TAG_LEN).zip(deltas)) {
            tag.copy_from_slice(&tail.tag);
            *number = tail.deltas;
        }
        bytes
    }

    /// Parses the output of [`ChainTails::encode`].
    pub(crate) fn decode(bytes: &[u8; TAILS_LEN]) -> ChainTails {
        let (tags, deltas) = bytes.split_at(CHUNKS * TAG_LEN);
        let mut tails = ChainTails::default();
        for (tail, (tag, number)) in tails.0.iter_mut().zip(tags.chunks_exact(TAG_LEN).zip(deltas)) {
            tail.tag.copy_from_slice(tag);
            tail.deltas = *number;
        }
        tails
    }
}

/// A kind of link.
#[derive(Clone, Copy)]
pub(crate) enum ChainLink {
    Page,
    /// The delta of this number, less than 255.
    Delta(u8),
}

impl ChainLink {
    const fn code(self) -> u8 {
        match self {
            ChainLink::Page => u8::MAX,
            ChainLink::Delta(number) => number,
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
    pub(crate) fn tag(&self, object: Segment, chunk: u64, link: ChainLink, value: &[u8]) -> ChainTag {
        let place = [&object.0.to_le_bytes()[..], &[chunk as u8, link.code()]].concat();
        *keyed_hash(&self.0, &[&place, value]).first_chunk().expect("a hash is longer than a tag")
    }

    /// Whether the tag is that of the link.
    pub(crate) fn is_tag_of(
        &self,
        tag: &ChainTag,
        object: Segment,
        chunk: u64,
        link: ChainLink,
        value: &[u8],
    ) -> bool {
        constant_time_eq(tag, &self.tag(object, chunk, link, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_tails_survive_encoding() {
        let mut tails = ChainTails::default();
        for chunk in 0..CHUNKS as u64 {
            tails.set(chunk, ChainTail { tag: [chunk as u8 + 1; TAG_LEN], deltas: 200 + chunk as u8 });
        }
        assert_eq!(ChainTails::decode(&tails.encode()), tails);
    }
}
