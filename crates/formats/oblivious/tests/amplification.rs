//! Write amplification, counted on the medium: the same for every logical sequence and however full
//! the level is, and equal to the value that follows from the parameters.
//!
//! Every batch reads its cells in all regions. They are written to the ring and later in place,
//! after another read from the ring (fewer if batches that go in place together share a cell). A
//! batch also writes slots of the stash and two copies of the head. It takes *operations* −
//! *page_writes* blocks of level 0, and of a hidden level about its share.
//!
//! The papers: HIVE rewrites O(log² N) blocks for a write, with a constant of 64 without a stash
//! and of 3 with one (PD-DM, section 4); for k cells that change in the maps of each of L levels of
//! recursion, O(k^L) (HIVE, section 5.2). With `--nocapture` this prints both beside our numbers,
//! where only `page_writes` grows with N, up to 17 of 32.

mod fixture;

use fixture::{create, open};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Params, Plan};
use lacuna_sim::{OpKind, RecordedOp, Recorder, Rng};
use std::sync::Arc;

const CELL: u64 = 4160;
const STASH_SLOTS: u64 = 48;

/// Bytes read; and records, blocks in place, bytes of metadata and heads written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MediumTraffic {
    read: u64,
    records: u64,
    in_place: u64,
    metadata: u64,
    heads: u64,
}

impl MediumTraffic {
    fn of(params: &Params, records: &[RecordedOp]) -> MediumTraffic {
        let block = BLOCK_SIZE as u64;
        // In place a page of metadata follows the blocks of eight cells.
        let cells_start = params.end() - params.cells / 8 * 9 * block;
        let is_metadata = |offset: u64| offset >= cells_start && (offset - cells_start) / block % 9 == 8;
        let mut moved = MediumTraffic::default();
        for record in records {
            match record.kind {
                OpKind::Sync => {}
                OpKind::Read => moved.read += record.len,
                OpKind::Write if is_metadata(record.offset) => moved.metadata += record.len,
                OpKind::Write if record.offset >= cells_start => moved.in_place += record.len / block,
                OpKind::Write if record.len == block => moved.heads += 1,
                OpKind::Write => moved.records += 1,
                other => panic!("{other:?} while blocks are written"),
            }
        }
        moved
    }

    /// Bytes written.
    fn written(&self, params: &Params) -> u64 {
        self.records * record(params) + (self.in_place + self.heads) * BLOCK_SIZE as u64 + self.metadata
    }
}

/// Bytes of a record.
fn record(params: &Params) -> u64 {
    ((params.batch_cells() as u64 + STASH_SLOTS) * CELL).next_multiple_of(BLOCK_SIZE as u64)
}

/// The cost of writes after a level was written up to a part of its blocks. The number of writes
/// before does not depend on the part.
fn measure(params: &Params, part: u64, writes: u64, mut next: impl FnMut(u64, u64) -> u64) -> MediumTraffic {
    let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.end()))));
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
    MediumTraffic::of(params, &recorder.take())
}

fn shape(room: u64, per_write: u8, operations: u8) -> Params {
    Params::plan(room, Plan { per_write, operations, ..Plan::DEFAULT }).unwrap()
}

#[test]
fn every_write_costs_what_the_parameters_say() {
    println!("blocks of 4096 for a block: read, written, of these to the ring, in place, metadata");
    for params in
        [shape(80 << 20, 2, 32), shape(24 << 20, 2, 12), shape(24 << 20, 3, 16), shape(32 << 20, 6, 4)]
    {
        let (cells, taken) = (params.batch_cells() as u64, params.batch_blocks() as u64);
        // Parts of the ring, each written in place as a whole.
        let parts = 40;
        let batches = parts * u64::from(params.ring) / 6;
        let mut counted = Vec::new();
        for part in [10, 50, 100] {
            let mut rng = Rng::new(part);
            counted.push(measure(&params, part, batches * taken, |n, full| n % full));
            counted.push(measure(&params, part, batches * taken, |_, _| 3));
            counted.push(measure(&params, part, batches * taken, |_, full| rng.below(full)));
        }
        let moved = counted[0];
        assert!(counted.iter().all(|other| *other == moved), "{counted:?}");
        assert_eq!((moved.records, moved.heads), (batches, batches * 2));
        let block = BLOCK_SIZE as u64;
        // Before writes in place, whole records are read from the ring.
        assert_eq!(moved.read, batches * 2 * cells * CELL);
        assert!(moved.in_place <= batches * cells);
        assert_eq!(moved.metadata, moved.in_place * (CELL - block));
        // `status` counts a cell for every batch that draws it.
        let reported = params.batch_bytes() * batches;
        assert_eq!(reported - moved.written(&params), (batches * cells - moved.in_place) * CELL);
        let each = |bytes: u64| bytes as f64 / (batches * taken * block) as f64;
        println!(
            "k = {}, {} operations, {taken} of them take blocks: {:.2}, {:.2}: {:.2}, {:.2}, {:.2}",
            params.plan.per_write,
            params.plan.operations,
            each(moved.read),
            each(moved.written(&params)),
            each(batches * record(&params)),
            each(moved.in_place * block),
            each(moved.metadata),
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
        let written = params.batch_bytes() as f64 / BLOCK_SIZE as f64 / taken;
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
        // At least 15 of 32 operations take blocks. The cost covers all levels.
        assert!(read <= 240.0 / 15.0 && written <= 25.0, "{read} and {written}");
        assert!(read + written < 3.0 * logs);
    }
}
