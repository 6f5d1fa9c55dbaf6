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
use lacuna_header::{
    HEADER_AREA, Keyring, OpenHeader, PublicHeader, change_keys, open, repair, update_params,
};
use lacuna_sim::{CrashMedium, HonestReads, Lies, Rng};
use lacuna_testkit::openings::OpeningResults;

/// The number of openings of one disk.
const OPENINGS_PER_DISK: u64 = 30;

/// A header as it was written: a passphrase that opens it, and the decrypted content.
struct WrittenHeader {
    passphrase: String,
    header: PublicHeader,
    keys: Vec<[u8; 32]>,
}

impl WrittenHeader {
    fn from_unlocked(passphrase: &str, unlocked: &OpenHeader) -> WrittenHeader {
        WrittenHeader { passphrase: passphrase.into(), header: unlocked.header.clone(), keys: keys(unlocked) }
    }

    fn matches(&self, unlocked: &OpenHeader) -> bool {
        self.header == unlocked.header && self.keys == keys(unlocked)
    }
}

/// Changes the passphrase and the parameters several times. Returns all headers, oldest first.
fn write_headers(medium: &CrashMedium, rng: &mut Rng) -> Vec<WrittenHeader> {
    let mut unlocked = make(medium, &[&["public"], &["old"]], rng.next_u64()).unwrap();
    let mut passphrase = "old".to_owned();
    let mut all = vec![WrittenHeader::from_unlocked(&passphrase, &unlocked)];
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
        all.push(WrittenHeader::from_unlocked(&passphrase, &unlocked));
    }
    all
}

fn open_one_disk(shown: &mut OpeningResults) {
    let seed = shown.begin_disk();
    let mut rng = Rng::new(seed);
    let medium = CrashMedium::new(room());
    medium.keep_history();
    let all = write_headers(&medium, &mut rng);
    let latest = all.last().unwrap();
    for opening in 0..OPENINGS_PER_DISK.min(shown.remaining()) {
        let context = format!("seed {seed}");
        let fork = medium.fork();
        let first = rng.chance(1, 3);
        let of_a_thousand = [100, 300, 600, 900][(opening % 4) as usize];
        let lies =
            Lies { per_mille: of_a_thousand, rng: Rng::new(rng.next_u64()), may_forge: rng.chance(1, 2) };
        fork.set_lies_except(Some(lies), HonestReads { first_reads: first, ..HonestReads::default() });
        let passphrase = rng.pick(&all).passphrase.clone();
        shown.count_opening();
        let mut unlocked = match open(&fork, &secrets(&[&passphrase])) {
            Ok(unlocked) => unlocked,
            Err(e) => {
                // A flipped bit may turn the version of the header into an unknown one.
                let refused = [Kind::Corrupt, Kind::Passphrase, Kind::NotFound, Kind::Other];
                assert!(refused.contains(&e.kind()), "{e}");
                shown.count_refused(&e);
                continue;
            }
        };
        let right =
            if first { latest.matches(&unlocked) } else { all.iter().any(|one| one.matches(&unlocked)) };
        if right {
            shown.count_correct(unlocked.header.generation);
        } else {
            shown.add_violation(format!("{context}: {passphrase} opens {:?}", unlocked.header));
        }
        // A repair under lies writes only a header that existed, to all copies.
        if rng.chance(1, 3) && repair(&fork, &mut unlocked).is_ok() {
            fork.set_lies(None);
            let again = open(&fork, &secrets(&[&passphrase])).unwrap();
            if again.header != unlocked.header || !all.iter().any(|one| one.matches(&again)) {
                shown.add_violation(format!("{context}: repaired, {passphrase} opens {:?}", again.header));
            }
        }
    }
}

#[test]
fn a_header_that_opens_was_written() {
    let mut shown = OpeningResults::new(300, 1);
    while shown.remaining() > 0 {
        open_one_disk(&mut shown);
    }
    shown.assert_nothing_wrong("header");
}
