//! Untrusted storage in memory, with the attacks of an adversary.

use lacuna_contracts::Result;
use lacuna_integrity::{Part, Untrusted};
use lacuna_sim::Rng;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The state of the storage at one time.
#[derive(Clone, Default)]
pub(crate) struct StorageSnapshot {
    blocks: BTreeMap<u64, Vec<u8>>,
    parts: BTreeMap<(Part, u64), Vec<u8>>,
}

pub(crate) struct UntrustedMemory {
    size: usize,
    state: Mutex<StorageSnapshot>,
}

impl UntrustedMemory {
    pub(crate) fn new(block_size: usize) -> Self {
        UntrustedMemory { size: block_size, state: Mutex::default() }
    }

    pub(crate) fn parts(&self) -> usize {
        self.state.lock().unwrap().parts.len()
    }

    pub(crate) fn snapshot(&self) -> StorageSnapshot {
        self.state.lock().unwrap().clone()
    }

    /// Restores the whole snapshot.
    pub(crate) fn roll_back(&self, to: &StorageSnapshot) {
        *self.state.lock().unwrap() = to.clone();
    }

    /// Restores some blocks and pages of the snapshot.
    pub(crate) fn roll_back_some(&self, to: &StorageSnapshot, rng: &mut Rng) {
        let state = &mut *self.state.lock().unwrap();
        let blocks = to.blocks.iter().filter(|_| rng.chance(1, 3));
        state.blocks.extend(blocks.map(|(index, block)| (*index, block.clone())));
        let parts = to.parts.iter().filter(|_| rng.chance(1, 3));
        state.parts.extend(parts.map(|(name, page)| (*name, page.clone())));
    }

    /// Flips one bit of a block or of a page.
    pub(crate) fn alter(&self, rng: &mut Rng) {
        let state = &mut *self.state.lock().unwrap();
        let mut all: Vec<&mut Vec<u8>> = state.blocks.values_mut().chain(state.parts.values_mut()).collect();
        let at = rng.below(all.len() as u64) as usize;
        let byte = rng.below(all[at].len() as u64) as usize;
        all[at][byte] ^= 1 << rng.below(8);
    }

    /// Swaps two blocks or two pages.
    pub(crate) fn swap(&self, rng: &mut Rng) {
        let state = &mut *self.state.lock().unwrap();
        let parts = rng.chance(1, 2) && state.parts.len() > 1;
        let mut all: Vec<&mut Vec<u8>> =
            if parts { state.parts.values_mut().collect() } else { state.blocks.values_mut().collect() };
        let (one, other) = (rng.below(all.len() as u64) as usize, rng.below(all.len() as u64) as usize);
        if one != other {
            let kept = all[one].clone();
            *all[one] = std::mem::replace(all[other], kept);
        }
    }
}

impl Untrusted for UntrustedMemory {
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let state = self.state.lock().unwrap();
        for (index, block) in (first..).zip(out.chunks_exact_mut(self.size)) {
            match state.blocks.get(&index) {
                Some(held) => block.copy_from_slice(held),
                None => block.fill(0),
            }
        }
        Ok(())
    }

    fn write_blocks(&self, first: u64, sealed: &[u8]) -> Result<()> {
        let blocks = (first..).zip(sealed.chunks_exact(self.size).map(<[u8]>::to_vec));
        self.state.lock().unwrap().blocks.extend(blocks);
        Ok(())
    }

    fn read_part(&self, part: Part, page: u64) -> Result<Option<Vec<u8>>> {
        Ok(self.state.lock().unwrap().parts.get(&(part, page)).cloned())
    }

    fn write_part(&self, part: Part, page: u64, bytes: Option<&[u8]>) -> Result<()> {
        let parts = &mut self.state.lock().unwrap().parts;
        match bytes {
            Some(bytes) => drop(parts.insert((part, page), bytes.to_vec())),
            None => drop(parts.remove(&(part, page))),
        }
        Ok(())
    }
}
