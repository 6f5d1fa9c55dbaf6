//! Reads cells at their latest version, and writes them in place.
//!
//! Invariant: a cell that `in_flight` lists is read from the ring and never in place, so no cell is
//! read while it is being written.

use crate::cells::place::{BatchSeq, CellNo};
use crate::journal::COPIES;
use crate::limits::{BLOCK, CELL_LEN, GROUP, META_LEN};
use crate::params::Params;
use lacuna_contracts::{BLOCK_SIZE, Kind, Result};
use lacuna_levels::{retry, retry_refused};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// The offset of a page of metadata, and its bytes.
type CellMetaPage = (u64, Vec<u8>);

/// Groups of cells that are written in place at once.
const GROUPS_AT_ONCE: usize = 256;
/// A medium loses data in units of this size.
const SECTOR: usize = 512;
/// Pauses before a failed read is tried again: the failure of a connection may be transient.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(100)];
/// Optimistic reads of cells, without the lock of those in flight, before a read under the lock.
const OPTIMISTIC_READS: usize = 3;

/// The position in the ring of the latest version of a cell, or of the first cell of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RingPosition {
    seq: BatchSeq,
    slot: u8,
}

/// Cells that are in the ring and not yet in place.
#[derive(Default)]
struct CellsInFlight {
    /// Indexed by the numbers of groups.
    groups: FxHashMap<u64, RingPosition>,
    /// How often writing in place was begun.
    destage_rounds: u64,
}

impl CellsInFlight {
    /// The position of a cell in the ring, if it is there.
    fn cell(&self, cell: CellNo) -> Option<RingPosition> {
        let first = self.groups.get(&(cell.0 / GROUP))?;
        Some(RingPosition { slot: first.slot + (cell.0 % GROUP) as u8, ..*first })
    }

    fn all(&self, cells: &[CellNo]) -> Vec<Option<RingPosition>> {
        cells.iter().map(|cell| self.cell(*cell)).collect()
    }
}

/// Memory to read a cell into.
pub(crate) enum CellBuf<'a> {
    /// In one piece.
    Whole(&'a mut [u8]),
    /// Its block, and its metadata.
    Parts(&'a mut [u8], &'a mut [u8]),
    /// Its block alone.
    Block(&'a mut [u8]),
}

impl CellBuf<'_> {
    /// The memory of the block, and of the metadata if it is wanted.
    fn parts(&mut self) -> (&mut [u8], Option<&mut [u8]>) {
        match self {
            CellBuf::Whole(cell) => {
                let (block, metadata) = cell.split_at_mut(BLOCK_SIZE);
                (block, Some(metadata))
            }
            CellBuf::Parts(block, metadata) => (block, Some(metadata)),
            CellBuf::Block(block) => (block, None),
        }
    }
}

/// The cells of a disk.
pub(crate) struct CellStore {
    medium: Arc<dyn Medium>,
    params: Params,
    /// Whether reads that must not fail pause before they are given up.
    pauses: bool,
    in_flight: RwLock<CellsInFlight>,
}

impl CellStore {
    pub(crate) fn new(medium: Arc<dyn Medium>, params: Params, pauses: bool) -> CellStore {
        CellStore { medium, params, pauses, in_flight: RwLock::default() }
    }

    /// The positions of cells in the ring, if they are there, and how often writing in place was
    /// begun.
    fn positions(&self, cells: &[CellNo]) -> (Vec<Option<RingPosition>>, u64) {
        let in_flight = self.in_flight.read();
        (in_flight.all(cells), in_flight.destage_rounds)
    }

    /// Reads cells, one after another, into `out`, for a level.
    ///
    /// Deniability contract: the system's cache shows which places were read. A read for a hidden
    /// level leaves nothing there.
    pub(crate) fn read(&self, level: u8, cells: &[CellNo], out: &mut [u8]) -> Result<()> {
        let mut bufs: Vec<CellBuf<'_>> = out.chunks_exact_mut(CELL_LEN).map(CellBuf::Whole).collect();
        self.read_to(level, cells, &mut bufs)
    }

