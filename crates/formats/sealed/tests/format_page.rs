//! `docs/format/sealed.md` and the medium agree: everything on newly written disks is found by
//! parsing the tables of the page.

mod fixture;

use fixture::*;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, SEGMENT_BLOCKS, Secret};
use lacuna_crypto::{Cipher, GcmKey, derive, keyed_hash};
use lacuna_medium::MemoryMedium;
use lacuna_sealed::Params;
use lacuna_testkit::format_page::{Fields, FormatPage, Rows, SealedBlock};
use std::collections::HashMap;
use std::sync::Arc;

fn page() -> FormatPage {
    FormatPage::read("sealed")
}

fn fields_of(heading: &str, len: usize) -> Fields {
    page().fields(heading).assert_len(len)
}

fn rows(heading: &str) -> Rows {
    page().rows(heading)
}

fn constant(name: &str) -> u64 {
    page().constant(name)
}

fn master() -> Secret<32> {
    Secret::copy_from(&MASTER)
}

/// The geometry by the page's formulas: map, its end, the first group, the length of the metadata
/// at the start of a group.
fn places(p: &Params) -> [u64; 4] {
    let m = p.cipher.meta_size() as u64;
    let map = constant("header area") + p.journal_len;
    let map_end = map + (16 * u64::from(p.map_capacity)).next_multiple_of(constant("block"));
    let group_meta = (constant("group") * 1024 * m).next_multiple_of(constant("home alignment"));
    [map, map_end, map_end.next_multiple_of(constant("data alignment")), group_meta]
}

/// The offsets of ciphertext and metadata of a slot, by the page's formulas.
fn slot_places(p: &Params, slot: u64) -> (u64, u64) {
    let [_, _, groups, group_meta] = places(p);
    let size = constant("group");
    let group = groups + slot / size * (group_meta + size * 1024 * 4096);
    let (n, m) = (slot % size, p.cipher.meta_size() as u64);
    (group + group_meta + n * 1024 * 4096, group + n * 1024 * m)
}

#[test]
fn constants_parameters_and_regions_match_the_page() {
    assert_eq!(constant("block"), BLOCK_SIZE as u64);
    assert_eq!(constant("segment blocks"), SEGMENT_BLOCKS);
    let fields = fields_of("Parameters", 40);
    for (c, cipher) in (0..).zip(Cipher::ALL) {
        assert!(rows("Parameters")[1][3].contains(&format!("{c} = {}", cipher.name())));
        assert!(
            rows("Ciphers").iter().any(|r| r[0] == cipher.name() && r[1] == cipher.meta_size().to_string())
        );
        for (blocks, room) in
            [(100, Some(1 << 40)), (70_000, Some(1 << 40)), (70_000, None), (9_999_999, None)]
        {
            let p = Params::plan(cipher, blocks, room).unwrap();
            let bytes = p.encode();
            let number = |name| fields.number(&bytes, name);
            assert_eq!((number("version"), number("cipher")), (1, c));
            assert_eq!(number("spare"), u64::from(p.spare));
            assert_eq!((number("blocks"), number("ring length")), (blocks, p.journal_len));
            assert_eq!(number("map capacity"), u64::from(p.map_capacity));
            fields.assert_zeros(&bytes);
            let g = p.geometry();
            assert_eq!([g.map, g.map_end, g.data, g.group_meta], places(&p));
            assert_eq!(
                (g.journal, u64::from(g.slots)),
                (1 << 20, blocks.div_ceil(1024) + u64::from(p.spare))
            );
            let slots = u64::from(g.slots);
            let groups = slots.div_ceil(constant("group"));
            assert_eq!(g.end(), g.data + groups * g.group_meta + slots * 1024 * 4096);
            for slot in [0, 7, 8, slots - 1] {
                assert_eq!((g.data_of(slot as u32), g.meta_of(slot as u32)), slot_places(&p, slot));
            }
        }
    }
}

#[test]
fn the_page_has_the_cost_of_a_tebibyte() {
    let costs: HashMap<String, u64> =
        rows("What it costs").into_iter().map(|row| (row[0].clone(), row[1].parse().unwrap())).collect();
    let tebi = (1u64 << 40) / 4096;
    let region = |cipher| {
        let g = Params::plan(cipher, tebi, Some(u64::MAX)).unwrap().geometry();
        (g.map_end - g.map, u64::from(g.segments) / constant("group") * g.group_meta)
    };
    assert_eq!(costs["map in memory"], 4 * tebi / 1024);
    assert_eq!(region(Cipher::Xts), (costs["map on the medium, with room for 16 times as much"], 0));
    for cipher in Cipher::ALL.into_iter().filter(|cipher| cipher.meta_size() > 0) {
        let metadata = costs[&format!("metadata of {} in a file", cipher.name())];
        assert_eq!(metadata, tebi * cipher.meta_size() as u64);
        let with_gaps = costs["metadata of xts-random or gcm on a block device, with the gaps after it"];
        assert_eq!(with_gaps, region(cipher).1);
    }
}

