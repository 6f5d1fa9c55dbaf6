//! The objects of the namespace's own database in the store: one for its blocks, and one for each
//! part of its untrusted storage, with a page of the part in a page of the object.
//!
//! A page of a part begins with its length plus one (u16, little-endian); zero means a removed
//! page. A mark ends it. All of these objects are doubled: see [`super::copies`].

use super::copies::{self, CopyReadOptions, decode_page, encode_page, mark};
use crate::VaultLog;
use crate::content::part_codes::{part_code, part_from_code};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_integrity::{Part, Session, Untrusted};
use lacuna_vault_store::{ObjectId, PageCopy, Store};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The objects of the namespace's database.
pub(crate) struct NamespaceObjects {
    store: Arc<Store>,
    data: ObjectId,
    /// By the codes of parts.
    parts: Mutex<BTreeMap<u8, ObjectId>>,
    /// Pages of parts that the store does not have yet: a full store must not fail the protected
    /// file half way.
    unflushed: Mutex<BTreeMap<(u8, u64), Vec<u8>>>,
    /// Pages of parts that have copies with stale numbers, and their count.
    superseded: Mutex<BTreeSet<(u8, u64)>>,
    superseded_count: AtomicUsize,
    /// Whether the store was given pages without a committed root.
    unrooted: AtomicBool,
    /// The number of reads that used another copy because the usual one does not verify.
    other_copy_reads: AtomicU64,
    read_options: CopyReadOptions,
}

impl NamespaceObjects {
    /// The objects of a new database.
    pub(crate) fn create(store: Arc<Store>, log: VaultLog) -> Result<NamespaceObjects> {
        let data = store.new_object()?;
        let reading = CopyReadOptions { stale_numbers: Range::default(), reads_thirds: false, log };
        Ok(NamespaceObjects::new(store, data, BTreeMap::new(), reading))
    }

    fn new(
        store: Arc<Store>,
        data: ObjectId,
        parts: BTreeMap<u8, ObjectId>,
        reading: CopyReadOptions,
    ) -> NamespaceObjects {
        parts.values().chain([&data]).for_each(|object| store.mark_doubled(*object));
        let (parts, unrooted, elsewhere) = (Mutex::new(parts), AtomicBool::new(false), AtomicU64::new(0));
        NamespaceObjects {
            store,
            data,
            parts,
            unflushed: Mutex::default(),
            superseded: Mutex::default(),
            superseded_count: AtomicUsize::new(0),
            unrooted,
            other_copy_reads: elsewhere,
            read_options: reading,
        }
    }

    /// The current session for writes of the database.
    pub(crate) fn session(&self) -> Session {
        Session(self.store.session())
    }

    /// Whether the store was given pages since [`NamespaceObjects::note_rooted`]. Writes refused
    /// for lack of space do not count.
    pub(crate) fn is_unrooted(&self) -> bool {
        self.unrooted.load(Ordering::Acquire)
    }

    /// Notes that a noted commit has a root for everything.
    pub(crate) fn note_rooted(&self) {
        self.unrooted.store(false, Ordering::Release);
    }

    /// Writes to the store. After any failure except lack of space there are no more commits.
    pub(super) fn write_pages(&self, object: ObjectId, first: u64, pages: &[u8]) -> Result<()> {
        self.store.write(object, first, pages)?;
        self.unrooted.store(true, Ordering::Release);
        Ok(())
    }

