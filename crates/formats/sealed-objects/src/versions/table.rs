//! The version table of a disk with an authenticating cipher: a transaction counter for each
//! object, stored apart from the objects, so that deletion and replay of objects are detected.
//!
//! Every transaction on a data object rewrites the object's seal with a higher counter. The
//! version table holds the counters. When a session first touches an object, it fetches the seal
//! and compares it with the table. If the object is older, missing or forged, all its blocks are
//! unreadable.
//!
//! # Objects that an adversary replaces during a session
//! Beside the counters, the version table keeps in memory the version that the store gave each
//! object when it was last verified or written. Every transaction asserts that version, or that the
//! object still does not exist. If the object was removed or replaced meanwhile, the transaction
//! fails instead of giving the object a new seal. Its seal is then compared again.
//!
//! An object that does not verify can still be rewritten: [`TransactionTicket::refusal`] tells the
//! writer to keep nothing of it, and to mark the blocks that it does not write as lost.
//!
//! # The order of transactions
//! One transaction per object is in flight at a time: [`VersionTable::begin`] waits for the one
//! before it. So counters are assigned in the order of the transactions, and the counter in the
//! seal only rises.
//!
//! # Power cuts
//! A counter enters the version table when its transaction is acknowledged, and so durable. So the
//! counter in the version table is never above the object's, and a power cut never makes an object
//! look old. Before the first transaction that a page of the version table counts, the page is
//! durably marked open; while it is open, objects may be ahead of it. Closing the disk closes the
//! page with the current counters; after that, objects must be neither behind nor ahead. A power
//! cut leaves the page open; the next session that writes under it fetches the seals of all its
//! objects at the end, and closes it again.
//!
//! A transaction of unknown outcome may have happened or not: its counter does not enter the
//! version table and is not reused, and its page stays open. The first counter of a session is
//! above all counters that earlier sessions assigned (`VersionPages::open_page_of`), so such a
//! transaction cannot pass for one of a later session.
//!
//! # Its parts
//! Tickets (`ticket.rs`) use the session's knowledge of the objects (`session_objects.rs`: cached
//! pages of the version table, tails, turns) and the seals in the store (`seals.rs`). `page_age.rs`
//! compares the objects of a page, to detect an old page.
//!
//! # Undetected attacks
//! The medium has no trusted storage. Replay of older objects *together with* the version table's
//! object of that time is not detected if all objects that a page counts are of that session. Any
//! object of a later session exposes an old page that is open, or an old page that is needed to
//! accept the absence of an object. If seals bind no entries, the replay of single blocks with
//! their metadata under the present seal is not detected either.

use crate::Stores;
use crate::layouts::chain::ChainTails;
use crate::layouts::tail_cache::TailCache;
use crate::segment::Segment;
use crate::session_objects::SessionObjects;
use crate::snapshots::mark::lost_snapshot;
use crate::snapshots::table::{NewestSnapshot, SnapshotNumber, SnapshotRecord};
use crate::versions::page::{HeadsTag, VersionPageKey};
use crate::versions::page_age::{ObjectTouch, OldPage, PageAges};
use crate::versions::pages::{PAGE_COST, StoreVersion, VersionEntry, VersionPages};
use crate::versions::seal::{SealKey, SealPlace, WriteCounter};
use crate::versions::seals::{FetchedSeal, Seals};
use crate::versions::store::{PageNumber, VersionStore};
use crate::versions::ticket::{ObjectState, TransactionTicket};
use lacuna_contracts::{Budget, Kind, Result, Secret};
use lacuna_crypto::constant_time_eq;
use std::ops::Range;

/// The fewest pages kept in memory, whatever the budget.
const MIN_PAGES: u64 = 8;
/// Pages kept in memory for the version table of a snapshot during a rollback to it.
const VIEW_PAGES: usize = 64;

/// The options for opening a version table.
pub(crate) struct VersionTableOptions {
    /// The stores of the version table and of the objects.
    pub(crate) stores: Stores,
    /// The place of the seal in each object.
    pub(crate) place: SealPlace,
    /// The number of segments of the disk.
    pub(crate) segments: u64,
    /// Whether seals bind entries.
    pub(crate) binds_entries: bool,
    /// Memory for cached pages and tails.
    pub(crate) budget: Budget,
    /// Whether all writes are suppressed.
    pub(crate) read_only: bool,
    /// The snapshot if the stores are views of one.
    pub(crate) view: Option<SnapshotNumber>,
    pub(crate) newest: NewestSnapshot,
}

/// The version table of an open disk.
pub(crate) struct VersionTable {
    objects: SessionObjects,
    seals: Seals,
    segments: u64,
    ages: PageAges,
}

