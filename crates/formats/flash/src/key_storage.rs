//! The key storage area, with one key for each node, and the key state map (DNEFS, sections 3.2 and
//! 4.2).
//!
//! Invariants:
//! 1. A key is assigned only in the epoch that it was made in: all unused keys of a *fresh* block
//!    were replaced by the last purge, or by a renewal since. So an adversary that read the medium
//!    in an earlier epoch lacks the keys of later writes.
//! 2. A used key keeps its position, whatever happens to its block.
//! 3. After a renewal, memory holds only the new keys of the block: its cached pages have them. If
//!    the renewal failed, its pages leave the cache, zeroed.
//! 4. On the medium, each page of keys is encrypted under a key derived from the master key, with a
//!    salt of its own.

pub(crate) mod assignment;
pub(crate) mod key_check;
pub(crate) mod key_state_map;
pub(crate) mod node_key;
pub(crate) mod purger;

use crate::ids::{KeyBlock, KeyPosition};
use crate::key_storage::assignment::{KeyAssignment, Lifetime};
use crate::key_storage::key_state_map::{KeyCounts, KeyState, KeyStateMap};
use crate::key_storage::node_key::{Ciphers, FetchedKeys, KEY_LEN};
use crate::log::damaged;
use crate::params::{Layout, SALT_LEN};
use lacuna_contracts::{BoundedCache, Budget, Error, Kind, Result, Secret, SecretVec, WipeOnDrop, wipe};
use lacuna_crypto::{HedgedNonce, RandomSource, SivHash, XtsKey, derive};
use lacuna_nand::Flash;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxBuildHasher;
use std::sync::Arc;

/// Bytes that a cached page takes beside its keys: it has memory of its own, a whole page of the
/// system.
const CACHED_PAGE: u64 = 4096;

struct KeyStorageState {
    map: KeyStateMap,
    /// Pages of keys, decrypted.
    cache: BoundedCache<u32, SecretVec, FxBuildHasher>,
    /// Memory of pages that left the cache. Together with the cached pages it is at most the
    /// cache's limit.
    zeroed: Vec<SecretVec>,
    /// The number of renewals of each block since the disk was opened. A page that was read before
    /// a renewal does not enter the cache after it.
    renewals: Vec<u32>,
    assignment: KeyAssignment,
    /// Deleted keys that were replaced. A superseded copy of them may stay on the medium until it
    /// is drained.
    undrained: RecoverableKeys,
}

impl KeyStorageState {
    /// Memory for another page: of a page that left the cache, or of one that is evicted now.
    fn memory(&mut self) -> Option<SecretVec> {
        let evict = |cache: &mut BoundedCache<_, _, _>| cache.evict(|_, _| true).map(|(_, memory)| memory);
        self.zeroed.pop().or_else(|| if self.cache.is_full() { evict(&mut self.cache) } else { None })
    }
}

/// The number of keys that can decrypt deleted data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoverableKeys {
    /// The most that there can be.
    pub(crate) max: u64,
    /// Keys among them that certainly encrypted a block.
    pub(crate) known: u64,
}

impl RecoverableKeys {
    fn add(&mut self, counts: KeyCounts) {
        self.max += u64::from(counts.deleted);
        self.known += u64::from(counts.known());
    }
}

/// An old copy of a block of keys.
pub(crate) struct KeyCopy {
    pub(crate) block: KeyBlock,
    pages: Vec<SecretVec>,
}

/// The keys of a disk.
pub(crate) struct KeyStorage {
    flash: Arc<dyn Flash>,
    layout: Layout,
    page_key: XtsKey,
    /// Hedges the salts of pages.
    salts: HedgedNonce,
    /// Hash for the tags of nodes; each tag is made under the node's key.
    hash: SivHash,
    /// Extends keys of 16 bytes to 32.
    tail: Secret<32>,
    random: Arc<dyn RandomSource>,
    /// The key of a disk without keys, for comparison.
    shared_key: Option<Ciphers>,
    state: Mutex<KeyStorageState>,
}

