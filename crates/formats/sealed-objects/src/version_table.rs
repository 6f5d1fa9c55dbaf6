//! The version table of a disk whose cipher authenticates: how many transactions each object has
//! seen, kept apart from the objects, so that one that was deleted, or put back as it was earlier,
//! is noticed.
//!
//! Every transaction on a data object rewrites the object's seal with a counter one higher. The
//! version table holds the counters. At the first touch of an object in a session its seal is
//! fetched and compared; what is found to be older, missing or forged makes every block of the
//! object unreadable.
//!
//! # Objects that change behind our back
//! With the counters the version table remembers the version that the store gave each object when
//! it was found good or written. Every transaction asserts that version, or that there is still no
//! object: one that was removed or put back meanwhile makes the transaction fail instead of getting
//! a new seal. Its seal is then compared again.
//!
//! An object that is refused is written anew all the same: [`Ticket::refusal`] tells the writer to
//! keep nothing of it, and to mark what it does not write as lost.
//!
//! # The order of transactions
//! One transaction per object is in flight at a time: [`VersionTable::begin`] waits for the one
//! before it. So counters are given in the order in which transactions are performed, and the seal
//! only grows.
//!
//! # Power cuts
//! A counter enters the version table when its transaction was acknowledged, that is, durable. So
//! at every moment the counter in the version table is at most the object's: a cut never makes an
//! object look old. Before the first transaction that a page of the version table counts, the page
//! is marked open, durably; while it is, objects may be ahead of it. It is closed when the disk is,
//! with the counters as they are then; from then on objects must be neither behind nor ahead. A cut
//! leaves it open; the next session that writes under it asks all its objects for their seals at
//! the end, and closes it again.
//!
//! A transaction of unknown outcome may have happened or not: its counter does not enter the
//! version table and is not given again, and its page stays open. The first counter of a session is
//! above all that sessions before it gave (`VersionPages::open_for`), so that such a transaction
//! never passes for one of a later session.
//!
//! # Its parts
//! Tickets (`version_ticket.rs`) over what the session knows of the objects (`objects.rs`: pages in
//! memory, which come from the book; tails; turns) and over the seals in the store (`seals.rs`).
//!
//! # What it does not notice
//! The medium has no trusted storage: older objects put back *with* the version table's object of
//! that time are not noticed, if all objects that a page counts are of that session: any other of a
//! later one betrays the page, if it was open, or if it is to be believed that an object is not
//! there. Nor are, where seals bind no entries, single blocks put back with their metadata under
//! the present seal.

use crate::Stores;
use crate::chain::Tails;
use crate::known_tails::KnownTails;
use crate::objects::Objects;
use crate::seal::{Counter, SealKey, SealPlace};
use crate::seals::{Fetched, Seals};
use crate::segment::Segment;
use crate::snapshot_mark::lost;
use crate::snapshot_table::{NewestSnapshot, SnapshotNumber, SnapshotRecord};
use crate::version_book::{PageNumber, VersionBook};
use crate::version_page::{HeadsTag, PageKey};
use crate::version_pages::{Entry, PAGE_COST, Seen, VersionPages};
use crate::version_ticket::{Standing, Ticket};
use lacuna_contracts::{Budget, Kind, Result, Secret};
use lacuna_crypto::constant_time_eq;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;

/// The fewest pages kept in memory, whatever the budget.
const LEAST_PAGES: u64 = 8;
/// Pages kept in memory of the version table at a snapshot that the disk is rolled back to.
const VIEW_PAGES: usize = 64;

/// What a version table is opened with.
pub(crate) struct VersionTableOptions {
    /// Where the version table is, and where the objects are.
    pub(crate) stores: Stores,
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
    /// The snapshot that the stores are views of.
    pub(crate) view: Option<SnapshotNumber>,
    pub(crate) newest: NewestSnapshot,
}

/// The version table of an open disk.
pub(crate) struct VersionTable {
    objects: Objects,
    seals: Seals,
    segments: u64,
    /// Pages of which all objects were looked at; each with the object that tells that it is an
    /// older one, if one does.
    examined: Mutex<HashMap<PageNumber, Option<(Segment, Counter)>>>,
    examining: Mutex<()>,
}

