//! Disks in a write-only ORAM with a journal, a ring and cells forged by an adversary with the
//! keys, as in `docs/format/oblivious.md`. The medium may answer some reads with other batches.

use crate::bytes::InputCursor;
use crate::lying::{FilledMedium, requested_sim_lies};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, LeWriter, Result, Secret};
use lacuna_crypto::{AesBlock, RandomSource, SeededRandom, XAES_NONCE, XaesKey, derive};
use lacuna_levels::{
    DiskKeys, LevelFormat, Levels, MapState, OpenOptions, Randomness, SALT_LEN, STATE_LEN, SlotEntry,
    WriteKey,
};
use lacuna_medium::Medium;
use lacuna_oblivious::{ObliviousDisk, Params, Plan};
use std::sync::Arc;

/// Bytes of input per batch.
const PIECE: usize = 128;
/// Offset of the request for lies in the first batch's input, after its flags.
const LIES_AT: usize = 1;
/// Bytes of the medium.
const MEDIUM_LEN: u64 = 12 << 20;
/// Cells of a forged batch that have an entry.
const FILLED: usize = 3;
const UUID: [u8; 16] = [3; 16];

const BLOCK: u64 = BLOCK_SIZE as u64;
const JOURNAL: u64 = 1 << 20;
/// Adjacent cells of a group, and bytes of a group.
const GROUP: u64 = 8;
const GROUP_LEN: u64 = (GROUP + 1) * BLOCK;
/// Bytes of a cell's metadata, and of a cell with its block.
const META_LEN: usize = 64;
const CELL_LEN: usize = BLOCK_SIZE + META_LEN;
const STASH_SLOTS: usize = 48;
/// Batch numbers in places are modulo this number.
const BATCHES: u64 = 1 << 23;

/// Offsets of the parts of a head.
const TAG_AT: usize = 32;
const DIGEST_AT: usize = 48;
const LEVELS_AT: usize = 64;
const COVERS_AT: usize = 544;
const STASH_AT: usize = 2336;
const PUBLIC_AT: usize = 2720;
/// Bytes of a cover, and of a level record without its tag and with it.
const COVER_LEN: usize = 8;
const RECORD_PLAIN: usize = 104;
const RECORD_LEN: usize = RECORD_PLAIN + 16;

/// The domains of the encrypted parts of a head.
const PUBLIC: u8 = 1;
const DIGEST: u8 = 2;
const LEVEL: u8 = 3;
const CELL: u8 = 4;
const STASH: u8 = 5;

/// Parses the input as parameters. Then forges a batch from every 128 bytes, opens the disk at two
/// levels, and, if it opens, reads, writes and closes it. If the bytes after the first flags ask
/// for lies, the medium first holds the batches shifted by one, and the disk is also used while
/// reads return them.
pub fn use_forged(input: &[u8]) {
    let _refused = Params::parse(input.get(..64).unwrap_or(input));
    let Ok((filled, params)) = forged(input) else { return };
    filled.start_lying();
    use_disk(filled.medium(), &params);
    filled.stop_lying();
    if filled.will_lie() {
        use_disk(filled.medium(), &params);
    }
}

