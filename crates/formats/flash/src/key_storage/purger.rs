//! Purging: data deleted before a purge is unrecoverable when the purge returns (DNEFS, section
//! 3.2).
//!
//! The log records the start and the finish of a purge, so that purging needs no checkpoint. In
//! between, every block of keys with deleted keys is replaced atomically: used keys keep their
//! positions, all other keys are new. Then the flash is drained, since old copies of these blocks
//! are still on it. Only then is the purge finished.
//!
//! A power cut between start and finish leaves keys that the log calls deleted and that may be new
//! already. The next opening replaces them once more with another purge, which is due if, and only
//! if, a start has no finish.

use crate::ids::{KeyBlock, Unit};
use crate::index::Index;
use crate::key_storage::{KeyCopy, KeyStorage};
use crate::log::Log;
use crate::log::group::GroupContent;
use crate::log::leb_table::LebUse;
use crate::log::log_writer::LogWriter;
use crate::log::unerasable::UnerasableCopies;
use crate::params::Layout;
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_nand::{Flash, Leb, Unerased};
use std::collections::BTreeSet;
use std::sync::Arc;
use zeroize::Zeroizing;

/// How often a purge is repeated because a block of keys went bad with its contents.
const MAX_ROUNDS: u32 = 8;

/// The result of a purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurgeResult {
    /// Blocks of keys that were replaced.
    pub key_blocks: u64,
    /// Deleted keys that were destroyed, and so the most versions of blocks that were.
    pub keys: u64,
    /// Keys among them that certainly encrypted a block. The rest were unused at a crash and may
    /// have encrypted one.
    pub known: u64,
    /// Blocks of the disk that were encrypted again, because a block of keys went bad with its
    /// contents.
    pub rewritten: u64,
}

impl PurgeResult {
    /// The sum of two results.
    pub(crate) fn plus(self, other: PurgeResult) -> PurgeResult {
        PurgeResult {
            key_blocks: self.key_blocks + other.key_blocks,
            keys: self.keys + other.keys,
            known: self.known + other.known,
            rewritten: self.rewritten + other.rewritten,
        }
    }
}

/// See the module documentation.
pub(crate) struct Purger {
    flash: Arc<dyn Flash>,
    layout: Layout,
    log: Arc<Log>,
    index: Arc<Index>,
    keys: Arc<KeyStorage>,
    log_writer: Arc<LogWriter>,
    unerasable: UnerasableCopies,
}

/// Services of the caller that a purge needs.
pub(crate) trait PurgeHost {
    /// Makes room in the log.
    fn make_room(&self) -> Result<()>;
    /// Writes these blocks again, under other keys.
    fn rewrite(&self, blocks: &[u32]) -> Result<()>;
    /// Frees these blocks of the log, after copying their live nodes.
    fn evict(&self, lebs: &BTreeSet<u32>) -> Result<()>;
}

/// Data that was encrypted under keys that stay readable for ever.
#[derive(Default)]
struct TaintedData {
    /// Blocks of the disk.
    blocks: Vec<u32>,
    /// Blocks of the log that hold such nodes, live or not.
    lebs: BTreeSet<u32>,
}

impl Purger {
    pub(crate) fn new(
        flash: Arc<dyn Flash>,
        layout: Layout,
        log: Arc<Log>,
        index: Arc<Index>,
        keys: Arc<KeyStorage>,
        log_writer: Arc<LogWriter>,
    ) -> Purger {
        let stuck = UnerasableCopies::new(layout, log.clone(), keys.clone());
        Purger { flash, layout, log, index, keys, log_writer, unerasable: stuck }
    }

    /// Ends an epoch. The caller has already written the record of its start, and everything
    /// acknowledged is in the log.
    ///
    /// Errors: [`Kind::PurgeIncomplete`] if old keys stay readable.
    pub(crate) fn purge(&self, caller: &dyn PurgeHost) -> Result<PurgeResult> {
        let mut purged = PurgeResult::default();
        for _ in 0..MAX_ROUNDS {
            let blocks = self.keys.blocks_with_deleted();
            purged.key_blocks += blocks.len() as u64;
            for part in blocks.chunks(64) {
                caller.make_room()?;
                self.log_writer.renew_blocks(part)?;
            }
            // Copies of the header stay listed for the operations that change passphrases.
            let wanted = |copy: &Unerased| copy.leb.is_none_or(|leb| leb.0 >= self.layout.keys.0);
            let copies = self.unerasable.add(self.flash.drain_of(&wanted)?);
            if copies.is_empty() {
                self.check_exposed()?;
                let erased = self.keys.recoverable();
                (purged.keys, purged.known) = (erased.max, erased.known);
                self.keys.note_drained();
                return Ok(purged);
            }
            // The flash reports these copies once for each opening. A refusal or failed read here
            // therefore counts as a failure: another purge would not see the copies.
            purged.rewritten += self.replace_tainted(&copies, caller).map_err(Error::of_sync)?;
        }
        Err(self.incomplete("blocks of keys that go bad with their contents, one after the other"))
    }

