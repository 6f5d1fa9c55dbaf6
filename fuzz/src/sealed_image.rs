//! Small sealed disks in every cipher, with a history, and an adversary that alters the medium.
//!
//! The address and the phase determine the content of a block, so that reads from an altered disk
//! can be checked.

use crate::bytes::InputCursor;
use crate::sparse::SparseMedium;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Result, SEGMENT_BLOCKS, Secret};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_medium::Medium;
use lacuna_sealed::{CachedSlots, OpenOptions, Params, SealedDisk};
use std::sync::{Arc, OnceLock};

/// Blocks of each disk: one whole segment and part of a second one.
pub const BLOCKS: u64 = SEGMENT_BLOCKS + 40;
/// Phases of writing before the disk is altered; phase 0 means zeros.
pub const PHASES: u8 = 4;
/// The phase of writes to an altered disk.
pub const NEW: u8 = 9;
/// Blocks read at a time.
const RUN: usize = 60;
/// Maximum changes to the medium in one run.
const CHANGES: usize = 24;

/// A disk with its history.
pub struct SealedImage {
    /// Its parameters.
    pub params: Params,
    /// The medium at several moments, oldest first; the last is the present.
    snapshots: Vec<SparseMedium>,
}

/// The image that `selector` chooses: the cipher, and whether the disk was closed or its power
/// failed.
pub fn image(selector: u8) -> &'static SealedImage {
    static IMAGES: OnceLock<Vec<SealedImage>> = OnceLock::new();
    let images = IMAGES.get_or_init(|| {
        let made = Cipher::ALL.into_iter().flat_map(|cipher| {
            [false, true].map(|closed| SealedImage::make(cipher, closed).expect("a medium without faults"))
        });
        made.collect()
    });
    &images[usize::from(selector) % images.len()]
}

/// The byte that fills a block in `phase`.
pub fn filler(block: u64, phase: u8) -> u8 {
    if phase == 0 { 0 } else { phase.wrapping_mul(29).wrapping_add(block as u8) | 1 }
}

/// Whether `data` is the content of the block in `phase`.
pub fn is_content(block: u64, data: &[u8], phase: u8) -> bool {
    data == [filler(block, phase); BLOCK_SIZE]
}

/// Whether `data` is the content of the block in some phase.
pub fn was_written(block: u64, data: &[u8]) -> bool {
    was_written_until(block, data, PHASES)
}

/// Whether `data` is the content of the block in some phase up to `last`.
pub fn was_written_until(block: u64, data: &[u8], last: u8) -> bool {
    (0..=last).any(|phase| filler(block, phase) == data[0] && is_content(block, data, phase))
}

/// Opens a disk of [`image`], with a small cache and without a background thread.
pub fn open(medium: Arc<dyn Medium>, params: &Params, seed: u64, read_only: bool) -> Result<SealedDisk> {
    let options = OpenOptions {
        budget: Budget::bytes(1 << 20),
        read_only,
        write_through: false,
        background: false,
        random: Arc::new(SeededRandom::new(seed)),
        kept: None,
        cached: CachedSlots::Dropped,
    };
    SealedDisk::open(medium, params, &Secret::copy_from(&[5; 32]), &[6; 16], options)
}

/// Writes the contents of `phase` to a range.
pub fn write(disk: &dyn Disk, phase: u8, first: u64, count: u64) -> Result<()> {
    let mut data = vec![0; count as usize * BLOCK_SIZE];
    for (block, out) in (first..).zip(data.chunks_exact_mut(BLOCK_SIZE)) {
        out.fill(filler(block, phase));
    }
    disk.write(BlockAddr(first), &data)
}

/// Reads a range in runs, and block by block if a run fails.
pub fn each_readable_block(disk: &dyn Disk, first: u64, count: u64, mut each: impl FnMut(u64, &[u8])) {
    let mut data = vec![0; RUN * BLOCK_SIZE];
    let end = first + count;
    for start in (first..end).step_by(RUN) {
        let run = &mut data[..RUN.min((end - start) as usize) * BLOCK_SIZE];
        let whole = disk.read(BlockAddr(start), run).is_ok();
        for (block, data) in (start..).zip(run.chunks_exact_mut(BLOCK_SIZE)) {
            if whole || disk.read(BlockAddr(block), data).is_ok() {
                each(block, data);
            }
        }
    }
}

