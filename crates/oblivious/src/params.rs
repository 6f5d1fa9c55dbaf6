//! Where everything lies on the medium, and the public parameters from which that follows. The byte-exact page is
//! `docs/format/oblivious.md`; a test keeps the two together.

use crate::bound::tail_base;
use crate::cell::CELL_LEN;
use crate::head::{MOST_CELLS, STASH_SLOTS};
use crate::place::CELL_BITS;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_levels::{largest_level, pages_of};

/// Where the journal begins: what is before belongs to the volume header.
pub(crate) const JOURNAL_START: u64 = 1 << 20;
/// Length of the encoded parameters.
pub(crate) const PARAMS_LEN: usize = 64;
/// The fewest cells of a disk.
const LEAST_CELLS: u64 = 1024;
/// The most cells: each has a number in a place.
const MOST_CELL_COUNT: u64 = (1 << CELL_BITS) - 1;
/// The fewest and the most batches in the ring. More save syncs; these fill 150 MB.
const RING: std::ops::RangeInclusive<u64> = 8..=256;
/// The longest journal: opening reads all of it, 64 MiB.
const MOST_JOURNAL: u64 = 16384;
/// Operations in a batch, if they need no more cells than a batch can list.
const MOST_OPERATIONS: usize = 32;
/// The most cells that an operation may rewrite, the paper's k.
const MOST_PER_WRITE: u8 = 16;
const VERSION: u16 = 1;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// What hides the operations of hidden levels (paper 001, sections 4.2 and 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hiding {
    /// HIVE: every operation of every level, reads included, rewrites cells; a hidden one passes for a public read.
    Plausible,
    /// HIVE-B: hidden operations wait for public writes, which carry them along; reads write nothing.
    Opportunistic,
}

/// What a disk is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What hides the operations of hidden levels.
    pub hiding: Hiding,
    /// Cells that an operation rewrites, the paper's *k*: 3 to 16.
    pub per_write: u8,
    /// Operations in a batch; fewer for tests of small disks.
    pub operations: u8,
    /// Milliseconds between two batches of the paced cover, 0 for none.
    pub cover_millis: u32,
}

impl Plan {
    /// HIVE-B with *k* = 3, as many operations in a batch as it can list.
    pub const DEFAULT: Plan = Plan {
        hiding: Hiding::Opportunistic,
        per_write: 3,
        operations: MOST_OPERATIONS as u8,
        cover_millis: 0,
    };
}

/// The public parameters of an oblivious disk, kept in the volume header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// What it is like.
    pub plan: Plan,
    /// Operations of a batch that are kept for pages of the map of level 0.
    pub page_writes: u8,
    /// Batches in the ring.
    pub ring: u32,
    /// Batches whose heads the journal keeps.
    pub journal: u32,
    /// Batches in which a map is written out once.
    pub cycle: u32,
    /// Physical cells, the paper's N.
    pub cells: u64,
    /// Length of level 0 in blocks.
    pub blocks: u64,
    /// Length of every hidden level in blocks; they share it.
    pub hidden_blocks: u64,
}

impl Params {
    /// Plans the largest disk for a medium of `room` bytes.
    ///
    /// Errors: [`Kind::Usage`] for numbers outside the limits or a medium that is too small.
    pub fn plan(room: u64, plan: Plan) -> Result<Params> {
        let refused = || Error::new(Kind::Usage, "cannot lay out an oblivious disk");
        if !(3..=MOST_PER_WRITE).contains(&plan.per_write) {
            return Err(refused().found(format!("{} cells for each write", plan.per_write)).expected(
                format!("3 to {MOST_PER_WRITE}: with fewer, what waits for a cell grows for ever"),
            ));
        }
        let most = MOST_OPERATIONS.min(MOST_CELLS / usize::from(plan.per_write)) as u8;
        let plan = Plan { operations: plan.operations.clamp(4, most), ..plan };
        let mut params = Params {
            plan,
            page_writes: 1,
            ring: 0,
            journal: 0,
            cycle: 0,
            cells: room / CELL_LEN as u64,
            blocks: 0,
            hidden_blocks: 0,
        };
        params.ring = (params.cells * CELL_LEN as u64 / 32 / params.record_len())
            .clamp(*RING.start(), *RING.end()) as u32
            / 4
            * 4;
        params.journal = (params.cells / 256).clamp(u64::from(params.ring) * 4, MOST_JOURNAL) as u32 / 4 * 4;
        params.cycle = params.journal / 4;
        let before = params.cells_start();
        params.cells = (room.saturating_sub(before) / CELL_LEN as u64).min(MOST_CELL_COUNT);
        if params.cells < LEAST_CELLS {
            return Err(refused()
                .found(format!("a medium of {room} bytes"))
                .expected(format!("at least {} bytes", before + LEAST_CELLS * CELL_LEN as u64))
                .remedy("use a larger medium"));
        }
        params.blocks = largest_level(params.usable());
        params.hidden_blocks = params.blocks;
        let paced = pages_of(params.blocks).div_ceil(u64::from(params.cycle / 2)) + 1;
        params.page_writes = paced.min(u64::from(plan.operations / 2 + 1)) as u8;
        Ok(params)
    }

