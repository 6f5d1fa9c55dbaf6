//! What a write costs, counted on the medium: the same for every logical sequence and however full the level is, and as
//! much as follows from the parameters.
//!
//! Each of the *operations* of a batch reads *k* cells, and has *k* written to the ring and later *k* in place, read from
//! the ring once more (fewer where batches that go home together share a cell); it has its share of the slots of the stash and
//! of the two copies of the head. A batch takes *operations* − *page_writes* blocks: that is all that the map costs.
//!
//! The papers: HIVE rewrites O(log² N) blocks for a write, with a constant of 64 without a stash and of 3 with one (paper
//! 000, section 4); for k cells that change in the maps of each of L levels of recursion, O(k^L) (paper 001, section 5.2).
//! Run with `--nocapture`, this prints both beside ours, of which `page_writes` alone grows with N, up to 17 of 32.

mod fixture;

use fixture::{create, open};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Params, Plan};
use lacuna_sim::{OpKind, Record, Recorder, Rng};
use std::sync::Arc;

const CELL: u64 = 4608;
const STASH_SLOTS: u64 = 32;

/// Cells, and blocks of heads, that were moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moved {
    read: u64,
    to_ring: u64,
    in_place: u64,
    heads: u64,
}

impl Moved {
    fn of(params: &Params, records: &[Record]) -> Moved {
        let cells_start = params.medium_len() - params.cells * CELL;
        let mut moved = Moved::default();
        for record in records {
            let counter = match record.kind {
                OpKind::Sync => continue,
                OpKind::Read => &mut moved.read,
                OpKind::Write if record.offset >= cells_start => &mut moved.in_place,
                OpKind::Write if record.len == BLOCK_SIZE as u64 => &mut moved.heads,
                OpKind::Write => &mut moved.to_ring,
                other => panic!("{other:?} while blocks are written"),
            };
            let unit = if record.len == BLOCK_SIZE as u64 { record.len } else { CELL };
            assert!(record.len.is_multiple_of(unit));
            *counter += record.len / unit;
        }
        moved
    }

    /// Bytes written.
    fn written(&self) -> u64 {
        (self.to_ring + self.in_place) * CELL + self.heads * BLOCK_SIZE as u64
    }
}

/// What writes of blocks move, after a level was written up to a part of its blocks. However large the part is, as many
/// blocks were written before.
fn measure(params: &Params, part: u64, writes: u64, mut next: impl FnMut(u64, u64) -> u64) -> Moved {
    let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.medium_len()))));
    let medium: Arc<dyn Medium> = recorder.clone();
    create(&medium, params, 1, 1).unwrap();
    let disk = open(&medium, params, 1, 2).unwrap();
    let level = &disk.levels()[0];
    let block = vec![7; BLOCK_SIZE];
    let full = params.blocks * part / 100;
    for n in 0..params.blocks {
        level.write(BlockAddr(n % full), &block).unwrap();
    }
    level.flush().unwrap();
    recorder.take();
    for n in 0..writes {
        level.write(BlockAddr(next(n, full)), &block).unwrap();
    }
    Moved::of(params, &recorder.take())
}

fn shape(room: u64, per_write: u8, operations: u8) -> Params {
    Params::plan(room, Plan { per_write, operations, ..Plan::DEFAULT }).unwrap()
}

#[test]
fn every_write_costs_the_same_and_what_the_parameters_say() {
    println!("blocks of 4096 for a block: read, written, of these to the ring, in place, stash and heads");
    for params in
        [shape(40 << 20, 3, 32), shape(16 << 20, 3, 12), shape(16 << 20, 4, 24), shape(12 << 20, 6, 4)]
    {
        let (cells, taken) = (params.batch_cells() as u64, params.batch_blocks() as u64);
        // Parts of the ring, which go home together.
        let parts = 40;
        let batches = parts * u64::from(params.ring) / 4;
        let mut counted = Vec::new();
        for part in [10, 50, 100] {
            let mut rng = Rng::new(part);
            counted.push(measure(&params, part, batches * taken, |n, full| n % full));
            counted.push(measure(&params, part, batches * taken, |_, _| 3));
            counted.push(measure(&params, part, batches * taken, |_, full| rng.below(full)));
        }
        let moved = counted[0];
        assert!(counted.iter().all(|other| *other == moved), "{counted:?}");
        assert_eq!(moved.to_ring, batches * (cells + STASH_SLOTS));
        assert_eq!(moved.heads, batches * 2);
        assert_eq!(moved.read, batches * cells + moved.in_place);
        // Cells that no batch of a part draws stay as they are.
        let (all, drawn) = (params.cells as f64, cells as f64);
        let in_place = all * (1.0 - (1.0 - drawn / all).powi((batches / parts) as i32)) * parts as f64;
        assert!(
            (moved.in_place as f64 / in_place - 1.0).abs() < 0.02,
            "{} against {in_place}",
            moved.in_place
        );
        // What `status` tells counts a cell for every batch that draws it.
        let told = params.batch_bytes() * batches;
        assert_eq!(told - moved.written(), (batches * cells - moved.in_place) * CELL);
        let each = |bytes: u64| bytes as f64 / (batches * taken * BLOCK_SIZE as u64) as f64;
        println!(
            "k = {}, {} operations of which {taken} take blocks: {:.2}, {:.2}: {:.2}, {:.2}, {:.2}",
            params.plan.per_write,
            params.plan.operations,
            each(moved.read * CELL),
            each(moved.written()),
            each(batches * cells * CELL),
            each(moved.in_place * CELL),
            each(batches * (STASH_SLOTS * CELL + 2 * BLOCK_SIZE as u64)),
        );
    }
}

#[test]
fn the_cost_stays_below_its_bound_on_the_largest_disks() {
    println!("medium | cells read, and cells' worth written, for a block | 3 log² N | 64 log² N | k^L");
    for room in [1u64 << 30, 100 << 30, 1 << 40, 16 << 40, 1 << 50] {
        let params = Params::plan(room, Plan::DEFAULT).unwrap();
        let taken = params.batch_blocks() as f64;
        let read = (2 * params.batch_cells()) as f64 / taken;
        let written = params.batch_bytes() as f64 / CELL as f64 / taken;
        let logs = (params.cells as f64).log2().powi(2);
        // The level itself, and the depths of its map, of 512 places a page.
        let levels = 1 + ((params.blocks as f64).ln() / 512f64.ln()).ceil() as u32;
        let recursive = u64::from(params.plan.per_write).pow(levels);
        println!(
            "{} GiB | {read:.1}, {written:.1} | {:.0} | {:.0} | {recursive}",
            room >> 30,
            3.0 * logs,
            64.0 * logs
        );
        // At least 15 of 32 operations take blocks.
        assert!(read <= 192.0 / 15.0 && written <= 15.2, "{read} and {written}");
        assert!(read + written < 3.0 * logs && read + written < 2.0 * recursive as f64);
    }
}
