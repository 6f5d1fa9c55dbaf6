//! Logical erase blocks against a model: power cuts at every operation, bad blocks, wear, and the
//! adversary's view of the chip before and after a drain.

use lacuna_contracts::{Kind, Result};
use lacuna_medium::{Medium, MemoryMedium, ReadExtent};
use lacuna_nand::{ChipGeometry, Flash, Leb, Mapping, PowerCut, SimulatedChip, WearModel};
use lacuna_sim::{InterceptedMedium, MediumInterceptor};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const GEOMETRY: ChipGeometry = ChipGeometry { page: 512, pages: 8, blocks: 40 };

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn some_pages(&mut self, least: u64, most: u64) -> Vec<u8> {
        let count = least + self.below(most - least + 1);
        self.pages(count)
    }

    fn pages(&mut self, pages: u64) -> Vec<u8> {
        let stamp = self.below(1 << 31);
        let mut bytes = vec![0; pages as usize * GEOMETRY.page as usize];
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(stamp << 20 | at as u64).to_le_bytes());
        }
        bytes
    }
}

/// The possible contents of a LEB.
#[derive(Clone, Default)]
struct LebModel {
    /// Acknowledged content.
    content: Vec<u8>,
    /// Contents that a cut may leave instead: those before an unmapping, or before an interrupted
    /// change.
    others: Vec<Vec<u8>>,
    /// The offset of the pages that were being programmed at the cut.
    torn: Option<usize>,
}

fn chip(wearing: WearModel, seed: u64) -> Arc<MemoryMedium> {
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(GEOMETRY)));
    SimulatedChip::create(&*medium, GEOMETRY, wearing, seed).unwrap();
    let chip = SimulatedChip::open(medium.clone(), seed).unwrap();
    Mapping::create(&chip, 7).unwrap();
    medium
}

fn open(medium: &Arc<MemoryMedium>, seed: u64) -> (Arc<SimulatedChip>, Mapping) {
    let chip = Arc::new(SimulatedChip::open(medium.clone(), seed).unwrap());
    (chip.clone(), Mapping::open(chip).unwrap())
}

fn content(flash: &Mapping, leb: Leb) -> Vec<u8> {
    let mut content = vec![0; flash.geometry().leb_len as usize];
    flash.read(leb, 0, &mut content).unwrap();
    content
}

fn padded(content: &[u8], len: usize) -> Vec<u8> {
    let mut padded = content.to_vec();
    padded.resize(len, 0xff);
    padded
}

/// Performs one operation on flash and model. The model is updated first, with the possible
/// outcomes of a cut.
fn step(flash: &Mapping, models: &mut [LebModel], random: &mut Random) -> Result<()> {
    let leb = random.below(models.len() as u64) as u32;
    let model = &mut models[leb as usize];
    let page = GEOMETRY.page as usize;
    let pages = u64::from(flash.geometry().leb_len) / page as u64;
    let free = pages - (model.content.len() / page) as u64;
    match random.below(8) {
        0..4 if free > 0 => {
            let data = random.some_pages(1, free);
            let offset = model.content.len();
            model.torn = Some(offset);
            model.content.extend_from_slice(&data);
            flash.program(Leb(leb), offset as u32, &data)?;
            model.torn = None;
            model.others.clear();
        }
        4 => {
            model.others.push(std::mem::take(&mut model.content));
            flash.unmap(Leb(leb))?;
        }
        5 => {
            assert!(flash.drain()?.is_empty());
            models.iter_mut().for_each(|model| model.others.clear());
        }
        _ => {
            let data = random.some_pages(0, pages);
            model.others.push(std::mem::replace(&mut model.content, data.clone()));
            flash.change(Leb(leb), &data)?;
            model.others.clear();
        }
    }
    Ok(())
}

fn check(flash: &Mapping, models: &mut [LebModel]) {
    let len = flash.geometry().leb_len as usize;
    for (leb, model) in (0..).zip(models.iter_mut()) {
        let found = content(flash, Leb(leb));
        let mut candidates = std::mem::take(&mut model.others);
        candidates.push(model.content.clone());
        let whole = candidates.into_iter().find(|content| found == padded(content, len));
        let torn = model.torn.take().filter(|torn| found[..*torn] == model.content[..*torn]);
        assert!(whole.is_some() || torn.is_some(), "LEB {leb} holds neither its old content nor the new");
        model.content = whole.unwrap_or_else(|| {
            let used = found.iter().rposition(|byte| *byte != 0xff).map_or(0, |last| last + 1);
            found[..used.next_multiple_of(GEOMETRY.page as usize)].to_vec()
        });
    }
}

