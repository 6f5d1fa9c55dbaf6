//! Checkpoints and groups of a disk on flash, forged by an adversary with the keys, as in
//! `docs/format/flash.md`.

use crate::flash_image::{GEOMETRY, IMAGES, content, master, open, params};
use crate::ram_flash::RamFlash;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, LeReader, LeWriter, Result};
use lacuna_crypto::{XAES_NONCE, XaesKey, derive};
use lacuna_flash::{Params, header_lebs};
use lacuna_nand::{Flash, Leb};
use std::sync::Arc;

/// Bytes of input per group, and per entry of a group.
const GROUP: usize = 32;
const ENTRY_LEN: usize = 7;
/// Maximum groups of one input.
const GROUPS: usize = 64;
/// Bytes of a page, which is also a unit, and units of a logical erase block.
const PAGE: usize = GEOMETRY.page as usize;
const UNITS: u32 = GEOMETRY.leb_len / GEOMETRY.page;
/// Bytes of the head of a checkpoint, and of the part that the tag binds.
const HEAD: usize = 64;
const BOUND: usize = 24;
/// Bytes of a unit before the encrypted part of a group's header, and bytes of that part before the
/// entries.
const SEALED: usize = XAES_NONCE + 16;
const FRONT: usize = 24;

/// Writes a forged checkpoint and forged groups after it to a small disk; then opens it and, if it
/// opens, reads, writes and purges it.
pub fn use_forged(input: &[u8]) {
    let flash = Arc::new(RamFlash::new(GEOMETRY, IMAGES[2].clone()));
    if forge(&flash, input).is_err() {
        return;
    }
    let Ok(disk) = open(flash, 3) else { return };
    let mut block = vec![0; BLOCK_SIZE];
    for addr in 0..disk.blocks() {
        let _lost = disk.read(BlockAddr(addr), &mut block);
    }
    let _full = disk.write(BlockAddr(1), &content(1, 9));
    let _full = disk.discard(BlockAddr(2), 5);
    let _incomplete = disk.purge();
    let _lost = disk.check_keys();
    let _failed = disk.close();
}

/// Forges a checkpoint from the first bytes of the input, and then groups from 32 bytes each:
///
/// ```text
///   0  number of changes of the checkpoint's content, modulo 16, then the changes: offset in two
///      bytes, value in one
/// group:
///   0  kind in 3 bits; bit 3: a wrong checksum; 4: a wrong next block; 5: another unit
///   1  content of the nodes; the next block, if it is wrong
///   2  count
///   3  added to the keys, and shift of the targets
///   4  four entries of 7 bytes: target and key from two, whether it replaces a place, place
/// ```
fn forge(flash: &RamFlash, input: &[u8]) -> Result<()> {
    let (count, rest) = input.split_first().unwrap_or((&0, &[]));
    let (changes, groups) = rest.split_at(rest.len().min(3 * usize::from(count % 16)));
    let areas = FlashAreas::of(&params());
    let mut newest = ForgedCheckpoint::newest(flash, &areas)?;
    let at = newest.position();
    for change in changes.chunks_exact(3) {
        let offset = usize::from(u16::from_le_bytes([change[0], change[1]])) % newest.content.len();
        newest.content[offset] = change[2];
    }
    newest.number += 1;
    newest.write(flash, &areas)?;
    // Remove the log after the checkpoint: the forged groups replace it.
    let log = ForgedLog { flash, first: areas.log.0, lebs: areas.log.1, key: key("flash log") };
    for leb in 0..log.lebs {
        if log.first_sequence(leb)?.is_some_and(|sequence| sequence >= at.sequence) {
            flash.unmap(Leb(log.first + leb))?;
        }
    }
    let gone = vec![0xff; (UNITS - at.unit.min(UNITS)) as usize * PAGE];
    log.put(at.leb, at.unit, &gone);
    log.forge(at, groups)
}

fn key(label: &str) -> XaesKey {
    XaesKey::new(&derive(&master(), label, b""))
}

