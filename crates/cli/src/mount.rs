//! `open` and `close`: a disk as a mounted file system.

use crate::args::{CloseArgs, OpenArgs};
use crate::background::{self, Ready};
use crate::console::Console;
use crate::serve::budget;
use crate::unlock::{self, Key};
use lacuna_core::{Budget, Error, Kind, Result};
use lacuna_fuse::{Closed, OpenRequest, Opened, become_io_flusher};
use std::sync::Arc;
use std::sync::mpsc;

/// `lacuna open`.
pub fn open(mut args: OpenArgs, console: Console) -> Result<()> {
    let budget = budget(args.cache)?;
    check_mountpoint(&mut args)?;
    let path = unlock::path_of(&args.location)?;
    let shown = path.canonicalize().unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned();
    let volume = unlock::unlock(&args.location, unlock::access(args.read_only), &args.passphrase, console)?;
    let key = volume.into_key()?;
    background::run(!args.foreground, |ready| serve(&args, shown, key, budget, console, ready))?;
    Ok(())
}

/// Refuses what could not be mounted on, before a passphrase is asked for.
fn check_mountpoint(args: &mut OpenArgs) -> Result<()> {
    let shown = args.mountpoint.display().to_string();
    let meta = std::fs::metadata(&args.mountpoint);
    match meta {
        Ok(meta) if !meta.is_dir() => {
            return Err(Error::new(Kind::Usage, format!("cannot mount at {shown}"))
                .found("a file")
                .expected("an existing directory"));
        }
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
            return Err(Error::io(format!("cannot mount at {shown}"), &e)
                .remedy(format!("create the directory: mkdir -p {shown}")));
        }
        // Anything else is told better by the mount itself, which knows servers that died.
        _ => {}
    }
    if args.mkfs.is_some() && (args.raw || args.read_only) {
        return Err(Error::new(Kind::Usage, "cannot make a file system")
            .found(if args.raw { "--mkfs with --raw" } else { "--mkfs with --read-only" })
            .remedy("leave one of them away"));
    }
    // The path by which it will be known when other mounts have come and gone; a dead mount has only its name.
    args.mountpoint = std::fs::canonicalize(&args.mountpoint)
        .or_else(|_| std::path::absolute(&args.mountpoint))
        .map_err(|e| Error::io(format!("cannot find {shown}"), &e))?;
    Ok(())
}

fn serve(
    args: &OpenArgs,
    location: String,
    key: Key,
    budget: Budget,
    console: Console,
    ready: &mut Ready,
) -> Result<()> {
    if !args.raw {
        // Before any thread: those that carry the loop device's writes must not wait for that very device.
        become_io_flusher();
    }
    let (signalled, signals) = mpsc::channel();
    background::on_signal(move || {
        let _ = signalled.send(());
    })?;
    let mountpoint = args.mountpoint.display().to_string();
    let disk = Arc::new(key.open(args.read_only, budget)?);
    let mut request = OpenRequest::new(disk, location, &args.mountpoint);
    request.mkfs = args.mkfs.clone();
    request.read_only = args.read_only;
    request.raw = args.raw;
    request.mount_options = args.mount_options.clone();
    request.log = background::reporter(!args.foreground, console);
    let opened = Opened::start(request)?;
    let stopper = opened.stopper();
    let forward = move || signals.into_iter().for_each(|()| stopper.request());
    let started = std::thread::Builder::new().name("lacuna-stop".into()).spawn(forward);
    let text = format!("opened {} at {mountpoint}; `lacuna close {mountpoint}` ends it", args.location);
    let told = started
        .map_err(|e| Error::io("cannot listen for signals", &e))
        .and_then(|_| console.done(&text))
        .and_then(|()| ready.tell());
    if told.is_err() {
        // Whoever asked is not there to hear of it: nothing stays mounted.
        opened.stopper().request();
    }
    let ended = opened.wait();
    told.and(ended)
}

/// `lacuna close`.
pub fn close(args: &CloseArgs, console: Console) -> Result<()> {
    match lacuna_fuse::close(&args.mountpoint, None)? {
        Closed::Cleanly => console.detail("the server has ended"),
        Closed::AfterCrash => console.note(
            "the server had died before; what it left mounted is cleared away, and what had not been flushed \
             then is lost",
        ),
    }
    Ok(())
}
