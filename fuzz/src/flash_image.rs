//! A small disk on flash at several moments, and damage to it: bits flipped, bytes set, pages and
//! erase blocks replaced by earlier or other ones.

use crate::ram_flash::{FlashContents, FlashLies, RamFlash};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Kind, ManualClock, Result, Secret};
use lacuna_crypto::{RandomSource, SeededRandom};
use lacuna_flash::{FlashDisk, OpenOptions, Params};
use lacuna_nand::{Flash, FlashGeometry};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// The geometry of the flash.
pub const GEOMETRY: FlashGeometry = FlashGeometry { page: 2048, leb_len: 28 * 1024, lebs: 48 };
/// Blocks of the disk that are written.
const BLOCKS: u64 = 24;
/// Maximum bytes of input for lies of the flash.
const LIES: usize = 32;
/// Bytes of input per change of the flash.
const CHANGE: usize = 8;
/// The version written to a damaged disk.
const LATER: u8 = 99;

/// Damages a small disk by the input and opens it. Checks that a disk that opens reads as zeros or
/// as data that was once written there, and that it accepts writes and purges and opens again. With
/// bit 5 of the first byte, some reads return earlier contents; then new writes may be lost.
///
/// # Panics
///
/// If a check fails.
pub fn use_damaged(input: &[u8]) {
    let (selector, changes) = input.split_first().unwrap_or((&0, &[]));
    let (lies, changes) = changes.split_at(if selector & 32 == 0 { 0 } else { changes.len().min(LIES) });
    let image = 1 + usize::from(*selector) % (IMAGES.len() - 1);
    let mut contents = IMAGES[image].clone();
    changes.chunks(CHANGE).take(16).for_each(|change| damage(&mut contents, image, change));
    let flash = Arc::new(RamFlash::new(GEOMETRY, contents));
    flash.set_lies(decode_lies(lies));
    let Ok(disk) = open(flash.clone(), 3) else { return };
    let read = read_all(&disk);
    let written = disk.write(BlockAddr(3), &content(3, LATER)).is_ok() && disk.flush().is_ok();
    let discarded = disk.discard(BlockAddr(4), 2).is_ok();
    if selector & 64 == 0 {
        let _damaged = disk.purge();
    }
    if selector & 128 == 0 {
        let _damaged = disk.close();
    }
    drop(disk);
    flash.set_lies(FlashLies::new());
    let Ok(disk) = open(flash, 4) else {
        assert!(!written || !lies.is_empty(), "a disk does not open again after a successful flush");
        return;
    };
    let after = read_all(&disk);
    if !lies.is_empty() {
        return;
    }
    let mut expected = read;
    if written {
        expected.insert(3, LATER);
    }
    if discarded {
        expected.extend([(4, 0), (5, 0)]);
    }
    for (block, version) in expected.iter().filter(|_| written) {
        let found = after.get(block);
        assert!(found == Some(version), "block {block}: {found:?} instead of version {version}");
    }
}

/// The lying reads that these bytes encode: in pairs, the number of truthful reads before each, and
/// the image that it returns.
fn decode_lies(bytes: &[u8]) -> FlashLies {
    let mut number = 0;
    let mut lie = |pair: &[u8; 2]| {
        number += 1 + u64::from(pair[0]);
        (number, &IMAGES[usize::from(pair[1]) % IMAGES.len()])
    };
    bytes.as_chunks::<2>().0.iter().map(&mut lie).collect()
}

/// The disk at several moments: created; written; overwritten; purged, partly discarded and written
/// again; closed.
pub static IMAGES: LazyLock<Vec<FlashContents>> = LazyLock::new(|| {
    let flash = Arc::new(RamFlash::new(GEOMETRY, FlashContents::new()));
    create_disk(&flash).expect("flash without faults");
    let mut images = vec![flash.contents()];
    let disk = open(flash.clone(), 1).expect("a disk");
    let mut step = |disk: &FlashDisk, version: u8, blocks: std::ops::Range<u64>| {
        for block in blocks {
            disk.write(BlockAddr(block), &content(block, version)).expect("room");
        }
        disk.flush().expect("flash without faults");
        images.push(flash.contents());
    };
    step(&disk, 1, 0..BLOCKS);
    (2..12).for_each(|version| step(&disk, version, u64::from(version)..BLOCKS));
    disk.purge().expect("flash without faults");
    disk.discard(BlockAddr(6), 3).expect("flash without faults");
    step(&disk, 12, 10..13);
    disk.close().expect("flash without faults");
    drop(disk);
    images.push(flash.contents());
    // Leave out the intermediate overwrites.
    vec![images[0].clone(), images[1].clone(), images[11].clone(), images[12].clone(), images[13].clone()]
});