/// The areas: first logical erase block and length of each; for the checkpoints, the length of one
/// of the two.
struct FlashAreas {
    checkpoints: (u32, u32),
    log: (u32, u32),
}

impl FlashAreas {
    fn of(params: &Params) -> FlashAreas {
        let before = header_lebs(GEOMETRY) + params.key_blocks();
        let keys = u64::from(params.key_blocks());
        let bytes = PAGE as u64
            + 64
            + 8 * keys
            + 8 * params.most_blocks.div_ceil(512)
            + 12 * u64::from(GEOMETRY.lebs - before)
            + 2 * keys * (1 + u64::from(params.keys_per_block()).div_ceil(8));
        let each = bytes.div_ceil(GEOMETRY.leb_len.into()) as u32;
        let log = before + 2 * each;
        FlashAreas { checkpoints: (before, each), log: (log, GEOMETRY.lebs - log) }
    }

    /// The first logical erase block of checkpoint `number`.
    fn checkpoint(&self, number: u64) -> u32 {
        self.checkpoints.0 + (number % 2) as u32 * self.checkpoints.1
    }
}

/// The position at which a log continues.
#[derive(Clone, Copy)]
struct LogPosition {
    leb: u32,
    unit: u32,
    next: u32,
    sequence: u64,
}

struct ForgedCheckpoint {
    number: u64,
    content: Vec<u8>,
}

impl ForgedCheckpoint {
    /// Reads the newest checkpoint.
    fn newest(flash: &RamFlash, areas: &FlashAreas) -> Result<ForgedCheckpoint> {
        let mut newest = [0; HEAD];
        for place in 0..2 {
            let mut head = [0; HEAD];
            flash.read(Leb(areas.checkpoint(place)), 0, &mut head)?;
            let is_newer = LeReader(&head).u64(16) > LeReader(&newest).u64(16);
            if head[..8] == *b"lacflash" && is_newer {
                newest = head;
            }
        }
        let head = LeReader(&newest);
        let (len, number) = (head.u32(12) as usize, head.u64(16));
        let mut content = vec![0; PAGE + len];
        for (leb, part) in (areas.checkpoint(number)..).zip(content.chunks_mut(GEOMETRY.leb_len as usize)) {
            flash.read(Leb(leb), 0, part)?;
        }
        content.drain(..PAGE);
        let (nonce, tag) = (head.array(BOUND), head.array(BOUND + XAES_NONCE));
        let opened = key("flash checkpoint").open_in_place(&nonce, &newest[..BOUND], &mut content, &tag)?;
        assert!(opened.is_ok(), "the checkpoint that the disk wrote does not verify");
        Ok(ForgedCheckpoint { number, content })
    }

    /// The position at which replay begins.
    fn position(&self) -> LogPosition {
        let content = LeReader(&self.content);
        LogPosition {
            leb: content.u32(0),
            unit: content.u32(4),
            next: content.u32(8),
            sequence: content.u64(16),
        }
    }

    fn write(&self, flash: &RamFlash, areas: &FlashAreas) -> Result<()> {
        let mut bytes = vec![0xff; PAGE];
        LeWriter(&mut bytes)
            .put(0, b"lacflash")
            .u32(8, 1)
            .u32(12, self.content.len() as u32)
            .u64(16, self.number);
        let nonce = [self.number as u8; XAES_NONCE];
        let mut sealed = vec![0; self.content.len()];
        let tag = key("flash checkpoint").seal(&nonce, &bytes[..BOUND], &self.content, &mut sealed)?;
        LeWriter(&mut bytes).put(BOUND, &nonce).put(BOUND + XAES_NONCE, &tag);
        bytes.extend(sealed);
        bytes.resize(bytes.len().next_multiple_of(PAGE), 0xff);
        let mut parts = (areas.checkpoint(self.number)..).zip(bytes.chunks(GEOMETRY.leb_len as usize));
        parts.try_for_each(|(leb, part)| flash.change(Leb(leb), part))
    }
}

