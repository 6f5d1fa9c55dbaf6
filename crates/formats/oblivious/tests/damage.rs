//! A medium that was damaged or altered: damaged blocks fail, all other blocks read, nothing old is
//! returned; an attack does not pass for a power cut; and nothing panics.

mod fixture;

use fixture::regions::{JOURNAL, Regions, STASH_SLOTS};
use fixture::{DiskModel, DiskWorkload, create, flush_hidden, models, open_with, options, params};
use lacuna_contracts::{Disk, Kind};
use lacuna_crypto::{RandomSource, SeededRandom};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Levels, ObliviousDisk, OpenOptions, Params, Randomness};
use lacuna_sim::{Fault, FaultMedium, OpKind, Rng};
use lacuna_testkit::levels;
use lacuna_testkit::levels::{FreshDisk, fresh_disk, seeded_randomness};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The medium that a disk left, and its expected contents.
struct SavedDisk {
    bytes: Vec<u8>,
    models: Vec<DiskModel>,
    last_batch: u64,
    /// The medium half way, and the contents of blocks at that time.
    half_way: (Vec<u8>, [Vec<u64>; 2]),
}

fn last_batch(disk: &Arc<ObliviousDisk>) -> u64 {
    fixture::counter(&disk.levels()[0], "last_batch")
}

/// A disk with both levels written and flushed, and closed or left as by a power cut.
fn written(params: &Params, seed: u64, close: bool) -> SavedDisk {
    let FreshDisk { memory, disk, levels } = fresh_disk(params, 2, [seed, seed]);
    let mut rng = Rng::new(seed);
    let mut models = models(&disk);
    let (mut next_stamp, mut half_way) = (0, (Vec::new(), [Vec::new(), Vec::new()]));
    for round in 0..160 {
        if round == 80 {
            flush_hidden(&disk, &levels[1]).unwrap();
            let latest = |model: &DiskModel| (0..model.blocks()).map(|block| model.latest(block)).collect();
            half_way = (memory.snapshot(), [latest(&models[0]), latest(&models[1])]);
        }
        for (level, model) in levels.iter().zip(&mut models) {
            let mut worked =
                DiskWorkload { disk: &**level, model, rng: &mut rng, next_stamp: &mut next_stamp };
            worked.write(3).unwrap();
        }
    }
    flush_hidden(&disk, &levels[1]).unwrap();
    if close {
        disk.close().unwrap();
    } else {
        // The head of the fourth flush after it claims that everything up to it was durable.
        (0..4).for_each(|_| disk.refresh().unwrap());
    }
    models.iter_mut().for_each(DiskModel::record_flush);
    SavedDisk { bytes: memory.snapshot(), models, last_batch: last_batch(&disk), half_way }
}

/// Opens a medium and reads every block of both levels: each is right, or fails with an error that
/// names it. Returns the number of failed blocks, or none if the disk does not open.
fn failures(params: &Params, bytes: Vec<u8>, models: &[DiskModel]) -> Option<[u64; 2]> {
    let blocks = [models[0].blocks(), models[1].blocks()];
    levels::failures(params, bytes, blocks, |level, block, stamp| stamp == models[level].latest(block))
}

/// Public randomness that draws from the first groups of cells alone, so that they fill up and
/// blocks stay pending.
struct NarrowRandom {
    random: SeededRandom,
    drawn: AtomicU64,
    cells: u64,
}

impl RandomSource for NarrowRandom {
    fn fill(&self, out: &mut [u8]) {
        match <&mut [u8; 8]>::try_from(&mut *out) {
            Ok(word) => *word = (self.drawn.fetch_add(7, Ordering::Relaxed) % self.cells).to_le_bytes(),
            Err(_) => self.random.fill(out),
        }
    }
}

fn open_narrow(medium: &Arc<dyn Medium>, params: &Params, cells: u64) -> Arc<ObliviousDisk> {
    let narrow = NarrowRandom { random: SeededRandom::new(3), drawn: AtomicU64::new(0), cells };
    let options = OpenOptions {
        random: Randomness { public: Arc::new(narrow), ..seeded_randomness(1, 2) },
        ..options(1, 2)
    };
    open_with(medium, params, 2, options).unwrap()
}

fn swap(bytes: &mut [u8], one: Range<usize>, other: Range<usize>) {
    let kept = bytes[one.clone()].to_vec();
    bytes.copy_within(other.clone(), one.start);
    bytes[other].copy_from_slice(&kept);
}

#[test]
fn bit_flips_never_return_wrong_data() {
    let params = params();
    let left = written(&params, 1, true);
    assert_eq!(failures(&params, left.bytes.clone(), &left.models), Some([0, 0]));
    let mut rng = Rng::new(2);
    let (mut hit, mut refused) = (0, 0);
    for _ in 0..150 {
        let mut damaged = left.bytes.clone();
        for _ in 0..3 {
            let at = JOURNAL as u64 + rng.below((damaged.len() - JOURNAL) as u64);
            damaged[at as usize] ^= 1 << rng.below(8);
        }
        match failures(&params, damaged, &left.models) {
            Some([public, hidden]) => hit += u64::from(public + hidden > 0),
            None => refused += 1,
        }
    }
    assert!(hit > 30, "{hit} of 150 were noticed");
    assert_eq!(refused, 0, "a head has two copies");
}

