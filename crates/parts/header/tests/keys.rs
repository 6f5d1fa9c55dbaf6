//! Key operations, and the header that they leave on the medium.

mod fixture;

use fixture::*;
use lacuna_contracts::Kind;
use lacuna_crypto::{Argon2Cost, SeededRandom};
use lacuna_header::layout::SLOT_LEN;
use lacuna_header::{
    FormatId, HEADER_LEN, Keyring, OpenHeader, add_passphrase, change_keys, change_passphrase,
    check_free_slot, lost_slots_warning, open, rekey, remove_passphrase, store,
};
use lacuna_medium::MemoryMedium;
use lacuna_sim::{OpKind, Recorder};
use std::sync::Arc;

/// Opens with `passphrases`, changes the list, writes it, and returns the open header.
fn operate(
    medium: &MemoryMedium,
    passphrases: &[&str],
    seed: u64,
    change: impl FnOnce(&mut Keyring, &OpenHeader),
) -> OpenHeader {
    let mut unlocked = open(medium, &secrets(passphrases)).unwrap();
    let before = keys(&unlocked);
    let mut ring = Keyring::from_opened(&unlocked, secrets(passphrases)).unwrap();
    change(&mut ring, &unlocked);
    change_keys(medium, &mut unlocked, &ring, cost(), &SeededRandom::new(seed)).unwrap();
    assert_eq!(keys(&unlocked), before, "key operations keep the master keys");
    unlocked
}

#[test]
fn adding_keeps_the_given_passphrases_and_adds_to_the_deepest_level() {
    let medium = disk(&[&["zero"], &["one"]], 1);
    let unlocked = operate(&medium, &["zero", "one"], 2, |ring, unlocked| {
        ring.add(unlocked.level, secret("uno")).unwrap();
        assert_eq!(ring.add(0, secret("uno")).unwrap_err().kind(), Kind::Exists);
    });
    assert_eq!(unlocked.opened_levels(), [0, 1, 1]);
    assert_eq!(unlocked.header.generation, 2);
    for (passphrase, level) in [("zero", 0), ("one", 1), ("uno", 1)] {
        assert_eq!(level_of(&medium, &[passphrase]), Ok(level));
    }
}

#[test]
fn slots_whose_passphrases_were_not_given_are_lost() {
    let medium = disk(&[&["zero", "null"], &["one"]], 3);
    operate(&medium, &["zero"], 4, |ring, _| ring.add(0, secret("other")).unwrap());
    assert_eq!(level_of(&medium, &["zero"]), Ok(0));
    assert_eq!(level_of(&medium, &["other"]), Ok(0));
    assert_eq!(level_of(&medium, &["null"]), Err(Kind::Passphrase));
    assert_eq!(level_of(&medium, &["one"]), Err(Kind::Passphrase));
    for (format, lost) in [(FormatId::SEALED, false), (FormatId::DENIABLE, true), (FormatId::OBLIVIOUS, true)]
    {
        let warning = lost_slots_warning(format);
        assert!(warning.contains("stops working") && !warning.contains("  "));
        assert_eq!(warning.contains("lost for ever"), lost);
    }
}

#[test]
fn passphrases_are_changed_and_removed() {
    let medium = disk(&[&["zero", "null"], &["one"]], 5);
    operate(&medium, &["zero", "null", "one"], 6, |ring, _| {
        assert_eq!(ring.change(&secret("nobody"), secret("x")).unwrap_err().kind(), Kind::Usage);
        assert_eq!(ring.change(&secret("one"), secret("null")).unwrap_err().kind(), Kind::Exists);
        ring.change(&secret("one"), secret("one")).unwrap();
        ring.change(&secret("one"), secret("eins")).unwrap();
    });
    assert_eq!(level_of(&medium, &["one"]), Err(Kind::Passphrase));
    assert_eq!(level_of(&medium, &["eins"]), Ok(1));
    operate(&medium, &["zero", "null", "eins"], 7, |ring, _| {
        ring.remove(&secret("null")).unwrap();
        assert_eq!(ring.remove(&secret("null")).unwrap_err().kind(), Kind::Usage);
    });
    assert_eq!(level_of(&medium, &["null"]), Err(Kind::Passphrase));
    assert_eq!(level_of(&medium, &["zero"]), Ok(0));
    assert_eq!(level_of(&medium, &["eins"]), Ok(1));
    operate(&medium, &["eins"], 8, |ring, _| {
        assert_eq!(ring.remove(&secret("eins")).unwrap_err().kind(), Kind::Usage);
    });
    assert_eq!(level_of(&medium, &["zero"]), Err(Kind::Passphrase));
    assert_eq!(open(&medium, &secrets(&["eins"])).unwrap().master_keys.len(), 2);
}