impl KeyStorage {
    /// Fills the key storage area with random keys.
    pub(crate) fn create(
        flash: Arc<dyn Flash>,
        layout: Layout,
        master: &Secret<32>,
        random: Arc<dyn RandomSource>,
    ) -> Result<()> {
        let keys = KeyStorage::open(flash, layout, master, random, Budget::bytes(0))?;
        (0..layout.keys.1).map(KeyBlock).try_for_each(|block| {
            let used = keys.state.lock().map.bits(block);
            keys.write_block(block, &used).map(drop)
        })
    }

    /// The keys of a disk. All count as unused until states are loaded.
    pub(crate) fn open(
        flash: Arc<dyn Flash>,
        layout: Layout,
        master: &Secret<32>,
        random: Arc<dyn RandomSource>,
        budget: Budget,
    ) -> Result<KeyStorage> {
        let page_key = XtsKey::new(&derive(master, "flash key storage", b""))?;
        let state = KeyStorageState {
            map: KeyStateMap::new(layout.keys.1, layout.leb_keys),
            cache: BoundedCache::new((budget.get() / (CACHED_PAGE + u64::from(layout.page))).max(4) as usize),
            zeroed: vec![],
            renewals: vec![0; layout.keys.1 as usize],
            assignment: KeyAssignment::new(layout.leb_keys),
            undrained: RecoverableKeys::default(),
        };
        let tail = derive(master, "flash short keys", b"");
        let salts = HedgedNonce::derive(master, "flash key storage salt", b"");
        let hash = SivHash::derive(master, "flash node tags", b"");
        let without = layout.is_without_keys();
        let of_disk =
            without.then(|| Ciphers::derive(master, "flash without keys", "flash tags without keys"));
        Ok(KeyStorage {
            flash,
            layout,
            page_key,
            salts,
            hash,
            tail,
            random,
            shared_key: of_disk,
            state: Mutex::new(state),
        })
    }

    // --- states ---

    /// Sets the state of a key. Fails if the disk has no such key.
    pub(crate) fn set(&self, key: KeyPosition, to: KeyState) -> Result<()> {
        if self.layout.is_without_keys() {
            return Ok(());
        }
        let mut state = self.state.lock();
        if !state.map.contains(key) {
            return Err(unknown(key));
        }
        state.map.set(key, to);
        Ok(())
    }

    /// Marks keys deleted.
    pub(crate) fn delete(&self, keys: impl Iterator<Item = KeyPosition>) -> Result<()> {
        if self.layout.is_without_keys() {
            return Ok(());
        }
        let mut state = self.state.lock();
        for key in keys {
            if !state.map.contains(key) {
                return Err(unknown(key));
            }
            state.map.set(key, KeyState::Deleted);
        }
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

    /// Loads the key state map of a checkpoint; returns the number of bytes it took.
    pub(crate) fn unpack(&self, bytes: &[u8]) -> Option<usize> {
        self.state.lock().map.unpack(bytes)
    }

    /// Fresh blocks, for a checkpoint.
    pub(crate) fn fresh(&self) -> Vec<u32> {
        self.state.lock().assignment.fresh().iter().map(|block| block.0).collect()
    }

    /// Keys that are deleted, or that may have a superseded copy on the medium.
    pub(crate) fn recoverable(&self) -> RecoverableKeys {
        let state = self.state.lock();
        let mut recoverable = state.undrained;
        recoverable.add(state.map.all());
        recoverable
    }

    /// The numbers of used and deleted keys, for `status`.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let all = self.state.lock().map.all();
        (all.used.into(), all.deleted.into())
    }

    /// Distrusts the fresh blocks after a crash: any unused key may encrypt a node that was never
    /// acknowledged. Unused keys of these blocks count as deleted, and no block is fresh.
    pub(crate) fn invalidate_unused(&self, fresh: &[KeyBlock]) {
        let mut state = self.state.lock();
        for block in fresh.iter().filter(|block| block.0 < self.layout.keys.1) {
            state.map.delete_unused(*block);
        }
        state.assignment.end_epoch();
    }

    // --- assigning ---

