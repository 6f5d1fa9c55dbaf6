//! MT-EINT (section 5.1, Figure 7): each block is encrypted with AES-256-GCM under its tag, which
//! is a leaf of a tree of tags.
//!
//! The paper hashes index and content; here the tag is a keyed hash that also binds the write
//! counter. A leaf of zeros is a hole.

use crate::ablation::{SchemeCheck, is_enforced};
use crate::counters::counter::{Counter, WritePass};
use crate::counters::mt_counters::MtCounters;
use crate::failed::CheckResult;
use crate::keys::{FileKeys, Tag};
use crate::schemes::block_ciphers::RunCiphers;
use crate::schemes::scheme_layer::{
    BATCH, ExtentState, SchemeLayer, at, batch_blocks, half_done, with_buffer,
};
use crate::section::{Section, SectionMut};
use crate::tampered::altered;
use crate::untrusted::Untrusted;
use crate::wide_tree::page::{ABSENT, ENTRIES};
use crate::wide_tree::{TreeRoot, WideTree};
use lacuna_contracts::{Budget, Kind, Result};
use std::ops::Range;
use std::sync::Arc;

/// The leaf of a block that was punched while there was a layer below.
const PUNCHED: Tag = [0xfe; 16];
/// The leaf of a block with lost content: a ciphertext has this tag with probability 2^-128.
pub(crate) const LOST: Tag = [0xff; 16];

pub(crate) struct Mt {
    keys: Arc<FileKeys>,
    block_size: usize,
    counters: MtCounters,
    tree: WideTree,
}

impl Mt {
    pub(crate) fn new(keys: Arc<FileKeys>, block_size: usize) -> Self {
        let (counters, tree) = (MtCounters::new(keys.clone()), WideTree::new(keys.clone(), 0));
        Mt { keys, block_size, counters, tree }
    }

    /// A layer of `blocks` holes.
    pub(crate) fn of_holes(keys: Arc<FileKeys>, block_size: usize, blocks: u64) -> Self {
        let mut counters = MtCounters::new(keys.clone());
        counters.resize(blocks);
        let tree = WideTree::open(keys.clone(), 0, blocks, TreeRoot::Page(ABSENT));
        Mt { keys, block_size, counters, tree }
    }

    /// The layer of `blocks` blocks that a section of TS describes.
    pub(crate) fn open(
        keys: Arc<FileKeys>,
        block_size: usize,
        blocks: u64,
        section: &mut Section<'_>,
    ) -> Result<Self> {
        let (frozen, inline) = section.flags()?;
        let pages = if frozen { section.u32()? } else { 0 };
        let base = section.short()?;
        let counters = MtCounters::open(keys.clone(), blocks, base, frozen, pages)?;
        let tree = WideTree::open(keys.clone(), 0, blocks, section.tree(inline, blocks)?);
        Ok(Mt { keys, block_size, counters, tree })
    }

    /// Verifies the pages that a write of `count` blocks needs; the write is a part of the write of
    /// `run`. If a page does not verify but all its blocks lie in the run, all its leaves become
    /// `LOST`: blocks that the run does not reach for lack of space then fail as before.
    fn prepare(&mut self, us: &dyn Untrusted, first: u64, count: u64, run: &Range<u64>) -> Result<()> {
        let Err(e) = self.tree.prepare(us, first, count) else { return Ok(()) };
        if e.kind() != Kind::Corrupt || first >= self.tree.leaves() {
            return Err(e);
        }
        let end = (first + count).min(self.tree.leaves());
        for page in first / ENTRIES..=(end - 1) / ENTRIES {
            let (from, to) = (page * ENTRIES, ((page + 1) * ENTRIES).min(self.tree.leaves()));
            let part = first.max(from)..end.min(to);
            if let Err(e) = self.tree.prepare(us, part.start, part.end - part.start) {
                if e.kind() != Kind::Corrupt || from < run.start || run.end < to {
                    return Err(e);
                }
                self.tree.fill_page(us, page, LOST)?;
            }
        }
        self.tree.prepare(us, first, count)
    }

