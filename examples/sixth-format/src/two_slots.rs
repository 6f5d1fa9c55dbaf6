//! `two-slots`: every block has two slots on the medium, and a write goes to the slot that does not
//! hold the last flushed version.
//!
//! A small format that keeps the contracts of a disk. It costs twice the space, two slot reads for
//! each block, and one write at a time. A program adds it with [`lacuna_storage::add_format`].
//!
//! # Layout
//! Slot *s* (0 or 1) of block *b* begins at byte 1,048,576 + 9216 *b* + 4608 *s*, after the header.
//! Numbers are little-endian.
//!
//! | offset | length | field |
//! |---:|---:|---|
//! | 0 | 24 | nonce |
//! | 24 | 16 | tag |
//! | 40 | 8 | number of the version, starting at 1 |
//! | 48 | 464 | zeros |
//! | 512 | 4096 | the block, encrypted |
//!
//! The cipher is XAES-256-GCM under the key `two-slots`, derived from the master key and the UUID;
//! block and number are the associated data. The first 512 bytes of a slot that was never written
//! are zeros, and its block reads as zeros. Of the slots that verify, the one with the higher
//! number counts. The parameters in the header are the number of blocks, 8 bytes.
//!
//! # Durability
//! Invariant: one slot of each block holds its last flushed version, and was not written since. The
//! other slot takes every write until the next flush, so that after a power cut the block reads as
//! flushed or as written later. Memory holds the set of slots written since the last sync. Opening
//! for writing syncs the medium: a killed server may have left writes that a read returns and a
//! power cut can still undo. Opening read-only syncs nothing. Any error of a write or a sync stops
//! the disk, including a full medium: the slot that was being written may have held an acknowledged
//! version. A server that is killed during a write can tear that slot like a power cut; the block
//! then reads as flushed.
//!
//! # Adversary
//! Altered, moved and spliced slots do not verify, and each write of a block encrypts it anew.
//! Snapshots show which blocks changed. There is no freshness: an older slot, or zeros in both
//! slots, restore an older block. A damaged newest version looks like a write that a power cut
//! tore: the block then reads as the version before, and a check reports it only if neither slot is
//! whole.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

use lacuna_contracts::{FailStop, LeReader, LeWriter, ParamsReader, WipeOnDrop};
use lacuna_crypto::{HedgedNonce, RandomSource, SystemRandom, XAES_NONCE, XaesKey, derive};
use lacuna_storage::format::{
    AvailableSpace, CreateOptions, Description, Format, FormatInfo, OpenContext, OpenFormat, Params,
};
use lacuna_storage::{
    BLOCK_SIZE, Backing, BackingKind, BlockAddr, Disk, DiskKeys, Error, Extent, FormatId, HEADER_AREA, Kind,
    Medium, Result, Status, size_in_blocks,
};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

const NAME: &str = "two-slots";
/// Offsets in a slot.
const NONCE: usize = 0;
const TAG: usize = 24;
const NUMBER: usize = 40;
const ZEROS: usize = 48;
/// Bytes of a slot before the block.
const HEAD: usize = 512;
const SLOT: usize = HEAD + BLOCK_SIZE;
/// Bytes of the two slots of a block.
const PAIR: usize = 2 * SLOT;
/// Maximum blocks of a disk: 4 PiB.
const MAX_BLOCKS: u64 = 1 << 40;
/// Maximum blocks written without a sync; it limits memory to a few MiB.
const MAX_UNSYNCED: usize = 1 << 16;

/// The format.
#[derive(Debug)]
pub struct TwoSlots;

impl Format for TwoSlots {
    fn info(&self) -> FormatInfo {
        FormatInfo::of(FormatId(0x8001), NAME, BackingKind::File)
    }

    fn parse(&self, params: &[u8]) -> Result<Box<dyn Params>> {
        let params = ParamsReader::new(NAME, params, 8)?;
        match params.u64(0) {
            blocks @ 1..=MAX_BLOCKS => Ok(Box::new(TwoSlotsParams { blocks })),
            other => Err(params.invalid(format!("{other} blocks"), format!("1 to {MAX_BLOCKS} blocks"))),
        }
    }