impl VersionTable {
    /// Opens the version table of a disk, and writes nothing. Errors: [`Kind::Corrupt`] if it is
    /// missing or does not verify.
    pub(crate) fn open(
        options: VersionTableOptions,
        master: &Secret<32>,
        uuid: &[u8; 16],
    ) -> Result<VersionTable> {
        let VersionTableOptions {
            stores,
            place,
            segments,
            binds_entries: binds,
            budget,
            read_only,
            view,
            newest,
        } = options;
        let book = VersionStore::open(stores.book, segments, VersionPageKey::new(master, uuid))?;
        // A page covers 504 objects, the tails only one.
        let pages = if binds { budget.share(2, 3) } else { budget };
        let most = (pages.get() / PAGE_COST as u64).max(MIN_PAGES) as usize;
        let known = binds.then(|| TailCache::new(budget.share(1, 3)));
        let key = SealKey::new(master, uuid, binds);
        Ok(VersionTable {
            objects: SessionObjects::new(VersionPages::new(book, most, read_only), known),
            seals: Seals { data: stores.data, place, key, view, newest },
            segments,
            ages: PageAges::new(segments),
        })
    }

    /// Adds the parts that the version table of a grown disk lacks. To be called before a disk is
    /// written to.
    pub(crate) fn extend(&mut self) -> Result<()> {
        self.objects.pages.extend(self.segments)
    }

    /// The same disk's version table at a snapshot; `stores` are views of it. Errors:
    /// [`Kind::Corrupt`] if it does not match the record of the snapshot.
    pub(crate) fn at_snapshot(&self, stores: Stores, record: &SnapshotRecord) -> Result<VersionTable> {
        let pages = self.objects.pages.view(stores.book, VIEW_PAGES)?;
        let known = self.seals.key.binds_entries().then(|| TailCache::new(Budget::bytes(0)));
        let view = Some(SnapshotNumber(record.number));
        let seals = Seals { data: stores.data, view, ..self.seals.clone() };
        let objects = SessionObjects::new(pages, known);
        let past =
            VersionTable { objects, seals, segments: self.segments, ages: PageAges::new(self.segments) };
        past.check_matches(record)?;
        Ok(past)
    }

    /// Runs `f` with the tag of this version table for the record of a snapshot. The table is not
    /// written meanwhile.
    pub(crate) fn with_frozen_heads<T>(&self, f: impl FnOnce(HeadsTag) -> T) -> T {
        self.objects.pages.with_frozen_heads(self.segments, f)
    }

    /// Checks that this version table, at a snapshot, matches the record of the snapshot. Errors:
    /// [`Kind::Corrupt`].
    pub(crate) fn check_matches(&self, record: &SnapshotRecord) -> Result<()> {
        let heads = self.objects.pages.heads_tag(record.segments());
        if constant_time_eq(&heads, &record.heads) {
            return Ok(());
        }
        Err(lost_snapshot(record, "the version table of another time"))
    }

    /// The place of the seal in each object.
    pub(crate) fn seal_place(&self) -> SealPlace {
        self.seals.place
    }

    /// The least generation of the table of snapshots, according to the stored version table.
    pub(crate) fn least_table_generation(&self) -> u64 {
        self.objects.pages.least_table_generation()
    }

    /// Binds the table of snapshots, which is in the store with this generation: an older one is
    /// refused from now on. Errors: those of a checkpoint; a later one binds the table.
    pub(crate) fn bind_table(&self, generation: u64) -> Result<()> {
        self.objects.pages.raise_least_table_generation(generation);
        self.checkpoint()
    }

    /// The entry to compare the seal of an object with; `None` if this session has verified it and
    /// knows its version. To be called before the seal is fetched.
    pub(crate) fn unverified_entry(&self, segment: Segment) -> Result<Option<VersionEntry>> {
        // The objects of a snapshot do not change.
        let knows_version =
            || self.seals.view.is_some() || self.objects.pages.version(segment) != StoreVersion::UNKNOWN;
        let is_known = self.objects.is_verified(segment) && knows_version();
        if is_known { Ok(None) } else { self.expected_entry(segment).map(Some) }
    }

    /// The same, whether or not this session has verified the object.
    pub(crate) fn expected_entry(&self, segment: Segment) -> Result<VersionEntry> {
        self.objects.entry(segment)
    }

    /// Compares the fetched seal of an object with the expected entry. Returns the tails from the
    /// seal.
    ///
    /// Errors: [`Kind::Corrupt`]; then no part of the object may be trusted.
    pub(crate) fn verify(
        &self,
        segment: Segment,
        mut expected: VersionEntry,
        fetched: &FetchedSeal,
    ) -> Result<ChainTails> {
        if self.objects.is_verified(segment) {
            // Another thread has verified the object, and may have written since `expected` was
            // formed: the seal may be newer. It may not be older, because that thread may have
            // rewritten a refused object after this fetch.
            expected.is_exact = false;
            expected.first_later_counter = WriteCounter(u64::MAX);
            return self.seals.compare(segment, expected, fetched).map(|seal| seal.tails);
        }
        self.verify_first(segment, expected, fetched)
    }

