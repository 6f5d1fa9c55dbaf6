//! The jobs on mounted file systems: large and small requests to one file, and a tree of small
//! files.

use crate::measuring::machine_time;
use crate::measuring::samples::Samples;
use crate::mounted::mountable::Mountable;
use crate::program;
use crate::serving::scale::Scale;
use crate::vaults::tree::git;
use crate::workspace::Workspace;
use lacuna_contracts::{Error, Result};
use lacuna_sim::Rng;
use rustix::fs::{CWD, Mode, OFlags};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const LARGE: usize = 1 << 20;
const SMALL: usize = 4096;
/// Threads of random reads.
const READERS: u64 = 4;

/// A measured job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileJob {
    /// Writes a new file in requests of 1 MiB, with an fsync at the end.
    Write,
    /// Reads the same file after a remount with empty caches.
    Read,
    /// Writes 4 KiB at random places of the file, with an fsync at the end.
    RandomWrite,
    /// Reads 4 KiB at random places of the file in several threads, after a remount with empty
    /// caches.
    RandomRead,
    /// Random writes with an fsync after each.
    SyncedWrite,
    /// Unpacks an archive of small files, until it is durable.
    Unpack,
    /// `git status` in the tree, after a remount with empty caches.
    GitStatus,
    /// `git fsck` in the tree.
    GitFsck,
    /// Removes the tree, until that is durable.
    Remove,
}

impl FileJob {
    /// The name for display.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FileJob::Write => "sequential 1 MiB write, fsync at the end",
            FileJob::Read => "sequential 1 MiB read, cold",
            FileJob::RandomWrite => "random 4 KiB write, fsync at the end",
            FileJob::RandomRead => "random 4 KiB read, cold, 4 threads",
            FileJob::SyncedWrite => "random 4 KiB write, fsync each",
            FileJob::Unpack => "unpack a tree",
            FileJob::GitStatus => "git status, cold",
            FileJob::GitFsck => "git fsck",
            FileJob::Remove => "remove the tree",
        }
    }

    /// Whether the file system is remounted with empty caches before the job.
    pub(crate) fn is_cold(self) -> bool {
        matches!(self, FileJob::Read | FileJob::RandomRead | FileJob::GitStatus)
    }

    /// Whether its figure is in megabytes per second; otherwise it is in files per second.
    pub(crate) fn in_bytes(self) -> bool {
        !matches!(self, FileJob::Unpack | FileJob::GitStatus | FileJob::GitFsck | FileJob::Remove)
    }
}

/// The amounts of the jobs.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// Bytes of the file.
    pub file: u64,
    /// Random writes, and random reads of each thread.
    pub writes: u32,
    /// Random writes with an fsync after each.
    pub synced: u32,
    /// Files of the tree.
    pub files: u64,
}

/// The inputs of the jobs of a turn.
#[derive(Clone, Copy)]
pub(crate) struct Workload<'p> {
    pub(crate) load: Load,
    /// The archive that is unpacked.
    pub(crate) archive: &'p Path,
    /// Seed of the contents of files and the places of requests.
    pub(crate) seed: u64,
}

impl Load {
    /// The load of every mounted file system at this scale.
    pub(crate) fn of(scale: Scale) -> Load {
        if scale.quick {
            Load { file: 4 << 20, writes: 100, synced: 10, files: 60 }
        } else {
            Load { file: 128 << 20, writes: 5000, synced: 500, files: 2500 }
        }
    }
}

/// The results of one subject in one job.
#[derive(Default)]
struct JobResult {
    /// Bytes or files per second.
    rates: Samples,
    /// Seconds of processor time of the machine.
    processor: Samples,
}

/// The results of all subjects in all jobs.
#[derive(Default)]
pub(crate) struct MountRates(HashMap<(Mountable, FileJob), JobResult>);

impl MountRates {
    /// One round of a subject: all jobs on a new file system.
    pub(crate) fn turn(
        &mut self,
        work: &Workspace,
        subject: Mountable,
        jobs: &[FileJob],
        workload: Workload<'_>,
    ) -> Result<()> {
        subject.create(work)?;
        subject.mount(work)?;
        let done = jobs.iter().try_for_each(|job| {
            work.interrupt.check()?;
            if job.is_cold() {
                subject.unmount(work)?;
                work.write_back()?;
                work.drop_caches()?;
                subject.mount(work)?;
            }
            let before = machine_time::used()?;
            let rate = run(*job, &subject.mountpoint(work), workload)?;
            // Write-back after the job counts for the job.
            work.write_back()?;
            let reached = self.0.entry((subject, *job)).or_default();
            reached.rates.push(rate);
            reached.processor.push(machine_time::used()?.saturating_sub(before).as_secs_f64());
            Ok(())
        });
        // Unmount even after an error.
        let unmounted = subject.unmount(work);
        done.and(unmounted).map_err(|e| e.context(subject.name()))?;
        subject.remove(work)?;
        work.write_back()
    }

    fn ratios(&self, subject: Mountable, to: Mountable, job: FileJob) -> Option<Samples> {
        self.0.get(&(subject, job))?.rates.ratios(&self.0.get(&(to, job))?.rates)
    }

    /// The median of the ratios of the rounds.
    pub(crate) fn ratio(&self, subject: Mountable, to: Mountable, job: FileJob) -> Option<f64> {
        Some(self.ratios(subject, to, job)?.median())
    }

