//! Opening what somebody with the keys made up: for fuzzing.

use crate::disk::Oblivious;
use crate::head::{Draft, LevelRecord, PublicPart, batch_key};
use crate::keys::LevelKey;
use crate::limits::CELL_LEN;
use crate::params::Params;
use crate::place::{BatchSeq, Cell, Place, StashSlot};
use crate::plan::Plan;
use crate::progress::Claims;
use crate::regions::Region;
use lacuna_core::{BLOCK_SIZE, BlockAddr, Budget, Disk, Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_levels::{Entry, LevelFormat, Levels, MapState, Masters, OpenOptions, Randomness, SALT_LEN};
use lacuna_medium::{Medium, MemoryMedium};
use std::sync::Arc;

/// Bytes of input for one batch.
const PIECE: usize = 128;
/// Bytes of the medium.
const ROOM: u64 = 12 << 20;
/// Cells of a forged batch that hold something.
const FILLED: usize = 3;

/// Parses the input as parameters; then forges a batch of every 128 bytes of it, opens that at two levels, and reads, writes
/// and closes what opens.
pub fn fuzz_open(input: &[u8]) {
    let _refused = Params::parse(input.get(..64).unwrap_or(input));
    let Ok(disk) = open_forged(input, false) else { return };
    let disk = Arc::new(disk);
    let mut block = vec![7; BLOCK_SIZE];
    for level in disk.levels() {
        for addr in 0..4 {
            let _lost = level.read(BlockAddr(addr), &mut block);
            let _full = level.write(BlockAddr(addr), &block);
        }
        let _discarded = level.discard(BlockAddr(0), level.blocks());
    }
    for _ in 0..20 {
        if disk.refresh().is_err() {
            return;
        }
    }
    let _no_cover = disk.close();
}

/// Opens what a forger makes of the input.
fn open_forged(input: &[u8], read_only: bool) -> Result<Oblivious> {
    let params = Params::plan(ROOM, Plan { operations: 6, ..Plan::DEFAULT })?;
    let uuid = [3; 16];
    let masters = [Secret::copy_from(&[1; 32]), Secret::copy_from(&[2; 32])];
    let keys = [0, 1].map(|level| LevelKey::new(&masters[level], &uuid));
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.medium_len()));
    for (seq, piece) in (1..).map(BatchSeq).zip(input.chunks(PIECE)).take(params.journal as usize) {
        let mut made_up = [0; PIECE];
        made_up[..piece.len()].copy_from_slice(piece);
        forge(&*medium, &params, &keys, seq, &made_up)?;
    }
    let random = Randomness::of(Arc::new(SeededRandom::new(1)));
    let options = OpenOptions { read_only, ..OpenOptions::in_the_foreground(Budget::bytes(1 << 20), random) };
    params.open(medium, Masters { keys: &masters, uuid: &uuid }, options)
}

