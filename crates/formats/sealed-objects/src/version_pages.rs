//! The version table's pages in memory: loaded on demand, bounded, written back when asked.
//!
//! A page is *open* on the medium while its counters may fall behind the objects. It is made so,
//! durably, before the first transaction that it counts, and closed when the disk is. Its counters
//! in memory are those of transactions that the store acknowledged, hence durable ones: whenever a
//! page is written, no counter in it is above its object's.

use crate::seal::Counter;
use crate::segment::Segment;
use crate::version_book::{PAGE_SEGMENTS, PageNumber, VersionBook, Writing};
use crate::version_page::{Generation, HeadsTag, PAGE_ENTRIES, PAGE_LEN, VersionPage};
use lacuna_contracts::{BoundedCache, Result};
use lacuna_medium::{ObjectStore, Step};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// What the version table knows of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The counter in the version table.
    pub(crate) counter: Counter,
    /// Whether the object's must be the same, if nothing was written to it since the disk was
    /// opened.
    pub(crate) exact: bool,
    /// No transaction that this page can have known gave a counter from this one on.
    pub(crate) beyond: Counter,
    /// What the store said of the object when it was last found good, or written.
    pub(crate) seen: Seen,
}

impl Entry {
    /// Whether the page was closed when it was read.
    pub(crate) fn is_closed(&self) -> bool {
        self.beyond == Counter(u64::MAX)
    }
}

/// The version that the store gave an object, in 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(u64);

impl Seen {
    /// Not known, or forgotten. No object has version 0.
    pub(crate) const UNKNOWN: Seen = Seen(0);
    /// There is no such object.
    pub(crate) const ABSENT: Seen = Seen(u64::MAX);

    /// What the answer to a query says.
    pub(crate) fn of(version: Option<u64>) -> Seen {
        version.map_or(Seen::ABSENT, Seen)
    }

    /// The first step of a transaction that must not happen if the object is another by now.
    pub(crate) fn guard(self) -> Option<Step<'static>> {
        match self {
            Seen::UNKNOWN => None,
            Seen::ABSENT => Some(Step::Create),
            Seen(version) => Some(Step::Expect(version)),
        }
    }
}

/// What a page in memory takes: its counters, and what the store said of each object.
pub(crate) const PAGE_COST: usize = PAGE_LEN + PAGE_ENTRIES * size_of::<Seen>();

struct Cached {
    page: VersionPage,
    seen: Box<[Seen; PAGE_ENTRIES]>,
    /// Differs from the medium's.
    dirty: bool,
    /// Writings under way. Until they end the page stays here, since the medium may hold either
    /// state.
    pins: u32,
}

impl Cached {
    fn pinned(&mut self) -> VersionPage {
        self.pins += 1;
        self.page.clone()
    }

    /// Lets go of the page after a writing. A failed one leaves it changed, so that it is never
    /// read back: the medium may hold either state.
    fn unpin(&mut self, failed: bool) {
        self.pins -= 1;
        self.dirty |= failed;
    }
}

/// Whether the counters of a page that this session opened will be exact at its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Closing {
    /// They are.
    Exact,
    /// They may be too low, since an earlier session was cut short: to be settled by asking the
    /// objects.
    Unsettled,
    /// A transaction of unknown outcome may still happen.
    Never,
}

/// A page that this session opened.
struct OpenedPage {
    closing: Closing,
    /// A session before had left it open.
    was_open: bool,
    /// The first counter of the session.
    first: Counter,
}

/// Counters from the first of a session to the first that a session after it can have: far more
/// than one object sees of transactions before its page is written again.
pub(crate) const SESSION_COUNTERS: u64 = 1 << 24;

struct State {
    pages: BoundedCache<PageNumber, Cached>,
    loading: HashSet<PageNumber>,
    /// The pages that this session's transactions are counted in, all of them open on the medium.
    opened: HashMap<PageNumber, OpenedPage>,
}

/// The pages of an open version table.
pub(crate) struct VersionPages {
    book: VersionBook,
    state: Mutex<State>,
    loaded: Condvar,
    read_only: bool,
}

impl VersionPages {
    /// Keeps at most `most` pages in memory.
    pub(crate) fn new(book: VersionBook, most: usize, read_only: bool) -> VersionPages {
        let pages = BoundedCache::new(most);
        let state = State { pages, loading: HashSet::new(), opened: HashMap::new() };
        VersionPages { book, state: Mutex::new(state), loaded: Condvar::new(), read_only }
    }

    /// The same disk's pages at a snapshot, of whose book `store` is a view.
    pub(crate) fn view(&self, store: Arc<dyn ObjectStore>, most: usize) -> Result<VersionPages> {
        Ok(VersionPages::new(self.book.view(store)?, most, true))
    }

    /// Pages in memory.
    #[cfg(test)]
    pub(crate) fn in_memory(&self) -> usize {
        self.state.lock().pages.len()
    }

