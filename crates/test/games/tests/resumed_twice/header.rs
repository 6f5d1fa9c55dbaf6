//! Headers: the nonces of key slots and of the slot map are hedged. The copies change the
//! passphrases of one disk in different ways.

#[path = "../../../../parts/header/tests/fixture/mod.rs"]
mod fixture;

use crate::{ExpectedRepeats, assert_no_nonce_repeats};
use fixture::{cost, disk, sealed, secret, secrets};
use lacuna_crypto::SeededRandom;
use lacuna_header::{
    COPY_A, HEADER_LEN, HeaderBackup, Keyring, add_passphrase, change_keys, change_passphrase, open,
    remove_passphrase,
};
use lacuna_medium::MemoryMedium;

/// Both copies rewrite all key slots. One gives a new passphrase level 0, the other level 1: its
/// slot has the same key in both, and different content.
fn rewrite_all_slots() {
    for level in 0..2 {
        let medium = disk(&[&["zero"], &["one"]], 1);
        let random = SeededRandom::new(2);
        let mut unlocked = open(&medium, &secrets(&["zero", "one"])).unwrap();
        let mut ring = Keyring::from_opened(&unlocked, secrets(&["zero", "one"])).unwrap();
        change_keys(&medium, &mut unlocked, &ring, cost(), &random).unwrap();
        // The copies diverge here.
        ring.add(level, secret("new")).unwrap();
        change_keys(&medium, &mut unlocked, &ring, cost(), &random).unwrap();
        // Under the next salt, and so with another key.
        change_keys(&medium, &mut unlocked, &ring, cost(), &random).unwrap();
    }
}

/// Each copy removes another passphrase, so that the slot map, which keeps its key, gets different
/// content. After that they are identical.
fn diverge(medium: &MemoryMedium, gone: &str, random: &SeededRandom) {
    let mut unlocked = open(medium, &secrets(&["a"])).unwrap();
    assert_eq!(remove_passphrase(medium, &mut unlocked, &secret(gone), random).unwrap(), 2);
    assert_eq!(add_passphrase(medium, &mut unlocked, &secret("new"), random).unwrap(), 3);
    assert_eq!(change_passphrase(medium, &mut unlocked, &secret("changed"), random).unwrap(), 3);
}

fn remove_one_slot() {
    for gone in ["b", "c"] {
        diverge(&sealed(&["a", "b", "c"], 3), gone, &SeededRandom::new(4));
    }
}

/// Before they diverge, both copies restore a backup, which repeats its slots and its generation.
fn restore_backup() {
    for gone in ["b", "c"] {
        let (medium, random) = (sealed(&["a", "b", "c"], 5), SeededRandom::new(6));
        let backup = HeaderBackup::parse(&medium.snapshot()[COPY_A as usize..][..HEADER_LEN]).unwrap();
        let mut unlocked = open(&medium, &secrets(&["b"])).unwrap();
        change_passphrase(&medium, &mut unlocked, &secret("B"), &random).unwrap();
        backup.restore(&medium).unwrap();
        diverge(&medium, gone, &random);
    }
}

#[test]
fn key_slots_repeat_no_nonce() {
    assert_no_nonce_repeats("all slots", 20, ExpectedRepeats { drawn: 2, synthetic: 0 }, rewrite_all_slots);
}

#[test]
fn slot_maps_repeat_no_nonce() {
    assert_no_nonce_repeats("one slot", 18, ExpectedRepeats { drawn: 1, synthetic: 0 }, remove_one_slot);
    assert_no_nonce_repeats("a backup", 22, ExpectedRepeats { drawn: 1, synthetic: 0 }, restore_backup);
}
