//! Reading what was damaged, or what somebody with the keys made up: for fuzzing.

use crate::disk::{FlashDisk, OpenOptions, Opened};
use crate::group::{Content, Discarded, Header, NodeEntry};
use crate::log::{Log, Position};
use crate::numbers::{KeyPosition, Place, Target, Unit};
use crate::params::Params;
use crate::ram_flash::{Contents, Lies, RamFlash};
use crate::state_map::KeyStateMap;
use lacuna_core::{BLOCK_SIZE, BlockAddr, Budget, Disk, Kind, ManualClock, Record, Result, Secret};
use lacuna_crypto::{HedgedNonce, RandomSource, SeededRandom, XaesKey, derive};
use lacuna_nand::{Flash, FlashGeometry, Leb};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

const GEOMETRY: FlashGeometry = FlashGeometry { page: 2048, leb_len: 28 * 1024, lebs: 48 };
/// Blocks of the disk that are used.
const BLOCKS: u64 = 24;
/// Bytes of input for lies of a flash, at most.
const LIES: usize = 32;
/// Bytes of input for one change of a flash.
const CHANGE: usize = 8;
/// Bytes of input for one group.
const GROUP: usize = 32;

/// Parses the input as what is encrypted of the header of a group: what parses is written as it was read.
pub fn fuzz_group(input: &[u8]) {
    for unit in [512, 2048, 4096] {
        let mut plain = input.to_vec();
        plain.resize(unit - 40, 0);
        if let Some(header) = Header::parse(&plain) {
            assert_eq!(header.encode(unit as u32), plain);
        }
    }
    let _cut_short = Header::parse(input);
}

/// Parses the input as a key state map of so many blocks and keys as its first two bytes say: what parses has the same states
/// when it was written again.
pub fn fuzz_state_map(input: &[u8]) {
    let [blocks, keys, packed @ ..] = input else { return };
    let (blocks, keys) = (u32::from(*blocks) % 8, u32::from(*keys) + 1);
    let mut map = KeyStateMap::new(blocks, keys);
    let Some(len) = map.unpack(packed) else { return };
    assert!(len <= packed.len());
    let mut again = vec![];
    map.pack(&mut again);
    let mut other = KeyStateMap::new(blocks, keys);
    assert_eq!(other.unpack(&again), Some(again.len()));
    assert!((0..blocks * keys).map(KeyPosition).all(|key| map.get(key) == other.get(key)));
    assert_eq!(map.all(), other.all());
}

/// Writes a checkpoint to a small disk, and groups behind it, as somebody with the keys may have made them up; then reads, writes
/// and purges what opens.
pub fn fuzz_checkpoint(input: &[u8]) {
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

/// Damages a small disk as the input says: bits flipped, bytes set, pages and whole erase blocks as they were before or as they are
/// elsewhere. What opens reads as zeros or as what was written there once; it takes writes, purges, and opens again. With a bit of
/// the first byte, some reads are answered with what lay there before, and then what is written may be lost.
pub fn fuzz_open(input: &[u8]) {
    let (selector, changes) = input.split_first().unwrap_or((&0, &[]));
    let (lies, changes) = changes.split_at(if selector & 32 == 0 { 0 } else { changes.len().min(LIES) });
    let image = 1 + usize::from(*selector) % (IMAGES.len() - 1);
    let mut contents = IMAGES[image].clone();
    changes.chunks(CHANGE).take(16).for_each(|change| damage(&mut contents, image, change));
    let flash = Arc::new(RamFlash::new(GEOMETRY, contents));
    flash.lie(told(lies));
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
    flash.lie(Lies::new());
    let Ok(disk) = open(flash, 4) else {
        assert!(!written || !lies.is_empty(), "a disk that took a flush opens no more");
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

/// The reads that lie as these bytes say: by pairs, how many reads are true before each, and of which image it tells.
fn told(bytes: &[u8]) -> Lies {
    let mut number = 0;
    let mut lie = |pair: &[u8; 2]| {
        number += 1 + u64::from(pair[0]);
        (number, &IMAGES[usize::from(pair[1]) % IMAGES.len()])
    };
    bytes.as_chunks::<2>().0.iter().map(&mut lie).collect()
}

/// What is written to a damaged disk.
const LATER: u8 = 99;

/// The disk after each step of its life: made; written; overwritten, discarded and purged, then deleted from without a purge; closed.
static IMAGES: LazyLock<Vec<Contents>> = LazyLock::new(|| {
    let flash = Arc::new(RamFlash::new(GEOMETRY, Contents::new()));
    make(&flash).expect("flash without faults");
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
    // Few of those between are of use.
    vec![images[0].clone(), images[1].clone(), images[11].clone(), images[12].clone(), images[13].clone()]
});

fn params() -> Params {
    Params::fitting(GEOMETRY, 32, 100).expect("it fits")
}

fn master() -> Secret<32> {
    Secret::copy_from(&[5; 32])
}

fn make(flash: &Arc<RamFlash>) -> Result<()> {
    let flash: Arc<dyn Flash> = flash.clone();
    let random: Arc<dyn RandomSource> = Arc::new(SeededRandom::new(1));
    FlashDisk::create(&flash, &params(), &master(), &random)
}

fn open(flash: Arc<RamFlash>, seed: u64) -> Result<FlashDisk> {
    let options = OpenOptions {
        budget: Budget::bytes(1 << 18),
        read_only: false,
        policy: None,
        clock: Arc::new(ManualClock::default()),
        random: Arc::new(SeededRandom::new(seed)),
    };
    FlashDisk::open(flash, &params(), &master(), &options)
}

fn content(block: u64, version: u8) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK_SIZE];
    }
    [version, block as u8, 1, 7].repeat(BLOCK_SIZE / 4)
}

