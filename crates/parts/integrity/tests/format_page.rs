//! `docs/format/integrity.md` agrees with the code: the second reader reads, by the page, files
//! that the code wrote.

mod fixture;
mod second_reader;

use fixture::{FileHarness, FileModel, FileStep, MemoryUs, keys};
use lacuna_contracts::Budget;
use lacuna_integrity::{
    Choice, LARGEST_BLOCK, PACKED_HEADER, PART_PAGE, Part, ProtectedFile, SMALLEST_BLOCK, Scheme, Session,
    Trusted,
};
use lacuna_sim::Rng;
use lacuna_testkit::format_page::FormatPage;
use second_reader::SecondReader;

#[test]
fn constants_are_those_of_the_page() {
    let page = FormatPage::read("integrity");
    let named = [
        ("most of TS", Trusted::MAX),
        ("page", PART_PAGE),
        ("level of RTree", usize::from(Part::RTREE)),
        ("packed header", PACKED_HEADER),
        ("least block", SMALLEST_BLOCK),
        ("most block", LARGEST_BLOCK),
    ];
    for (name, value) in named {
        assert_eq!(page.constant(name), value as u64, "{name}");
    }
}

/// A block matches an independent implementation: Python's `hmac` and `cryptography` and a bitwise
/// product of POLYVAL computed HKDF-SHA256 of the master key with the labels of the page, the tag
/// of block 5, and AES-256-GCM under its nonce.
#[test]
fn a_block_is_encrypted_as_an_independent_implementation_does() {
    let session = Session(0x0102_0304_0506_0708);
    let us = MemoryUs::new(128);
    let choice = Choice::Fixed(Scheme::Mt);
    let mut file = ProtectedFile::init_with_block_size(keys(1), choice, session, 128);
    file.update(&us, 5, &[b'x'; 128]).unwrap();
    let expected = "145653287c273a1b1af1961cf17356609a13f1b5aaf617d00a227f10757c78efb32fce2de98b767f8172858eb0ad1f4\
                    b0abb13c1b5ec346c70a96be41ef0f16009af4e8723cb33737ce1964e04be537d200d4deccf97c5becba9f7cad9c779\
                    e4480442563696e4025c3d31c54acaa153c567daf31a9488503582eb85a33b899f1552162afdcb2613c100e8b8b651a\
                    4de";
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    let (text, tag) = expected.split_at(256);
    assert_eq!(us.stored.lock().blocks[&5], bytes(text));
    let trusted = file.commit(&us).unwrap().to_bytes();
    assert_eq!(trusted[trusted.len() - 16..], bytes(tag), "the last leaf in TS");
}

/// Compares the expected content of a file with the content that the second reader finds by the
/// page.
fn compare(harness: &FileHarness, model: &FileModel, what: &str) {
    let stored = harness.us.stored.lock().clone();
    let reader = SecondReader::new(&harness.trusted.to_bytes(), &stored, 1);
    assert_eq!(reader.blocks(), model.blocks, "{what}");
    let near = model.data.keys().flat_map(|block| [block.saturating_sub(1), *block, block + 1]);
    for block in near.filter(|block| *block < model.blocks) {
        let found = reader.block(block).unwrap_or_else(|| panic!("{what}: block {block} does not verify"));
        assert!(found == model.block(block, harness.us.block_size), "{what}: block {block}");
    }
    assert_eq!(
        reader.pages_met(),
        stored.pages.keys().copied().collect(),
        "{what}: pages that the page does not explain"
    );
}

#[test]
fn files_are_read_by_the_page() {
    let schemes = [Scheme::Mt, Scheme::Rand, Scheme::Comp, Scheme::None];
    for seed in 0..32 {
        let mut rng = Rng::new(seed);
        let scheme = schemes[(seed % 4) as usize];
        let block_size = [128, 512, 4096][(seed % 3) as usize];
        let mut harness = FileHarness::new(Choice::Fixed(scheme), block_size, Budget::bytes(0));
        let mut model = FileModel::default();
        for number in 0..80 {
            let step = FileStep::random(&mut rng, &model, 300, block_size);
            // Pages of counters of punched blocks remain until all their blocks are holes; the
            // second reader meets them.
            harness.step(&step).unwrap();
            match &step {
                FileStep::Update(first, plain) if !plain.is_empty() => {
                    model.update(*first, plain, block_size);
                }
                FileStep::Resize(blocks) => model.resize(*blocks),
                FileStep::Punch(first, count) => model.punch(*first, *count),
                _ => {}
            }
            if number % 4 == 0 {
                harness.commit().unwrap();
                compare(
                    &harness,
                    &model,
                    &format!("seed {seed}, {scheme:?}, {block_size} bytes, step {number}"),
                );
            }
        }
    }
}
