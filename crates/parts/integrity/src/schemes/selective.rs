//! The common part of RAND-EINT and COMP-EINT (sections 5.2 and 5.3): authentic write counters, and
//! a tree of tags, RTree, only for blocks that cannot be verified by themselves.
//!
//! RArr maps a leaf of RTree to its block (leaf -> block), and its inverse maps a block to its leaf
//! (block -> leaf + 1, for SearchOffset). Both lie in US unauthenticated, as the paper argues: the
//! tag in the leaf binds the block. Altering them makes blocks fail and does no other harm. A
//! change uses a leaf that the inverse names only if RArr agrees; a read relies on the tag alone.

use crate::ablation::{SchemeCheck, is_enforced};
use crate::counters::auth_counters::{AuthCounters, CounterState, MOST_INTERVALS, ROOM};
use crate::counters::counter::{Counter, WritePass};
use crate::counters::page_array::PageArray;
use crate::failed::CheckResult;
use crate::keys::{FileKeys, Tag};
use crate::schemes::block_ciphers::{LeaflessCipher, RunCiphers};
use crate::schemes::mt::{LOST, is_reserved};
use crate::schemes::scheme_layer::{
    BATCH, ExtentState, MOST_BLOCKS, SchemeLayer, at, batch_blocks, half_done, with_buffer,
};
use crate::section::{Section, SectionMut, malformed};
use crate::tampered::altered;
use crate::untrusted::{Part, Untrusted};
use crate::wide_tree::page::ABSENT;
use crate::wide_tree::{TreeRoot, WideTree};
use lacuna_contracts::{Budget, Result};
use std::marker::PhantomData;
use std::sync::Arc;

/// Bytes of a section besides counters and tree.
const FIXED: usize = 1 + 8 + 4 + 4;
/// The most leaves without a block: tampering with RArr can leave orphan leaves. More would take
/// long to remove.
const MAX_ORPHAN_LEAVES: u64 = 1 << 20;
/// Bytes of counters in a section that shares TS with another section: the size of their hashes.
const SHARED_ROOM: usize = 35;

pub(crate) struct Selective<L> {
    keys: Arc<FileKeys>,
    block_size: usize,
    counters: AuthCounters,
    tree: WideTree,
    /// RArr.
    order: PageArray<8>,
    /// The inverse of RArr.
    position: PageArray<8>,
    cipher: PhantomData<fn() -> L>,
}

impl<L: LeaflessCipher> Selective<L> {
    pub(crate) fn new(keys: Arc<FileKeys>, block_size: usize) -> Self {
        let counters = AuthCounters::new(keys.clone());
        let tree = WideTree::new(keys.clone(), Part::RTREE);
        Self::with(keys, block_size, counters, tree, 0, 0)
    }

    fn with(
        keys: Arc<FileKeys>,
        block_size: usize,
        counters: AuthCounters,
        tree: WideTree,
        order: u32,
        position: u32,
    ) -> Self {
        let order = PageArray::new(keys.clone(), Part::Order, order);
        let position = PageArray::new(keys.clone(), Part::Position, position);
        Selective { keys, block_size, counters, tree, order, position, cipher: PhantomData }
    }

    /// The layer of `blocks` blocks that a section of TS describes.
    pub(crate) fn open(
        keys: Arc<FileKeys>,
        block_size: usize,
        blocks: u64,
        section: &mut Section<'_>,
    ) -> Result<Self> {
        let (hashed, inline) = section.flags()?;
        let (leaves, order, position) = (section.u64()?, section.u32()?, section.u32()?);
        let state = if hashed {
            let count = section.u32()?;
            if count as usize > MOST_INTERVALS {
                return Err(malformed(&format!("{count} counter intervals")));
            }
            CounterState::Hashed(count, [section.tag()?, section.tag()?])
        } else {
            CounterState::Inline(section.short()?.to_vec())
        };
        if leaves > MOST_BLOCKS.min(blocks + MAX_ORPHAN_LEAVES) {
            return Err(malformed(&format!("{leaves} tags")));
        }
        let counters = AuthCounters::open(keys.clone(), blocks, state)?;
        let tree = WideTree::open(keys.clone(), Part::RTREE, leaves, section.tree(inline, leaves)?);
        Ok(Self::with(keys, block_size, counters, tree, order, position))
    }

