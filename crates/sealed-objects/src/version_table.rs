//! The version table of a disk whose cipher authenticates: how many transactions each object has seen, kept apart from
//! the objects, so that one that was deleted, or put back as it was earlier, is noticed.
//!
//! Every transaction on a data object rewrites the object's seal with a counter one higher. The version table holds the
//! counters. At the first touch of an object in a session its seal is fetched and compared; what is found to be
//! older, missing or forged makes every block of the object unreadable.
//!
//! # Objects that change behind our back
//! With the counters the version table remembers the version that the store gave each object when it was found good or
//! written. Every transaction asserts that version, or that there is still no object: one that was removed or put
//! back meanwhile makes the transaction fail instead of getting a new seal. Its seal is then compared again.
//!
//! An object that is refused is written anew all the same: [`Ticket::refusal`] tells the writer to keep nothing of
//! it, and to mark what it does not write as lost.
//!
//! # The order of transactions
//! One transaction per object is in flight at a time: [`VersionTable::begin`] waits for the one before it. So counters
//! are given in the order in which transactions are performed, and the seal only grows.
//!
//! # Power cuts
//! A counter enters the version table when its transaction was acknowledged, that is, durable. So at every moment the
//! counter in the version table is at most the object's: a cut never makes an object look old. Before the first
//! transaction that a page of the version table counts, the page is marked open, durably; while it is, objects may be
//! ahead of it. It is closed when the disk is, with the counters as they are then; from then on objects must be
//! neither behind nor ahead. A cut leaves it open; the next session that writes under it asks all its objects for
//! their seals at the end, and closes it again.
//!
//! A transaction of unknown outcome may have happened or not: its counter does not enter the version table and is not
//! given again, and its page stays open. The first counter of a session is above all that sessions before it gave
//! ([`VersionPages::open_for`]), so that such a transaction never passes for one of a later session.
//!
//! # What it does not notice
//! The medium has no trusted storage: who puts back an older object *and* the page of the version table's object of that
//! time is not noticed. Nor is, where seals bind no entries, who puts back single blocks with their metadata under the
//! present seal.

use super::chain::{KnownTails, Tails};
use super::seal::{REMEDY, SEAL_LEN, Seal, SealKey, SealPlace};
use super::version_book::{PAGE_SEGMENTS, PageNumber, VersionBook, page_of};
use super::version_page::PageKey;
use super::version_pages::{Entry, PAGE_COST, Seen, VersionPages};
use lacuna_core::{Budget, Error, Kind, Result, Secret};
use lacuna_medium::ObjectStore;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[path = "version_ticket.rs"]
mod ticket;

pub(crate) use ticket::Ticket;

/// The fewest pages kept in memory, whatever the budget.
const LEAST_PAGES: u64 = 8;
/// Pages kept in memory of the version table at a snapshot that the disk is rolled back to.
const VIEW_PAGES: usize = 64;

/// What a version table is opened with.
pub(crate) struct VersionTableOptions {
    /// Where the version table is.
    pub(crate) book: Arc<dyn ObjectStore>,
    /// Where the objects are.
    pub(crate) data: Arc<dyn ObjectStore>,
    /// Where their seals are.
    pub(crate) place: SealPlace,
    /// How many segments the disk has.
    pub(crate) segments: u64,
    /// Whether seals bind entries.
    pub(crate) binds: bool,
    /// For pages in memory.
    pub(crate) budget: Budget,
    /// Nothing is written.
    pub(crate) read_only: bool,
    /// The snapshot that `book` and `data` are views of.
    pub(crate) view: Option<u32>,
    /// The number of the newest snapshot.
    pub(crate) number: Arc<AtomicU32>,
}

/// The version table of an open disk.
pub(crate) struct VersionTable {
    pages: VersionPages,
    data: Arc<dyn ObjectStore>,
    place: SealPlace,
    seals: SealKey,
    known: KnownTails,
    segments: u64,
    view: Option<u32>,
    number: Arc<AtomicU32>,
    objects: Mutex<Objects>,
    idle: Condvar,
}

/// What this session knows of the objects.
#[derive(Default)]
struct Objects {
    /// A bit for each object whose seal was compared.
    verified: HashMap<PageNumber, [u64; PAGE_SEGMENTS.div_ceil(64) as usize]>,
    /// A transaction is in flight.
    busy: HashSet<u64>,
    /// The last counter of a transaction of unknown outcome.
    lost: HashMap<u64, u64>,
}

impl Objects {
    fn is_verified(&self, object: u64) -> bool {
        let bit = object % PAGE_SEGMENTS;
        let bits = self.verified.get(&page_of(object));
        bits.is_some_and(|bits| bits[bit as usize / 64] >> (bit % 64) & 1 == 1)
    }

