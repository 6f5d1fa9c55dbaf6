//! The version table's pages in memory: loaded on demand, bounded, written back by checkpoints.
//!
//! A page is *open* on the medium while its counters may fall behind the objects. It is durably
//! opened before the first transaction that it counts, and closed with the disk. Its counters in
//! memory are those of acknowledged, hence durable, transactions: in every written version of a
//! page, no counter is above its object's.

use crate::segment::Segment;
use crate::versions::page::{Generation, HeadsTag, PAGE_ENTRIES, PAGE_LEN, VersionPage};
use crate::versions::seal::WriteCounter;
use crate::versions::store::{ObjectWriteLock, PAGE_SEGMENTS, PageNumber, VersionStore};
use lacuna_contracts::{BoundedCache, Kind, Result};
use lacuna_medium::{ObjectStep, ObjectStore};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// The version table's knowledge of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionEntry {
    /// The counter in the version table.
    pub(crate) counter: WriteCounter,
    /// Whether the object's counter must be equal, if nothing has written to it since the disk was
    /// opened.
    pub(crate) is_exact: bool,
    /// A counter at or above this one was assigned after the page was written.
    pub(crate) first_later_counter: WriteCounter,
    /// The object's version when it was last verified or written.
    pub(crate) version: StoreVersion,
}

impl VersionEntry {
    /// Whether the page was closed when it was read.
    pub(crate) fn is_closed(&self) -> bool {
        self.first_later_counter == WriteCounter(u64::MAX)
    }
}

/// The version that the store gave an object, in 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreVersion(u64);

impl StoreVersion {
    /// Not known, or forgotten. No object has version 0.
    pub(crate) const UNKNOWN: StoreVersion = StoreVersion(0);
    /// There is no such object.
    pub(crate) const ABSENT: StoreVersion = StoreVersion(u64::MAX);

    /// From the answer to a query.
    pub(crate) fn of(version: Option<u64>) -> StoreVersion {
        version.map_or(StoreVersion::ABSENT, StoreVersion)
    }

    /// The first step of a transaction that must fail if the object has changed.
    pub(crate) fn guard(self) -> Option<ObjectStep<'static>> {
        match self {
            StoreVersion::UNKNOWN => None,
            StoreVersion::ABSENT => Some(ObjectStep::Create),
            StoreVersion(version) => Some(ObjectStep::Expect(version)),
        }
    }
}

/// Memory of a cached page: its counters, and the version of each object.
pub(crate) const PAGE_COST: usize = PAGE_LEN + PAGE_ENTRIES * size_of::<StoreVersion>();

struct CachedVersionPage {
    page: VersionPage,
    versions: Box<[StoreVersion; PAGE_ENTRIES]>,
    /// Whether the page on the medium is older.
    dirty: bool,
    /// Writes in progress. The page stays cached until they end, since the medium may hold either
    /// state.
    pins: u32,
}

impl CachedVersionPage {
    /// A page as it is on the medium.
    fn new(page: VersionPage) -> CachedVersionPage {
        let versions = Box::new([StoreVersion::UNKNOWN; PAGE_ENTRIES]);
        CachedVersionPage { page, versions, dirty: false, pins: 0 }
    }

