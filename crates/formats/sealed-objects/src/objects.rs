//! The session's knowledge of the objects that the version table counts: counters, verified
//! versions, tails from seals, and the transaction in flight.
//!
//! Invariants:
//! - At most one transaction of an object is in flight: [`Objects::take_turn`] waits for the one
//!   before it.
//! - A counter is assigned once. It enters the version table when its transaction is acknowledged.
//!   If the outcome is unknown, the counter is recorded as lost, so that the next one is above it.
//! - Lock order: the session before the pages and the tails.

use crate::chain::Tails;
use crate::known_tails::KnownTails;
use crate::seal::{Counter, Seal};
use crate::segment::Segment;
use crate::version_book::{PAGE_SEGMENTS, PageNumber};
use crate::version_pages::{Entry, Seen, VersionPages};
use lacuna_contracts::Result;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};

/// How a transaction ended.
pub(crate) enum Outcome {
    Unknown,
    /// It happened; the object now has this version.
    Acknowledged(Seen),
    /// It did not happen and will not. The object's version, as far as it is known.
    Declined(Seen),
    /// There was no transaction, and the object must not be trusted.
    Condemned,
}

#[derive(Default)]
struct Session {
    /// A bit for each object with a verified seal.
    verified: HashMap<PageNumber, [u64; PAGE_SEGMENTS.div_ceil(64) as usize]>,
    /// Objects with a transaction in flight.
    busy: HashSet<Segment>,
    /// The last counter used by a transaction of unknown outcome.
    lost: HashMap<Segment, Counter>,
}

/// The index of an object's word among the bits of its page, and its bit there.
fn bit(segment: Segment) -> (usize, u64) {
    let at = segment.0 % PAGE_SEGMENTS;
    (at as usize / 64, 1 << (at % 64))
}

impl Session {
    fn is_verified(&self, segment: Segment) -> bool {
        let (word, bit) = bit(segment);
        self.verified.get(&PageNumber::of(segment)).is_some_and(|bits| bits[word] & bit != 0)
    }

    fn set_verified(&mut self, segment: Segment) {
        let (word, bit) = bit(segment);
        self.verified.entry(PageNumber::of(segment)).or_default()[word] |= bit;
    }

    fn set_doubtful(&mut self, segment: Segment) {
        let (word, bit) = bit(segment);
        if let Some(bits) = self.verified.get_mut(&PageNumber::of(segment)) {
            bits[word] &= !bit;
        }
    }
}

/// The objects of a disk as one session knows them.
pub(crate) struct Objects {
    pub(crate) pages: VersionPages,
    /// Present if seals bind entries.
    known: Option<KnownTails>,
    session: Mutex<Session>,
    idle: Condvar,
}

impl Objects {
    pub(crate) fn new(pages: VersionPages, known: Option<KnownTails>) -> Objects {
        Objects { pages, known, session: Mutex::default(), idle: Condvar::new() }
    }

    /// The version table's entry of an object.
    pub(crate) fn entry(&self, segment: Segment) -> Result<Entry> {
        self.pages.entry(segment).map_err(|e| e.context(segment))
    }

    /// Whether this session has verified the seal of an object.
    pub(crate) fn is_verified(&self, segment: Segment) -> bool {
        self.session.lock().is_verified(segment)
    }

    /// Whether this session may have written the present object, or has verified it.
    pub(crate) fn may_be_ours(&self, segment: Segment) -> bool {
        let session = self.session.lock();
        session.is_verified(segment) || session.lost.contains_key(&segment)
    }

    /// Whether a transaction of an object is in flight or being prepared.
    pub(crate) fn is_busy(&self, segment: Segment) -> bool {
        self.session.lock().busy.contains(&segment)
    }

    /// The objects among `segments` with seals that this session has not verified.
    pub(crate) fn unverified(&self, segments: impl Iterator<Item = Segment>) -> Vec<Segment> {
        let session = self.session.lock();
        segments.filter(|segment| !session.is_verified(*segment)).collect()
    }

    /// Records an object with a verified seal.
    pub(crate) fn admit(&self, segment: Segment, expected: Entry, seen: Seen, seal: &Seal) -> Result<()> {
        if seal.counter > expected.counter {
            self.pages.raise(segment, seal.counter)?;
        }
        self.pages.see(segment, seen);
        self.know(segment, seen, seal.tails);
        self.session.lock().set_verified(segment);
        Ok(())
    }

    /// Records that the seal of an object did not verify.
    pub(crate) fn refuse(&self, segment: Segment) {
        self.session.lock().set_doubtful(segment);
    }

    /// Drops trust in an object until its seal is verified again.
    pub(crate) fn doubt(&self, segment: Segment) {
        self.pages.see(segment, Seen::UNKNOWN);
        self.refuse(segment);
    }

    /// Caches the tails from an object's seal.
    fn know(&self, segment: Segment, seen: Seen, tails: Tails) {
        if let Some(known) = self.known.as_ref().filter(|_| ![Seen::ABSENT, Seen::UNKNOWN].contains(&seen)) {
            known.put(segment, seen, tails);
        }
    }

    /// The cached tails of an object of this version.
    pub(crate) fn tails(&self, segment: Segment, seen: Seen) -> Option<Tails> {
        match (seen, &self.known) {
            (Seen::UNKNOWN, _) => None,
            (Seen::ABSENT, _) | (_, None) => Some(Tails::default()),
            (_, Some(known)) => known.get(segment, seen),
        }
    }

    /// Waits until no transaction of an object is in flight. The next one belongs to the caller,
    /// until [`Objects::end_turn`].
    pub(crate) fn take_turn(&self, segment: Segment) {
        let mut session = self.session.lock();
        while !session.busy.insert(segment) {
            self.idle.wait(&mut session);
        }
    }

    /// Assigns a counter above `least` and above every earlier one, and keeps the page of the
    /// object in memory until [`Objects::end_turn`].
    pub(crate) fn give_counter(&self, segment: Segment, least: Counter) -> Result<Counter> {
        let first = self.pages.open_for(segment)?;
        let held = self.pages.hold(segment)?;
        let lost = self.session.lock().lost.get(&segment).copied().unwrap_or_default();
        Ok(held.max(lost).max(least).next().max(first))
    }

    /// Ends a transaction; `seal` is its seal if it has a counter.
    pub(crate) fn end_turn(&self, segment: Segment, seal: Option<&Seal>, outcome: &Outcome) {
        let mut session = self.session.lock();
        if let Some(&Seal { counter, tails, .. }) = seal {
            match *outcome {
                Outcome::Unknown => {
                    session.lost.insert(segment, counter);
                    self.pages.doubt(segment);
                    self.pages.release(segment, None, Seen::UNKNOWN);
                }
                Outcome::Acknowledged(seen) => {
                    session.set_verified(segment);
                    session.lost.remove(&segment);
                    self.know(segment, seen, tails);
                    self.pages.release(segment, Some(counter), seen);
                }
                Outcome::Declined(seen) => {
                    // The store has seen the seal, so its counter is not reused.
                    session.lost.insert(segment, counter);
                    self.pages.release(segment, None, seen);
                }
                Outcome::Condemned => {
                    session.set_doubtful(segment);
                    self.pages.release(segment, Some(counter), Seen::UNKNOWN);
                }
            }
        }
        session.busy.remove(&segment);
        drop(session);
        self.idle.notify_all();
    }
}
