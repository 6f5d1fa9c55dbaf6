//! `DbBackend`: the storage backend of the namespace's database: a protected file, with the
//! database's writes since the last checkpoint in memory above it.
//!
//! The database is told at once that its writes are durable. They become durable only by
//! [`DbBackend::flush`], which hands them to the store and returns the root for the next commit; a
//! crash before that commit leaves the database as of the previous checkpoint. So a full backing
//! directory cannot fail the database in the middle of its own commit.

use super::copies::CopyReadOptions;
use super::objects::NamespaceObjects;
use crate::{BLOCK, VaultLog};
use lacuna_contracts::{Budget, Error, Kind, Result, Secret};
use lacuna_integrity::{Choice, FileKeys, Part, ProtectedFile, Scheme, Session, Trusted, Untrusted};
use lacuna_vault_store::{ObjectId, PageCopy, Store};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const VERSION: u8 = 1;
/// The number of the namespace's database among the files of a vault; inodes begin at 1.
const FILE: u64 = 0;
/// Blocks that are handed to the store at once.
const RUN: usize = 256;

/// A position in the objects of the namespace: an object's index and a page of it.
#[derive(Clone, Copy, Default)]
pub(crate) struct PagePosition {
    nth: usize,
    page: u64,
}

struct DbBackendState {
    file: ProtectedFile,
    /// The length of the database in bytes.
    len: u64,
    /// Blocks at or after this one were truncated since the last flush: unless they are in
    /// `written`, they read as zeros.
    cut: u64,
    written: HashMap<u64, Box<[u8; BLOCK]>>,
}

/// The backend of the database.
pub(crate) struct DbBackend {
    objects: NamespaceObjects,
    state: RwLock<DbBackendState>,
    /// Copies of `DbBackendState::len` and of the number of its written blocks, because admission
    /// reads them at each write. Updated under the lock.
    len: AtomicU64,
    pending_blocks: AtomicUsize,
}

impl DbBackend {
    /// The backend of a new vault.
    pub(crate) fn create(store: &Arc<Store>, master: &Secret<32>, log: &VaultLog) -> Result<DbBackend> {
        let keys = FileKeys::derive(master, FILE);
        let file = ProtectedFile::init(keys, Choice::Fixed(Scheme::Mt), Session(store.session()));
        Ok(DbBackend::new(NamespaceObjects::create(store.clone(), log.clone())?, file, 0))
    }

    /// The backend of a root that [`DbBackend::flush`] returned.
    pub(crate) fn open(
        store: &Arc<Store>,
        master: &Secret<32>,
        root: &[u8],
        reading: CopyReadOptions,
        budget: Budget,
    ) -> Result<DbBackend> {
        let (objects, len, trusted) = DbBackend::parse(store, root, reading)?;
        let keys = FileKeys::derive(master, FILE);
        let file = ProtectedFile::open(keys, &Trusted::parse(trusted)?, Session(store.session()), budget)?;
        Ok(DbBackend::new(objects, file, len))
    }

    /// The names of the backing files of such a root; the vault does not open without them.
    pub(crate) fn backing_files(store: &Arc<Store>, root: &[u8]) -> Result<Vec<String>> {
        let silent: VaultLog = Arc::new(|_| ());
        let reading = CopyReadOptions { stale_numbers: Range::default(), reads_thirds: false, log: silent };
        DbBackend::parse(store, root, reading).map(|(objects, ..)| objects.names())
    }

