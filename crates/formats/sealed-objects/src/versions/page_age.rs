//! The age of the pages of a version table: an object of a later session proves that a page is old.
//!
//! Objects of a page are compared with it once in a session:
//! - all of them before anything is trusted under a page that an earlier session left open. One
//!   that cannot be read is left for the next touch, unless a transaction follows: it would open
//!   the page again, with a generation that hides later sessions. So every page that this session
//!   has opened was compared, or renewed;
//! - all of them before the absence of an object is accepted under any other page.

use crate::segment::Segment;
use crate::session_objects::SessionObjects;
use crate::versions::pages::VersionEntry;
use crate::versions::seal::WriteCounter;
use crate::versions::seals::{FetchedSeal, Seals};
use crate::versions::store::PageNumber;
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::Mutex;
use std::collections::HashMap;

/// An object with a counter of a later session than the writer of its page.
#[derive(Clone, Copy)]
struct LaterObject {
    segment: Segment,
    counter: WriteCounter,
}

impl LaterObject {
    /// The error for its page.
    fn error(self) -> Error {
        PageNumber::of(self.segment).older_page_error(self.segment, self.counter)
    }
}

/// The result of comparing the objects of a page.
enum PageAge {
    /// An object proves that the page is old.
    Old(LaterObject),
    /// No object does; these could not be read.
    Current { unread: Vec<Segment> },
}

/// An object that is about to be trusted, or to be written.
#[derive(Clone, Copy)]
pub(crate) struct ObjectTouch<'a> {
    pub(crate) segment: Segment,
    pub(crate) expected: VersionEntry,
    pub(crate) fetched: &'a FetchedSeal,
    /// Whether a transaction follows, which opens the page.
    pub(crate) opens_page: bool,
}

/// A page that is old or does not verify.
pub(crate) struct OldPage {
    pub(crate) number: PageNumber,
    /// The error for everything that it counts.
    pub(crate) error: Error,
    /// The highest counter in a seal of its objects.
    pub(crate) highest: WriteCounter,
}

/// The ages of the pages of an open version table.
pub(crate) struct PageAges {
    /// The number of segments of the disk.
    segments: u64,
    known: Mutex<HashMap<PageNumber, PageAge>>,
    /// Held during a comparison.
    comparing: Mutex<()>,
}

impl PageAges {
    pub(crate) fn new(segments: u64) -> PageAges {
        PageAges { segments, known: Mutex::default(), comparing: Mutex::default() }
    }

    /// The segments of the disk that a page counts.
    pub(crate) fn segments_of(&self, page: PageNumber) -> impl Iterator<Item = Segment> + use<> {
        let range = page.segments();
        (range.start..range.end.min(self.segments)).map(Segment)
    }

    /// Whether a transaction may open the page of an object without a comparison.
    pub(crate) fn may_be_opened(
        &self,
        objects: &SessionObjects,
        segment: Segment,
        expected: VersionEntry,
    ) -> bool {
        let page = PageNumber::of(segment);
        let is_compared =
            || matches!(self.known.lock().get(&page), Some(PageAge::Current { unread }) if unread.is_empty());
        expected.is_closed() || objects.pages.was_open(page).is_some() || is_compared()
    }

    /// Compares the objects of a page if the page alone is not sufficient for this touch of one.
    ///
    /// Errors: [`Kind::Corrupt`] for an old page; all errors of the store.
    pub(crate) fn check(
        &self,
        objects: &SessionObjects,
        seals: &Seals,
        touch: ObjectTouch<'_>,
    ) -> Result<()> {
        let ObjectTouch { segment, expected, fetched, opens_page } = touch;
        let page = PageNumber::of(segment);
        let opened = objects.pages.was_open(page);
        let was_open = opened.unwrap_or(!expected.is_closed());
        let is_absence = fetched.version.is_none();
        let believed = if was_open { opened.is_some() } else { !is_absence || expected.counter.0 > 0 };
        if believed || self.is_compared(page)? {
            return Ok(());
        }
        let _one_at_a_time = self.comparing.lock();
        if self.is_compared(page)? {
            return Ok(());
        }
        let own = LaterObject { segment, counter: seals.counter(segment, fetched) };
        if is_later(objects, own, was_open)? {
            return Err(self.refuse(objects, own, was_open));
        }
        self.compare(objects, seals, page, was_open, opens_page || is_absence)
    }

    /// Whether all objects of a page were compared. Errors: [`Kind::Corrupt`] if it is old.
    fn is_compared(&self, page: PageNumber) -> Result<bool> {
        match self.known.lock().get(&page) {
            Some(PageAge::Old(proof)) => Err(proof.error()),
            Some(PageAge::Current { unread }) => Ok(unread.is_empty()),
            None => Ok(false),
        }
    }