    /// Encrypts blocks and gives their tags. `false` if a tag has a reserved value, so that another
    /// counter is needed.
    fn encrypt(
        &self,
        first: u64,
        counter: Counter,
        plain: &[u8],
        sealed: &mut [u8],
        tags: &mut [Tag],
    ) -> bool {
        let mut ciphers = RunCiphers::new(&self.keys);
        let blocks = plain.chunks_exact(self.block_size).zip(sealed.chunks_exact_mut(self.block_size));
        for ((block, (from, to)), tag) in (first..).zip(blocks).zip(tags) {
            *tag = ciphers.seal_tagged(block, counter, from, to);
            if is_reserved(tag) {
                return false;
            }
        }
        true
    }

    /// Decrypts blocks in place.
    fn decrypt(&self, first: u64, counters: &[Counter], tags: &[Tag], blocks: &mut [u8]) -> CheckResult {
        let mut ciphers = RunCiphers::new(&self.keys);
        let blocks = blocks.chunks_exact_mut(self.block_size).zip(counters.iter().zip(tags));
        for (number, (block, (counter, tag))) in (first..).zip(blocks) {
            if *tag == ABSENT || *tag == PUNCHED {
                block.fill(0);
                continue;
            }
            let opened = ciphers.open_tagged(number, *counter, block, tag);
            if !opened && is_enforced(SchemeCheck::LeafTag) {
                return Err(at(number)(altered(number)));
            }
        }
        Ok(())
    }
}

/// Whether a tag is a marker and cannot be the tag of a block.
pub(crate) fn is_reserved(tag: &Tag) -> bool {
    [ABSENT, PUNCHED, LOST].contains(tag)
}

impl SchemeLayer for Mt {
    fn set_budget(&mut self, budget: Budget) {
        // A page of leaves and a page of counters have the same number of blocks.
        self.tree.set_budget(budget.share(1, 2));
        self.counters.set_budget(budget.share(1, 2));
    }

    fn blocks(&self) -> u64 {
        self.tree.leaves()
    }

    fn write(&mut self, us: &dyn Untrusted, pass: &mut WritePass, first: u64, plain: &[u8]) -> Result<()> {
        let batch = batch_blocks(self.block_size);
        let mut tags = [ABSENT; BATCH];
        let (starts, run) = ((first..).step_by(batch), first..first + (plain.len() / self.block_size) as u64);
        for (start, part) in starts.zip(plain.chunks(batch * self.block_size)) {
            let count = part.len() / self.block_size;
            self.flush_over_budget(us)?;
            // Verify before any change: if the tree does not verify, the file stays unchanged.
            self.prepare(us, start, count as u64, &run)?;
            self.counters.prepare(us, start, count as u64)?;
            let counter = with_buffer(part.len(), |sealed| {
                loop {
                    let counter = pass.counter_for_write(start, count as u64)?;
                    if self.encrypt(start, counter, part, sealed, &mut tags[..count]) {
                        us.write_blocks(start, sealed)?;
                        return Ok(counter);
                    }
                }
            })?;
            // The blocks have been replaced: from here an error leaves them half changed.
            self.tree.set(us, start, &tags[..count]).map_err(half_done)?;
            self.counters.set(us, start, count as u64, counter).map_err(half_done)?;
        }
        Ok(())
    }

