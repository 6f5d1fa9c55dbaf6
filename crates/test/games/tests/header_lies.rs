//! A medium that answers two reads of one place differently, also within a header, or flips bits
//! and splices versions. A header that opens was written as a whole, with its levels, keys and
//! parameters; any other is refused. An older header opens with its own passphrases, which a header
//! cannot detect (docs/threat-model.md). If first reads are true, removed passphrases open nothing.
//!
//! `LACUNA_LIES` sets the openings (default 300), `LACUNA_SEED` the first seed.

#[path = "../../../parts/header/tests/fixture/mod.rs"]
mod fixture;

use fixture::*;
use lacuna_contracts::Kind;
use lacuna_crypto::SeededRandom;
use lacuna_header::{HEADER_AREA, Keyring, PublicHeader, Unlocked, change_keys, open, repair, update_params};
use lacuna_sim::{CrashMedium, Lies, Rng, Truths};
use lacuna_testkit::openings::Openings;

/// The number of openings of one disk.
const OF_ONE_DISK: u64 = 30;

/// A header as it was written: a passphrase that opens it, and the decrypted content.
struct Written {
    passphrase: String,
    header: PublicHeader,
    keys: Vec<[u8; 32]>,
}

impl Written {
    fn of(passphrase: &str, unlocked: &Unlocked) -> Written {
        Written { passphrase: passphrase.into(), header: unlocked.header.clone(), keys: keys(unlocked) }
    }

    fn is(&self, unlocked: &Unlocked) -> bool {
        self.header == unlocked.header && self.keys == keys(unlocked)
    }
}

/// Changes the passphrase and the parameters several times. Returns all headers, oldest first.
fn live(medium: &CrashMedium, rng: &mut Rng) -> Vec<Written> {
    let mut unlocked = make(medium, &[&["public"], &["old"]], rng.next_u64()).unwrap();
    let mut passphrase = "old".to_owned();
    let mut all = vec![Written::of(&passphrase, &unlocked)];
    for round in 0..2 + rng.below(4) {
        if rng.chance(1, 3) {
            let params = format!("parameters {round}").into_bytes();
            update_params(&mut unlocked, medium, params, HEADER_AREA + 4096).unwrap();
        } else {
            unlocked = open(medium, &secrets(&["public", &passphrase])).unwrap();
            let known = secrets(&["public", &passphrase]);
            let mut ring = Keyring::from_opened(&unlocked, known).unwrap();
            let new = format!("passphrase {round}");
            ring.change(&secret(&passphrase), secret(&new)).unwrap();
            let random = SeededRandom::new(rng.next_u64());
            change_keys(medium, &mut unlocked, &ring, cost(), &random).unwrap();
            passphrase = new;
        }
        all.push(Written::of(&passphrase, &unlocked));
    }
    all
}

fn play(shown: &mut Openings) {
    let seed = shown.begin_disk();
    let mut rng = Rng::new(seed);
    let medium = CrashMedium::new(room());
    medium.keep_past();
    let all = live(&medium, &mut rng);
    let latest = all.last().unwrap();
    for opening in 0..OF_ONE_DISK.min(shown.left()) {
        let context = format!("seed {seed}");
        let fork = medium.fork();
        let first = rng.chance(1, 3);
        let of_a_thousand = [100, 300, 600, 900][(opening % 4) as usize];
        let lies = Lies { of_a_thousand, rng: Rng::new(rng.next_u64()), forges: rng.chance(1, 2) };
        fork.lie_but(Some(lies), Truths { first, ..Truths::default() });
        let passphrase = rng.pick(&all).passphrase.clone();
        shown.note_opening();
        let mut unlocked = match open(&fork, &secrets(&[&passphrase])) {
            Ok(unlocked) => unlocked,
            Err(e) => {
                // A flipped bit may turn the version of the header into an unknown one.
                let refused = [Kind::Corrupt, Kind::Passphrase, Kind::NotFound, Kind::Other];
                assert!(refused.contains(&e.kind()), "{e}");
                shown.note_refused(&e);
                continue;
            }
        };
        let right = if first { latest.is(&unlocked) } else { all.iter().any(|one| one.is(&unlocked)) };
        if right {
            shown.note_right(unlocked.header.generation);
        } else {
            shown.note_wrong(format!("{context}: {passphrase} opens {:?}", unlocked.header));
        }
        // A repair under lies writes only a header that existed, to all copies.
        if rng.chance(1, 3) && repair(&fork, &mut unlocked).is_ok() {
            fork.lie(None);
            let again = open(&fork, &secrets(&[&passphrase])).unwrap();
            if again.header != unlocked.header || !all.iter().any(|one| one.is(&again)) {
                shown.note_wrong(format!("{context}: repaired, {passphrase} opens {:?}", again.header));
            }
        }
    }
}

#[test]
fn what_opens_is_a_header_that_was_written() {
    let mut shown = Openings::new(300, 1);
    while shown.left() > 0 {
        play(&mut shown);
    }
    shown.nothing_is_wrong("header");
}