    /// Compares the objects of a page that were not compared yet. An object that cannot be read
    /// does not end the comparison: another one may prove that the page is old.
    fn compare(
        &self,
        objects: &SessionObjects,
        seals: &Seals,
        page: PageNumber,
        was_open: bool,
        needs_all: bool,
    ) -> Result<()> {
        let left = match self.known.lock().get(&page) {
            Some(PageAge::Current { unread }) => unread.clone(),
            _ => self.segments_of(page).collect(),
        };
        let (mut unread, mut error) = (vec![], None);
        for (segment, fetched) in left.iter().zip(seals.fetch_all(&left)) {
            let counter = match fetched {
                Ok(fetched) => seals.counter(*segment, &fetched),
                Err(e) => {
                    unread.push(*segment);
                    error = error.or_else(|| Some(e.context(format!("reading the seal of {segment}"))));
                    continue;
                }
            };
            let object = LaterObject { segment: *segment, counter };
            if is_later(objects, object, was_open)? {
                return Err(self.refuse(objects, object, was_open));
            }
        }
        self.known.lock().insert(page, PageAge::Current { unread });
        error.filter(|_| needs_all).map_or(Ok(()), Err)
    }

    /// Records that an object proves its page to be old, and returns the error. Nothing that a page
    /// counts is trusted any more if the page was open; if it was closed, no absence.
    fn refuse(&self, objects: &SessionObjects, proof: LaterObject, was_open: bool) -> Error {
        let page = PageNumber::of(proof.segment);
        if was_open {
            // This session has not opened the page, so none of its transactions is in flight.
            objects.distrust_page(page);
        }
        // Under a closed page, a transaction of this session may be in flight.
        if was_open || !objects.is_busy(proof.segment) {
            self.known.lock().insert(page, PageAge::Old(proof));
        }
        proof.error()
    }

    /// Records that a refused object proves its page, a closed one, to be old: once rewritten, the
    /// object no longer shows that.
    pub(crate) fn record_proof(
        &self,
        objects: &SessionObjects,
        seals: &Seals,
        segment: Segment,
        expected: VersionEntry,
        fetched: &FetchedSeal,
    ) {
        let counter = seals.counter(segment, fetched);
        if expected.is_closed() && counter > expected.counter && !objects.may_be_of_this_session(segment) {
            let proof = LaterObject { segment, counter };
            self.known.lock().insert(PageNumber::of(segment), PageAge::Old(proof));
        }
    }

    /// Records that a page was renewed: its objects are judged by their own counters.
    pub(crate) fn record_renewed(&self, page: PageNumber) {
        self.known.lock().insert(page, PageAge::Current { unread: vec![] });
    }

    /// The old pages among those of these objects, and the pages that do not verify. Compares every
    /// object of every page. Errors: all errors of the store.
    pub(crate) fn old_pages(
        &self,
        objects: &SessionObjects,
        seals: &Seals,
        segments: &[Segment],
    ) -> Result<Vec<OldPage>> {
        let mut pages: Vec<PageNumber> = segments.iter().map(|segment| PageNumber::of(*segment)).collect();
        pages.sort_unstable();
        pages.dedup();
        let old = pages.into_iter().map(|page| self.old_page(objects, seals, page));
        old.filter_map(Result::transpose).collect()
    }

    fn old_page(
        &self,
        objects: &SessionObjects,
        seals: &Seals,
        number: PageNumber,
    ) -> Result<Option<OldPage>> {
        let all: Vec<Segment> = self.segments_of(number).collect();
        let (mut error, mut was_open) = (None, false);
        match objects.entry(Segment(number.segments().start)) {
            Ok(entry) => was_open = objects.pages.was_open(number).unwrap_or(!entry.is_closed()),
            Err(e) if e.kind() == Kind::Corrupt => error = Some(e),
            Err(e) => return Err(e),
        }
        let mut highest = WriteCounter::default();
        for (segment, fetched) in all.iter().zip(seals.fetch_all(&all)) {
            let fetched = fetched.map_err(|e| e.context(format!("reading the seal of {segment}")))?;
            let object = LaterObject { segment: *segment, counter: seals.counter(*segment, &fetched) };
            highest = highest.max(object.counter);
            if error.is_none() && is_later(objects, object, was_open)? {
                error = Some(object.error());
            }
        }
        Ok(error.map(|error| OldPage { number, error, highest }))
    }
}

/// Whether an object was written by a later session than its page.
fn is_later(objects: &SessionObjects, object: LaterObject, was_open: bool) -> Result<bool> {
    let LaterObject { segment, counter } = object;
    let entry = objects.entry(segment)?;
    Ok(if was_open {
        counter >= entry.first_later_counter
    } else {
        counter > entry.counter && !objects.may_be_of_this_session(segment)
    })
}