    /// The objects of a root, the length of the database, and the trusted storage of its file.
    fn parse<'r>(
        store: &Arc<Store>,
        root: &'r [u8],
        reading: CopyReadOptions,
    ) -> Result<(NamespaceObjects, u64, &'r [u8])> {
        let bad =
            |found: String| Error::new(Kind::Corrupt, "cannot read the root of the namespace").found(found);
        let (&version, rest) = root.split_first().ok_or_else(|| bad("no root".into()))?;
        if version != VERSION {
            return Err(bad(format!("version {version}")).expected(format!("version {VERSION}")));
        }
        let (len, rest) = rest.split_first_chunk().ok_or_else(|| bad(format!("{} bytes", root.len())))?;
        let (objects, trusted) = NamespaceObjects::parse(store.clone(), rest, reading)?;
        Ok((objects, u64::from_le_bytes(*len), trusted))
    }

    fn new(objects: NamespaceObjects, file: ProtectedFile, len: u64) -> DbBackend {
        let state = DbBackendState { file, len, cut: u64::MAX, written: HashMap::new() };
        let waiting = AtomicUsize::new(0);
        DbBackend { objects, state: RwLock::new(state), len: AtomicU64::new(len), pending_blocks: waiting }
    }

    /// Bytes that wait for a flush.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.pending_blocks.load(Ordering::Acquire) * BLOCK
    }

    /// Finds the pages of parts with copies that this opening ignores and a later one would not:
    /// see [`NamespaceObjects::find_superseded`].
    pub(crate) fn find_superseded(&self) -> Result<bool> {
        // No part has more pages than the file has blocks.
        let most = self.state.read().file.blocks();
        self.objects.find_superseded(most)
    }

    /// Bytes of these pages, which the next flush writes besides those that wait.
    pub(crate) fn superseded_bytes(&self) -> usize {
        self.objects.superseded_count() * BLOCK
    }

    /// The length of the database in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Changes the state and, whatever the outcome, updates the copies for admission.
    fn change<T>(&self, work: impl FnOnce(&mut DbBackendState) -> Result<T>) -> Result<T> {
        let mut state = self.state.write();
        let done = work(&mut state);
        self.len.store(state.len, Ordering::Release);
        self.pending_blocks.store(state.written.len(), Ordering::Release);
        done
    }

    /// Whether the store holds pages of a flush without a committed root: the next commit must
    /// include the root.
    pub(crate) fn is_unrooted(&self) -> bool {
        self.objects.is_unrooted()
    }

    /// Notes that the root of the last flush is in a noted commit.
    pub(crate) fn note_rooted(&self) {
        self.objects.note_rooted();
    }

    /// The name of the backing file.
    pub(crate) fn backing(&self) -> String {
        self.objects.name()
    }

    /// Hands everything to the store and returns the root. After an error everything is kept for
    /// another attempt.
    pub(crate) fn flush(&self) -> Result<Vec<u8>> {
        self.change(|state| self.flush_state(state))
    }

    fn flush_state(&self, state: &mut DbBackendState) -> Result<Vec<u8>> {
        let DbBackendState { file, len, cut, written } = state;
        file.set_session(self.objects.session());
        let blocks = len.div_ceil(BLOCK as u64);
        let kept = (*cut).min(blocks);
        if file.blocks() > kept {
            file.resize(&self.objects, kept)?;
        }
        // Also if an earlier attempt got this far.
        if *cut != u64::MAX {
            self.objects.truncate(kept)?;
        }
        *cut = u64::MAX;
        let mut numbers: Vec<u64> = written.keys().copied().collect();
        numbers.sort_unstable();
        let mut run = Vec::with_capacity(RUN * BLOCK);
        for together in numbers.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(RUN)) {
            run.clear();
            together.iter().for_each(|block| run.extend_from_slice(&written[block][..]));
            file.update(&self.objects, together[0], &run)?;
            together.iter().for_each(|block| drop(written.remove(block)));
            // Pages that the store has now count as the journal's, so do not count them twice.
            self.pending_blocks.store(written.len(), Ordering::Release);
        }
        if file.blocks() < blocks {
            file.resize(&self.objects, blocks)?;
        }
        let trusted = file.commit(&self.objects)?;
        self.objects.flush()?;
        let mut root = vec![VERSION];
        root.extend(len.to_le_bytes());
        self.objects.encode(&mut root);
        root.extend(trusted.to_bytes());
        Ok(root)
    }

    /// Reads and verifies every block, as [`DbBackend::read`] would. Returns their number, and the
    /// number of pages that verify but that only one of the backing files holds.
    pub(crate) fn verify(&self, bad: &mut dyn FnMut(u64, &Error)) -> Result<(u64, u64)> {
        let state = self.state.read();
        let (mut block, mut single) = ([0; BLOCK], 0);
        let (data, parts) = self.split_objects();
        for number in 0..state.file.blocks() {
            match state.check(&self.objects, number, &mut block) {
                Ok(()) => single += u64::from(!self.objects.is_in_both_files(data, number)),
                Err(e) => bad(number, &e),
            }
        }
        for object in parts {
            for page in 0..self.objects.pages(object)? {
                let is_single = !self.objects.is_in_both_files(object, page);
                single += u64::from(is_single && self.objects.newest(object, page).is_some());
            }
        }
        Ok((state.file.blocks(), single))
    }

    /// The object of the blocks, and the objects of the parts.
    fn split_objects(&self) -> (ObjectId, Vec<ObjectId>) {
        let mut all = self.objects.all();
        let data = all.remove(0);
        (data, all)
    }

    /// Hands pages that not all backing files hold to the store, starting at a position: at most
    /// `most`, and pages of parts only with `parts`. Returns their number and the position to
    /// continue at. The next checkpoint writes them to all files.
    pub(crate) fn rewrite_single_copies(
        &self,
        from: PagePosition,
        most: u64,
        parts: bool,
    ) -> Result<(u64, Option<PagePosition>)> {
        // The lock keeps other threads from handing newer pages to the store.
        let state = self.state.write();
        let (mut given, mut plain) = (0, [0; BLOCK]);
        let objects = self.objects.all();
        let of_blocks = |nth: usize| nth == 0;
        for (nth, object) in objects.into_iter().enumerate().skip(from.nth) {
            let first = if nth == from.nth { from.page } else { 0 };
            let end = if of_blocks(nth) { state.file.blocks() } else { self.objects.pages(object)? };
            for page in first..end {
                if given == most {
                    return Ok((given, Some(PagePosition { nth, page })));
                }
                if self.objects.is_in_all_files(object, page) {
                    continue;
                }
                let good = if of_blocks(nth) {
                    state
                        .copy_of(&self.objects, page, self.objects.copies(), &mut plain)
                        .map(|sealed| sealed.to_vec())
                } else {
                    self.objects.newest_with_current_mark(object, page).filter(|_| parts)
                };
                if let Some(good) = good {
                    self.objects.write_pages(object, page, &good)?;
                    given += 1;
                }
            }
        }
        Ok((given, None))
    }

    /// The number of reads that used another copy of a page because the usual one does not verify.
    pub(crate) fn other_copy_reads(&self) -> u64 {
        self.objects.other_copy_reads()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let state = self.state.read();
        let end = offset + out.len() as u64;
        if end > state.len {
            return Err(Error::new(Kind::Other, "cannot read the namespace past its end")
                .found(format!("byte {end}"))
                .expected(format!("at most {}", state.len)));
        }
        let (mut at, mut out) = (offset, out);
        while !out.is_empty() {
            let (block, within) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
            // Runs of whole blocks that are only in the file are read at once.
            let whole = if within == 0 { state.unwritten_run(block, out.len() / BLOCK) } else { 0 };
            let take = if whole > 0 { whole * BLOCK } else { (BLOCK - within).min(out.len()) };
            let (now, later) = out.split_at_mut(take);
            if whole > 0 {
                state.check(&self.objects, block, now)?;
            } else {
                now.copy_from_slice(&state.block(&self.objects, block)?[within..within + take]);
            }
            (at, out) = (at + take as u64, later);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.change(|state| self.write_state(state, offset, data))
    }

    fn write_state(&self, state: &mut DbBackendState, offset: u64, data: &[u8]) -> Result<()> {
        state.len = state.len.max(offset + data.len() as u64);
        let (mut at, mut data) = (offset, data);
        while !data.is_empty() {
            let (block, within) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
            let take = (BLOCK - within).min(data.len());
            if !state.written.contains_key(&block) {
                let whole = take == BLOCK;
                let old = if whole { Box::new([0; BLOCK]) } else { state.block(&self.objects, block)? };
                state.written.insert(block, old);
            }
            let held = state.written.get_mut(&block).expect("it was just put there");
            held[within..within + take].copy_from_slice(&data[..take]);
            (at, data) = (at + take as u64, &data[take..]);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.change(|state| self.set_state_len(state, len))
    }

    fn set_state_len(&self, state: &mut DbBackendState, len: u64) -> Result<()> {
        if len < state.len {
            let (kept, within) = (len.div_ceil(BLOCK as u64), (len % BLOCK as u64) as usize);
            if within > 0 {
                let mut last = state.block(&self.objects, kept - 1)?;
                last[within..].fill(0);
                state.written.insert(kept - 1, last);
            }
            state.written.retain(|block, _| *block < kept);
            state.cut = state.cut.min(kept);
        }
        state.len = len;
        Ok(())
    }
}

impl DbBackendState {
    /// Reads and verifies blocks of the file, each from any copy that verifies.
    fn check(&self, objects: &NamespaceObjects, first: u64, out: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() {
            let Err(failed) = self.file.check(objects, at, rest) else { return Ok(()) };
            let good = (failed.block - at) as usize * BLOCK;
            let (block, behind) = rest[good..].split_at_mut(BLOCK);
            // The first copy was read already.
            let others = &objects.copies()[1..];
            if self.copy_of(objects, failed.block, others, block).is_none() {
                return Err(failed.error);
            }
            objects.note_other_block_copy(failed.block);
            (at, rest) = (failed.block + 1, behind);
        }
        Ok(())
    }

    /// The first of some copies of a block that verifies; `plain` gets its plaintext.
    fn copy_of(
        &self,
        objects: &NamespaceObjects,
        block: u64,
        copies: &[PageCopy],
        plain: &mut [u8],
    ) -> Option<Box<[u8; BLOCK]>> {
        let mut sealed = Box::new([0; BLOCK]);
        let found = copies.iter().any(|copy| {
            let is_read = matches!(objects.read_copy(block, *copy, &mut sealed[..]), Ok(true));
            is_read && self.file.check(&OneBlock { objects, block, sealed: &sealed }, block, plain).is_ok()
        });
        found.then_some(sealed)
    }

    /// The number of blocks, starting at `first` and at most `most`, that can be read from the file
    /// itself.
    fn unwritten_run(&self, first: u64, most: usize) -> usize {
        let end = self.file.blocks().min(self.cut);
        let inside = |block: &u64| *block < end && !self.written.contains_key(block);
        (first..first + most as u64).take_while(inside).count()
    }

    fn block(&self, objects: &NamespaceObjects, block: u64) -> Result<Box<[u8; BLOCK]>> {
        if let Some(held) = self.written.get(&block) {
            return Ok(held.clone());
        }
        let mut bytes = Box::new([0; BLOCK]);
        if block < self.file.blocks().min(self.cut) {
            self.check(objects, block, &mut bytes[..])?;
        }
        Ok(bytes)
    }
}

/// The namespace's objects with one block replaced by a copy of it, for reads of that block alone.
struct OneBlock<'a> {
    objects: &'a NamespaceObjects,
    block: u64,
    sealed: &'a [u8; BLOCK],
}