    /// The parameters as they stand in the header.
    pub fn encode(&self) -> [u8; PARAMS_LEN] {
        let mut out = [0; PARAMS_LEN];
        out[0..2].copy_from_slice(&VERSION.to_le_bytes());
        out[2] = match self.plan.hiding {
            Hiding::Plausible => 1,
            Hiding::Opportunistic => 2,
        };
        out[3] = self.plan.per_write;
        out[4] = self.plan.operations;
        out[5] = self.page_writes;
        out[8..12].copy_from_slice(&self.plan.cover_millis.to_le_bytes());
        out[12..16].copy_from_slice(&self.ring.to_le_bytes());
        out[16..20].copy_from_slice(&self.journal.to_le_bytes());
        out[20..24].copy_from_slice(&self.cycle.to_le_bytes());
        out[24..32].copy_from_slice(&self.cells.to_le_bytes());
        out[32..40].copy_from_slice(&self.blocks.to_le_bytes());
        out[40..48].copy_from_slice(&self.hidden_blocks.to_le_bytes());
        out
    }

    /// Parses what [`Params::encode`] wrote. Errors: [`Kind::Corrupt`] for anything that this version could not have
    /// written.
    pub fn parse(bytes: &[u8]) -> Result<Params> {
        let bad = |found: String, expected: &str| {
            Error::new(Kind::Corrupt, "the parameters of the oblivious format are not usable")
                .found(found)
                .expected(expected)
                .remedy("use the version of lacuna that made this disk, or restore the header from a backup")
        };
        let bytes: &[u8; PARAMS_LEN] =
            bytes.try_into().map_err(|_| bad(format!("{} bytes", bytes.len()), "64 bytes"))?;
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let version = u16::from_le_bytes([bytes[0], bytes[1]]);
        if version != VERSION {
            return Err(bad(format!("version {version}"), "version 1"));
        }
        let hiding = match bytes[2] {
            1 => Hiding::Plausible,
            2 => Hiding::Opportunistic,
            other => return Err(bad(format!("hiding {other}"), "1 or 2")),
        };
        let plan = Plan { hiding, per_write: bytes[3], operations: bytes[4], cover_millis: u32_at(8) };
        let params = Params {
            plan,
            page_writes: bytes[5],
            ring: u32_at(12),
            journal: u32_at(16),
            cycle: u32_at(20),
            cells: u64_at(24),
            blocks: u64_at(32),
            hidden_blocks: u64_at(40),
        };
        let zero = bytes[6..8].iter().chain(&bytes[48..]).all(|&b| b == 0);
        if zero && params.sane() {
            Ok(params)
        } else {
            Err(bad(format!("{params:?}"), "values within the format's limits"))
        }
    }

    fn sane(&self) -> bool {
        let Plan { per_write, operations, .. } = self.plan;
        (3..=MOST_PER_WRITE).contains(&per_write)
            && (4..=MOST_OPERATIONS as u8).contains(&operations)
            && usize::from(per_write) * usize::from(operations) <= MOST_CELLS
            && (1..operations).contains(&self.page_writes)
            && RING.contains(&u64::from(self.ring))
            && self.ring.is_multiple_of(4)
            && u64::from(self.journal) <= MOST_JOURNAL
            && self.journal >= 4 * self.ring
            && self.cycle >= 4
            && self.cycle <= self.journal / 4
            && (LEAST_CELLS..=MOST_CELL_COUNT).contains(&self.cells)
            && (1..=largest_level(self.usable())).contains(&self.blocks)
            && (1..=largest_level(self.usable())).contains(&self.hidden_blocks)
            && tail_base(u32::from(per_write), 0.5).is_some()
    }

