//! Power cuts while the header is written: one whole copy is durable at every moment.
//!
//! `LACUNA_CUTS` is the number of successive cuts (default 320), `LACUNA_SEED` the first seed
//! (default 0).

mod fixture;

use fixture::*;
use lacuna_contracts::Kind;
use lacuna_crypto::SeededRandom;
use lacuna_header::{
    FormatId, HEADER_AREA, Keyring, add_passphrase, change_keys, open, remove_passphrase, update_params,
};
use lacuna_medium::Medium;
use lacuna_sim::{CrashMedium, LossPolicy, Rng, env_number};

/// Successive cuts of one medium.
const OF_ONE_MEDIUM: u64 = 8;

fn new_disk(seed: u64) -> CrashMedium {
    let medium = CrashMedium::new(room());
    make(&medium, &[&["old"]], seed).unwrap();
    CrashMedium::from_image(medium.durable_image())
}

/// Replaces the passphrase `old` by `new`. Returns whether it succeeded before the power cut.
fn change(medium: &CrashMedium, old: &str, new: &str, seed: u64) -> bool {
    let mut unlocked = open(medium, &secrets(&[old])).unwrap();
    let mut ring = Keyring::from_opened(&unlocked, secrets(&[old])).unwrap();
    ring.change(&secret(old), secret(new)).unwrap();
    let random = SeededRandom::new(seed);
    match change_keys(medium, &mut unlocked, &ring, cost(), &random) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), Kind::Io);
            let again = change_keys(medium, &mut unlocked, &ring, cost(), &random).unwrap_err();
            assert_eq!(again.kind(), Kind::FailStop);
            let again = update_params(&mut unlocked, medium, Vec::new(), HEADER_AREA + 4096).unwrap_err();
            assert_eq!(again.kind(), Kind::FailStop);
            false
        }
    }
}

/// The passphrase that opens; exactly one of the two must.
fn opens_with<'a>(medium: &CrashMedium, old: &'a str, new: &'a str) -> Option<&'a str> {
    match (level_of(medium, &[old]), level_of(medium, &[new])) {
        (Ok(0), Err(Kind::Passphrase)) => Some(old),
        (Err(Kind::Passphrase), Ok(0)) => Some(new),
        _ => None,
    }
}

#[test]
fn every_cut_of_a_key_change_leaves_the_old_or_the_new() {
    let (mut olds, mut news) = (0, 0);
    for broken in [None, Some(copies()[0]), Some(copies()[1]), Some(copies()[2])] {
        for cut in 0..7 {
            for (n, loss) in LossPolicy::ALL.into_iter().cycle().take(30).enumerate() {
                let seed = cut * 100 + n as u64;
                let mut image = new_disk(seed).durable_image();
                if let Some(copy) = broken {
                    image.write(copy + 4000, &[0; 64]).unwrap();
                }
                let medium = CrashMedium::from_image(image);
                medium.cut_after(cut);
                let done = change(&medium, "old", "new", seed + 7);
                assert_eq!(done, cut == 6);
                let left = CrashMedium::from_image(medium.after_cut_with(loss, &mut Rng::new(seed)));
                match opens_with(&left, "old", "new") {
                    Some("old") if cut < 2 => olds += 1,
                    Some("new") if done || cut >= 1 || loss != LossPolicy::DropAll => news += 1,
                    other => panic!("cut {cut}, {loss:?}, seed {seed}: {other:?}"),
                }
            }
        }
    }
    assert!(olds > 50 && news > 50, "both outcomes were reached: {olds}, {news}");
}

#[test]
fn cuts_one_after_another_never_lock_the_owner_out() {
    let (cuts, first) = (env_number("LACUNA_CUTS", 320), env_number("LACUNA_SEED", 0));
    let mut digest = 0u64;
    for seed in first..first + cuts.div_ceil(OF_ONE_MEDIUM) {
        let mut rng = Rng::new(seed);
        let mut medium = new_disk(seed);
        let mut passphrase = "old".to_string();
        for round in 0..OF_ONE_MEDIUM {
            let new = format!("new {round}");
            medium.cut_after(rng.below(7));
            change(&medium, &passphrase, &new, rng.next_u64());
            digest = digest.rotate_left(7) ^ medium.digest();
            medium = CrashMedium::from_image(medium.after_cut(&mut rng));
            passphrase = opens_with(&medium, &passphrase, &new)
                .unwrap_or_else(|| panic!("seed {seed}, round {round}"))
                .to_string();
        }
    }
    println!("{cuts} cuts, seed {first}, digest {digest:016x}");
}