/// The length of a device in words such as `1.5 GiB`.
fn device_len(words: &str) -> u64 {
    let (number, unit) = words.split_once(' ').unwrap();
    let unit = match unit {
        "GiB" => 1u64 << 30,
        "TiB" => 1 << 40,
        other => panic!("a device in {other}"),
    };
    (number.parse::<f64>().unwrap() * unit as f64) as u64
}

#[test]
fn the_page_has_the_share_of_a_block_device_that_a_disk_gets() {
    let devices = rows("Block devices");
    assert!(devices.len() >= 9);
    for row in devices {
        let device = device_len(&row[0]);
        let room = lacuna_header::copy_c(device).unwrap();
        let disk = Params::largest(Cipher::Gcm, room).unwrap().blocks * BLOCK_SIZE as u64;
        assert_eq!(row[1], disk.to_string(), "{}", row[0]);
        let rest = device - disk;
        assert!(rest * 100 <= device * 6, "{}", row[0]);
        // In hundredths of a percent, rounded up.
        let share = (rest * 10_000).div_ceil(device);
        assert_eq!(row[2], format!("{}.{:02} %", share / 100, share % 100), "{}", row[0]);
    }
}

/// A batch parsed by the page: its bytes and its entries.
struct PageBatch {
    bytes: Vec<u8>,
    entries: Vec<Vec<u8>>,
    head: Fields,
}

impl PageBatch {
    /// The batch at an offset of the journal's batches; asserts every field of the head that the
    /// page describes.
    fn at(snapshot: &[u8], position: u64, number: u64) -> PageBatch {
        let head = fields_of("Batch head", 64);
        let start = (constant("header area") + constant("ring batches") + position) as usize;
        let bytes = &snapshot[start..];
        assert_eq!(head.get(bytes, "magic"), b"LACRING1");
        assert_eq!(head.number(bytes, "number"), number);
        let (count, area) =
            (head.number(bytes, "entries") as usize, head.number(bytes, "entry area") as usize);
        let bytes = bytes[..head.number(bytes, "total") as usize].to_vec();
        assert_eq!(area, (64 + 48 * count).next_multiple_of(4096));
        assert!(bytes[64 + 48 * count..area].iter().all(|b| *b == 0));
        assert_eq!(head.number(&bytes, "zero"), 0);

        let salt: &[u8; 16] = head.get(&bytes, "salt").try_into().unwrap();
        let key = GcmKey::new(&derive(&master(), "sealed ring", salt)).unwrap();
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        let mut untagged = bytes.clone();
        untagged[head["tag"].clone()].fill(0);
        assert_eq!(key.seal(&nonce, &untagged, &[], &mut []), *head.get(&bytes, "tag"));

        let entries: Vec<Vec<u8>> = bytes[64..64 + 48 * count].chunks(48).map(<[u8]>::to_vec).collect();
        let writes = entries.iter().filter(|e| e[0] == 1).count();
        assert_eq!(bytes.len(), area + 4096 * writes);
        PageBatch { bytes, entries, head }
    }

    fn data(&self, write: usize) -> &[u8] {
        let at = self.head.number(&self.bytes, "entry area") as usize + 4096 * write;
        &self.bytes[at..at + 4096]
    }
}

/// Decrypts as the page describes.
fn decrypt(cipher: Cipher, block: u64, data: &[u8], meta: &[u8]) -> Vec<u8> {
    if cipher == Cipher::Gcm {
        assert_eq!(fields_of("Metadata of gcm", 32).number(meta, "reserved"), 1);
    }
    SealedBlock { block, data, meta, bound: &[] }.decrypt(&page(), cipher, &master(), &UUID)
}

/// The retired record at a place, verified.
fn retired(snapshot: &[u8], place: u64) -> (u64, u64, u64) {
    let fields = fields_of("Retired record", 64);
    let bytes = &snapshot[(constant("header area") + place * constant("retired place")) as usize..];
    assert_eq!(fields.get(bytes, "magic"), b"LACRETD1");
    let key = derive(&master(), "sealed ring retired", &[]);
    assert_eq!(fields.get(bytes, "tag"), keyed_hash(&key, &[&bytes[..32]]));
    (fields.number(bytes, "count"), fields.number(bytes, "next"), fields.number(bytes, "position"))
}

/// The number of the slot of a segment, verified.
fn mapped(snapshot: &[u8], p: &Params, segment: u64) -> Option<u64> {
    let fields = fields_of("Map entry", 16);
    let bytes = &snapshot[(places(p)[0] + 16 * segment) as usize..][..16];
    if bytes == [0; 16] {
        return None;
    }
    let key = derive(&master(), "sealed map", &UUID);
    let tag = keyed_hash(&key, &[&segment.to_le_bytes(), fields.get(bytes, "home")]);
    assert_eq!(fields.get(bytes, "tag"), &tag[..8]);
    Some(fields.number(bytes, "home") - 1)
}