#[test]
fn a_refresh_changes_salt_cost_and_every_slot() {
    let medium = disk(&[&["zero"], &["one"]], 9);
    let before = medium.snapshot();
    let mut unlocked = open(&medium, &secrets(&["zero", "one"])).unwrap();
    let ring = Keyring::from_opened(&unlocked, secrets(&["zero", "one"])).unwrap();
    let dearer = Argon2Cost::new(16, 2, 1).unwrap();
    change_keys(&medium, &mut unlocked, &ring, dearer, &SeededRandom::new(10)).unwrap();
    let after = medium.snapshot();
    for copy in copies() {
        assert!(after[..HEADER_LEN] == after[copy as usize..][..HEADER_LEN]);
    }
    assert_ne!(before[field("salt").range()], after[field("salt").range()]);
    let slots = field("key slots").range();
    let same = before[slots.clone()].iter().zip(&after[slots]).filter(|(a, b)| a == b).count();
    assert!(same < 64, "{same} of 8192 bytes stayed; 32 expected by chance");
    let opened = open(&medium, &secrets(&["one"])).unwrap();
    assert_eq!(opened.header.cost, dearer);
    assert_eq!(opened.header.params, b"some parameters");
    assert_eq!(level_of(&medium, &["zero"]), Ok(0));
}

#[test]
fn more_than_eight_and_unknown_levels_are_refused() {
    let medium = disk(&[&["zero"], &["one"]], 11);
    let before = medium.snapshot();
    let mut unlocked = open(&medium, &secrets(&["zero"])).unwrap();
    let mut ring = Keyring::from_opened(&unlocked, secrets(&["zero"])).unwrap();
    ring.add(1, secret("a")).unwrap();
    let random = SeededRandom::new(12);
    let refused = change_keys(&medium, &mut unlocked, &ring, cost(), &random).unwrap_err();
    assert_eq!(refused.kind(), Kind::Usage);
    let mut ring = Keyring::from_opened(&unlocked, secrets(&["zero"])).unwrap();
    for n in 0..8 {
        ring.add(0, secret(&n.to_string())).unwrap();
    }
    let refused = change_keys(&medium, &mut unlocked, &ring, cost(), &random).unwrap_err();
    assert_eq!(refused.kind(), Kind::Usage);
    assert!(refused.to_string().contains("9 passphrases"), "{refused}");
    assert!(Keyring::from_opened(&unlocked, secrets(&["zero", "one"])).is_err());
    assert!(medium.snapshot() == before);
}

#[test]
fn the_same_passphrase_given_twice_takes_one_slot() {
    let medium = disk(&[&["zero"]], 13);
    let unlocked = operate(&medium, &["zero", "zero"], 14, |_, _| {});
    assert_eq!(unlocked.opened_levels(), [0]);
}