    fn set_verified(&mut self, object: u64) {
        let bit = object % PAGE_SEGMENTS;
        self.verified.entry(page_of(object)).or_default()[bit as usize / 64] |= 1 << (bit % 64);
    }

    fn set_doubtful(&mut self, object: u64) {
        let bit = object % PAGE_SEGMENTS;
        if let Some(bits) = self.verified.get_mut(&page_of(object)) {
            bits[bit as usize / 64] &= !(1 << (bit % 64));
        }
    }
}

/// What a look at an object for a transaction found.
enum State {
    /// It is as it should be; its seal says this of its entries.
    Good(Seen, Box<Tails>),
    /// It is not. If its seal is genuine, it has this counter.
    Refused(Error, u64),
}

/// What the seal of an object is compared with.
pub(crate) struct Expected(Entry);

/// The complaint about an object that was there and is not any more.
pub(crate) fn missing(object: u64, counter: u64) -> Error {
    Error::new(Kind::Corrupt, format!("object {object:016x} is missing"))
        .found("no object")
        .expected(format!("one that {counter} writes went to"))
        .remedy(REMEDY)
}

impl VersionTable {
    /// Lays down the version table of a new disk of so many segments.
    pub(crate) fn create(
        book: &dyn ObjectStore,
        segments: u64,
        master: &Secret<32>,
        uuid: &[u8; 16],
    ) -> Result<()> {
        VersionBook::create(book, segments, master, uuid)
    }

    /// Opens the version table of a disk. Errors: [`Kind::Corrupt`] if it is not there or does not verify.
    pub(crate) fn open(
        options: VersionTableOptions,
        master: &Secret<32>,
        uuid: &[u8; 16],
    ) -> Result<VersionTable> {
        let VersionTableOptions { book, data, place, segments, binds, budget, read_only, view, number } =
            options;
        let book = VersionBook::open(book, segments, read_only, PageKey::new(master, uuid))?;
        // A page tells of 504 objects what the tails tell of one.
        let pages = if binds { budget.share(2, 3) } else { budget };
        let most = (pages.get() / PAGE_COST as u64).max(LEAST_PAGES) as usize;
        Ok(VersionTable {
            pages: VersionPages::new(book, most, read_only),
            data,
            place,
            seals: SealKey::new(master, uuid, binds),
            known: KnownTails::new(budget.share(1, 3)),
            segments,
            view,
            number,
            objects: Mutex::default(),
            idle: Condvar::new(),
        })
    }