/// A batch as its writer may have made it up: head, record, and its first cells in place as well.
///
/// ```text
///   0  flags     bit 0: it names another batch before it; 1: its number is made up; 2: its record is another's; 3: level 1
///                says something too; 4: the first entry is in the stash as well
///   8  number    if it is made up
///  16  synced, applied
///  32  state of the map
///  64  one discard
///  80  cell and entry, three times
/// ```
fn forge(
    medium: &dyn Medium,
    params: &Params,
    keys: &[LevelKey],
    at: BatchSeq,
    made_up: &[u8; PIECE],
) -> Result<()> {
    let word = |at: usize| u64::from_le_bytes(made_up[at..at + 8].try_into().expect("8 bytes"));
    let flag = |bit: u8| made_up[0] >> bit & 1 == 1;
    let salt = |seq: u64| [seq as u8; SALT_LEN];
    let random = SeededRandom::new(at.0);
    let filled = (0..FILLED).map(|slot| (word(80 + slot * 16), Entry::unpack(word(88 + slot * 16))));
    let level = u8::from(flag(3));
    // The made-up cells are the first of the level's region, unless they lie far outside; the others lie apart.
    let slots = params.slots(level);
    let region = params.region(level);
    let within = |cell: u64| {
        Cell(if cell >> 39 == 0 { region.first.0 + cell % region.cells } else { cell % (1 << 40) })
    };
    let filled: Vec<(Cell, Entry)> =
        filled.map(|(cell, entry)| (within(cell), entry.unwrap_or(Entry::Empty))).collect();
    let apart =
        |region: Region| (1..=region.drawn as u64).map(move |at| Cell(region.first.0 + region.cells - at));
    let mut cells: Vec<Cell> = params.regions().into_iter().flat_map(apart).collect();
    cells[slots.clone()].iter_mut().zip(&filled).for_each(|(cell, (made_up, _))| *cell = *made_up);
    let public = PublicPart {
        seq: if flag(1) { BatchSeq(word(8)) } else { at },
        previous: if flag(0) { [0xee; 16] } else { salt(at.0 - 1)[..16].try_into().expect("16 of 32 bytes") },
        claims: Claims { synced: BatchSeq(word(16)), applied: BatchSeq(word(24)) },
        cells,
    };
    let state = MapState { root: word(32), covered: word(40), data: word(48), pages: word(56) };
    let said = LevelRecord { state, cycle: BatchSeq(word(80)), trims: vec![(word(64), word(72)); 2] };
    // As a page of a map it holds made up places.
    let block: Vec<u8> = made_up.iter().copied().cycle().take(BLOCK_SIZE).collect();
    let mut record = vec![0; params.record_len() as usize];
    let mut draft = Draft::new(salt(at.0), Box::new([0; BLOCK_SIZE]));
    let key = &keys[usize::from(level)];
    for (slot, &(cell, entry)) in slots.clone().zip(&filled) {
        let out = &mut record[slot * CELL_LEN..(slot + 1) * CELL_LEN];
        key.cells.seal(Place::new(public.seq, Cell(cell.0 % (1 << 39))), entry, &block, &random, out)?;
        if cell.0 < params.cells {
            for (offset, data) in
                params.cell_offsets(cell).into_iter().zip([&out[..BLOCK_SIZE], &out[BLOCK_SIZE..]])
            {
                medium.write_at(offset, data)?;
            }
        }
    }
    let stashed = if flag(4) { vec![filled[0].1] } else { Vec::new() };
    if flag(4) {
        let from = params.batch_cells() * CELL_LEN;
        let place = Place::in_stash(public.seq, StashSlot(0));
        key.cells.seal(place, filled[0].1, &block, &random, &mut record[from..from + CELL_LEN])?;
    }
    for told in 0..=level {
        let slots = params.slots(told);
        let mut entries = vec![Entry::Empty; slots.len()];
        if told == level {
            entries.iter_mut().zip(&filled).for_each(|(entry, (_, made_up))| *entry = *made_up);
        }
        let stashed = if told == 0 { &stashed[..] } else { &[] };
        let key = batch_key(&keys[usize::from(told)].level, &salt(at.0))?;
        draft.put_level(&key, told, slots, &entries, stashed, &said);
    }
    let head = draft.finish(&batch_key(&keys[0].level, &salt(at.0))?, &public, &record);
    if flag(2) {
        record[0] ^= 1;
    }
    medium.write_at(params.record_offset(at), &record)?;
    medium.write_at(params.head_offset(public.seq, 0), &head[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_up_is_refused_or_read() {
        fuzz_open(&[]);
        for byte in [0, 1, 2, 3, 0x7f, 0x80, 0xff] {
            fuzz_open(&[byte; 1000]);
        }
        // Batches that follow one another, with data, pages and lost blocks, and places that may be there.
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for round in 0..300 {
            let mut input = Vec::new();
            for seq in 1..=1 + round % 8 {
                let flags = if next(4) == 0 { next(32) } else { next(4) << 3 };
                let synced = next(seq);
                let root = next(1 << 23) << 40 | next(12);
                let mut words = vec![flags, next(20), synced, next(synced + 1), root, next(seq)];
                words.extend([next(9), next(9), next(400), next(300)]);
                (0..FILLED).for_each(|_| words.extend([next(12), next(5) << 56 | next(8)]));
                words.iter().for_each(|word| input.extend(word.to_le_bytes()));
            }
            fuzz_open(&input);
        }
    }

    /// The stash may name a block that no disk of this size has: it waits for nothing.
    #[test]
    fn a_stash_that_names_a_block_outside_is_read() {
        let nowhere = Entry::Data(1 << 30).pack();
        // Level 1 says something too, and its first entry is in the stash as well.
        let words = [24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, nowhere, 4, 0, 5, 0];
        let input: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        fuzz_open(&input);
    }

    /// The forger is no fool: what it makes up opens if it makes sense, and is read.
    #[test]
    fn what_makes_sense_opens() {
        let page = Entry::Page { depth: 0, index: 0 }.pack();
        let words = |synced, root, entries: [u64; 3]| {
            let mut words = vec![0, 0, synced, 0, root, 0, 1, 1, 0, 0];
            entries.iter().enumerate().for_each(|(slot, entry)| words.extend([slot as u64, *entry]));
            words.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
        };
        let input = [
            words(0, 0, [page, Entry::Data(1).pack(), 0]),
            words(1, Place::new(BatchSeq(1), Cell(0)).word(), [0, 0, 0]),
        ]
        .concat();
        assert!(open_forged(&input, true).is_ok(), "two batches, the second after the first");
        let refused = open_forged(&words(1, 0, [0; 3]), true);
        assert!(refused.is_err(), "no batch is durable before it is written");
    }
}
