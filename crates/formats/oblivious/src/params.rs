//! The public parameters of a disk, and the layout of the medium that follows from them. The
//! byte-exact page is `docs/format/oblivious.md`; a test compares the two.

use crate::cells::place::{BatchSeq, CellNo, StashSlot};
use crate::cells::regions::{self, REGIONS, Region};
use crate::limits::{
    BLOCK, CELL_BITS, CELL_LEN, GROUP, GROUP_LEN, HIDDEN_LEVELS, JOURNAL_START, MAX_CELLS, MAX_OPERATIONS,
    META_LEN, PARTS, STASH_SLOTS,
};
use crate::plan::{HidingMode, Plan};
use lacuna_contracts::{Error, Kind, LeWriter, ParamsReader, Result, Secret};
use lacuna_levels::ClosingCover;
use std::ops::Range;

/// The version of the format on the medium.
pub const VERSION: u16 = 1;

/// Length of the encoded parameters.
const PARAMS_LEN: usize = 64;
/// The fewest cells of a disk.
const MIN_CELLS: u64 = 1024;
/// The most cells: the number of each must fit a place.
const MAX_CELL_COUNT: u64 = (1 << CELL_BITS) - 1;
/// The fewest and the most batches in the ring. More would save syncs; the most fill 270 MB.
const RING_BATCHES: std::ops::RangeInclusive<u64> = 2 * PARTS..=64 * PARTS;
/// The longest journal: opening reads all of it, 64 MiB.
const MAX_JOURNAL: u64 = 16384;
/// Cells that an operation may rewrite, the paper's *k*.
pub(crate) const PER_WRITE: std::ops::RangeInclusive<u8> = 2..=16;

/// The public parameters of an oblivious disk, kept in the volume header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The choices of the owner.
    pub plan: Plan,
    /// Operations of a batch that are reserved for pages of the map of level 0.
    pub page_writes: u8,
    /// Batches in the ring.
    pub ring: u32,
    /// Heads that the journal keeps, one for each batch.
    pub journal: u32,
    /// Batches within which a map is written out once.
    pub cycle: u32,
    /// Physical cells, the paper's N.
    pub cells: u64,
    /// Length of level 0 in blocks.
    pub blocks: u64,
}

impl Params {
    /// The most hidden levels that a disk can have.
    pub const HIDDEN_LEVELS: u8 = HIDDEN_LEVELS as u8;

    /// Plans the largest disk for a medium of `room` bytes.
    ///
    /// Errors: [`Kind::Usage`] for numbers outside the limits or a medium that is too small.
    pub fn plan(room: u64, plan: Plan) -> Result<Params> {
        let refused = || Error::new(Kind::Usage, "cannot lay out an oblivious disk");
        if !PER_WRITE.contains(&plan.per_write) {
            return Err(refused().found(format!("{} cells for each write", plan.per_write)).expected(
                format!(
                    "{} to {}: with fewer, the blocks pending for a cell grow for ever",
                    PER_WRITE.start(),
                    PER_WRITE.end()
                ),
            ));
        }
        let mut plan = Plan { operations: plan.operations.clamp(4, MAX_OPERATIONS as u8), ..plan };
        while regions::drawn(&plan).iter().sum::<usize>() > MAX_CELLS && plan.operations > 4 {
            plan.operations -= 1;
        }
        let cells = room / GROUP_LEN * GROUP;
        let mut params = Params { plan, page_writes: 1, ring: 0, journal: 0, cycle: 0, cells, blocks: 0 };
        let ring = (room / 8 / params.record_len()).clamp(*RING_BATCHES.start(), *RING_BATCHES.end());
        params.ring = (ring / PARTS * PARTS) as u32;
        params.journal = (cells / 256).clamp(u64::from(params.ring) * 4, MAX_JOURNAL) as u32 / 4 * 4;
        params.cycle = params.journal / 4;
        let before = params.cells_start();
        params.cells = (room.saturating_sub(before) / GROUP_LEN * GROUP).min(MAX_CELL_COUNT / GROUP * GROUP);
        if params.cells < MIN_CELLS || !params.has_cells_to_draw() {
            let least = before + MIN_CELLS / GROUP * GROUP_LEN;
            return Err(refused()
                .found(format!("a medium of {room} bytes"))
                .expected(format!("at least {least} bytes"))
                .hint("use a larger medium"));
        }
        params.blocks = params.max_blocks(0);
        params.page_writes = params.page_share(0) as u8;
        Ok(params)
    }