fn use_disk(medium: &Arc<dyn Medium>, params: &Params) {
    let Ok(disk) = open(medium, params, false) else { return };
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

/// A medium with forged batches, and the parameters of its disk.
fn forged(input: &[u8]) -> Result<(FilledMedium, Params)> {
    let params = Params::plan(MEDIUM_LEN, Plan { operations: 6, ..Plan::DEFAULT })?;
    let lies = input.get(LIES_AT..).and_then(|rest| requested_sim_lies(&mut InputCursor::new(rest)));
    let filled = FilledMedium::new(params.end(), lies);
    if filled.will_lie() {
        fill(&**filled.medium(), &params, input.get(PIECE..).unwrap_or_default())?;
    }
    fill(&**filled.medium(), &params, input)?;
    Ok((filled, params))
}

/// Forges a batch from every 128 bytes.
fn fill(medium: &dyn Medium, params: &Params, input: &[u8]) -> Result<()> {
    let masters = masters();
    let levels = [0, 1].map(|level| derive(&masters[level], "oblivious level", &UUID));
    let forger = BatchForger { medium, layout: JournalLayout::of(params), levels };
    for (seq, piece) in (1..=u64::from(params.journal)).zip(input.chunks(PIECE)) {
        let mut made_up = [0; PIECE];
        made_up[..piece.len()].copy_from_slice(piece);
        forger.forge(seq, &made_up)?;
    }
    Ok(())
}

fn masters() -> [Secret<32>; 2] {
    [Secret::copy_from(&[1; 32]), Secret::copy_from(&[2; 32])]
}

fn open(medium: &Arc<dyn Medium>, params: &Params, read_only: bool) -> Result<ObliviousDisk> {
    let random = Randomness::of(Arc::new(SeededRandom::new(1)));
    let options = OpenOptions { read_only, ..OpenOptions::foreground(Budget::bytes(1 << 20), random) };
    params.open(medium.clone(), DiskKeys { keys: &masters(), uuid: &UUID }, options)
}

/// The cells of a level, or those outside all levels, and the number of cells that a batch rewrites
/// there.
#[derive(Clone, Copy)]
struct CellRegion {
    first: u64,
    cells: u64,
    drawn: usize,
}

/// The offsets on a medium.
struct JournalLayout {
    /// The regions of level 0, of the hidden levels, and of the remaining cells.
    regions: [CellRegion; 5],
    /// Heads in a copy of the journal, records in the ring, and cells.
    journal: u64,
    ring: u64,
    cells: u64,
    /// Bytes of a record.
    record_len: usize,
}

impl JournalLayout {
    fn of(params: &Params) -> JournalLayout {
        let operations = usize::from(params.plan.operations);
        let inserted = [operations, (operations * 8 / 16).max(3), (operations * 2 / 16).max(3), 3, 1];
        let (mut first, mut left) = (0, params.cells);
        let regions = [0, 1, 2, 3, 4].map(|number: usize| {
            let cells = match number {
                0 => left / 5 * 3 / GROUP * GROUP,
                1..=3 => (left - left / 4) / GROUP * GROUP,
                _ => left,
            };
            let drawn = inserted[number] * usize::from(params.plan.per_write);
            let region = CellRegion { first, cells, drawn: drawn.next_multiple_of(GROUP as usize) };
            (first, left) = (first + cells, left - cells);
            region
        });
        let drawn = regions.iter().map(|region| region.drawn).sum::<usize>();
        assert_eq!(drawn, params.batch_cells(), "the shares of the levels");
        let record_len = ((drawn + STASH_SLOTS) * CELL_LEN).next_multiple_of(BLOCK_SIZE);
        let (journal, ring) = (params.journal.into(), params.ring.into());
        JournalLayout { regions, journal, ring, cells: params.cells, record_len }
    }

    /// The index, in a batch, of the first cell of a level.
    fn slot(&self, level: u8) -> usize {
        self.regions[..usize::from(level)].iter().map(|region| region.drawn).sum()
    }

    /// Cells that a batch rewrites.
    fn batch_cells(&self) -> usize {
        self.regions.iter().map(|region| region.drawn).sum()
    }

    /// The offset of the first copy of the head of a batch.
    fn head(&self, seq: u64) -> u64 {
        JOURNAL + seq % self.journal * BLOCK
    }

    fn ring_start(&self) -> u64 {
        JOURNAL + 2 * self.journal * BLOCK
    }

    /// The offset of the record of a batch.
    fn record(&self, seq: u64) -> u64 {
        self.ring_start() + seq % self.ring * self.record_len as u64
    }

    /// The offsets of the block of a cell and of its metadata.
    fn cell(&self, cell: u64) -> [u64; 2] {
        let cells = self.ring_start() + self.ring * self.record_len as u64;
        let group = cells + cell / GROUP * GROUP_LEN;
        [group + cell % GROUP * BLOCK, group + GROUP * BLOCK + cell % GROUP * META_LEN as u64]
    }
}

struct BatchForger<'m> {
    medium: &'m dyn Medium,
    layout: JournalLayout,
    /// The keys of levels 0 and 1.
    levels: [Secret<32>; 2],
}

