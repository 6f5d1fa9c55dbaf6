//! What clients ask of a level, and of which blocks.

use lacuna_sim::{Digest, Rng};
use std::ops::Range;

/// Clients of a level.
const CLIENTS: u64 = 3;
/// Blocks of a part, at most: so few that requests meet.
const MOST_BLOCKS: u64 = 12;
/// Blocks that one request changes or reads at most, by level: deeper levels take less with each
/// stripe or batch.
const REQUEST: [u64; 3] = [4, 3, 1];

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// From the first block on, a number of blocks, which get a version.
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
    /// The blocks that it changes and the version that they get, if it changes any.
    pub(crate) fn change(self) -> Option<(Range<u64>, u64)> {
        match self {
            Op::Write { first, count, stamp } => Some((first..first + count, stamp)),
            Op::Discard { first, count } => Some((first..first + count, 0)),
            Op::Read { .. } | Op::Flush => None,
        }
    }
}

/// How the blocks of a level are divided that are worked on: into a part of the same length for
/// each client, and one for all of them.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    len: u64,
}

impl Parts {
    /// Of a level of so many blocks.
    pub(crate) fn of(blocks: u64) -> Parts {
        Parts { len: (blocks / (CLIENTS + 1)).min(MOST_BLOCKS) }
    }

    /// The part of a client alone.
    pub(crate) fn own(self, client: u64) -> Range<u64> {
        client * self.len..(client + 1) * self.len
    }

    /// The part of all of them.
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
    /// The blocks whose last change it knows to be before a flush that it asks for.
    pub(crate) flushes: Range<u64>,
    /// What it is still going to ask for.
    pub(crate) script: std::vec::IntoIter<Op>,
}

/// Where in the game a client stands, so that no two of them give the same version.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) session: u64,
    pub(crate) level: usize,
    pub(crate) client: u64,
}

/// The seats of a session, of so many levels.
pub(crate) fn seats(session: u64, levels: usize) -> impl Iterator<Item = Seat> {
    (0..levels).flat_map(move |level| (0..CLIENTS).map(move |client| Seat { session, level, client }))
}

impl Seat {
    /// The version that the `nth` request of this client in this session gives.
    pub(crate) fn stamp(self, nth: u64) -> u64 {
        let of_session = self.level as u64 * CLIENTS + self.client;
        ((self.session << 8 | of_session) << 16) + nth + 1
    }

    /// So many requests of this client, and folds them into a digest.
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