    /// Assigns fresh keys for blocks of a lifetime and marks them used, until `keys` holds `most`.
    /// If it holds fewer then, [`KeyStorage::block_to_renew`] must be renewed first.
    pub(crate) fn assign(&self, lifetime: Lifetime, most: usize, keys: &mut Vec<KeyPosition>) {
        if self.layout.is_without_keys() {
            return keys.resize(most, KeyPosition(0));
        }
        let KeyStorageState { assignment, map, .. } = &mut *self.state.lock();
        assignment.assign(map, lifetime, most, keys);
    }

    /// Returns keys that were just assigned and encrypted nothing.
    pub(crate) fn return_keys(&self, keys: impl Iterator<Item = KeyPosition>) {
        if self.layout.is_without_keys() {
            return;
        }
        let KeyStorageState { assignment, map, .. } = &mut *self.state.lock();
        assignment.return_keys(map, keys);
    }

    /// The block to renew, so that keys for blocks of a lifetime can be assigned from it.
    ///
    /// Errors: [`lacuna_contracts::Kind::NoSpace`] if all keys are used.
    pub(crate) fn block_to_renew(&self, lifetime: Lifetime) -> Result<KeyBlock> {
        let state = self.state.lock();
        state.assignment.block_for(&state.map, lifetime).ok_or_else(|| {
            Error::new(Kind::NoSpace, "every key of this disk is used").expected("fewer blocks than keys")
        })
    }

    /// Blocks that hold deleted keys.
    pub(crate) fn blocks_with_deleted(&self) -> Vec<KeyBlock> {
        let state = self.state.lock();
        let deleted = |counts: &KeyCounts| counts.deleted > 0;
        state.map.blocks().filter(|(_, counts)| deleted(counts)).map(|(block, _)| block).collect()
    }

    // --- renewing ---

    /// Replaces every key of a block that is not used, atomically. The old keys stay on the medium
    /// until it is drained. The block counts as fresh only after [`KeyStorage::note_renewals`].
    pub(crate) fn replace_unused(&self, block: KeyBlock) -> Result<()> {
        // States do not change meanwhile: the caller holds the writer's lock.
        let used = self.state.lock().map.bits(block);
        let written = self.write_block(block, &used);
        let mut state = self.state.lock();
        state.renewals[block.0 as usize] += 1;
        let written = written
            .inspect(|sealed| self.renew_pages(&mut state, block, sealed))
            // The keys may have been replaced all the same, and then no old key may be taken from
            // memory.
            .inspect_err(|_| self.forget_pages(&mut state, block));
        drop(state);
        written.map(drop)
    }

    /// Notes that blocks were renewed and that the log records it: their deleted keys are unused
    /// again, and they are fresh.
    pub(crate) fn note_renewals(&self, blocks: &[KeyBlock]) {
        let mut state = self.state.lock();
        for block in blocks {
            let deleted = state.map.reset_deleted(*block);
            state.undrained.add(deleted);
        }
        state.assignment.add_fresh(blocks);
    }

    /// Ends an epoch: no block is fresh any more.
    pub(crate) fn end_epoch(&self) {
        let mut state = self.state.lock();
        state.assignment.end_epoch();
    }

    /// Notes that the medium was drained: no superseded copy is left.
    pub(crate) fn note_drained(&self) {
        self.state.lock().undrained = RecoverableKeys::default();
    }

    /// Deleted keys that were replaced and may have a superseded copy on the medium.
    pub(crate) fn undrained(&self) -> RecoverableKeys {
        self.state.lock().undrained
    }

    /// Sets the number of replaced keys with a possible superseded copy, from a checkpoint.
    pub(crate) fn resume(&self, undrained: RecoverableKeys) {
        self.state.lock().undrained = undrained;
    }

    /// Assumes at least one superseded copy after a crash, since their number is unknown.
    pub(crate) fn mark_undrained(&self) {
        let mut state = self.state.lock();
        state.undrained.max = state.undrained.max.max(1);
    }