    /// Bytes of the whole medium.
    pub fn medium_len(&self) -> u64 {
        self.cells_start() + self.cells * CELL_LEN as u64
    }

    /// Cells that a batch rewrites.
    pub fn batch_cells(&self) -> usize {
        usize::from(self.plan.per_write) * usize::from(self.plan.operations)
    }

    /// Blocks of level 0 that a batch takes in.
    pub fn batch_blocks(&self) -> usize {
        usize::from(self.plan.operations - self.page_writes)
    }

    /// Bytes that a batch writes to the medium: its head twice, its record, and its cells once more in place.
    pub fn batch_bytes(&self) -> u64 {
        2 * BLOCK + self.record_len() + (self.batch_cells() * CELL_LEN) as u64
    }

    /// Cells that data and map of level 0 may fill, and those of all hidden levels together: half of all cells stay
    /// free, which bounds the stash.
    pub(crate) fn usable(&self) -> u64 {
        self.cells / 4
    }

    /// Bytes of a batch in the ring: its cells, then the slots of the stash.
    pub(crate) fn record_len(&self) -> u64 {
        ((self.batch_cells() + STASH_SLOTS) * CELL_LEN) as u64
    }

    /// Where the head of batch `seq` lies, in the first or the second copy of the journal.
    pub(crate) fn head_offset(&self, seq: u64, copy: u64) -> u64 {
        let journal = u64::from(self.journal);
        JOURNAL_START + (copy * journal + seq % journal) * BLOCK
    }

    fn ring_start(&self) -> u64 {
        JOURNAL_START + 2 * u64::from(self.journal) * BLOCK
    }

    fn cells_start(&self) -> u64 {
        self.ring_start() + u64::from(self.ring) * self.record_len()
    }

    /// Where a cell of batch `seq`, or after those a slot of the stash, lies in the ring.
    pub(crate) fn ring_offset(&self, seq: u64, slot: usize) -> u64 {
        self.ring_start() + seq % u64::from(self.ring) * self.record_len() + (slot * CELL_LEN) as u64
    }

    /// Where a cell lies.
    pub(crate) fn cell_offset(&self, cell: u64) -> u64 {
        self.cells_start() + cell * CELL_LEN as u64
    }

    /// Batches between two syncs that the schedule alone causes: a quarter of the ring.
    pub(crate) fn part(&self) -> u64 {
        u64::from(self.ring) / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_survive_and_nonsense_is_refused() {
        for room in [12 << 20, 1 << 30, 100 << 30, 1 << 40, 1 << 50] {
            let params = Params::plan(room, Plan::DEFAULT).unwrap();
            assert_eq!(Params::parse(&params.encode()).unwrap(), params);
            assert!(params.medium_len() <= room);
            assert!(params.blocks > params.cells / 4 * 9 / 10);
            assert!(params.batch_cells() == 96 && params.batch_blocks() >= 15, "{params:?}");
        }
        let good = Params::plan(1 << 30, Plan::DEFAULT).unwrap();
        let broken: [&dyn Fn(&mut Params); 6] = [
            &|p| p.plan.per_write = 2,
            &|p| p.plan.operations = 33,
            &|p| p.blocks = p.cells,
            &|p| p.ring += 1,
            &|p| p.journal = p.ring,
            &|p| p.cells = 1 << 60,
        ];
        for break_it in broken {
            let mut params = good;
            break_it(&mut params);
            assert_eq!(Params::parse(&params.encode()).unwrap_err().kind(), Kind::Corrupt, "{params:?}");
        }
        assert_eq!(Params::plan(4 << 20, Plan::DEFAULT).unwrap_err().kind(), Kind::Usage);
        let two = Plan { per_write: 2, ..Plan::DEFAULT };
        assert_eq!(Params::plan(1 << 30, two).unwrap_err().kind(), Kind::Usage);
    }
}