impl VersionTable {
    /// Opens the version table of a disk. Errors: [`Kind::Corrupt`] if it is not there or does not
    /// verify.
    pub(crate) fn open(
        options: VersionTableOptions,
        master: &Secret<32>,
        uuid: &[u8; 16],
    ) -> Result<VersionTable> {
        let VersionTableOptions { stores, place, segments, binds, budget, read_only, view, newest } = options;
        let book = VersionBook::open(stores.book, segments, read_only, PageKey::new(master, uuid))?;
        // A page tells of 504 objects what the tails tell of one.
        let pages = if binds { budget.share(2, 3) } else { budget };
        let most = (pages.get() / PAGE_COST as u64).max(LEAST_PAGES) as usize;
        let known = binds.then(|| KnownTails::new(budget.share(1, 3)));
        let key = SealKey::new(master, uuid, binds);
        Ok(VersionTable {
            objects: Objects::new(VersionPages::new(book, most, read_only), known),
            seals: Seals { data: stores.data, place, key, view, newest },
            segments,
            examined: Mutex::default(),
            examining: Mutex::default(),
        })
    }

    /// The same disk's version table at a snapshot, of which `stores` are views. Errors:
    /// [`Kind::Corrupt`] if it is not the one of which the record of the snapshot speaks.
    pub(crate) fn at_snapshot(&self, stores: Stores, record: &SnapshotRecord) -> Result<VersionTable> {
        let pages = self.objects.pages.view(stores.book, VIEW_PAGES)?;
        let known = self.seals.key.binds().then(|| KnownTails::new(Budget::bytes(0)));
        let view = Some(SnapshotNumber(record.number));
        let seals = Seals { data: stores.data, view, ..self.seals.clone() };
        let objects = Objects::new(pages, known);
        let (examined, examining) = (Mutex::default(), Mutex::default());
        let past = VersionTable { objects, seals, segments: self.segments, examined, examining };
        past.check_time(record)?;
        Ok(past)
    }

    /// Runs `f` with what a record of a snapshot says of this version table, which is not written
    /// meanwhile.
    pub(crate) fn standing_still<T>(&self, f: impl FnOnce(HeadsTag) -> T) -> T {
        self.objects.pages.standing_still(self.segments, f)
    }

    /// Compares this version table, at a snapshot, with the one of which the record of the snapshot
    /// speaks. Errors: [`Kind::Corrupt`].
    pub(crate) fn check_time(&self, record: &SnapshotRecord) -> Result<()> {
        let heads = self.objects.pages.heads_tag(record.segments());
        if constant_time_eq(&heads, &record.heads) {
            return Ok(());
        }
        Err(lost(&record.name, "the version table of another time"))
    }

    /// Where the seals of objects are.
    pub(crate) fn place(&self) -> SealPlace {
        self.seals.place
    }

    /// What to compare the seal of an object with; `None` if this session has compared it. To be
    /// asked before the seal is fetched.
    pub(crate) fn expect(&self, segment: Segment) -> Result<Option<Entry>> {
        if self.objects.is_verified(segment) { Ok(None) } else { self.expect_again(segment).map(Some) }
    }

    /// The same, whether this session has compared it or not.
    pub(crate) fn expect_again(&self, segment: Segment) -> Result<Entry> {
        self.objects.entry(segment)
    }

    /// Compares what was fetched of an object with what was expected. Gives what its seal says of
    /// its entries.
    ///
    /// Errors: [`Kind::Corrupt`]; nothing of the object may be believed then.
    pub(crate) fn verify(&self, segment: Segment, mut expected: Entry, fetched: &Fetched) -> Result<Tails> {
        if self.objects.is_verified(segment) {
            // Another thread was faster, and may have written since the expectation was formed: the
            // seal may be newer. It may not be older, for that thread may have written an object
            // anew that was refused when this was fetched.
            expected.exact = false;
            expected.beyond = Counter(u64::MAX);
            return self.seals.compare(segment, expected, fetched).map(|seal| seal.tails);
        }
        self.admit(segment, expected, fetched)
    }

    /// Compares, and remembers an object that is as it should be.
    fn admit(&self, segment: Segment, expected: Entry, fetched: &Fetched) -> Result<Tails> {
        self.examine(segment, expected, fetched.version.is_none()).map_err(|e| e.context(segment))?;
        let compared = self.seals.compare(segment, expected, fetched);
        let seal = compared.inspect_err(|_| self.note_later(segment, expected, fetched))?;
        self.objects.admit(segment, expected, Seen::of(fetched.version), &seal)?;
        Ok(seal.tails)
    }