#[test]
fn a_power_cut_leaves_the_old_or_the_new_content() {
    let mut cuts = 0;
    for seed in 0..12 {
        let medium = chip(WearModel::default(), seed);
        let mut random = Random(seed);
        let lebs = open(&medium, seed).1.geometry().lebs.min(12);
        let mut models = vec![LebModel::default(); lebs as usize];
        for round in 0..60 {
            let (chip, flash) = open(&medium, seed);
            check(&flash, &mut models);
            // An interrupted operation may leave arbitrary bytes behind the known content. The test
            // repairs that as a format would.
            for (leb, model) in (0..).zip(&models) {
                flash.change(Leb(leb), &model.content).unwrap();
            }
            chip.cut_power(PowerCut { after: random.below(40), seed: random.below(1 << 30) });
            while step(&flash, &mut models, &mut random).is_ok() {}
            assert!(chip.is_off(), "round {round}");
            cuts += 1;
        }
    }
    assert_eq!(cuts, 720);
}

#[test]
fn superseded_copies_stay_on_the_chip_until_a_drain() {
    let medium = chip(WearModel::default(), 1);
    let (chip, flash) = open(&medium, 1);
    let secret = Random(5).pages(3);
    let found = |chip: &SimulatedChip| chip.image().unwrap().windows(secret.len()).any(|part| part == secret);
    flash.change(Leb(3), &secret).unwrap();
    flash.change(Leb(3), &Random(6).pages(2)).unwrap();
    assert!(found(&chip));
    assert!(flash.drain().unwrap().is_empty());
    assert!(!found(&chip));
    flash.program(Leb(4), 0, &secret).unwrap();
    flash.unmap(Leb(4)).unwrap();
    assert!(!flash.is_mapped(Leb(4)).unwrap() && found(&chip));
    assert!(flash.erase(Leb(4)).unwrap().is_empty());
    assert!(!found(&chip));
}

#[test]
fn bad_blocks_lose_no_data_and_a_worn_out_chip_refuses_writes() {
    let (mut unerased, mut worn) = (0, 0);
    for seed in 0..20 {
        let wearing = WearModel { endurance: 60, program_faults: 100, erase_faults: 300, factory_bad: 50 };
        let medium = chip(wearing, seed);
        let (mut chip, mut flash) = open(&medium, seed);
        let mut random = Random(seed);
        let lebs = flash.geometry().lebs;
        let mut contents = vec![vec![]; lebs as usize];
        let failure = loop {
            let leb = random.below(u64::from(lebs)) as u32;
            let data = random.some_pages(0, 6);
            if let Err(e) = flash.change(Leb(leb), &data) {
                break e;
            }
            contents[leb as usize] = data;
            if random.below(30) == 0 {
                match flash.drain() {
                    Ok(found) => unerased += found.len(),
                    Err(e) => break e,
                }
            }
            if random.below(200) == 0 {
                drop(flash);
                (chip, flash) = open(&medium, random.below(1 << 30));
            }
        };
        assert_eq!(failure.kind(), Kind::ReadOnly, "{failure}");
        let wear = flash.wear();
        assert!(wear.bad > 0 && wear.spare == 0);
        worn += chip.erasures().iter().filter(|erasures| **erasures >= 60).count();
        for (leb, data) in (0..).zip(&contents) {
            let len = flash.geometry().leb_len as usize;
            assert!(content(&flash, Leb(leb)) == padded(data, len), "seed {seed}, LEB {leb}");
        }
    }
    assert!(unerased > 20 && worn > 20, "{unerased} copies that could not be erased, {worn} blocks worn out");
}

#[test]
fn wear_is_level_though_most_blocks_never_change() {
    let medium = chip(WearModel::default(), 1);
    let (_, flash) = open(&medium, 1);
    let mut random = Random(3);
    let lebs = flash.geometry().lebs;
    for leb in 0..lebs {
        flash.change(Leb(leb), &random.pages(6)).unwrap();
    }
    for _ in 0..20_000 {
        flash.change(Leb(random.below(3) as u32), &random.pages(6)).unwrap();
    }
    let wear = flash.wear();
    assert!(wear.moved > 0 && wear.inequality() < 0.05, "{wear:?} {}", wear.inequality());
}

#[test]
fn the_chip_enforces_its_rules() {
    use lacuna_nand::{Chip, ChipFault, Peb};
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(GEOMETRY)));
    SimulatedChip::create(&*medium, GEOMETRY, WearModel::default(), 1).unwrap();
    let chip = SimulatedChip::open(medium, 1).unwrap();
    let page = vec![1; GEOMETRY.page as usize];
    let forbidden =
        |done: std::result::Result<(), ChipFault>| assert!(matches!(done, Err(ChipFault::Other(_))));
    chip.program(Peb(3), 2, &page).unwrap();
    forbidden(chip.program(Peb(3), 2, &page));
    forbidden(chip.program(Peb(3), 1, &page));
    forbidden(chip.program(Peb(3), 3, &page[1..]));
    forbidden(chip.program(Peb(3), 7, &[page.clone(), page.clone()].concat()));
    forbidden(chip.program(Peb(40), 0, &page));
    chip.erase(Peb(3)).unwrap();
    chip.program(Peb(3), 0, &page).unwrap();
    chip.mark_bad(Peb(3)).unwrap();
    forbidden(chip.erase(Peb(3)));
    assert!(chip.is_bad(Peb(3)).unwrap());
}