/// The log of a disk. Its logical erase blocks are numbered within the log, units over the whole
/// flash.
struct ForgedLog<'f> {
    flash: &'f RamFlash,
    first: u32,
    lebs: u32,
    key: XaesKey,
}

impl ForgedLog<'_> {
    fn unit(&self, leb: u32, unit: u32) -> u32 {
        (self.first + leb) * UNITS + unit
    }

    /// The sequence number of the first group in a logical erase block, if there is one.
    fn first_sequence(&self, leb: u32) -> Result<Option<u64>> {
        let mut bytes = vec![0; PAGE];
        self.flash.read(Leb(self.first + leb), 0, &mut bytes)?;
        let (sealed, plain) = bytes.split_at_mut(SEALED);
        let (nonce, tag) = (LeReader(sealed).array(0), LeReader(sealed).array(XAES_NONCE));
        let opened = self.key.open_in_place(&nonce, &self.unit(leb, 0).to_le_bytes(), plain, &tag)?;
        Ok(opened.is_ok().then(|| LeReader(plain).u64(8)))
    }

    fn put(&self, leb: u32, unit: u32, bytes: &[u8]) {
        self.flash.put(self.first + leb, unit * GEOMETRY.page, bytes);
    }

    /// Writes groups, starting at a position.
    fn forge(&self, mut at: LogPosition, groups: &[u8]) -> Result<()> {
        for piece in groups.chunks(GROUP).take(GROUPS) {
            let mut input = [0; GROUP];
            input[..piece.len()].copy_from_slice(piece);
            let group = ForgedGroup::forged(&input, &at);
            let nodes = vec![input[1]; group.nodes() * BLOCK_SIZE];
            let units = 1 + (nodes.len() / PAGE) as u32;
            if at.leb >= self.lebs || at.unit + units > UNITS {
                (at.leb, at.unit, at.next) = (at.next, 0, (at.next + 1) % self.lebs);
                if at.leb >= self.lebs {
                    return Ok(());
                }
            }
            let checksum = crc32fast::hash(&nodes) ^ u32::from(input[0] >> 3 & 1);
            let next = if input[0] >> 4 & 1 == 1 { u32::from(input[1]) } else { at.next };
            let plain = group.encode(next, at.sequence, checksum);
            let bound = self.unit(at.leb, at.unit) + u32::from(input[0] >> 5 & 1);
            let nonce = [at.sequence as u8; XAES_NONCE];
            let mut bytes = vec![0; PAGE];
            let tag = self.key.seal(&nonce, &bound.to_le_bytes(), &plain, &mut bytes[SEALED..])?;
            LeWriter(&mut bytes).put(0, &nonce).put(XAES_NONCE, &tag);
            bytes.extend(nodes);
            self.put(at.leb, at.unit, &bytes);
            (at.unit, at.sequence) = (at.unit + units, at.sequence + 1);
        }
        Ok(())
    }
}

const NODES: u8 = 1;
const DISCARD: u8 = 2;
const PURGE_START: u8 = 3;
const RENEWED: u8 = 4;
const PURGE_FINISH: u8 = 5;

/// A group: its kind, and its encoded entries.
struct ForgedGroup {
    kind: u8,
    entries: Vec<Vec<u8>>,
}

impl ForgedGroup {
    fn forged(said: &[u8; GROUP], at: &LogPosition) -> ForgedGroup {
        let count = 1 + usize::from(said[2]) % 4;
        let entry = |number: usize| LeReader(&said[4 + number * ENTRY_LEN..4 + (number + 1) * ENTRY_LEN]);
        let epoch = (u64::from(said[5]) << (said[6] % 40)).to_le_bytes();
        let (kind, entries): (u8, Vec<_>) = match said[0] % 8 {
            0..3 => (NODES, (0..count).map(|number| node(entry(number), said[3], at.sequence)).collect()),
            3 | 4 => (DISCARD, (0..count).map(|number| discarded(entry(number))).collect()),
            5 => (PURGE_START, vec![short_entry(&epoch)]),
            6 => (RENEWED, (0..count).map(|number| short_entry(&entry(number).0[..1])).collect()),
            _ => (PURGE_FINISH, vec![short_entry(&epoch)]),
        };
        ForgedGroup { kind, entries }
    }

