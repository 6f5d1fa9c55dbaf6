//! The session's knowledge of the objects that the version table counts: counters, verified
//! versions, tails from seals, and the transaction in flight.
//!
//! Invariants:
//! - At most one transaction of an object is in flight: [`SessionObjects::begin_exclusive`] waits
//!   for the one before it.
//! - A counter is assigned once. It enters the version table when its transaction is acknowledged.
//!   If the outcome is unknown, the counter is recorded as lost, so that the next one is above it.
//! - Lock order: the session before the pages and the tails.

use crate::layouts::chain::ChainTails;
use crate::layouts::tail_cache::TailCache;
use crate::segment::Segment;
use crate::versions::pages::{StoreVersion, VersionEntry, VersionPages};
use crate::versions::seal::{Seal, WriteCounter};
use crate::versions::store::{PAGE_SEGMENTS, PageNumber};
use lacuna_contracts::Result;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};

/// How a transaction ended.
pub(crate) enum TransactionOutcome {
    Unknown,
    /// It happened; the object now has this version.
    Acknowledged(StoreVersion),
    /// It did not happen and will not. The object's version, as far as it is known.
    NotPerformed(StoreVersion),
    /// There was no transaction, and the object must not be trusted.
    Distrusted,
}

#[derive(Default)]
struct SessionObjectsState {
    /// A bit for each object with a verified seal.
    verified: HashMap<PageNumber, [u64; PAGE_SEGMENTS.div_ceil(64) as usize]>,
    /// Objects with a transaction in flight.
    busy: HashSet<Segment>,
    /// The last counter used by a transaction of unknown outcome.
    lost_counters: HashMap<Segment, WriteCounter>,
}

/// The index of an object's word among the bits of its page, and its bit there.
fn bit(segment: Segment) -> (usize, u64) {
    let at = segment.0 % PAGE_SEGMENTS;
    (at as usize / 64, 1 << (at % 64))
}

impl SessionObjectsState {
    fn is_verified(&self, segment: Segment) -> bool {
        let (word, bit) = bit(segment);
        self.verified.get(&PageNumber::of(segment)).is_some_and(|bits| bits[word] & bit != 0)
    }

    fn set_verified(&mut self, segment: Segment) {
        let (word, bit) = bit(segment);
        self.verified.entry(PageNumber::of(segment)).or_default()[word] |= bit;
    }

    fn clear_verified(&mut self, segment: Segment) {
        let (word, bit) = bit(segment);
        if let Some(bits) = self.verified.get_mut(&PageNumber::of(segment)) {
            bits[word] &= !bit;
        }
    }
}

/// The objects of a disk as one session knows them.
pub(crate) struct SessionObjects {
    pub(crate) pages: VersionPages,
    /// Present if seals bind entries.
    tail_cache: Option<TailCache>,
    state: Mutex<SessionObjectsState>,
    idle: Condvar,
}

impl SessionObjects {
    pub(crate) fn new(pages: VersionPages, known: Option<TailCache>) -> SessionObjects {
        SessionObjects { pages, tail_cache: known, state: Mutex::default(), idle: Condvar::new() }
    }

    /// The version table's entry of an object.
    pub(crate) fn entry(&self, segment: Segment) -> Result<VersionEntry> {
        self.pages.entry(segment).map_err(|e| e.context(segment))
    }

    /// Whether this session has verified the seal of an object.
    pub(crate) fn is_verified(&self, segment: Segment) -> bool {
        self.state.lock().is_verified(segment)
    }

    /// Whether this session may have written the present object, or has verified it.
    pub(crate) fn may_be_of_this_session(&self, segment: Segment) -> bool {
        let session = self.state.lock();
        session.is_verified(segment) || session.lost_counters.contains_key(&segment)
    }

    /// Whether a transaction of an object is in flight or being prepared.
    pub(crate) fn is_busy(&self, segment: Segment) -> bool {
        self.state.lock().busy.contains(&segment)
    }

    /// The objects among `segments` with seals that this session has not verified.
    pub(crate) fn unverified(&self, segments: impl Iterator<Item = Segment>) -> Vec<Segment> {
        let session = self.state.lock();
        segments.filter(|segment| !session.is_verified(*segment)).collect()
    }