/// Ciphertext and metadata of a block in its slot.
fn in_slot<'a>(snapshot: &'a [u8], p: &Params, block: u64) -> (&'a [u8], &'a [u8]) {
    let (data, meta) = slot_places(p, mapped(snapshot, p, block / 1024).unwrap());
    let (x, m) = ((block % 1024) as usize, p.cipher.meta_size());
    (&snapshot[data as usize + 4096 * x..][..4096], &snapshot[meta as usize + m * x..][..m])
}

/// A disk with all kinds of entries in its journal: the snapshots after its flushes and after its
/// close.
fn history(p: &Params) -> (Vec<u8>, Vec<u8>) {
    let medium: Arc<MemoryMedium> = new_disk(p);
    let disk = open(&medium, p, 1);
    write(&disk, 3, 2, 1).unwrap();
    disk.flush().unwrap();
    // Batch 2 has a hole, block 900 and the last block; batch 3 moves segment 1 to the slot of the
    // stream.
    write(&disk, 1024, 4, 2).unwrap();
    write(&disk, 900, 1, 3).unwrap();
    write(&disk, p.blocks - 1, 1, 4).unwrap();
    disk.discard(BlockAddr(4), 1).unwrap();
    disk.flush().unwrap();
    let flushed = medium.snapshot();
    disk.close().unwrap();
    (flushed, medium.snapshot())
}

#[test]
fn disks_match_the_page() {
    for cipher in Cipher::ALL {
        let p = params(cipher, 3 * SEGMENT_BLOCKS + 7);
        let (flushed, closed) = history(&p);
        check_journal(&p, &flushed);
        check_slots(&p, &closed);
    }
}

fn check_journal(p: &Params, snapshot: &[u8]) {
    assert_eq!(retired(snapshot, 0), (1, 1, 0));
    assert!((0..4).all(|segment| mapped(snapshot, p, segment).is_none()));
    let fields = fields_of("Entry", 48);
    let m = p.cipher.meta_size();
    let first = PageBatch::at(snapshot, 0, 1);
    let second = PageBatch::at(snapshot, first.bytes.len() as u64, 2);
    let third = PageBatch::at(snapshot, (first.bytes.len() + second.bytes.len()) as u64, 3);
    let check_write = |batch: &PageBatch, entry: usize, write: usize, block: u64, stamp: u64| {
        let e = &batch.entries[entry];
        assert_eq!((fields.number(e, "kind"), fields.number(e, "count")), (1, 0));
        assert_eq!((fields.number(e, "address"), fields.number(e, "zero")), (block, 0));
        let meta = fields.get(e, "metadata");
        assert!(meta[m..].iter().all(|b| *b == 0));
        assert!(decrypt(p.cipher, block, batch.data(write), &meta[..m]) == content(block, stamp));
    };
    assert_eq!((first.entries.len(), second.entries.len(), third.entries.len()), (2, 3, 1));
    check_write(&first, 0, 0, 3, 1);
    check_write(&first, 1, 1, 4, 1);
    check_write(&second, 1, 0, 900, 3);
    check_write(&second, 2, 1, p.blocks - 1, 4);

    let erase = &second.entries[0];
    assert_eq!((fields.number(erase, "kind"), fields.number(erase, "count")), (2, 1));
    assert_eq!(fields.number(erase, "address"), 4);
    assert!(fields.get(erase, "metadata").iter().all(|b| *b == 0));

    let moved = &third.entries[0];
    assert_eq!((fields.number(moved, "kind"), fields.number(moved, "count")), (3, 0));
    assert_eq!(fields.number(moved, "address"), 1);
    let to = fields.get(moved, "metadata");
    // The stream took the first free slot.
    assert_eq!((to[0], &to[1..]), (1, &[0; 31][..]));
}

fn check_slots(p: &Params, snapshot: &[u8]) {
    let (count, next, position) = retired(snapshot, 1);
    assert_eq!((count, next), (2, 4));
    // Three entry areas of one block each, and two, two and no data blocks.
    assert_eq!(position, (3 + 3 + 1) * 4096);
    assert_eq!(retired(snapshot, 0).0, 1);
    assert_eq!([0, 1, 2, 3].map(|s| mapped(snapshot, p, s)), [Some(1), Some(0), None, Some(2)]);
    for (block, stamp) in [(3, 1), (900, 3), (1024, 2), (1027, 2), (p.blocks - 1, 4)] {
        let (data, meta) = in_slot(snapshot, p, block);
        assert!(decrypt(p.cipher, block, data, meta) == content(block, stamp), "{p:?}, block {block}");
    }
    for unwritten in [0, 4, 5, 1028, 2047, 3 * 1024] {
        let (data, meta) = in_slot(snapshot, p, unwritten);
        let tells = if meta.is_empty() { data } else { meta };
        assert!(tells.iter().all(|b| *b == 0), "{p:?}, block {unwritten}");
    }
}
