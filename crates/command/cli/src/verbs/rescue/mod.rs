//! `rescue`: copies the readable data of a damaged disk.

mod areas;
mod image;
mod map;

use crate::args::RescueArgs;
use crate::args::size::budget;
use crate::terminal::bad_runs::blocks;
use crate::terminal::console::{self, Console};
use crate::verbs::rescue::image::RescueImage;
use crate::verbs::rescue::map::RescuedDisk;
use crate::verbs::unlock::{self, DiskArgs, UnlockArgs};
use lacuna_daemon::{TrackedFile, set_path};
use lacuna_storage::{
    BLOCK_SIZE, Disk, DiskCheckReport, Error, Kind, OpenDisk, OpenDiskOptions, ReadOutcome, Result,
    UnlockedDisk, human_size, read_blocks, read_public_params,
};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The note on a disk with a journal that could not be read to its end.
const JOURNAL: &str = "the journal of the disk is damaged: the image may have older versions of the data \
    written last before the disk was closed, or before a power cut";

#[derive(Serialize)]
struct RescueAnswer {
    /// The disk, the image and its map file.
    #[serde(flatten)]
    paths: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<u8>,
    size: u64,
    /// Blocks that an earlier run rescued.
    kept: u64,
    good: u64,
    unwritten: u64,
    bad: u64,
    /// Whether the cipher detects altered data.
    verified: bool,
    /// Whether the last writes may be missing because the journal is damaged.
    journal_damaged: bool,
    /// The snapshot with an interrupted rollback to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    unfinished_rollback: Option<String>,
    /// Whether the table of snapshots cannot be used.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    snapshots_lost: bool,
}

/// `lacuna rescue`.
pub(crate) fn run(args: &RescueArgs, console: Console) -> Result<()> {
    let budget = budget(args.cache)?;
    image::check(&args.target, args.force)?;
    check_level_of_format(args)?;
    let place = DiskArgs { location: &args.location, pool_access: &args.pool_access };
    let given = UnlockArgs { passphrase: &args.passphrase, expect: args.expect };
    let mut volume = unlock::unlock_to_rescue(place, given, console)?;
    let source = TrackedFile::of(volume.take_file())?.identity();
    let verified = volume.parameters.describe().detects_alterations;
    let key = volume.into_disk(false)?;
    check_level(args, &key)?;
    let level = key.has_levels().then_some(args.level);
    let opening = OpenDiskOptions {
        read_only: true,
        budget,
        cover_timeout: Duration::ZERO,
        purge_policy: None,
        expect: args.expect.expect,
        ..OpenDiskOptions::default()
    };
    let disk = Arc::new(unlock::open(key, opening)?);
    let source_disk = disk.levels().swap_remove(usize::from(args.level));
    let size = source_disk.blocks() * BLOCK_SIZE as u64;
    let of = RescuedDisk { id: disk.id(), level: args.level, len: size };
    let copied = RescueImage::open(&args.target, args.force, source, &of)
        .and_then(|image| copy(&*source_disk, image, console));
    let doubt = Doubt::of(&disk);
    let copied = console::combine(copied, disk.close())?;
    let CopyResult { kept, report: DiskCheckReport { good, unwritten, bad } } = copied;
    doubt.notes().iter().for_each(|note| console.note(note));
    let verdict = verdict(args, bad, &doubt);
    if args.json {
        let mut paths = json!({});
        set_path(&mut paths, "location", args.location.to_os_string());
        set_path(&mut paths, "target", &args.target);
        set_path(&mut paths, "map", image::map_path(&args.target));
        let answer = RescueAnswer {
            paths,
            level,
            size,
            kept,
            good,
            unwritten,
            bad,
            verified,
            journal_damaged: doubt.journal_damaged,
            snapshots_lost: doubt.table_error.is_some(),
            unfinished_rollback: doubt.rollback,
        };
        console::json(&answer)?;
    } else {
        console::line(&summary(&copied, verified))?;
        console::line(&format!("{} lists them", image::map_path(&args.target).display()))?;
    }
    verdict
}

/// Refuses a level that the disk cannot have, before a passphrase is asked for.
///
/// Deniability contract: the check follows from the public parameters alone.
fn check_level_of_format(args: &RescueArgs) -> Result<()> {
    if args.level == 0 {
        return Ok(());
    }
    let Some(disk) = read_public_params(&args.location)? else { return Ok(()) };
    let Some(hidden) = disk.describe().hidden_sizes else { return Err(no_levels(args)) };
    if usize::from(args.level) <= hidden.len() {
        return Ok(());
    }
    Err(level_error(args)
        .found("a disk that has no such level whatever the passphrase is")
        .expected(format!("at most {}", hidden.len())))
}

fn level_error(args: &RescueArgs) -> Error {
    Error::new(Kind::Usage, format!("cannot rescue level {} of {}", args.level, args.location))
}

fn no_levels(args: &RescueArgs) -> Error {
    level_error(args).found("a disk without levels").hint("leave --level out")
}