    /// Looks once at all objects that a page counts whose word is not enough: one that a session
    /// before left open, and, before the `absence` of an object is believed, any other. An object
    /// of a later session tells that the page is older. Then nothing that it counts is believed; of
    /// one that was closed, no absence. A neighbour that cannot be read keeps only an absence from
    /// being believed. What a snapshot has needs none of this: its record binds the version table.
    ///
    /// Errors: [`Kind::Corrupt`] for such a page; what the store reports.
    fn examine(&self, segment: Segment, expected: Entry, absence: bool) -> Result<()> {
        let page = PageNumber::of(segment);
        let opened = self.objects.pages.was_open(page);
        let was_open = opened.unwrap_or(!expected.is_closed());
        // A page that was open has been examined before it was opened again.
        let believed = if was_open { opened.is_some() } else { !absence || expected.counter.0 > 0 };
        if believed || self.seals.view.is_some() {
            return Ok(());
        }
        if let Some(verdict) = self.verdict(page) {
            return verdict;
        }
        let _one_at_a_time = self.examining.lock();
        if let Some(verdict) = self.verdict(page) {
            return verdict;
        }
        let range = page.segments();
        let segments: Vec<Segment> = (range.start..range.end.min(self.segments)).map(Segment).collect();
        for (segment, fetched) in segments.iter().zip(self.seals.fetch_all(&segments)) {
            let counter = match fetched {
                Ok(fetched) => self.seals.counter(*segment, &fetched),
                Err(_) if !absence => return Ok(()),
                Err(e) => return Err(e.context(format!("reading the seal of {segment}"))),
            };
            let entry = self.objects.entry(*segment)?;
            let is_later = if was_open {
                counter >= entry.beyond
            } else {
                counter > entry.counter && !self.objects.may_be_ours(*segment)
            };
            if is_later {
                if !self.objects.is_busy(*segment) {
                    self.examined.lock().insert(page, Some((*segment, counter)));
                }
                return Err(page.is_older(*segment, counter));
            }
        }
        self.examined.lock().insert(page, None);
        Ok(())
    }

    /// Remembers that an object, which is refused, tells that its page is older: once it is written
    /// anew, it does not.
    fn note_later(&self, segment: Segment, expected: Entry, fetched: &Fetched) {
        let counter = self.seals.counter(segment, fetched);
        if expected.is_closed() && counter > expected.counter && !self.objects.may_be_ours(segment) {
            self.examined.lock().insert(PageNumber::of(segment), Some((segment, counter)));
        }
    }

    fn verdict(&self, page: PageNumber) -> Option<Result<()>> {
        let found = *self.examined.lock().get(&page)?;
        Some(found.map_or(Ok(()), |(segment, counter)| Err(page.is_older(segment, counter))))
    }

    /// Fetches and compares the seal of an object, unless this session has done it.
    pub(crate) fn touch(&self, segment: Segment) -> Result<()> {
        let Some(expected) = self.expect(segment)? else { return Ok(()) };
        self.verify(segment, expected, &self.seals.fetch(segment)?).map(drop)
    }

    /// Looks at an object whose next transaction is the caller's alone, without asking the store if
    /// its version is remembered.
    ///
    /// Errors: if the version table itself cannot be read there, or the store.
    fn look(&self, segment: Segment) -> Result<Standing> {
        let mut entry = self.objects.entry(segment)?;
        let verified = self.objects.is_verified(segment);
        if let Some(tails) = self.objects.tails(segment, entry.seen).filter(|_| verified) {
            return Ok(Standing { seen: entry.seen, tails, ..Standing::default() });
        }
        // What this session has found good, or written, has the counter that the version table
        // holds.
        entry.exact |= verified;
        let fetched = self.seals.fetch(segment)?;
        if !entry.is_closed() {
            // Under a page that is an older one nothing is written, not even anew.
            self.examine(segment, entry, fetched.version.is_none())?;
        }
        match self.admit(segment, entry, &fetched) {
            Ok(tails) => Ok(Standing { seen: Seen::of(fetched.version), tails, ..Standing::default() }),
            Err(e) if e.kind() == Kind::Corrupt => {
                self.objects.refuse(segment);
                let counter = self.seals.counter(segment, &fetched);
                Ok(Standing { refusal: Some(e), counter, ..Standing::default() })
            }
            Err(e) => Err(e),
        }
    }

