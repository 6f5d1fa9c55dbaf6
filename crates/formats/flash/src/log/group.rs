//! A group: the unit of appending to the log. One unit of header, then nodes.
//!
//! The header lists for each node its target, the key that encrypted it, its sequence number, its
//! tag, and the place of the node that it replaced, so that replay needs nothing except headers. It
//! is encrypted and authenticated under the key of the log with a random, hedged nonce
//! (docs/format/flash.md). The nonce is long because flash outlives more headers than short nonces
//! are safe for.

use crate::ids::{KeyPosition, NodePlace, NodeTarget, Unit};
use lacuna_contracts::{Error, Kind, LeReader, LeWriter, Result};
use lacuna_crypto::{HedgedNonce, RandomSource, XAES_NONCE, XaesKey};

/// The version of headers of groups.
const VERSION: u8 = 1;
const NONCE: usize = XAES_NONCE;
const TAG: usize = 16;
const SEALED: usize = NONCE + TAG;
/// Bytes before the entries.
const FRONT: usize = 24;
const ENTRY: usize = 40;
const ENTRY_OF_RECORD: usize = 16;
const INDEX_FLAG: u32 = 1 << 31;
/// The limit, since an entry of the index has 6 bits for an ordinal.
pub(crate) const MAX_ORDINALS: u32 = 64;

/// The most nodes of a group.
pub(crate) fn max_nodes(unit: u32) -> u32 {
    (((unit as usize - SEALED - FRONT) / ENTRY) as u32).min(MAX_ORDINALS)
}

/// The most entries of a record.
pub(crate) fn max_records(unit: u32) -> usize {
    (unit as usize - SEALED - FRONT) / ENTRY_OF_RECORD
}

/// The entry of a node in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeEntry {
    /// The content of the node.
    pub(crate) target: NodeTarget,
    /// The position of its key; for a page of the index, random bits of its nonce.
    pub(crate) key: u32,
    /// Its sequence number when it was encrypted. Copies keep it.
    pub(crate) sequence: u64,
    /// Its authentication tag.
    pub(crate) tag: [u8; TAG],
    /// The place of the version that it replaces. A copy of the same version has the same key.
    pub(crate) replaced: Option<NodePlace>,
}

/// An entry of the index that a discard empties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiscardedBlock {
    /// The block.
    pub(crate) block: u32,
    /// Its place before the discard.
    pub(crate) place: NodePlace,
}

/// The content of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupContent {
    /// Nodes. One follows the header for each entry.
    Nodes(Vec<NodeEntry>),
    /// Discarded blocks.
    Discard(Vec<DiscardedBlock>),
    /// The purge of this epoch begins.
    PurgeStart(u64),
    /// In these blocks of the key storage area all keys that were not used are new.
    Renewed(Vec<u32>),
    /// The purge of this epoch is complete: data deleted before its start cannot be read any more.
    PurgeFinish(u64),
}

/// The header of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupHeader {
    /// Ascends by one with each group.
    pub(crate) sequence: u64,
    /// The logical erase block of the log after this one.
    pub(crate) next_leb: u32,
    /// Checksum of the nodes. It detects a group torn by a power cut.
    pub(crate) checksum: u32,
    pub(crate) content: GroupContent,
}

impl GroupHeader {
    /// The entries of the nodes that follow.
    pub(crate) fn nodes(&self) -> &[NodeEntry] {
        match &self.content {
            GroupContent::Nodes(nodes) => nodes,
            _ => &[],
        }
    }

    /// Encrypts the header into one unit.
    ///
    /// Errors: [`Kind::Memory`] if the cipher could not be set up.
    pub(crate) fn seal(
        &self,
        unit: u32,
        place: Unit,
        key: &XaesKey,
        nonces: &HedgedNonce,
        random: &dyn RandomSource,
    ) -> Result<Vec<u8>> {
        let plain = self.encode(unit);
        let mut bytes = vec![0; unit as usize];
        let (nonce, rest) = bytes.split_first_chunk_mut::<NONCE>().expect("a unit is longer");
        let (tag, body) = rest.split_first_chunk_mut::<TAG>().expect("a unit is longer");
        random.fill(nonce);
        let place = place.0.to_le_bytes();
        *nonce = nonces.hedge(*nonce, &place, &plain);
        *tag = key.seal(nonce, &place, &plain, body)?;
        Ok(bytes)
    }