/// The part of a head that the key of level 0 opens.
struct PublicFields {
    seq: u64,
    previous: [u8; 16],
    synced: u64,
    applied: u64,
    groups: Vec<u64>,
}

/// A forged batch.
struct ForgedBatch {
    /// Its position in the journal and in the ring.
    at: u64,
    public: PublicFields,
    /// The last level with a record.
    level: u8,
    /// The first cells of that level, with their entries.
    filled: [(u64, SlotEntry); FILLED],
    /// The entry in the first slot of the stash.
    stashed: Option<SlotEntry>,
    /// The level record of each level.
    level_record: [u8; RECORD_PLAIN],
}

impl BatchForger<'_> {
    /// Forges a batch: head and record, and its first cells in place as well.
    ///
    /// ```text
    ///   0  flags     bit 0: a wrong previous batch; 1: a forged number; 2: a record that does not
    ///                match the head; 3: a record of level 1 too; 4: the first entry is also in
    ///                the stash
    ///   1  lies      in the first batch
    ///   8  number    if it is forged
    ///  16  synced, applied
    ///  32  state of the map
    ///  64  one discard
    ///  80  cell and entry, three times
    /// ```
    fn forge(&self, at: u64, made_up: &[u8; PIECE]) -> Result<()> {
        let word = |at: usize| u64::from_le_bytes(made_up[at..at + 8].try_into().expect("8 bytes"));
        let flag = |bit: u8| made_up[0] >> bit & 1 == 1;
        let level = u8::from(flag(3));
        let region = self.layout.regions[usize::from(level)];
        // The forged cells are in the level's region unless their numbers are very large. The batch
        // rewrites the group of the first one; its other groups are the last ones of each region.
        let within =
            |cell: u64| if cell >> 39 == 0 { region.first + cell % region.cells } else { cell % (1 << 40) };
        let filled = [80, 96, 112]
            .map(|at| (within(word(at)), SlotEntry::unpack(word(at + 8)).unwrap_or(SlotEntry::Empty)));
        let mut groups: Vec<u64> = self.layout.regions.iter().flat_map(last_groups).collect();
        groups[self.layout.slot(level) / GROUP as usize] = filled[0].0 / GROUP;
        let seq = if flag(1) { word(8) } else { at };
        let previous = if flag(0) { [0xee; 16] } else { [(at - 1) as u8; 16] };
        let public = PublicFields { seq, previous, synced: word(16), applied: word(24), groups };
        let stashed = flag(4).then_some(filled[0].1);
        let batch = ForgedBatch { at, public, level, filled, stashed, level_record: level_record(&word) };
        // The block contains forged places, for when it is read as a page of a map.
        let block: Vec<u8> = made_up.iter().copied().cycle().take(BLOCK_SIZE).collect();
        let mut record = self.record(&batch, &block)?;
        let head = self.head(&batch, &record)?;
        if flag(2) {
            record[0] ^= 1;
        }
        self.medium.write_at(self.layout.record(at), &record)?;
        self.medium.write_at(self.layout.head(seq), &head)
    }

    /// The record of a batch with cells that hold this block. Cells that exist on the medium are
    /// written in place as well.
    fn record(&self, batch: &ForgedBatch, block: &[u8]) -> Result<Vec<u8>> {
        let (key, seq) = (&self.levels[usize::from(batch.level)], batch.public.seq);
        let mut record = vec![0; self.layout.record_len];
        for (slot, (cell, entry)) in (self.layout.slot(batch.level)..).zip(batch.filled) {
            let sealed = seal_cell(key, place(seq, cell % (1 << 39)), entry, block)?;
            record[slot * CELL_LEN..(slot + 1) * CELL_LEN].copy_from_slice(&sealed);
            if cell < self.layout.cells {
                let [data, meta] = self.layout.cell(cell);
                self.medium.write_at(data, &sealed[..BLOCK_SIZE])?;
                self.medium.write_at(meta, &sealed[BLOCK_SIZE..])?;
            }
        }
        if let Some(entry) = batch.stashed {
            let from = self.layout.batch_cells() * CELL_LEN;
            let sealed = seal_cell(key, 1 << 63 | (seq % BATCHES) << 40, entry, block)?;
            record[from..from + CELL_LEN].copy_from_slice(&sealed);
        }
        Ok(record)
    }

    /// The head of a batch with this record.
    fn head(&self, batch: &ForgedBatch, record: &[u8]) -> Result<Vec<u8>> {
        let salt = [batch.at as u8; SALT_LEN];
        let key = |level: u8| WriteKey::derive(&self.levels[usize::from(level)], "oblivious batch", &salt);
        let mut block = vec![0; BLOCK_SIZE];
        block[..SALT_LEN].copy_from_slice(&salt);
        for level in 0..=batch.level {
            let (key, first) = (key(level)?, self.layout.slot(level));
            let drawn = self.layout.regions[usize::from(level)].drawn;
            let covers = COVERS_AT + first * COVER_LEN..COVERS_AT + (first + drawn) * COVER_LEN;
            for slot in 0..drawn {
                let held = batch.filled.get(slot).filter(|_| level == batch.level);
                let entry = held.map_or(SlotEntry::Empty, |(_, entry)| *entry);
                let cover = key.encrypt_entry(CELL, (first + slot) as u8, entry);
                put_cover(&mut block, COVERS_AT, first + slot, &cover);
            }
            let mut bound = block[covers].to_vec();
            if level == 0 {
                for slot in 0..STASH_SLOTS {
                    let entry = batch.stashed.filter(|_| slot == 0).unwrap_or(SlotEntry::Empty);
                    put_cover(&mut block, STASH_AT, slot, &key.encrypt_entry(STASH, slot as u8, entry));
                }
                bound.extend(&block[STASH_AT..PUBLIC_AT]);
            }
            let from = LEVELS_AT + usize::from(level) * RECORD_LEN;
            let (body, tag) = block[from..from + RECORD_LEN].split_at_mut(RECORD_PLAIN);
            tag.copy_from_slice(&key.seal(LEVEL, level, &bound, &batch.level_record, body));
        }
        let key = key(0)?;
        block[DIGEST_AT..LEVELS_AT].copy_from_slice(&key.digest(DIGEST, record));
        let (clear, body) = block.split_at_mut(PUBLIC_AT);
        let tag = key.seal(PUBLIC, 0, &clear[DIGEST_AT..], &batch.public.encode(), body);
        clear[TAG_AT..DIGEST_AT].copy_from_slice(&tag);
        Ok(block)
    }
}

