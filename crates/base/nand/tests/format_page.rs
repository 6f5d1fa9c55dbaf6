//! Shows that `docs/format/nand.md` and the code agree: the independent reader finds the data that
//! the code wrote, and the numbers are the same. Also shows that a chip kept from earlier opens.

mod second_reader;

use lacuna_medium::MemoryMedium;
use lacuna_nand::{Chip, ChipGeometry, Flash, FlashGeometry, Leb, Mapping, Peb, SimulatedChip, WearModel};
use lacuna_testkit::format_page::FormatPage;
use lacuna_testkit::golden_medium;
use second_reader::Lebs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const GEOMETRY: ChipGeometry = ChipGeometry { page: 512, pages: 8, blocks: 48 };

/// The content of a LEB. LEB and version determine the number of pages.
fn content(leb: u32, version: u32) -> Vec<u8> {
    let pages = (leb + version) % 7;
    let word = ((u64::from(version) << 32) + u64::from(leb) + 1).to_le_bytes();
    word.into_iter().cycle().take((pages * GEOMETRY.page) as usize).collect()
}

/// A chip after enough writes for many blocks to go bad, and the content of each LEB.
fn written(wearing: WearModel) -> (Arc<MemoryMedium>, Vec<Vec<u8>>) {
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(GEOMETRY)));
    SimulatedChip::create(&*medium, GEOMETRY, wearing, 3).unwrap();
    let chip = Arc::new(SimulatedChip::open(medium.clone(), 3).unwrap());
    Mapping::create(&*chip, 0x0123_4567_89ab_cdef).unwrap();
    let flash = Mapping::open(chip).unwrap();
    let lebs = flash.geometry().lebs;
    let mut held = vec![vec![]; lebs as usize];
    for round in 1..60 {
        for leb in (0..lebs).filter(|leb| (leb * 7 + round) % 5 < 2) {
            let data = content(leb, round);
            match (leb + round) % 4 {
                // Programmed in two parts, unmapped, or changed.
                0 if data.len() > 512 => {
                    flash.unmap(Leb(leb)).unwrap();
                    flash.program(Leb(leb), 0, &data[..512]).unwrap();
                    flash.program(Leb(leb), 512, &data[512..]).unwrap();
                    held[leb as usize] = data;
                }
                1 => {
                    flash.unmap(Leb(leb)).unwrap();
                    held[leb as usize].clear();
                }
                _ => {
                    flash.change(Leb(leb), &data).unwrap();
                    held[leb as usize] = data;
                }
            }
        }
    }
    // Otherwise unmapped content would come back.
    flash.drain().unwrap();
    (medium, held)
}

fn padded(data: &[u8]) -> Vec<u8> {
    let mut padded = data.to_vec();
    padded.resize(6 * 512, 0xff);
    padded
}

#[test]
fn the_second_reader_finds_every_leb() {
    let faults = WearModel { endurance: 0, program_faults: 2000, erase_faults: 500, factory_bad: 60 };
    for wearing in [WearModel::default(), faults] {
        let (medium, held) = written(wearing);
        let lebs = Lebs::read(&medium.snapshot());
        let chip = Arc::new(SimulatedChip::open(medium, 1).unwrap());
        let (erasures, bad): (Vec<u64>, Vec<bool>) =
            (chip.erasures(), (0..GEOMETRY.blocks).map(|peb| chip.is_bad(Peb(peb)).unwrap()).collect());
        assert_eq!(bad.contains(&true), wearing != WearModel::default());
        let flash = Mapping::open(chip).unwrap();
        let geometry =
            FlashGeometry { page: lebs.page as u32, leb_len: lebs.leb_len as u32, lebs: lebs.count };
        assert_eq!(flash.geometry(), geometry);
        for (leb, data) in (0..).zip(&held) {
            assert!(lebs.content(leb) == padded(data), "LEB {leb} by the page");
            let mut found = vec![0; lebs.leb_len];
            flash.read(Leb(leb), 0, &mut found).unwrap();
            assert!(found == padded(data), "LEB {leb} by the code");
            assert!(flash.is_mapped(Leb(leb)).unwrap() == lebs.mapped.contains_key(&leb), "LEB {leb}");
        }
        for (peb, (state, said)) in lebs.erasures.iter().enumerate() {
            assert_eq!(*state, erasures[peb], "PEB {peb}");
            assert!(bad[peb] || said.is_none_or(|said| said == *state), "PEB {peb}: {said:?} {state}");
        }
        let good = |peb: u32| !bad[peb as usize];
        assert!(lebs.mapped.values().all(|(peb, _)| good(*peb)));
    }
}

