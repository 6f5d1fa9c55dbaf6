//! Attacks with two snapshots of a medium (Harnik et al., sections 1 and 2), for each cipher: which
//! parts of a block changed, and whether old and new parts can be spliced.

mod fixture;

use fixture::*;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_crypto::Cipher;
use lacuna_medium::MemoryMedium;
use lacuna_sealed::Params;
use lacuna_testkit::ciphertexts::{
    UNIT, assert_unrelated, equal_bytes, equal_units, spliced, with_one_bit_changed,
};
use std::ops::Range;
use std::sync::Arc;

/// The block that is overwritten between the snapshots.
const BLOCK: u64 = 5;
/// The blocks around it.
const AROUND: Range<u64> = 0..12;

/// A disk, and the snapshots taken after each version of [`BLOCK`] was in its slot.
struct BlockSnapshots {
    params: Params,
    snapshots: Vec<Vec<u8>>,
    data: Range<usize>,
    meta: Range<usize>,
}

fn history(cipher: Cipher, versions: &[Vec<u8>]) -> BlockSnapshots {
    let params = params(cipher, 1024);
    let medium = new_disk(&params);
    let disk = open(&medium, &params, 1);
    for block in AROUND {
        write(&disk, block, 1, 1000 + block).unwrap();
    }
    disk.close().unwrap();
    let mut snapshots = vec![];
    for (seed, version) in (10..).zip(versions) {
        let disk = open(&medium, &params, seed);
        disk.write(BlockAddr(BLOCK), version).unwrap();
        disk.close().unwrap();
        snapshots.push(medium.snapshot());
    }
    let data = data_at(&*medium, &params, BLOCK);
    let meta = meta_at(&*medium, &params, BLOCK);
    BlockSnapshots { params, snapshots, data, meta }
}

impl BlockSnapshots {
    /// The ciphertext of the block in a snapshot.
    fn data(&self, snapshot: usize) -> &[u8] {
        &self.snapshots[snapshot][self.data.clone()]
    }

    /// Opens the last snapshot with `change` made to it, and reads [`BLOCK`]. All blocks around it
    /// must read.
    fn read_changed(&self, change: impl FnOnce(&mut [u8])) -> lacuna_contracts::Result<Vec<u8>> {
        let mut bytes = self.snapshots.last().unwrap().clone();
        change(&mut bytes);
        let disk = open(&Arc::new(MemoryMedium::from_bytes(bytes)), &self.params, 99);
        for block in AROUND.filter(|b| *b != BLOCK) {
            assert!(read(&disk, block).unwrap() == content(block, 1000 + block), "block {block}");
        }
        read(&disk, BLOCK)
    }

    /// Takes every second unit of the block from the first snapshot.
    fn splice_units(&self, bytes: &mut [u8]) {
        for at in self.data.clone().step_by(2 * UNIT) {
            bytes[at..at + UNIT].copy_from_slice(&self.snapshots[0][at..at + UNIT]);
        }
    }

    fn take(&self, bytes: &mut [u8], part: &Range<usize>) {
        bytes[part.clone()].copy_from_slice(&self.snapshots[0][part.clone()]);
    }
}

#[test]
fn xts_shows_which_16_bytes_changed() {
    let old = content(BLOCK, 1);
    let h = history(Cipher::Xts, &[old.clone(), with_one_bit_changed(&old), old]);
    let changed: Vec<usize> = (0..BLOCK_SIZE / UNIT)
        .filter(|u| h.data(0)[u * UNIT..][..UNIT] != h.data(1)[u * UNIT..][..UNIT])
        .collect();
    assert_eq!(changed, [1234 / UNIT]);
    assert!(h.data(0) == h.data(2), "going back to the old content shows as such");
}

#[test]
fn xts_accepts_a_splice_of_two_versions() {
    let (old, new) = (content(BLOCK, 1), content(BLOCK, 2));
    let h = history(Cipher::Xts, &[old.clone(), new.clone()]);
    assert!(h.read_changed(|bytes| h.splice_units(bytes)).unwrap() == spliced(&new, &old));
}

