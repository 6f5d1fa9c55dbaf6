//! The peek-a-boo game (DNEFS, section 2): an adversary takes snapshots of the whole chip,
//! including superseded pages, at times of its choice, and in the end gets every passphrase. It
//! searches for blocks that did not live in any epoch with a snapshot.
//!
//! `LACUNA_GAMES` sets the games on flash without faults (default 1000). A third of that number of
//! games follows, on flash with blocks that go bad. `LACUNA_SEED` sets the first seed (default 0).

#[path = "../../../formats/flash/tests/fixture/adversary.rs"]
mod adversary;

use adversary::{Adversary, ChipLayout};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, ManualClock, Result, Secret};
use lacuna_crypto::{RandomSource, SeededRandom};
use lacuna_flash::{FlashDisk, OpenOptions, Params, header_lebs};
use lacuna_games::{SeedReporter, fold_counts, game_count, game_seeds};
use lacuna_medium::MemoryMedium;
use lacuna_nand::{ChipGeometry, Flash, FlashGeometry, Leb, Mapping, SimulatedChip, Unerased, WearModel};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const GEOMETRY: ChipGeometry = ChipGeometry { page: 2048, pages: 16, blocks: 56 };
const KEY_LEN: u8 = 32;

struct GameRng(u64);

impl GameRng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Flash that does not drain.
struct UndrainedFlash(Mapping);

impl Flash for UndrainedFlash {
    fn geometry(&self) -> FlashGeometry {
        self.0.geometry()
    }
    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()> {
        self.0.read(block, offset, buf)
    }
    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()> {
        self.0.program(block, offset, data)
    }
    fn change(&self, block: Leb, data: &[u8]) -> Result<()> {
        self.0.change(block, data)
    }
    fn unmap(&self, block: Leb) -> Result<()> {
        self.0.unmap(block)
    }
    fn is_mapped(&self, block: Leb) -> Result<bool> {
        self.0.is_mapped(block)
    }
    fn drain_of(&self, _: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>> {
        Ok(vec![])
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PurgeMode {
    Honest,
    /// No purge at the end of an epoch.
    WithoutPurge,
    /// Key blocks are replaced without a drain.
    WithoutDrain,
}

/// Plays one game. Returns the number of recovered blocks that lived in no epoch with a snapshot,
/// and of those that did.
fn play(seed: u64, play: PurgeMode, wearing: WearModel) -> (usize, usize) {
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(GEOMETRY)));
    SimulatedChip::create(&*medium, GEOMETRY, wearing, seed).unwrap();
    let chip = Arc::new(SimulatedChip::open(medium, seed).unwrap());
    Mapping::create(&*chip, seed).unwrap();
    let mapping = Mapping::open(chip.clone()).unwrap();
    let flash: Arc<dyn Flash> = match play {
        PurgeMode::WithoutDrain => Arc::new(UndrainedFlash(mapping)),
        _ => Arc::new(mapping),
    };
    let params = Params::fitting(flash.geometry(), KEY_LEN, 200).unwrap();
    let (master, random) =
        (Secret::copy_from(&[7; 32]), Arc::new(SeededRandom::new(seed)) as Arc<dyn RandomSource>);
    FlashDisk::create(&flash, &params, &master, &random).unwrap();
    let options = OpenOptions {
        budget: Budget::bytes(1 << 17),
        read_only: false,
        policy: None,
        clock: Arc::new(ManualClock::default()),
        random,
        kept: None,
    };
    let open = || FlashDisk::open(flash.clone(), &params, &master, &options).unwrap();
    let mut disk = open();
    let mut dice = GameRng(seed);
    let image = ChipLayout {
        page: GEOMETRY.page as usize,
        block: GEOMETRY.block_len() as usize,
        key_len: KEY_LEN.into(),
        header_lebs: header_lebs(params.flash),
        key_lebs: params.key_blocks(),
    };
    let mut adversary = Adversary::new(&master, image);
    let blocks = params.blocks.min(40);
    // Each version: its content, and the epochs when it was written and deleted.
    let mut versions: Vec<(Vec<u8>, u64, Option<u64>)> = vec![];
    let mut current: BTreeMap<u64, usize> = BTreeMap::new();
    let mut looked = BTreeSet::new();
    let epochs = 2 + dice.below(5);
    for epoch in 0..epochs {
        for _ in 0..=dice.below(12) {
            let block = dice.below(blocks);
            if let Some(old) = current.remove(&block) {
                versions[old].2 = Some(epoch);
            }
            if dice.below(4) == 0 {
                disk.discard(BlockAddr(block), 1).unwrap();
            } else {
                let word = (dice.below(1 << 30) << 32 | versions.len() as u64).to_le_bytes();
                let data: Vec<u8> = word.iter().copied().cycle().take(BLOCK_SIZE).collect();
                disk.write(BlockAddr(block), &data).unwrap();
                current.insert(block, versions.len());
                versions.push((data, epoch, None));
            }
            match dice.below(12) {
                0..4 => disk.flush().unwrap(),
                4 => {
                    disk.flush().unwrap();
                    // Reopens as after a crash: deleted data stays deleted, and fresh key blocks
                    // are not fresh any more.
                    drop(disk);
                    disk = open();
                }
                5 => {
                    adversary.look(&chip.image().unwrap());
                    looked.insert(epoch);
                }
                _ => {}
            }
        }
        if play == PurgeMode::WithoutPurge {
            disk.flush().unwrap();
        } else {
            disk.purge().unwrap();
        }
    }
    adversary.look(&chip.image().unwrap());
    looked.insert(epochs);
    let recovered = adversary.recovered();
    let (mut outside, mut inside) = (0, 0);
    for (data, written, deleted) in &versions {
        let lifetime = *written..=deleted.unwrap_or(u64::MAX);
        let was_seen = looked.iter().any(|epoch| lifetime.contains(epoch));
        if recovered.contains(data) {
            if was_seen { inside += 1 } else { outside += 1 }
        }
    }
    (outside, inside)
}

/// Plays honest games, and checks that the adversary never recovers a forbidden block. Returns the
/// number of permitted blocks that it recovers.
fn assert_nothing_found(seeds: Range<u64>, wearing: WearModel) -> u64 {
    let (mut found, mut digest) = (0, 0);
    for seed in seeds.clone() {
        let _seed = SeedReporter(seed);
        let (outside, inside) = play(seed, PurgeMode::Honest, wearing);
        assert_eq!(outside, 0, "seed {seed}");
        found += inside as u64;
        digest = fold_counts(digest, inside as u64);
    }
    println!("{found} blocks of epochs that were seen, seed {}, digest {digest:016x}", seeds.start);
    found
}

#[test]
fn data_of_epochs_without_a_snapshot_is_never_found() {
    let inside = assert_nothing_found(game_seeds(0, 1000), WearModel::default());
    assert!(inside > game_count(1000), "the adversary decrypts the permitted blocks: {inside}");
}

/// The number of forbidden blocks that the adversary recovers.
fn count_found(kind: PurgeMode) -> usize {
    (0..50).map(|seed| play(seed, kind, WearModel::default()).0).sum()
}

#[test]
fn data_is_found_without_the_purge_or_the_drain() {
    assert!(count_found(PurgeMode::WithoutPurge) > 50);
    assert!(count_found(PurgeMode::WithoutDrain) > 5);
}

#[test]
fn bad_blocks_that_hold_keys_reveal_nothing() {
    let wearing = WearModel { erase_faults: 4000, program_faults: 500, ..WearModel::default() };
    let Range { start, .. } = game_seeds(0, 1000);
    assert_nothing_found(start..start + game_count(1000) / 3, wearing);
}