#[test]
fn the_numbers_of_the_format_page_match_the_code() {
    let page = FormatPage::read("nand");
    let head = page.fields("Head").assert_len(4096);
    let medium = MemoryMedium::new(SimulatedChip::medium_len(GEOMETRY));
    let wearing = WearModel { endurance: 11, program_faults: 12, erase_faults: 13, factory_bad: 0 };
    SimulatedChip::create(&medium, GEOMETRY, wearing, 3).unwrap();
    let bytes = medium.snapshot();
    let expected = [
        ("page", GEOMETRY.page),
        ("pages", GEOMETRY.pages),
        ("blocks", GEOMETRY.blocks),
        ("endurance", 11),
        ("program faults", 12),
        ("erase faults", 13),
    ];
    expected.into_iter().for_each(|(name, value)| assert_eq!(head.number(&bytes, name), u64::from(value)));
    head.assert_zeros(&bytes);
    // The limits of the geometry.
    let possible = |page: u32, pages: u32, blocks: u32| {
        let mut head_bytes = bytes[..4096].to_vec();
        for (name, value) in [("page", page), ("pages", pages), ("blocks", blocks)] {
            head_bytes[head[name].clone()].copy_from_slice(&value.to_le_bytes());
        }
        let medium = MemoryMedium::from_bytes(head_bytes);
        let refused = SimulatedChip::open(Arc::new(medium), 1).err().unwrap().to_string();
        refused.contains("too short")
    };
    assert!(possible(512, 4, 8) && possible(65536, 4096, 16_777_216));
    for (page, pages, blocks) in [(256, 8, 48), (131_072, 8, 48), (768, 8, 48), (512, 3, 48), (512, 4097, 48)]
        .into_iter()
        .chain([(512, 8, 7), (512, 8, 16_777_217)])
    {
        assert!(!possible(page, pages, blocks), "{page} {pages} {blocks}");
    }
}

/// Shows that headers of a later version are refused and left unchanged.
#[test]
fn headers_of_a_later_version_are_refused_unchanged() {
    let doc = FormatPage::read("nand");
    let (medium, _) = written(WearModel::default());
    let clean = medium.snapshot();
    let lebs = Lebs::read(&clean);
    let peb = lebs.mapped.values().next().unwrap().0 as usize;
    let at = (4096 + 48 * 16_usize).next_multiple_of(4096) + peb * 8 * 512;
    for (heading, page) in [("Erase header", 0), ("Volume header", 1)] {
        let fields = doc.fields(heading);
        let start = at + page * 512;
        // The version in the magic, and the bytes that must be zero.
        for altered in [fields["magic"].end - 1, fields["zero"].start] {
            let mut bytes = clean.clone();
            bytes[start + altered] ^= 3;
            let sum = fields["checksum"].clone();
            let plain: Vec<u8> = bytes[start..start + sum.start].iter().map(|b| !b).collect();
            let checksum = crc32fast::hash(&plain).to_le_bytes().map(|b| !b);
            bytes[start + sum.start..start + sum.end].copy_from_slice(&checksum);
            let medium = Arc::new(MemoryMedium::from_bytes(bytes.clone()));
            let chip = Arc::new(SimulatedChip::open(medium.clone(), 1).unwrap());
            let refused = Mapping::open(chip).err().expect("refused");
            assert!(refused.to_string().contains("version"), "{heading}, byte {altered}: {refused}");
            assert!(medium.snapshot() == bytes);
        }
    }
    for altered in [8, 36, 4095] {
        let mut bytes = clean.clone();
        bytes[altered] ^= 3;
        assert!(SimulatedChip::open(Arc::new(MemoryMedium::from_bytes(bytes)), 1).is_err(), "byte {altered}");
    }
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/nand-v1.sparse")
}

const WORN: WearModel = WearModel { endurance: 0, program_faults: 1000, erase_faults: 300, factory_bad: 40 };

#[test]
fn the_golden_chip_opens() {
    let bytes = golden_medium(&golden(), SimulatedChip::medium_len(GEOMETRY));
    let medium = Arc::new(MemoryMedium::from_bytes(bytes));
    let flash = Mapping::open(Arc::new(SimulatedChip::open(medium, 1).unwrap())).unwrap();
    let (_, held) = written(WORN);
    assert_eq!(flash.geometry().lebs as usize, held.len());
    for (leb, data) in (0..).zip(&held) {
        let mut found = vec![0; flash.geometry().leb_len as usize];
        flash.read(Leb(leb), 0, &mut found).unwrap();
        assert!(found == padded(data), "LEB {leb}");
    }
    flash.change(Leb(0), &content(0, 4)).unwrap();
    flash.drain().unwrap();
}

#[test]
#[ignore = "makes the golden chip, which is never made again"]
fn write_the_golden_chip() {
    let bytes = written(WORN).0.snapshot();
    let mut kept = vec![];
    for (at, data) in (0u64..).zip(bytes.chunks(4096)).filter(|(_, data)| data.iter().any(|byte| *byte != 0))
    {
        kept.extend((at * 4096).to_le_bytes());
        kept.extend(data);
        kept.resize(kept.len() + 4096 - data.len(), 0);
    }
    assert!(!golden().exists(), "it is there already");
    std::fs::create_dir_all(golden().parent().unwrap()).unwrap();
    std::fs::write(golden(), kept).unwrap();
}