impl Untrusted for OneBlock<'_> {
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<()> {
        if first == self.block && out.len() == BLOCK {
            out.copy_from_slice(self.sealed);
            return Ok(());
        }
        self.objects.read_blocks(first, out)
    }

    fn write_blocks(&self, first: u64, sealed: &[u8]) -> Result<()> {
        self.objects.write_blocks(first, sealed)
    }

    fn read_part(&self, part: Part, page: u64) -> Result<Option<Vec<u8>>> {
        self.objects.read_part(part, page)
    }

    fn write_part(&self, part: Part, page: u64, bytes: Option<&[u8]>) -> Result<()> {
        self.objects.write_part(part, page, bytes)
    }
}

/// The backend's failure that the database passed on, if any; each thread gets that of its own
/// read.
pub(crate) fn failure_in(e: &io::Error) -> Option<Error> {
    e.get_ref()?.downcast_ref::<Error>().cloned()
}

/// The backend in the database's interface.
#[derive(Clone)]
pub(crate) struct SharedBackend(pub(crate) Arc<DbBackend>);

impl fmt::Debug for SharedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedBackend")
    }
}

impl redb::StorageBackend for SharedBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.state.read().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out).map_err(io::Error::other)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len).map_err(io::Error::other)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data).map_err(io::Error::other)
    }
}
