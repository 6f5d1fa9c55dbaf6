//! The key storage area: one key for each node, used once, and the key state map (paper 003, sections 3.2 and 4.2).
//!
//! Invariants:
//! 1. A key is assigned only in the epoch in which it was made: a *fresh* block had all keys replaced that were not used, after the
//!    last purge began. So nobody who read the medium before has the key of what is written now.
//! 2. A key that is used stays where it is, whatever happens to its block.
//! 3. No key of a block that was renewed stays in memory but the new ones: the pages of the block leave the cache, zeroed.
//! 4. On the medium, each page of keys is encrypted under the passphrase's master key, with a salt of its own.

use crate::numbers::{KeyBlock, KeyPosition};
use crate::params::{Layout, SALT};
use crate::state_map::{Counts, KeyState, KeyStateMap};
use lacuna_core::{BoundedCache, Budget, Error, Kind, Result, Secret, SecretVec};
use lacuna_crypto::{GcmKey, RandomSource, XtsKey, derive};
use lacuna_nand::Flash;
use parking_lot::Mutex;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Beside its keys, what a page in the cache takes: memory of its own, a whole page of the system.
const CACHED_PAGE: u64 = 4096;

struct State {
    map: KeyStateMap,
    /// Pages of keys, decrypted.
    cache: BoundedCache<u32, SecretVec>,
    /// How often each block was renewed since the disk was opened: what was read before does not enter the cache after.
    renewals: Vec<u32>,
    /// Fresh blocks, the next one to assign from last.
    fresh: Vec<KeyBlock>,
    /// Where to look in it for the next key.
    cursor: u32,
    /// Deleted keys that were replaced, but of which a superseded copy may be on the medium until it is drained.
    undrained: u64,
}

/// A block of keys as it was.
pub(crate) struct KeyCopy {
    pub(crate) block: KeyBlock,
    pages: Vec<SecretVec>,
}

/// The keys of a disk.
pub(crate) struct Keys {
    flash: Arc<dyn Flash>,
    layout: Layout,
    page_key: XtsKey,
    /// Completes keys of 16 bytes.
    tail: Secret<32>,
    random: Arc<dyn RandomSource>,
    state: Mutex<State>,
}

impl Keys {
    /// Fills the key storage area with random keys.
    pub(crate) fn create(
        flash: Arc<dyn Flash>,
        layout: Layout,
        master: &Secret<32>,
        random: Arc<dyn RandomSource>,
    ) -> Result<()> {
        let keys = Keys::open(flash, layout, master, random, Budget::bytes(0))?;
        (0..layout.keys.1).try_for_each(|block| {
            keys.write_block(KeyBlock(block), &keys.state.lock().map.bits(KeyBlock(block)))
        })
    }

    /// The keys of a disk, all of which count as unused so far.
    pub(crate) fn open(
        flash: Arc<dyn Flash>,
        layout: Layout,
        master: &Secret<32>,
        random: Arc<dyn RandomSource>,
        budget: Budget,
    ) -> Result<Keys> {
        let page_key = XtsKey::new(&derive(master, "flash key storage", b""))?;
        let state = State {
            map: KeyStateMap::new(layout.keys.1, layout.leb_keys),
            cache: BoundedCache::new((budget.get() / (CACHED_PAGE + u64::from(layout.page))).max(4) as usize),
            renewals: vec![0; layout.keys.1 as usize],
            fresh: vec![],
            cursor: 0,
            undrained: 0,
        };
        let tail = derive(master, "flash short keys", b"");
        Ok(Keys { flash, layout, page_key, tail, random, state: Mutex::new(state) })
    }

    // --- states ---

    /// Notes the state of a key. A key that is not there is none of this disk's.
    pub(crate) fn set(&self, key: KeyPosition, to: KeyState) -> Result<()> {
        let mut state = self.state.lock();
        if !state.map.has(key) {
            return Err(unknown(key));
        }
        state.map.set(key, to);
        Ok(())
    }

    /// The state of a key.
    pub(crate) fn state_of(&self, key: KeyPosition) -> KeyState {
        self.state.lock().map.get(key)
    }

    /// The key state map, compressed, for a checkpoint.
    pub(crate) fn pack(&self, out: &mut Vec<u8>) {
        self.state.lock().map.pack(out);
    }

    /// Takes the key state map of a checkpoint over; gives how many bytes it took.
    pub(crate) fn unpack(&self, bytes: &[u8]) -> Option<usize> {
        self.state.lock().map.unpack(bytes)
    }

    /// Blocks whose keys were fresh, for a checkpoint.
    pub(crate) fn fresh(&self) -> Vec<u32> {
        self.state.lock().fresh.iter().map(|block| block.0).collect()
    }

