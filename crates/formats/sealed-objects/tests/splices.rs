//! What two snapshots of a disk reveal to a reader of the pool, and how old and new ciphertext can
//! be combined (Harnik et al., sections 1 and 2): which parts of a block changed, and whether old
//! and new can be spliced, also if only some queries return the splice.

mod fixture;

use fixture::*;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_crypto::Cipher;
use lacuna_medium::{KeySelection, ObjectStep, ObjectStore, Query, ReadExtent};
use lacuna_sealed_objects::{ObjectLayout, list_snapshots};
use lacuna_testkit::ciphertexts::{
    UNIT, assert_unrelated, equal_bytes, equal_units, spliced, with_one_bit_changed,
};
use std::ops::Range;

/// The block that is overwritten between the snapshots.
const BLOCK: u64 = 5;
/// The blocks around it.
const AROUND: Range<u64> = 0..12;

/// A disk with one block that had several versions, each with a snapshot, and the adversary's view
/// of the block at each.
struct VersionedDisk {
    test_disk: TestDisk,
    versions: Vec<Vec<u8>>,
    /// Ciphertext and metadata of the block at each snapshot.
    seen: Vec<(Vec<u8>, Vec<u8>)>,
}

fn versioned_disk(cipher: Cipher, layout: ObjectLayout, versions: &[Vec<u8>]) -> VersionedDisk {
    let test_disk = TestDisk::new(cipher, layout, 1024);
    test_disk.session(|disk| AROUND.for_each(|block| write(disk, block, 1, 1000 + block)));
    for (seed, version) in (10..).zip(versions) {
        let disk = test_disk.open_seeded(seed);
        disk.write(BlockAddr(BLOCK), version).unwrap();
        disk.create_snapshot(&format!("v{seed}")).unwrap();
        disk.close().unwrap();
    }
    let seen = list_snapshots(&*test_disk.book)
        .unwrap()
        .into_iter()
        .map(|s| view_of_block(&test_disk, s.data_id))
        .collect();
    VersionedDisk { test_disk, versions: versions.to_vec(), seen }
}

/// Ciphertext and metadata of the block, as the store returns them to any reader.
fn view_of_block(test_disk: &TestDisk, snapshot: u64) -> (Vec<u8>, Vec<u8>) {
    let (mut data, mut meta) = (vec![0; BLOCK_SIZE], vec![0; test_disk.meta() as usize]);
    let view = test_disk.data.at_snapshot(snapshot).unwrap();
    let keys = match (test_disk.meta(), test_disk.params.layout) {
        (1.., ObjectLayout::Kv) => vec![vec![0, BLOCK as u8]],
        (1.., ObjectLayout::Adaptive) if test_disk.params.binds_entries() => {
            (0..=255).map(|n| vec![b'p', 0, b'd', n]).collect()
        }
        (1.., ObjectLayout::Adaptive) => vec![b"p\0".to_vec(), vec![b'p', 0, b'd', BLOCK as u8]],
        _ => vec![],
    };
    let mut extents = vec![ReadExtent { offset: test_disk.data_at(BLOCK), buf: &mut data }];
    if let Some(offset) = meta_at(test_disk) {
        extents.push(ReadExtent { offset, buf: &mut meta });
    }
    let keys = KeySelection::These(keys);
    let keys = if view.has_keys() { keys } else { KeySelection::None };
    let found = view.query_one(Query { object: 0, extents, keys }).unwrap();
    if let Some((key, value)) = found.pairs.last() {
        let at = match key.as_slice() {
            b"p\0" => BLOCK as usize * test_disk.meta() as usize,
            // The newest delta has this block alone.
            _ if test_disk.params.binds_entries() => 17,
            _ => 0,
        };
        meta.copy_from_slice(&value[at..at + test_disk.meta() as usize]);
    }
    (data, meta)
}

/// The offset of the metadata, in the layouts that store it in the object's bytes.
fn meta_at(test_disk: &TestDisk) -> Option<u64> {
    match test_disk.params.layout {
        _ if test_disk.meta() == 0 => None,
        ObjectLayout::Interleaved => Some(test_disk.data_at(BLOCK) + 4096),
        ObjectLayout::SegmentEnd => Some(1024 * 4096 + BLOCK * test_disk.meta()),
        _ => None,
    }
}