impl PublicFields {
    fn encode(&self) -> [u8; BLOCK_SIZE - PUBLIC_AT] {
        let mut plain = [0; BLOCK_SIZE - PUBLIC_AT];
        LeWriter(&mut plain)
            .u64(0, self.seq)
            .put(8, &self.previous)
            .u64(24, self.synced)
            .u64(32, self.applied);
        for (out, group) in plain[40..].chunks_exact_mut(5).zip(&self.groups) {
            out.copy_from_slice(&group.to_le_bytes()[..5]);
        }
        plain
    }
}

/// The last groups of a region; a batch rewrites this number of them.
fn last_groups(region: &CellRegion) -> impl Iterator<Item = u64> + use<> {
    let end = (region.first + region.cells) / GROUP;
    (1..=region.drawn as u64 / GROUP).map(move |back| end - back)
}

/// A level record: the state of the map, the start of the cycle, and the discard twice.
fn level_record(word: &dyn Fn(usize) -> u64) -> [u8; RECORD_PLAIN] {
    let state = MapState { root: word(32), covered: word(40), data: word(48), pages: word(56) };
    let mut out = [0; RECORD_PLAIN];
    LeWriter(&mut out)
        .put(0, &state.encode())
        .u64(STATE_LEN, word(80))
        .u64(40, word(64))
        .u64(48, word(72))
        .u64(56, word(64))
        .u64(64, word(72));
    out
}