    /// The plaintext of the encrypted part of a unit.
    pub(crate) fn encode(&self, unit: u32) -> Vec<u8> {
        let mut plain = vec![0; unit as usize - SEALED];
        let mut record = LeWriter(&mut plain);
        let (kind, count) = self.content.kind();
        record
            .put(0, &[VERSION, kind])
            .u16(2, count as u16)
            .u32(4, self.next_leb)
            .u64(8, self.sequence)
            .u32(16, self.checksum);
        self.content.put(&mut record);
        plain
    }

    /// Decrypts the header in a unit. `None` if no header was written there under this key.
    ///
    /// Errors: [`Kind::Corrupt`] if the header verifies and has content unknown to this version:
    /// the log does not end there.
    pub(crate) fn open(bytes: &[u8], place: Unit, key: &XaesKey) -> Result<Option<GroupHeader>> {
        let (nonce, rest) = bytes.split_first_chunk::<NONCE>().expect("a unit is longer");
        let (tag, body) = rest.split_first_chunk::<TAG>().expect("a unit is longer");
        let mut plain = body.to_vec();
        if key.open_in_place(nonce, &place.0.to_le_bytes(), &mut plain, tag)?.is_err() {
            return Ok(None);
        }
        Self::parse(&plain).map(Some).ok_or_else(|| unknown(place, &plain))
    }

    /// Decodes a header with a verified tag; `None` for content that this version does not write.
    pub(crate) fn parse(plain: &[u8]) -> Option<GroupHeader> {
        let record = LeReader(plain);
        if plain.len() < FRONT || plain[0] != VERSION || !record.is_zero(20..24) {
            return None;
        }
        let content = GroupContent::parse(plain[1], usize::from(record.u16(2)), plain)?;
        Some(GroupHeader {
            sequence: record.u64(8),
            next_leb: record.u32(4),
            checksum: record.u32(16),
            content,
        })
    }
}

fn unknown(place: Unit, plain: &[u8]) -> Error {
    Error::new(Kind::Corrupt, "the log has a group that this version of lacuna does not understand")
        .found(format!("version {}, kind {}, at unit {}", plain[0], plain[1], place.0))
        .expected(format!("version {VERSION}, kinds 1 to 5"))
        .hint("open the disk with the version of lacuna that wrote it")
}

impl GroupContent {
    fn kind(&self) -> (u8, usize) {
        match self {
            GroupContent::Nodes(nodes) => (1, nodes.len()),
            GroupContent::Discard(discarded) => (2, discarded.len()),
            GroupContent::PurgeStart(_) => (3, 1),
            GroupContent::Renewed(blocks) => (4, blocks.len()),
            GroupContent::PurgeFinish(_) => (5, 1),
        }
    }

    fn put(&self, record: &mut LeWriter<'_>) {
        match self {
            GroupContent::Nodes(nodes) => {
                (FRONT..).step_by(ENTRY).zip(nodes).for_each(|(at, node)| node.put(record, at));
            }
            GroupContent::Discard(discarded) => {
                for (at, entry) in (FRONT..).step_by(ENTRY_OF_RECORD).zip(discarded) {
                    record.u32(at, entry.block).u64(at + 8, NodePlace::pack(Some(entry.place)));
                }
            }
            GroupContent::Renewed(blocks) => {
                for (at, block) in (FRONT..).step_by(ENTRY_OF_RECORD).zip(blocks) {
                    record.u32(at, *block);
                }
            }
            GroupContent::PurgeStart(epoch) | GroupContent::PurgeFinish(epoch) => {
                record.u64(FRONT, *epoch);
            }
        }
    }

    fn parse(kind: u8, count: usize, plain: &[u8]) -> Option<GroupContent> {
        let record = LeReader(plain);
        let entry = if kind == 1 { ENTRY } else { ENTRY_OF_RECORD };
        let most = if kind == 1 { MAX_ORDINALS as usize } else { usize::from(u16::MAX) };
        let end = FRONT + count * entry;
        // All unused bytes are zero, so that a later version may use them.
        if count == 0 || count > most || end > plain.len() || !record.is_zero(end..) {
            return None;
        }
        let places = (FRONT..).step_by(entry).take(count);
        // An entry of a record uses its first 4 or 8 bytes, that of a discard also its last 8.
        let zeros = |from: usize, to: usize| places.clone().all(|at| record.is_zero(at + from..at + to));
        let epoch = || (count == 1 && zeros(8, 16)).then(|| record.u64(FRONT));
        Some(match kind {
            1 => GroupContent::Nodes(places.map(|at| NodeEntry::parse(record, at)).collect::<Option<_>>()?),
            2 if zeros(4, 8) => {
                let discarded = places.map(|at| {
                    Some(DiscardedBlock {
                        block: record.u32(at),
                        place: NodePlace::unpack(record.u64(at + 8))?,
                    })
                });
                GroupContent::Discard(discarded.collect::<Option<_>>()?)
            }
            3 => GroupContent::PurgeStart(epoch()?),
            4 if zeros(4, 16) => GroupContent::Renewed(places.map(|at| record.u32(at)).collect()),
            5 => GroupContent::PurgeFinish(epoch()?),
            _ => return None,
        })
    }
}