    /// Parses the output of [`NamespaceObjects::encode`]. Returns the objects and the remaining
    /// bytes.
    pub(crate) fn parse(
        store: Arc<Store>,
        bytes: &[u8],
        reading: CopyReadOptions,
    ) -> Result<(NamespaceObjects, &[u8])> {
        let take = |bytes: &[u8]| Some((u64::from_le_bytes(*bytes.first_chunk()?), bytes.len()));
        let parsed = || {
            let (data, _) = take(bytes)?;
            let (&count, mut rest) = bytes[8..].split_first()?;
            let mut parts = BTreeMap::new();
            for _ in 0..count {
                let (&code, object) = rest.split_first()?;
                part_from_code(code)?;
                parts.insert(code, ObjectId(take(object)?.0));
                rest = &object[8..];
            }
            Some((ObjectId(data), parts, rest))
        };
        let (data, parts, rest) = parsed().ok_or_else(|| {
            Error::new(Kind::Corrupt, "cannot read the root of the namespace")
                .found(format!("{} bytes", bytes.len()))
        })?;
        Ok((NamespaceObjects::new(store, data, parts, reading), rest))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.data.0.to_le_bytes());
        let parts = self.parts.lock();
        out.push(parts.len() as u8);
        for (code, object) in parts.iter() {
            out.push(*code);
            out.extend(object.0.to_le_bytes());
        }
    }

    /// Finds the pages of parts with copies that have stale numbers, of parts with at most `most`
    /// pages each. Returns whether there are any.
    ///
    /// Such copies are of another state than this one, as after a copy of the directory that mixes
    /// two states. They are ignored only until there is another root. So the flush for that root
    /// writes all these pages anew.
    pub(crate) fn find_superseded(&self, most: u64) -> Result<bool> {
        let stale = &self.read_options.stale_numbers;
        if stale.is_empty() {
            return Ok(false);
        }
        let (parts, mut found) = (self.parts.lock().clone(), BTreeSet::new());
        for (code, object) in parts {
            // An adversary that writes to the directory may have lengthened a file.
            let pages = self.store.pages(object)?.min(most);
            let is_stale = |page: &u64| copies::has_stale_copy(&self.store, object, *page, stale);
            found.extend((0..pages).filter(is_stale).map(|page| (code, page)));
        }
        let mut superseded = self.superseded.lock();
        *superseded = found;
        self.superseded_count.store(superseded.len(), Ordering::Release);
        Ok(!superseded.is_empty())
    }

    /// The number of pages that the next flush writes anew.
    pub(crate) fn superseded_count(&self) -> usize {
        self.superseded_count.load(Ordering::Acquire)
    }

    /// Hands the pages of parts to the store. After an error the remaining pages are kept.
    pub(crate) fn flush(&self) -> Result<()> {
        let mut held = self.unflushed.lock();
        while let Some(entry) = held.first_entry() {
            let (code, page) = *entry.key();
            let (object, mut bytes) = (self.object(code)?, entry.get().clone());
            mark(&self.store, object, page, &mut bytes);
            self.write_pages(object, page, &bytes)?;
            entry.remove();
            self.note_written_anew(code, page);
        }
        drop(held);
        self.write_superseded()
    }

    /// Writes the remaining pages that have copies with stale numbers, with current marks.
    fn write_superseded(&self) -> Result<()> {
        // A copy in a third file may be the last one of this state.
        let reading = CopyReadOptions { reads_thirds: true, ..self.read_options.clone() };
        loop {
            let Some((code, page)) = self.superseded.lock().first().copied() else { return Ok(()) };
            let object = self.object(code)?;
            let bytes = match copies::newest(&self.store, object, page, &reading) {
                Ok(newest) => Some(newest.map_or_else(|| encode_page(None), |newest| newest.bytes)),
                // No copy of this state is left; a later one may be brought back.
                Err(e) if e.kind() == Kind::Corrupt => None,
                Err(e) => return Err(e),
            };
            if let Some(mut bytes) = bytes {
                mark(&self.store, object, page, &mut bytes);
                self.write_pages(object, page, &bytes)?;
            }
            self.note_written_anew(code, page);
        }
    }

    /// Notes that the store has the latest version of a page, with a current mark.
    fn note_written_anew(&self, code: u8, page: u64) {
        let mut superseded = self.superseded.lock();
        superseded.remove(&(code, page));
        self.superseded_count.store(superseded.len(), Ordering::Release);
    }

    /// The object of a part; it is made if there is none.
    fn object(&self, code: u8) -> Result<ObjectId> {
        let known = self.parts.lock().get(&code).copied();
        if let Some(object) = known {
            return Ok(object);
        }
        let object = self.store.new_object()?;
        self.store.mark_doubled(object);
        self.parts.lock().insert(code, object);
        Ok(object)
    }

    /// Truncates the object of the blocks.
    pub(crate) fn truncate(&self, blocks: u64) -> Result<()> {
        self.unrooted.store(true, Ordering::Release);
        self.store.truncate(self.data, blocks)
    }

    /// All objects, that of the blocks first.
    pub(super) fn all(&self) -> Vec<ObjectId> {
        std::iter::once(self.data).chain(self.parts.lock().values().copied()).collect()
    }

    /// The names of the first backing file of each object.
    pub(crate) fn names(&self) -> Vec<String> {
        self.all().into_iter().map(|object| self.store.object_name(object)).collect()
    }

    /// Reads one copy of a block; `false` if that copy does not exist.
    pub(super) fn read_copy(&self, block: u64, copy: PageCopy, sealed: &mut [u8]) -> Result<bool> {
        self.store.read_copy(self.data, block, copy, sealed)
    }

    /// The number of pages of an object of a part.
    pub(super) fn pages(&self, object: ObjectId) -> Result<u64> {
        self.store.pages(object)
    }

    /// The copies of a page to read, the likeliest first.
    pub(super) fn copies(&self) -> &'static [PageCopy] {
        self.read_options.copies()
    }

    /// Whether all three files of an object hold the same page.
    pub(super) fn is_in_all_files(&self, object: ObjectId, page: u64) -> bool {
        self.store.is_in_all_files(object, page)
    }

    /// Whether the first two files of an object hold the same page.
    pub(super) fn is_in_both_files(&self, object: ObjectId, page: u64) -> bool {
        self.store.is_in_both_files(object, page)
    }

    /// The newest copy of a page of a part, with its mark; `None` if none verifies.
    pub(super) fn newest(&self, object: ObjectId, page: u64) -> Option<Vec<u8>> {
        copies::newest(&self.store, object, page, &self.read_options)
            .unwrap_or(None)
            .map(|newest| newest.bytes)
    }

    /// The same with a current mark, so that it supersedes all copies that are ignored now.
    pub(super) fn newest_with_current_mark(&self, object: ObjectId, page: u64) -> Option<Vec<u8>> {
        let mut bytes = self.newest(object, page)?;
        mark(&self.store, object, page, &mut bytes);
        Some(bytes)
    }

    /// Counts a read that used another copy than the usual one. Logs the first.
    pub(super) fn note_other_copy(&self, object: ObjectId, page: u64) {
        if self.other_copy_reads.fetch_add(1, Ordering::Relaxed) == 0 {
            let (first, second) = (self.store.object_name(object), self.store.second_name(object));
            let other = if self.read_options.reads_thirds { "another file" } else { second.as_str() };
            let advice = if self.read_options.reads_thirds {
                ""
            } else {
                "; a check with repair rewrites the damaged page"
            };
            (self.read_options.log)(&format!(
                "page {page} of the namespace does not verify in the backing file {first}, and its copy in {other} does{advice}"
            ));
        }
    }

    /// The same for a block.
    pub(super) fn note_other_block_copy(&self, block: u64) {
        self.note_other_copy(self.data, block);
    }

    /// The number of reads that used another copy than the usual one.
    pub(crate) fn other_copy_reads(&self) -> u64 {
        self.other_copy_reads.load(Ordering::Relaxed)
    }

    /// The name of the backing file of the blocks.
    pub(crate) fn name(&self) -> String {
        self.store.object_name(self.data)
    }
}

impl Untrusted for NamespaceObjects {
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.store.read(self.data, first, out)
    }

    fn write_blocks(&self, first: u64, sealed: &[u8]) -> Result<()> {
        self.write_pages(self.data, first, sealed)
    }

    fn read_part(&self, part: Part, page: u64) -> Result<Option<Vec<u8>>> {
        let code = part_code(part);
        if let Some(held) = self.unflushed.lock().get(&(code, page)) {
            return Ok(decode_page(held));
        }
        let Some(object) = self.parts.lock().get(&code).copied() else { return Ok(None) };
        let Some(newest) = copies::newest(&self.store, object, page, &self.read_options)? else {
            return Ok(None);
        };
        if newest.is_from_other_copy {
            self.note_other_copy(object, page);
        }
        Ok(decode_page(&newest.bytes))
    }

    fn write_part(&self, part: Part, page: u64, bytes: Option<&[u8]>) -> Result<()> {
        self.unflushed.lock().insert((part_code(part), page), encode_page(bytes));
        Ok(())
    }
}
