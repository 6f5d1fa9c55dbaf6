//! The costs of a purge, and of opening after a crash, on flash of 64 GiB.

use crate::flash::disks::{self, KeyMode, SPARE, master, options};
use crate::flash::sparse::SparseChipMedium;
use crate::pages::requirement::{Bound, Requirement};
use crate::pages::table::Table;
use crate::workspace::Workspace;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Result};
use lacuna_flash::{FlashDisk, Params};
use lacuna_nand::{ChipGeometry, Mapping, SimulatedChip};
use lacuna_sim::Rng;
use std::sync::Arc;
use std::time::Instant;

const PAGE: u32 = 4096;
const MIB: u64 = (1 << 20) / BLOCK_SIZE as u64;
/// Maximum MiB of a file; the sizes are uniform.
const MAX_FILE_MIB: u64 = 64;
/// Percentage of the keys that are deleted before a purge.
const DELETED_PERCENT: u64 = 1;
/// Maximum percentage of the key storage area that such a purge rewrites.
const MOST_REWRITTEN: f64 = 5.0;
/// Time limit for opening a disk after a crash, in seconds.
const MAX_OPEN_SECONDS: f64 = 1.0;
/// Maximum percentage of the flash for keys.
const MOST_KEYS: [(KeyMode, f64); 2] = [(KeyMode::Long, 0.8), (KeyMode::Short, 0.4)];
/// Bytes of a group of 64 nodes: less than a write of a key block.
const LONGEST_GROUP: usize = 66 * PAGE as usize;
/// Budget for the whole index, which this medium does not keep, and for all headers.
const LARGE_BUDGET: u64 = 640 << 20;

/// One purge.
struct PurgeSample {
    /// Percentage of the key storage area that it rewrote.
    rewritten: f64,
    /// Purged keys per key block.
    keys: f64,
    seconds: f64,
}

/// The results.
pub(crate) struct LargeFlash {
    chip: ChipGeometry,
    key_blocks: u32,
    purges: Vec<PurgeSample>,
    /// Percentage of the flash for keys, with long and with short ones.
    key_storage: Vec<(KeyMode, f64)>,
    /// Seconds until the logical erase blocks are found, and until the disk is open.
    opened: [f64; 2],
    /// Replayed groups.
    replayed: u64,
}

/// Measures purges and opening.
pub(crate) fn measure(work: &Workspace) -> Result<LargeFlash> {
    let quick = work.scale.quick;
    let chip = ChipGeometry { page: PAGE, pages: 128, blocks: if quick { 1024 } else { 1 << 17 } };
    work.report_progress("flash: filling 64 GiB, and keeping only headers and keys")?;
    let (purges, params) = purges(work, chip)?;
    work.report_progress("flash: opening after a crash")?;
    let (opened, replayed) = open(chip, if quick { 500 } else { 30_000 })?;
    let share = |keys: KeyMode| {
        let params = Params::fitting(params.flash, keys.bytes(), SPARE)?;
        Ok((keys, f64::from(params.key_blocks()) / f64::from(params.flash.lebs) * 100.0))
    };
    let key_storage = MOST_KEYS.map(|(keys, _)| share(keys)).into_iter().collect::<Result<_>>()?;
    Ok(LargeFlash { chip, key_blocks: params.key_blocks(), purges, key_storage, opened, replayed })
}

/// Fills a disk with files; each epoch deletes and rewrites random files with 1 % of the keys, and
/// then purges.
fn purges(work: &Workspace, chip: ChipGeometry) -> Result<(Vec<PurgeSample>, Params)> {
    let medium = Arc::new(SparseChipMedium::new(SimulatedChip::medium_len(chip)));
    let flash = disks::new_flash(medium.clone(), chip)?;
    let (disk, params) = disks::new_disk(&flash, KeyMode::Long, Budget::bytes(LARGE_BUDGET))?;
    medium.keep_first_pages(LONGEST_GROUP);
    let mut rng = Rng::new(7);
    let mut files = Vec::new();
    let mut end = 0;
    while end < disk.blocks() {
        let len = ((1 + rng.below(MAX_FILE_MIB)) * MIB).min(disk.blocks() - end);
        files.push((end, len));
        end += len;
    }
    let content = vec![5; MIB as usize * BLOCK_SIZE];
    let write = |(first, len): (u64, u64)| -> Result<()> {
        work.interrupt.check()?;
        (0..len).step_by(MIB as usize).try_for_each(|at| {
            let part = &content[..(len - at).min(MIB) as usize * BLOCK_SIZE];
            disk.write(BlockAddr(first + at), part)
        })
    };
    files.iter().try_for_each(|file| write(*file))?;
    let mut purges = Vec::new();
    disk.purge()?;
    for epoch in 0..if work.scale.quick { 4 } else { 24 } {
        let mut deleted = 0;
        while deleted < disk.blocks() * DELETED_PERCENT / 100 {
            let file = *rng.pick(&files);
            disk.discard(BlockAddr(file.0), file.1)?;
            write(file)?;
            deleted += file.1;
        }
        disk.flush()?;
        let start = Instant::now();
        let purged = disk.purge()?;
        let seconds = start.elapsed().as_secs_f64();
        work.report_progress(&format!("flash: purge {epoch} replaced {} key blocks", purged.key_blocks))?;
        purges.push(PurgeSample {
            rewritten: purged.key_blocks as f64 / f64::from(params.key_blocks()) * 100.0,
            keys: purged.keys as f64 / purged.key_blocks as f64,
            seconds,
        });
    }
    // Drop the first half of the purges: they find keys in the order of writing.
    purges.drain(..purges.len() / 2);
    Ok((purges, params))
}