    fn plan(&self, options: &CreateOptions, room: AvailableSpace) -> Result<Box<dyn Params>> {
        let AvailableSpace::File(_) = room else { return Err(options.wrong_backing(room.kind())) };
        let size = options.size.ok_or_else(|| options.missing_size("two slots"))?;
        let too_large = |e: Error| e.with_kind(Kind::Usage).hint("choose a smaller size");
        self.parse(&size_in_blocks(size)?.to_le_bytes()).map_err(too_large)
    }
}

/// The parameters of a disk.
#[derive(Debug)]
struct TwoSlotsParams {
    blocks: u64,
}

impl Params for TwoSlotsParams {
    fn format(&self) -> &'static dyn Format {
        &TwoSlots
    }

    fn describe(&self) -> Description {
        Description { cipher: "xaes-256-gcm", ..Description::of(self.blocks, self.blocks) }
    }

    fn encode(&self) -> Vec<u8> {
        self.blocks.to_le_bytes().to_vec()
    }

    fn end(&self) -> u64 {
        slot_offset(self.blocks, 0)
    }

    fn resized_to(&self, blocks: u64) -> Box<dyn Params> {
        Box::new(TwoSlotsParams { blocks })
    }

    fn create(&self, backing: &Backing, _keys: DiskKeys<'_>) -> Result<()> {
        // A device may contain data. Slots of zeros were never written.
        backing.medium()?.discard(HEADER_AREA, self.end() - HEADER_AREA)
    }

    fn open(&self, backing: &Backing, with: &OpenContext<'_>) -> Result<Box<dyn OpenFormat>> {
        let (medium, DiskKeys { keys, uuid }) = (Arc::clone(backing.medium()?), with.keys);
        let read_only = with.options.read_only;
        if !read_only {
            medium.sync()?;
        }
        Ok(Box::new(TwoSlotsDisk {
            medium,
            blocks: self.blocks,
            key: XaesKey::new(&derive(&keys[0], NAME, uuid)),
            nonces: HedgedNonce::derive(&keys[0], "two-slots nonce", uuid),
            random: SystemRandom::new()?,
            unsynced: RwLock::default(),
            health: FailStop::default(),
            read_only,
            write_through: with.options.write_through,
        }))
    }
}

/// The offset of a slot on the medium.
fn slot_offset(block: u64, slot: usize) -> u64 {
    HEADER_AREA + block * PAIR as u64 + (slot * SLOT) as u64
}

/// The associated data of a version's tag, which its nonce also depends on: block and number.
fn associated_data(block: u64, number: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    LeWriter(&mut bytes).u64(0, block).u64(8, number);
    bytes
}

/// A version of a block: its slot and its number. A slot that was never written has number 0.
#[derive(Clone, Copy)]
struct SlotVersion {
    slot: usize,
    number: u64,
}

/// An open disk.
struct TwoSlotsDisk {
    medium: Arc<dyn Medium>,
    blocks: u64,
    key: XaesKey,
    nonces: HedgedNonce,
    random: SystemRandom,
    /// The versions written since the last sync, by block. Readers share the lock; writes and syncs
    /// hold it exclusively.
    unsynced: RwLock<HashMap<u64, SlotVersion>>,
    health: FailStop,
    read_only: bool,
    write_through: bool,
}

impl TwoSlotsDisk {
    /// Reads both slots of a block and decrypts them in place. Returns the newest version, or
    /// `None` if neither slot is whole. Of two slots that were never written it returns the second
    /// one, so that the first one is written first.
    fn newest_version(&self, block: u64, pair: &mut [u8; PAIR]) -> Result<Option<SlotVersion>> {
        self.medium.read_at(slot_offset(block, 0), pair)?;
        let mut newest: Option<SlotVersion> = None;
        for (slot, bytes) in pair.chunks_exact_mut(SLOT).enumerate() {
            let (head, content) = bytes.split_at_mut(HEAD);
            let head = LeReader(head);
            let number = head.u64(NUMBER);
            let is_whole = if head.is_zero(..) {
                content.fill(0);
                true
            } else {
                let (nonce, tag) = (head.array(NONCE), head.array(TAG));
                // The tag does not cover these zeros.
                head.is_zero(ZEROS..)
                    && self.key.open_in_place(&nonce, &associated_data(block, number), content, &tag)?.is_ok()
            };
            if is_whole && newest.is_none_or(|newest| newest.number <= number) {
                newest = Some(SlotVersion { slot, number });
            }
        }
        Ok(newest)
    }