/// The parameters of the disk.
pub fn params() -> Params {
    Params::fitting(GEOMETRY, 32, 100).expect("it fits")
}

/// The key of the disk.
pub fn master() -> Secret<32> {
    Secret::copy_from(&[5; 32])
}

fn create_disk(flash: &Arc<RamFlash>) -> Result<()> {
    let flash: Arc<dyn Flash> = flash.clone();
    let random: Arc<dyn RandomSource> = Arc::new(SeededRandom::new(1));
    FlashDisk::create(&flash, &params(), &master(), &random)
}

/// Opens the disk for writing.
pub fn open(flash: Arc<RamFlash>, seed: u64) -> Result<FlashDisk> {
    let options = OpenOptions {
        budget: Budget::bytes(1 << 18),
        read_only: false,
        policy: None,
        clock: Arc::new(ManualClock::default()),
        random: Arc::new(SeededRandom::new(seed)),
        kept: None,
    };
    FlashDisk::open(flash, &params(), &master(), &options)
}

/// The content of a block in a version.
pub fn content(block: u64, version: u8) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK_SIZE];
    }
    [version, block as u8, 1, 7].repeat(BLOCK_SIZE / 4)
}

/// The version of each readable block.
fn read_all(disk: &FlashDisk) -> BTreeMap<u64, u8> {
    let mut versions = BTreeMap::new();
    for block in 0..disk.blocks() {
        let mut found = vec![0; BLOCK_SIZE];
        match disk.read(BlockAddr(block), &mut found) {
            Ok(()) => {
                assert!(found == content(block, found[0]), "block {block} reads as something else");
                versions.insert(block, found[0]);
            }
            Err(e) => assert_eq!(e.kind(), Kind::Corrupt, "{e}"),
        }
    }
    versions
}

/// Applies one change:
///
/// ```text
///   0  kind: flip a bit, set bytes, an earlier erase block, an earlier page, a page of another
///      erase block, unmap
///   1  erase block, among the mapped ones
///   2  offset, two bytes
///   4  the earlier image
///   5  bit, value, or the other erase block
///   6  length
/// ```
fn damage(contents: &mut FlashContents, image: usize, change: &[u8]) {
    let mut change_bytes = [0; CHANGE];
    change_bytes[..change.len()].copy_from_slice(change);
    let Some(leb) = contents.keys().nth(usize::from(change_bytes[1]) % contents.len().max(1)).copied() else {
        return;
    };
    let past = &IMAGES[usize::from(change_bytes[4]) % image];
    let page = GEOMETRY.page as usize;
    let held = contents.get_mut(&leb).expect("a block that is mapped");
    let offset = usize::from(u16::from_le_bytes([change_bytes[2], change_bytes[3]])) % held.len().max(1);
    let on_page = offset / page * page;
    match change_bytes[0] % 6 {
        0 if !held.is_empty() => held[offset] ^= 1 << (change_bytes[5] % 8),
        1 => held
            .iter_mut()
            .skip(offset)
            .take(usize::from(change_bytes[6]))
            .for_each(|byte| *byte = change_bytes[5]),
        2 => match past.get(&leb) {
            Some(before) => held.clone_from(before),
            None => drop(contents.remove(&leb)),
        },
        3 | 4 => {
            let other = if change_bytes[0] % 6 == 3 {
                past.get(&leb)
            } else {
                past.values().nth(usize::from(change_bytes[5]) % past.len())
            };
            let from = other.and_then(|other| other.get(on_page..on_page + page));
            if let (Some(from), Some(to)) = (from, held.get_mut(on_page..on_page + page)) {
                to.copy_from_slice(from);
            }
        }
        5 => drop(contents.remove(&leb)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sim::Rng;

    #[test]
    fn damaged_disks_are_refused_or_read() {
        let mut random = Rng::new(1);
        for round in 0..300 {
            let mut input = random.bytes(1 + CHANGE * (round % 4));
            // Heads and headers lie near the start of a block.
            input[1..]
                .chunks_exact_mut(CHANGE)
                .for_each(|change| change[3] &= if round % 3 == 0 { 0 } else { 0xff });
            use_damaged(&input);
        }
    }
}
