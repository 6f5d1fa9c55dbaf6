//! `open` and `close`: a disk as a mounted file system.

use crate::args::{CloseArgs, OpenArgs};
use crate::background::{self, Ready};
use crate::cluster;
use crate::console::Console;
use crate::serve::budget;
use crate::status;
use crate::unlock::{self, Key, Opening};
use lacuna_core::{Error, Kind, Result};
use lacuna_fuse::{Closed, OpenRequest, Opened, become_io_flusher};
use std::sync::Arc;
use std::sync::mpsc;

/// `lacuna open`.
pub fn open(mut args: OpenArgs, console: Console) -> Result<()> {
    let budget = budget(args.cache)?;
    check_mountpoint(&mut args, console)?;
    cluster::check_writing(&args.location, &args.writing)?;
    args.read_only |= args.location.snapshot().is_some();
    let shown = status::canonical(&args.location);
    for left in lacuna_fuse::died(None).unwrap_or_default() {
        if left.location == shown && left.mountpoint != args.mountpoint {
            let at = left.mountpoint.display();
            console.note(&format!(
                "a server that had it open at {at} died; `lacuna close {at}` clears away what it left"
            ));
        }
    }
    let access = unlock::access(args.read_only);
    let volume = unlock::unlock(&args.location, &args.holder, access, &args.passphrase, console)?;
    let key = volume.into_key(!args.foreground)?;
    let opening = Opening { read_only: args.read_only, budget, write_through: args.writing.write_through };
    background::run(!args.foreground, |ready| serve(&args, shown, key, opening, console, ready))
}

/// Refuses what could not be mounted on, before a passphrase is asked for.
fn check_mountpoint(args: &mut OpenArgs, console: Console) -> Result<()> {
    if args.mkfs.is_some() && (args.raw || args.read_only) {
        return Err(Error::new(Kind::Usage, "cannot make a file system")
            .found(if args.raw { "--mkfs with --raw" } else { "--mkfs with --read-only" })
            .remedy("leave one of them away"));
    }
    // The path by which it will be known when other mounts have come and gone.
    args.mountpoint = lacuna_fuse::check_mountpoint(&args.mountpoint, None)?;
    if std::fs::read_dir(&args.mountpoint).is_ok_and(|mut entries| entries.next().is_some()) {
        let shown = args.mountpoint.display();
        console.note(&format!("{shown} is not empty: what is in it is hidden until `lacuna close {shown}`"));
    }
    Ok(())
}

fn serve(
    args: &OpenArgs,
    location: String,
    key: Key,
    opening: Opening,
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
    let disk = Arc::new(key.open(opening)?);
    let mut request = OpenRequest::new(disk, location, &args.mountpoint);
    request.mkfs = args.mkfs.clone();
    request.read_only = args.read_only;
    request.raw = args.raw;
    request.mount_options = args.mount_options.clone();
    let say = background::reporter(!args.foreground, console);
    request.log = Arc::new(move |e: &Error| {
        // Of a disk that is another client's now the mount stays, and fails: without it, programs would go on writing
        // into the directory below.
        say(e);
    });
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
