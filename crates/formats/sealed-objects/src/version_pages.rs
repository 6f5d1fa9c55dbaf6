//! The version table's pages in memory: loaded on demand, bounded, written back by checkpoints.
//!
//! A page is *open* on the medium while its counters may fall behind the objects. It is durably
//! opened before the first transaction that it counts, and closed with the disk. Its counters in
//! memory are those of acknowledged, hence durable, transactions: in every written version of a
//! page, no counter is above its object's.

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

/// The version table's knowledge of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The counter in the version table.
    pub(crate) counter: Counter,
    /// Whether the object's counter must be equal, if nothing has written to it since the disk was
    /// opened.
    pub(crate) exact: bool,
    /// A counter at or above this one was assigned after the page was written.
    pub(crate) beyond: Counter,
    /// The object's version when it was last verified or written.
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

    /// From the answer to a query.
    pub(crate) fn of(version: Option<u64>) -> Seen {
        version.map_or(Seen::ABSENT, Seen)
    }

    /// The first step of a transaction that must fail if the object has changed.
    pub(crate) fn guard(self) -> Option<Step<'static>> {
        match self {
            Seen::UNKNOWN => None,
            Seen::ABSENT => Some(Step::Create),
            Seen(version) => Some(Step::Expect(version)),
        }
    }
}

/// Memory of a cached page: its counters, and the version of each object.
pub(crate) const PAGE_COST: usize = PAGE_LEN + PAGE_ENTRIES * size_of::<Seen>();

struct Cached {
    page: VersionPage,
    seen: Box<[Seen; PAGE_ENTRIES]>,
    /// Whether the page on the medium is older.
    dirty: bool,
    /// Writes in progress. The page stays cached until they end, since the medium may hold either
    /// state.
    pins: u32,
}

impl Cached {
    fn pinned(&mut self) -> VersionPage {
        self.pins += 1;
        self.page.clone()
    }

    /// Unpins the page after a write. A failed write leaves it dirty, so that it is never read
    /// back: the medium may hold either state.
    fn unpin(&mut self, failed: bool) {
        self.pins -= 1;
        self.dirty |= failed;
    }
}

/// Whether the counters of a page that this session opened will be exact when it is closed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Closing {
    /// They are.
    Exact,
    /// They may be too low, since an earlier session crashed: the objects' seals must be fetched
    /// first.
    Unsettled,
    /// A transaction of unknown outcome may still happen.
    Never,
}

/// A page that this session opened.
struct OpenedPage {
    closing: Closing,
    /// Whether an earlier session had left it open.
    was_open: bool,
    /// The first counter of the session.
    first: Counter,
}

/// The range of counters of one session, up to the first that a later session can have. One object
/// has far fewer transactions before its page is written again.
pub(crate) const SESSION_COUNTERS: u64 = 1 << 24;

struct State {
    pages: BoundedCache<PageNumber, Cached>,
    loading: HashSet<PageNumber>,
    /// The pages that count this session's transactions, all of them open on the medium.
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

    /// The same disk's pages at a snapshot; `store` is a view of its book.
    pub(crate) fn view(&self, store: Arc<dyn ObjectStore>, most: usize) -> Result<VersionPages> {
        Ok(VersionPages::new(self.book.view(store)?, most, true))
    }

    /// Pages in memory.
    #[cfg(test)]
    pub(crate) fn in_memory(&self) -> usize {
        self.state.lock().pages.len()
    }

    /// Runs `f` on a page, loading it if necessary. The caller must not hold a [`Writing`].
    fn with<R>(&self, number: PageNumber, f: impl FnOnce(&mut Cached) -> R) -> Result<R> {
        let full = {
            let pages = &mut self.state.lock().pages;
            !pages.contains(number) && pages.is_full() && !self.evict(pages)
        };
        if full {
            match self.checkpoint() {
                // The cache then exceeds its bound by one page, until the store accepts the dirty
                // ones.
                Err(e) if e.kind().is_refusal() => {}
                written => written?,
            }
        }
        self.with_loaded(number, f)
    }

    /// The same, exceeding the bound if no page can be dropped.
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

