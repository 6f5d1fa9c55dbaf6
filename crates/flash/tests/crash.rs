//! Power cuts at every operation of random workloads, purges, checkpoints, garbage collection and bad blocks among them, beside a
//! plain model; after each the key state map is compared with a full scan.

use lacuna_core::{BLOCK_SIZE, BlockAddr, Budget, Disk, Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_flash::{FlashDisk, OpenOptions, Params};
use lacuna_medium::MemoryMedium;
use lacuna_nand::{ChipGeometry, Flash, Mapping, PowerCut, SimulatedChip, Wearing};
use std::sync::Arc;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// What a block may read as: the last durable version first, then later ones. 0 is a hole.
type Versions = Vec<u64>;

struct Bed {
    medium: Arc<MemoryMedium>,
    params: Params,
    master: Secret<32>,
    seed: u64,
}

impl Bed {
    fn new(geometry: ChipGeometry, wearing: Wearing, key_len: u8, seed: u64) -> Bed {
        let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(geometry)));
        SimulatedChip::create(&*medium, geometry, wearing, seed).unwrap();
        let chip = Arc::new(SimulatedChip::open(medium.clone(), seed).unwrap());
        Mapping::create(&*chip, seed).unwrap();
        let flash: Arc<dyn Flash> = Arc::new(Mapping::open(chip).unwrap());
        let params = Params::fitting(flash.geometry(), key_len, 150).unwrap();
        let master = Secret::copy_from(&[7; 32]);
        let random: Arc<dyn lacuna_crypto::RandomSource> = Arc::new(SeededRandom::new(seed));
        FlashDisk::create(&flash, &params, &master, &random).unwrap();
        Bed { medium, params, master, seed }
    }

    fn open(&mut self, cut: Option<PowerCut>) -> (Arc<SimulatedChip>, Result<FlashDisk>) {
        self.seed += 1;
        let chip = Arc::new(SimulatedChip::open(self.medium.clone(), self.seed).unwrap());
        let mapping = Mapping::open(chip.clone()).unwrap();
        if let Some(cut) = cut {
            chip.cut_power(cut);
        }
        let options = OpenOptions {
            budget: Budget::bytes(1 << 17),
            read_only: false,
            policy: None,
            random: Arc::new(SeededRandom::new(self.seed)),
        };
        (chip, FlashDisk::open(Arc::new(mapping), &self.params, &self.master, &options))
    }
}

fn content(block: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK_SIZE];
    }
    let word = (version << 20 | block).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK_SIZE).collect()
}

fn step(disk: &FlashDisk, models: &mut [Versions], stamp: &mut u64, random: &mut Random) -> Result<()> {
    let blocks = models.len() as u64;
    match random.below(40) {
        0..26 => {
            let first = if random.below(2) == 0 { random.below(blocks) } else { random.below(blocks / 8) };
            let most = if random.below(5) == 0 { 60 } else { 4 };
            let count = (1 + random.below(most)).min(blocks - first);
            *stamp += 1;
            let data: Vec<u8> = (first..first + count).flat_map(|block| content(block, *stamp)).collect();
            for block in first..first + count {
                models[block as usize].push(*stamp);
            }
            disk.write(BlockAddr(first), &data)
        }
        26..30 => {
            let first = random.below(blocks);
            let count = (1 + random.below(40)).min(blocks - first);
            models[first as usize..(first + count) as usize].iter_mut().for_each(|model| model.push(0));
            disk.discard(BlockAddr(first), count)
        }
        30..37 => {
            disk.flush()?;
            models.iter_mut().for_each(settle);
            Ok(())
        }
        _ => {
            disk.purge()?;
            models.iter_mut().for_each(settle);
            assert_eq!(disk.recoverable(), 0);
            Ok(())
        }
    }
}

fn settle(model: &mut Versions) {
    *model = vec![*model.last().unwrap()];
}

/// What a disk reads as, if the models allow it; they hold that alone afterwards.
fn check(disk: &FlashDisk, models: &mut [Versions], what: &str) {
    for (block, model) in (0..).zip(models.iter_mut()) {
        let mut found = vec![0; BLOCK_SIZE];
        disk.read(BlockAddr(block), &mut found).unwrap_or_else(|e| panic!("{what}: block {block}: {e}"));
        let version = model.iter().rev().find(|version| content(block, **version) == found);
        let version = *version.unwrap_or_else(|| panic!("{what}: block {block} reads as none of {model:?}"));
        *model = vec![version];
    }
    assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new(), "{what}: keys");
}

fn cuts(geometry: ChipGeometry, wearing: Wearing, key_len: u8, seed: u64, cuts: u32) {
    let mut bed = Bed::new(geometry, wearing, key_len, seed);
    let mut random = Random(seed);
    let mut models = vec![vec![0]; bed.params.blocks as usize];
    let mut stamp = 0;
    for round in 0..cuts {
        let what = format!("seed {seed}, cut {round}");
        let cut = PowerCut { after: random.below(250), seed: random.below(1 << 40) };
        let (chip, disk) = bed.open(Some(cut));
        let failure = match disk {
            Ok(disk) => {
                check(&disk, &mut models, &what);
                loop {
                    if let Err(e) = step(&disk, &mut models, &mut stamp, &mut random) {
                        break e;
                    }
                }
            }
            Err(e) => e,
        };
        assert!(chip.is_off(), "{what}: {failure}");
    }
    let (_, disk) = bed.open(None);
    let disk = disk.unwrap();
    check(&disk, &mut models, "at the end");
    disk.close().unwrap();
    assert_eq!(disk.recoverable(), 0);
    let (_, disk) = bed.open(None);
    check(&disk.unwrap(), &mut models, "after closing");
}

const SMALL: ChipGeometry = ChipGeometry { page: 2048, pages: 16, blocks: 64 };

fn asked(default: u32) -> u32 {
    std::env::var("LACUNA_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(default)
}

#[test]
fn power_cuts() {
    for seed in 1..=4 {
        cuts(SMALL, Wearing::default(), 32, seed, asked(150) / 4 + 1);
    }
}

#[test]
fn power_cuts_with_short_keys_and_other_pages() {
    cuts(ChipGeometry { page: 512, pages: 64, blocks: 60 }, Wearing::default(), 16, 5, asked(40));
    cuts(ChipGeometry { page: 4096, pages: 16, blocks: 60 }, Wearing::default(), 32, 6, asked(40));
    cuts(ChipGeometry { page: 16384, pages: 8, blocks: 64 }, Wearing::default(), 16, 7, asked(40));
}