    /// Decrypts an old copy of a block.
    pub(crate) fn open_copy(&self, block: KeyBlock, content: &[u8]) -> KeyCopy {
        let pages = content.chunks_exact(self.layout.page as usize).take(self.block_pages() as usize);
        KeyCopy { block, pages: pages.map(|page| self.open_page(page.to_vec())).collect() }
    }

    /// Fetches the key at this position from an old copy; `None` if it lies in another block.
    pub(crate) fn fetch_from(&self, copy: &KeyCopy, key: KeyPosition) -> Option<FetchedKeys<'_>> {
        if key.0 / self.layout.leb_keys != copy.block.0 {
            return None;
        }
        let page = copy.pages.get((key.0 % self.layout.leb_keys / self.layout.page_keys) as usize)?;
        let mut fetched = self.room_for(1);
        self.copy_keys(page, &[key], fetched.keys_mut());
        Some(fetched)
    }

    // --- keys ---

    /// Fetches keys for immediate use.
    pub(crate) fn fetch(&self, keys: &[KeyPosition]) -> Result<FetchedKeys<'_>> {
        if self.shared_key.is_some() {
            return Ok(self.room_for(0));
        }
        if let Some(key) = keys.iter().find(|key| key.0 / self.layout.leb_keys >= self.layout.keys.1) {
            return Err(unknown(*key));
        }
        let mut fetched = self.room_for(keys.len());
        let mut rest = fetched.keys_mut();
        let page_of = |key: KeyPosition| key.0 / self.layout.page_keys;
        let mut state = self.state.lock();
        for keys in keys.chunk_by(|a, b| page_of(*a) == page_of(*b)) {
            let page = page_of(keys[0]);
            let out = rest.split_off_mut(..keys.len()).expect("there is one for each key");
            if let Some(content) = state.cache.get(page) {
                self.copy_keys(content, keys, out);
                continue;
            }
            let block = (keys[0].0 / self.layout.leb_keys) as usize;
            let (renewals, memory) = (state.renewals[block], state.memory());
            let content = MutexGuard::unlocked(&mut state, || {
                let memory = memory.unwrap_or_else(|| SecretVec::zeroed(self.layout.page as usize));
                self.read_page_to(page, memory)
            })?;
            self.copy_keys(&content, keys, out);
            if state.renewals[block] == renewals {
                state.cache.insert(page, content);
            }
        }
        drop(state);
        Ok(fetched)
    }

    fn room_for(&self, count: usize) -> FetchedKeys<'_> {
        FetchedKeys::with_room(count, &self.hash, self.shared_key.as_ref())
    }

    /// Copies keys of a decrypted page, completed.
    fn copy_keys(&self, page: &SecretVec, keys: &[KeyPosition], out: &mut [[u8; KEY_LEN]]) {
        for (key, out) in keys.iter().zip(out) {
            out.copy_from_slice(self.tail.expose());
            let place = self.place_in_page(key.0 % self.layout.page_keys);
            out[..self.layout.key_len].copy_from_slice(&page.expose()[place]);
        }
    }

    /// Gives the cached pages of a block their new keys, from the bytes that are on the flash now.
    fn renew_pages(&self, state: &mut KeyStorageState, block: KeyBlock, sealed: &[u8]) {
        let pages = sealed.chunks_exact(self.layout.page as usize);
        for (page, new) in (block.0 * self.block_pages()..).zip(pages) {
            if let Some(cached) = state.cache.get(page) {
                cached.expose_mut().copy_from_slice(new);
                self.decrypt_page(cached.expose_mut());
            }
        }
    }

    fn forget_pages(&self, state: &mut KeyStorageState, block: KeyBlock) {
        let pages = self.block_pages();
        for page in block.0 * pages..(block.0 + 1) * pages {
            if let Some(mut memory) = state.cache.remove(page) {
                wipe(memory.expose_mut());
                state.zeroed.push(memory);
            }
        }
    }

    /// The range of a key in its page.
    fn place_in_page(&self, at: u32) -> std::ops::Range<usize> {
        let first = SALT_LEN + at as usize * self.layout.key_len;
        first..first + self.layout.key_len
    }

    /// Pages of a block.
    fn block_pages(&self) -> u32 {
        self.layout.leb_len / self.layout.page
    }

    /// Copies a cached page into secret memory of the same length, or reads it.
    fn copy_page_to(&self, number: u32, mut memory: SecretVec) -> Result<SecretVec> {
        if let Some(cached) = self.state.lock().cache.peek(number) {
            memory.expose_mut().copy_from_slice(cached.expose());
            return Ok(memory);
        }
        self.read_page_to(number, memory)
    }

    /// Reads a page into secret memory of the same length.
    fn read_page_to(&self, number: u32, mut memory: SecretVec) -> Result<SecretVec> {
        let pages = self.block_pages();
        let leb = self.layout.leb_of_keys(KeyBlock(number / pages));
        let bytes = memory.expose_mut();
        self.flash.read(leb, number % pages * self.layout.page, bytes).map_err(Error::of_read)?;
        // No page of keys has equal bytes only. Flash returns such a page if it is erased or cannot
        // be read; keys made of it must never replace the real ones.
        if bytes.iter().all(|byte| *byte == bytes[0]) {
            return Err(damaged(format!("page {number} of the keys")));
        }
        self.decrypt_page(bytes);
        Ok(memory)
    }

    fn open_page(&self, mut bytes: Vec<u8>) -> SecretVec {
        self.decrypt_page(&mut bytes);
        SecretVec::new(bytes)
    }

    fn decrypt_page(&self, bytes: &mut [u8]) {
        let (salt, keys) = bytes.split_first_chunk_mut::<SALT_LEN>().expect("a page is longer");
        self.page_key.session().decrypt_in_place(salt, keys);
    }

    /// Writes a block with new keys, except the keys with a bit set in `used`. Returns its pages as
    /// they are on the flash.
    fn write_block(&self, block: KeyBlock, used: &[u8]) -> Result<Vec<u8>> {
        let pages = self.block_pages();
        let page_len = self.layout.page as usize;
        let mut content = WipeOnDrop::new(vec![0u8; self.layout.leb_len as usize]);
        self.random.fill(&mut content);
        let mut sealed = vec![0u8; content.len()];
        let mut old = SecretVec::zeroed(page_len);
        let mut kept: Vec<u32> = Vec::with_capacity(self.layout.page_keys as usize);
        let mut session = self.page_key.session();
        let both = content.chunks_exact_mut(page_len).zip(sealed.chunks_exact_mut(page_len));
        for (page, (plain, sealed)) in (0..pages).zip(both) {
            let number = block.0 * pages + page;
            let first = (page * self.layout.page_keys) as usize;
            let is_used =
                |at: &u32| used[(first + *at as usize) / 8] >> ((first + *at as usize) % 8) & 1 == 1;
            kept.clear();
            kept.extend((0..self.layout.page_keys).filter(is_used));
            if !kept.is_empty() {
                old = self.copy_page_to(number, old)?;
                for run in kept.chunk_by(|a, b| a + 1 == *b) {
                    let last = self.place_in_page(run[run.len() - 1]);
                    let keys = self.place_in_page(run[0]).start..last.end;
                    plain[keys.clone()].copy_from_slice(&old.expose()[keys]);
                }
            }
            let (salt, keys) = plain.split_first_chunk_mut::<SALT_LEN>().expect("a page is longer");
            let (sealed_salt, sealed_keys) = sealed.split_at_mut(SALT_LEN);
            *salt = self.salts.nonce(salt, &number.to_le_bytes(), keys);
            sealed_salt.copy_from_slice(salt);
            session.encrypt(salt, keys, sealed_keys);
        }
        // Memory that the system may swap does not hold keys while the flash writes.
        drop(content);
        self.flash.change(self.layout.leb_of_keys(block), &sealed)?;
        Ok(sealed)
    }
}

fn unknown(key: KeyPosition) -> Error {
    Error::new(Kind::Corrupt, "the log names a key that this disk does not have")
        .found(format!("key {}", key.0))
        .hint("restore the flash from a backup")
}