fn put_cover(block: &mut [u8], from: usize, slot: usize, cover: &[u8; 16]) {
    let at = from + slot * COVER_LEN;
    block[at..at + COVER_LEN].copy_from_slice(&cover[..COVER_LEN]);
}

/// The place of a cell in a batch.
fn place(seq: u64, cell: u64) -> u64 {
    (seq % BATCHES) << 40 | (cell + 1)
}

/// A cell with a block of a level; it verifies only at this place.
fn seal_cell(level: &Secret<32>, place: u64, entry: SlotEntry, block: &[u8]) -> Result<Vec<u8>> {
    let mut cell = vec![0; CELL_LEN];
    let (body, meta) = cell.split_at_mut(BLOCK_SIZE);
    SeededRandom::new(place).fill(meta);
    let nonce: [u8; XAES_NONCE] = *meta.first_chunk().expect("metadata are longer");
    let (mut bound, mut claim) = ([0; 16], [0; 16]);
    LeWriter(&mut bound).u64(0, place).u64(8, entry.pack());
    LeWriter(&mut claim).u64(0, entry.pack()).u64(8, place);
    let tag = XaesKey::new(&derive(level, "oblivious cell", &[])).seal(&nonce, &bound, block, body)?;
    let entries = AesBlock::new(&derive(level, "oblivious entry", &[]));
    let pad = entries.encrypt(*nonce.first_chunk().expect("a nonce is longer"));
    claim.iter_mut().zip(pad).for_each(|(byte, pad)| *byte ^= pad);
    meta[24..40].copy_from_slice(&claim);
    meta[40..56].copy_from_slice(&tag);
    Ok(cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens the disk that the forger makes from the input.
    fn open_forged(input: &[u8], read_only: bool) -> Result<ObliviousDisk> {
        let (filled, params) = forged(input)?;
        open(filled.medium(), &params, read_only)
    }

    #[test]
    fn a_forged_journal_is_refused_or_read() {
        use_forged(&[]);
        for byte in [0, 1, 2, 3, 0x7f, 0x80, 0xff] {
            use_forged(&[byte; 1000]);
        }
        // Batches that follow each other, with data, pages and lost blocks, and places that may
        // exist.
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
            use_forged(&input);
            let lies = [0x80, round as u8, 0, (round % 2) as u8, 0];
            input[LIES_AT..LIES_AT + lies.len()].copy_from_slice(&lies);
            use_forged(&input);
        }
    }

    /// A stash that names a block outside the disk is accepted; the block does not enter the stash.
    #[test]
    fn a_stash_with_a_block_outside_the_disk_is_read() {
        let nowhere = SlotEntry::Data(1 << 30).pack();
        // Level 1 has a record too, and its first entry is also in the stash.
        let words = [24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, nowhere, 4, 0, 5, 0];
        let input: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        use_forged(&input);
    }

    /// Sensible forged batches open and are read.
    #[test]
    fn a_consistent_forgery_opens() {
        let page = SlotEntry::Page { depth: 0, index: 0 }.pack();
        let words = |synced, root, entries: [u64; 3]| {
            let mut words = vec![0, 0, synced, 0, root, 0, 1, 1, 0, 0];
            entries.iter().enumerate().for_each(|(slot, entry)| words.extend([slot as u64, *entry]));
            words.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
        };
        let input =
            [words(0, 0, [page, SlotEntry::Data(1).pack(), 0]), words(1, place(1, 0), [0, 0, 0])].concat();
        assert!(open_forged(&input, true).is_ok(), "two batches, the second after the first");
        let refused = open_forged(&words(1, 0, [0; 3]), true);
        assert!(refused.is_err(), "no batch is durable before it is written");
    }
}
