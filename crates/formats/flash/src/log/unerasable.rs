//! Erase blocks that went bad with their contents: the contents stay readable for ever.
//!
//! The key of a node and the node itself may both lie in such blocks. Nothing helps then, whether
//! the node is deleted or not, and no purge may report success.

use crate::ids::KeyBlock;
use crate::key_storage::{KeyCopy, KeyStorage};
use crate::log::Log;
use crate::params::Layout;
use lacuna_contracts::{BLOCK_SIZE, Result};
use lacuna_nand::Unerased;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Data that stays readable for ever together with its key.
#[derive(Default)]
pub(crate) struct ExposedData {
    /// Blocks of the disk.
    pub(crate) blocks: BTreeSet<u32>,
    /// Units of the log with unknown content: no header of a group describes them.
    pub(crate) units: u32,
}

/// Copies reported since the disk was opened, as they lie on the flash: keys in them are encrypted.
pub(crate) struct UnerasableCopies {
    layout: Layout,
    log: Arc<Log>,
    keys: Arc<KeyStorage>,
    copies: Mutex<Vec<Unerased>>,
}

impl UnerasableCopies {
    pub(crate) fn new(layout: Layout, log: Arc<Log>, keys: Arc<KeyStorage>) -> UnerasableCopies {
        UnerasableCopies { layout, log, keys, copies: Mutex::default() }
    }

    /// Adds copies that could not be erased, and returns, decrypted, the copies that may hold keys.
    pub(crate) fn add(&self, unerased: Vec<Unerased>) -> Vec<KeyCopy> {
        let keys = unerased.iter().flat_map(|copy| self.key_copies(copy)).collect();
        self.copies.lock().extend(unerased);
        keys
    }

    /// Blocks of the disk with some version that stays readable for ever together with its key.
    pub(crate) fn exposed(&self) -> Result<ExposedData> {
        let copies = self.copies.lock();
        let keys: Vec<KeyCopy> = copies.iter().flat_map(|copy| self.key_copies(copy)).collect();
        let mut exposed = ExposedData::default();
        if keys.is_empty() {
            return Ok(exposed);
        }
        let of_keys = |copy: &Unerased| copy.leb.is_some_and(|leb| self.layout.keys_of_leb(leb).is_some());
        let sure = copies.iter().any(of_keys);
        for copy in copies.iter() {
            let lebs = match copy.leb {
                Some(leb) => match leb.0.checked_sub(self.layout.log.0) {
                    Some(number) => number..number + 1,
                    None => continue,
                },
                // It may be a copy of any block.
                None if copy.content.iter().any(|byte| *byte != 0xff) => 0..self.layout.log.1,
                None => continue,
            };
            for leb in lebs {
                let unknown = self.scan(leb, &copy.content, &keys, &mut exposed.blocks)?;
                // A node can be decrypted without its header, since each key encrypts nothing else.
                exposed.units += if copy.leb.is_some() && sure { unknown } else { 0 };
            }
        }
        Ok(exposed)
    }

    /// Searches the content of a block of the log for nodes. A part of it may be erased, so any
    /// unit may begin a group. Returns the number of programmed units that belong to no group
    /// found.
    fn scan(&self, leb: u32, content: &[u8], keys: &[KeyCopy], exposed: &mut BTreeSet<u32>) -> Result<u32> {
        let unit_len = self.layout.unit as usize;
        let mut node = Zeroizing::new(vec![0; BLOCK_SIZE]);
        let (mut known, mut unknown) = (0, 0);
        for (unit, bytes) in (0..self.layout.units).zip(content.chunks_exact(unit_len)) {
            let Some(header) = self.log.header_in(leb, unit, bytes)? else {
                unknown += u32::from(unit >= known && bytes.iter().any(|byte| *byte != 0xff));
                continue;
            };
            known = unit + self.log.units_of(&header);
            for (ordinal, entry) in header.nodes().iter().enumerate() {
                let (Some(block), Some(key)) = (entry.target.block(), entry.key_position()) else { continue };
                let first = (unit as usize + 1) * unit_len + ordinal * BLOCK_SIZE;
                let Some(bytes) = content.get(first..first + BLOCK_SIZE) else { continue };
                for copy in keys {
                    let Some(mut fetched) = self.keys.fetch_from(copy, key) else { continue };
                    node.copy_from_slice(bytes);
                    if fetched.key(0).open(entry, &mut node) {
                        exposed.insert(block);
                    }
                }
            }
        }
        Ok(unknown)
    }

    fn key_copies(&self, copy: &Unerased) -> Vec<KeyCopy> {
        let blocks: Vec<KeyBlock> = match copy.leb {
            Some(leb) => self.layout.keys_of_leb(leb).into_iter().collect(),
            // It may be a copy of any block.
            None => (0..self.layout.keys.1).map(KeyBlock).collect(),
        };
        blocks.into_iter().map(|block| self.keys.open_copy(block, &copy.content)).collect()
    }
}