#[test]
fn rekey_alone_writes_nothing_and_the_damaged_copy_is_written_first() {
    let [a, b, c] = copies();
    for (bad, rest) in [(a, [b, c]), (b, [a, c]), (c, [a, b])] {
        let medium = disk(&[&["zero"]], 15);
        let mut bytes = medium.snapshot();
        copy_at(&mut bytes, bad)[3000] ^= 1;
        let medium = MemoryMedium::from_bytes(bytes.clone());
        let unlocked = open(&medium, &secrets(&["zero"])).unwrap();
        let ring = Keyring::from_opened(&unlocked, secrets(&["zero"])).unwrap();
        let image = rekey(&unlocked, &ring, cost(), &SeededRandom::new(16)).unwrap();
        assert!(medium.snapshot() == bytes);
        assert_eq!(image.public().generation, 2);
        let recorder = Recorder::new(Arc::new(medium));
        store(&recorder, &image).unwrap();
        let written = recorder.take().into_iter().filter(|record| record.kind == OpKind::Write);
        let order: Vec<u64> = written.map(|record| record.offset).collect();
        assert_eq!(order, [bad, rest[0], rest[1]]);
        assert!(open(&recorder, &secrets(&["zero"])).unwrap().notes.is_empty());
    }
}

#[test]
fn one_passphrase_changes_without_the_others() {
    let medium = sealed(&["a", "b"], 20);
    let random = SeededRandom::new(21);
    let mut unlocked = open(&medium, &secrets(&["a"])).unwrap();
    assert!(unlocked.header.can_change_one_slot());
    assert_eq!(unlocked.passphrase_count().unwrap(), Some(2));
    let master = keys(&unlocked);
    assert_eq!(add_passphrase(&medium, &mut unlocked, &secret("c"), &random).unwrap(), 3);
    assert_eq!(unlocked.passphrase_count().unwrap(), Some(3));
    assert_eq!(
        add_passphrase(&medium, &mut unlocked, &secret("b"), &random).unwrap_err().kind(),
        Kind::Exists
    );
    assert_eq!(change_passphrase(&medium, &mut unlocked, &secret("A"), &random).unwrap(), 3);
    assert_eq!(
        change_passphrase(&medium, &mut unlocked, &secret("b"), &random).unwrap_err().kind(),
        Kind::Exists
    );
    let wrong = remove_passphrase(&medium, &mut unlocked, &secret("a"), &random).unwrap_err();
    assert_eq!(wrong.kind(), Kind::Passphrase);
    for passphrase in ["A", "b", "c"] {
        let opened = open(&medium, &secrets(&[passphrase])).unwrap();
        assert_eq!((keys(&opened), opened.header.generation), (master.clone(), 3));
        assert!(opened.notes.is_empty());
    }
    assert_eq!(level_of(&medium, &["a"]), Err(Kind::Passphrase));
    assert_eq!(remove_passphrase(&medium, &mut unlocked, &secret("b"), &random).unwrap(), 2);
    assert_eq!(remove_passphrase(&medium, &mut unlocked, &secret("A"), &random).unwrap(), 1);
    assert_eq!(
        remove_passphrase(&medium, &mut unlocked, &secret("c"), &random).unwrap_err().kind(),
        Kind::Usage
    );
    assert_eq!(level_of(&medium, &["c"]), Ok(0));
}

#[test]
fn slots_fill_up_to_eight_and_a_refresh_drops_what_is_not_given() {
    let medium = sealed(&["0"], 22);
    let random = SeededRandom::new(23);
    let mut unlocked = open(&medium, &secrets(&["0"])).unwrap();
    for n in 1..8 {
        assert_eq!(add_passphrase(&medium, &mut unlocked, &secret(&n.to_string()), &random).unwrap(), n + 1);
    }
    let before = medium.snapshot();
    assert!(check_free_slot(&unlocked).is_err());
    let full = add_passphrase(&medium, &mut unlocked, &secret("8"), &random).unwrap_err();
    assert!(full.kind() == Kind::Usage && full.to_string().contains("8 passphrases"), "{full}");
    assert!(medium.snapshot() == before);
    let mut unlocked = operate(&medium, &["3", "5"], 24, |_, _| {});
    assert_eq!(level_of(&medium, &["0"]), Err(Kind::Passphrase));
    assert_eq!(change_passphrase(&medium, &mut unlocked, &secret("drei"), &random).unwrap(), 2);
    assert_eq!((level_of(&medium, &["drei"]), level_of(&medium, &["5"])), (Ok(0), Ok(0)));
    assert_eq!(level_of(&medium, &["3"]), Err(Kind::Passphrase));
}