impl VersionedDisk {
    /// Replaces ciphertext and metadata of the block, opens the disk and reads the block. All
    /// blocks around it must be readable.
    fn read_changed(&self, data: &[u8], meta: &[u8]) -> Result<Vec<u8>> {
        let test_disk = self.test_disk.copied();
        test_disk.poke(0, test_disk.data_at(BLOCK), data);
        match (meta_at(&test_disk), test_disk.params.layout) {
            (Some(offset), _) => test_disk.poke(0, offset, meta),
            (None, ObjectLayout::Kv) => {
                test_disk.change(0, vec![ObjectStep::SetKeys(vec![(vec![0, BLOCK as u8], meta.to_vec())])]);
            }
            (None, ObjectLayout::Adaptive) if test_disk.params.binds_entries() => {
                let object = test_disk.data.object(0).unwrap();
                let (key, at) = adaptive_place(&object, &test_disk.params, BLOCK as usize);
                let mut value = object.keys()[&key].clone();
                value[at..at + meta.len()].copy_from_slice(meta);
                test_disk.change(0, vec![ObjectStep::SetKeys(vec![(key, value)])]);
            }
            // An entry apart takes precedence over the page.
            (None, ObjectLayout::Adaptive) => {
                let key = vec![b'p', 0, b'd', BLOCK as u8];
                test_disk.change(0, vec![ObjectStep::SetKeys(vec![(key, meta.to_vec())])]);
            }
            (None, _) => {}
        }
        let disk = test_disk.open();
        for block in AROUND.filter(|b| *b != BLOCK) {
            match read(&disk, block) {
                Ok(data) => assert!(data == content(block, 1000 + block), "block {block}"),
                // If the seal binds metadata, entries that depend on altered metadata are refused
                // too.
                Err(error) => assert!(test_disk.params.binds_entries(), "block {block}: {error}"),
            }
        }
        self.read_over_lies(&test_disk);
        read(&disk, BLOCK)
    }

    /// Reads the disk from a store that answers some queries from the unchanged objects. With a
    /// cipher that authenticates, a block is one of its versions; with other ciphers it is never
    /// another block's content.
    fn read_over_lies(&self, changed: &TestDisk) {
        let Ok(disk) = changed.open_over_lies(&self.test_disk, false) else { return };
        for block in AROUND {
            let Ok(data) = read(&disk, block) else { continue };
            let made = data == content(block, 1000 + block) || data == content(block, 0);
            let own = made || (block == BLOCK && self.versions.contains(&data));
            let is_others = |other: u64| other != block && data == content(other, 1000 + other);
            let authenticated = changed.params.cipher.authenticates();
            assert!(own || !authenticated && !AROUND.clone().any(is_others), "block {block}");
        }
    }

    /// The second version with every second unit from the first.
    fn splice(&self) -> Vec<u8> {
        spliced(&self.seen[1].0, &self.seen[0].0)
    }
}

#[test]
fn two_snapshots_of_an_xts_disk_show_which_16_bytes_changed() {
    let old = content(BLOCK, 1);
    let versions = [old.clone(), with_one_bit_changed(&old), old];
    let h = versioned_disk(Cipher::Xts, ObjectLayout::SegmentEnd, &versions);
    let differs = |u: &usize| h.seen[0].0[u * UNIT..][..UNIT] != h.seen[1].0[u * UNIT..][..UNIT];
    let changed: Vec<usize> = (0..BLOCK_SIZE / UNIT).filter(differs).collect();
    assert_eq!(changed, [1234 / UNIT]);
    assert!(h.seen[0].0 == h.seen[2].0, "going back to the old content shows as such");
}

#[test]
fn an_xts_disk_accepts_a_splice_of_two_snapshots() {
    let (old, new) = (content(BLOCK, 1), content(BLOCK, 2));
    let h = versioned_disk(Cipher::Xts, ObjectLayout::SegmentEnd, &[old.clone(), new.clone()]);
    assert!(h.read_changed(&h.splice(), &[]).unwrap() == spliced(&new, &old));
}

