//! The common part of formats with levels: planning, creating and opening, and the open disk.

use crate::backing::{Backing, BackingKind};
use crate::format::{AvailableSpace, CreateOptions, FormatInfo, OpenContext, OpenFormat, Params};
use crate::header::header_lease::OpenDiskHeader;
use crate::inspect::damaged_medium::DamagedMedium;
use crate::size::size_in_blocks;
use lacuna_contracts::{
    BLOCK_SIZE, BadBlock, Disk, DiskCheckReport, Error, Hint, Kind, Result, Setting, check_disk,
};
use lacuna_crypto::SystemRandom;
use lacuna_header::FormatId;
use lacuna_levels::{DiskKeys, LevelFormat, Levels, OpenOptions, Pace, Randomness, level_disks};
use std::sync::Arc;
use std::time::Duration;

/// The most likely reason for bad blocks of a hidden level.
pub const OVERWRITTEN: &str = "on a level deeper than level 0, most likely the disk was open while that level was not open: \
    give the passphrase of the deepest level whenever the disk is opened for writing";

/// The default time in milliseconds between two stripes or batches of cover.
pub(crate) const COVER_MILLIS: u32 = 1000;

/// A size in MiB that is sufficient for a disk with levels of any shape.
const MAX_LEAST_MIB: u64 = 4096;

/// The common constants of formats with levels.
pub(crate) fn info(id: FormatId, name: &'static str) -> FormatInfo {
    FormatInfo { uses_large_memory: true, ..FormatInfo::of(id, name, BackingKind::File) }
}

/// Plans a disk with levels; `plan` gets the number of bytes that they share.
pub(crate) fn plan<P: Params + 'static>(
    options: &CreateOptions,
    room: AvailableSpace,
    plan: impl Fn(u64) -> Result<P>,
) -> Result<Box<dyn Params>> {
    let AvailableSpace::File(held) = room else { return Err(options.wrong_backing(room.kind())) };
    let planned = shared_bytes(options, held).and_then(&plan).map_err(|e| {
        // The least size depends on the other options; with some of them no size is possible.
        let size = options.size.filter(|_| plan(MAX_LEAST_MIB << 20).is_ok()).unwrap_or(u64::MAX);
        let least = ((size >> 20).max(1)..=MAX_LEAST_MIB).find(|mib| plan(mib << 20).is_ok());
        match least.filter(|mib| size < mib << 20) {
            Some(mib) => {
                e.hint(Hint::from("give at least ").setting(Setting("size")).text(format!(" {mib}M")))
            }
            None => e,
        }
    })?;
    Ok(Box::new(planned))
}

/// The bytes that the levels of a disk share; `held` is the size of a device.
fn shared_bytes(options: &CreateOptions, held: Option<u64>) -> Result<u64> {
    match (options.size, held) {
        (Some(size), Some(held)) if size > held => {
            Err(Error::new(Kind::Usage, "the disk does not fit its medium")
                .found(format!("a medium of {held} bytes"))
                .expected(format!("at least the requested {size} bytes"))
                .hint("choose a smaller size, or none"))
        }
        (Some(size), _) => Ok(size_in_blocks(size)? * BLOCK_SIZE as u64),
        (None, Some(held)) => Ok(held),
        (None, None) => Err(options.missing_size("a file")),
    }
}

/// The lengths in bytes of hidden levels with these numbers of blocks.
pub(crate) fn sizes(blocks: impl Iterator<Item = u64>) -> Vec<u64> {
    blocks.map(|blocks| blocks.saturating_mul(BLOCK_SIZE as u64)).collect()
}

/// The text next to `cover`: the interval of such a `write`.
pub(crate) fn cover_text(write: &str, millis: u32) -> String {
    match millis {
        0 => "none of its own".to_owned(),
        millis => format!("a {write} every {} s while open", f64::from(millis) / 1000.0),
    }
}

/// The time in which an open disk writes `count` stripes or batches of cover, one every `millis`.
/// `None` if it writes no cover by itself.
pub(crate) fn cover_time(count: u64, millis: u32) -> Option<Duration> {
    // Unverified parameters may contain any numbers.
    (millis > 0).then(|| Duration::from_millis(count.saturating_mul(millis.into())))
}

/// Creates a disk.
pub(crate) fn create(params: &impl LevelFormat, backing: &Backing, keys: DiskKeys<'_>) -> Result<()> {
    params.create(backing.medium()?, keys, Randomness::of(Arc::new(SystemRandom::new()?)))
}

/// Opens a disk.
pub(crate) fn open(
    params: &impl LevelFormat,
    backing: &Backing,
    with: &OpenContext<'_>,
) -> Result<Box<dyn OpenFormat>> {
    let mut medium = Arc::clone(backing.medium()?);
    if with.rescue {
        // The engine itself handles unreadable places.
        medium = Arc::new(DamagedMedium::new(medium, params.end(), false));
    }
    let options = OpenOptions {
        budget: with.options.budget,
        read_only: with.options.read_only,
        // Do not wait for the medium to recover.
        background: !with.rescue,
        cover_timeout: with.options.cover_timeout,
        random: Randomness::of(Arc::new(SystemRandom::new()?)),
    };
    let disk = Arc::new(params.open(medium, with.keys, options)?);
    let levels = level_disks(&disk).into_iter().map(|level| level as Arc<dyn Disk>).collect();
    Ok(Box::new(OpenLevelsFormat { disk, levels }))
}

/// An open disk with levels, of any format.
struct OpenLevelsFormat {
    disk: Arc<dyn Levels>,
    /// The open levels, starting with 0.
    levels: Vec<Arc<dyn Disk>>,
}

impl OpenFormat for OpenLevelsFormat {
    fn disk(&self) -> &dyn Disk {
        &*self.levels[0]
    }

    fn close(&self) -> Result<()> {
        self.disk.close()
    }

    fn check(
        &self,
        progress: &mut dyn FnMut(u64) -> Result<()>,
        bad: &mut dyn FnMut(Option<u8>, BadBlock),
    ) -> Result<DiskCheckReport> {
        let (mut total, mut before) = (DiskCheckReport::default(), 0);
        for (level, disk) in (0..).zip(&self.levels) {
            let report = check_disk(&**disk, |done| progress(before + done), |found| bad(Some(level), found))
                .map_err(|e| level_error(level, e))?;
            before += disk.blocks();
            total.add(report);
        }
        Ok(total)
    }

    fn levels(&self) -> &[Arc<dyn Disk>] {
        &self.levels
    }

    fn cover_closing(&self, pace: Pace) -> Result<()> {
        self.disk.cover_closing(pace)
    }

    fn give_up(&self, level: u8, gives_up: bool) {
        // Level 0 never waits.
        if (1..self.levels.len()).contains(&usize::from(level)) {
            self.disk.set_no_wait(level, gives_up);
        }
    }

    fn grow(&self, _header: &OpenDiskHeader, _size: Option<u64>) -> Result<Box<dyn Params>> {
        Err(Error::new(Kind::Usage, "cannot resize the disk")
            .found("a disk with levels, which keeps its size")
            .expected("a disk without levels")
            .hint("create a larger one and copy your data"))
    }
}

/// The error of a check that ended within a level.
fn level_error(level: u8, e: Error) -> Error {
    let corrupt = e.kind() == Kind::Corrupt;
    let e = e.context(format!("cannot check level {level}"));
    if corrupt && level > 0 { e.hint(OVERWRITTEN) } else { e }
}