#[test]
fn a_disk_with_levels_hides_which_slots_are_used() {
    let random = SeededRandom::new(26);
    for levels in [&[&["zero"][..]][..], &[&["zero"], &["one"]]] {
        let medium = disk(levels, 25);
        let before = medium.snapshot();
        assert!(before[field("slot map").range()].iter().all(|byte| *byte == 0));
        let mut unlocked = open(&medium, &secrets(&["zero"])).unwrap();
        assert!(!unlocked.header.can_change_one_slot());
        assert_eq!(unlocked.passphrase_count().unwrap(), None);
        let refused = add_passphrase(&medium, &mut unlocked, &secret("new"), &random).unwrap_err();
        assert_eq!(refused.kind(), Kind::Usage);
        assert!(medium.snapshot() == before);
    }
    assert!(
        FormatId::OBLIVIOUS.has_levels()
            && FormatId(9).has_levels()
            && !FormatId::SEALED_OBJECTS.has_levels()
    );
    // Numbers at the edges of the ranges for added formats.
    let numbers = [0x7fff, 0x8000, 0xbfff, 0xc000, 0xffff];
    assert_eq!(numbers.map(|number| FormatId(number).has_levels()), [true, false, false, true, true]);
    assert_eq!(numbers.map(|number| FormatId(number).is_custom()), [false, true, true, true, true]);
}

#[test]
fn separately_opened_passphrases_merge() {
    let medium = disk(&[&["zero"], &["one"]], 27);
    let mut unlocked = open(&medium, &secrets(&["zero"])).unwrap();
    unlocked.merge(open(&medium, &secrets(&["one"])).unwrap()).unwrap();
    assert_eq!((unlocked.level, unlocked.opened_levels()), (1, &[0, 1][..]));
    let ring = Keyring::from_opened(&unlocked, secrets(&["zero", "one"])).unwrap();
    let stale = open(&medium, &secrets(&["one"])).unwrap();
    change_keys(&medium, &mut unlocked, &ring, cost(), &SeededRandom::new(28)).unwrap();
    assert_eq!(unlocked.merge(stale).unwrap_err().kind(), Kind::Changed);
    assert_eq!((level_of(&medium, &["zero"]), level_of(&medium, &["one"])), (Ok(0), Ok(1)));
}

/// Nonces do not repeat on a machine that is resumed twice. The slot of a passphrase has the same
/// key in both copies, and so has the map.
#[test]
fn copies_that_draw_the_same_bytes_seal_nothing_different_under_one_nonce() {
    const NONCE: usize = 12;
    let medium = disk(&[&["zero"], &["one"]], 29);
    let slots = |level| {
        let unlocked = open(&medium, &secrets(&["zero", "one"])).unwrap();
        let mut ring = Keyring::from_opened(&unlocked, secrets(&["zero", "one"])).unwrap();
        ring.add(level, secret("new")).unwrap();
        let image = rekey(&unlocked, &ring, cost(), &SeededRandom::new(30)).unwrap();
        image.bytes()[field("key slots").range()].to_vec()
    };
    let (one, other) = (slots(0), slots(1));
    let both = one.chunks(SLOT_LEN).zip(other.chunks(SLOT_LEN));
    let differ: Vec<_> = both.filter(|(one, other)| one != other).collect();
    assert_eq!(differ.len(), 1, "that of the new passphrase");
    assert_ne!(differ[0].0[..NONCE], differ[0].1[..NONCE]);
    let map = |gone| {
        let medium = sealed(&["a", "b", "c"], 31);
        let mut unlocked = open(&medium, &secrets(&["a"])).unwrap();
        remove_passphrase(&medium, &mut unlocked, &secret(gone), &SeededRandom::new(32)).unwrap();
        medium.snapshot()[field("slot map").range()].to_vec()
    };
    assert_ne!(map("b")[..NONCE], map("c")[..NONCE]);
}