    /// The same disk's version table at the snapshot of number `view`, of which `book` and `data` are views.
    pub(crate) fn at_snapshot(
        &self,
        book: Arc<dyn ObjectStore>,
        data: Arc<dyn ObjectStore>,
        view: u32,
    ) -> Result<VersionTable> {
        Ok(VersionTable {
            pages: self.pages.view(book, VIEW_PAGES)?,
            data,
            place: self.place,
            seals: self.seals.clone(),
            known: KnownTails::new(Budget::bytes(0)),
            segments: self.segments,
            view: Some(view),
            number: self.number.clone(),
            objects: Mutex::default(),
            idle: Condvar::new(),
        })
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to compare the seal of an object with; `None` if this session has compared it. To be asked before the
    /// seal is fetched.
    pub(crate) fn expect(&self, object: u64) -> Result<Option<Expected>> {
        if self.objects().is_verified(object) {
            return Ok(None);
        }
        self.expect_again(object).map(Some)
    }

    /// The same, whether this session has compared it or not.
    pub(crate) fn expect_again(&self, object: u64) -> Result<Expected> {
        Ok(Expected(self.entry(object)?))
    }

    /// How many transactions of an object are counted.
    pub(crate) fn counter(&self, object: u64) -> Result<u64> {
        Ok(self.entry(object)?.counter)
    }

    fn entry(&self, object: u64) -> Result<Entry> {
        self.pages.entry(object).map_err(|e| e.context(format!("object {object:016x}")))
    }

    /// Compares a seal with what was expected. `None`: the object, whose version came with it, has none, or is not
    /// there. Gives what the seal says of the object's entries.
    ///
    /// Errors: [`Kind::Corrupt`]; nothing of the object may be believed then.
    pub(crate) fn verify(
        &self,
        object: u64,
        expected: &Expected,
        version: Option<u64>,
        seal: Option<&[u8]>,
    ) -> Result<Tails> {
        let mut expected = expected.0;
        if self.objects().is_verified(object) {
            // Somebody was faster, and may have written since the expectation was formed: the seal may be newer. It may
            // not be older, for they may have written an object anew that was refused when this was fetched.
            expected.exact = false;
            let found = seal.map(|bytes| self.seals.read(object, bytes)).transpose()?;
            self.compare(object, expected, version, found)?;
            return Ok(found.unwrap_or_default().tails);
        }
        self.admit(object, expected, version, seal)
    }

    /// Compares, and remembers an object that is as it should be.
    fn admit(
        &self,
        object: u64,
        expected: Entry,
        version: Option<u64>,
        seal: Option<&[u8]>,
    ) -> Result<Tails> {
        let found = seal.map(|bytes| self.seals.read(object, bytes)).transpose()?;
        self.compare(object, expected, version, found)?;
        let Seal { counter, tails, .. } = found.unwrap_or_default();
        if counter > expected.counter {
            self.pages.raise(object, counter)?;
        }
        self.pages.see(object, Seen::of(version));
        self.know(object, Seen::of(version), tails);
        self.objects().set_verified(object);
        Ok(tails)
    }

    /// Remembers what the seal of an object says of its entries.
    fn know(&self, object: u64, seen: Seen, tails: Tails) {
        if self.seals.binds() && ![Seen::ABSENT, Seen::UNKNOWN].contains(&seen) {
            self.known.put(object, seen, tails);
        }
    }

    /// What the seal of an object says of its entries, as far as that is remembered.
    fn tails(&self, object: u64, seen: Seen) -> Option<Tails> {
        match seen {
            Seen::UNKNOWN => None,
            Seen::ABSENT => Some(Tails::default()),
            _ if !self.seals.binds() => Some(Tails::default()),
            _ => self.known.get(object, seen),
        }
    }

    fn compare(&self, object: u64, expected: Entry, version: Option<u64>, found: Option<Seal>) -> Result<()> {
        let bad = |what: &str, found: Option<Seal>, expected: String| {
            let found = found.map_or("no object, or one without a seal".into(), |seal| {
                format!("write number {}, made after snapshot number {}", seal.counter, seal.snapshot)
            });
            Err(Error::new(Kind::Corrupt, format!("object {object:016x} {what}"))
                .found(found)
                .expected(expected)
                .remedy(REMEDY))
        };
        let Entry { counter, exact, .. } = expected;
        let expects = format!("write number {counter}{}", if exact { "" } else { " or a later one" });
        let Some(seal) = found else {
            return match (counter, version) {
                (0, None) => Ok(()),
                (0, Some(_)) => bad("is not one that this disk wrote", None, "no object yet".into()),
                _ => bad("is missing", None, expects),
            };
        };
        if seal.counter < counter {
            return bad("is an older version", found, expects);
        }
        if exact && seal.counter > counter {
            return bad(
                "is newer than the version table: the version table is an older version",
                found,
                expects,
            );
        }
        match self.view {
            Some(view) if seal.snapshot >= view => {
                bad("is newer than the snapshot", found, format!("a write before snapshot number {view}"))
            }
            None if seal.snapshot > self.number.load(Ordering::Acquire) => {
                bad("knows of more snapshots than their table: the table is an older version", found, expects)
            }
            _ => Ok(()),
        }
    }

    /// Fetches and compares the seal of an object, unless this session has done it.
    pub(crate) fn touch(&self, object: u64) -> Result<()> {
        let Some(expected) = self.expect(object)? else { return Ok(()) };
        let (version, seal) = self.fetch(object)?;
        self.verify(object, &expected, version, seal.as_deref()).map(drop)
    }

    /// The version of an object and its seal, as far as it has them.
    fn fetch(&self, object: u64) -> Result<(Option<u64>, Option<Vec<u8>>)> {
        let mut buf = [0; SEAL_LEN];
        let found = self
            .data
            .query_one(self.place.query(object, &mut buf))
            .map_err(|e| e.context(format!("reading the seal of object {object:016x}")))?;
        Ok((found.version, self.place.found(&found, &buf)))
    }

    /// Looks at an object whose next transaction is the caller's alone, without asking the store if its version is
    /// remembered.
    ///
    /// Errors: if the version table itself cannot be read there, or the store.
    fn state(&self, object: u64) -> Result<State> {
        let mut entry = self.entry(object)?;
        let verified = self.objects().is_verified(object);
        if let Some(tails) = self.tails(object, entry.seen).filter(|_| verified) {
            return Ok(State::Good(entry.seen, Box::new(tails)));
        }
        // What this session has found good, or written, has the counter that the version table holds.
        entry.exact |= verified;
        let (version, seal) = self.fetch(object)?;
        match self.admit(object, entry, version, seal.as_deref()) {
            Ok(tails) => Ok(State::Good(Seen::of(version), Box::new(tails))),
            Err(e) if e.kind() == Kind::Corrupt => {
                self.objects().set_doubtful(object);
                let genuine = seal.and_then(|bytes| self.seals.read(object, &bytes).ok());
                Ok(State::Refused(e, genuine.map_or(0, |seal| seal.counter)))
            }
            Err(e) => Err(e),
        }
    }

    /// Whether there is no object, and never was one.
    pub(crate) fn is_new(&self, object: u64) -> Result<bool> {
        Ok(matches!(self.state(object)?, State::Good(Seen::ABSENT, _)))
    }

    /// Whether an object is the one that this session saw or wrote last, by the version that came with an answer.
    /// If not, its seal is compared again before anything of it is believed. Only while no transaction of it is
    /// under way; true where nothing is remembered.
    pub(crate) fn is_same(&self, object: u64, version: Option<u64>) -> bool {
        let seen = self.pages.seen(object);
        let same = self.view.is_some() || seen == Seen::UNKNOWN || seen == Seen::of(version);
        if !same {
            self.doubt(object);
        }
        same
    }

    /// Nothing of an object is believed until its seal was compared again.
    fn doubt(&self, object: u64) {
        self.pages.see(object, Seen::UNKNOWN);
        self.objects().set_doubtful(object);
    }

    /// Begins a transaction on an object. Waits for the one before it; who needs several begins them in ascending
    /// order of their objects. If the object is not as it should be, the ticket says so.
    pub(crate) fn begin(&self, object: u64) -> Result<Ticket<'_>> {
        let ticket = self.take(object);
        match self.state(object)? {
            State::Good(seen, tails) => ticket.keeping(seen, *tails),
            State::Refused(why, counter) => ticket.refused(why, counter),
        }
    }