    /// The same, with memory of its own for each cell.
    pub(crate) fn read_to(&self, level: u8, cells: &[CellNo], bufs: &mut [CellBuf<'_>]) -> Result<()> {
        for _ in 0..OPTIMISTIC_READS {
            let (places, rounds) = self.positions(cells);
            self.read_from(level, cells, &places, bufs)?;
            // A cell may have come into the ring meanwhile, and be half written in place if that
            // was begun meanwhile.
            if self.positions(cells) == (places, rounds) {
                return Ok(());
            }
        }
        let in_flight = self.in_flight.read();
        self.read_from(level, cells, &in_flight.all(cells), bufs)
    }

    fn read_from(
        &self,
        level: u8,
        cells: &[CellNo],
        places: &[Option<RingPosition>],
        bufs: &mut [CellBuf<'_>],
    ) -> Result<()> {
        // In place the blocks of a group lie side by side, followed by their metadata.
        let mut batch: Vec<ReadExtent<'_>> = Vec::with_capacity(2 * cells.len());
        let mut metadata: Vec<ReadExtent<'_>> = Vec::new();
        let mut last = None;
        for ((cell, place), buf) in cells.iter().zip(places).zip(bufs) {
            if last.replace(cell.0 / GROUP) != Some(cell.0 / GROUP) {
                batch.append(&mut metadata);
            }
            if let Some(at) = place {
                let offset = self.params.ring_offset(at.seq, usize::from(at.slot));
                match buf {
                    CellBuf::Whole(buf) | CellBuf::Block(buf) => batch.push(ReadExtent { offset, buf }),
                    CellBuf::Parts(block, meta) => {
                        batch.push(ReadExtent { offset, buf: block });
                        batch.push(ReadExtent { offset: offset + BLOCK, buf: meta });
                    }
                }
                continue;
            }
            let offsets = self.params.cell_offsets(*cell);
            let (block, meta) = buf.parts();
            batch.push(ReadExtent { offset: offsets[0], buf: block });
            metadata.extend(meta.map(|buf| ReadExtent { offset: offsets[1], buf }));
        }
        batch.append(&mut metadata);
        if level == 0 { self.medium.read(&mut batch) } else { self.medium.read_discreetly(&mut batch) }
    }

    /// Reads, and tries again if the medium fails, with pauses if the disk has threads.
    pub(crate) fn retry_with_pauses(&self, mut read: impl FnMut() -> Result<()>) -> Result<()> {
        let mut done = retry(&mut read);
        for pause in PAUSES.iter().filter(|_| self.pauses) {
            match done {
                Err(e) if e.kind() != Kind::Corrupt => {
                    std::thread::sleep(*pause);
                    done = read();
                }
                done => return done,
            }
        }
        done
    }

    /// Reads data without which a batch cannot be filled: with threads, a read that the system
    /// refuses is tried again ([`retry_refused`]).
    pub(crate) fn retry_if_refused(&self, mut read: impl FnMut() -> Result<()>) -> Result<()> {
        if self.pauses { retry_refused(read) } else { read() }
    }

    /// Whether the medium reads at all; if not, a failed read means no loss.
    pub(crate) fn is_readable(&self) -> bool {
        let mut block = [0; BLOCK_SIZE];
        let head = |copy| self.params.head_offset(BatchSeq(1), copy);
        (0..COPIES).any(|copy| retry(|| self.medium.read_at(head(copy), &mut block)).is_ok())
    }

    /// Whether a read succeeded; false if its data is lost.
    ///
    /// Errors: that of the read, if it may be transient: the medium reads nothing at all, or the
    /// system refused.
    pub(crate) fn check_read(&self, read: Result<()>) -> Result<bool> {
        match read {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == Kind::Corrupt => Ok(false),
            Err(e) if e.kind() == Kind::Io && self.is_readable() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Reads the cells of a batch, of all levels, before they are overwritten. An unreadable cell
    /// is lost, and becomes zeros here: one bad sector must not stop the disk. Errors: nothing can
    /// be read, or the system refuses to read.
    pub(crate) fn read_before_overwrite(&self, cells: &[CellNo], out: &mut [u8]) -> Result<()> {
        let Err(e) = self.retry_with_pauses(|| self.read(0, cells, out)) else { return Ok(()) };
        let mut given = false;
        for (cell, out) in cells.iter().zip(out.chunks_exact_mut(CELL_LEN)) {
            match retry(|| self.read(0, &[*cell], out)) {
                Ok(()) => given = true,
                // The cell cannot be read at the moment, and is not lost.
                Err(e) if e.kind().is_refusal() => return Err(e),
                Err(_) => out.fill(0),
            }
        }
        if given { Ok(()) } else { Err(e) }
    }

    /// Records that these cells, whole groups, are to be read from batch `seq` in the ring.
    pub(crate) fn submit(&self, seq: BatchSeq, cells: &[CellNo]) {
        let mut in_flight = self.in_flight.write();
        for (slot, first) in (0u8..).zip(cells).step_by(GROUP as usize) {
            in_flight.groups.insert(first.0 / GROUP, RingPosition { seq, slot });
        }
    }

    /// Announces writes in place: a concurrent reader of cells then reads them again.
    pub(crate) fn begin_destage(&self) {
        self.in_flight.write().destage_rounds += 1;
    }

    /// Writes in place, in the order of their numbers, the cells that have their latest version in
    /// a batch from `first` to `last`. These batches must be durable. `records` is memory for their
    /// records.
    pub(crate) fn destage(&self, first: BatchSeq, last: BatchSeq, records: &mut Vec<u8>) -> Result<()> {
        let each = self.params.batch_cells() * CELL_LEN;
        let mut groups: Vec<(u64, RingPosition)> = {
            let in_flight = self.in_flight.read();
            let latest = in_flight.groups.iter().filter(|(_, at)| (first..=last).contains(&at.seq));
            latest.map(|(group, at)| (*group, *at)).collect()
        };
        groups.sort_unstable_by_key(|(group, _)| *group);
        let all = (last.0 - first.0 + 1) as usize * each;
        records.resize(records.len().max(all), 0);
        let mut reads: Vec<ReadExtent<'_>> = (first.0..)
            .zip(records[..all].chunks_exact_mut(each))
            .map(|(seq, buf)| ReadExtent { offset: self.params.record_offset(BatchSeq(seq)), buf })
            .collect();
        let whole = self.medium.read(&mut reads).is_ok();
        let within =
            |at: &RingPosition| (at.seq.0 - first.0) as usize * each + usize::from(at.slot) * CELL_LEN;
        for groups in groups.chunks(GROUPS_AT_ONCE) {
            let cells = groups.iter().flat_map(|(number, at)| {
                let cell = move |n: u64| {
                    (CellNo(number * GROUP + n), RingPosition { slot: at.slot + n as u8, ..*at })
                };
                (0..GROUP).map(cell)
            });
            // If the ring can no longer be read, the cell in place stays as it was: its old
            // contents do not verify at the place of the lost block.
            let mut given: Vec<(CellNo, RingPosition)> = Vec::with_capacity(groups.len() * GROUP as usize);
            for (cell, at) in cells {
                let from = self.params.ring_offset(at.seq, usize::from(at.slot));
                let buf = &mut records[within(&at)..within(&at) + CELL_LEN];
                if whole || self.check_read(self.retry_with_pauses(|| self.medium.read_at(from, buf)))? {
                    given.push((cell, at));
                }
            }
            let bytes =
                |(cell, at): &(CellNo, RingPosition)| (*cell, &records[within(at)..within(at) + CELL_LEN]);
            self.write_in_place(&given.iter().map(bytes).collect::<Vec<_>>())?;
            self.complete(groups);
        }
        Ok(())
    }

    /// Records that these groups are in place, unless a later batch has them.
    fn complete(&self, groups: &[(u64, RingPosition)]) {
        let mut in_flight = self.in_flight.write();
        for (number, at) in groups {
            if in_flight.groups.get(number) == Some(at) {
                in_flight.groups.remove(number);
            }
        }
    }

    /// Writes cells in place, in the order of their numbers: for each group the blocks, then their
    /// metadata.
    fn write_in_place(&self, cells: &[(CellNo, &[u8])]) -> Result<()> {
        let groups = cells.chunk_by(|(a, _), (b, _)| a.0 / GROUP == b.0 / GROUP);
        let writes =
            groups.flat_map(|group| self.write_extents(group, 0).chain(self.write_extents(group, 1)));
        let Err(e) = self.medium.write(&writes.collect::<Vec<_>>()) else { return Ok(()) };
        // A system that writes pages must read the rest of a page, and cannot if a sector in it is
        // bad. It need not read a page that is written whole.
        let Some(pages) = self.pages_with_bad_sectors(cells)? else { return Err(e) };
        let pages = pages.iter().map(|(offset, page)| WriteExtent { offset: *offset, data: page });
        self.medium.write(&self.write_extents(cells, 0).chain(pages).collect::<Vec<_>>()).map_err(|_| e)
    }

    /// The blocks of cells or, if `which` is 1, their metadata, as writes in place.
    fn write_extents<'a>(
        &self,
        cells: &'a [(CellNo, &[u8])],
        which: usize,
    ) -> impl Iterator<Item = WriteExtent<'a>> {
        cells.iter().map(move |(cell, buf)| {
            let data = if which == 0 { &buf[..BLOCK_SIZE] } else { &buf[BLOCK_SIZE..] };
            WriteExtent { offset: self.params.cell_offsets(*cell)[which], data }
        })
    }

    /// The new pages of metadata of these cells, if there is a bad sector in any. The metadata of
    /// other cells in that sector is lost and becomes zeros; everything else stays.
    fn pages_with_bad_sectors(&self, cells: &[(CellNo, &[u8])]) -> Result<Option<Vec<CellMetaPage>>> {
        let mut pages: Vec<CellMetaPage> = Vec::with_capacity(cells.len());
        for (cell, _) in cells {
            let offset = self.params.meta_page(*cell).0;
            if pages.last().is_none_or(|(last, _)| *last != offset) {
                pages.push((offset, vec![0; BLOCK_SIZE]));
            }
        }
        let mut bad = false;
        for (offset, page) in &mut pages {
            for (at, sector) in (*offset..).step_by(SECTOR).zip(page.chunks_exact_mut(SECTOR)) {
                if !self.check_read(self.retry_with_pauses(|| self.medium.read_at(at, sector)))? {
                    sector.fill(0);
                    bad = true;
                }
            }
        }
        let mut page = 0;
        for (cell, buf) in cells {
            let (offset, at) = self.params.meta_page(*cell);
            page += usize::from(pages[page].0 != offset);
            pages[page].1[at..at + META_LEN].copy_from_slice(&buf[BLOCK_SIZE..]);
        }
        Ok(bad.then_some(pages))
    }
}
