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

fn convert_all(bed: &mut FileHarness) -> u64 {
    for calls in 0..2000 {
        let wants = bed.file.needs_conversion(&bed.us).unwrap();
        let did = bed.file.convert_if_better(&bed.us).unwrap();
        assert!(wants || !did);
        if !did {
            assert!(!bed.file.needs_conversion(&bed.us).unwrap());
            return calls;
        }
        bed.commit().unwrap();
    }
    panic!("conversion does not end");
}

fn check_every_second(bed: &FileHarness, odd: u8) {
    for first in (0..MANY).step_by(1000) {
        let (plain, result) = bed.check(first, 1000);
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
        let mut bed = FileHarness::new(Choice::Fixed(scheme), BLOCK, Budget::bytes(1 << 20));
        for first in (0..MANY).step_by(4000) {
            bed.step(&FileStep::Update(first, text(4000))).unwrap();
        }
        for block in (1..MANY).step_by(2) {
            bed.step(&FileStep::Punch(block, 1)).unwrap();
        }
        bed.step(&FileStep::Reopen(false)).unwrap();
        assert!(bed.file.usage(&bed.us).unwrap().intervals < 10_000);
        check_every_second(&bed, 0);
        // One punch over all these holes.
        bed.step(&FileStep::Punch(1000, MANY - 2000)).unwrap();
        bed.step(&FileStep::Reopen(false)).unwrap();
        assert_eq!(bed.file.seek(&bed.us, 1000, true).unwrap(), Some(MANY - 1000));
    }
}

#[test]
fn a_sparse_file_that_cannot_be_converted_stays_as_it_is() {
    for scheme in [Scheme::Rand, Scheme::Comp] {
        let mut bed = FileHarness::new(Choice::Fixed(Scheme::Mt), BLOCK, Budget::bytes(1 << 20));
        for block in (0..MANY).step_by(2) {
            bed.step(&FileStep::Update(block, text(1))).unwrap();
        }
        bed.step(&FileStep::Resize(MANY)).unwrap();
        bed.step(&FileStep::Choose(Choice::Fixed(scheme))).unwrap();
        bed.step(&FileStep::Convert).unwrap();
        assert_eq!(bed.file.scheme(), scheme);
        convert_all(&mut bed);
        assert_eq!(bed.file.scheme(), Scheme::Mt);
        bed.step(&FileStep::Reopen(false)).unwrap();
        assert!(!bed.file.needs_conversion(&bed.us).unwrap(), "it was given up for good");
        check_every_second(&bed, 0);
        // All blocks are written, and the user chooses the scheme once more.
        bed.step(&FileStep::Update(0, text(MANY))).unwrap();
        bed.step(&FileStep::Choose(Choice::Fixed(Scheme::Mt))).unwrap();
        bed.step(&FileStep::Choose(Choice::Fixed(scheme))).unwrap();
        convert_all(&mut bed);
        assert_eq!(bed.file.scheme(), scheme);
        check_every_second(&bed, b'x');
    }
}

#[test]
fn rewriting_a_small_file_ends_and_happens_only_where_it_saves_intervals() {
    for scheme in [Scheme::Rand, Scheme::Comp] {
        let (mut bed, mut rng) =
            (FileHarness::new(Choice::Fixed(scheme), BLOCK, Budget::bytes(0)), Rng::new(1));
        let mut model = FileModel::default();
        let update = |bed: &mut FileHarness, model: &mut FileModel, block, rng: &mut Rng| {
            let plain = content(rng, BLOCK, 1);
            model.update(block, &plain, BLOCK);
            bed.step(&FileStep::Update(block, plain)).unwrap();
        };
        // Every fourth block, in ascending order: the holes alone make 2000 intervals, and no
        // rewriting can save any.
        (0..1000).for_each(|n| update(&mut bed, &mut model, n * 4, &mut rng));
        assert!(bed.file.usage(&bed.us).unwrap().intervals >= 1999);
        assert!(!bed.file.needs_conversion(&bed.us).unwrap());
        assert!(!bed.file.convert_if_better(&bed.us).unwrap());
        // Without holes, overwritten at random: rewriting pays.
        (0..4000).for_each(|n| update(&mut bed, &mut model, n, &mut rng));
        (0..3000).for_each(|_| {
            let block = rng.below(4000);
            update(&mut bed, &mut model, block, &mut rng);
        });
        bed.step(&FileStep::Reopen(false)).unwrap();
        assert!(bed.file.usage(&bed.us).unwrap().intervals > 1000 && bed.file.scheme() == scheme);
        let calls = convert_all(&mut bed);
        assert!((1..10).contains(&calls), "{calls} calls");
        assert!(bed.file.usage(&bed.us).unwrap().intervals < 10);
        for block in 0..4000 {
            let (plain, result) = bed.check(block, 1);
            result.unwrap();
            assert!(plain == model.block(block, BLOCK), "block {block}");
        }
        // Blocks that fail keep their counters: the rewriting is tried only once.
        (0..3000).for_each(|_| {
            let block = rng.below(4000);
            update(&mut bed, &mut model, block, &mut rng);
        });
        bed.commit().unwrap();
        bed.us.stored.lock().blocks.values_mut().for_each(|bytes| bytes[100] ^= 1);
        assert!(convert_all(&mut bed) < 10);
    }
}

#[test]
fn a_call_converts_a_bounded_part() {
    let mut bed = FileHarness::new(Choice::Fixed(Scheme::Mt), BLOCK, Budget::bytes(0));
    bed.step(&FileStep::Update(0, text(10_000))).unwrap();
    for (from, to) in [(Scheme::Mt, Scheme::Rand), (Scheme::Rand, Scheme::Comp), (Scheme::Comp, Scheme::Mt)] {
        assert_eq!(bed.file.scheme(), from);
        bed.step(&FileStep::Choose(Choice::Fixed(to))).unwrap();
        let mut calls = 0;
        while bed.file.needs_conversion(&bed.us).unwrap() {
            bed.commit().unwrap();
            let before = bed.us.stored.lock().blocks.clone();
            assert!(bed.file.convert_if_better(&bed.us).unwrap());
            let now = bed.us.stored.lock();
            let written = now.blocks.iter().filter(|(block, bytes)| before[block] != **bytes).count();
            assert!(written <= 1024, "{written} blocks in one call");
            drop(now);
            // A half converted file can be read, written and opened.
            bed.step(&FileStep::Update(calls, text(1))).unwrap();
            bed.step(&FileStep::Reopen(calls.is_multiple_of(2))).unwrap();
            assert!(bed.check(0, 10_000).0.iter().all(|byte| *byte == b'x'));
            calls += 1;
        }
        assert_eq!(bed.file.scheme(), to);
        assert!((10..40).contains(&calls), "{calls} calls");
    }
}
