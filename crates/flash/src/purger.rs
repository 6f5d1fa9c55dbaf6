//! Purging: everything that was deleted before is gone for good when it returns (paper 003, section 3.2).
//!
//! The log says when a purge starts and when it is finished, so that purging needs no checkpoint. In between, every block of keys
//! that has deleted ones is replaced atomically: used keys stay where they are, all others are new. Then the flash is drained, for
//! the old copies of these blocks are still there. Only then is the purge finished.
//!
//! A power cut between start and finish leaves keys that the log calls deleted and that may be new already: they are replaced once
//! more by the next purge, which is due at once.

use crate::group::Content;
use crate::index::Index;
use crate::keys::{KeyCopy, Keys};
use crate::log::Log;
use crate::numbers::KeyBlock;
use crate::params::Layout;
use crate::placer::Placer;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_nand::{Flash, Unerased};
use std::collections::BTreeSet;
use std::sync::Arc;
use zeroize::Zeroize;

/// How often a purge begins again because a block of keys went bad with its contents.
const TRIES: u32 = 8;

/// What a purge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Blocks of keys that were replaced.
    pub key_blocks: u64,
    /// Deleted keys that are gone.
    pub keys: u64,
    /// Blocks of the disk that were encrypted again, since a block of keys went bad with its contents.
    pub rewritten: u64,
}

/// See the head of this file.
pub(crate) struct Purger {
    flash: Arc<dyn Flash>,
    layout: Layout,
    log: Arc<Log>,
    index: Arc<Index>,
    keys: Arc<Keys>,
    placer: Arc<Placer>,
}

/// What a purge asks its caller for.
pub(crate) trait Evict {
    /// Sees to room in the log.
    fn make_room(&self) -> Result<()>;
    /// Writes these blocks again, under other keys.
    fn rewrite(&self, blocks: &[u32]) -> Result<()>;
    /// Gives these blocks of the log back, after what is live in them was copied.
    fn evict(&self, lebs: &BTreeSet<u32>) -> Result<()>;
}

/// What was encrypted under keys that can be read for ever.
#[derive(Default)]
struct Tainted {
    /// Blocks of the disk.
    blocks: Vec<u32>,
    /// Blocks of the log that hold such nodes, live or not.
    lebs: BTreeSet<u32>,
}

impl Purger {
    pub(crate) fn new(
        flash: Arc<dyn Flash>,
        layout: Layout,
        (log, index, keys): (Arc<Log>, Arc<Index>, Arc<Keys>),
        placer: Arc<Placer>,
    ) -> Purger {
        Purger { flash, layout, log, index, keys, placer }
    }

    /// Ends an epoch. `start` is the record that says so, written by the caller already. Everything acknowledged is in the log.
    ///
    /// Errors: [`Kind::Other`] if old keys stay readable, whatever is done.
    pub(crate) fn purge(&self, caller: &dyn Evict) -> Result<Purged> {
        let mut purged = Purged::default();
        for _ in 0..TRIES {
            let blocks = self.keys.with_deleted();
            purged.key_blocks += blocks.len() as u64;
            purged.keys += self.keys.recoverable();
            for part in blocks.chunks(64) {
                caller.make_room()?;
                self.placer.renew(part)?;
            }
            let copies = self.copies(self.flash.drain()?);
            self.keys.drained();
            if copies.is_empty() {
                return Ok(purged);
            }
            // These keys can be read for ever. None of them is assigned any more, and what they encrypt has to go: live nodes get
            // other keys, and the blocks of the log that hold any are erased.
            caller.make_room()?;
            self.placer.renew(&copies.iter().map(|copy| copy.block).collect::<Vec<_>>())?;
            let tainted = self.tainted(&copies)?;
            purged.rewritten += tainted.blocks.len() as u64;
            caller.rewrite(&tainted.blocks)?;
            caller.evict(&tainted.lebs)?;
        }
        Err(Error::new(Kind::Other, "the purge could not be completed")
            .found("blocks of keys that go bad with their contents, one after the other")
            .expected("flash that can be erased")
            .remedy("copy what is there to another device, and destroy this one"))
    }

    /// Copies of blocks of keys that could not be erased.
    fn copies(&self, unerased: Vec<Unerased>) -> Vec<KeyCopy> {
        let mut copies = vec![];
        for copy in unerased {
            let blocks: Vec<KeyBlock> = match copy.leb {
                Some(leb) => self.layout.keys_of_leb(leb).into_iter().collect(),
                // It may be of any.
                None => (0..self.layout.keys.1).map(KeyBlock).collect(),
            };
            copies.extend(blocks.into_iter().map(|block| self.keys.open_copy(block, &copy.content)));
        }
        copies
    }

    /// Finds all nodes that the keys in these copies decrypt. It reads all headers of the log, for this is rare.
    fn tainted(&self, copies: &[KeyCopy]) -> Result<Tainted> {
        let mut tainted = Tainted::default();
        let mut node = vec![0; BLOCK_SIZE];
        for leb in 0..self.layout.log.1 {
            for (group, header) in self.log.groups_of(leb)? {
                for (ordinal, entry) in (0..).zip(header.nodes()) {
                    let (Some(block), Some(key)) = (entry.target.block(), entry.key_position()) else {
                        continue;
                    };
                    for copy in copies {
                        let Some(cipher) = self.keys.cipher_in(copy, key)? else { continue };
                        self.log.read_nodes(group, ordinal, &mut node)?;
                        if Log::open_block(&cipher, entry, &mut node) {
                            tainted.lebs.insert(leb);
                            if self
                                .index
                                .get(block)?
                                .is_some_and(|place| (place.group, place.ordinal) == (group, ordinal))
                            {
                                tainted.blocks.push(block);
                            }
                        }
                    }
                }
            }
        }
        node.zeroize();
        Ok(tainted)
    }

    /// The record that a purge begins.
    pub(crate) fn start(&self, epoch: u64) -> Result<()> {
        self.placer.record(Content::PurgeStart(epoch))?;
        self.keys.end_epoch();
        Ok(())
    }

    /// The record that it is complete.
    pub(crate) fn finish(&self, epoch: u64) -> Result<()> {
        self.placer.record(Content::PurgeFinish(epoch)).map(drop)
    }
}
