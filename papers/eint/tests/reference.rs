//! The reference schemes of EINT (Figures 6 to 10) return written data, detect an adversary that
//! changes untrusted storage, and have the flaw of the paper's counters that docs/integrity.md
//! describes.

mod untrusted_memory;

use eint::{
    BinaryTree, Integrity, ListCache, NodeCache, NodeHash, ReferenceComp, ReferenceKeys, ReferenceMt,
    ReferenceRand, TableCache,
};
use lacuna_contracts::Secret;
use lacuna_integrity::{Part, Session, Untrusted};
use lacuna_sim::Rng;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use untrusted_memory::UntrustedMemory;

const SIZES: [usize; 3] = [128, 512, 4096];

fn keys() -> Arc<ReferenceKeys> {
    ReferenceKeys::derive(&Secret::copy_from(&[7; 32]), 1)
}

/// A block of text-like or of random bytes; all blocks differ.
fn content(rng: &mut Rng, size: usize, low_entropy: bool) -> Vec<u8> {
    let mut block = rng.bytes(size);
    if low_entropy {
        let word = block[..8].to_vec();
        block.iter_mut().zip(word.iter().cycle()).for_each(|(byte, letter)| *byte = *letter);
    }
    block
}

fn root_of(leaves: &[NodeHash]) -> NodeHash {
    if let [one] = leaves {
        return *one;
    }
    let middle = 1 << (leaves.len() - 1).ilog2();
    let (left, right) = leaves.split_at(middle);
    Sha256::new().chain_update(root_of(left)).chain_update(root_of(right)).finalize().into()
}

#[test]
fn all_left_subtrees_of_the_tree_are_complete() {
    let caches: [Option<Box<dyn NodeCache>>; 3] =
        [None, Some(Box::new(ListCache::new(512))), Some(Box::new(TableCache::new(512)))];
    for cache in caches {
        let (us, mut rng) = (UntrustedMemory::new(4096), Rng::new(3));
        let mut tree = BinaryTree::new(Part::Tree(0), cache);
        let mut leaves: Vec<NodeHash> = Vec::new();
        for step in 0..3000 {
            let value: NodeHash = rng.bytes(32).try_into().unwrap();
            let grows = (step / 300) % 2 == 0;
            if leaves.is_empty() || rng.chance(if grows { 6 } else { 2 }, 10) {
                tree.append(&us, &value).unwrap();
                leaves.push(value);
            } else if rng.chance(1, 3) {
                let index = rng.below(leaves.len() as u64);
                tree.update(&us, index, &value).unwrap();
                leaves[index as usize] = value;
            } else {
                tree.delete(&us).unwrap();
                leaves.pop();
            }
            assert_eq!(tree.leaves(), leaves.len() as u64);
            if leaves.is_empty() {
                assert_eq!(us.parts(), 0, "an empty tree has no nodes");
                continue;
            }
            assert_eq!(tree.root(), root_of(&leaves), "{} leaves, step {step}", leaves.len());
            let index = rng.below(leaves.len() as u64);
            assert!(tree.check(&us, index, &leaves[index as usize]).unwrap());
            assert!(!tree.check(&us, index, &[0; 32]).unwrap());
        }
    }
}

/// Compares random updates, appends, deletes and checks with a plain array.
fn assert_returns_written_data<I: Integrity>(make: impl Fn(usize) -> I) {
    for size in SIZES {
        let (us, mut rng) = (UntrustedMemory::new(size), Rng::new(size as u64));
        let mut file = make(size);
        let mut model: Vec<Vec<u8>> = Vec::new();
        for _ in 0..1500 {
            let low = rng.chance(1, 2);
            let block = content(&mut rng, size, low);
            match rng.below(10) {
                0..4 => {
                    let two = [block.clone(), content(&mut rng, size, !low)];
                    file.append(&us, &two.concat()).unwrap();
                    model.extend(two);
                }
                4..7 if !model.is_empty() => {
                    let index = rng.below(model.len() as u64);
                    file.update(&us, index, &block).unwrap();
                    model[index as usize] = block;
                }
                _ if !model.is_empty() => {
                    file.delete(&us).unwrap();
                    model.pop();
                }
                _ => assert!(file.delete(&us).is_err()),
            }
            assert_eq!(file.blocks(), model.len() as u64);
            if !model.is_empty() {
                let first = rng.below(model.len() as u64);
                let count = 1 + rng.below(4.min(model.len() as u64 - first));
                let mut read = vec![0; count as usize * size];
                file.check(&us, first, &mut read).unwrap();
                assert_eq!(read, model[first as usize..(first + count) as usize].concat());
            }
            assert!(file.check(&us, model.len() as u64, &mut vec![0; size]).is_err(), "beyond the end");
            assert!(file.update(&us, model.len() as u64, &vec![0; size]).is_err(), "beyond the end");
        }
    }
}

