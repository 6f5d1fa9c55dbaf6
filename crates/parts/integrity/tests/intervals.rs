//! Counter intervals stay bounded under any operations, and conversions terminate.

mod fixture;

use fixture::{FileHarness, FileModel, FileStep, content};
use lacuna_contracts::Budget;
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::Rng;

const BLOCK: usize = 128;
/// The most intervals that are accepted from TS.
const MOST_INTERVALS: u64 = 1 << 17;
/// Enough blocks for more intervals than that if every second block is a hole: a multiple of 4000.
const MANY: u64 = 284_000;

/// Blocks that compress and do not look random.
fn text(count: u64) -> Vec<u8> {
    vec![b'x'; count as usize * BLOCK]
}

fn convert_all(harness: &mut FileHarness) -> u64 {
    for calls in 0..2000 {
        let wants = harness.file.needs_conversion(&harness.us).unwrap();
        let did = harness.file.convert_if_better(&harness.us).unwrap();
        assert!(wants || !did);
        if !did {
            assert!(!harness.file.needs_conversion(&harness.us).unwrap());
            return calls;
        }
        harness.commit().unwrap();
    }
    panic!("conversion does not end");
}

fn check_every_second(harness: &FileHarness, odd: u8) {
    for first in (0..MANY).step_by(1000) {
        let (plain, result) = harness.check(first, 1000);
        result.unwrap();
        for (block, found) in (first..).zip(plain.chunks_exact(BLOCK)) {
            let expected = if block % 2 == 0 { b'x' } else { odd };
            assert!(found.iter().all(|byte| *byte == expected), "block {block}");
        }
    }
}

#[test]
fn a_file_with_holes_everywhere_can_be_opened() {
    const { assert!(MANY > 2 * MOST_INTERVALS) };
    for scheme in [Scheme::Rand, Scheme::Comp, Scheme::None] {
        let mut harness = FileHarness::new(Choice::Fixed(scheme), BLOCK, Budget::bytes(1 << 20));
        for first in (0..MANY).step_by(4000) {
            harness.step(&FileStep::Update(first, text(4000))).unwrap();
        }
        for block in (1..MANY).step_by(2) {
            harness.step(&FileStep::Punch(block, 1)).unwrap();
        }
        harness.step(&FileStep::Reopen(false)).unwrap();
        assert!(harness.file.usage(&harness.us).unwrap().intervals < 10_000);
        check_every_second(&harness, 0);
        // One punch over all these holes.
        harness.step(&FileStep::Punch(1000, MANY - 2000)).unwrap();
        harness.step(&FileStep::Reopen(false)).unwrap();
        assert_eq!(harness.file.seek(&harness.us, 1000, true).unwrap(), Some(MANY - 1000));
    }
}

#[test]
fn a_sparse_file_that_cannot_be_converted_stays_as_it_is() {
    for scheme in [Scheme::Rand, Scheme::Comp] {
        let mut harness = FileHarness::new(Choice::Fixed(Scheme::Mt), BLOCK, Budget::bytes(1 << 20));
        for block in (0..MANY).step_by(2) {
            harness.step(&FileStep::Update(block, text(1))).unwrap();
        }
        harness.step(&FileStep::Resize(MANY)).unwrap();
        harness.step(&FileStep::Choose(Choice::Fixed(scheme))).unwrap();
        harness.step(&FileStep::Convert).unwrap();
        assert_eq!(harness.file.scheme(), scheme);
        convert_all(&mut harness);
        assert_eq!(harness.file.scheme(), Scheme::Mt);
        harness.step(&FileStep::Reopen(false)).unwrap();
        assert!(!harness.file.needs_conversion(&harness.us).unwrap(), "it was given up for good");
        check_every_second(&harness, 0);
        // All blocks are written, and the user chooses the scheme once more.
        harness.step(&FileStep::Update(0, text(MANY))).unwrap();
        harness.step(&FileStep::Choose(Choice::Fixed(Scheme::Mt))).unwrap();
        harness.step(&FileStep::Choose(Choice::Fixed(scheme))).unwrap();
        convert_all(&mut harness);
        assert_eq!(harness.file.scheme(), scheme);
        check_every_second(&harness, b'x');
    }
}