/// While the newest heads cannot be read in either copy, the end of the batches is unknown. The
/// disk does not open in the state of an earlier batch, because the ring has overwritten the
/// records of the batches after that one.
#[test]
fn unreadable_heads_do_not_end_the_journal() {
    let params = params();
    let left = written(&params, 1, true);
    let (regions, ring, journal) = (Regions::of(&params), u64::from(params.ring), u64::from(params.journal));
    assert!(left.last_batch > 3 * ring);
    for error in [Kind::Io, Kind::Memory] {
        let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::from_bytes(left.bytes.clone()))));
        for seq in left.last_batch + 1 - 2 * ring..=left.last_batch {
            for copy in [0, 1] {
                let head = regions.head((seq % journal) as usize, copy);
                let range = head.start as u64..head.end as u64;
                faulty.add(Fault::FailRange { op: OpKind::Read, range, error });
            }
        }
        let medium: Arc<dyn Medium> = faulty;
        let refused = open_with(&medium, &params, 2, options(1, 2)).err().expect("an older state opens");
        assert!([error, Kind::Corrupt].contains(&refused.kind()), "{refused}");
    }
}

#[test]
fn zeroed_swapped_and_rolled_back_cells_are_detected() {
    let params = params();
    let left = written(&params, 4, true);
    let (regions, cells) = (Regions::of(&params), params.cells as usize);
    let mut noticed = [0u64; 3];
    for first in (0..cells - 40).step_by(8) {
        let mut damaged = [left.bytes.clone(), left.bytes.clone(), left.bytes.clone()];
        for cell in first..first + 8 {
            let range = regions.cell(cell);
            for (range, other) in
                [(range, regions.cell(cell + 17)), (regions.meta(cell), regions.meta(cell + 17))]
            {
                damaged[0][range.clone()].fill(0);
                swap(&mut damaged[1], range.clone(), other);
                damaged[2][range.clone()].copy_from_slice(&left.half_way.0[range]);
            }
        }
        for (noticed, damaged) in noticed.iter_mut().zip(damaged) {
            let [public, hidden] = failures(&params, damaged, &left.models).expect("it opens");
            *noticed += public + hidden;
        }
    }
    // Every block except the few with cells in the ring.
    let blocks = (0..2).map(|level| {
        let model = &left.models[level];
        (0..model.blocks()).filter(|block| model.latest(*block) != 0).count() as u64
    });
    let blocks: u64 = blocks.sum();
    assert!(noticed[0] > blocks * 8 / 10 && noticed[1] > blocks * 8 / 10, "{noticed:?} of {blocks}");
    assert!(noticed[2] > blocks / 4, "{noticed:?} of {blocks}");
}