impl NodeEntry {
    fn put(&self, record: &mut LeWriter<'_>, at: usize) {
        let target = match self.target {
            NodeTarget::Block(block) => block,
            NodeTarget::Index(page) => page | INDEX_FLAG,
        };
        record.u32(at, target).u32(at + 4, self.key).u64(at + 8, self.sequence);
        record.u64(at + 16, NodePlace::pack(self.replaced)).put(at + 24, &self.tag);
    }

    fn parse(record: LeReader<'_>, at: usize) -> Option<NodeEntry> {
        let target = record.u32(at);
        let replaced = record.u64(at + 16);
        // Only 0 stands for no place.
        (replaced == 0 || NodePlace::unpack(replaced).is_some()).then(|| NodeEntry {
            target: if target & INDEX_FLAG == 0 {
                NodeTarget::Block(target)
            } else {
                NodeTarget::Index(target & !INDEX_FLAG)
            },
            key: record.u32(at + 4),
            sequence: record.u64(at + 8),
            replaced: NodePlace::unpack(replaced),
            tag: record.array(at + 24),
        })
    }

    /// The key of the node, if it is a block of the disk.
    pub(crate) fn key_position(&self) -> Option<KeyPosition> {
        matches!(self.target, NodeTarget::Block(_)).then_some(KeyPosition(self.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 512;

    fn headers() -> Vec<GroupHeader> {
        let place = NodePlace { group: Unit(9), ordinal: 3, key: KeyPosition(77) };
        let node = |target, replaced| NodeEntry { target, key: 5, sequence: 64, tag: [6; TAG], replaced };
        let contents = [
            GroupContent::Nodes(vec![
                node(NodeTarget::Block(1), None),
                node(NodeTarget::Index(2), Some(place)),
            ]),
            GroupContent::Discard(vec![DiscardedBlock { block: 4, place }]),
            GroupContent::PurgeStart(3),
            GroupContent::Renewed(vec![1, 2]),
            GroupContent::PurgeFinish(3),
        ];
        let header = |content| GroupHeader { sequence: 1 << 40, next_leb: 7, checksum: 8, content };
        contents.map(header).into()
    }

    #[test]
    fn group_headers_round_trip() {
        for header in headers() {
            assert_eq!(GroupHeader::parse(&header.encode(UNIT as u32)), Some(header));
        }
    }

    /// Bytes that are zero now are free for later versions, and this version refuses them.
    #[test]
    fn unknown_header_content_is_refused() {
        let place = Unit(3);
        let key = XaesKey::new(&lacuna_contracts::Secret::copy_from(&[1; 32]));
        let open = |plain: &[u8]| {
            let mut bytes = vec![0; UNIT];
            let tag = key.seal(&[9; NONCE], &place.0.to_le_bytes(), plain, &mut bytes[SEALED..]).unwrap();
            bytes[..NONCE].fill(9);
            bytes[NONCE..SEALED].copy_from_slice(&tag);
            GroupHeader::open(&bytes, place, &key)
        };
        for header in headers() {
            let plain = header.encode(UNIT as u32);
            assert_eq!(open(&plain).unwrap(), Some(header));
            // The version; the kind; no entries or too many; the zeros in the front and behind the
            // last entry.
            for (at, byte) in [(0, 2), (1, 0), (1, 6), (2, 0), (3, 1), (20, 1), (UNIT - SEALED - 1, 1)] {
                let mut other = plain.clone();
                other[at] = byte;
                let refused = open(&other).unwrap_err();
                assert_eq!(refused.kind(), Kind::Corrupt, "{at}, {byte}: {refused}");
            }
        }
        // A place with nothing except the key.
        let mut plain = headers()[0].encode(UNIT as u32);
        plain[FRONT + 16] = 7;
        assert_eq!(open(&plain).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(GroupHeader::open(&[0xff; UNIT], place, &key).unwrap(), None);
    }
}
