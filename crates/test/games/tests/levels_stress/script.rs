//! The requests of clients to a level, and the blocks that they use.

use lacuna_sim::{Rng, RunDigest};
use std::ops::Range;

/// The number of clients of a level.
const CLIENTS: u64 = 3;
/// The most blocks of a part: few, so that requests overlap.
const MOST_BLOCKS: u64 = 12;
/// The most blocks of one request, by level: a stripe or batch takes fewer blocks of a deeper
/// level.
const MAX_REQUEST_BLOCKS: [u64; 3] = [4, 3, 1];

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClientOp {
    /// Writes `count` blocks, starting with `first`, with one stamp.
    Write {
        first: u64,
        count: u64,
        stamp: u64,
    },
    Discard {
        first: u64,
        count: u64,
    },
    Read {
        first: u64,
        count: u64,
    },
    Flush,
}

impl ClientOp {
    /// The blocks that it changes and their new version, if it changes any.
    pub(crate) fn changed_blocks(self) -> Option<(Range<u64>, u64)> {
        match self {
            ClientOp::Write { first, count, stamp } => Some((first..first + count, stamp)),
            ClientOp::Discard { first, count } => Some((first..first + count, 0)),
            ClientOp::Read { .. } | ClientOp::Flush => None,
        }
    }
}

/// The division of the used blocks of a level: a part for each client, and a shared part, all of
/// the same length.
#[derive(Clone, Copy)]
pub(crate) struct BlockParts {
    len: u64,
}

impl BlockParts {
    /// The parts of a level with this many blocks.
    pub(crate) fn of_level(blocks: u64) -> BlockParts {
        BlockParts { len: (blocks / (CLIENTS + 1)).min(MOST_BLOCKS) }
    }

    /// The part of one client.
    pub(crate) fn own(self, client: u64) -> Range<u64> {
        client * self.len..(client + 1) * self.len
    }

    /// The shared part.
    pub(crate) fn shared(self) -> Range<u64> {
        self.own(CLIENTS)
    }

    /// All parts.
    pub(crate) fn all(self) -> Range<u64> {
        0..(CLIENTS + 1) * self.len
    }
}

/// A client of one level.
pub(crate) struct LevelClient {
    pub(crate) level: usize,
    /// The blocks with all changes known to precede a flush of this client.
    pub(crate) flushes: Range<u64>,
    /// Its remaining requests.
    pub(crate) script: std::vec::IntoIter<ClientOp>,
}

/// Identifies a client in the game, so that no two clients use the same stamp.
#[derive(Clone, Copy)]
pub(crate) struct ClientId {
    pub(crate) session: u64,
    pub(crate) level: usize,
    pub(crate) client: u64,
}

/// The seats of a session with this many levels.
pub(crate) fn client_ids(session: u64, levels: usize) -> impl Iterator<Item = ClientId> {
    (0..levels).flat_map(move |level| (0..CLIENTS).map(move |client| ClientId { session, level, client }))
}

impl ClientId {
    /// The stamp of the `nth` request of this client in this session.
    pub(crate) fn stamp(self, nth: u64) -> u64 {
        let of_session = self.level as u64 * CLIENTS + self.client;
        ((self.session << 8 | of_session) << 16) + nth + 1
    }

    /// Draws the requests of this client, and adds them to a digest.
    pub(crate) fn draw_script(
        self,
        requests: u64,
        parts: BlockParts,
        rng: &mut Rng,
        digest: &mut RunDigest,
    ) -> Vec<ClientOp> {
        let script: Vec<ClientOp> = (0..requests).map(|nth| self.draw_request(nth, parts, rng)).collect();
        script.iter().for_each(|op| digest.add_bytes(format!("{op:?}").as_bytes()));
        script
    }

    fn draw_request(self, nth: u64, parts: BlockParts, rng: &mut Rng) -> ClientOp {
        let part = if rng.chance(1, 4) { parts.shared() } else { parts.own(self.client) };
        let count = 1 + rng.below(MAX_REQUEST_BLOCKS[self.level]);
        let first = part.start + rng.below(part.end - part.start - count + 1);
        match rng.below(18) {
            0..9 => ClientOp::Write { first, count, stamp: self.stamp(nth) },
            9..14 => ClientOp::Read { first, count },
            14..16 => ClientOp::Discard { first, count },
            _ => ClientOp::Flush,
        }
    }
}