#[test]
fn rewriting_a_small_file_ends_and_happens_only_where_it_saves_intervals() {
    for scheme in [Scheme::Rand, Scheme::Comp] {
        let (mut harness, mut rng) =
            (FileHarness::new(Choice::Fixed(scheme), BLOCK, Budget::bytes(0)), Rng::new(1));
        let mut model = FileModel::default();
        let update = |harness: &mut FileHarness, model: &mut FileModel, block, rng: &mut Rng| {
            let plain = content(rng, BLOCK, 1);
            model.update(block, &plain, BLOCK);
            harness.step(&FileStep::Update(block, plain)).unwrap();
        };
        // Every fourth block, in ascending order: the holes alone make 2000 intervals, and no
        // rewriting can save any.
        (0..1000).for_each(|n| update(&mut harness, &mut model, n * 4, &mut rng));
        assert!(harness.file.usage(&harness.us).unwrap().intervals >= 1999);
        assert!(!harness.file.needs_conversion(&harness.us).unwrap());
        assert!(!harness.file.convert_if_better(&harness.us).unwrap());
        // Without holes, overwritten at random: rewriting pays.
        (0..4000).for_each(|n| update(&mut harness, &mut model, n, &mut rng));
        (0..3000).for_each(|_| {
            let block = rng.below(4000);
            update(&mut harness, &mut model, block, &mut rng);
        });
        harness.step(&FileStep::Reopen(false)).unwrap();
        assert!(harness.file.usage(&harness.us).unwrap().intervals > 1000 && harness.file.scheme() == scheme);
        let calls = convert_all(&mut harness);
        assert!((1..10).contains(&calls), "{calls} calls");
        assert!(harness.file.usage(&harness.us).unwrap().intervals < 10);
        for block in 0..4000 {
            let (plain, result) = harness.check(block, 1);
            result.unwrap();
            assert!(plain == model.block(block, BLOCK), "block {block}");
        }
        // Blocks that fail keep their counters: the rewriting is tried only once.
        (0..3000).for_each(|_| {
            let block = rng.below(4000);
            update(&mut harness, &mut model, block, &mut rng);
        });
        harness.commit().unwrap();
        harness.us.stored.lock().blocks.values_mut().for_each(|bytes| bytes[100] ^= 1);
        assert!(convert_all(&mut harness) < 10);
    }
}

#[test]
fn a_call_converts_a_bounded_part() {
    let mut harness = FileHarness::new(Choice::Fixed(Scheme::Mt), BLOCK, Budget::bytes(0));
    harness.step(&FileStep::Update(0, text(10_000))).unwrap();
    for (from, to) in [(Scheme::Mt, Scheme::Rand), (Scheme::Rand, Scheme::Comp), (Scheme::Comp, Scheme::Mt)] {
        assert_eq!(harness.file.scheme(), from);
        harness.step(&FileStep::Choose(Choice::Fixed(to))).unwrap();
        let mut calls = 0;
        while harness.file.needs_conversion(&harness.us).unwrap() {
            harness.commit().unwrap();
            let before = harness.us.stored.lock().blocks.clone();
            assert!(harness.file.convert_if_better(&harness.us).unwrap());
            let now = harness.us.stored.lock();
            let written = now.blocks.iter().filter(|(block, bytes)| before[block] != **bytes).count();
            assert!(written <= 1024, "{written} blocks in one call");
            drop(now);
            // A half converted file can be read, written and opened.
            harness.step(&FileStep::Update(calls, text(1))).unwrap();
            harness.step(&FileStep::Reopen(calls.is_multiple_of(2))).unwrap();
            assert!(harness.check(0, 10_000).0.iter().all(|byte| *byte == b'x'));
            calls += 1;
        }
        assert_eq!(harness.file.scheme(), to);
        assert!((10..40).contains(&calls), "{calls} calls");
    }
}