#[test]
fn two_snapshots_with_random_ivs_do_not_show_the_changed_bytes() {
    for layout in ObjectLayout::ALL {
        for cipher in Cipher::ALL.into_iter().filter(|cipher| cipher.meta_size() > 0) {
            let old = content(BLOCK, 1);
            let h = versioned_disk(cipher, layout, &[old.clone(), old.clone(), with_one_bit_changed(&old)]);
            for (first, second) in [(0, 1), (1, 2), (0, 2)] {
                assert_unrelated(&h.seen[first].0, &h.seen[second].0);
                assert!(equal_bytes(&h.seen[first].1[..12], &h.seen[second].1[..12]) < 5);
            }
        }
    }
}

#[test]
fn a_splice_reads_as_garbage_with_xts_random() {
    for layout in ObjectLayout::ALL {
        let (old, new) = (content(BLOCK, 1), content(BLOCK, 2));
        let h = versioned_disk(Cipher::XtsRandom, layout, &[old.clone(), new.clone()]);
        let [(old_data, old_meta), (new_data, new_meta)] = &h.seen[..] else { panic!("two snapshots") };
        assert!(h.read_changed(new_data, new_meta).unwrap() == new);
        for (data, meta) in [(old_data, new_meta), (new_data, old_meta)] {
            let read = h.read_changed(data, meta).unwrap();
            assert_unrelated(&read, &old);
            assert_unrelated(&read, &new);
        }
        // Units of the version that the IV belongs to still decrypt; the remaining ones become
        // garbage.
        let read = h.read_changed(&h.splice(), new_meta).unwrap();
        assert_eq!(equal_units(&read, &new), BLOCK_SIZE / UNIT / 2);
        assert_eq!(equal_units(&read, &old), 0);
        // Ciphertext and metadata together are the whole old version: this cipher does not promise
        // freshness.
        assert!(h.read_changed(old_data, old_meta).unwrap() == old);
    }
}

#[test]
fn a_gcm_disk_refuses_every_splice_of_a_block() {
    for layout in ObjectLayout::ALL {
        let (old, new) = (content(BLOCK, 1), content(BLOCK, 2));
        let h = versioned_disk(Cipher::Gcm, layout, &[old.clone(), new.clone()]);
        let [(old_data, old_meta), (new_data, new_meta)] = &h.seen[..] else { panic!("two snapshots") };
        let refused = |data: &[u8], meta: &[u8]| {
            assert_eq!(h.read_changed(data, meta).unwrap_err().kind(), Kind::Corrupt);
        };
        assert!(h.read_changed(new_data, new_meta).unwrap() == new);
        refused(old_data, new_meta);
        refused(new_data, old_meta);
        refused(&h.splice(), new_meta);
        refused(&h.splice(), old_meta);
        // Nonce, tag or snapshot number of one version in the metadata of the other.
        for part in [0..12, 12..28, 28..32] {
            let mut meta = new_meta.clone();
            meta[part.clone()].copy_from_slice(&old_meta[part]);
            refused(new_data, &meta);
        }
        // The whole old block, under the present seal: detected if the seal binds metadata.
        if h.test_disk.params.binds_entries() {
            refused(old_data, old_meta);
        } else {
            assert!(h.read_changed(old_data, old_meta).unwrap() == old);
        }
    }
}

#[test]
fn a_block_does_not_move_to_another_address() {
    for (cipher, layout) in all_ciphers_and_layouts() {
        let h = versioned_disk(cipher, layout, &[content(BLOCK, 1)]);
        let object = h.test_disk.data.object(0).unwrap();
        let meta = match cipher.meta_size() {
            0 => vec![],
            _ => meta_of(&object, &h.test_disk.params, BLOCK + 1),
        };
        match h.read_changed(&h.test_disk.ciphertext(BLOCK + 1), &meta) {
            Ok(read) => {
                assert_ne!(cipher, Cipher::Gcm);
                assert_unrelated(&read, &content(BLOCK + 1, 1000 + BLOCK + 1));
            }
            Err(error) => assert_eq!((cipher, error.kind()), (Cipher::Gcm, Kind::Corrupt)),
        }
    }
}