    /// Begins a transaction that makes an object good whatever its seal is: the caller vouches for the rest.
    pub(crate) fn begin_anew(&self, object: u64) -> Result<Ticket<'_>> {
        let ticket = self.take(object);
        let seal = self.fetch(object)?.1.and_then(|bytes| self.seals.read(object, &bytes).ok());
        ticket.ready(seal.map_or(0, |seal| seal.counter))
    }

    /// Fetches an object's version and seal, and compares them whether or not that was done before: what is decided by
    /// them must be decided by what was compared.
    fn fetch_good(&self, object: u64) -> Result<(Option<u64>, Option<Vec<u8>>, Tails)> {
        let expected = self.expect_again(object)?;
        let (version, seal) = self.fetch(object)?;
        let tails = self.verify(object, &expected, version, seal.as_deref())?;
        Ok((version, seal, tails))
    }

    /// Whether an object is as it was in the past, both as they should be.
    pub(crate) fn is_unchanged_since(&self, past: &VersionTable, object: u64) -> Result<bool> {
        let both = self.fetch_good(object).and_then(|now| Ok((now, past.fetch_good(object)?)));
        match both {
            Err(e) if e.kind() == Kind::Corrupt => Ok(false),
            Err(e) => Err(e),
            Ok((now, then)) => Ok(now.1.is_some() && (now.0, now.1) == (then.0, then.1)),
        }
    }

    /// What the seal of an object says of its entries. `None`: there is no object, nor should there be, for every one has
    /// a seal. Errors: [`Kind::Corrupt`] if it is not as it should be.
    pub(crate) fn sealed(&self, object: u64) -> Result<Option<Tails>> {
        self.fetch_good(object).map(|(_, seal, tails)| seal.map(|_| tails))
    }

    fn take(&self, object: u64) -> Ticket<'_> {
        let mut objects = self.objects();
        while !objects.busy.insert(object) {
            objects = self.idle.wait(objects).unwrap_or_else(PoisonError::into_inner);
        }
        drop(objects);
        Ticket::new(self, object)
    }

    /// Writes what changed. May be called at any time.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.pages.checkpoint()
    }

    /// Writes what changed and says that no object is ahead of it. No transaction is in flight or follows.
    pub(crate) fn close(&self) -> Result<()> {
        self.pages.close(|segments| self.settle(segments))
    }

    /// Compares the seals of these segments that were not touched, which raises their counters to the objects'
    /// own. Says whether all were as they should be.
    fn settle(&self, segments: Range<u64>) -> Result<bool> {
        let mut all = true;
        let untouched: Vec<u64> = {
            let objects = self.objects();
            segments.filter(|s| *s < self.segments && !objects.is_verified(*s)).collect()
        };
        let mut seals = vec![[0; SEAL_LEN]; untouched.len()];
        let mut queries: Vec<_> =
            untouched.iter().zip(&mut seals).map(|(object, seal)| self.place.query(*object, seal)).collect();
        let answers = self.data.query(&mut queries);
        drop(queries);
        for ((object, seal), found) in untouched.into_iter().zip(&seals).zip(answers) {
            let Some(expected) = self.expect(object)? else { continue };
            let found = found?;
            let seal = self.place.found(&found, seal);
            match self.verify(object, &expected, found.version, seal.as_deref()) {
                Err(e) if e.kind() == Kind::Corrupt => all = false,
                other => drop(other?),
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
#[path = "version_table_tests.rs"]
mod tests;
