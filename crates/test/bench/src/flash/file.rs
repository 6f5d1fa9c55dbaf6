//! The cost of opening flash of 64 GiB with its chip in a file, with the default geometry of
//! `create`.

use crate::flash::disks::{self, KeyMode, master, options};
use crate::pages::requirement::{Bound, Requirement};
use crate::pages::table::Table;
use crate::workspace::Workspace;
use lacuna_contracts::{Budget, Disk, Error, Result};
use lacuna_flash::{FlashDisk, Params};
use lacuna_medium::{Access, FileMedium, Medium};
use lacuna_nand::{ChipGeometry, Mapping, SimulatedChip};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a page, and pages of an erase block.
const PAGE: u32 = 4096;
const PAGES: u32 = 64;
/// Time limit for opening a disk, in seconds.
const MAX_OPEN_SECONDS: f64 = 5.0;

/// The results.
pub(crate) struct FileChipResults {
    chip: ChipGeometry,
    /// Seconds until the disk is open, after a close and after a kill of its process.
    closed: f64,
    killed: f64,
    /// Groups replayed after the kill.
    replayed: u64,
}

/// Measures opening.
pub(crate) fn measure(work: &Workspace) -> Result<FileChipResults> {
    let quick = work.scale.quick;
    let chip = ChipGeometry { page: PAGE, pages: PAGES, blocks: if quick { 1024 } else { 1 << 18 } };
    let flushes = if quick { 50 } else { 10_000 };
    let path = work.path("chip");
    work.report_progress("flash: making a chip of 64 GiB in a file")?;
    let params = create_chip(&path, chip, flushes)?;
    work.write_back()?;
    work.report_progress("flash: opening it after a close and after a kill")?;
    let (disk, closed) = open(&path, &params)?;
    disks::overwrite(&disk, flushes)?;
    drop(disk);
    work.write_back()?;
    let (disk, killed) = open(&path, &params)?;
    let replayed = disks::status(&disk, "groups_replayed");
    drop(disk);
    std::fs::remove_file(&path).map_err(|e| Error::io("cannot remove the chip", &e))?;
    Ok(FileChipResults { chip, closed, killed, replayed })
}

/// Creates a disk on a new chip in a file, writes to it and closes it.
fn create_chip(path: &Path, chip: ChipGeometry, flushes: u64) -> Result<Params> {
    let medium = Arc::new(FileMedium::create(path, SimulatedChip::medium_len(chip))?);
    let flash = disks::new_flash(medium, chip)?;
    let (disk, params) = disks::new_disk(&flash, KeyMode::Long, Budget::default())?;
    disks::overwrite(&disk, flushes)?;
    disk.close()?;
    Ok(params)
}

/// Opens the disk like the command, with an empty system cache. Returns the disk, and the seconds
/// that opening took.
fn open(path: &Path, params: &Params) -> Result<(FlashDisk, f64)> {
    let start = Instant::now();
    let medium = FileMedium::open(path, Access::Write)?;
    medium.forget_cached()?;
    let chip = Arc::new(SimulatedChip::open(Arc::new(medium), 9)?);
    let mapping = Arc::new(Mapping::open(chip)?);
    let disk = FlashDisk::open(mapping, params, &master(), &options(Budget::default(), 9))?;
    Ok((disk, start.elapsed().as_secs_f64()))
}

impl FileChipResults {
    /// The table of the results.
    pub(crate) fn table(&self) -> Table {
        let title = format!("Flash of {} MiB in a file: opening", self.chip.len() >> 20);
        let mut table = Table::new(title, ["after", "takes"]);
        table.row("a close", [format!("{:.3} s", self.closed)]);
        table
            .row(format!("a kill; {} groups are replayed", self.replayed), [format!("{:.3} s", self.killed)]);
        table
    }

    /// The requirement on opening.
    pub(crate) fn requirement(&self) -> Requirement {
        Requirement::new("flash: opening 64 GiB in a file", Bound::AtMost(MAX_OPEN_SECONDS), " s")
            .case("after a close", Some(self.closed))
            .case("after a kill", Some(self.killed))
    }

    /// How the figures are obtained.
    pub(crate) fn method(&self) -> String {
        format!(
            "- In a file: flash of {} GiB with {} erase blocks of {PAGES} pages of {PAGE} bytes, the default \
chip of `create`, in a sparse file on the file system of the disks. Before each opening the system's cache \
holds nothing of the file. The opening reads a page of each erase block.\n",
            self.chip.len() >> 30,
            self.chip.blocks,
        )
    }
}
