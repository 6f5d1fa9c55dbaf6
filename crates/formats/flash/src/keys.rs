//! The key storage area: one key for each node, used once, and the key state map (DNEFS, sections
//! 3.2 and 4.2).
//!
//! Invariants:
//! 1. A key is assigned only in the epoch in which it was made: a *fresh* block had all keys
//!    replaced that were not used, after the last purge began, or when it was renewed since. So
//!    nobody who read the medium in an earlier epoch has the key of what is written now.
//! 2. A key that is used stays where it is, whatever happens to its block.
//! 3. No key of a block that was renewed stays in memory but the new ones: the pages of the block
//!    leave the cache, zeroed.
//! 4. On the medium, each page of keys is encrypted under the passphrase's master key, with a salt
//!    of its own.

use crate::assignment::{Assignment, Lifetime};
use crate::log::damaged;
use crate::node_key::{Ciphers, NodeKey};
use crate::numbers::{KeyBlock, KeyPosition};
use crate::params::{Layout, SALT};
use crate::state_map::{Counts, KeyState, KeyStateMap};
use lacuna_contracts::{BoundedCache, Budget, Error, Kind, Result, Secret, SecretVec};
use lacuna_crypto::{HedgedNonce, RandomSource, SivHash, XtsKey, derive};
use lacuna_nand::Flash;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxBuildHasher;
use std::sync::Arc;
use zeroize::{Zeroize, Zeroizing};

/// Beside its keys, what a page in the cache takes: memory of its own, a whole page of the system.
const CACHED_PAGE: u64 = 4096;

struct State {
    map: KeyStateMap,
    /// Pages of keys, decrypted.
    cache: BoundedCache<u32, SecretVec, FxBuildHasher>,
    /// Memory of pages that left the cache. With the pages there it is as much as the cache may
    /// have.
    zeroed: Vec<SecretVec>,
    /// How often each block was renewed since the disk was opened: what was read before does not
    /// enter the cache after.
    renewals: Vec<u32>,
    assignment: Assignment,
    /// Deleted keys that were replaced, but of which a superseded copy may be on the medium until
    /// it is drained.
    undrained: Recoverable,
}

impl State {
    /// Memory for another page: of one that left the cache, or that has to.
    fn memory(&mut self) -> Option<SecretVec> {
        let evict = |cache: &mut BoundedCache<_, _, _>| cache.evict(|_, _| true).map(|(_, memory)| memory);
        self.zeroed.pop().or_else(|| if self.cache.is_full() { evict(&mut self.cache) } else { None })
    }
}

/// Keys with which what was deleted can be decrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recoverable {
    /// At most so many.
    pub(crate) most: u64,
    /// Of these, keys that encrypted a block for sure.
    pub(crate) known: u64,
}

impl Recoverable {
    fn add(&mut self, counts: Counts) {
        self.most += u64::from(counts.deleted);
        self.known += u64::from(counts.known());
    }
}

/// A block of keys as it was.
pub(crate) struct KeyCopy {
    pub(crate) block: KeyBlock,
    pages: Vec<SecretVec>,
}

/// Keys that were fetched to be used at once. Zeroed on drop.
pub(crate) struct Fetched<'k> {
    keys: Zeroizing<Vec<[u8; 32]>>,
    hash: &'k SivHash,
    of_disk: Option<&'k Ciphers>,
}

impl<'k> Fetched<'k> {
    /// One of them, ready for use.
    pub(crate) fn key(&self, at: usize) -> Result<NodeKey<'k>> {
        match self.of_disk {
            Some(key) => Ok(NodeKey::OfDisk(key)),
            None => Ciphers::new(self.hash, &self.keys[at]).map(NodeKey::Own),
        }
    }
}

