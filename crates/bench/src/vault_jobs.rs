//! The jobs of section 12 on a mounted file system: large and small requests to one file, and a tree of small files.

use crate::program;
use crate::vault_tree::git;
use lacuna_core::{Error, Result};
use lacuna_sim::Rng;
use rustix::fs::{CWD, Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const LARGE: usize = 1 << 20;
const SMALL: usize = 4096;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum VaultJob {
    /// A new file in requests of 1 MiB, with an fsync at its end.
    Write,
    /// The same file, after unmounting and mounting, with empty caches.
    Read,
    /// 4 KiB at random places of the file, with an fsync at the end.
    RandomWrite,
    /// The same with an fsync after each.
    SyncedWrite,
    /// An archive of small files unpacked, until it is durable.
    Unpack,
    /// `git status` in it, after unmounting and mounting, with empty caches.
    GitStatus,
    /// `git fsck` in it.
    GitFsck,
    /// All of it removed, until that is durable.
    Remove,
}

/// All of them in the order in which they are done, with the ratio wanted to the best peer.
pub(crate) const JOBS: [(VaultJob, f64); 8] = [
    (VaultJob::Write, 1.5),
    (VaultJob::Read, 1.0),
    (VaultJob::RandomWrite, 1.5),
    (VaultJob::SyncedWrite, 1.0),
    (VaultJob::Unpack, 2.0),
    (VaultJob::GitStatus, 1.0),
    (VaultJob::GitFsck, 1.0),
    (VaultJob::Remove, 2.0),
];

impl VaultJob {
    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            VaultJob::Write => "sequential 1 MiB write, fsync at the end",
            VaultJob::Read => "sequential 1 MiB read, cold",
            VaultJob::RandomWrite => "random 4 KiB write, fsync at the end",
            VaultJob::SyncedWrite => "random 4 KiB write, fsync each",
            VaultJob::Unpack => "unpack a tree",
            VaultJob::GitStatus => "git status, cold",
            VaultJob::GitFsck => "git fsck",
            VaultJob::Remove => "remove the tree",
        }
    }

    /// Whether the file system is unmounted and caches are emptied before.
    pub(crate) fn is_cold(self) -> bool {
        matches!(self, VaultJob::Read | VaultJob::GitStatus)
    }

    /// Whether its figure is in megabytes per second; otherwise it is in files per second.
    pub(crate) fn in_bytes(self) -> bool {
        matches!(self, VaultJob::Write | VaultJob::Read | VaultJob::RandomWrite | VaultJob::SyncedWrite)
    }
}

/// How much each job does.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// Bytes of the file.
    pub file: u64,
    /// Random writes.
    pub writes: u32,
    /// Random writes with an fsync each.
    pub synced: u32,
    /// Files of the tree.
    pub files: u64,
}

/// Does a job below a mountpoint: its rate, in bytes or files per second.
pub(crate) fn run(job: VaultJob, mountpoint: &Path, load: Load, archive: &Path, seed: u64) -> Result<f64> {
    let (file, tree) = (mountpoint.join("file"), mountpoint.join("tree"));
    let failed = |e| Error::io(format!("{} in {}", job.name(), mountpoint.display()), &e);
    let start = Instant::now();
    let amount = match job {
        VaultJob::Write => write(&file, load.file, seed).map_err(failed)?,
        VaultJob::Read => read(&file).map_err(failed)?,
        VaultJob::RandomWrite => scatter(&file, load.writes, false, seed).map_err(failed)?,
        VaultJob::SyncedWrite => scatter(&file, load.synced, true, seed).map_err(failed)?,
        VaultJob::Unpack => {
            std::fs::create_dir(&tree).map_err(failed)?;
            program::output(Command::new("tar").arg("-C").arg(&tree).arg("-xf").arg(archive))?;
            sync(&tree).map_err(failed)?;
            load.files
        }
        VaultJob::GitStatus => {
            git(&tree, &["status", "--porcelain"])?;
            load.files
        }
        VaultJob::GitFsck => {
            git(&tree, &["fsck", "--no-progress"])?;
            load.files
        }
        VaultJob::Remove => {
            std::fs::remove_dir_all(&tree).map_err(failed)?;
            sync(mountpoint).map_err(failed)?;
            std::fs::remove_file(&file).map_err(failed)?;
            load.files
        }
    };
    Ok(amount as f64 / start.elapsed().as_secs_f64())
}

/// One MiB of which every other 64 KiB are text, the rest random.
fn content(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = rng.bytes(LARGE);
    for text in bytes.chunks_mut(64 << 10).step_by(2) {
        text.iter_mut().for_each(|byte| *byte = b'a' + *byte % 16);
    }
    bytes
}

fn write(path: &PathBuf, size: u64, seed: u64) -> std::io::Result<u64> {
    let bytes = content(seed);
    let file = File::create(path)?;
    for at in (0..size).step_by(LARGE) {
        file.write_all_at(&bytes, at)?;
    }
    file.sync_all()?;
    Ok(size)
}

fn read(path: &PathBuf) -> std::io::Result<u64> {
    let mut bytes = vec![0; LARGE];
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    for at in (0..size).step_by(LARGE) {
        file.read_exact_at(&mut bytes, at)?;
    }
    Ok(size)
}

fn scatter(path: &PathBuf, writes: u32, synced: bool, seed: u64) -> std::io::Result<u64> {
    let bytes = content(seed);
    let mut rng = Rng::new(seed);
    let file = File::options().write(true).open(path)?;
    let blocks = file.metadata()?.len() / SMALL as u64;
    for _ in 0..writes {
        let from = rng.below((LARGE / SMALL) as u64) as usize * SMALL;
        file.write_all_at(&bytes[from..from + SMALL], rng.below(blocks) * SMALL as u64)?;
        if synced {
            file.sync_data()?;
        }
    }
    file.sync_all()?;
    Ok(u64::from(writes) * SMALL as u64)
}

fn sync(path: &Path) -> std::io::Result<()> {
    let dir = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    // Not every file system over FUSE is told of a syncfs; all are told of an fsync of a directory.
    rustix::fs::fsync(&dir)?;
    Ok(rustix::fs::syncfs(&dir)?)
}
