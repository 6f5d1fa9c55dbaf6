//! A mounted vault: setting the mount up, and taking it down again.

use crate::device::FuseOptions;
use crate::server::{MountRegistration, MountServer, ServeOptions, ServedMount, free_mountpoint};
use crate::session::FuseMount;
use crate::session_reporter::SessionReporter;
use crate::vault::filesystem::VaultFilesystem;
use crate::vault::ops::{VaultOps, to_error};
use crate::vault::request::VaultRequest;
use crate::vault::seek::KernelNotifier;
use crate::vault::status::VaultStatus;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_daemon::{ControlServer, Jobs, MountKind, MountRecord};
use lacuna_mount::RELEASE_LIMIT;
use lacuna_vault::Vault;
use std::any::Any;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How far the kernel may read ahead, in KiB: one request of the largest size. Only root can set
/// it.
const READ_AHEAD_KIB: &str = "1024";

/// A vault that is mounted and served.
pub type MountedVault = MountServer<VaultFuseMount>;

/// The parts of a mounted vault.
pub struct VaultFuseMount {
    // In drop order.
    fuse: FuseMount,
    vault: Arc<Vault>,
    reporter: SessionReporter,
    /// Dropped after the vault is closed.
    held: Option<Box<dyn Any + Send>>,
}

impl MountedVault {
    /// Mounts. On failure everything that was set up is taken down again and the vault is closed.
    ///
    /// Errors: [`Kind::Busy`] if something is mounted there, [`Kind::NotFound`] and [`Kind::Usage`]
    /// if it is not a directory, [`Kind::Permission`] if the system does not allow it.
    pub fn start(mut request: VaultRequest) -> Result<Self> {
        let (vault, log) = (Arc::clone(&request.vault), Arc::clone(&request.log));
        // Held until the vault is closed, also on failure: closing writes, and no other program may
        // have the vault open during it.
        let held = request.held.take();
        let mut server = set_up(request).inspect_err(|_| {
            if let Err(e) = vault.close() {
                log(&e.context("cannot close the vault that was not mounted"));
            }
        })?;
        server.served.held = held;
        Ok(server)
    }
}

fn set_up(request: VaultRequest) -> Result<MountedVault> {
    let (run_base, read_only) = (request.run_base.as_deref(), request.read_only);
    let mountpoint = free_mountpoint(&request.mountpoint, run_base, request.make_mountpoint)?;
    let mount = MountRecord { mountpoint: mountpoint.clone(), kind: MountKind::Vault };
    let mut claim = MountRegistration::new(mount, request.identity, read_only, run_base, &request.log)?;
    let reports = claim.reporter.clone();
    let (vault, kernel) = (request.vault, KernelNotifier::default());
    let front = VaultOps::new(Arc::clone(&vault), read_only, Arc::clone(&kernel), reports.clone())?;
    let status = VaultStatus { vault: Arc::clone(&vault), traffic: front.traffic.clone() };
    let (source, allow_other, no_exec) = (&*request.source, request.allow_other, request.no_exec);
    let access = FuseOptions { source, allow_other, read_only, no_exec };
    let begun = move |notifier| _ = kernel.set(notifier);
    let watch = Arc::clone(&reports.session);
    claim.make_mountpoint(request.make_mountpoint)?;
    let fuse = FuseMount::start(VaultFilesystem::new(front), &mountpoint, access, watch, begun)?;
    read_further_ahead(&mountpoint);
    let (naming, idle_timeout) = (request.naming, request.idle_timeout);
    let jobs = Jobs::new(None, Arc::new(|| Ok(())), naming);
    let served = VaultFuseMount { fuse, vault, reporter: reports, held: None };
    claim.serve(served, Arc::new(status), ServeOptions { jobs, naming, idle_timeout })
}

impl ServedMount for VaultFuseMount {
    /// A vault has no jobs, and a server that stays cannot keep the data of a deleted directory.
    fn is_in_use(&self, _: &ControlServer) -> bool {
        false
    }

    /// The kernel writes everything back before the unmount completes.
    fn take_down(&mut self) -> Result<()> {
        // Closing removes the mount if its connection has ended.
        if self.reporter.session.wait_ended(Duration::ZERO) {
            return Ok(());
        }
        self.fuse.unmount()?;
        if self.reporter.session.wait_ended(RELEASE_LIMIT) {
            return Ok(());
        }
        Err(Error::new(Kind::Busy, format!("cannot close {}", self.fuse.mountpoint().display()))
            .found(
                "unmounted here, but still in use elsewhere, perhaps in another mount namespace or container",
            )
            .hint("unmount it there; the server then ends by itself"))
    }

    fn flush(&self) {
        if let Err(e) = self.vault.sync() {
            (self.reporter.log)(&to_error("cannot make the vault durable".to_owned(), e));
        }
    }

    fn close(&mut self) -> Result<()> {
        self.fuse.end();
        let closed = self.vault.close();
        drop(self.held.take());
        closed
    }
}

/// The kernel reads at most 128 KiB ahead by default; only root can change it.
fn read_further_ahead(mountpoint: &Path) {
    if let Ok(meta) = fs::metadata(mountpoint) {
        let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
        let _ = fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB);
    }
}