    /// Encrypts blocks. The tags of blocks that need a leaf go to `tags`. `false` if a tag has a
    /// reserved value, so that another counter is needed.
    fn encrypt(
        &self,
        first: u64,
        counter: Counter,
        plain: &[u8],
        sealed: &mut [u8],
        tags: &mut [Option<Tag>],
    ) -> bool {
        let mut ciphers = RunCiphers::new(&self.keys);
        let blocks = plain.chunks_exact(self.block_size).zip(sealed.chunks_exact_mut(self.block_size));
        for ((block, (from, to)), tag) in (first..).zip(blocks).zip(tags) {
            *tag = None;
            if !L::seal(&mut ciphers, block, counter, from, to) {
                let made = ciphers.seal_tagged(block, counter, from, to);
                *tag = Some(made);
                if is_reserved(&made) {
                    return false;
                }
            }
        }
        true
    }

    /// Reads all that every write of these blocks needs, before any is written. The pages of RTree
    /// and RArr are not among it: they depend on the new tags.
    fn prepare(&self, us: &dyn Untrusted, first: u64, count: usize) -> Result<()> {
        self.counters.get(us)?;
        if self.tree.leaves() == 0 {
            return Ok(());
        }
        let mut positions = [[0; 8]; BATCH];
        self.position.get(us, first, &mut positions[..count])
    }

    /// Updates RTree and RArr for written blocks, starting at `first`: `tags` has the tags of
    /// blocks that need a leaf.
    fn update_leaves(&mut self, us: &dyn Untrusted, first: u64, tags: &[Option<Tag>]) -> Result<()> {
        let some = tags.iter().any(Option::is_some);
        if self.tree.leaves() == 0 && !some {
            return Ok(());
        }
        let mut positions = [[0; 8]; BATCH];
        let positions = &mut positions[..tags.len()];
        self.position.get(us, first, positions)?;
        let mut moved = false;
        for (at, _) in tags.iter().enumerate().filter(|(at, tag)| tag.is_none() && positions[*at] != [0; 8]) {
            self.delete_offset(us, first + at as u64)?;
            moved = true;
        }
        if !some {
            return Ok(());
        }
        if moved {
            self.position.get(us, first, positions)?;
        }
        let mut added = ([ABSENT; BATCH], [[0; 8]; BATCH], 0);
        let leaves = self.tree.leaves();
        for (at, tag) in tags.iter().enumerate() {
            let (Some(tag), block) = (tag, first + at as u64) else { continue };
            if let Some(leaf) = self.confirmed(us, block, positions[at])? {
                self.tree.set(us, leaf, &[*tag])?;
                continue;
            }
            let (new_tags, new_blocks, count) = &mut added;
            (new_tags[*count], new_blocks[*count]) = (*tag, block.to_le_bytes());
            positions[at] = (leaves + *count as u64 + 1).to_le_bytes();
            *count += 1;
        }
        let (new_tags, new_blocks, count) = added;
        if count > 0 {
            self.tree.set(us, leaves, &new_tags[..count])?;
            self.order.set(us, leaves, &new_blocks[..count])?;
            self.position.set(us, first, positions)?;
        }
        Ok(())
    }

    /// SearchOffset: the leaf of a block by `position`, if RArr agrees.
    fn confirmed(&self, us: &dyn Untrusted, block: u64, position: [u8; 8]) -> Result<Option<u64>> {
        let Some(leaf) = self.leaf(position) else { return Ok(None) };
        let mut found = [[0; 8]];
        self.order.get(us, leaf, &mut found)?;
        Ok((u64::from_le_bytes(found[0]) == block).then_some(leaf))
    }

    /// The leaf that an entry of the inverse of RArr names, if it exists.
    fn leaf(&self, position: [u8; 8]) -> Option<u64> {
        u64::from_le_bytes(position).checked_sub(1).filter(|leaf| *leaf < self.tree.leaves())
    }

    /// DelOffsetTree (Figure 9): removes the leaf of a block and moves the last leaf into its
    /// place. The paper recomputes the last block's hash; here its leaf is copied, which the tree
    /// verifies and which is the same.
    fn delete_offset(&mut self, us: &dyn Untrusted, block: u64) -> Result<()> {
        let mut position = [[0; 8]];
        self.position.get(us, block, &mut position)?;
        if position[0] == [0; 8] {
            return Ok(());
        }
        self.position.set(us, block, &[[0; 8]])?;
        let Some(leaf) = self.confirmed(us, block, position[0])? else { return Ok(()) };
        let last = self.tree.leaves() - 1;
        if leaf != last {
            let (mut tag, mut owner) = ([ABSENT], [[0; 8]]);
            self.tree.get(us, last, &mut tag)?;
            self.order.get(us, last, &mut owner)?;
            self.tree.set(us, leaf, &tag)?;
            self.order.set(us, leaf, &owner)?;
            let owner = u64::from_le_bytes(owner[0]);
            if owner < self.counters.blocks() {
                self.position.set(us, owner, &[(leaf + 1).to_le_bytes()])?;
            }
        }
        self.order.set(us, last, &[[0; 8]])?;
        self.tree.resize(us, last, &mut |_| Ok(()))
    }