    fn read(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> CheckResult {
        let (mut tags, mut counters) = ([ABSENT; BATCH], [Counter::HOLE; BATCH]);
        for (start, part) in (first..).step_by(BATCH).zip(plain.chunks_mut(BATCH * self.block_size)) {
            let count = part.len() / self.block_size;
            let (tags, counters) = (&mut tags[..count], &mut counters[..count]);
            self.tree.get(us, start, tags).map_err(at(start))?;
            if tags.iter().all(|tag| *tag == ABSENT || *tag == PUNCHED) {
                part.fill(0);
                continue;
            }
            self.counters.get(us, start, counters).map_err(at(start))?;
            us.read_blocks(start, part).map_err(at(start))?;
            self.decrypt(start, counters, tags, part)?;
        }
        Ok(())
    }

    fn extent_at(&self, us: &dyn Untrusted, block: u64) -> Result<(ExtentState, u64)> {
        let blocks = self.tree.leaves();
        if block >= blocks {
            return Ok((ExtentState::Unwritten, u64::MAX));
        }
        let count = (BATCH as u64 - block % BATCH as u64).min(blocks - block) as usize;
        let mut tags = [ABSENT; BATCH];
        self.tree.get(us, block, &mut tags[..count])?;
        let state = |tag: &Tag| match *tag {
            ABSENT => ExtentState::Unwritten,
            PUNCHED => ExtentState::Punched,
            _ => ExtentState::Data,
        };
        let found = state(&tags[0]);
        let same = tags[..count].iter().take_while(|tag| state(tag) == found).count() as u64;
        if found == ExtentState::Unwritten && same == count as u64 {
            // Absent parts of the tree are skipped as a whole.
            return Ok((found, self.tree.seek(us, block + same, true)?.unwrap_or(u64::MAX)));
        }
        Ok((found, block + same))
    }

    fn flush_over_budget(&mut self, us: &dyn Untrusted) -> Result<()> {
        self.tree.flush_over_budget(us)?;
        self.counters.flush_over_budget(us)
    }

    fn resize(&mut self, us: &dyn Untrusted, blocks: u64) -> Result<()> {
        let counters = &mut self.counters;
        self.tree.resize(us, blocks, &mut |page| counters.drop_page(us, page))?;
        self.counters.resize(blocks);
        Ok(())
    }

    fn punch(&mut self, us: &dyn Untrusted, first: u64, count: u64, mark: bool) -> Result<()> {
        if !mark {
            let counters = &mut self.counters;
            return self.tree.clear(us, first, count, &mut |page| counters.drop_page(us, page));
        }
        for start in (0..count).step_by(BATCH) {
            let some = (count - start).min(BATCH as u64) as usize;
            self.tree.flush_over_budget(us)?;
            self.tree.set(us, first + start, &[PUNCHED; BATCH][..some])?;
        }
        Ok(())
    }

    fn mark_lost(&mut self, us: &dyn Untrusted, pass: &mut WritePass, block: u64) -> Result<()> {
        self.tree.prepare(us, block, 1)?;
        self.counters.prepare(us, block, 1)?;
        let counter = pass.counter_for_write(block, 1)?;
        self.tree.set(us, block, &[LOST]).map_err(half_done)?;
        self.counters.set(us, block, 1, counter).map_err(half_done)
    }

    fn seal(&mut self, us: &dyn Untrusted, most: usize, alone: bool) -> Result<Vec<u8>> {
        let (base, frozen, pages) = self.counters.seal(us)?;
        let used = 2 + base.len() + 4 * usize::from(frozen);
        let tree = self.tree.seal(us, if alone { most.saturating_sub(used) } else { 0 })?;
        let mut section = SectionMut::new(frozen, matches!(tree, TreeRoot::Leaves(_)));
        if frozen {
            section.u32(pages);
        }
        section.short(&base);
        section.tree(&tree);
        Ok(section.into_bytes())
    }

    fn usage(&self, us: &dyn Untrusted) -> Result<(u64, u64, u64)> {
        let bytes = self.tree.stored_bytes(us)? + self.counters.stored_bytes();
        Ok((bytes, 0, self.counters.intervals()))
    }

    fn intervals(&self) -> u64 {
        0
    }

    fn fewest_intervals(&self, _: &dyn Untrusted) -> Result<u64> {
        Ok(0)
    }
}