    /// Writes a block.
    fn write_block(
        &self,
        unsynced: &mut HashMap<u64, SlotVersion>,
        block: u64,
        content: &[u8],
    ) -> Result<()> {
        self.health.check()?;
        if unsynced.len() >= MAX_UNSYNCED {
            self.sync(unsynced)?;
        }
        let version = if let Some(version) = unsynced.get(&block) {
            *version
        } else {
            let mut pair = WipeOnDrop::new([0u8; PAIR]);
            let synced = self.newest_version(block, &mut pair)?.unwrap_or(SlotVersion { slot: 1, number: 0 });
            SlotVersion { slot: 1 - synced.slot, number: synced.number + 1 }
        };
        let bound = associated_data(block, version.number);
        let mut random = [0u8; XAES_NONCE];
        self.random.fill(&mut random);
        let nonce = self.nonces.hedge(random, &bound, content);
        let mut bytes = [0u8; SLOT];
        let (head, sealed) = bytes.split_at_mut(HEAD);
        let tag = self.key.seal(&nonce, &bound, content, sealed)?;
        LeWriter(head).put(NONCE, &nonce).put(TAG, &tag).u64(NUMBER, version.number);
        unsynced.insert(block, version);
        let written = self.medium.write_at(slot_offset(block, version.slot), &bytes);
        written.map_err(|e| self.health.fail(e))
    }

    fn sync(&self, unsynced: &mut HashMap<u64, SlotVersion>) -> Result<()> {
        self.health.check()?;
        self.medium.sync().map_err(|e| self.health.fail(e.of_sync()))?;
        unsynced.clear();
        Ok(())
    }
}

impl Disk for TwoSlotsDisk {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        let _unchanged = self.unsynced.read();
        let mut pair = WipeOnDrop::new([0u8; PAIR]);
        for (block, out) in (first.0..).zip(buf.chunks_exact_mut(BLOCK_SIZE)) {
            let newest = self.newest_version(block, &mut pair)?.ok_or_else(|| {
                Error::new(Kind::Corrupt, format!("block {block} does not verify"))
                    .found("two slots that were damaged, altered or moved")
                    .expected("a slot that this disk wrote there")
                    .hint("restore this block from a backup; a check lists all such blocks")
            })?;
            out.copy_from_slice(&pair[newest.slot * SLOT + HEAD..][..BLOCK_SIZE]);
        }
        Ok(())
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        let mut unsynced = self.unsynced.write();
        let mut blocks = (first.0..).zip(data.chunks_exact(BLOCK_SIZE));
        blocks.try_for_each(|(block, content)| self.write_block(&mut unsynced, block, content))
    }

    /// Writes zeros to blocks that were ever written or are damaged; no space is freed. Blocks that
    /// were never written stay so.
    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        let mut unsynced = self.unsynced.write();
        let mut pair = WipeOnDrop::new([0u8; PAIR]);
        for block in first.0..first.0 + count {
            if self.newest_version(block, &mut pair)?.is_none_or(|newest| newest.number > 0) {
                self.write_block(&mut unsynced, block, &[0; BLOCK_SIZE])?;
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if self.read_only { Ok(()) } else { self.sync(&mut self.unsynced.write()) }
    }

    fn extents(&self, _first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        Ok(vec![Extent { blocks: count, written: true }])
    }

    fn status(&self) -> Status {
        Status::default()
    }

    fn close(&self) -> Result<()> {
        let flushed = self.flush();
        self.health.close();
        flushed
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }
}

impl OpenFormat for TwoSlotsDisk {
    fn disk(&self) -> &dyn Disk {
        self
    }

    fn needs_flush_per_write(&self) -> bool {
        self.write_through
    }
}