    /// The objects that were ever written to, whether or not the store lists them. Those are left
    /// out whose page does not verify: nothing of them is believed.
    pub(crate) fn counted(&self) -> Result<Vec<Segment>> {
        let mut counted = vec![];
        for page in self.objects.pages.written() {
            let range = page.segments();
            // After a crash an open page may be behind its objects: those that were first written
            // since count as well.
            match self.objects.entry(Segment(range.start)) {
                // An object whose seal is not that of the page is told where it is read.
                Ok(entry) if !entry.exact => {
                    self.settle(range.clone())?;
                }
                Err(e) if e.kind() != Kind::Corrupt => return Err(e),
                _ => {}
            }
            for segment in (range.start..range.end.min(self.segments)).map(Segment) {
                match self.objects.entry(segment) {
                    Ok(entry) if entry.counter > Counter(0) => counted.push(segment),
                    Ok(_) => {}
                    Err(e) if e.kind() == Kind::Corrupt => break,
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(counted)
    }

    /// Whether there is no object, and never was one.
    pub(crate) fn is_new(&self, segment: Segment) -> Result<bool> {
        Ok(self.look(segment)?.seen == Seen::ABSENT)
    }

    /// Whether an object is the one that this session saw or wrote last, by the version that came
    /// with an answer. If not, its seal is compared again before anything of it is believed. Only
    /// while no transaction of it is under way; true where nothing is remembered.
    pub(crate) fn is_same(&self, segment: Segment, version: Option<u64>) -> bool {
        let seen = self.objects.pages.seen(segment);
        let same = self.seals.view.is_some() || seen == Seen::UNKNOWN || seen == Seen::of(version);
        if !same {
            self.objects.doubt(segment);
        }
        same
    }

    /// Begins a transaction on an object. Waits for the one before it; a caller that needs several
    /// begins them in ascending order of their objects. If the object is not as it should be, the
    /// ticket says so.
    pub(crate) fn begin(&self, segment: Segment) -> Result<Ticket<'_>> {
        Ticket::take(&self.objects, &self.seals, segment, || self.look(segment))
    }

    /// Begins a transaction that makes an object good whatever its seal is: the caller vouches for
    /// the rest.
    pub(crate) fn begin_anew(&self, segment: Segment) -> Result<Ticket<'_>> {
        Ticket::take(&self.objects, &self.seals, segment, || {
            let counter = self.seals.counter(segment, &self.seals.fetch(segment)?);
            Ok(Standing { counter, ..Standing::default() })
        })
    }

    /// Fetches an object's version and seal, and compares them whether or not that was done before:
    /// what is decided by them must be decided by what was compared.
    fn fetch_good(&self, segment: Segment) -> Result<(Fetched, Tails)> {
        let expected = self.expect_again(segment)?;
        let fetched = self.seals.fetch(segment)?;
        let tails = self.verify(segment, expected, &fetched)?;
        Ok((fetched, tails))
    }

    /// Whether an object is as it was in the past, both as they should be.
    pub(crate) fn is_unchanged_since(&self, past: &VersionTable, segment: Segment) -> Result<bool> {
        let both = self.fetch_good(segment).and_then(|(now, _)| Ok((now, past.fetch_good(segment)?.0)));
        match both {
            Err(e) if e.kind() == Kind::Corrupt => Ok(false),
            Err(e) => Err(e),
            Ok((now, then)) => Ok(now.seal.is_some() && now == then),
        }
    }

    /// What the seal of an object says of its entries. `None`: there is no object, nor should there
    /// be, for every one has a seal. Errors: [`Kind::Corrupt`] if it is not as it should be.
    pub(crate) fn sealed(&self, segment: Segment) -> Result<Option<Tails>> {
        self.fetch_good(segment).map(|(fetched, tails)| fetched.seal.map(|_| tails))
    }

    /// Writes what changed. May be called at any time.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.objects.pages.checkpoint()
    }

    /// Writes what changed and says that no object is ahead of it. No transaction is in flight or
    /// follows.
    pub(crate) fn close(&self) -> Result<()> {
        self.objects.pages.close(|segments| self.settle(segments))
    }

    /// Compares the seals of these segments that were not touched, which raises their counters to
    /// the objects' own. Says whether all were as they should be.
    fn settle(&self, segments: Range<u64>) -> Result<bool> {
        let mut all = true;
        let on_disk = segments.start..segments.end.min(self.segments);
        let untouched = self.objects.unverified(on_disk.map(Segment));
        for (segment, fetched) in untouched.iter().zip(self.seals.fetch_all(&untouched)) {
            match self.verify(*segment, self.expect_again(*segment)?, &fetched?) {
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
