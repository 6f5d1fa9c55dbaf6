//! The place of a test: a vault in a directory of its own, and a mount point that is cleaned up.

use crate::clock::MovedClock;
use crate::machine::{lacking, mounts_below, skipped, wait_until};
use crate::serving::{MountMode, ServerProcess};
use lacuna_contracts::{Kind, Result, Secret};
use lacuna_crypto::SystemRandom;
use lacuna_daemon::{CloseOutcome, close};
use lacuna_medium::{Access, DiskFolder};
use lacuna_vault::store::FileAnchor;
use lacuna_vault::{
    SystemWallClock, Vault, VaultBacking, VaultLog, VaultOpenOptions, VaultOptions, WallClock,
};
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

/// The UUID of every vault here.
const UUID: [u8; 16] = [0x5a; 16];

/// The reason why this machine cannot run a test that works as several users.
pub(crate) fn lacking_root() -> Option<&'static str> {
    (!rustix::process::geteuid().is_root()).then_some("not root")
}

/// Skips a test where the machine does not allow it.
macro_rules! skip_if {
    ($lacking:expr) => {
        if let Some(why) = $lacking {
            $crate::machine::skipped(why);
            return;
        }
    };
}

pub(crate) use skip_if;

/// Not `println`, which the test runner captures.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A temporary directory that every user may enter; also sets the usual umask.
pub(crate) fn open_directory() -> TempDir {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

/// The place of one test: a vault's directory, its anchor and a mount point. Dropping it unmounts
/// everything.
pub(crate) struct VaultFixture {
    dir: PathBuf,
    /// `None` where another process cleans up.
    owned: Option<TempDir>,
}

impl VaultFixture {
    pub(crate) fn new() -> Self {
        let owned = open_directory();
        let place = VaultFixture { dir: owned.path().to_owned(), owned: Some(owned) };
        fs::create_dir(place.mountpoint()).unwrap();
        fs::create_dir(place.backing()).unwrap();
        place
    }

    /// The place of a test with a new vault in it, mounted by the server; `None`, with a message,
    /// where the machine does not allow it.
    pub(crate) fn mounted() -> Option<(Self, ServerProcess)> {
        if let Some(why) = lacking() {
            skipped(why);
            return None;
        }
        let place = VaultFixture::new();
        let server = place.mount(MountMode::Create);
        Some((place, server))
    }

    /// The place of a test in another process.
    pub(crate) fn at(dir: &Path) -> Self {
        VaultFixture { dir: dir.to_owned(), owned: None }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn backing(&self) -> PathBuf {
        self.dir.join("vault")
    }

    pub(crate) fn mountpoint(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    pub(crate) fn run_base(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// Exists once the server has mounted.
    pub(crate) fn ready(&self) -> PathBuf {
        self.dir.join("ready")
    }

    /// Exists once the server has ended; contains the error, if any.
    pub(crate) fn ended(&self) -> PathBuf {
        self.dir.join("ended")
    }

    pub(crate) fn end_error(&self) -> String {
        fs::read_to_string(self.ended()).unwrap_or_else(|e| format!("it ended without a message: {e}"))
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Moves the clock of the vault `seconds` ahead of the system's. A running server follows if
    /// this was also called before its start.
    pub(crate) fn move_clock(&self, seconds: i64) {
        MovedClock::at(self.dir.join("clock")).move_to(seconds);
    }

    fn clock(&self) -> Arc<dyn WallClock> {
        let moved = self.dir.join("clock");
        if moved.exists() { Arc::new(MovedClock::at(moved)) } else { Arc::new(SystemWallClock) }
    }

    fn base(&self, access: Access) -> VaultBacking {
        let anchor = FileAnchor::open(&self.dir.join("anchor"), UUID, access == Access::Read)
            .unwrap_or_else(|e| panic!("{e}"));
        VaultBacking {
            folder: Arc::new(DiskFolder::open(&self.backing(), access).unwrap_or_else(|e| panic!("{e}"))),
            anchor: Arc::new(anchor),
            random: Arc::new(SystemRandom::new().unwrap()),
            clock: self.clock(),
        }
    }

    /// The log of the vault and its server: a file that every process appends to.
    pub(crate) fn log(&self) -> VaultLog {
        let log = File::options().create(true).append(true).open(self.log_file()).unwrap();
        Arc::new(move |line| (&log).write_all(format!("{line}\n").as_bytes()).unwrap())
    }

    /// Creates the vault.
    pub(crate) fn create_vault(&self) -> Vault {
        let open = VaultOpenOptions { log: self.log(), ..VaultOpenOptions::default() };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let options = VaultOptions { uid, gid, open, ..VaultOptions::default() };
        Vault::create(self.base(Access::Write), &master(), UUID, &options).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Opens the existing vault.
    pub(crate) fn open(&self) -> Vault {
        self.open_with(Access::Write).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Opens the existing vault from a directory that takes no changes.
    pub(crate) fn open_to_read(&self) -> Vault {
        self.open_with(Access::Read).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Opens the existing vault to read; it may be damaged.
    pub(crate) fn try_open_to_read(&self) -> Result<Vault> {
        self.open_with(Access::Read)
    }

    fn open_with(&self, access: Access) -> Result<Vault> {
        let options = VaultOpenOptions {
            log: self.log(),
            read_only: access == Access::Read,
            ..VaultOpenOptions::default()
        };
        Vault::open(self.base(access), &master(), UUID, &options)
    }

    /// Mounts the vault.
    pub(crate) fn mount(&self, how: MountMode) -> ServerProcess {
        ServerProcess::start(self, how)
    }

    /// Unmounts `server` and waits for its end. A starting program of another test inherits the
    /// files of this process for a moment and keeps the mount busy, so the request is repeated.
    #[track_caller]
    pub(crate) fn unmount(&self, server: ServerProcess) {
        wait_until("the end of the use of the mount", || {
            match close(&self.mountpoint(), Some(&self.run_base())) {
                Ok(how) => {
                    assert_eq!(how, CloseOutcome::Cleanly);
                    true
                }
                Err(e) if e.kind() == Kind::Busy => false,
                Err(e) => panic!("{e}"),
            }
        });
        server.wait(self);
    }

    /// Unmounts `server` at the end of a test: the vault must verify, and nothing may be left.
    #[track_caller]
    pub(crate) fn unmount_and_verify(&self, server: ServerProcess) {
        self.unmount(server);
        self.verify();
        self.assert_nothing_left();
    }

    /// Unmounts a mount on or below a test's place; starting programs of other tests may use it for
    /// a moment.
    #[track_caller]
    pub(crate) fn umount(at: &Path) {
        wait_until("the end of the use of the mount", || {
            Command::new("umount").arg(at).stderr(Stdio::null()).status().unwrap().success()
        });
    }

    /// Takes the log lines since the last call.
    pub(crate) fn take_log(&self) -> Vec<String> {
        let lines =
            fs::read_to_string(self.log_file()).unwrap_or_default().lines().map(str::to_owned).collect();
        File::create(self.log_file()).unwrap();
        lines
    }

    /// Reads the closed vault whole: everything in it must verify, and the log must be empty.
    pub(crate) fn verify(&self) {
        assert_eq!(self.take_log(), Vec::<String>::new(), "the log is not empty");
        let vault = self.open();
        let report = vault.check(&mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"));
        assert!(report.bad.is_empty(), "{:?}", report.bad);
        vault.close().unwrap_or_else(|e| panic!("{e}"));
    }

    fn mounts(&self) -> Vec<String> {
        mounts_below(&self.dir)
    }

    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), Vec::<String>::new());
        assert_eq!(fs::read_dir(self.run_base()).map_or(0, Iterator::count), 0, "the run directory remains");
    }
}

impl Drop for VaultFixture {
    fn drop(&mut self) {
        if self.owned.is_none() {
            return;
        }
        for mount in self.mounts().iter().rev() {
            let _ = Command::new("umount").args(["--lazy", mount]).status();
        }
    }
}

fn master() -> Secret<32> {
    Secret::copy_from(&[0x37; 32])
}
