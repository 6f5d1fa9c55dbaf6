//! Protected files of every scheme and block size agree with a plain model under random operations,
//! conversions and reopenings.

mod fixture;

use fixture::{CHOICES, FileHarness, FileModel, FileStep};
use lacuna_contracts::Budget;
use lacuna_integrity::{Choice, Scheme, Trusted};
use lacuna_sim::Rng;

fn apply(model: &mut FileModel, step: &FileStep, block_size: usize) {
    match step {
        FileStep::Update(first, plain) if !plain.is_empty() => model.update(*first, plain, block_size),
        FileStep::Resize(blocks) => model.resize(*blocks),
        FileStep::Punch(first, count) => model.punch(*first, *count),
        _ => {}
    }
}

fn compare(harness: &FileHarness, model: &FileModel, rng: &mut Rng, step: &str) {
    let size = harness.us.block_size;
    assert_eq!(harness.file.blocks(), model.blocks, "{step}");
    let first = if rng.chance(1, 3) { 0 } else { rng.below(model.blocks.max(1)) };
    let near = model.data.range(first..).next().map_or(first, |(block, _)| *block);
    for first in [first, near.saturating_sub(1)] {
        let count = rng.below(300).min(model.blocks - first.min(model.blocks));
        let (plain, result) = harness.check(first, count);
        result.unwrap_or_else(|e| panic!("{step}: {e}"));
        for (block, found) in (first..).zip(plain.chunks_exact(size)) {
            assert!(found == model.block(block, size), "{step}: block {block}");
        }
    }
    for data in [false, true] {
        let from = rng.below(model.blocks + 2).min(rng.below(20_000));
        assert_eq!(
            harness.file.seek(&harness.us, from, data).unwrap(),
            model.seek(from, data),
            "{step}: {from} {data}"
        );
    }
}

fn run(seed: u64, choice: Choice, block_size: usize, steps: u64) {
    let mut rng = Rng::new(seed);
    // A budget of 0 bytes gives the smallest caches.
    let budget = Budget::bytes(if rng.chance(1, 2) { 0 } else { 1 << 20 });
    let (mut harness, mut model) = (FileHarness::new(choice, block_size, budget), FileModel::default());
    let converts = rng.chance(1, 2);
    let span = [20, 300, 3000][rng.below(3) as usize];
    for number in 0..steps {
        let step = FileStep::random(&mut rng, &model, span, block_size);
        if !converts && matches!(step, FileStep::Choose(_) | FileStep::Convert) {
            continue;
        }
        let name = format!("seed {seed}, {choice:?}, {block_size} bytes, step {number}, {step:.60?}");
        harness.step(&step).unwrap_or_else(|e| panic!("{name}: {e}"));
        apply(&mut model, &step, block_size);
        compare(&harness, &model, &mut rng, &name);
    }
    harness.step(&FileStep::Reopen(false)).unwrap();
    for (block, data) in &model.data {
        let (plain, result) = harness.check(*block, 1);
        result.unwrap();
        assert!(plain == *data);
    }
    harness.step(&FileStep::Resize(0)).unwrap();
    harness.commit().unwrap();
    assert!(
        harness.us.stored.lock().pages.is_empty(),
        "seed {seed}: {:?}",
        harness.us.stored.lock().pages.keys()
    );
}

#[test]
fn files_agree_with_a_plain_model() {
    for seed in 0..6 {
        for choice in CHOICES {
            for block_size in [128, 256, 512, 1024, 2048, 4096] {
                run(seed * 100 + block_size as u64, choice, block_size, 120);
            }
        }
    }
}

