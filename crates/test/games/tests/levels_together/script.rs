//! The requests of clients to a level, and the blocks that they use.

use lacuna_sim::{Digest, Rng};
use std::ops::Range;

/// The number of clients of a level.
const CLIENTS: u64 = 3;
/// The most blocks of a part: few, so that requests overlap.
const MOST_BLOCKS: u64 = 12;
/// The most blocks of one request, by level: a stripe or batch takes fewer blocks of a deeper
/// level.
const REQUEST: [u64; 3] = [4, 3, 1];

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
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

impl Op {
    /// The blocks that it changes and their new version, if it changes any.
    pub(crate) fn change(self) -> Option<(Range<u64>, u64)> {
        match self {
            Op::Write { first, count, stamp } => Some((first..first + count, stamp)),
            Op::Discard { first, count } => Some((first..first + count, 0)),
            Op::Read { .. } | Op::Flush => None,
        }
    }
}

/// The division of the used blocks of a level: a part for each client, and a shared part, all of
/// the same length.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    len: u64,
}

impl Parts {
    /// The parts of a level with this many blocks.
    pub(crate) fn of(blocks: u64) -> Parts {
        Parts { len: (blocks / (CLIENTS + 1)).min(MOST_BLOCKS) }
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
pub(crate) struct Client {
    pub(crate) level: usize,
    /// The blocks with all changes known to precede a flush of this client.
    pub(crate) flushes: Range<u64>,
    /// Its remaining requests.
    pub(crate) script: std::vec::IntoIter<Op>,
}

/// Identifies a client in the game, so that no two clients use the same stamp.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) session: u64,
    pub(crate) level: usize,
    pub(crate) client: u64,
}

/// The seats of a session with this many levels.
pub(crate) fn seats(session: u64, levels: usize) -> impl Iterator<Item = Seat> {
    (0..levels).flat_map(move |level| (0..CLIENTS).map(move |client| Seat { session, level, client }))
}

impl Seat {
    /// The stamp of the `nth` request of this client in this session.
    pub(crate) fn stamp(self, nth: u64) -> u64 {
        let of_session = self.level as u64 * CLIENTS + self.client;
        ((self.session << 8 | of_session) << 16) + nth + 1
    }

    /// Draws the requests of this client, and adds them to a digest.
    pub(crate) fn script(self, requests: u64, parts: Parts, rng: &mut Rng, digest: &mut Digest) -> Vec<Op> {
        let script: Vec<Op> = (0..requests).map(|nth| self.request(nth, parts, rng)).collect();
        script.iter().for_each(|op| digest.bytes(format!("{op:?}").as_bytes()));
        script
    }

    fn request(self, nth: u64, parts: Parts, rng: &mut Rng) -> Op {
        let part = if rng.chance(1, 4) { parts.shared() } else { parts.own(self.client) };
        let count = 1 + rng.below(REQUEST[self.level]);
        let first = part.start + rng.below(part.end - part.start - count + 1);
        match rng.below(18) {
            0..9 => Op::Write { first, count, stamp: self.stamp(nth) },
            9..14 => Op::Read { first, count },
            14..16 => Op::Discard { first, count },
            _ => Op::Flush,
        }
    }
}