#[test]
fn merkle_returns_the_written_data() {
    assert_returns_written_data(|size| ReferenceMt::init(keys(), size, Session(1)));
    assert_returns_written_data(|size| {
        ReferenceMt::with_cache(keys(), size, Some(Box::new(ListCache::new(1024))))
    });
}

#[test]
fn randomness_returns_the_written_data() {
    assert_returns_written_data(|size| ReferenceRand::init(keys(), size, Session(1)));
}

#[test]
fn compression_returns_the_written_data() {
    assert_returns_written_data(|size| ReferenceComp::init(keys(), size, Session(1)));
}

/// Updates and appends while an adversary alters, moves and rolls back blocks and pages: a read
/// returns the latest data or an error.
fn assert_detects_tampering<I: Integrity>(make: impl Fn(usize) -> I) {
    let (mut refused, mut returned) = (0, 0);
    for seed in 0..150 {
        let (us, mut rng) = (UntrustedMemory::new(512), Rng::new(seed));
        let mut file = make(512);
        let mut model: Vec<Vec<u8>> = Vec::new();
        let mut old = us.snapshot();
        for _ in 0..40 {
            let low = rng.chance(1, 2);
            let block = content(&mut rng, 512, low);
            // An error is allowed after US was altered; the file is then unchanged or lost.
            let written = if model.len() < 4 || rng.chance(1, 3) {
                file.append(&us, &block).map(|()| model.push(block))
            } else {
                let index = rng.below(model.len() as u64);
                file.update(&us, index, &block).map(|()| model[index as usize] = block)
            };
            if written.is_err() {
                refused += 1;
                break;
            }
            match rng.below(6) {
                0 => old = us.snapshot(),
                1 => us.roll_back(&old),
                2 => us.roll_back_some(&old, &mut rng),
                3 => us.alter(&mut rng),
                4 => us.swap(&mut rng),
                _ => {}
            }
            for (index, expected) in model.iter().enumerate() {
                let mut read = vec![0; 512];
                if file.check(&us, index as u64, &mut read).is_ok() {
                    assert_eq!(read, *expected, "seed {seed}, block {index}");
                    returned += 1;
                } else {
                    assert!(read.iter().all(|byte| *byte == 0), "data that does not verify is not returned");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 100 && returned > 100, "{refused} refused, {returned} returned");
}

#[test]
fn merkle_detects_tampering() {
    assert_detects_tampering(|size| ReferenceMt::init(keys(), size, Session(1)));
    assert_detects_tampering(|size| {
        ReferenceMt::with_cache(keys(), size, Some(Box::new(TableCache::new(512))))
    });
}

#[test]
fn randomness_detects_tampering() {
    assert_detects_tampering(|size| ReferenceRand::init(keys(), size, Session(1)));
}

#[test]
fn compression_detects_tampering() {
    assert_detects_tampering(|size| ReferenceComp::init(keys(), size, Session(1)));
}

/// Delete loses the counter and Append starts at 1 again (Figure 8), so the new block gets the
/// tweak of the deleted one. A replay of the deleted block therefore decrypts to its old content,
/// which does not look random, and is accepted.
#[test]
fn the_papers_counters_repeat_after_delete_and_append() {
    let us = UntrustedMemory::new(4096);
    let mut file = ReferenceRand::init(keys(), 4096, Session(1));
    let (old, new) = ([b'o'; 4096], [b'n'; 4096]);
    file.append(&us, &old).unwrap();
    let snapshot = us.snapshot();
    file.delete(&us).unwrap();
    file.append(&us, &new).unwrap();
    us.roll_back(&snapshot);
    let mut read = [0; 4096];
    file.check(&us, 0, &mut read).unwrap();
    assert_eq!(read, old, "the paper's scheme accepts the replayed block");
}

#[test]
fn dispersed_counters_go_to_untrusted_storage_and_are_checked() {
    let us = UntrustedMemory::new(128);
    let mut file = ReferenceRand::init(keys(), 128, Session(1));
    file.append(&us, &vec![1; 128 * 200]).unwrap();
    assert!(file.trusted_bytes() <= 64);
    for block in (0..200).step_by(2) {
        file.update(&us, block, &[2; 128]).unwrap();
    }
    assert_eq!(file.trusted_bytes(), 32 + 16 + 64 + 8);
    assert!(us.read_part(Part::Intervals, 0).unwrap().is_some());
    file.check(&us, 0, &mut [0; 128]).unwrap();
    us.write_part(Part::Intervals, 1, Some(&[1; 800])).unwrap();
    assert!(file.check(&us, 0, &mut [0; 128]).is_err());
    assert!(file.update(&us, 0, &[3; 128]).is_err());
}
