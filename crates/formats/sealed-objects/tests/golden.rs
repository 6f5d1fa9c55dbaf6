//! The frozen format on objects: whole disks, stored as files, that must open and read as on the
//! day they were made.

mod fixture;

use fixture::*;
use lacuna_contracts::{BlockAddr, Disk};
use lacuna_medium::{ObjectStep, ObjectStore, ObjectTransaction};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, ObjectParams, VERSION};
use lacuna_sim::MemoryObjects;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BLOCKS: u64 = 1024 + 300;
/// The written blocks and their stamps; all other blocks read as zeros.
const CONTENTS: [(u64, u64); 3] = [(0, 4), (1100, 2), (1101, 3)];
const MAGIC: &[u8; 8] = b"LACOBJS1";
const SECTOR: usize = 512;

/// The content of the stored disks: blocks that do not begin with their stamps.
fn kept_content(block: u64, stamp: u64) -> Vec<u8> {
    let mut out = content(block, stamp);
    if stamp != 0 {
        out[..8].copy_from_slice(&(stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ block).to_le_bytes());
    }
    out
}

fn write(disk: &ObjectDisk, first: u64, count: u64, stamp: u64) {
    let data: Vec<u8> = (first..first + count).flat_map(|block| kept_content(block, stamp)).collect();
    disk.write(BlockAddr(first), &data).unwrap();
}

/// Small writes to an object in an unknown state, to one known to be absent and to one with cached
/// metadata, and a discard.
fn make(params: ObjectParams) -> TestDisk {
    let test_disk = TestDisk::of(params);
    test_disk.session(|disk| {
        write(disk, 0, 2, 1);
        assert!(read(disk, 1100).unwrap() == content(1100, 0));
        write(disk, 1100, 2, 2);
        disk.flush().unwrap();
        // Enough blocks for the page to absorb its amendment.
        disk.discard(BlockAddr(1024), 40).unwrap();
        disk.flush().unwrap();
        write(disk, 1101, 1, 3);
        disk.flush().unwrap();
        disk.discard(BlockAddr(1), 1).unwrap();
    });
    test_disk.session(|disk| write(disk, 0, 1, 4));
    test_disk
}

/// Parameters of every kind of disk.
fn kinds() -> impl Iterator<Item = ObjectParams> {
    all_ciphers_and_layouts()
        .into_iter()
        .map(|(cipher, layout)| ObjectParams::plan(cipher, layout, BLOCKS).unwrap())
}

fn name(params: &ObjectParams) -> String {
    format!("objects-v{VERSION}-{}-{}.objects", params.cipher.name(), params.layout.name())
}

fn path(params: &ObjectParams) -> PathBuf {
    let name = name(params);
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Layout: parameters; then each store: the number of its objects, and each object: its number and
/// length, the sectors that are not zeros with their offsets, and its keys. Every number has 8
/// bytes; a count precedes the items that it counts.
fn to_bytes(test_disk: &TestDisk) -> Vec<u8> {
    let mut out = [&MAGIC[..], &test_disk.params.encode()].concat();
    let number = |out: &mut Vec<u8>, n: usize| out.extend_from_slice(&(n as u64).to_le_bytes());
    for store in [&test_disk.data, &test_disk.book] {
        let objects = store.list().unwrap();
        number(&mut out, objects.len());
        for name in objects {
            let object = store.object(name).unwrap();
            let bytes = object.bytes();
            number(&mut out, name as usize);
            number(&mut out, bytes.len());
            let sectors = bytes.chunks(SECTOR).enumerate().filter(|(_, s)| s.iter().any(|b| *b != 0));
            let sectors: Vec<_> = sectors.collect();
            number(&mut out, sectors.len());
            for (at, sector) in sectors {
                number(&mut out, at * SECTOR);
                number(&mut out, sector.len());
                out.extend_from_slice(sector);
            }
            number(&mut out, object.keys().len());
            for (key, value) in object.keys() {
                for part in [key, value] {
                    number(&mut out, part.len());
                    out.extend_from_slice(part);
                }
            }
        }
    }
    out
}

struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (now, rest) = self.0.split_at(len);
        self.0 = rest;
        now
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes(8).try_into().unwrap())
    }

    fn counted(&mut self) -> &'a [u8] {
        let len = self.number() as usize;
        self.bytes(len)
    }
}

fn from_bytes(bytes: &[u8]) -> TestDisk {
    let mut from = ByteReader(bytes);
    assert_eq!(from.bytes(8), MAGIC);
    let params = ObjectParams::parse(from.bytes(32)).unwrap();
    let has_keys = params.layout.needs_keys();
    let stores = [(); 2].map(|()| Arc::new(MemoryObjects::new(has_keys)));
    for store in &stores {
        for _ in 0..from.number() {
            let (object, len) = (from.number(), from.number());
            let mut steps = vec![ObjectStep::Truncate(len)];
            for _ in 0..from.number() {
                let (offset, data) = (from.number(), from.counted());
                steps.push(ObjectStep::Write { offset, data });
            }
            let keys: Vec<_> =
                (0..from.number()).map(|_| (from.counted().to_vec(), from.counted().to_vec())).collect();
            steps.extend((!keys.is_empty()).then_some(ObjectStep::SetKeys(keys)));
            store.apply_one(ObjectTransaction { object, steps }).unwrap();
        }
    }
    assert!(from.0.is_empty());
    let [data, book] = stores;
    TestDisk { params, data, book }
}

fn assert_contents(test_disk: &TestDisk, what: &str) {
    let disk = test_disk.open();
    for block in 0..BLOCKS {
        let stamp = CONTENTS.iter().find(|(b, _)| *b == block).map_or(0, |(_, stamp)| *stamp);
        assert!(read(&disk, block).unwrap() == kept_content(block, stamp), "{what}: block {block}");
    }
}

#[test]
fn every_golden_disk_opens_and_reads() {
    for params in kinds() {
        let what = name(&params);
        let bytes = std::fs::read(path(&params)).unwrap_or_else(|e| panic!("{what}: {e}"));
        let test_disk = from_bytes(&bytes);
        assert_eq!(test_disk.params, params);
        assert_contents(&test_disk, &what);
        test_disk.write(7, 1, 9);
        assert!(read(&test_disk.open(), 7).unwrap() == content(7, 9), "{what}");
    }
}

/// The present code writes disks with the contents of the golden files.
#[test]
fn a_disk_made_today_reads_like_the_golden_one() {
    for params in kinds() {
        let made = make(params);
        let bytes = to_bytes(&made);
        assert_contents(&from_bytes(&bytes), "made today");
        if params.layout == ObjectLayout::Adaptive {
            let keys = |object| made.data.object(object).unwrap().keys().clone();
            let [first, second] = [keys(0), keys(1)];
            assert!(first.contains_key(b"p\0d\0".as_slice()) && second.contains_key(b"p\0".as_slice()));
            let newer = if params.binds_entries() { &b"p\0d\0"[..] } else { b"p\0a" };
            assert!(second.contains_key(newer));
        }
    }
}

/// Creates missing golden files. Existing files are not changed.
#[test]
#[ignore = "writes golden files; only for a new version"]
fn write_the_golden_disks() {
    use std::io::Write;
    for params in kinds().filter(|params| !path(params).exists()) {
        let mut file = std::fs::File::create_new(path(&params)).unwrap();
        file.write_all(&to_bytes(&make(params))).unwrap();
    }
}