    /// The parameters as the header stores them.
    pub fn encode(&self) -> [u8; PARAMS_LEN] {
        let mut out = [0; PARAMS_LEN];
        let hiding = match self.plan.hiding {
            HidingMode::Plausible => 1,
            HidingMode::Opportunistic => 2,
        };
        let mut record = LeWriter(&mut out);
        record.u16(0, VERSION).put(2, &[hiding, self.plan.per_write, self.plan.operations, self.page_writes]);
        record.u32(8, self.plan.cover_millis).u32(12, self.ring).u32(16, self.journal).u32(20, self.cycle);
        record.u64(24, self.cells).u64(32, self.blocks);
        out
    }

    /// Parses the output of [`Params::encode`]. Errors: [`Kind::Corrupt`] for bytes that it could
    /// not have written.
    pub fn parse(bytes: &[u8]) -> Result<Params> {
        let record = ParamsReader::new("oblivious", bytes, PARAMS_LEN)?;
        let version = record.u16(0);
        if version != VERSION {
            return Err(record.invalid(format!("version {version}"), format!("version {VERSION}")));
        }
        let hiding = match bytes[2] {
            1 => HidingMode::Plausible,
            2 => HidingMode::Opportunistic,
            other => return Err(record.invalid(format!("hiding {other}"), "1 or 2")),
        };
        let plan = Plan { hiding, per_write: bytes[3], operations: bytes[4], cover_millis: record.u32(8) };
        let params = Params {
            plan,
            page_writes: bytes[5],
            ring: record.u32(12),
            journal: record.u32(16),
            cycle: record.u32(20),
            cells: record.u64(24),
            blocks: record.u64(32),
        };
        let zero = record.is_zero(6..8) && record.is_zero(40..);
        if zero && params.is_valid() {
            Ok(params)
        } else {
            Err(record.invalid(format!("{params:?}"), "values within the format's limits"))
        }
    }

    fn is_valid(&self) -> bool {
        let Plan { per_write, operations, .. } = self.plan;
        let ring = u64::from(self.ring);
        (4..=MAX_OPERATIONS as u8).contains(&operations)
            && PER_WRITE.contains(&per_write)
            && self.batch_cells() <= MAX_CELLS
            && RING_BATCHES.contains(&ring)
            && ring.is_multiple_of(PARTS)
            && u64::from(self.journal) <= MAX_JOURNAL
            && u64::from(self.journal) >= 4 * ring
            && self.cycle >= 4
            && self.cycle <= self.journal / 4
            && (MIN_CELLS..=MAX_CELL_COUNT).contains(&self.cells)
            && self.cells.is_multiple_of(GROUP)
            && self.has_cells_to_draw()
            && (1..=self.max_blocks(0)).contains(&self.blocks)
            && (1..operations).contains(&self.page_writes)
            && usize::from(self.page_writes) >= self.page_share(0)
    }

    fn has_cells_to_draw(&self) -> bool {
        self.regions().iter().all(|region| region.drawn as u64 <= region.cells)
    }

    /// The most blocks that a level can have, by the public parameters. A hidden level is up to a
    /// sixteenth shorter, by its key.
    pub fn max_blocks(&self, level: u8) -> u64 {
        if level > Params::HIDDEN_LEVELS {
            return 0;
        }
        regions::max_blocks(self.region(level).cells, &self.plan)
    }

    /// Length of a level in blocks. `key` is the key of the level.
    pub(crate) fn level_blocks(&self, level: u8, key: &Secret<32>) -> u64 {
        if level == 0 { self.blocks } else { regions::hidden_length(key, self.max_blocks(level)) }
    }

    /// The regions of level 0 and of the hidden levels, and the rest.
    pub(crate) fn regions(&self) -> [Region; REGIONS] {
        regions::divide(self.cells, &self.plan)
    }

    pub(crate) fn region(&self, level: u8) -> Region {
        self.regions()[usize::from(level)]
    }