#[test]
fn every_cut_of_a_parameter_change_leaves_the_old_or_the_new() {
    for cut in 0..7 {
        for seed in 0..20 {
            let medium = new_disk(seed);
            let mut unlocked = open(&medium, &secrets(&["old"])).unwrap();
            medium.cut_after(cut);
            let done = update_params(&mut unlocked, &medium, b"new".to_vec(), HEADER_AREA + 4096).is_ok();
            let left = CrashMedium::from_image(medium.after_cut(&mut Rng::new(seed)));
            let params = open(&left, &secrets(&["old"])).unwrap().header.params;
            assert!(params == b"new" || !done && params == b"some parameters", "cut {cut}, seed {seed}");
        }
    }
}

#[test]
fn a_cut_creation_leaves_no_disk_or_a_whole_one_and_never_an_older_one() {
    for cut in 0..12 {
        for seed in 0..20 {
            let medium = CrashMedium::new(room());
            make(&medium, &[&["old"]], seed).unwrap();
            let medium = CrashMedium::from_image(medium.durable_image());
            medium.cut_after(cut);
            let contents = |medium: &CrashMedium| medium.write_at(HEADER_AREA, &[7; 4096]);
            let done = make_with(&medium, &[&["new"]], seed + 100, |_| contents(&medium)).is_ok();
            assert_eq!(done, cut == 11);
            let left = CrashMedium::from_image(medium.after_cut(&mut Rng::new(seed)));
            let (old, new) = (level_of(&left, &["old"]), level_of(&left, &["new"]));
            assert!(new == Ok(0) || !done);
            // Once the old header is durably gone it stays gone.
            assert!(old != Ok(0) || cut < 3, "cut {cut}, seed {seed}");
            let mut found = [0; 4096];
            left.read_at(HEADER_AREA, &mut found).unwrap();
            assert!(
                new != Ok(0) || found == [7; 4096],
                "a header before its contents: cut {cut}, seed {seed}"
            );
        }
    }
}

#[test]
fn the_crash_test_detects_missing_syncs() {
    let mut lost = 0;
    for seed in 0..60 {
        let medium = new_disk(seed);
        medium.ignore_syncs(true);
        medium.cut_after(seed % 7);
        change(&medium, "old", "new", seed);
        let left = CrashMedium::from_image(medium.after_cut_with(LossPolicy::Sectors, &mut Rng::new(seed)));
        lost += u32::from(opens_with(&left, "old", "new").is_none());
    }
    assert!(lost > 0);
}

#[test]
fn every_cut_of_a_slot_change_keeps_the_other_passphrases() {
    for cut in 0..7 {
        for seed in 0..20 {
            let medium = CrashMedium::new(room());
            make_as(FormatId::SEALED, &medium, &[&["kept", "given", "gone"]], seed, |_| Ok(())).unwrap();
            let medium = CrashMedium::from_image(medium.durable_image());
            let mut unlocked = open(&medium, &secrets(&["given"])).unwrap();
            let random = SeededRandom::new(seed);
            medium.cut_after(cut);
            let done = if seed % 2 == 0 {
                add_passphrase(&medium, &mut unlocked, &secret("new"), &random)
            } else {
                remove_passphrase(&medium, &mut unlocked, &secret("gone"), &random)
            };
            assert_eq!(done.is_ok(), cut == 6);
            let left = CrashMedium::from_image(medium.after_cut(&mut Rng::new(seed)));
            for passphrase in ["kept", "given"] {
                assert_eq!(level_of(&left, &[passphrase]), Ok(0), "cut {cut}, seed {seed}");
            }
        }
    }
}