/// The version of each block that reads.
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

/// One change:
///
/// ```text
///   0  what: flip a bit, set bytes, an erase block of the past, a page of the past, a page of another block, unmap
///   1  erase block, of those that are mapped
///   2  offset, two bytes, in 16 bytes or 1
///   4  which past, or which other block
///   5  mask, value
///   6  length
/// ```
fn damage(contents: &mut Contents, image: usize, change: &[u8]) {
    let mut said = [0; CHANGE];
    said[..change.len()].copy_from_slice(change);
    let Some(leb) = contents.keys().nth(usize::from(said[1]) % contents.len().max(1)).copied() else {
        return;
    };
    let past = &IMAGES[usize::from(said[4]) % image];
    let page = GEOMETRY.page as usize;
    let held = contents.get_mut(&leb).expect("a block that is mapped");
    let offset = usize::from(u16::from_le_bytes([said[2], said[3]])) % held.len().max(1);
    let on_page = offset / page * page;
    match said[0] % 6 {
        0 if !held.is_empty() => held[offset] ^= 1 << (said[5] % 8),
        1 => held.iter_mut().skip(offset).take(usize::from(said[6])).for_each(|byte| *byte = said[5]),
        2 => match past.get(&leb) {
            Some(before) => held.clone_from(before),
            None => drop(contents.remove(&leb)),
        },
        3 | 4 => {
            let other = if said[0] % 6 == 3 {
                past.get(&leb)
            } else {
                past.values().nth(usize::from(said[5]) % past.len())
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

/// Makes up a checkpoint, from the first bytes of the input, and groups, of 32 bytes each:
///
/// ```text
///   0  how many changes of the content of the checkpoint follow, modulo 16: offset in two bytes, byte
///   .. flags: kind in 3 bits; bit 3: a wrong checksum; 4: a wrong next block; 5: another unit
///   2  count
///   4  four entries: target, key and replaced place from 6 bytes each
/// ```
fn forge(flash: &Arc<RamFlash>, input: &[u8]) -> Result<()> {
    let (count, rest) = input.split_first().unwrap_or((&0, &[]));
    let (changes, groups) = rest.split_at(rest.len().min(3 * usize::from(count % 16)));
    let medium: Arc<dyn Flash> = flash.clone();
    let random: Arc<dyn RandomSource> = Arc::new(SeededRandom::new(2));
    let Opened { log, checkpoints, .. } =
        Opened::new(&medium, &params(), &master(), &random, Budget::bytes(1 << 18))?;
    let marks = checkpoints.read()?.marks;
    checkpoints.forge(&marks, |content| {
        for change in changes.chunks_exact(3) {
            let offset = usize::from(u16::from_le_bytes([change[0], change[1]])) % content.len();
            content[offset] = change[2];
        }
    })?;
    // What was in the log after the checkpoint goes: the forged groups take its place.
    let (first, lebs) = params().layout()?.log;
    for leb in 0..lebs {
        let header = log.read_header(log.unit(leb, 0))?;
        if header.is_some_and(|header| header.sequence >= marks.position.sequence) {
            flash.unmap(Leb(first + leb))?;
        }
    }
    let (at, layout) = (marks.position, params().layout()?);
    let gone = vec![0xff; ((layout.units - at.unit.min(layout.units)) * layout.unit) as usize];
    flash.put(first + at.leb, at.unit * layout.unit, &gone);
    forge_groups(flash, &log, marks.position, groups)
}

fn forge_groups(flash: &RamFlash, log: &Log, mut at: Position, groups: &[u8]) -> Result<()> {
    let layout = params().layout()?;
    let key = XaesKey::new(&derive(&master(), "flash log", b""));
    let nonces = HedgedNonce::derive(&master(), "flash log nonce", b"");
    for piece in groups.chunks(GROUP).take(64) {
        let mut said = [0; GROUP];
        said[..piece.len()].copy_from_slice(piece);
        let header = forged_header(&said, &at);
        let nodes = vec![said[1]; header.nodes().len() * BLOCK_SIZE];
        let units = (1 + (nodes.len() / layout.unit as usize) as u32).next_multiple_of(layout.page_units());
        if at.leb >= layout.log.1 || at.unit + units > layout.units {
            (at.leb, at.unit, at.next) = (at.next, 0, (at.next + 1) % layout.log.1);
            if at.leb >= layout.log.1 {
                return Ok(());
            }
        }
        let checksum = crc32fast::hash(&nodes) ^ u32::from(said[0] >> 3 & 1);
        let next_leb = if said[0] >> 4 & 1 == 1 { u32::from(said[1]) } else { at.next };
        let header = Header { next_leb, checksum, ..header };
        let unit = Unit(log.unit(at.leb, at.unit).0 + u32::from(said[0] >> 5 & 1));
        let mut bytes = header.seal(layout.unit, unit, (&key, &nonces), &SeededRandom::new(at.sequence))?;
        bytes.extend(nodes);
        bytes.resize((units * layout.unit) as usize, 0xff);
        flash.put(layout.log.0 + at.leb, at.unit * layout.unit, &bytes);
        (at.unit, at.sequence) = (at.unit + units, at.sequence + 1);
    }
    Ok(())
}

fn forged_header(said: &[u8; GROUP], at: &Position) -> Header {
    let entry = |number: usize| Record(&said[4 + number * 7..4 + (number + 1) * 7]);
    let count = 1 + usize::from(said[2]) % 4;
    // Small numbers, mostly: they are of this disk.
    let small = |word: u32| if word >> 14 == 0 { word } else { word % 64 };
    let place = |number: usize| {
        let word = entry(number).u32(3);
        let unit = Unit(if word >> 31 == 1 { word % Unit::MOST } else { word % 700 });
        Place { group: unit, ordinal: (word >> 8) as u8 % 64, key: KeyPosition(small(word >> 16)) }
    };
    let node = |number: usize| {
        let word = u32::from(entry(number).u16(0));
        let target =
            if word >> 14 == 3 { Target::Index(word & 0x3ff) } else { Target::Block(word << (said[3] % 12)) };
        let replaced = (entry(number).0[2] % 2 == 1).then(|| place(number));
        NodeEntry {
            target,
            key: u32::from(said[3]) + word % 300,
            sequence: at.sequence << 6,
            tag: [1; 16],
            replaced,
        }
    };
    let epoch = u64::from(said[5]) << (said[6] % 40);
    let content = match said[0] % 8 {
        0..3 => Content::Nodes((0..count).map(node).collect()),
        3 | 4 => Content::Discard(
            (0..count)
                .map(|number| Discarded { block: u32::from(entry(number).u16(0)), place: place(number) })
                .collect(),
        ),
        5 => Content::PurgeStart(epoch),
        6 => Content::Renewed((0..count).map(|number| u32::from(entry(number).0[0])).collect()),
        _ => Content::PurgeFinish(epoch),
    };
    Header { sequence: at.sequence, next_leb: 0, checksum: 0, content }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % n
        }

        fn bytes(&mut self, len: usize) -> Vec<u8> {
            (0..len).map(|_| self.below(256) as u8).collect()
        }
    }

    #[test]
    fn damaged_disks_are_refused_or_read() {
        let mut random = Random(1);
        for round in 0..300 {
            let mut input = random.bytes(1 + CHANGE * (round % 4));
            // Near the start of a block are heads and headers.
            input[1..]
                .chunks_exact_mut(CHANGE)
                .for_each(|change| change[3] &= if round % 3 == 0 { 0 } else { 0xff });
            fuzz_open(&input);
        }
    }

    #[test]
    fn what_is_made_up_is_refused_or_read() {
        let mut random = Random(2);
        for round in 0..200 {
            let mut input = vec![(random.below(4) * (round % 2)) as u8];
            let changes = 3 * usize::from(input[0]);
            let groups = 1 + random.below(6) as usize;
            input.extend(random.bytes(changes + GROUP * groups));
            fuzz_checkpoint(&input);
            fuzz_group(&input);
            fuzz_state_map(&input);
        }
    }

    /// The forger is no fool: what it makes up opens if it makes sense.
    #[test]
    fn what_makes_sense_opens() {
        let flash = Arc::new(RamFlash::new(GEOMETRY, IMAGES[2].clone()));
        // Two nodes, of block 1 with key 1 and of block 2 with key 2.
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