impl SealedImage {
    fn make(cipher: Cipher, closed: bool) -> Result<SealedImage> {
        // Half of the disks are laid out as in a file, with room for 1 TiB in the map; the rest as
        // on a device.
        let room = if closed { None } else { Some(1 << 40) };
        let params = Params::plan(cipher, BLOCKS, room)?;
        let medium = Arc::new(SparseMedium::new(params.geometry().end()));
        SealedDisk::create(&*medium, &params, &Secret::copy_from(&[5; 32]))?;
        let mut snapshots = vec![medium.snapshot()];

        let disk = open(medium.clone(), &params, 1, false)?;
        write(&disk, 1, 0, 30)?;
        write(&disk, 1, SEGMENT_BLOCKS, 40)?;
        disk.flush()?;
        snapshots.push(medium.snapshot());
        disk.close()?;
        snapshots.push(medium.snapshot());

        let disk = open(medium.clone(), &params, 2, false)?;
        for first in (0..SEGMENT_BLOCKS).step_by(256) {
            write(&disk, 2, first, 256)?;
        }
        write(&disk, 3, 10, 5)?;
        disk.discard(BlockAddr(SEGMENT_BLOCKS + 3), 4)?;
        disk.flush()?;
        snapshots.push(medium.snapshot());
        write(&disk, 4, 12, 2)?;
        write(&disk, 4, SEGMENT_BLOCKS + 5, 3)?;
        disk.flush()?;
        if closed {
            disk.close()?;
        }
        snapshots.push(medium.snapshot());
        Ok(SealedImage { params, snapshots })
    }

    /// The medium at several moments, oldest first.
    pub fn past(&self) -> &[SparseMedium] {
        &self.snapshots
    }

    /// The present medium with the changes that `input` encodes: bits flipped, bytes set, pages of
    /// the past restored, ranges moved or cleared.
    pub fn altered(&self, input: &mut InputCursor<'_>) -> SparseMedium {
        let medium = self.snapshots[self.snapshots.len() - 1].snapshot();
        for _ in 0..CHANGES {
            if input.is_empty() {
                break;
            }
            self.change(&medium, input);
        }
        medium
    }

    fn change(&self, medium: &SparseMedium, input: &mut InputCursor<'_>) {
        let [place, operation] = input.array();
        let at = self.place(medium, place, input);
        match operation % 6 {
            0 => {
                let mask = input.byte() | 1;
                medium.alter(at, 1, |_, out| out[0] ^= mask);
            }
            1 | 2 => {
                let len = usize::from(input.byte() % 64) + 1;
                let bytes = input.take(len);
                medium.alter(at, bytes.len(), |to, out| {
                    let from = (to - at) as usize;
                    out.copy_from_slice(&bytes[from..from + out.len()]);
                });
            }
            3 => {
                let len = usize::from(input.u16());
                medium.alter(at, len, |_, out| out.fill(0));
            }
            4 => {
                let past = &self.snapshots[usize::from(input.byte()) % self.snapshots.len()];
                let pages = u64::from(input.byte() % 16) + 1;
                copy(past, medium, at / 4096 * 4096, at / 4096 * 4096, pages * 4096);
            }
            _ => {
                let place = input.byte();
                let from = self.place(medium, place, input);
                let unit = [16, 32, 48, 64, 4096, 8192, 32768, 65536][usize::from(input.byte() % 8)];
                copy(medium, medium, from, at, unit);
            }
        }
    }

    /// An offset in one of the regions, mostly in written data.
    fn place(&self, medium: &SparseMedium, selector: u8, input: &mut InputCursor<'_>) -> u64 {
        let g = self.params.geometry();
        let number = u64::from(input.u32());
        let within = |start: u64, len: u64| start + number % len.max(1);
        match selector % 8 {
            0 => within(g.journal, 2 * 4096),
            1 => within(g.journal + 2 * 4096, 1 << 16),
            2 => within(g.map, u64::from(g.segments) * 16),
            3 => within(g.meta_of((number % u64::from(g.slots)) as u32), 1 << 14),
            4 => within(0, g.end()),
            region => {
                let range = match region {
                    5 => g.journal..g.map,
                    6 => g.map..g.data,
                    _ => g.data..g.end(),
                };
                let used = medium.used_pages(range);
                match used.get((number >> 12) as usize % used.len().max(1)) {
                    Some(page) => page + number % 4096,
                    None => within(0, g.end()),
                }
            }
        }
    }
}

fn copy(from: &SparseMedium, to: &SparseMedium, source: u64, target: u64, len: u64) {
    let room = from.len().saturating_sub(source).min(to.len().saturating_sub(target));
    if room == 0 {
        return;
    }
    let mut bytes = vec![0; len.min(room) as usize];
    from.read_at(source, &mut bytes).expect("within the medium");
    to.write_at(target, &bytes).expect("within the medium");
}
