//! Random operations in a vault and, the same, in a plain directory: every answer must be equal,
//! and so must the trees, also after the vault was unmounted and mounted again. It does for a whole
//! tree what `fsx` does for one file.
//!
//! `LACUNA_FSX_SECONDS` says for how long (36), `LACUNA_SEED` where the randomness begins (1). The
//! seed of a round that fails is printed; with it the first round fails. The first round is played
//! again at the end, and its digest must be the same.

mod act;
mod side;
mod tree;

use crate::machine::{lacking, say};
use crate::place::{Place, needs, open_directory};
use crate::serving::How;
use act::Act;
use lacuna_sim::{Rng, setting};
use side::Side;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Operations of one round.
const ACTS: usize = 2500;
/// Operations between two mounts, on average.
const ACTS_OF_A_MOUNT: u64 = 400;
/// Operations between two comparisons of the whole trees, on average.
const ACTS_OF_A_TREE: u64 = 250;
/// Operations that a failure shows.
const SHOWN: usize = 40;

#[test]
fn random_operations_beside_a_plain_directory() {
    needs!(lacking());
    let time = Duration::from_secs(setting("LACUNA_FSX_SECONDS", 36));
    let first = setting("LACUNA_SEED", 1);
    let (place, plain) = (Place::new(), open_directory());
    let mut server = Some(place.mount(How::Create));
    let mut play = |seed: u64| {
        let tops = [place.mountpoint(), plain.path().to_owned()].map(|at| at.join(format!("round {seed}")));
        let mut round = Round::new(seed, &tops);
        round.run(|| {
            place.unmount(server.take().unwrap());
            server = Some(place.mount(How::Open));
        });
        let digest = round.digest;
        drop(round);
        tops.iter().for_each(|top| fs::remove_dir_all(top).unwrap());
        digest
    };
    let began = Instant::now();
    let digest = play(first);
    let mut seed = first + 1;
    while began.elapsed() < time {
        play(seed);
        seed += 1;
    }
    assert_eq!(play(first), digest, "seed {first} did something else the second time");
    say(&format!("{} rounds of {ACTS} operations, seeds from {first}: digest {digest:016x}", seed - first));
    place.unmount(server.unwrap());
    place.verify();
    place.assert_nothing_left();
}

/// One sequence of operations, on an empty directory in the vault and on a plain one.
struct Round {
    seed: u64,
    random: Rng,
    vault: Side,
    plain: Side,
    tops: [PathBuf; 2],
    acts: Vec<Act>,
    /// Of every answer and every tree so far.
    digest: u64,
}

impl Round {
    fn new(seed: u64, tops: &[PathBuf; 2]) -> Self {
        // What symbolic links lead to is still inside.
        let roots = tops.each_ref().map(|top| top.join("above/root"));
        roots.iter().for_each(|root| fs::create_dir_all(root).unwrap());
        set_scheme(&roots[0], seed);
        let [vault, plain] = [Side::new(&roots[0], true), Side::new(&roots[1], false)];
        Round { seed, random: Rng::new(seed), vault, plain, tops: tops.clone(), acts: vec![], digest: 0 }
    }

    fn run(&mut self, mut mount_again: impl FnMut()) {
        for _ in 0..ACTS {
            let act = Act::random(&mut self.random);
            self.acts.push(act.clone());
            let (vault, plain) = (self.vault.apply(&act), self.plain.apply(&act));
            if vault != plain {
                self.fail(&format!("the vault answers {vault:?}\n the directory answers {plain:?}"));
            }
            self.digest = tree::fold(self.digest, format!("{vault:?}").as_bytes());
            if self.random.chance(1, ACTS_OF_A_MOUNT) {
                self.close();
                mount_again();
            }
            if self.random.chance(1, ACTS_OF_A_TREE) {
                self.compare();
            }
        }
        self.compare();
        self.close();
        mount_again();
        self.compare();
    }

    fn close(&mut self) {
        self.vault.close();
        self.plain.close();
    }

    fn compare(&mut self) {
        let [vault, plain] = self.tops.each_ref().map(|top| tree::read(top));
        let gone =
            plain.iter().filter(|node| !vault.contains(node)).map(|node| format!("only outside: {node:?}"));
        let new = vault
            .iter()
            .filter(|node| !plain.contains(node))
            .map(|node| format!("only in the vault: {node:?}"));
        let different: Vec<String> = gone.chain(new).collect();
        if !different.is_empty() {
            self.fail(&format!("the trees differ:\n {}", different.join("\n ")));
        }
        self.digest = vault.iter().fold(self.digest, |sum, node| tree::fold(sum, node.as_bytes()));
    }

    fn fail(&self, why: &str) -> ! {
        let from = self.acts.len().saturating_sub(SHOWN);
        let acts: Vec<String> =
            self.acts[from..].iter().enumerate().map(|(n, act)| format!("{:5} {act:?}", from + n)).collect();
        panic!(
            "LACUNA_SEED={}, operation {}: {why}\nafter\n{}",
            self.seed,
            self.acts.len() - 1,
            acts.join("\n")
        );
    }
}

/// Each round protects its files in another way.
fn set_scheme(root: &Path, seed: u64) {
    let scheme: &[u8] = [&b"auto"[..], b"mt", b"rand", b"comp"][(seed % 4) as usize];
    let any = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root, "user.lacuna.integrity", scheme, any).unwrap();
}
