//! A directory that answers two reads of one place differently, with any version that the place ever had or with the content of
//! another: every opening shows the latest content of every name, or an error; and nothing is missing without an error.

#[path = "../../../formats/vault/tests/world/mod.rs"]
mod world;

use lacuna_games::fold;
use lacuna_integrity::Choice;
use lacuna_sim::{Lies, Rng, setting};
use lacuna_vault::store::{Anchor, MemoryAnchor};
use lacuna_vault::{FsError, NewNode, ROOT, Vault};
use std::collections::BTreeMap;
use std::sync::Arc;
use world::World;

/// Openings of one vault.
const OPENINGS: u64 = 40;

/// What every name holds.
type Truth = BTreeMap<Vec<u8>, Vec<u8>>;

/// What openings showed.
#[derive(Default)]
struct Shown {
    refused: u64,
    good: u64,
    errors: u64,
    wrong: Vec<String>,
    /// Of what each vault showed.
    digest: u64,
}

impl Shown {
    /// A vault was opened for the last time.
    fn end_vault(&mut self) {
        self.digest = fold(self.digest, self.refused << 42 ^ self.errors << 21 ^ self.good);
    }
}

/// Writes, removes and reopens, and makes each change durable: records of like changes have like lengths.
fn live(world: &mut World, rng: &mut Rng) -> (Vault, Truth) {
    let mut vault = world.create(Choice::Auto);
    let mut truth = Truth::new();
    for step in 0..10 + rng.below(20) {
        let name = vec![b'a' + rng.below(5) as u8];
        let known = vault.lookup(ROOT, &name).ok().map(|attr| attr.ino);
        match (rng.below(10), known) {
            (0, Some(_)) => {
                vault.unlink(ROOT, &name).unwrap();
                truth.remove(&name);
            }
            (1, _) => {
                vault.close().unwrap();
                drop(vault);
                vault = world.open().unwrap();
            }
            _ => {
                let made = || vault.make(ROOT, &name, NewNode::File, 0o644, 0, 0).unwrap().ino;
                let ino = known.unwrap_or_else(made);
                let text = format!("{}-{step:03} ", char::from(name[0]));
                let bytes = text.into_bytes().repeat(512 * (1 + rng.below(3) as usize));
                vault.write(ino, 0, &bytes).unwrap();
                let holds = truth.entry(name).or_default();
                holds.resize(holds.len().max(bytes.len()), 0);
                holds[..bytes.len()].copy_from_slice(&bytes);
            }
        }
        vault.sync().unwrap();
    }
    (vault, truth)
}

/// Compares what a vault shows with the truth.
fn compare(vault: &Vault, truth: &Truth, shown: &mut Shown, context: &str) {
    for name in b'a'..=b'e' {
        let name = vec![name];
        let mut wrong = |what: String| shown.wrong.push(format!("{context}: {} {what}", char::from(name[0])));
        match (vault.lookup(ROOT, &name), truth.get(&name)) {
            (Err(FsError::Errno(libc::ENOENT)), None) => shown.good += 1,
            (Err(FsError::Errno(libc::ENOENT)), Some(_)) => wrong("is missing".into()),
            (Err(_), _) => shown.errors += 1,
            (Ok(_), None) => wrong("is back".into()),
            (Ok(attr), Some(holds)) => {
                let mut bytes = vec![0; holds.len() + 10];
                let read = vault.read(attr.ino, 0, &mut bytes);
                match read {
                    _ if attr.size != holds.len() as u64 => wrong(format!("has {} bytes", attr.size)),
                    Ok(read) if bytes[..read] == holds[..] => shown.good += 1,
                    // A read may end before a block that does not verify.
                    Ok(read) if holds.starts_with(&bytes[..read]) => shown.errors += 1,
                    Err(_) => shown.errors += 1,
                    Ok(_) => wrong(format!("reads {:?}", String::from_utf8_lossy(&bytes[..6]))),
                }
            }
        }
    }
}

/// One vault, opened many times.
fn play(seed: u64, shown: &mut Shown) {
    let (mut world, mut rng) = (World::new(seed), Rng::new(seed));
    world.folder.keep_past();
    let (vault, truth) = live(&mut world, &mut rng);
    if rng.chance(1, 2) {
        vault.close().unwrap();
    }
    drop(vault);
    let (image, state) = (world.folder.snapshot(), world.memory.load().unwrap());
    for opening in 0..OPENINGS {
        let context = format!("seed {seed}, opening {opening}");
        let of_a_thousand = [20, 60, 150, 300, 500][(opening % 5) as usize];
        let only = *rng.pick(&["", "journal", "super"]);
        let lies = Lies { of_a_thousand, rng: Rng::new(rng.next_u64()) };
        world.folder.lie(Some(&lies), |name| name.starts_with(only));
        let writable = rng.chance(1, 4);
        match world.open_with(|options| options.read_only = !writable) {
            Ok(vault) => compare(&vault, &truth, shown, &context),
            Err(_) => shown.refused += 1,
        }
        world.folder.lie(None, |_| true);
        if writable {
            // What was sealed on the strength of lies is the truth, or refused.
            match world.open_with(|options| options.read_only = true) {
                Ok(vault) => compare(&vault, &truth, shown, &format!("{context}, afterwards")),
                Err(_) => shown.refused += 1,
            }
            world.folder.restore(&image);
            world.memory = Arc::new(MemoryAnchor::new(state.clone()));
        }
    }
    shown.end_vault();
}

#[test]
fn two_reads_that_differ_show_the_latest_content_or_an_error() {
    let (openings, first) = (setting("LACUNA_LIES", 2000), setting("LACUNA_SEED", 1));
    let mut shown = Shown::default();
    for seed in first..first + openings.div_ceil(OPENINGS) {
        play(seed, &mut shown);
    }
    let Shown { refused, good, errors, wrong, digest } = shown;
    println!(
        "{openings} openings, seed {first}, {refused} refused, {good} good, {errors} errors, {} wrong, digest {digest:016x}",
        wrong.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(refused > openings / 10 && good > openings && errors > 0, "lies hardly mattered");
}