/// A medium that counts reads.
struct CountingMedium {
    medium: Arc<MemoryMedium>,
    reads: AtomicU64,
}

impl MediumInterceptor for CountingMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.medium
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.reads.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.medium.read(batch)
    }
}

/// Shows that opening a large chip takes one read per block, and one more for each block with a
/// checksum of its content. Erased pages behind the headers are not read.
#[test]
fn an_opening_reads_each_block_once() {
    let geometry = ChipGeometry { blocks: 2000, ..GEOMETRY };
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(geometry)));
    SimulatedChip::create(&*medium, geometry, WearModel { factory_bad: 10, ..WearModel::default() }, 1)
        .unwrap();
    let (chip, mut random) = (Arc::new(SimulatedChip::open(medium.clone(), 1).unwrap()), Random(9));
    Mapping::create(&*chip, 7).unwrap();
    let flash = Mapping::open(chip).unwrap();
    for leb in (0..300).map(Leb) {
        flash.program(leb, 0, &random.pages(3)).unwrap();
    }
    for leb in (300..340).map(Leb) {
        flash.change(leb, &random.pages(6)).unwrap();
    }
    let held: Vec<Vec<u8>> = (0..flash.geometry().lebs).map(|leb| content(&flash, Leb(leb))).collect();
    drop(flash);
    let counting = Arc::new(InterceptedMedium(CountingMedium { medium, reads: AtomicU64::new(0) }));
    let chip = Arc::new(SimulatedChip::open(counting.clone(), 2).unwrap());
    let flash = Mapping::open(chip).unwrap();
    let reads = counting.0.reads.load(Ordering::Relaxed);
    // The head of the chip and the states of its blocks are read first.
    assert!(reads <= 2 + 2000 + 40, "{reads}");
    assert!(held.iter().zip(0..).all(|(held, leb)| *held == content(&flash, Leb(leb))));
    // Reads of unmapped LEBs and of erased pages do not read the medium.
    let before = counting.0.reads.load(Ordering::Relaxed);
    content(&flash, Leb(1000));
    flash.read(Leb(0), 3 * GEOMETRY.page, &mut vec![0; GEOMETRY.page as usize]).unwrap();
    assert_eq!(counting.0.reads.load(Ordering::Relaxed), before);
}

/// Shows that the content of a bad block without a header is reported. An erasure destroys the
/// header first, so a block that goes bad in an interrupted erasure may still have content.
#[test]
fn a_drain_returns_the_content_of_a_bad_block_without_a_header() {
    use lacuna_nand::{Chip, Peb};
    let medium = chip(WearModel::default(), 1);
    let (chip, flash) = open(&medium, 1);
    let data = Random(5).pages(2);
    let is_free = |peb: &u32| chip.program(Peb(*peb), 5, &data).is_ok();
    let free = (0..GEOMETRY.blocks).rev().find(is_free).unwrap();
    chip.erase(Peb(free)).unwrap();
    chip.program(Peb(free), 5, &data).unwrap();
    chip.mark_bad(Peb(free)).unwrap();
    drop(flash);
    let (_, flash) = open(&medium, 2);
    assert!(flash.drain_of(&|copy| copy.leb.is_some()).unwrap().is_empty());
    let copies = flash.drain().unwrap();
    assert_eq!((copies.len(), copies[0].leb), (1, None));
    assert!(copies[0].content.windows(data.len()).any(|part| part == data));
}

#[test]
fn a_medium_without_a_chip_or_a_mapping_is_refused() {
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(GEOMETRY)));
    assert_eq!(SimulatedChip::open(medium.clone(), 1).err().unwrap().kind(), Kind::NotFound);
    SimulatedChip::create(&*medium, GEOMETRY, WearModel::default(), 1).unwrap();
    let chip = Arc::new(SimulatedChip::open(medium, 1).unwrap());
    assert_eq!(Mapping::open(chip.clone()).err().unwrap().kind(), Kind::NotFound);
    Mapping::create(&*chip, 1).unwrap();
    chip.cut_power(PowerCut { after: 60, seed: 2 });
    assert!(Mapping::create(&*chip, 2).is_err());
}