    /// The cells of a batch that may hold data of a level, by their index in the batch.
    pub(crate) fn slots(&self, level: u8) -> Range<usize> {
        let (drawn, at) = (regions::drawn(&self.plan), usize::from(level));
        let first: usize = drawn[..at].iter().sum();
        first..first + drawn[at]
    }

    /// Pages of the map of a level that a batch takes before any data: enough for every page in
    /// half a cycle, or one page more than blocks, so that no cycle lasts longer than the one
    /// before.
    pub(crate) fn page_share(&self, level: u8) -> usize {
        let inserted = regions::inserted(&self.plan)[usize::from(level)];
        self.paced_pages(level).min(inserted as u64 / 2 + 1) as usize
    }

    /// Pages that each batch of half a cycle must take to write the whole map.
    fn paced_pages(&self, level: u8) -> u64 {
        lacuna_levels::map_pages(self.max_blocks(level)).div_ceil(u64::from(self.cycle / 2).max(1)) + 1
    }

    /// The most blocks of a hidden level that a batch takes.
    ///
    /// A cycle writes the leaves that were dirty when it began: at most one for each block that
    /// batches took since the cycle before began. If a batch takes fewer blocks than pages, or
    /// enough pages for the whole map, no cycle lasts longer than the one before, or than half of
    /// the shortest: a map never falls behind, however full the queue of its level is.
    pub(crate) fn max_blocks_taken(&self, level: u8) -> usize {
        let inserted = regions::inserted(&self.plan)[usize::from(level)];
        let pages = self.page_share(level);
        let taken = if pages as u64 == self.paced_pages(level) { usize::MAX } else { inserted - pages };
        debug_assert!(taken > 0 && (taken == usize::MAX || taken < pages));
        taken
    }

    /// The end of the disk on its medium: the offset of the first byte after it.
    pub fn end(&self) -> u64 {
        self.cells_start() + self.cells / GROUP * GROUP_LEN
    }

    /// The batches of cover that closing writes before the last ones: at most an eighth of the
    /// journal.
    pub fn closing_cover(&self) -> ClosingCover {
        ClosingCover::new(self.batch_bytes(), u64::from(self.journal) / 8)
    }

    /// Cells that a batch rewrites.
    pub fn batch_cells(&self) -> usize {
        regions::drawn(&self.plan).iter().sum()
    }

    /// Blocks of level 0 that a batch takes in.
    pub fn batch_blocks(&self) -> usize {
        usize::from(self.plan.operations - self.page_writes)
    }

    /// Bytes that a batch writes to the medium: its head twice, its record, and its cells once more
    /// in place.
    pub fn batch_bytes(&self) -> u64 {
        2 * BLOCK + self.record_len() + (self.batch_cells() * CELL_LEN) as u64
    }

    /// Bytes of a batch in the ring: its cells, then the slots of the stash, padded to a whole
    /// block.
    pub(crate) fn record_len(&self) -> u64 {
        (((self.batch_cells() + STASH_SLOTS) * CELL_LEN) as u64).next_multiple_of(BLOCK)
    }

    /// Offset of the head of batch `seq` in the first or the second copy of the journal.
    pub(crate) fn head_offset(&self, seq: BatchSeq, copy: u64) -> u64 {
        let journal = u64::from(self.journal);
        JOURNAL_START + (copy * journal + seq.0 % journal) * BLOCK
    }

    fn ring_start(&self) -> u64 {
        JOURNAL_START + 2 * u64::from(self.journal) * BLOCK
    }

    fn cells_start(&self) -> u64 {
        self.ring_start() + u64::from(self.ring) * self.record_len()
    }

    /// Offset of the record of batch `seq` in the ring.
    pub(crate) fn record_offset(&self, seq: BatchSeq) -> u64 {
        self.ring_start() + seq.0 % u64::from(self.ring) * self.record_len()
    }

    /// Offset of a cell of batch `seq` in the ring, by its index in the batch.
    pub(crate) fn ring_offset(&self, seq: BatchSeq, slot: usize) -> u64 {
        self.record_offset(seq) + (slot * CELL_LEN) as u64
    }