    /// Runs `f` on a page, loading it if need be. The caller holds no right to write.
    fn with<R>(&self, number: PageNumber, f: impl FnOnce(&mut Cached) -> R) -> Result<R> {
        let full = {
            let pages = &mut self.state.lock().pages;
            !pages.contains(number) && pages.is_full() && !self.evict(pages)
        };
        if full {
            match self.checkpoint() {
                // Then there is one page more in memory than there should be, until the store takes
                // them.
                Err(e) if e.kind().is_refusal() => {}
                written => written?,
            }
        }
        self.with_loaded(number, f)
    }

    /// The same, beyond the bound if no page can be dropped.
    fn with_loaded<R>(&self, number: PageNumber, f: impl FnOnce(&mut Cached) -> R) -> Result<R> {
        let mut state = self.state.lock();
        loop {
            if let Some(cached) = state.pages.get(number) {
                return Ok(f(cached));
            }
            if !state.loading.insert(number) {
                self.loaded.wait(&mut state);
                continue;
            }
            drop(state);
            let page = self.book.page(number);
            state = self.state.lock();
            state.loading.remove(&number);
            self.loaded.notify_all();
            let (page, seen) = (page?, Box::new([Seen::UNKNOWN; PAGE_ENTRIES]));
            while state.pages.is_full() && self.evict(&mut state.pages) {}
            state.pages.put(number, Cached { page, seen, dirty: false, pins: 0 });
        }
    }

    /// Drops a page that was not used for long, of those that may be dropped. Says whether there
    /// was one.
    fn evict(&self, pages: &mut BoundedCache<PageNumber, Cached>) -> bool {
        pages.evict(|_, cached| self.read_only || (!cached.dirty && cached.pins == 0)).is_some()
    }

    /// What the version table says of a segment's object.
    pub(crate) fn entry(&self, segment: Segment) -> Result<Entry> {
        self.with(PageNumber::of(segment), |cached| Entry {
            counter: Counter(cached.page.entries[slot(segment)]),
            exact: !cached.page.open,
            beyond: beyond(&cached.page, Counter(cached.page.entries[slot(segment)])),
            seen: cached.seen[slot(segment)],
        })
    }

    /// Whether a session before had left a page open that this session has opened.
    pub(crate) fn was_open(&self, page: PageNumber) -> Option<bool> {
        self.state.lock().opened.get(&page).map(|opened| opened.was_open)
    }

    /// What the store said of a segment's object, as far as that is in memory.
    pub(crate) fn seen(&self, segment: Segment) -> Seen {
        let state = self.state.lock();
        state.pages.peek(PageNumber::of(segment)).map_or(Seen::UNKNOWN, |cached| cached.seen[slot(segment)])
    }

    /// Remembers what the store said of a segment's object, or forgets it.
    pub(crate) fn see(&self, segment: Segment, seen: Seen) {
        if let Some(cached) = self.state.lock().pages.get(PageNumber::of(segment)) {
            cached.seen[slot(segment)] = seen;
        }
    }

    /// The pages that were ever written, in order. What no other page counts was never written to.
    pub(crate) fn written(&self) -> Vec<PageNumber> {
        self.book.written()
    }

    /// Notes the counter of a durable transaction. A lower one changes nothing.
    pub(crate) fn raise(&self, segment: Segment, counter: Counter) -> Result<()> {
        self.with(PageNumber::of(segment), |cached| {
            let entry = &mut cached.page.entries[slot(segment)];
            if counter.0 > *entry {
                *entry = counter.0;
                cached.dirty = true;
            }
        })
    }

    /// Keeps the page of a segment in memory until [`VersionPages::release`].
    pub(crate) fn hold(&self, segment: Segment) -> Result<Counter> {
        self.with(PageNumber::of(segment), |cached| {
            cached.pins += 1;
            Counter(cached.page.entries[slot(segment)])
        })
    }

    /// Lets go of a page that was held, noting the counter of a transaction if one was
    /// acknowledged, and what is known of the object now.
    pub(crate) fn release(&self, segment: Segment, acknowledged: Option<Counter>, seen: Seen) {
        let mut state = self.state.lock();
        let Some(cached) = state.pages.get(PageNumber::of(segment)) else { return };
        if let Some(counter) = acknowledged {
            cached.page.entries[slot(segment)] = counter.0;
            cached.dirty = true;
        }
        cached.seen[slot(segment)] = seen;
        cached.pins -= 1;
    }