    fn pin(&mut self) -> VersionPage {
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
enum CloseState {
    /// They are.
    Exact,
    /// They may be too low, since an earlier session crashed: the objects' seals must be fetched
    /// first.
    MayLag,
    /// A transaction of unknown outcome may still happen.
    StaysOpen,
}

/// A page that this session opened.
struct OpenedPage {
    close_state: CloseState,
    /// Whether an earlier session had left it open.
    was_open: bool,
    /// The first counter of the session.
    first: WriteCounter,
}

/// The range of counters of one session, up to the first that a later session can have. One object
/// has far fewer transactions before its page is written again.
pub(crate) const SESSION_COUNTERS: u64 = 1 << 24;

struct VersionPagesState {
    pages: BoundedCache<PageNumber, CachedVersionPage>,
    loading: HashSet<PageNumber>,
    /// The pages that count this session's transactions, all of them open on the medium.
    opened: HashMap<PageNumber, OpenedPage>,
}

/// The pages of an open version table.
pub(crate) struct VersionPages {
    version_store: VersionStore,
    state: Mutex<VersionPagesState>,
    loaded: Condvar,
    read_only: bool,
}

impl VersionPages {
    /// Keeps at most `most` pages in memory.
    pub(crate) fn new(book: VersionStore, most: usize, read_only: bool) -> VersionPages {
        let pages = BoundedCache::new(most);
        let state = VersionPagesState { pages, loading: HashSet::new(), opened: HashMap::new() };
        VersionPages { version_store: book, state: Mutex::new(state), loaded: Condvar::new(), read_only }
    }

    /// The same disk's pages at a snapshot; `store` is a view of its book.
    pub(crate) fn view(&self, store: Arc<dyn ObjectStore>, most: usize) -> Result<VersionPages> {
        Ok(VersionPages::new(self.version_store.view(store)?, most, true))
    }

    /// Pages in memory.
    #[cfg(test)]
    pub(crate) fn cached_pages(&self) -> usize {
        self.state.lock().pages.len()
    }

    /// Adds the objects of the version table that a disk of `segments` segments needs.
    pub(crate) fn extend(&mut self, segments: u64) -> Result<()> {
        self.version_store.extend(segments)
    }

    /// The least generation of the table of snapshots, according to the stored version table.
    pub(crate) fn least_table_generation(&self) -> u64 {
        self.version_store.least_table_generation()
    }

    /// Raises the least generation of the table of snapshots to that of a durable table. The next
    /// checkpoint stores it.
    pub(crate) fn raise_least_table_generation(&self, durable: u64) {
        self.version_store.raise_least_table_generation(durable);
    }

    /// Runs `f` on a page, loading it if necessary. The caller must not hold an
    /// [`ObjectWriteLock`].
    fn with<R>(&self, number: PageNumber, f: impl FnOnce(&mut CachedVersionPage) -> R) -> Result<R> {
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
    fn with_loaded<R>(&self, number: PageNumber, f: impl FnOnce(&mut CachedVersionPage) -> R) -> Result<R> {
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
            let page = self.version_store.page(number);
            state = self.state.lock();
            state.loading.remove(&number);
            self.loaded.notify_all();
            let page = page?;
            while state.pages.is_full() && self.evict(&mut state.pages) {}
            state.pages.put(number, CachedVersionPage::new(page));
        }
    }

    /// Drops a page that was not used recently and may be dropped. Returns whether there was one.
    fn evict(&self, pages: &mut BoundedCache<PageNumber, CachedVersionPage>) -> bool {
        pages.evict(|_, cached| self.read_only || (!cached.dirty && cached.pins == 0)).is_some()
    }

    /// The version table's entry of a segment's object.
    pub(crate) fn entry(&self, segment: Segment) -> Result<VersionEntry> {
        self.with(PageNumber::of(segment), |cached| VersionEntry {
            counter: WriteCounter(cached.page.entries[entry_index(segment)]),
            is_exact: !cached.page.is_open,
            first_later_counter: first_later_counter(
                &cached.page,
                WriteCounter(cached.page.entries[entry_index(segment)]),
            ),
            version: cached.versions[entry_index(segment)],
        })
    }

    /// Whether an earlier session had left this page open; `None` if this session has not opened
    /// it.
    pub(crate) fn was_open(&self, page: PageNumber) -> Option<bool> {
        self.state.lock().opened.get(&page).map(|opened| opened.was_open)
    }

    /// The cached version of a segment's object.
    pub(crate) fn version(&self, segment: Segment) -> StoreVersion {
        let state = self.state.lock();
        state
            .pages
            .peek(PageNumber::of(segment))
            .map_or(StoreVersion::UNKNOWN, |cached| cached.versions[entry_index(segment)])
    }

    /// Caches the version of a segment's object, or drops it.
    pub(crate) fn set_version(&self, segment: Segment, seen: StoreVersion) {
        if let Some(cached) = self.state.lock().pages.get(PageNumber::of(segment)) {
            cached.versions[entry_index(segment)] = seen;
        }
    }

    /// The pages that were ever written, in order. A segment of another page was never written to.
    pub(crate) fn written_pages(&self) -> Vec<PageNumber> {
        self.version_store.written_pages()
    }

    /// Raises an object's counter to that of a durable transaction. A lower one changes nothing.
    pub(crate) fn raise_counter(&self, segment: Segment, counter: WriteCounter) -> Result<()> {
        self.with(PageNumber::of(segment), |cached| {
            let entry = &mut cached.page.entries[entry_index(segment)];
            if counter.0 > *entry {
                *entry = counter.0;
                cached.dirty = true;
            }
        })
    }

    /// Keeps the page of a segment in memory until [`VersionPages::unpin`].
    pub(crate) fn pin(&self, segment: Segment) -> Result<WriteCounter> {
        self.with(PageNumber::of(segment), |cached| {
            cached.pins += 1;
            WriteCounter(cached.page.entries[entry_index(segment)])
        })
    }

    /// Unpins a page that was held, and records the counter of an acknowledged transaction and the
    /// object's version.
    pub(crate) fn unpin(&self, segment: Segment, acknowledged: Option<WriteCounter>, seen: StoreVersion) {
        let mut state = self.state.lock();
        let Some(cached) = state.pages.get(PageNumber::of(segment)) else { return };
        if let Some(counter) = acknowledged {
            cached.page.entries[entry_index(segment)] = counter.0;
            cached.dirty = true;
        }
        cached.versions[entry_index(segment)] = seen;
        cached.pins -= 1;
    }

    /// Returns once the page of a segment is open on the medium, so that objects may get ahead of
    /// it. Returns the first counter of this session: it is above all counters of earlier sessions,
    /// including those of unacknowledged transactions that the store may still perform.
    pub(crate) fn open_page_of(&self, segment: Segment) -> Result<WriteCounter> {
        let number = PageNumber::of(segment);
        let first = || self.state.lock().opened.get(&number).map(|opened| opened.first);
        if let Some(first) = first() {
            return Ok(first);
        }
        let writing = self.version_store.lock_object(number.object_index());
        if let Some(first) = first() {
            return Ok(first);
        }
        self.open_page(&writing, number)
    }

    /// Renews a page that an object of a later session proves to be old, or that does not verify:
    /// its generation, and the counters of all its objects below `segments`, rise above the session
    /// of the counter `highest`. So each of these objects is refused until it is written. The page
    /// is open afterwards. To be called while no transaction is in flight.
    ///
    /// Errors: those of the store; the page in memory is renewed all the same.
    pub(crate) fn renew(&self, number: PageNumber, highest: WriteCounter, segments: u64) -> Result<()> {
        let writing = self.version_store.lock_object(number.object_index());
        writing.raise_generation(Generation(highest.0 / SESSION_COUNTERS));
        let least = writing.next_generation().0.saturating_mul(SESSION_COUNTERS);
        let on_disk = number.segments().take_while(|segment| *segment < segments).count();
        let renew = |cached: &mut CachedVersionPage| {
            cached.page.entries[..on_disk].iter_mut().for_each(|entry| *entry = least.max(*entry));
            cached.versions.fill(StoreVersion::UNKNOWN);
            cached.dirty = true;
        };
        match self.with_loaded(number, renew) {
            // Nothing of a page that does not verify is kept.
            Err(e) if e.kind() == Kind::Corrupt => {
                let page = VersionPage { is_open: true, ..VersionPage::default() };
                let mut cached = CachedVersionPage::new(page);
                renew(&mut cached);
                self.state.lock().pages.put(number, cached);
            }
            renewed => renewed?,
        }
        self.open_page(&writing, number).map(drop)
    }

    /// Writes a page as open, for the transactions of this session. Returns their first counter.
    fn open_page(&self, writing: &ObjectWriteLock<'_>, number: PageNumber) -> Result<WriteCounter> {
        let page = self.with_loaded(number, CachedVersionPage::pin)?;
        let was_open = page.is_open;
        let closing = if was_open { CloseState::MayLag } else { CloseState::Exact };
        // Also if it is open already: the generation distinguishes this session from other ones.
        let generation = self.write(writing, vec![(number, VersionPage { is_open: true, ..page })])?;
        let first = WriteCounter(generation.saturating_mul(SESSION_COUNTERS));
        let mut state = self.state.lock();
        if let Some(cached) = state.pages.get(number) {
            // Objects may now have counters of this session.
            cached.page.generation = Generation(generation);
        }
        state.opened.insert(number, OpenedPage { close_state: closing, was_open, first });
        Ok(first)
    }

    /// Records that the outcome of a transaction on this segment's object is unknown.
    pub(crate) fn keep_open(&self, segment: Segment) {
        if let Some(opened) = self.state.lock().opened.get_mut(&PageNumber::of(segment)) {
            opened.close_state = CloseState::StaysOpen;
        }
    }

    /// Runs `f` with the tag of the heads that cover `segments`, while nothing writes the version
    /// table.
    pub(crate) fn with_frozen_heads<T>(&self, segments: u64, f: impl FnOnce(HeadsTag) -> T) -> T {
        let _writings: Vec<ObjectWriteLock<'_>> =
            (0..self.version_store.object_count()).map(|part| self.version_store.lock_object(part)).collect();
        f(self.heads_tag(segments))
    }

    /// The tag of the heads that cover `segments`.
    pub(crate) fn heads_tag(&self, segments: u64) -> HeadsTag {
        self.version_store.heads_tag(segments)
    }

    /// Writes every dirty page, as open.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        for part in 0..self.version_store.object_count() {
            let writing = self.version_store.lock_object(part);
            let mut state = self.state.lock();
            let changed = state
                .pages
                .iter_mut()
                .filter(|(number, cached)| number.object_index() == part && cached.dirty);
            let changed: Vec<(PageNumber, VersionPage)> = changed
                .map(|(number, cached)| {
                    cached.dirty = false;
                    (number, VersionPage { is_open: true, ..cached.pin() })
                })
                .collect();
            drop(state);
            self.write(&writing, changed)?;
        }
        Ok(())
    }

