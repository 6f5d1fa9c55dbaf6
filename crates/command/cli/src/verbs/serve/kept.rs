//! Serves a disk with a keeper: each server opens the disk anew, with the memory of its
//! predecessor, and accepts clients on the same sockets.

use crate::args::ServeArgs;
use crate::args::size::budget;
use crate::terminal::console::{self, Console};
use crate::terminal::progress;
use crate::verbs::serve::background::{self, ReadyNotifier};
use crate::verbs::serve::disk_jobs::ServedDisk;
use crate::verbs::{status, unlock};
use lacuna_daemon::{Identity, KeeperLink, TrackedFile};
use lacuna_mount::ServerLog;
use lacuna_nbd::{Listen, Listeners};
use lacuna_storage::{Access, Error, KeptMemory, Kind, MemoryKeeper, ReopenableDisk, Result};
use std::fs::File;
use std::sync::Arc;

/// Calls `serve_once` in each server. The keeper is this process, or the process in the background;
/// `drawn` is the console for progress.
pub(crate) fn serve(
    args: &ServeArgs,
    listen: &[Listen],
    disk: &ReopenableDisk,
    verifies: bool,
    (console, drawn): (Console, Console),
    mut serve_once: impl FnMut(Listeners, ServedDisk, &mut ReadyNotifier) -> Result<()>,
) -> Result<()> {
    let what = format!("opening {}", args.location);
    // A process in the background changes its working directory.
    let location = status::canonical(&args.location);
    background::run(args.fork, false, console, &what, |ready| {
        disk.adopt_after_fork();
        let listeners = Listeners::open(listen)?;
        let code = background::run_kept(ready, |ready, keeper| {
            watch_keeper(keeper, disk, &location, background::server_log(args.fork, false))?;
            let key = disk.unlock_again(Access::Write, keeper.has_left())?;
            let format = key.format();
            let file = Arc::new(TrackedFile::of(disk.file()?)?);
            let cluster = args.opening.pool_access.cluster.options_for(&args.location)?;
            let budget = budget(args.opening.cache)?;
            let holder: Arc<dyn MemoryKeeper> =
                Arc::new(Keeper(Arc::clone(keeper), background::server_log(args.fork, false)));
            let opened = progress::show(drawn, &what, |_| {
                unlock::open_kept(key, args.opening.options(false, budget), Some(&holder))
            });
            let disk = Arc::new(opened?);
            unlock::mark_sensitive(&disk, &args.opening.purging);
            if let Some(note) = disk.note() {
                console.note(note);
            }
            let identity = status::identity(&args.location, format.to_string(), &cluster, &disk, file);
            let identity = Identity { location: location.clone(), ..identity };
            let served = ServedDisk::new(disk, verifies, identity);
            serve_once(listeners.try_clone()?, served, ready)
        })?;
        // The files of the sockets are removed before this process ends.
        drop(listeners);
        if code == 0 { Ok(()) } else { console::exit(code) }
    })
}

/// When the keeper has died, has this server take the claim, and tells the log.
fn watch_keeper(
    keeper: &Arc<KeeperLink>,
    disk: &ReopenableDisk,
    location: &str,
    log: ServerLog,
) -> Result<()> {
    let died = Error::new(Kind::Other, format!("the keeper of {location} died"))
        .found(format!("the end of process {} before that of its server", keeper.keeper().pid))
        .hint("the server goes on; if it dies as well, writes that were not flushed are lost");
    let adopt_claim = disk.claim_adopter();
    keeper.on_death(move || {
        adopt_claim();
        log(&died);
    })
}

/// The keeper, as the library sees it.
struct Keeper(Arc<KeeperLink>, ServerLog);

impl MemoryKeeper for Keeper {
    fn take_left(&self) -> Option<File> {
        self.0.take_left()
    }

    fn hold(&self, memory: &KeptMemory) -> Result<()> {
        memory.file().map_or(Ok(()), |file| self.0.hold(file))
    }

    fn release(&self) -> Result<()> {
        self.0.release()
    }

    fn cannot_hold(&self, why: &Error) {
        self.0.keep_nothing().unwrap_or_else(|e| (self.1)(&e));
        (self.1)(
            &why.clone().context("acknowledged writes that are not flushed are lost if the server dies"),
        );
    }
}