    /// Returns when the page of a segment is open on the medium: from then on objects may run ahead
    /// of it. Gives the first counter of this session: it is above all that sessions before it
    /// gave, also to transactions that nobody acknowledged and that the store may let happen later.
    pub(crate) fn open_for(&self, segment: Segment) -> Result<Counter> {
        let number = PageNumber::of(segment);
        let first = || self.state.lock().opened.get(&number).map(|opened| opened.first);
        if let Some(first) = first() {
            return Ok(first);
        }
        let writing = self.book.writing(number.part());
        if let Some(first) = first() {
            return Ok(first);
        }
        let page = self.with_loaded(number, Cached::pinned)?;
        let was_open = page.open;
        let closing = if was_open { Closing::Unsettled } else { Closing::Exact };
        // Also if it is open already: the generation is what tells this session from others.
        let generation = self.write(&writing, vec![(number, VersionPage { open: true, ..page })])?;
        let first = Counter(generation.saturating_mul(SESSION_COUNTERS));
        let mut state = self.state.lock();
        if let Some(cached) = state.pages.get(number) {
            // From now on objects may have counters of this session.
            cached.page.generation = Generation(generation);
        }
        state.opened.insert(number, OpenedPage { closing, was_open, first });
        Ok(first)
    }

    /// Notes that nobody knows whether a transaction on this segment's object took place.
    pub(crate) fn doubt(&self, segment: Segment) {
        if let Some(opened) = self.state.lock().opened.get_mut(&PageNumber::of(segment)) {
            opened.closing = Closing::Never;
        }
    }

    /// Runs `f` while nothing of the version table is written, with what stands for its heads, as
    /// far as they count so many segments.
    pub(crate) fn standing_still<T>(&self, segments: u64, f: impl FnOnce(HeadsTag) -> T) -> T {
        let _writings: Vec<Writing<'_>> =
            (0..self.book.objects()).map(|part| self.book.writing(part)).collect();
        f(self.heads_tag(segments))
    }

    /// What stands for the heads that count so many segments.
    pub(crate) fn heads_tag(&self, segments: u64) -> HeadsTag {
        self.book.heads_tag(segments)
    }

    /// Writes every page that changed, open.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        for part in 0..self.book.objects() {
            let writing = self.book.writing(part);
            let mut state = self.state.lock();
            let changed =
                state.pages.iter_mut().filter(|(number, cached)| number.part() == part && cached.dirty);
            let changed: Vec<(PageNumber, VersionPage)> = changed
                .map(|(number, cached)| {
                    cached.dirty = false;
                    (number, VersionPage { open: true, ..cached.pinned() })
                })
                .collect();
            drop(state);
            self.write(&writing, changed)?;
        }
        Ok(())
    }

    /// Writes pages that are pinned, and lets them go. They stay changed if that fails. Gives their
    /// generation.
    fn write(&self, writing: &Writing<'_>, pages: Vec<(PageNumber, VersionPage)>) -> Result<u64> {
        let numbers: Vec<PageNumber> = pages.iter().map(|(number, _)| *number).collect();
        let written = writing.write(pages);
        let mut state = self.state.lock();
        for number in numbers {
            if let Some(cached) = state.pages.get(number) {
                cached.unpin(written.is_err());
            }
        }
        written.map(|generation| generation.0)
    }

    /// Writes every page that changed or was opened, closed if its counters are exact. `settle` is
    /// asked for each page whose counters may be too low; it raises them to the objects' own and
    /// says whether it saw all.
    pub(crate) fn close(&self, settle: impl Fn(Range<u64>) -> Result<bool>) -> Result<()> {
        self.checkpoint()?;
        let opened = std::mem::take(&mut self.state.lock().opened);
        let mut opened: Vec<_> =
            opened.into_iter().map(|(number, opened)| (number, opened.closing)).collect();
        opened.sort_unstable();
        for chunk in opened.chunk_by(|(a, _), (b, _)| a.part() == b.part()) {
            // In batches, so that the pages need not all be in memory at once.
            for batch in chunk.chunks(64) {
                let mut pages = Vec::with_capacity(batch.len());
                for &(number, closing) in batch {
                    let open = match closing {
                        Closing::Exact => false,
                        Closing::Unsettled => !settle(number.segments())?,
                        Closing::Never => true,
                    };
                    let page = self.with(number, |cached| {
                        cached.page.open = open;
                        cached.dirty = false;
                        cached.pinned()
                    })?;
                    pages.push((number, page));
                }
                self.write(&self.book.writing(batch[0].0.part()), pages)?;
            }
        }
        Ok(())
    }
}

/// The first counter that no object can have which this page counts. A session opens a page before
/// its first transaction, in a writing whose generation gives its first counter: what lies above is
/// of a session that came after the page was written, so the page is an older one. A page that is
/// closed says more: its counters are exact.
fn beyond(page: &VersionPage, counter: Counter) -> Counter {
    if !page.open {
        return Counter(u64::MAX);
    }
    let of_session = page.generation.0.saturating_add(1).saturating_mul(SESSION_COUNTERS);
    Counter(of_session.max(counter.0.saturating_add(SESSION_COUNTERS)))
}

fn slot(segment: Segment) -> usize {
    (segment.0 % PAGE_SEGMENTS) as usize
}
