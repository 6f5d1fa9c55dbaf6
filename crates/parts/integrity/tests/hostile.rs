//! Arbitrary bytes in untrusted storage and as TS: no panic, and no wrong content is accepted.

mod fixture;

use fixture::{CHOICES, FileHarness, FileStep, MemoryUs, content, keys};
use lacuna_contracts::Budget;
use lacuna_integrity::{PART_PAGE, Part, ProtectedFile, Session, Trusted};
use lacuna_sim::Rng;
use proptest::collection::vec;
use proptest::prelude::*;

/// A file with counters in US, a tree of two levels, and holes.
fn written(choice: usize, seed: u64) -> FileHarness {
    let mut rng = Rng::new(seed);
    let mut harness = FileHarness::new(CHOICES[choice], 128, Budget::bytes(0));
    harness.step(&FileStep::Update(0, content(&mut rng, 128, 150))).unwrap();
    for _ in 0..60 {
        let step = FileStep::Update(rng.below(300), content(&mut rng, 128, 1));
        harness.step(&step).unwrap();
    }
    harness.step(&FileStep::Reopen(false)).unwrap();
    harness
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        (0u8..20).prop_map(Part::Tree),
        Just(Part::Counters),
        Just(Part::Intervals),
        Just(Part::Order),
        Just(Part::Position),
    ]
}

/// Pages of arbitrary bytes: short ones, or of plausible lengths.
fn page() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..40),
        vec(any::<u8>(), PART_PAGE..=PART_PAGE),
        vec(any::<u8>(), 1536..=1536)
    ]
}

/// Calls every method of a file. Errors are fine.
fn use_all(harness: &mut FileHarness, rng: &mut Rng) {
    for _ in 0..6 {
        let blocks = harness.file.blocks();
        let first = rng.below(blocks + 1);
        let _ = harness.check(first, rng.below((blocks - first).min(200) + 1));
        let _ = harness.file.seek(&harness.us, first, rng.chance(1, 2));
        let _ = harness.file.usage(&harness.us);
        let step = match rng.below(6) {
            0 => FileStep::Resize(rng.below(300)),
            1 => FileStep::Punch(first, rng.below(100)),
            2 => FileStep::Convert,
            3 => FileStep::Choose(CHOICES[rng.below(5) as usize]),
            some => FileStep::Update(first, content(rng, 128, some as usize)),
        };
        let _ = harness.step(&step);
    }
    let _ = harness.file.commit(&harness.us);
    let _ = harness.file.resize(&harness.us, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn hostile_pages_never_panic(
        choice in 0usize..5,
        seed in any::<u64>(),
        new in vec((part(), 0u64..4, page()), 0..6),
        cut in vec((any::<prop::sample::Index>(), 0usize..PART_PAGE), 0..4),
    ) {
        let mut harness = written(choice, seed);
        {
            let mut stored = harness.us.stored.lock();
            let places: Vec<_> = stored.pages.keys().copied().collect();
            for (index, len) in cut.into_iter().filter(|_| !places.is_empty()) {
                stored.pages.get_mut(index.get(&places)).unwrap().truncate(len);
            }
            stored.pages.extend(new.into_iter().map(|(part, page, bytes)| ((part, page), bytes)));
        }
        use_all(&mut harness, &mut Rng::new(seed));
    }

    #[test]
    fn hostile_trusted_storage_never_panics(bytes in vec(any::<u8>(), 0..220)) {
        offer(&bytes);
    }

    #[test]
    fn trusted_storage_that_was_altered_never_panics(
        choice in 0usize..5,
        seed in any::<u64>(),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        len in 0usize..220,
    ) {
        let mut bytes = written(choice, seed).trusted.to_bytes();
        for (index, byte) in flips {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.resize(if len < 100 { bytes.len() } else { len }, 0);
        offer(&bytes);
    }
}

/// Opens a file with arbitrary bytes as TS, and reads it.
fn offer(bytes: &[u8]) {
    let Ok(trusted) = Trusted::parse(bytes) else { return };
    let Ok(file) = ProtectedFile::open(keys(1), &trusted, Session(9), Budget::bytes(0)) else { return };
    let us = MemoryUs::new(file.block_size());
    let count = file.blocks().min(300);
    let mut plain = vec![0; count as usize * file.block_size()];
    let _ = file.check(&us, file.blocks() - count, &mut plain);
    let _ = file.check(&us, 0, &mut plain);
    assert_eq!(trusted.to_bytes(), bytes);
}

/// TS of COMP-EINT with far more leaves than blocks is refused: removing them all would take
/// minutes.
#[test]
fn far_more_leaves_than_blocks_are_refused() {
    let mut bytes = vec![1, 2, 2, 7];
    bytes.resize(31, 0);
    bytes.extend([95, 1, 0, 0, 0, 3, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 127, 0, 0]);
    bytes.extend([46, 46, 46, 227, 46, 46, 46, 46, 35]);
    bytes.extend([46; 19]);
    bytes.resize(100, 0);
    bytes.push(191);
    let trusted = Trusted::parse(&bytes).unwrap();
    let Err(refused) = ProtectedFile::open(keys(1), &trusted, Session(9), Budget::bytes(0)) else {
        panic!("it is taken")
    };
    assert!(refused.to_string().contains("tags"), "{refused}");
}