/// A block may return to a cell that held an older version of it: that version must not pass for
/// the newer one.
#[test]
fn a_rollback_of_all_cells_is_detected() {
    let params = params();
    let cells = Regions::of(&params).cells_start..;
    let memory = Arc::new(MemoryMedium::new(params.end()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, &params, 2, 1).unwrap();
    let disk = open_narrow(&medium, &params, 40);
    let levels = disk.levels();
    let mut models = models(&disk);
    let (mut rng, mut next_stamp, mut earlier) = (Rng::new(1), 0, Vec::new());
    for _ in 0..40 {
        for (level, model) in levels.iter().zip(&mut models) {
            let mut worked =
                DiskWorkload { disk: &**level, model, rng: &mut rng, next_stamp: &mut next_stamp };
            worked.write_at(0, 5).unwrap();
        }
        flush_hidden(&disk, &levels[1]).unwrap();
        earlier.push(memory.snapshot());
    }
    disk.close().unwrap();
    let bytes = memory.snapshot();
    let mut noticed = [0; 2];
    for earlier in earlier {
        let mut damaged = bytes.clone();
        damaged[cells.clone()].copy_from_slice(&earlier[cells.clone()]);
        let failed = failures(&params, damaged, &models).expect("cells are no reason not to open");
        noticed[0] += failed[0];
        noticed[1] += failed[1];
    }
    assert!(noticed[0] + noticed[1] > 30, "{noticed:?}");
}

/// A journal that was put back is an earlier disk, mostly gone, and never a mixture.
#[test]
fn a_rollback_of_the_journal_is_detected() {
    let params = params();
    let left = written(&params, 5, true);
    let regions = Regions::of(&params);
    let (old, then) = &left.half_way;
    let mut damaged = left.bytes.clone();
    damaged[JOURNAL..regions.ring_start].copy_from_slice(&old[JOURNAL..regions.ring_start]);
    let blocks = [left.models[0].blocks(), left.models[1].blocks()];
    // The disk may end at the last batch that a head of that time calls durable, because the
    // records of later batches are gone.
    let allowed = |level: usize, block: u64, stamp| stamp <= then[level][block as usize];
    let failed = levels::failures(&params, damaged, blocks, allowed);
    assert!(failed.is_none_or(|[public, hidden]| public > 50 && hidden > 30), "{failed:?}");
}

#[test]
fn one_copy_of_every_head_is_enough() {
    let params = params();
    for close in [true, false] {
        let left = written(&params, 6, close);
        let regions = Regions::of(&params);
        for round in 0..4 {
            let mut damaged = left.bytes.clone();
            for place in 0..regions.journal {
                // The first copies, the second copies, or some of each.
                let copy = if round < 2 { round } else { (place >> (round - 2)) & 1 };
                damaged[regions.head(place, copy)][100] ^= 1;
            }
            assert_eq!(failures(&params, damaged, &left.models), Some([0, 0]), "round {round}");
        }
    }
}

/// If the head of a batch that later heads call durable is missing, the disk refuses to open or no
/// longer needs that head; it never continues from an earlier batch as after a power cut.
#[test]
fn damage_to_both_copies_of_a_head_is_detected() {
    let params = params();
    for close in [true, false] {
        let left = written(&params, 7, close);
        let regions = Regions::of(&params);
        let mut refused = 0;
        for place in 0..regions.journal {
            let seq = left.last_batch
                - (left.last_batch as usize + regions.journal - place) as u64 % u64::from(params.journal);
            if !close && seq > left.last_batch - 4 {
                // No head calls it durable yet: a power cut may leave the same.
                continue;
            }
            for how in 0..3 {
                let mut damaged = left.bytes.clone();
                for copy in 0..2 {
                    let head = regions.head(place, copy);
                    match how {
                        0 => damaged[head][4000] ^= 1,
                        1 => damaged[head].fill(0),
                        _ => damaged[head.clone()].copy_from_slice(&left.half_way.0[head]),
                    }
                }
                match failures(&params, damaged, &left.models) {
                    None => refused += 1,
                    failed => assert_eq!(failed, Some([0, 0]), "batch {seq} of {}", left.last_batch),
                }
            }
        }
        assert!(refused > 5, "{refused} were needed");
    }
}

/// After a power cut the ring has the only copy of the last cells.
#[test]
fn ring_damage_is_detected() {
    let params = params();
    let left = written(&params, 8, false);
    let regions = Regions::of(&params);
    let mut noticed = [0; 2];
    // The record of the last batch is checked as a whole, like that of any other batch that may not
    // have been durable.
    for seq in left.last_batch - u64::from(params.ring) + 1..left.last_batch {
        for slot in 0..params.batch_cells() {
            let mut damaged = left.bytes.clone();
            damaged[regions.in_ring(&params, seq, slot)][2000] ^= 1;
            let failed = failures(&params, damaged, &left.models).expect("it opens");
            noticed[0] += failed[0];
            noticed[1] += failed[1];
        }
    }
    assert!(noticed[0] > 3 && noticed[1] > 3, "{noticed:?}");
}

#[test]
fn a_short_medium_is_refused() {
    let params = params();
    let left = written(&params, 9, true);
    let mut short = left.bytes;
    short.pop();
    assert_eq!(failures(&params, short.clone(), &left.models), None);
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::from_bytes(short));
    assert_eq!(create(&medium, &params, 2, 1).unwrap_err().kind(), Kind::NoSpace);
}

/// A disk with blocks of level 0 in the stash. Returns its medium, the models, and the last batch.
fn with_stash(params: &Params) -> (Vec<u8>, Vec<DiskModel>, u64) {
    let memory = Arc::new(MemoryMedium::new(params.end()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, params, 2, 1).unwrap();
    let disk = open_narrow(&medium, params, 3);
    let levels = disk.levels();
    let mut models = models(&disk);
    let (mut rng, mut next_stamp) = (Rng::new(1), 0);
    // New blocks, and newer versions of some.
    for (first, count) in [(0, 17), (14, 10)] {
        let (disk, model) = (&*levels[0], &mut models[0]);
        DiskWorkload { disk, model, rng: &mut rng, next_stamp: &mut next_stamp }
            .write_at(first, count)
            .unwrap();
        levels[0].flush().unwrap();
    }
    let waiting = fixture::counter(&levels[0], "waiting_for_cells");
    assert!(waiting > 2, "{waiting} blocks wait");
    let last = last_batch(&disk);
    models.iter_mut().for_each(DiskModel::record_flush);
    (memory.snapshot(), models, last)
}

#[test]
fn stash_damage_is_detected() {
    let params = params();
    let regions = Regions::of(&params);
    let (bytes, models, last) = with_stash(&params);
    assert_eq!(failures(&params, bytes.clone(), &models), Some([0, 0]), "they wait on");
    let mut noticed = [0; 2];
    for slot in 0..STASH_SLOTS {
        let mut damaged = bytes.clone();
        damaged[regions.in_ring(&params, last, params.batch_cells() + slot)][2000] ^= 1;
        let failed = failures(&params, damaged, &models).expect("it opens");
        assert!(failed[0] + failed[1] <= 1, "one slot has one block");
        noticed[0] += failed[0];
        noticed[1] += failed[1];
    }
    assert!(noticed[0] > 2 && noticed[1] == 0, "{noticed:?}");
}
