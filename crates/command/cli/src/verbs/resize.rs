//! `resize`: refusals before a passphrase is asked for, and messages on the result.

use crate::args::ResizeArgs;
use crate::terminal::console::Console;
use crate::terminal::progress;
use crate::verbs::rados_target;
use crate::verbs::remote_ops::{self, StartedJob};
use crate::verbs::unlock::{self, DiskArgs, UnlockArgs};
use lacuna_daemon::{Job, JobReply, MountRecord};
use lacuna_mount::FsResize;
use lacuna_storage::{Access, Error, Kind, Result, human_size};
use std::fmt::Write;

/// `lacuna resize`.
pub(crate) fn run(args: &ResizeArgs, console: Console) -> Result<()> {
    if let Some(disk) = lacuna_storage::read_public_params(&args.location)?.filter(|disk| disk.has_levels()) {
        return Err(Error::new(Kind::Usage, format!("cannot resize {}", args.location))
            .found(format!(
                "a disk with levels, of the format {}, which keeps its size",
                disk.format().info().name
            ))
            .expected("a disk without levels")
            .hint("create a larger one and copy your data"));
    }
    let size = args.size.map(|size| size.0);
    size.map(lacuna_storage::size_in_blocks).transpose()?;
    lacuna_storage::refuse_snapshot(&args.location, "resize")?;
    if size.is_none() && !args.location.is_block_device() && !args.grow_fs {
        return Err(no_size(args));
    }
    if args.grow_fs {
        let record = kernel_mount(args)?;
        if size.is_none() && !args.location.is_block_device() {
            return grow_file_system(&record, console);
        }
    }
    if let Some(begun) = remote_ops::start_job(&args.location, &args.pool_access, args.expect, |disk| {
        Job::Resize { disk, size }
    })? {
        return resize_on_server(args, begun, console);
    }
    size.map_or(Ok(()), |size| lacuna_storage::check_resize(&args.location, size))?;
    let place = DiskArgs { location: &args.location, pool_access: &args.pool_access };
    let given = UnlockArgs { passphrase: &args.passphrase, expect: args.expect };
    let mut volume = unlock::unlock_expected(place, Access::Write, given, console)?;
    let is_larger = lacuna_storage::resize(&mut volume, size)?;
    let disk = volume.parameters.describe();
    if !is_larger {
        let most = disk.size == disk.max_size;
        let why = if most { ", and its map has no room for more" } else { "" };
        return console.done(&format!("{} has this size already{why}", args.location));
    }
    console.done(&format!(
        "{} is now {}; once it is open, `lacuna resize {} --grow-fs` makes the file system on it larger too",
        args.location,
        human_size(disk.size),
        rados_target::as_argument(&args.location, &args.pool_access.cluster.options_for(&args.location)?)
    ))
}

/// Lets the server that has the disk open resize it.
fn resize_on_server(args: &ResizeArgs, begun: StartedJob, console: Console) -> Result<()> {
    let StartedJob { stream: mut talk, mounted } = begun;
    if args.passphrase.is_given() {
        console.note("the disk is open: its server makes it larger, and the passphrase was not used");
    }
    let what = format!("making {} larger", args.location);
    let done = progress::show(console, &what, |_| {
        loop {
            match talk.recv() {
                Ok(JobReply::Message(_)) => {}
                Ok(JobReply::Done(done)) => break Ok(done),
                Err(e) => break Err(e.context(format!("cannot resize {}", args.location))),
            }
        }
    })?;
    let size = done["size"].as_u64().unwrap_or(0);
    let raw = mounted.as_ref().is_some_and(MountRecord::is_raw);
    let mounted = mounted.filter(|record| !record.is_raw());
    let mut said = if done["changed"] == true {
        format!("{} is now {}", args.location, human_size(size))
    } else if done["largest"] == size {
        format!("{} has this size already, and its map has no room for more", args.location)
    } else {
        format!("{} has this size already", args.location)
    };
    let growth = mounted.as_ref().and_then(|record| growth_of(record).transpose()).transpose()?;
    match (mounted, growth) {
        (Some(record), Some(growth)) if args.grow_fs => {
            // The disk is larger even if growing the file system fails.
            console.done(&said)?;
            let of = if done["changed"] == true { "the disk has grown, and its file system has not" } else { "the file system has not grown" };
            return grow(&growth, &record, of, console);
        }
        (_, Some(growth)) => {
            let _ = write!(said, "; make the file system on it larger too: {growth}");
        }
        (Some(record), None) if args.grow_fs => {
            console.done(&said)?;
            return Err(other_type(&record));
        }
        (Some(record), None) if record.loop_device().is_none() => said.push_str(
            "; to make its file system larger too, close it, open it with --raw, and use the tool of that file system (for ext4: \
             `e2fsck -f` and `resize2fs`)",
        ),
        (Some(_), None) => said.push_str("; make the file system on it larger too, with its own tool"),
        (None, None) if raw => {
            said.push_str("; its file has that length now. Make the file system in it larger too (for ext4: resize2fs)");
        }
        (None, None) => said.push_str(
            "; clients of NBD see that when they connect again. Make the file system on it larger too (for ext4: resize2fs)",
        ),
    }
    console.done(&said)
}