    /// Writes pinned pages and unpins them. They stay dirty if the write fails. Returns their
    /// generation.
    fn write(&self, writing: &ObjectWriteLock<'_>, pages: Vec<(PageNumber, VersionPage)>) -> Result<u64> {
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
            opened.into_iter().map(|(number, opened)| (number, opened.close_state)).collect();
        opened.sort_unstable();
        for chunk in opened.chunk_by(|(a, _), (b, _)| a.object_index() == b.object_index()) {
            // In batches, so that the pages need not all be in memory at once.
            for batch in chunk.chunks(64) {
                let mut pages = Vec::with_capacity(batch.len());
                for &(number, closing) in batch {
                    let open = match closing {
                        CloseState::Exact => false,
                        CloseState::MayLag => !settle(number.segments())?,
                        CloseState::StaysOpen => true,
                    };
                    let page = self.with(number, |cached| {
                        cached.page.is_open = open;
                        cached.dirty = false;
                        cached.pin()
                    })?;
                    pages.push((number, page));
                }
                self.write(&self.version_store.lock_object(batch[0].0.object_index()), pages)?;
            }
        }
        Ok(())
    }
}

/// The first counter that no object under this page can have. A session opens a page before its
/// first transaction, and the generation of that write determines its first counter: this or a
/// higher counter belongs to a session after the page was written, so the page is old. For a closed
/// page there is no such bound: its counters are exact.
fn first_later_counter(page: &VersionPage, counter: WriteCounter) -> WriteCounter {
    if !page.is_open {
        return WriteCounter(u64::MAX);
    }
    let of_session = page.generation.0.saturating_add(1).saturating_mul(SESSION_COUNTERS);
    WriteCounter(of_session.max(counter.0.saturating_add(SESSION_COUNTERS)))
}

fn entry_index(segment: Segment) -> usize {
    (segment.0 % PAGE_SEGMENTS) as usize
}