#[test]
fn dispersed_counters_move_to_us_and_ts_stays_small() {
    for choice in CHOICES {
        let mut harness = FileHarness::new(choice, 128, Budget::default());
        let mut model = FileModel::default();
        let mut rng = Rng::new(8);
        harness.step(&FileStep::Resize(40_000)).unwrap();
        model.resize(40_000);
        for n in 0..12_000u64 {
            let plain = fixture::content(&mut rng, 128, 1);
            let block = rng.below(40_000);
            let step = FileStep::Update(block, plain);
            harness.step(&step).unwrap();
            apply(&mut model, &step, 128);
            if n % 1000 == 0 {
                harness.step(&FileStep::Reopen(n % 2000 == 0)).unwrap();
                compare(&harness, &model, &mut rng, &format!("{choice:?}, {n}"));
            }
        }
        if matches!(choice, Choice::Fixed(Scheme::Rand | Scheme::Comp)) {
            assert_eq!(harness.file.scheme(), Scheme::Mt, "dispersed counters are for MT-EINT");
        }
        for _ in 0..200 {
            harness.step(&FileStep::Convert).unwrap();
            harness.step(&FileStep::Commit).unwrap();
        }
        compare(&harness, &model, &mut rng, "converted");
    }
}

#[test]
fn a_small_file_lies_in_ts_and_an_empty_tebibyte_costs_nothing() {
    for choice in [Scheme::Mt, Scheme::Rand, Scheme::Comp].map(Choice::Fixed) {
        let mut harness = FileHarness::new(choice, 4096, Budget::default());
        harness.step(&FileStep::Update(0, vec![b'x'; 8 * 4096])).unwrap();
        harness.commit().unwrap();
        assert!(harness.us.stored.lock().pages.is_empty());
        harness.step(&FileStep::Resize(1 << 28)).unwrap();
        harness.step(&FileStep::Update((1 << 28) - 1, vec![b'y'; 4096])).unwrap();
        harness.commit().unwrap();
        assert!(
            harness.us.stored.lock().pages.len() < 12,
            "{choice:?}: {}",
            harness.us.stored.lock().pages.len()
        );
        harness.reopen(false).unwrap();
        assert_eq!(harness.file.seek(&harness.us, 8, true).unwrap(), Some((1 << 28) - 1));
        assert_eq!(harness.file.seek(&harness.us, 0, false).unwrap(), Some(8));
        let usage = harness.file.usage(&harness.us).unwrap();
        assert!(usage.trusted <= Trusted::MAX as u64 && usage.untrusted < 1 << 17, "{usage:?}");
    }
}

#[test]
fn random_blocks_are_counted_or_estimated_or_unknown() {
    let (mt, rand, comp) = (Scheme::Mt, Scheme::Rand, Scheme::Comp);
    for (choice, blocks, expected) in [
        (Choice::Fixed(mt), 64, None),
        (Choice::Auto, 16, None),
        (Choice::Auto, 64, Some(64)),
        (Choice::Fixed(rand), 64, Some(64)),
        (Choice::Fixed(comp), 64, Some(64)),
    ] {
        let mut harness = FileHarness::new(choice, 4096, Budget::default());
        harness.step(&FileStep::Update(0, Rng::new(3).bytes(blocks * 4096))).unwrap();
        harness.commit().unwrap();
        let usage = harness.file.usage(&harness.us).unwrap();
        assert_eq!(usage.random_looking, expected, "{choice:?}, {blocks} blocks");
    }
}

#[test]
fn a_file_is_read_by_many_threads() {
    for choice in CHOICES {
        let mut harness = FileHarness::new(choice, 4096, Budget::bytes(0));
        let mut rng = Rng::new(2);
        let mut model = FileModel::default();
        for first in (0..2000).step_by(50) {
            let step = FileStep::Update(first, fixture::content(&mut rng, 4096, 50));
            harness.step(&step).unwrap();
            apply(&mut model, &step, 4096);
        }
        harness.step(&FileStep::Reopen(false)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (harness, model) = (&harness, &model);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    (0..100)
                        .for_each(|n| compare(harness, model, &mut rng, &format!("thread {thread}, {n}")));
                });
            }
        });
    }
}
