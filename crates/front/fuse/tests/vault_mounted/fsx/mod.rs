//! Performs the same random operations in a vault and in a plain directory: all answers must be
//! equal, and so must the trees, also after the vault was unmounted and mounted again. It is an
//! `fsx` for a whole tree instead of one file.
//!
//! `LACUNA_FSX_SECONDS` sets the duration (36), `LACUNA_SEED` the seed (1). The seed of a failed
//! round is printed; with it as `LACUNA_SEED` the first round fails. The first round is repeated at
//! the end, and its digest must be the same.

mod fs_under_test;
mod operation;
mod tree;

use crate::fixture::{VaultFixture, open_directory, say, skip_if};
use crate::machine::lacking;
use crate::serving::MountMode;
use fs_under_test::FsUnderTest;
use lacuna_sim::{Rng, env_number};
use operation::FsOp;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Operations per round.
const OPS_PER_ROUND: usize = 2500;
/// Mean number of operations between two mounts.
const OPS_PER_MOUNT: u64 = 400;
/// Mean number of operations between two comparisons of the whole trees.
const OPS_PER_COMPARISON: u64 = 250;
/// Number of operations that a failure shows.
const SHOWN: usize = 40;

#[test]
fn random_operations_match_a_plain_directory() {
    skip_if!(lacking());
    let time = Duration::from_secs(env_number("LACUNA_FSX_SECONDS", 36));
    let first = env_number("LACUNA_SEED", 1);
    let (place, plain) = (VaultFixture::new(), open_directory());
    let mut server = Some(place.mount(MountMode::Create));
    let mut play = |seed: u64| {
        let tops = [place.mountpoint(), plain.path().to_owned()].map(|at| at.join(format!("round {seed}")));
        let mut round = FsxRound::new(seed, &tops);
        round.run(|| {
            place.unmount(server.take().unwrap());
            server = Some(place.mount(MountMode::Open));
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
    say(&format!(
        "{} rounds of {OPS_PER_ROUND} operations, seeds from {first}: digest {digest:016x}",
        seed - first
    ));
    place.unmount_and_verify(server.unwrap());
}

/// One sequence of operations, on an empty directory in the vault and on a plain one.
struct FsxRound {
    seed: u64,
    random: Rng,
    vault: FsUnderTest,
    plain: FsUnderTest,
    tops: [PathBuf; 2],
    ops: Vec<FsOp>,
    /// Digest of all answers and trees until now.
    digest: u64,
}

impl FsxRound {
    fn new(seed: u64, tops: &[PathBuf; 2]) -> Self {
        // Targets of symbolic links with `..` stay inside.
        let roots = tops.each_ref().map(|top| top.join("above/root"));
        roots.iter().for_each(|root| fs::create_dir_all(root).unwrap());
        set_scheme(&roots[0], seed);
        let [vault, plain] = [FsUnderTest::new(&roots[0], true), FsUnderTest::new(&roots[1], false)];
        FsxRound { seed, random: Rng::new(seed), vault, plain, tops: tops.clone(), ops: vec![], digest: 0 }
    }

    fn run(&mut self, mut mount_again: impl FnMut()) {
        for _ in 0..OPS_PER_ROUND {
            let act = FsOp::random(&mut self.random);
            self.ops.push(act.clone());
            let (vault, plain) = (self.vault.apply(&act), self.plain.apply(&act));
            if vault != plain {
                self.fail(&format!("the vault answers {vault:?}\n the directory answers {plain:?}"));
            }
            self.digest = tree::fold(self.digest, format!("{vault:?}").as_bytes());
            if self.random.chance(1, OPS_PER_MOUNT) {
                self.close();
                mount_again();
            }
            if self.random.chance(1, OPS_PER_COMPARISON) {
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
        let from = self.ops.len().saturating_sub(SHOWN);
        let acts: Vec<String> =
            self.ops[from..].iter().enumerate().map(|(n, act)| format!("{:5} {act:?}", from + n)).collect();
        panic!(
            "LACUNA_SEED={}, operation {}: {why}\nafter\n{}",
            self.seed,
            self.ops.len() - 1,
            acts.join("\n")
        );
    }
}

/// Each round uses another scheme for its files.
fn set_scheme(root: &Path, seed: u64) {
    let scheme: &[u8] = [&b"auto"[..], b"mt", b"rand", b"comp"][(seed % 4) as usize];
    let any = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root, "user.lacuna.integrity", scheme, any).unwrap();
}