    /// Handles keys that stay readable for ever. They are not assigned any more, and the data under
    /// them has to go: live nodes get other keys, and the blocks of the log that hold any are
    /// erased. Returns the number of blocks of the disk that were rewritten.
    fn replace_tainted(&self, copies: &[KeyCopy], caller: &dyn PurgeHost) -> Result<u64> {
        caller.make_room()?;
        let blocks: BTreeSet<KeyBlock> = copies.iter().map(|copy| copy.block).collect();
        self.log_writer.renew_blocks(&blocks.into_iter().collect::<Vec<_>>())?;
        let mut tainted = self.tainted(copies)?;
        let rewritten = tainted.blocks.len() as u64;
        caller.rewrite(&tainted.blocks)?;
        // Collection may have moved some nodes, under their old keys, before they were rewritten.
        tainted.lebs.extend(self.tainted(copies)?.lebs);
        caller.evict(&tainted.lebs)?;
        let kept = |leb: &u32| self.log.with_table(|table| table.usage(*leb) == LebUse::Damaged);
        let Some(leb) = tainted.lebs.into_iter().find(kept) else { return Ok(rewritten) };
        Err(self.incomplete(format!("erase block {leb} of the log, which is damaged and cannot be emptied")))
    }

    /// Fails if data that stays readable for ever has a key that does so too.
    fn check_exposed(&self) -> Result<()> {
        let exposed = self.unerasable.exposed()?;
        if exposed.units > 0 && exposed.blocks.is_empty() {
            return Err(self.incomplete(format!(
                "erase blocks that went bad with {} units of the log that have no header, and blocks of keys",
                exposed.units
            )));
        }
        let exposed = exposed.blocks;
        if exposed.is_empty() {
            return Ok(());
        }
        let (count, first) = (exposed.len(), exposed.first().copied().unwrap_or(0));
        Err(self.incomplete(format!(
            "erase blocks that went bad with versions of {count} blocks and their keys, the first of block {first}"
        )))
    }

    fn incomplete(&self, found: impl std::fmt::Display) -> Error {
        let left = self.keys.recoverable().max;
        Error::new(Kind::PurgeIncomplete, "the purge could not be completed")
            .found(format!("{found}; blocks that may still be recoverable: {left}"))
            .expected("flash that can be erased")
            .hint("no flushed data is lost: copy the content to another device, and destroy this one")
    }

    /// Finds all nodes that the keys in these copies decrypt. It reads all headers of the log,
    /// which is acceptable because this is rare.
    fn tainted(&self, copies: &[KeyCopy]) -> Result<TaintedData> {
        let mut tainted = TaintedData::default();
        let mut node = Zeroizing::new(vec![0; BLOCK_SIZE]);
        for leb in 0..self.layout.log.1 {
            let groups = self.log.groups_of(leb)?;
            let end = groups
                .last()
                .map_or(0, |(group, header)| group.0 - self.log.unit(leb, 0).0 + self.log.units_of(header));
            // A node can be decrypted without its header, since each key encrypts nothing else.
            if self.is_programmed(leb, end)? {
                tainted.lebs.insert(leb);
            }
            for (group, header) in groups {
                for (ordinal, entry) in (0..).zip(header.nodes()) {
                    let (Some(block), Some(key)) = (entry.target.block(), entry.key_position()) else {
                        continue;
                    };
                    for copy in copies {
                        let Some(mut fetched) = self.keys.fetch_from(copy, key) else { continue };
                        self.log.read_nodes(group, ordinal, &mut node[..])?;
                        if fetched.key(0).open(entry, &mut node[..]) {
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
        Ok(tainted)
    }

    /// Whether a block of the log is programmed anywhere at or after a unit.
    fn is_programmed(&self, leb: u32, unit: u32) -> Result<bool> {
        let Unit(first) = self.log.unit(leb, 0);
        let block = Leb(first / self.layout.units);
        if unit >= self.layout.units || !self.flash.is_mapped(block)? {
            return Ok(false);
        }
        let mut bytes = vec![0; ((self.layout.units - unit) * self.layout.unit) as usize];
        self.flash.read(block, unit * self.layout.unit, &mut bytes)?;
        Ok(bytes.iter().any(|byte| *byte != 0xff))
    }

    /// Records the start of a purge.
    pub(crate) fn start(&self, epoch: u64) -> Result<()> {
        self.log_writer.append_record(GroupContent::PurgeStart(epoch))?;
        self.keys.end_epoch();
        Ok(())
    }

    /// Records the completion of a purge.
    pub(crate) fn finish(&self, epoch: u64) -> Result<()> {
        self.log_writer.append_record(GroupContent::PurgeFinish(epoch)).map(drop)
    }
}