    /// Drops a page that was not used recently and may be dropped. Returns whether there was one.
    fn evict(&self, pages: &mut BoundedCache<PageNumber, Cached>) -> bool {
        pages.evict(|_, cached| self.read_only || (!cached.dirty && cached.pins == 0)).is_some()
    }

    /// The version table's entry of a segment's object.
    pub(crate) fn entry(&self, segment: Segment) -> Result<Entry> {
        self.with(PageNumber::of(segment), |cached| Entry {
            counter: Counter(cached.page.entries[slot(segment)]),
            exact: !cached.page.open,
            beyond: beyond(&cached.page, Counter(cached.page.entries[slot(segment)])),
            seen: cached.seen[slot(segment)],
        })
    }

    /// Whether an earlier session had left this page open; `None` if this session has not opened
    /// it.
    pub(crate) fn was_open(&self, page: PageNumber) -> Option<bool> {
        self.state.lock().opened.get(&page).map(|opened| opened.was_open)
    }

    /// The cached version of a segment's object.
    pub(crate) fn seen(&self, segment: Segment) -> Seen {
        let state = self.state.lock();
        state.pages.peek(PageNumber::of(segment)).map_or(Seen::UNKNOWN, |cached| cached.seen[slot(segment)])
    }

    /// Caches the version of a segment's object, or drops it.
    pub(crate) fn see(&self, segment: Segment, seen: Seen) {
        if let Some(cached) = self.state.lock().pages.get(PageNumber::of(segment)) {
            cached.seen[slot(segment)] = seen;
        }
    }

    /// The pages that were ever written, in order. A segment of another page was never written to.
    pub(crate) fn written(&self) -> Vec<PageNumber> {
        self.book.written()
    }

    /// Raises an object's counter to that of a durable transaction. A lower one changes nothing.
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

    /// Unpins a page that was held, and records the counter of an acknowledged transaction and the
    /// object's version.
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

    /// Returns once the page of a segment is open on the medium, so that objects may get ahead of
    /// it. Returns the first counter of this session: it is above all counters of earlier sessions,
    /// including those of unacknowledged transactions that the store may still perform.
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
        // Also if it is open already: the generation distinguishes this session from other ones.
        let generation = self.write(&writing, vec![(number, VersionPage { open: true, ..page })])?;
        let first = Counter(generation.saturating_mul(SESSION_COUNTERS));
        let mut state = self.state.lock();
        if let Some(cached) = state.pages.get(number) {
            // Objects may now have counters of this session.
            cached.page.generation = Generation(generation);
        }
        state.opened.insert(number, OpenedPage { closing, was_open, first });
        Ok(first)
    }

    /// Records that the outcome of a transaction on this segment's object is unknown.
    pub(crate) fn doubt(&self, segment: Segment) {
        if let Some(opened) = self.state.lock().opened.get_mut(&PageNumber::of(segment)) {
            opened.closing = Closing::Never;
        }
    }

    /// Runs `f` with the tag of the heads that cover `segments`, while nothing writes the version
    /// table.
    pub(crate) fn standing_still<T>(&self, segments: u64, f: impl FnOnce(HeadsTag) -> T) -> T {
        let _writings: Vec<Writing<'_>> =
            (0..self.book.objects()).map(|part| self.book.writing(part)).collect();
        f(self.heads_tag(segments))
    }

    /// The tag of the heads that cover `segments`.
    pub(crate) fn heads_tag(&self, segments: u64) -> HeadsTag {
        self.book.heads_tag(segments)
    }

    /// Writes every dirty page, as open.
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

    /// Writes pinned pages and unpins them. They stay dirty if the write fails. Returns their
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

    /// Writes every page that is dirty or was opened, as closed if its counters are exact. Calls
    /// `settle` for each page with counters that may be too low; it raises them to those of the
    /// objects and returns whether it saw all.
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

/// The first counter that no object under this page can have. A session opens a page before its
/// first transaction, and the generation of that write determines its first counter: this or a
/// higher counter belongs to a session after the page was written, so the page is old. For a closed
/// page there is no such bound: its counters are exact.
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