    /// Records an object with a verified seal.
    pub(crate) fn record_verified(
        &self,
        segment: Segment,
        expected: VersionEntry,
        seen: StoreVersion,
        seal: &Seal,
    ) -> Result<()> {
        if seal.counter > expected.counter {
            self.pages.raise_counter(segment, seal.counter)?;
        }
        self.pages.set_version(segment, seen);
        self.cache_tails(segment, seen, seal.tails);
        self.state.lock().set_verified(segment);
        Ok(())
    }

    /// Records that the seal of an object did not verify.
    pub(crate) fn record_refused(&self, segment: Segment) {
        self.state.lock().clear_verified(segment);
    }

    /// Drops trust in an object until its seal is verified again.
    pub(crate) fn distrust(&self, segment: Segment) {
        self.pages.set_version(segment, StoreVersion::UNKNOWN);
        self.record_refused(segment);
    }

    /// Drops trust in every object of a page.
    pub(crate) fn distrust_page(&self, page: PageNumber) {
        self.state.lock().verified.remove(&page);
    }

    /// Caches the tails from an object's seal.
    fn cache_tails(&self, segment: Segment, seen: StoreVersion, tails: ChainTails) {
        if let Some(known) = self
            .tail_cache
            .as_ref()
            .filter(|_| ![StoreVersion::ABSENT, StoreVersion::UNKNOWN].contains(&seen))
        {
            known.put(segment, seen, tails);
        }
    }

    /// The cached tails of an object of this version.
    pub(crate) fn tails(&self, segment: Segment, seen: StoreVersion) -> Option<ChainTails> {
        match (seen, &self.tail_cache) {
            (StoreVersion::UNKNOWN, _) => None,
            (StoreVersion::ABSENT, _) | (_, None) => Some(ChainTails::default()),
            (_, Some(known)) => known.get(segment, seen),
        }
    }

    /// Waits until no transaction of an object is in flight. The next one belongs to the caller,
    /// until [`SessionObjects::end_exclusive`].
    pub(crate) fn begin_exclusive(&self, segment: Segment) {
        let mut session = self.state.lock();
        while !session.busy.insert(segment) {
            self.idle.wait(&mut session);
        }
    }

    /// Assigns a counter above `least` and above every earlier one, and keeps the page of the
    /// object in memory until [`SessionObjects::end_exclusive`].
    pub(crate) fn assign_counter(&self, segment: Segment, least: WriteCounter) -> Result<WriteCounter> {
        let first = self.pages.open_page_of(segment)?;
        let held = self.pages.pin(segment)?;
        let lost = self.state.lock().lost_counters.get(&segment).copied().unwrap_or_default();
        Ok(held.max(lost).max(least).next().max(first))
    }

    /// Ends a transaction; `seal` is its seal if it has a counter.
    pub(crate) fn end_exclusive(&self, segment: Segment, seal: Option<&Seal>, outcome: &TransactionOutcome) {
        let mut session = self.state.lock();
        if let Some(&Seal { counter, tails, .. }) = seal {
            match *outcome {
                TransactionOutcome::Unknown => {
                    session.lost_counters.insert(segment, counter);
                    self.pages.keep_open(segment);
                    self.pages.unpin(segment, None, StoreVersion::UNKNOWN);
                }
                TransactionOutcome::Acknowledged(seen) => {
                    session.set_verified(segment);
                    session.lost_counters.remove(&segment);
                    self.cache_tails(segment, seen, tails);
                    self.pages.unpin(segment, Some(counter), seen);
                }
                TransactionOutcome::NotPerformed(seen) => {
                    // The store has seen the seal, so its counter is not reused.
                    session.lost_counters.insert(segment, counter);
                    self.pages.unpin(segment, None, seen);
                }
                TransactionOutcome::Distrusted => {
                    session.clear_verified(segment);
                    self.pages.unpin(segment, Some(counter), StoreVersion::UNKNOWN);
                }
            }
        }
        session.busy.remove(&segment);
        drop(session);
        self.idle.notify_all();
    }
}