    /// Compares, and records an object that verifies.
    fn verify_first(
        &self,
        segment: Segment,
        expected: VersionEntry,
        fetched: &FetchedSeal,
    ) -> Result<ChainTails> {
        self.check_page_age(ObjectTouch { segment, expected, fetched, opens_page: false })
            .map_err(|e| e.context(segment))?;
        let compared = self.seals.compare(segment, expected, fetched);
        let seal = compared.inspect_err(|_| {
            self.ages.record_proof(&self.objects, &self.seals, segment, expected, fetched);
        })?;
        self.objects.record_verified(segment, expected, StoreVersion::of(fetched.version), &seal)?;
        Ok(seal.tails)
    }

    /// Compares the objects of a page if the page alone is not sufficient for this touch of one
    /// ([`PageAges::check`]). A snapshot's page needs no comparison: the snapshot's record binds
    /// the version table.
    ///
    /// Errors: [`Kind::Corrupt`] for an old page; all errors of the store.
    fn check_page_age(&self, touch: ObjectTouch<'_>) -> Result<()> {
        if self.seals.view.is_some() {
            return Ok(());
        }
        self.ages.check(&self.objects, &self.seals, touch)
    }

    /// The old pages among those of these objects, and the pages that do not verify. Errors: all
    /// errors of the store.
    pub(crate) fn old_pages(&self, segments: &[Segment]) -> Result<Vec<OldPage>> {
        self.ages.old_pages(&self.objects, &self.seals, segments)
    }

    /// The segments of the disk that a page counts.
    pub(crate) fn segments_of(&self, page: PageNumber) -> impl Iterator<Item = Segment> + use<> {
        self.ages.segments_of(page)
    }

    /// Renews an old page: each of its objects is refused until it is written, with a counter above
    /// every one that an object showed. To be called while no transaction is in flight. Errors: all
    /// errors of the store.
    pub(crate) fn renew_page(&self, old: &OldPage) -> Result<()> {
        self.objects.distrust_page(old.number);
        self.ages.record_renewed(old.number);
        self.objects.pages.renew(old.number, old.highest, self.segments)
    }

    /// Verifies the seal of an object, unless this session has done so.
    pub(crate) fn verify_object(&self, segment: Segment) -> Result<()> {
        let Some(expected) = self.unverified_entry(segment)? else { return Ok(()) };
        self.verify(segment, expected, &self.seals.fetch(segment)?).map(drop)
    }

    /// Examines an object before a transaction that the caller holds the turn for; does not query
    /// the store if the object's version and tails are cached.
    ///
    /// Errors: if the version table's page or the store cannot be read.
    fn inspect(&self, segment: Segment) -> Result<ObjectState> {
        let mut entry = self.objects.entry(segment)?;
        let verified = self.objects.is_verified(segment);
        if let Some(tails) = self.objects.tails(segment, entry.version).filter(|_| verified)
            && self.ages.may_be_opened(&self.objects, segment, entry)
        {
            return Ok(ObjectState { version: entry.version, tails, ..ObjectState::default() });
        }
        // An object that this session verified or wrote has the counter in the version table.
        entry.is_exact |= verified;
        let fetched = self.seals.fetch(segment)?;
        if !entry.is_closed() {
            // Nothing is written under an old page, not even a rewrite.
            let touch = ObjectTouch { segment, expected: entry, fetched: &fetched, opens_page: true };
            self.check_page_age(touch)?;
        }
        match self.verify_first(segment, entry, &fetched) {
            Ok(tails) => Ok(ObjectState {
                version: StoreVersion::of(fetched.version),
                tails,
                ..ObjectState::default()
            }),
            Err(e) if e.kind() == Kind::Corrupt => {
                self.objects.record_refused(segment);
                let counter = self.seals.counter(segment, &fetched);
                Ok(ObjectState { refusal: Some(e), counter, ..ObjectState::default() })
            }
            Err(e) => Err(e),
        }
    }