    /// Number of nodes after the header.
    fn nodes(&self) -> usize {
        if self.kind == NODES { self.entries.len() } else { 0 }
    }

    /// The encrypted part of the header.
    fn encode(&self, next: u32, sequence: u64, checksum: u32) -> Vec<u8> {
        let mut plain = vec![0; FRONT];
        LeWriter(&mut plain)
            .put(0, &[1, self.kind])
            .u16(2, self.entries.len() as u16)
            .u32(4, next)
            .u64(8, sequence)
            .u32(16, checksum);
        plain.extend(self.entries.concat());
        plain.resize(PAGE - SEALED, 0);
        plain
    }
}

/// An entry for a block or for a page of the index.
fn node(said: LeReader<'_>, shift: u8, sequence: u64) -> Vec<u8> {
    let word = u32::from(said.u16(0));
    let target = if word >> 14 == 3 { 1 << 31 | word & 0x3ff } else { word << (shift % 12) };
    let replaced = if said.0[2] % 2 == 1 { forged_place(said) } else { 0 };
    let mut out = vec![0; 40];
    LeWriter(&mut out)
        .u32(0, target)
        .u32(4, u32::from(shift) + word % 300)
        .u64(8, sequence << 6)
        .u64(16, replaced)
        .put(24, &[1; 16]);
    out
}

/// An entry for a block that became a hole.
fn discarded(said: LeReader<'_>) -> Vec<u8> {
    let mut out = short_entry(&said.0[..2]);
    LeWriter(&mut out).u64(8, forged_place(said));
    out
}

/// An entry of 16 bytes with these first bytes, padded with zeros.
fn short_entry(start: &[u8]) -> Vec<u8> {
    let mut out = start.to_vec();
    out.resize(16, 0);
    out
}

/// The place of a node. Most of its numbers are small, so that they exist on this disk.
fn forged_place(said: LeReader<'_>) -> u64 {
    let word = said.u32(3);
    let small = |word: u32| if word >> 14 == 0 { word } else { word % 64 };
    let group = if word >> 31 == 1 { word % ((1 << 30) - 1) } else { word % 700 };
    (u64::from(group) + 1) << 34 | u64::from((word >> 8) as u8 % 64) << 28 | u64::from(small(word >> 16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::Kind;
    use lacuna_sim::Rng;

    #[test]
    fn a_forged_checkpoint_is_refused_or_read() {
        let mut random = Rng::new(2);
        for round in 0..200 {
            let mut input = vec![(random.below(4) * (round % 2)) as u8];
            let changes = 3 * usize::from(input[0]);
            let groups = 1 + random.below(6) as usize;
            input.extend(random.bytes(changes + GROUP * groups));
            use_forged(&input);
        }
    }

    /// A sensible forged group opens and is read.
    #[test]
    fn a_consistent_forgery_opens() {
        let flash = Arc::new(RamFlash::new(GEOMETRY, IMAGES[2].clone()));
        // Two nodes: block 1 with key 1, and block 2 with key 2.
        let mut group = [0; GROUP];
        (group[2], group[4], group[11]) = (1, 1, 2);
        forge(&flash, &[&[0][..], &group].concat()).unwrap();
        let disk = open(flash, 3).unwrap();
        let mut block = vec![0; BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut block).unwrap();
        assert_eq!(disk.read(BlockAddr(1), &mut block).unwrap_err().kind(), Kind::Corrupt, "it was made up");
        assert!(disk.status().items.iter().any(|item| item.name == "groups_replayed" && item.value == 1));
    }
}
