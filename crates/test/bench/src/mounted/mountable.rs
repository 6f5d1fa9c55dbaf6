//! File systems that are mounted for a measurement: encrypting file systems over a plain directory,
//! ours and the peers', and ext4 in a `sealed` disk and on a plain loop device.

use crate::program;
use crate::serving::subject::LEAST_KDF;
use crate::workspace::Workspace;
use lacuna_contracts::{Error, Kind, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for a peer to mount or to release a mountpoint.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of a disk with an ext4.
const DISK: u64 = 8 << 30;

/// The directory with the local state of `cryfs`.
const CRYFS_STATE: &str = "cryfs.state";

/// A file system that is mounted for a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mountable {
    /// `lacuna vault`, with `--integrity`.
    Vault(&'static str),
    /// `gocryptfs` with its defaults.
    Gocryptfs,
    /// `cryfs` with its defaults.
    Cryfs,
    /// `encfs` with its standard configuration.
    Encfs,
    /// ext4 in a `sealed` disk with this cipher, through `lacuna open`.
    Sealed(&'static str),
    /// ext4 in a file, through a loop device that `mount` creates: nothing is encrypted.
    Plain,
}

impl Mountable {
    /// The name for display.
    pub(crate) fn name(self) -> String {
        match self {
            Mountable::Vault(integrity) => format!("vault {integrity}"),
            Mountable::Gocryptfs => "gocryptfs".into(),
            Mountable::Cryfs => "cryfs".into(),
            Mountable::Encfs => "encfs".into(),
            Mountable::Sealed(cipher) => format!("ext4 in sealed {cipher}"),
            Mountable::Plain => "ext4 on a loop device".into(),
        }
    }

    /// The reason that it cannot be measured here, if any.
    pub(crate) fn unavailable_reason(self) -> Option<String> {
        let (name, word) = match self {
            Mountable::Vault(_) | Mountable::Sealed(_) | Mountable::Plain => return None,
            Mountable::Gocryptfs => ("gocryptfs", "-version"),
            Mountable::Cryfs => ("cryfs", "--version"),
            Mountable::Encfs => ("encfs", "--version"),
        };
        // Some of them print their version and exit with a failure.
        let found = Command::new(name).arg(word).stdin(Stdio::null()).output().is_ok();
        (!found).then(|| format!("{} is skipped: `{name} {word}` does not run", self.name()))
    }

    fn backing(self, work: &Workspace) -> PathBuf {
        work.path(&format!("{}.backing", self.name().replace(' ', "-")))
    }

    /// The mountpoint.
    pub(crate) fn mountpoint(self, work: &Workspace) -> PathBuf {
        work.path(&format!("{}.mounted", self.name().replace(' ', "-")))
    }

    /// Creates an empty file system.
    pub(crate) fn create(self, work: &Workspace) -> Result<()> {
        let (backing, mountpoint) = (self.backing(work), self.mountpoint(work));
        let in_a_file = matches!(self, Mountable::Sealed(_) | Mountable::Plain);
        for dir in [&mountpoint].into_iter().chain((!in_a_file).then_some(&backing)) {
            std::fs::create_dir(dir).map_err(|e| Error::io(format!("cannot make {}", dir.display()), &e))?;
        }
        match self {
            Mountable::Vault(integrity) => {
                let mut command = lacuna_command(work);
                command.args(["vault", "init"]).arg(&backing).args(["--integrity", integrity]);
                command.args(LEAST_KDF).arg("--key-file").arg(work.key_file());
                program::output(&mut command).map(drop)
            }
            Mountable::Gocryptfs => {
                let mut command = Command::new("gocryptfs");
                command
                    .args(["-init", "-q", "-scryptn", "10", "-passfile"])
                    .arg(work.key_file())
                    .arg(backing);
                program::output(&mut command).map(drop)
            }
            // These two create their file system at the first mount.
            Mountable::Cryfs | Mountable::Encfs => Ok(()),
            Mountable::Plain => {
                let file = std::fs::File::create(&backing).and_then(|file| file.set_len(DISK));
                file.map_err(|e| Error::io(format!("cannot make {}", backing.display()), &e))?;
                program::output(Command::new("mkfs.ext4").arg("-q").arg(&backing)).map(drop)
            }
            Mountable::Sealed(cipher) => {
                let mut command = lacuna_command(work);
                command
                    .args(["create", "--cipher", cipher, "--size"])
                    .arg(DISK.to_string())
                    .args(LEAST_KDF)
                    .arg("--key-file")
                    .arg(work.key_file());
                program::output(command.arg(&backing)).map(drop)?;
                self.mount_with(work, &["--mkfs", "ext4"])?;
                self.unmount(work)
            }
        }
    }

    /// Mounts the file system.
    pub(crate) fn mount(self, work: &Workspace) -> Result<()> {
        self.mount_with(work, &[])
    }

    /// Mounts with additional arguments for `lacuna open`.
    fn mount_with(self, work: &Workspace, words: &[&str]) -> Result<()> {
        let (backing, mountpoint) = (self.backing(work), self.mountpoint(work));
        let mut command = match self {
            Mountable::Plain => {
                let mut command = Command::new("mount");
                command.args(["-o", "loop"]).arg(&backing).arg(&mountpoint);
                command
            }
            Mountable::Vault(_) | Mountable::Sealed(_) => {
                let mut command = lacuna_command(work);
                command.arg("open").arg(&backing).arg(&mountpoint).arg("--key-file").arg(work.key_file());
                command.args(words);
                command
            }
            Mountable::Gocryptfs => {
                let mut command = Command::new("gocryptfs");
                command.args(["-q", "-passfile"]).arg(work.key_file()).arg(&backing).arg(&mountpoint);
                command
            }
            Mountable::Cryfs => {
                let mut command = Command::new("cryfs");
                command.env("CRYFS_FRONTEND", "noninteractive").env("CRYFS_NO_UPDATE_CHECK", "true");
                // cryfs remembers the file system at each path and refuses another one there.
                command.env("CRYFS_LOCAL_STATE_DIR", work.path(CRYFS_STATE));
                command.arg(&backing).arg(&mountpoint);
                command
            }
            Mountable::Encfs => {
                let mut command = Command::new("encfs");
                command.args(["--standard", "--stdinpass"]).arg(&backing).arg(&mountpoint);
                command
            }
        };
        with_passphrase(&mut command, work).map_err(|e| e.context(self.name()))?;
        wait_until(|| is_mounted(&mountpoint), &format!("{} is not mounted", self.name()))
    }

    /// Unmounts it and waits until its process has released the directory.
    pub(crate) fn unmount(self, work: &Workspace) -> Result<()> {
        let mountpoint = self.mountpoint(work);
        match self {
            Mountable::Vault(_) | Mountable::Sealed(_) => {
                program::output(lacuna_command(work).arg("close").arg(&mountpoint)).map(drop)?;
            }
            Mountable::Plain => program::output(Command::new("umount").arg(&mountpoint)).map(drop)?,
            _ => {
                program::output(Command::new("fusermount3").arg("-u").arg(&mountpoint)).map(drop)?;
            }
        }
        wait_until(|| !is_mounted(&mountpoint), &format!("{} is still mounted", self.name()))?;
        // The peers' daemons end some time after the unmount.
        wait_until(|| server_of(&mountpoint).is_none(), &format!("{} is still running", self.name()))
    }

    /// The process that serves the mount.
    pub(crate) fn server(self, work: &Workspace) -> Result<u32> {
        server_of(&self.mountpoint(work))
            .ok_or_else(|| Error::new(Kind::NotFound, format!("no process serves {}", self.name())))
    }

    /// Removes the file system and the mountpoint.
    pub(crate) fn remove(self, work: &Workspace) -> Result<()> {
        let (backing, remembered) = (self.backing(work), work.path(CRYFS_STATE));
        if self == Mountable::Cryfs {
            std::fs::remove_dir_all(&remembered)
                .map_err(|e| Error::io(format!("cannot remove {}", remembered.display()), &e))?;
        }
        let removed =
            if backing.is_dir() { std::fs::remove_dir_all(&backing) } else { std::fs::remove_file(&backing) };
        removed
            .and_then(|()| std::fs::remove_dir(self.mountpoint(work)))
            .map_err(|e| Error::io(format!("cannot remove the files of {}", self.name()), &e))
    }
}

/// A quiet `lacuna` that keeps its anchors in the directory of the run.
fn lacuna_command(work: &Workspace) -> Command {
    let mut command = Command::new(&work.lacuna);
    command.arg("--quiet").env("XDG_STATE_HOME", work.path("state"));
    command
}

/// Runs a command with the passphrase on standard input, for programs that read it.
fn with_passphrase(command: &mut Command, work: &Workspace) -> Result<()> {
    let failed = |e| Error::io("cannot give a passphrase to a program", &e);
    let key = std::fs::File::open(work.key_file()).map_err(failed)?;
    let name = command.get_program().to_string_lossy().into_owned();
    // A daemon keeps its standard error open, so it must not be a pipe that is read to its end.
    let said = work.path("said");
    let log = std::fs::File::create(&said).map_err(failed)?;
    let status = command.stdin(key).stdout(Stdio::null()).stderr(log).status();
    let status = status.map_err(|e| Error::io(format!("cannot run {name}"), &e).hint("install it"))?;
    if status.success() {
        return Ok(());
    }
    let said = std::fs::read_to_string(&said).unwrap_or_default();
    Err(Error::new(Kind::Other, format!("{name} failed")).found(format!("{status}: {}", said.trim())))
}

/// Whether a file system is mounted there.
fn is_mounted(mountpoint: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mountpoint = mountpoint.to_string_lossy();
    table.lines().any(|line| line.split(' ').nth(1) == Some(&*mountpoint))
}

/// Programs that unmount, and may still run when another server mounts there.
const UNMOUNTING: [&str; 3] = ["umount", "fusermount", "fusermount3"];

/// The process that serves the mountpoint, which is one of its arguments.
fn server_of(mountpoint: &Path) -> Option<u32> {
    let wanted = mountpoint.to_string_lossy().into_owned();
    let processes = std::fs::read_dir("/proc").ok()?;
    processes.flatten().find_map(|process| {
        let line = std::fs::read(process.path().join("cmdline")).ok()?;
        let name = std::fs::read_to_string(process.path().join("comm")).ok()?;
        if UNMOUNTING.contains(&name.trim()) {
            return None;
        }
        let has = line.split(|byte| *byte == 0).any(|word| word == wanted.as_bytes());
        if has { process.file_name().to_str()?.parse().ok() } else { None }
    })
}

/// Waits until `done` returns true. Errors: [`Kind::TimedOut`].
pub(crate) fn wait_until(done: impl Fn() -> bool, what: &str) -> Result<()> {
    let begin = Instant::now();
    while !done() {
        if begin.elapsed() > MOUNT_TIMEOUT {
            return Err(
                Error::new(Kind::TimedOut, what).expected(format!("within {} s", MOUNT_TIMEOUT.as_secs()))
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