    /// Offset of a slot of the stash of batch `seq` in the ring: the stash follows the cells.
    pub(crate) fn stash_offset(&self, seq: BatchSeq, slot: StashSlot) -> u64 {
        self.ring_offset(seq, self.batch_cells() + slot.0)
    }

    /// Offsets of the block of a cell in place, and of its metadata.
    pub(crate) fn cell_offsets(&self, cell: CellNo) -> [u64; 2] {
        let (page, at) = self.meta_page(cell);
        [page - (GROUP - cell.0 % GROUP) * BLOCK, page + at as u64]
    }

    /// Offset of the page with the metadata of a cell, and the position of the metadata in the
    /// page.
    pub(crate) fn meta_page(&self, cell: CellNo) -> (u64, usize) {
        let page = self.cells_start() + cell.0 / GROUP * GROUP_LEN + GROUP * BLOCK;
        (page, (cell.0 % GROUP) as usize * META_LEN)
    }

    /// Batches between two syncs of the schedule.
    pub(crate) fn part_batches(&self) -> u64 {
        u64::from(self.ring) / PARTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_round_trip_and_garbage_is_rejected() {
        for room in [16 << 20, 1 << 30, 100 << 30, 1 << 40, 1 << 50] {
            let params = Params::plan(room, Plan::DEFAULT).unwrap();
            assert_eq!(Params::parse(&params.encode()).unwrap(), params);
            assert!(params.end() <= room && room - params.end() < GROUP_LEN, "{params:?}");
            assert!(params.batch_cells() == 120 && params.batch_blocks() >= 15, "{params:?}");
        }
        let good = Params::plan(1 << 30, Plan::DEFAULT).unwrap();
        let broken: [&dyn Fn(&mut Params); 9] = [
            &|p| p.plan.per_write = 1,
            &|p| p.plan.operations = 33,
            &|p| p.blocks = p.cells,
            &|p| p.ring += 1,
            &|p| p.cells -= 1,
            &|p| p.ring = 1 << 30,
            &|p| p.journal = p.ring,
            &|p| p.cells = 1 << 60,
            &|p| p.page_writes = 0,
        ];
        for break_it in broken {
            let mut params = good;
            break_it(&mut params);
            assert_eq!(Params::parse(&params.encode()).unwrap_err().kind(), Kind::Corrupt, "{params:?}");
        }
        let mut of_another_version = good.encode();
        LeWriter(&mut of_another_version).u16(0, VERSION + 1);
        assert_eq!(Params::parse(&of_another_version).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(Params::plan(4 << 20, Plan::DEFAULT).unwrap_err().kind(), Kind::Usage);
        let one = Plan { per_write: 1, ..Plan::DEFAULT };
        assert_eq!(Params::plan(1 << 30, one).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn level_sizes_meet_their_promised_share() {
        for room in [256 << 20, 1 << 30, 1 << 40] {
            let params = Params::plan(room, Plan::DEFAULT).unwrap();
            let part = |level| (params.max_blocks(level) * BLOCK) as f64 / room as f64;
            assert!(part(0) >= 0.14 && part(1) * 15.0 / 16.0 >= 0.065, "{} and {}", part(0), part(1));
            assert!(part(2) > 0.015 && part(3) > 0.004, "{} and {}", part(2), part(3));
            assert_eq!((Params::HIDDEN_LEVELS, params.max_blocks(4)), (3, 0));
        }
    }

    /// On every disk that can be planned, pages keep up with data. (A level without cells for its
    /// map was once lost.)
    #[test]
    fn no_map_falls_behind() {
        for room in [16 << 20, 1 << 30, 100 << 30, 1 << 40, 1 << 50] {
            for (per_write, operations) in [(2, 32), (2, 4), (3, 32), (3, 6), (16, 4)] {
                let plan = Plan { per_write, operations, ..Plan::DEFAULT };
                let Ok(params) = Params::plan(room, plan) else { continue };
                for level in 0..=Params::HIDDEN_LEVELS {
                    let (pages, taken) = (params.page_share(level), params.max_blocks_taken(level));
                    let whole = pages as u64 * u64::from(params.cycle / 2);
                    let map = lacuna_levels::map_pages(params.max_blocks(level));
                    assert!(whole > map || taken < pages, "{params:?}, level {level}");
                }
            }
        }
    }
}
