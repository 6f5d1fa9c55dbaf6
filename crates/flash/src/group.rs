//! A group: what the log takes in one go. One unit of header, then nodes.
//!
//! The header says of each node what it is of, which key encrypted it, its sequence number and its tag, and what it replaced, so
//! that replay needs nothing but headers. It is encrypted and authenticated with the key of the log under a nonce of its own
//! (docs/format/flash.md).

use crate::numbers::{KeyPosition, Place, Target, Unit};
use lacuna_core::{Record, RecordMut};
use lacuna_crypto::{GcmKey, RandomSource};

const NONCE: usize = 12;
const TAG: usize = 16;
const SEALED: usize = NONCE + TAG;
/// What stands before the entries.
const FRONT: usize = 24;
const ENTRY: usize = 40;
const ENTRY_OF_RECORD: usize = 16;
const INDEX_FLAG: u32 = 1 << 31;
/// As many ordinals fit an entry of the index.
const MOST_ORDINALS: usize = 64;

/// The most nodes of a group.
pub(crate) fn most_nodes(unit: u32) -> u32 {
    ((unit as usize - SEALED - FRONT) / ENTRY).min(MOST_ORDINALS) as u32
}

/// The most entries of a record.
pub(crate) fn most_records(unit: u32) -> usize {
    (unit as usize - SEALED - FRONT) / ENTRY_OF_RECORD
}

/// What the header says of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeEntry {
    /// What it is of.
    pub(crate) target: Target,
    /// Its key; of a page of the index, random bits of its nonce.
    pub(crate) key: u32,
    /// When it was encrypted: copies keep it.
    pub(crate) sequence: u64,
    /// Its authentication tag.
    pub(crate) tag: [u8; TAG],
    /// Where the version was that it replaces. A copy of the same version has the same key.
    pub(crate) replaced: Option<Place>,
}

/// An entry of the index that a discard empties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Discarded {
    /// The block.
    pub(crate) block: u32,
    /// Where it was.
    pub(crate) place: Place,
}

/// What a group is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nodes follow, as many as entries.
    Nodes(Vec<NodeEntry>),
    /// Blocks that became holes.
    Discard(Vec<Discarded>),
    /// A purge begins; its epoch.
    PurgeStart(u64),
    /// These blocks of the key storage area have new keys wherever none was used.
    Renewed(Vec<u32>),
    /// The purge of this epoch is complete: nothing that was deleted before its start can be read any more.
    PurgeFinish(u64),
}

/// The header of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Ascends by one from group to group.
    pub(crate) sequence: u64,
    /// Where the log goes on behind this logical erase block.
    pub(crate) next_leb: u32,
    /// Checksum of the nodes: tells a group that a power cut tore.
    pub(crate) checksum: u32,
    pub(crate) content: Content,
}

impl Header {
    /// Nodes that follow.
    pub(crate) fn nodes(&self) -> &[NodeEntry] {
        match &self.content {
            Content::Nodes(nodes) => nodes,
            _ => &[],
        }
    }

    /// One unit.
    pub(crate) fn seal(&self, unit: u32, place: Unit, key: &GcmKey, random: &dyn RandomSource) -> Vec<u8> {
        let mut plain = vec![0; unit as usize - SEALED];
        let mut record = RecordMut(&mut plain);
        let (kind, count) = self.content.kind();
        record
            .u16(0, kind)
            .u16(2, count as u16)
            .u32(4, self.next_leb)
            .u64(8, self.sequence)
            .u32(16, self.checksum);
        self.content.put(&mut record);
        let mut bytes = vec![0; unit as usize];
        let (nonce, rest) = bytes.split_first_chunk_mut::<NONCE>().expect("a unit is longer");
        let (tag, body) = rest.split_first_chunk_mut::<TAG>().expect("a unit is longer");
        random.fill(nonce);
        *tag = key.seal(nonce, &place.0.to_le_bytes(), &plain, body);
        bytes
    }