/// Seconds that opening took after a crash, and the number of replayed groups. The writes before
/// the crash are small, random, and flushed each time.
fn open(chip: ChipGeometry, flushes: u64) -> Result<([f64; 2], u64)> {
    let medium = Arc::new(SparseChipMedium::new(SimulatedChip::medium_len(chip)));
    let flash = disks::new_flash(medium.clone(), chip)?;
    let (disk, params) = disks::new_disk(&flash, KeyMode::Long, Budget::default())?;
    disks::overwrite(&disk, flushes)?;
    drop((disk, flash));
    let start = Instant::now();
    let chip = Arc::new(SimulatedChip::open(medium, 9)?);
    let mapping = Arc::new(Mapping::open(chip)?);
    let mapped = start.elapsed().as_secs_f64();
    let disk = FlashDisk::open(mapping, &params, &master(), &options(Budget::default(), 9))?;
    let opened = start.elapsed().as_secs_f64();
    Ok(([mapped, opened], disks::status(&disk, "groups_replayed")))
}

impl LargeFlash {
    /// The tables of the results.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let title = format!(
            "Flash of {} MiB: purges after the deletion of files with one of a hundred keys",
            self.chip.len() >> 20
        );
        let mut purges = Table::new(title, ["", "least", "median", "most"]);
        let mut row = |name: &str, decimals: usize, of: &dyn Fn(&PurgeSample) -> f64| {
            let mut values: Vec<f64> = self.purges.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            let cells = [values[0], values[values.len() / 2], values[values.len() - 1]];
            purges.row(name, cells.map(|value| format!("{value:.decimals$}")));
        };
        row("rewritten share of the key storage area, %", 2, &|purge| purge.rewritten);
        row("deleted keys in a rewritten key block", 0, &|purge| purge.keys);
        row("time, ms", 0, &|purge| purge.seconds * 1e3);
        let mut opening = Table::new("The same flash: opening after a crash", ["until", "after"]);
        let [mapped, opened] = self.opened.map(|seconds| format!("{seconds:.3} s"));
        opening.row("the logical erase blocks are found", [mapped]);
        opening.row(format!("{} groups are replayed and a checkpoint is written", self.replayed), [opened]);
        vec![purges, opening]
    }

    /// The requirements on purges, opening and the key storage area.
    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        let most = self.purges.iter().map(|purge| purge.rewritten).reduce(f64::max);
        let mut requirements = vec![
            Requirement::new(
                "flash: share of the key storage area that a purge of 1% of its keys rewrites",
                Bound::AtMost(MOST_REWRITTEN),
                "%",
            )
            .case("", most),
            Requirement::new("flash: opening 64 GiB after a crash", Bound::AtMost(MAX_OPEN_SECONDS), " s")
                .case("", Some(self.opened[1])),
        ];
        for ((keys, share), (_, most)) in self.key_storage.iter().zip(MOST_KEYS) {
            let line = format!("flash: share of the flash for the key storage area, {}", keys.name());
            requirements.push(Requirement::new(line, Bound::AtMost(most), "%").case("", Some(*share)));
        }
        requirements
    }

    /// How the figures are obtained.
    pub(crate) fn method(&self) -> String {
        format!(
            "- The purges run on flash of {size} GiB: {blocks} erase blocks of {pages} pages of {PAGE} \
bytes, and {keys} key blocks. The medium is sparse, so only written pages take memory; of each group in the \
log it keeps only the header. The disk is filled with files of 1 to {MAX_FILE_MIB} MiB, each size equally likely. \
In an epoch, files are deleted at random until {DELETED_PERCENT}% of the disk was deleted; each is written again at \
once, with new keys. Then comes the purge. The second half of the purges counts.\n\
- The share of the key storage area is relative to the whole flash, including the spare blocks of the flash. \
With erase blocks of 16 MiB there are few key blocks, and every purge rewrites most of them.\n\
- Opening: the log has {replayed} groups since the checkpoint; each was one flush of two blocks at random \
addresses. Then the process drops the disk without closing it. Opening starts the chip, reads the headers of \
all its erase blocks, the checkpoint and the headers of the groups, and writes the next checkpoint.\n",
            size = self.chip.len() >> 30,
            blocks = self.chip.blocks,
            pages = self.chip.pages,
            keys = self.key_blocks,
            replayed = self.replayed,
        )
    }
}