    /// Keys that are deleted, or of which a superseded copy may be left.
    pub(crate) fn recoverable(&self) -> u64 {
        let state = self.state.lock();
        state.undrained + state.map.blocks().map(|(_, counts)| u64::from(counts.deleted)).sum::<u64>()
    }

    /// All counts, for `status`: used and deleted.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let state = self.state.lock();
        state.map.blocks().fold((0, 0), |(used, deleted), (_, counts)| {
            (used + u64::from(counts.used), deleted + u64::from(counts.deleted))
        })
    }

    /// After a crash nobody knows which keys of the fresh blocks encrypt something that was never acknowledged: those that are
    /// not used count as deleted, and no block is fresh.
    pub(crate) fn distrust(&self, fresh: &[KeyBlock]) {
        let mut state = self.state.lock();
        for block in fresh.iter().filter(|block| block.0 < self.layout.keys.1) {
            for key in state.map.keys_of(*block) {
                if state.map.get(key) == KeyState::Unused {
                    state.map.set(key, KeyState::Deleted);
                }
            }
        }
        state.fresh.clear();
    }

    // --- assigning ---

    /// Assigns a fresh key and calls it used. `None`: a block has to be renewed first.
    pub(crate) fn assign(&self) -> Option<KeyPosition> {
        let mut state = self.state.lock();
        while let Some(block) = state.fresh.last().copied() {
            let first = block.0 * self.layout.leb_keys;
            while state.cursor < self.layout.leb_keys {
                let key = KeyPosition(first + state.cursor);
                state.cursor += 1;
                if state.map.get(key) == KeyState::Unused {
                    state.map.set(key, KeyState::Used);
                    return Some(key);
                }
            }
            state.fresh.pop();
            state.cursor = 0;
        }
        None
    }

    /// The block from which most keys could be assigned, once it is renewed. It is the one with the fewest used keys: what is
    /// written together then has its keys together, and when it is deleted, few blocks have to be purged.
    ///
    /// Errors: [`Kind::NoSpace`] if all keys are used.
    pub(crate) fn emptiest(&self) -> Result<KeyBlock> {
        let state = self.state.lock();
        let rest = state.map.blocks().filter(|(block, _)| !state.fresh.contains(block));
        let emptiest = rest.min_by_key(|(_, counts)| counts.used);
        emptiest.filter(|(_, counts)| counts.used < self.layout.leb_keys).map(|(block, _)| block).ok_or_else(
            || Error::new(Kind::NoSpace, "every key of this disk is used").expected("fewer blocks than keys"),
        )
    }

    /// Blocks that hold keys of what was deleted.
    pub(crate) fn with_deleted(&self) -> Vec<KeyBlock> {
        let state = self.state.lock();
        let deleted = |counts: &Counts| counts.deleted > 0;
        state.map.blocks().filter(|(_, counts)| deleted(counts)).map(|(block, _)| block).collect()
    }

    // --- renewing ---

    /// Replaces every key of a block that is not used by a new one, atomically. The old ones stay on the medium until it is
    /// drained. The block counts as fresh only after [`Keys::renewed`].
    pub(crate) fn renew(&self, block: KeyBlock) -> Result<()> {
        // States do not change meanwhile: the caller is the one that writes.
        let used = self.state.lock().map.bits(block);
        self.write_block(block, &used)?;
        let mut state = self.state.lock();
        state.renewals[block.0 as usize] += 1;
        self.forget_pages(&mut state, block);
        Ok(())
    }

    /// Notes that blocks were renewed, and that the log says so: their deleted keys are unused again, and they are fresh.
    pub(crate) fn renewed(&self, blocks: &[KeyBlock]) {
        let mut state = self.state.lock();
        for block in blocks {
            state.undrained += u64::from(state.map.counts(*block).deleted);
            for key in state.map.keys_of(*block) {
                if state.map.get(key) == KeyState::Deleted {
                    state.map.set(key, KeyState::Unused);
                }
            }
            state.fresh.retain(|fresh| fresh != block);
        }
        state.fresh.extend(blocks);
        // The emptiest is assigned from first.
        let State { fresh, map, .. } = &mut *state;
        fresh.sort_by_key(|block| map.unused(*block));
        state.cursor = 0;
    }

    /// An epoch ends: the blocks that were fresh are not any more.
    pub(crate) fn end_epoch(&self) {
        let mut state = self.state.lock();
        state.fresh.clear();
        state.cursor = 0;
    }

    /// No superseded copy is left.
    pub(crate) fn drained(&self) {
        self.state.lock().undrained = 0;
    }

    /// An old copy of a block, decrypted.
    pub(crate) fn open_copy(&self, block: KeyBlock, content: &[u8]) -> KeyCopy {
        let pages = content.chunks_exact(self.layout.page as usize).take(self.block_pages() as usize);
        KeyCopy { block, pages: pages.map(|page| self.open_page(page.to_vec())).collect() }
    }

    /// A key as it stands in an old copy, if it lies in that block.
    pub(crate) fn cipher_in(&self, copy: &KeyCopy, key: KeyPosition) -> Result<Option<GcmKey>> {
        if key.0 / self.layout.leb_keys != copy.block.0 {
            return Ok(None);
        }
        let page = copy.pages.get((key.0 % self.layout.leb_keys / self.layout.page_keys) as usize);
        let place = self.place_in_page(key.0 % self.layout.page_keys);
        page.map(|page| self.expand(&page.expose()[place])).transpose()
    }

    // --- keys ---

    /// A key, ready for use.
    pub(crate) fn cipher(&self, key: KeyPosition) -> Result<GcmKey> {
        let number = key.0 / self.layout.page_keys;
        let place = self.place_in_page(key.0 % self.layout.page_keys);
        let block = key.0 / self.layout.leb_keys;
        if block >= self.layout.keys.1 {
            return Err(unknown(key));
        }
        let renewals = {
            let mut state = self.state.lock();
            if let Some(page) = state.cache.get(number) {
                return self.expand(&page.expose()[place]);
            }
            state.renewals[block as usize]
        };
        let page = self.read_page(number)?;
        let cipher = self.expand(&page.expose()[place])?;
        let mut state = self.state.lock();
        if state.renewals[block as usize] == renewals {
            state.cache.insert(number, page);
        }
        Ok(cipher)
    }

    fn forget_pages(&self, state: &mut State, block: KeyBlock) {
        let pages = self.block_pages();
        (block.0 * pages..(block.0 + 1) * pages).for_each(|page| drop(state.cache.remove(page)));
    }

    fn expand(&self, key: &[u8]) -> Result<GcmKey> {
        GcmKey::new(&Secret::fill_with(|whole: &mut [u8; 32]| {
            whole.copy_from_slice(self.tail.expose());
            whole[..key.len()].copy_from_slice(key);
            Ok::<_, Error>(())
        })?)
    }

    /// Where a key lies in its page.
    fn place_in_page(&self, at: u32) -> std::ops::Range<usize> {
        let first = SALT + at as usize * self.layout.key_len;
        first..first + self.layout.key_len
    }

    /// Pages of a block.
    fn block_pages(&self) -> u32 {
        self.layout.leb_len / self.layout.page
    }

    fn read_page(&self, number: u32) -> Result<SecretVec> {
        let pages = self.block_pages();
        let mut bytes = vec![0; self.layout.page as usize];
        let leb = self.layout.leb_of_keys(KeyBlock(number / pages));
        self.flash.read(leb, number % pages * self.layout.page, &mut bytes)?;
        Ok(self.open_page(bytes))
    }

    fn open_page(&self, mut bytes: Vec<u8>) -> SecretVec {
        let (salt, keys) = bytes.split_first_chunk_mut::<SALT>().expect("a page is longer");
        let len = keys.len() / 16 * 16;
        self.page_key.session().decrypt_in_place(salt, &mut keys[..len]);
        SecretVec::new(bytes)
    }

    /// Writes a block whose keys are new, but for those whose bit in `used` is set.
    fn write_block(&self, block: KeyBlock, used: &[u8]) -> Result<()> {
        let pages = self.block_pages();
        let page_len = self.layout.page as usize;
        let mut content = Zeroizing::new(vec![0; self.layout.leb_len as usize]);
        self.random.fill(&mut content);
        for (page, bytes) in (0..pages).zip(content.chunks_exact_mut(page_len)) {
            let first = (page * self.layout.page_keys) as usize;
            let is_used =
                |at: &u32| used[(first + *at as usize) / 8] >> ((first + *at as usize) % 8) & 1 == 1;
            let kept: Vec<u32> = (0..self.layout.page_keys).filter(is_used).collect();
            if !kept.is_empty() {
                let old = self.read_page(block.0 * pages + page)?;
                for at in kept {
                    let place = self.place_in_page(at);
                    bytes[place.clone()].copy_from_slice(&old.expose()[place]);
                }
            }
            let (salt, keys) = bytes.split_first_chunk_mut::<SALT>().expect("a page is longer");
            let len = keys.len() / 16 * 16;
            let plain = Zeroizing::new(keys[..len].to_vec());
            self.page_key.session().encrypt(salt, &plain, &mut keys[..len]);
        }
        self.flash.change(self.layout.leb_of_keys(block), &content)
    }
}

fn unknown(key: KeyPosition) -> Error {
    Error::new(Kind::Corrupt, "the log names a key that this disk does not have")
        .found(format!("key {}", key.0))
        .remedy("restore the flash from a backup")
}