    /// What one unit holds. `None` if it is not a header that was written there under this key.
    pub(crate) fn open(bytes: &[u8], place: Unit, key: &GcmKey) -> Option<Header> {
        let (nonce, rest) = bytes.split_first_chunk::<NONCE>().expect("a unit is longer");
        let (tag, body) = rest.split_first_chunk::<TAG>().expect("a unit is longer");
        let mut plain = body.to_vec();
        if key.open_in_place(nonce, &place.0.to_le_bytes(), &mut plain, tag).is_err() {
            return None;
        }
        Self::parse(&plain)
    }

    fn parse(plain: &[u8]) -> Option<Header> {
        let record = Record(plain);
        let content = Content::parse(record.u16(0), usize::from(record.u16(2)), plain)?;
        Some(Header { sequence: record.u64(8), next_leb: record.u32(4), checksum: record.u32(16), content })
    }
}

impl Content {
    fn kind(&self) -> (u16, usize) {
        match self {
            Content::Nodes(nodes) => (1, nodes.len()),
            Content::Discard(discarded) => (2, discarded.len()),
            Content::PurgeStart(_) => (3, 1),
            Content::Renewed(blocks) => (4, blocks.len()),
            Content::PurgeFinish(_) => (5, 1),
        }
    }

    fn put(&self, record: &mut RecordMut<'_>) {
        match self {
            Content::Nodes(nodes) => {
                (FRONT..).step_by(ENTRY).zip(nodes).for_each(|(at, node)| node.put(record, at));
            }
            Content::Discard(discarded) => {
                for (at, entry) in (FRONT..).step_by(ENTRY_OF_RECORD).zip(discarded) {
                    record.u32(at, entry.block).u64(at + 8, Place::pack(Some(entry.place)));
                }
            }
            Content::Renewed(blocks) => {
                for (at, block) in (FRONT..).step_by(ENTRY_OF_RECORD).zip(blocks) {
                    record.u32(at, *block);
                }
            }
            Content::PurgeStart(epoch) | Content::PurgeFinish(epoch) => drop(record.u64(FRONT, *epoch)),
        }
    }

    fn parse(kind: u16, count: usize, plain: &[u8]) -> Option<Content> {
        let record = Record(plain);
        let entry = if kind == 1 { ENTRY } else { ENTRY_OF_RECORD };
        if FRONT + count * entry > plain.len() || (kind == 1 && count > MOST_ORDINALS) {
            return None;
        }
        let places = (FRONT..).step_by(entry).take(count);
        Some(match kind {
            1 => Content::Nodes(places.map(|at| NodeEntry::parse(record, at)).collect()),
            2 => {
                let discarded = places.map(|at| {
                    Some(Discarded { block: record.u32(at), place: Place::unpack(record.u64(at + 8))? })
                });
                Content::Discard(discarded.collect::<Option<_>>()?)
            }
            3 => Content::PurgeStart(record.u64(FRONT)),
            4 => Content::Renewed(places.map(|at| record.u32(at)).collect()),
            5 => Content::PurgeFinish(record.u64(FRONT)),
            _ => return None,
        })
    }
}

impl NodeEntry {
    fn put(&self, record: &mut RecordMut<'_>, at: usize) {
        let target = match self.target {
            Target::Block(block) => block,
            Target::Index(page) => page | INDEX_FLAG,
        };
        record.u32(at, target).u32(at + 4, self.key).u64(at + 8, self.sequence);
        record.u64(at + 16, Place::pack(self.replaced)).put(at + 24, &self.tag);
    }

    fn parse(record: Record<'_>, at: usize) -> NodeEntry {
        let target = record.u32(at);
        NodeEntry {
            target: if target & INDEX_FLAG == 0 {
                Target::Block(target)
            } else {
                Target::Index(target & !INDEX_FLAG)
            },
            key: record.u32(at + 4),
            sequence: record.u64(at + 8),
            replaced: Place::unpack(record.u64(at + 16)),
            tag: record.array(at + 24),
        }
    }

    /// The key of a block of the disk.
    pub(crate) fn key_position(&self) -> Option<KeyPosition> {
        matches!(self.target, Target::Block(_)).then_some(KeyPosition(self.key))
    }
}