/// Refuses a level that is not open.
fn check_level(args: &RescueArgs, key: &UnlockedDisk) -> Result<()> {
    if usize::from(args.level) < key.levels() {
        return Ok(());
    }
    if !key.has_levels() {
        return Err(no_levels(args));
    }
    // Deniability contract: the number of open levels is shown only on a terminal.
    Err(level_error(args)
        .found(format!("a passphrase that opens levels 0 to {}", key.levels() - 1))
        .confidential())
}

/// Result of a run.
#[derive(Clone, Copy, Default)]
struct CopyResult {
    /// Blocks that were in the image before.
    kept: u64,
    /// Result of reading the remaining blocks.
    report: DiskCheckReport,
}

/// Reads every block that is missing in the image, and writes the readable ones.
fn copy(disk: &dyn Disk, mut image: RescueImage, console: Console) -> Result<CopyResult> {
    let bar = console.progress(disk.blocks() * BLOCK_SIZE as u64, "{binary_bytes_per_sec}");
    let copied = fill(disk, &mut image, |block| bar.set_position(block * BLOCK_SIZE as u64));
    bar.finish_and_clear();
    let copied = copied?;
    image.finish()?;
    Ok(copied)
}

fn fill(disk: &dyn Disk, image: &mut RescueImage, progress: impl Fn(u64)) -> Result<CopyResult> {
    let mut copied = CopyResult::default();
    while let Some((blocks, is_there)) = image.next_blocks()? {
        progress(blocks.start);
        if is_there {
            let kept = blocks.end - blocks.start;
            copied.kept += kept;
            image.record_kept(kept)?;
            continue;
        }
        read_blocks(disk, blocks, |first, reading| {
            progress(first.0);
            copied.report.count(&reading);
            match reading {
                ReadOutcome::Good(content) => image.write_rescued(content),
                ReadOutcome::Unwritten(blocks) => image.record_unwritten(blocks),
                ReadOutcome::Bad(_) => image.record_lost(),
            }
        })?;
    }
    Ok(copied)
}

fn summary(CopyResult { kept, report }: &CopyResult, verified: bool) -> String {
    let DiskCheckReport { good, unwritten, bad } = *report;
    let before = if *kept > 0 { format!(", {kept} rescued before") } else { String::new() };
    let (read, hint) = if verified {
        ("verified", "")
    } else {
        (
            "readable",
            "; the cipher of this disk cannot tell altered data, so that every block that can be read counts",
        )
    };
    format!(
        "{} {read} ({}), {unwritten} never written, {bad} unreadable{before}{hint}",
        blocks(good),
        human_size(good * BLOCK_SIZE as u64),
    )
}

/// The reasons why blocks that could be read may not be the newest.
struct Doubt {
    journal_damaged: bool,
    /// Why the table of snapshots cannot be used.
    table_error: Option<String>,
    /// The snapshot with an interrupted rollback to it.
    rollback: Option<String>,
}

impl Doubt {
    fn of(disk: &OpenDisk) -> Doubt {
        Doubt {
            journal_damaged: disk.is_journal_damaged(),
            table_error: disk.table_error().map(Error::summary),
            rollback: disk.unfinished_rollback().map(str::to_owned),
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.journal_damaged {
            notes.push(JOURNAL.to_owned());
        }
        if let Some(name) = &self.rollback {
            notes.push(format!(
                "a rollback to the snapshot {name} was interrupted: some segments of the image are as they were before \
                 the rollback, and some as in the snapshot"
            ));
        }
        if let Some(why) = &self.table_error {
            // The table may be whole where a cluster did not answer in time.
            notes.push(format!(
                "the table of snapshots cannot be used ({why}), so no snapshot can be read; if a rollback to one of them \
                 was interrupted, some segments of the image are as they were before it, and some as in the snapshot"
            ));
        }
        notes
    }
}

/// Whether all blocks were rescued. Errors: [`Kind::Corrupt`].
fn verdict(args: &RescueArgs, bad: u64, doubt: &Doubt) -> Result<()> {
    let found = match &doubt.rollback {
        _ if bad > 0 => format!("{} that cannot be read", blocks(bad)),
        _ if doubt.journal_damaged => "a damaged journal".to_owned(),
        _ if doubt.table_error.is_some() => "a table of snapshots that cannot be used".to_owned(),
        Some(name) => format!("an interrupted rollback to the snapshot {name}"),
        None => return Ok(()),
    };
    Err(Error::new(Kind::Corrupt, format!("not all of {} was rescued", args.location)).found(found).hint(
        "give the command again to try the lost blocks once more, before anything else writes to the image; \
         then check the file system in it before you use it: blocks that cannot be read are zeros there. \
         Restore them from a backup",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_cannot_be_read_now_is_not_called_lost() {
        let doubt = Doubt { journal_damaged: false, table_error: Some("no answer".into()), rollback: None };
        let notes = doubt.notes();
        let [note] = &notes[..] else { panic!("{notes:?}") };
        assert!(note.starts_with("the table of snapshots cannot be used (no answer), so no"), "{note}");
        assert!(!note.contains("lost"), "{note}");
        assert!(Doubt { table_error: None, ..doubt }.notes().is_empty());
    }
}