/// The kernel mount of the disk's file system; only such a mount can be grown while in use.
fn kernel_mount(args: &ResizeArgs) -> Result<MountRecord> {
    let mounted =
        remote_ops::mount_of(&args.location, &args.pool_access.cluster.options_for(&args.location)?)?;
    let found = match &mounted {
        Some(record) if record.is_raw() => "an open disk without a file system of its own (--raw)",
        Some(_) => "a file system that a program serves (`open --via`)",
        None => "a disk that is not mounted",
    };
    let mounted_at_all = mounted.is_some();
    let record = mounted.filter(|record| record.loop_device().is_some()).ok_or_else(|| {
        Error::new(Kind::Usage, "cannot make the file system larger")
            .found(found)
            .expected("one that is mounted by way of a loop device")
            .hint(if mounted_at_all {
                "leave --grow-fs out; then make the file system larger with its own tool where it is not mounted"
            } else {
                "`lacuna open` it first, and give the command then"
            })
    })?;
    remote_ops::check_mounted(&record, args.expect)?;
    Ok(record)
}

/// Grows the file system to the size of its disk, which may have grown before.
fn grow_file_system(record: &MountRecord, console: Console) -> Result<()> {
    let growth = growth_of(record)?.ok_or_else(|| other_type(record))?;
    grow(&growth, record, "the file system has not grown", console)
}

fn growth_of(record: &MountRecord) -> Result<Option<FsResize>> {
    FsResize::of(&record.mountpoint, record.loop_device())
}

/// Runs the tool. `failed`: the context of its error.
fn grow(growth: &FsResize, record: &MountRecord, failed: &str, console: Console) -> Result<()> {
    let at = record.mountpoint.display();
    growth.run().map_err(|e| {
        // The disk has grown, now or before; the exit code of a refusal would contradict that.
        let e = e.with_kind(Kind::Other).context(failed);
        if e.get_hint().is_some() {
            return e;
        }
        e.hint(format!(
            "try {growth} again; or close the disk, open it with --raw, and use the tool there (ext4: `e2fsck -f`, `resize2fs`)"
        ))
    })?;
    console.done(&format!("the file system at {at} is as large as its disk"))
}

fn other_type(record: &MountRecord) -> Error {
    Error::new(Kind::Usage, "cannot make the file system larger")
        .found(format!("a file system at {} of another type", record.mountpoint.display()))
        .expected("ext2, ext3, ext4, xfs or btrfs")
        .hint("use the tool of that file system")
}

fn no_size(args: &ResizeArgs) -> Error {
    Error::new(Kind::Usage, format!("cannot resize {}", args.location))
        .found("no --size")
        .expected("the new size of the disk; only on a block device it need not be given")
        .hint("give for example --size 20G; or --grow-fs alone, if the disk has grown and its file system has not")
}