/// The keys of a disk.
pub(crate) struct Keys {
    flash: Arc<dyn Flash>,
    layout: Layout,
    page_key: XtsKey,
    /// Hedges the salts of pages.
    salts: HedgedNonce,
    /// Of the tags of nodes, which are under the key of each.
    hash: SivHash,
    /// Completes keys of 16 bytes.
    tail: Secret<32>,
    random: Arc<dyn RandomSource>,
    /// Of a disk without keys, for comparison.
    of_disk: Option<Ciphers>,
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
            zeroed: vec![],
            renewals: vec![0; layout.keys.1 as usize],
            assignment: Assignment::new(layout.leb_keys),
            undrained: Recoverable::default(),
        };
        let tail = derive(master, "flash short keys", b"");
        let salts = HedgedNonce::derive(master, "flash key storage salt", b"");
        let hash = SivHash::derive(master, "flash node tags", b"");
        let without = layout.is_without_keys();
        let of_disk = without
            .then(|| Ciphers::derive(master, "flash without keys", "flash tags without keys"))
            .transpose()?;
        Ok(Keys { flash, layout, page_key, salts, hash, tail, random, of_disk, state: Mutex::new(state) })
    }

    // --- states ---

    /// Notes the state of a key. A key that is not there is none of this disk's.
    pub(crate) fn set(&self, key: KeyPosition, to: KeyState) -> Result<()> {
        if self.layout.is_without_keys() {
            return Ok(());
        }
        let mut state = self.state.lock();
        if !state.map.has(key) {
            return Err(unknown(key));
        }
        state.map.set(key, to);
        Ok(())
    }

    /// Calls keys deleted.
    pub(crate) fn delete(&self, keys: impl Iterator<Item = KeyPosition>) -> Result<()> {
        if self.layout.is_without_keys() {
            return Ok(());
        }
        let mut state = self.state.lock();
        for key in keys {
            if !state.map.has(key) {
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

    /// Takes the key state map of a checkpoint over; gives how many bytes it took.
    pub(crate) fn unpack(&self, bytes: &[u8]) -> Option<usize> {
        self.state.lock().map.unpack(bytes)
    }

    /// Blocks whose keys were fresh, for a checkpoint.
    pub(crate) fn fresh(&self) -> Vec<u32> {
        self.state.lock().assignment.fresh().iter().map(|block| block.0).collect()
    }

    /// Keys that are deleted, or of which a superseded copy may be left.
    pub(crate) fn recoverable(&self) -> Recoverable {
        let state = self.state.lock();
        let mut recoverable = state.undrained;
        recoverable.add(state.map.all());
        recoverable
    }

    /// All counts, for `status`: used and deleted.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let all = self.state.lock().map.all();
        (all.used.into(), all.deleted.into())
    }

    /// After a crash nobody knows which keys of the fresh blocks encrypt something that was never
    /// acknowledged: those that are not used count as deleted, and no block is fresh.
    pub(crate) fn distrust(&self, fresh: &[KeyBlock]) {
        let mut state = self.state.lock();
        for block in fresh.iter().filter(|block| block.0 < self.layout.keys.1) {
            state.map.delete_unused(*block);
        }
        state.assignment.end_epoch();
    }

    // --- assigning ---

    /// Assigns fresh keys for blocks of a lifetime and calls them used, until `keys` has `most` of
    /// them. If it has fewer then, [`Keys::wanted`] has to be renewed first.
    pub(crate) fn assign(&self, lifetime: Lifetime, most: usize, keys: &mut Vec<KeyPosition>) {
        if self.layout.is_without_keys() {
            return keys.resize(most, KeyPosition(0));
        }
        let State { assignment, map, .. } = &mut *self.state.lock();
        assignment.assign(map, lifetime, most, keys);
    }

    /// Takes keys back that were just assigned and encrypted nothing.
    pub(crate) fn take_back(&self, keys: impl Iterator<Item = KeyPosition>) {
        if self.layout.is_without_keys() {
            return;
        }
        let State { assignment, map, .. } = &mut *self.state.lock();
        assignment.take_back(map, keys);
    }

    /// The block from which keys for blocks of a lifetime can be assigned once it is renewed.
    ///
    /// Errors: [`lacuna_contracts::Kind::NoSpace`] if all keys are used.
    pub(crate) fn wanted(&self, lifetime: Lifetime) -> Result<KeyBlock> {
        let state = self.state.lock();
        state.assignment.target(&state.map, lifetime).ok_or_else(|| {
            Error::new(Kind::NoSpace, "every key of this disk is used").expected("fewer blocks than keys")
        })
    }

    /// Blocks that hold keys of what was deleted.
    pub(crate) fn with_deleted(&self) -> Vec<KeyBlock> {
        let state = self.state.lock();
        let deleted = |counts: &Counts| counts.deleted > 0;
        state.map.blocks().filter(|(_, counts)| deleted(counts)).map(|(block, _)| block).collect()
    }

    // --- renewing ---

    /// Replaces every key of a block that is not used by a new one, atomically. The old ones stay
    /// on the medium until it is drained. The block counts as fresh only after
    /// [`Keys::note_renewals`].
    pub(crate) fn replace_unused(&self, block: KeyBlock) -> Result<()> {
        // States do not change meanwhile: the caller is the one that writes.
        let used = self.state.lock().map.bits(block);
        let written = self.write_block(block, &used);
        // Whatever became of it: an error may come after the keys were replaced, and then no old
        // one may be taken from memory.
        let mut state = self.state.lock();
        state.renewals[block.0 as usize] += 1;
        self.forget_pages(&mut state, block);
        written
    }

    /// Notes that blocks were renewed, and that the log says so: their deleted keys are unused
    /// again, and they are fresh.
    pub(crate) fn note_renewals(&self, blocks: &[KeyBlock]) {
        let mut state = self.state.lock();
        for block in blocks {
            let deleted = state.map.forget_deleted(*block);
            state.undrained.add(deleted);
        }
        state.assignment.add_fresh(blocks);
    }

    /// An epoch ends: the blocks that were fresh are not any more.
    pub(crate) fn end_epoch(&self) {
        let mut state = self.state.lock();
        state.assignment.end_epoch();
    }

    /// No superseded copy is left.
    pub(crate) fn drained(&self) {
        self.state.lock().undrained = Recoverable::default();
    }

    /// Deleted keys that were replaced, of which a superseded copy may be left.
    pub(crate) fn undrained(&self) -> Recoverable {
        self.state.lock().undrained
    }

    /// Of so many deleted keys that were replaced a superseded copy may be left, as the checkpoint
    /// says.
    pub(crate) fn resume(&self, undrained: Recoverable) {
        self.state.lock().undrained = undrained;
    }

    /// After a crash superseded copies may be left, of how many keys is not known: one at least.
    pub(crate) fn suspect(&self) {
        let mut state = self.state.lock();
        state.undrained.most = state.undrained.most.max(1);
    }

    /// An old copy of a block, decrypted.
    pub(crate) fn open_copy(&self, block: KeyBlock, content: &[u8]) -> KeyCopy {
        let pages = content.chunks_exact(self.layout.page as usize).take(self.block_pages() as usize);
        KeyCopy { block, pages: pages.map(|page| self.open_page(page.to_vec())).collect() }
    }

    /// A key as it stands in an old copy, if it lies in that block.
    pub(crate) fn cipher_in(&self, copy: &KeyCopy, key: KeyPosition) -> Result<Option<NodeKey<'_>>> {
        if key.0 / self.layout.leb_keys != copy.block.0 {
            return Ok(None);
        }
        let page = copy.pages.get((key.0 % self.layout.leb_keys / self.layout.page_keys) as usize);
        let place = self.place_in_page(key.0 % self.layout.page_keys);
        let expand = |page: &SecretVec| {
            let mut whole = Zeroizing::new(*self.tail.expose());
            whole[..self.layout.key_len].copy_from_slice(&page.expose()[place]);
            Ciphers::new(&self.hash, &whole).map(NodeKey::Own)
        };
        page.map(expand).transpose()
    }

    // --- keys ---

    /// Fetches keys, to be used at once.
    pub(crate) fn fetch(&self, keys: &[KeyPosition]) -> Result<Fetched<'_>> {
        let of_disk = self.of_disk.as_ref();
        let mut fetched = Fetched { keys: Zeroizing::new(vec![]), hash: &self.hash, of_disk };
        if of_disk.is_some() {
            return Ok(fetched);
        }
        if let Some(key) = keys.iter().find(|key| key.0 / self.layout.leb_keys >= self.layout.keys.1) {
            return Err(unknown(*key));
        }
        // It never grows after this: nothing moves, and no copy stays behind.
        fetched.keys.resize(keys.len(), *self.tail.expose());
        let page_of = |key: KeyPosition| key.0 / self.layout.page_keys;
        let put = |content: &SecretVec, keys: &[KeyPosition], out: &mut [[u8; 32]]| {
            for (key, out) in keys.iter().zip(out) {
                let place = self.place_in_page(key.0 % self.layout.page_keys);
                out[..self.layout.key_len].copy_from_slice(&content.expose()[place]);
            }
        };
        let mut rest = &mut fetched.keys[..];
        let mut state = self.state.lock();
        for keys in keys.chunk_by(|a, b| page_of(*a) == page_of(*b)) {
            let page = page_of(keys[0]);
            let out = rest.split_off_mut(..keys.len()).expect("there is one for each key");
            if let Some(content) = state.cache.get(page) {
                put(content, keys, out);
                continue;
            }
            let block = (keys[0].0 / self.layout.leb_keys) as usize;
            let (renewals, memory) = (state.renewals[block], state.memory());
            let content = MutexGuard::unlocked(&mut state, || {
                let memory = memory.unwrap_or_else(|| SecretVec::zeroed(self.layout.page as usize));
                self.read_page_to(page, memory)
            })?;
            put(&content, keys, out);
            if state.renewals[block] == renewals {
                state.cache.insert(page, content);
            }
        }
        drop(state);
        Ok(fetched)
    }

    /// A key, ready for use.
    pub(crate) fn cipher(&self, key: KeyPosition) -> Result<NodeKey<'_>> {
        self.fetch(&[key])?.key(0)
    }

    fn forget_pages(&self, state: &mut State, block: KeyBlock) {
        let pages = self.block_pages();
        for page in block.0 * pages..(block.0 + 1) * pages {
            if let Some(mut memory) = state.cache.remove(page) {
                memory.expose_mut().zeroize();
                state.zeroed.push(memory);
            }
        }
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

    /// Reads a page into memory for secrets that is as long.
    fn read_page_to(&self, number: u32, mut memory: SecretVec) -> Result<SecretVec> {
        let pages = self.block_pages();
        let leb = self.layout.leb_of_keys(KeyBlock(number / pages));
        let bytes = memory.expose_mut();
        self.flash.read(leb, number % pages * self.layout.page, bytes).map_err(Error::of_read)?;
        // No page of keys is like this. Flash gives a page like this that it cannot read or that is
        // erased, and keys that are made of it must never take the place of the real ones.
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
        let (salt, keys) = bytes.split_first_chunk_mut::<SALT>().expect("a page is longer");
        let len = keys.len() / 16 * 16;
        self.page_key.session().decrypt_in_place(salt, &mut keys[..len]);
    }

    /// Writes a block whose keys are new, but for those whose bit in `used` is set.
    fn write_block(&self, block: KeyBlock, used: &[u8]) -> Result<()> {
        let pages = self.block_pages();
        let page_len = self.layout.page as usize;
        let mut content = Zeroizing::new(vec![0; self.layout.leb_len as usize]);
        self.random.fill(&mut content);
        let mut old = SecretVec::zeroed(page_len);
        let mut plain = Zeroizing::new(vec![0; page_len - SALT]);
        let mut session = self.page_key.session();
        for (page, bytes) in (0..pages).zip(content.chunks_exact_mut(page_len)) {
            let first = (page * self.layout.page_keys) as usize;
            let is_used =
                |at: &u32| used[(first + *at as usize) / 8] >> ((first + *at as usize) % 8) & 1 == 1;
            let kept: Vec<u32> = (0..self.layout.page_keys).filter(is_used).collect();
            if !kept.is_empty() {
                old = self.read_page_to(block.0 * pages + page, old)?;
                for at in kept {
                    let place = self.place_in_page(at);
                    bytes[place.clone()].copy_from_slice(&old.expose()[place]);
                }
            }
            let (salt, keys) = bytes.split_first_chunk_mut::<SALT>().expect("a page is longer");
            let len = keys.len() / 16 * 16;
            plain[..len].copy_from_slice(&keys[..len]);
            *salt = self.salts.nonce(salt, &(block.0 * pages + page).to_le_bytes(), &plain[..len]);
            session.encrypt(salt, &plain[..len], &mut keys[..len]);
        }
        self.flash.change(self.layout.leb_of_keys(block), &content)
    }
}

fn unknown(key: KeyPosition) -> Error {
    Error::new(Kind::Corrupt, "the log names a key that this disk does not have")
        .found(format!("key {}", key.0))
        .remedy("restore the flash from a backup")
}