    /// The median ratio as a table cell, with a mark if it varies too much.
    pub(crate) fn ratio_cell(&self, subject: Mountable, to: Mountable, job: FileJob) -> String {
        let ratios = self.ratios(subject, to, job);
        ratios.map_or_else(|| "-".into(), |ratios| format!("{:.2}{}", ratios.median(), ratios.mark()))
    }

    /// The ratio of the machine's processor times for two subjects, each the lower quartile of the
    /// rounds.
    pub(crate) fn processor_ratio(&self, subject: Mountable, to: Mountable, job: FileJob) -> Option<f64> {
        let time = |subject| self.0.get(&(subject, job)).map(|reached| reached.processor.lower_quartile());
        Some(time(subject)? / time(to)?)
    }

    /// The subject that takes the least processor time of the machine.
    pub(crate) fn lowest_processor(&self, subjects: &[Mountable], job: FileJob) -> Option<Mountable> {
        let time = |subject: &Mountable| {
            self.0.get(&(*subject, job)).map(|reached| reached.processor.lower_quartile())
        };
        let timed = subjects.iter().filter_map(|subject| Some((*subject, time(subject)?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(subject, _)| subject)
    }

    /// A table cell: the speed and the seconds of processor time.
    pub(crate) fn speed_and_processor_cell(&self, subject: Mountable, job: FileJob, files: u64) -> String {
        format!("{} / {}", self.cell(subject, job, files), self.processor_cell(subject, job))
    }

    /// A table cell: the seconds of processor time.
    pub(crate) fn processor_cell(&self, subject: Mountable, job: FileJob) -> String {
        let seconds = self.0.get(&(subject, job)).map(|reached| reached.processor.lower_quartile());
        seconds.map_or_else(|| "-".into(), |seconds| format!("{seconds:.2} s"))
    }

    /// A table cell: MB/s, or the seconds for a tree of `files` files.
    pub(crate) fn cell(&self, subject: Mountable, job: FileJob, files: u64) -> String {
        let Some(reached) = self.0.get(&(subject, job)) else { return "-".into() };
        let (median, mark) = (reached.rates.median(), reached.rates.mark());
        if job.in_bytes() {
            format!("{:.1} MB/s{mark}", median / 1e6)
        } else {
            format!("{:.2} s{mark}", files as f64 / median)
        }
    }
}

/// Executes a job below a mountpoint. Returns its rate, in bytes or files per second.
fn run(job: FileJob, mountpoint: &Path, Workload { load, archive, seed }: Workload<'_>) -> Result<f64> {
    let (file, tree) = (mountpoint.join("file"), mountpoint.join("tree"));
    let failed = |e| Error::io(format!("{} in {}", job.name(), mountpoint.display()), &e);
    let start = Instant::now();
    let amount = match job {
        FileJob::Write => write(&file, load.file, seed).map_err(failed)?,
        FileJob::Read => read(&file).map_err(failed)?,
        FileJob::RandomWrite => write_random(&file, load.writes, false, seed).map_err(failed)?,
        FileJob::RandomRead => read_random(&file, load.writes, seed).map_err(failed)?,
        FileJob::SyncedWrite => write_random(&file, load.synced, true, seed).map_err(failed)?,
        FileJob::Unpack => {
            std::fs::create_dir(&tree).map_err(failed)?;
            program::output(Command::new("tar").arg("-C").arg(&tree).arg("-xf").arg(archive))?;
            sync(&tree).map_err(failed)?;
            load.files
        }
        FileJob::GitStatus => {
            git(&tree, &["status", "--porcelain"])?;
            load.files
        }
        FileJob::GitFsck => {
            git(&tree, &["fsck", "--no-progress"])?;
            load.files
        }
        FileJob::Remove => {
            std::fs::remove_dir_all(&tree).map_err(failed)?;
            sync(mountpoint).map_err(failed)?;
            std::fs::remove_file(&file).map_err(failed)?;
            load.files
        }
    };
    Ok(amount as f64 / start.elapsed().as_secs_f64())
}

/// One MiB with text in every other 64 KiB and random bytes in the rest.
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

fn write_random(path: &PathBuf, writes: u32, synced: bool, seed: u64) -> std::io::Result<u64> {
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

/// Random reads, `reads` by each thread.
fn read_random(path: &PathBuf, reads: u32, seed: u64) -> std::io::Result<u64> {
    let file = File::open(path)?;
    let blocks = file.metadata()?.len() / SMALL as u64;
    let read = |thread: u64| {
        let mut rng = Rng::new(seed * READERS + thread);
        let mut bytes = [0; SMALL];
        (0..reads).try_for_each(|_| file.read_exact_at(&mut bytes, rng.below(blocks) * SMALL as u64))
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|thread| scope.spawn(move || read(thread))).collect();
        readers
            .into_iter()
            .try_for_each(|reader| reader.join().unwrap_or(Err(std::io::ErrorKind::Other.into())))
    })?;
    Ok(READERS * u64::from(reads) * SMALL as u64)
}

fn sync(path: &Path) -> std::io::Result<()> {
    let dir = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    // Some file systems over FUSE do not receive a syncfs; all receive an fsync of a directory.
    rustix::fs::fsync(&dir)?;
    Ok(rustix::fs::syncfs(&dir)?)
}