#[test]
fn random_ivs_hide_which_bytes_changed() {
    for cipher in Cipher::ALL.into_iter().filter(|cipher| cipher.meta_size() > 0) {
        let old = content(BLOCK, 1);
        let h = history(cipher, &[old.clone(), old.clone(), with_one_bit_changed(&old)]);
        assert_unrelated(h.data(0), h.data(1));
        assert_unrelated(h.data(1), h.data(2));
        let meta: Vec<&[u8]> = h.snapshots.iter().map(|s| &s[h.meta.clone()][..12]).collect();
        assert!(equal_bytes(meta[0], meta[1]) < 5 && equal_bytes(meta[1], meta[2]) < 5);
    }
}

#[test]
fn xts_random_turns_a_splice_into_garbage() {
    let (old, new) = (content(BLOCK, 1), content(BLOCK, 2));
    let h = history(Cipher::XtsRandom, &[old.clone(), new.clone()]);
    for part in [&h.data, &h.meta] {
        let read = h.read_changed(|bytes| h.take(bytes, part)).unwrap();
        assert_unrelated(&read, &old);
        assert_unrelated(&read, &new);
    }
    // Both parts together are the old version: this format does not promise freshness.
    let whole = h.read_changed(|bytes| {
        h.take(bytes, &h.data);
        h.take(bytes, &h.meta);
    });
    assert!(whole.unwrap() == old);
    // Units of the version that the IV belongs to still decrypt; the other units become garbage.
    let read = h.read_changed(|bytes| h.splice_units(bytes)).unwrap();
    assert_eq!(equal_units(&read, &new), BLOCK_SIZE / UNIT / 2);
    assert_eq!(equal_units(&read, &old), 0);
}

#[test]
fn hctr2_changes_the_whole_block_unless_nothing_changed() {
    let old = content(BLOCK, 1);
    let h = history(Cipher::Hctr2, &[old.clone(), old.clone(), with_one_bit_changed(&old)]);
    assert!(h.data(0) == h.data(1));
    assert_unrelated(h.data(1), h.data(2));
    let read = h.read_changed(|bytes| h.splice_units(bytes)).unwrap();
    assert_unrelated(&read, &old);
}

#[test]
fn gcm_refuses_every_splice_of_a_block() {
    let (old, new) = (content(BLOCK, 1), content(BLOCK, 2));
    let h = history(Cipher::Gcm, &[old, new]);
    let refused = |change: &dyn Fn(&mut [u8])| {
        assert_eq!(h.read_changed(|bytes| change(bytes)).unwrap_err().kind(), Kind::Corrupt);
    };
    refused(&|bytes| h.take(bytes, &h.data));
    refused(&|bytes| h.take(bytes, &h.meta));
    refused(&|bytes| h.splice_units(bytes));
    for unit in [0, 77, BLOCK_SIZE / UNIT - 1] {
        let at = h.data.start + unit * UNIT;
        refused(&|bytes| h.take(bytes, &(at..at + UNIT)));
    }
    // The nonce of one version, the tag of the other.
    refused(&|bytes| h.take(bytes, &(h.meta.start..h.meta.start + 12)));
    refused(&|bytes| h.take(bytes, &(h.meta.start + 12..h.meta.start + 28)));
}

#[test]
fn a_block_does_not_move_to_another_address() {
    for cipher in Cipher::ALL {
        let h = history(cipher, &[content(BLOCK, 1)]);
        let medium = MemoryMedium::from_bytes(h.snapshots[0].clone());
        let from_data = data_at(&medium, &h.params, BLOCK + 1);
        let from_meta = meta_at_or_empty(&medium, &h.params, BLOCK + 1);
        let moved = h.read_changed(|bytes| {
            bytes.copy_within(from_data, h.data.start);
            bytes.copy_within(from_meta, h.meta.start);
        });
        match moved {
            Ok(read) => {
                assert_ne!(cipher, Cipher::Gcm);
                assert_unrelated(&read, &content(BLOCK + 1, 1000 + BLOCK + 1));
                assert_unrelated(&read, &content(BLOCK, 1));
            }
            Err(e) => assert_eq!((e.kind(), cipher), (Kind::Corrupt, Cipher::Gcm)),
        }
    }
}

fn meta_at_or_empty(medium: &MemoryMedium, params: &Params, block: u64) -> Range<usize> {
    if params.cipher.meta_size() == 0 { 0..0 } else { meta_at(medium, params, block) }
}