    /// The objects that were ever written to, whether or not the store lists them. Objects of a
    /// page that does not verify are omitted: nothing of them is trusted.
    pub(crate) fn written_segments(&self) -> Result<Vec<Segment>> {
        let mut counted = vec![];
        for page in self.objects.pages.written_pages() {
            let range = page.segments();
            // After a crash an open page may be behind its objects: those first written since then
            // count as well.
            match self.objects.entry(Segment(range.start)) {
                // A read of an object with a mismatching seal reports it.
                Ok(entry) if !entry.is_exact => {
                    self.raise_counters(range.clone())?;
                }
                Err(e) if e.kind() != Kind::Corrupt => return Err(e),
                _ => {}
            }
            for segment in (range.start..range.end.min(self.segments)).map(Segment) {
                match self.objects.entry(segment) {
                    Ok(entry) if entry.counter > WriteCounter(0) => counted.push(segment),
                    Ok(_) => {}
                    Err(e) if e.kind() == Kind::Corrupt => break,
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(counted)
    }

    /// Whether the object does not exist and never has.
    pub(crate) fn is_new(&self, segment: Segment) -> Result<bool> {
        Ok(self.inspect(segment)?.version == StoreVersion::ABSENT)
    }

    /// Whether an object is unchanged since this session last saw or wrote it, by the version in an
    /// answer. The session may have dropped the version, with the page of the object; then the
    /// object must be the one with the seal that the same read has `compared`. If it is not, its
    /// seal must be verified again before anything of it is trusted. To be called only while no
    /// transaction of the object is in flight.
    pub(crate) fn is_unchanged(
        &self,
        segment: Segment,
        version: Option<u64>,
        compared: Option<StoreVersion>,
    ) -> bool {
        let seen = match self.objects.pages.version(segment) {
            StoreVersion::UNKNOWN => compared,
            seen => Some(seen),
        };
        let same = self.seals.view.is_some() || seen == Some(StoreVersion::of(version));
        if !same {
            self.objects.distrust(segment);
        }
        same
    }

    /// Begins a transaction on an object, after the one before it has ended. A caller that needs
    /// several begins them in ascending order of their objects. If the object does not verify, the
    /// ticket carries the refusal.
    pub(crate) fn begin(&self, segment: Segment) -> Result<TransactionTicket<'_>> {
        TransactionTicket::acquire(&self.objects, &self.seals, segment, || self.inspect(segment))
    }

    /// Begins a transaction that makes an object valid whatever its seal is: the caller vouches for
    /// the content.
    pub(crate) fn begin_anew(&self, segment: Segment) -> Result<TransactionTicket<'_>> {
        TransactionTicket::acquire(&self.objects, &self.seals, segment, || {
            let counter = self.seals.counter(segment, &self.seals.fetch(segment)?);
            Ok(ObjectState { counter, ..ObjectState::default() })
        })
    }

    /// Fetches and verifies an object's version and seal, even if that was done before: the
    /// caller's decision must rest on the values that were verified.
    fn fetch_verified(&self, segment: Segment) -> Result<(FetchedSeal, ChainTails)> {
        let expected = self.expected_entry(segment)?;
        let fetched = self.seals.fetch(segment)?;
        let tails = self.verify(segment, expected, &fetched)?;
        Ok((fetched, tails))
    }

    /// Whether an object is unchanged since `past`, with both states verified.
    pub(crate) fn is_unchanged_since(&self, past: &VersionTable, segment: Segment) -> Result<bool> {
        let both =
            self.fetch_verified(segment).and_then(|(now, _)| Ok((now, past.fetch_verified(segment)?.0)));
        match both {
            Err(e) if e.kind() == Kind::Corrupt => Ok(false),
            Err(e) => Err(e),
            Ok((now, then)) => Ok(now.seal.is_some() && now == then),
        }
    }

    /// The tails from the seal of an object. `None`: the object rightly does not exist, for every
    /// object has a seal. Errors: [`Kind::Corrupt`] if it does not verify.
    pub(crate) fn verified_tails(&self, segment: Segment) -> Result<Option<ChainTails>> {
        self.fetch_verified(segment).map(|(fetched, tails)| fetched.seal.map(|_| tails))
    }

    /// Writes the dirty pages. May be called at any time.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.objects.pages.checkpoint()
    }

    /// Writes the dirty pages, and closes those with exact counters. No transaction may be in
    /// flight or follow.
    pub(crate) fn close(&self) -> Result<()> {
        self.objects.pages.close(|segments| self.raise_counters(segments))
    }

    /// Verifies the seals of the untouched objects among these segments, which raises their
    /// counters to those of the objects. Returns whether all verified.
    fn raise_counters(&self, segments: Range<u64>) -> Result<bool> {
        let mut all = true;
        let on_disk = segments.start..segments.end.min(self.segments);
        let untouched = self.objects.unverified(on_disk.map(Segment));
        for (segment, fetched) in untouched.iter().zip(self.seals.fetch_all(&untouched)) {
            match self.verify(*segment, self.expected_entry(*segment)?, &fetched?) {
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