    /// Removes all leaves and RArr.
    fn delete_all(&mut self, us: &dyn Untrusted) -> Result<()> {
        let leaves = self.tree.leaves();
        let entries = PageArray::<8>::ENTRIES;
        let pages = self.counters.blocks().div_ceil(entries);
        if leaves < pages {
            let mut batch = [[0; 8]; BATCH];
            for start in (0..leaves).step_by(BATCH) {
                let batch = &mut batch[..(leaves - start).min(BATCH as u64) as usize];
                self.order.get(us, start, batch)?;
                for block in batch {
                    self.position.drop_page(us, u64::from_le_bytes(*block) / entries)?;
                }
            }
        } else {
            (0..pages).try_for_each(|page| self.position.drop_page(us, page))?;
        }
        (0..leaves.div_ceil(entries)).try_for_each(|page| self.order.drop_page(us, page))?;
        self.position.drop_cached(us)?;
        self.order.drop_cached(us)?;
        self.tree.resize(us, 0, &mut |_| Ok(()))
    }

    /// Deletes the leaves of a run of blocks. Blocks without their leaves become holes before US is
    /// written again.
    fn delete_leaves(&mut self, us: &dyn Untrusted, first: u64, end: u64) -> Result<()> {
        let mut at = first;
        while at < end && self.tree.leaves() > 0 {
            self.flush_over_budget(us)?;
            let (counter, until) = self.counters.get(us)?.at(at);
            let until = until.min(end);
            if is_data(counter) {
                let mut positions = [[0; 8]; BATCH];
                let positions = &mut positions[..(until - at).min(BATCH as u64) as usize];
                self.position.get(us, at, positions)?;
                for (block, _) in (at..).zip(positions.iter()).filter(|(_, position)| **position != [0; 8]) {
                    self.delete_offset(us, block)?;
                }
                self.counters.set(us, at, positions.len() as u64, Counter::HOLE)?;
                at += positions.len() as u64;
            } else {
                at = until;
            }
        }
        Ok(())
    }

    /// Decrypts blocks in place.
    fn decrypt(
        &self,
        us: &dyn Untrusted,
        first: u64,
        counters: &[Counter],
        blocks: &mut [u8],
    ) -> CheckResult {
        let mut ciphers = RunCiphers::new(&self.keys);
        let mut positions = [[0; 8]; BATCH];
        if self.tree.leaves() > 0 {
            self.position.get(us, first, &mut positions[..counters.len()]).map_err(at(first))?;
        }
        let mut tags = [ABSENT; BATCH];
        let mut have = 0;
        for (n, block) in blocks.chunks_exact_mut(self.block_size).enumerate() {
            let (number, counter) = (first + n as u64, counters[n]);
            if !is_data(counter) {
                block.fill(0);
                continue;
            }
            let Some(leaf) = self.leaf(positions[n]) else {
                if !L::open(&mut ciphers, number, counter, block) {
                    return Err(at(number)(altered(number)));
                }
                continue;
            };
            if n >= have {
                // Sequentially written blocks have sequential leaves: read those together.
                let next = |ahead: &usize| self.leaf(positions[n + ahead]) == Some(leaf + *ahead as u64);
                have = n + 1 + (1..counters.len() - n).take_while(next).count();
                self.tree.get(us, leaf, &mut tags[n..have]).map_err(at(number))?;
            }
            let opened = ciphers.open_tagged(number, counter, block, &tags[n]);
            if !opened && is_enforced(SchemeCheck::LeafTag) {
                return Err(at(number)(altered(number)));
            }
        }
        Ok(())
    }
}

/// Whether a block with this counter has content.
fn is_data(counter: Counter) -> bool {
    counter != Counter::HOLE
}

impl<L: LeaflessCipher> SchemeLayer for Selective<L> {
    fn set_budget(&mut self, budget: Budget) {
        self.tree.set_budget(budget.share(1, 3));
        self.order.set_budget(budget.share(1, 3));
        self.position.set_budget(budget.share(1, 3));
    }

    fn blocks(&self) -> u64 {
        self.counters.blocks()
    }

    fn write(&mut self, us: &dyn Untrusted, pass: &mut WritePass, first: u64, plain: &[u8]) -> Result<()> {
        let batch = batch_blocks(self.block_size);
        let mut tags = [None; BATCH];
        for (start, part) in (first..).step_by(batch).zip(plain.chunks(batch * self.block_size)) {
            let count = part.len() / self.block_size;
            self.flush_over_budget(us)?;
            self.prepare(us, start, count)?;
            let counter = with_buffer(part.len(), |sealed| {
                loop {
                    let counter = L::counter(pass.counter_for_write(start, count as u64)?);
                    if self.encrypt(start, counter, part, sealed, &mut tags[..count]) {
                        us.write_blocks(start, sealed)?;
                        return Ok(counter);
                    }
                }
            })?;
            // The blocks have been replaced: from here an error leaves them half changed.
            self.update_leaves(us, start, &tags[..count]).map_err(half_done)?;
            self.counters.set(us, start, count as u64, counter).map_err(half_done)?;
        }
        Ok(())
    }

    fn read(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> CheckResult {
        let intervals = self.counters.get(us).map_err(at(first))?;
        let mut counters = [Counter::HOLE; BATCH];
        for (start, part) in (first..).step_by(BATCH).zip(plain.chunks_mut(BATCH * self.block_size)) {
            let counters = &mut counters[..part.len() / self.block_size];
            intervals.fill(start, counters);
            if !counters.iter().any(|counter| is_data(*counter)) {
                part.fill(0);
                continue;
            }
            us.read_blocks(start, part).map_err(at(start))?;
            self.decrypt(us, start, counters, part)?;
        }
        Ok(())
    }

    fn extent_at(&self, us: &dyn Untrusted, block: u64) -> Result<(ExtentState, u64)> {
        let (counter, end) = self.counters.get(us)?.at(block);
        Ok((if is_data(counter) { ExtentState::Data } else { ExtentState::Unwritten }, end))
    }

    fn flush_over_budget(&mut self, us: &dyn Untrusted) -> Result<()> {
        self.tree.flush_over_budget(us)?;
        self.order.flush_over_budget(us)?;
        self.position.flush_over_budget(us)
    }

    fn resize(&mut self, us: &dyn Untrusted, blocks: u64) -> Result<()> {
        let old = self.counters.blocks();
        if blocks == 0 {
            self.delete_all(us)?;
        } else if blocks < old {
            self.delete_leaves(us, blocks, old)?;
        }
        self.counters.resize(us, blocks)
    }

    fn punch(&mut self, us: &dyn Untrusted, first: u64, count: u64, mark: bool) -> Result<()> {
        debug_assert!(!mark, "nothing lies below");
        let end = self.counters.blocks().min(first.saturating_add(count));
        if first >= end {
            return Ok(());
        }
        self.delete_leaves(us, first, end)?;
        self.counters.set(us, first, end - first, Counter::HOLE)
    }

    fn mark_lost(&mut self, us: &dyn Untrusted, pass: &mut WritePass, block: u64) -> Result<()> {
        self.prepare(us, block, 1)?;
        let counter = L::counter(pass.counter_for_write(block, 1)?);
        self.update_leaves(us, block, &[Some(LOST)]).map_err(half_done)?;
        self.counters.set(us, block, 1, counter).map_err(half_done)
    }

    fn seal(&mut self, us: &dyn Untrusted, most: usize, alone: bool) -> Result<Vec<u8>> {
        self.order.flush(us)?;
        self.position.flush(us)?;
        let counters = self.counters.seal(us, if alone { ROOM } else { SHARED_ROOM })?;
        let used = FIXED
            + match &counters {
                CounterState::Inline(bytes) => 1 + bytes.len(),
                CounterState::Hashed(..) => 36,
            };
        let tree = self.tree.seal(us, if alone { most.saturating_sub(used) } else { 0 })?;
        let hashed = matches!(counters, CounterState::Hashed(..));
        let mut section = SectionMut::new(hashed, matches!(tree, TreeRoot::Leaves(_)));
        section.u64(self.tree.leaves());
        section.u32(self.order.stored());
        section.u32(self.position.stored());
        match counters {
            CounterState::Inline(bytes) => section.short(&bytes),
            CounterState::Hashed(count, hashes) => {
                section.u32(count);
                hashes.iter().for_each(|hash| section.tag(hash));
            }
        }
        section.tree(&tree);
        Ok(section.into_bytes())
    }

    fn usage(&self, us: &dyn Untrusted) -> Result<(u64, u64, u64)> {
        let pages = u64::from(self.order.stored()) + u64::from(self.position.stored());
        let arrays = pages * crate::untrusted::PART_PAGE as u64 + self.counters.stored_bytes();
        Ok((self.tree.stored_bytes(us)? + arrays, self.tree.leaves(), self.counters.len() as u64))
    }

    fn intervals(&self) -> u64 {
        self.counters.len() as u64
    }

    fn fewest_intervals(&self, us: &dyn Untrusted) -> Result<u64> {
        Ok(self.counters.get(us)?.fewest() as u64)
    }
}
