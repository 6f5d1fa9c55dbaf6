//! Memory of a mounted vault with a million files, and of one with a sparse file of 1 TiB; and the
//! time to open each after its process was killed.

use crate::memory::{ResidentMemory, resident};
use crate::mounted::mountable::{Mountable, wait_until};
use crate::pages::requirement::{Bound, Requirement};
use crate::pages::table::Table;
use crate::workspace::Workspace;
use lacuna_contracts::{Error, Result};
use lacuna_sim::Rng;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

const VAULT: Mountable = Mountable::Vault("auto");
const FILES_PER_DIRECTORY: u64 = 1000;
const SPARSE: u64 = 1 << 40;
const LIMIT_MIB: f64 = 96.0;
const MAX_OPEN_SECONDS: f64 = 1.0;

/// The results of one of the two vaults.
struct LargeVaultRow {
    name: String,
    work: f64,
    memory: ResidentMemory,
    opened: f64,
    /// Memory after reopening and some use.
    reopened_memory: ResidentMemory,
}

/// The results of both vaults.
pub(crate) struct LargeVaults(Vec<LargeVaultRow>);

/// Measures with `files` files, and with `blocks` blocks in the sparse file.
pub(crate) fn measure(work: &Workspace, files: u64, blocks: u64) -> Result<LargeVaults> {
    work.report_progress(&format!("vaults: {files} files"))?;
    let many = row(work, format!("{files} empty files"), |mountpoint| make_many(work, mountpoint, files))?;
    work.report_progress("vaults: a sparse file of 1 TiB")?;
    let name = format!("a file of 1 TiB with {blocks} blocks");
    let sparse = row(work, name, |mountpoint| make_sparse(work, mountpoint, blocks))?;
    Ok(LargeVaults(vec![many, sparse]))
}

fn row(work: &Workspace, name: String, act: impl Fn(&Path) -> Result<()>) -> Result<LargeVaultRow> {
    VAULT.create(work)?;
    VAULT.mount(work)?;
    let begin = Instant::now();
    let mountpoint = VAULT.mountpoint(work);
    let done = act(&mountpoint).and_then(|()| {
        let pid = VAULT.server(work)?;
        let (took, memory) = (begin.elapsed().as_secs_f64(), resident(pid)?);
        // Leave a write pending when the process dies.
        write_all(&mountpoint.join("last"))?;
        if let Some(pid) = Pid::from_raw(pid as i32) {
            kill_process(pid, Signal::KILL)
                .map_err(|e| Error::io("cannot kill the process of a vault", &e.into()))?;
        }
        // The mount is stale after the kernel has closed the files of the process, which takes a
        // moment.
        let stale = |e: std::io::Error| e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error());
        let is_stale = || std::fs::metadata(mountpoint.join("another")).is_err_and(stale);
        wait_until(is_stale, "a killed process still serves its mount")?;
        let begin = Instant::now();
        VAULT.mount(work)?;
        let opened = begin.elapsed().as_secs_f64();
        use_vault(&mountpoint)?;
        Ok(LargeVaultRow {
            name,
            work: took,
            memory,
            opened,
            reopened_memory: resident(VAULT.server(work)?)?,
        })
    });
    let unmounted = VAULT.unmount(work);
    let row = done?;
    unmounted?;
    VAULT.remove(work)?;
    work.write_back()?;
    Ok(row)
}

fn make_many(work: &Workspace, mountpoint: &Path, files: u64) -> Result<()> {
    for directory in 0..files.div_ceil(FILES_PER_DIRECTORY) {
        work.interrupt.check()?;
        let dir = mountpoint.join(format!("directory-{directory}"));
        std::fs::create_dir(&dir).map_err(|e| failed(&dir, &e))?;
        for file in 0..FILES_PER_DIRECTORY.min(files - directory * FILES_PER_DIRECTORY) {
            let path = dir.join(format!("file-{file}"));
            File::create_new(&path).map_err(|e| failed(&path, &e))?;
        }
    }
    sync(mountpoint)
}

fn make_sparse(work: &Workspace, mountpoint: &Path, blocks: u64) -> Result<()> {
    let path = mountpoint.join("sparse");
    let file = File::create_new(&path).map_err(|e| failed(&path, &e))?;
    file.set_len(SPARSE).map_err(|e| failed(&path, &e))?;
    let mut rng = Rng::new(3);
    for n in 0..blocks {
        if n.is_multiple_of(1000) {
            work.interrupt.check()?;
        }
        let at = rng.below(SPARSE / 4096) * 4096;
        file.write_all_at(&[n as u8; 4096], at).map_err(|e| failed(&path, &e))?;
    }
    file.sync_all().map_err(|e| failed(&path, &e))
}

/// Lists some directories, and reads random places of the sparse file.
fn use_vault(mountpoint: &Path) -> Result<()> {
    for n in 0..20 {
        let dir = mountpoint.join(format!("directory-{}", n * 40));
        if let Ok(entries) = std::fs::read_dir(dir) {
            entries.flatten().for_each(|entry| drop(entry.metadata()));
        }
    }
    if let Ok(sparse) = File::open(mountpoint.join("sparse")) {
        let mut rng = Rng::new(3);
        let mut buf = [0; 4096];
        for _ in 0..1000 {
            let at = rng.below(SPARSE / 4096) * 4096;
            sparse.read_exact_at(&mut buf, at).map_err(|e| failed(&mountpoint.join("sparse"), &e))?;
        }
    }
    Ok(())
}

fn write_all(path: &Path) -> Result<()> {
    std::fs::write(path, vec![7; 8 << 20]).map_err(|e| failed(path, &e))
}

fn sync(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| failed(dir, &e))
}

fn failed(path: &Path, e: &std::io::Error) -> Error {
    Error::io(format!("cannot measure with {}", path.display()), e)
}

impl LargeVaults {
    pub(crate) fn table(&self) -> Table {
        let head = [
            "vault with",
            "time to make it",
            "memory after that: peak, now",
            "opening after a kill",
            "memory after opening: peak, now",
        ];
        let mut table = Table::new("Large vaults", head);
        for row in &self.0 {
            let mib = |memory: &ResidentMemory| format!("{:.0}, {:.0} MiB", memory.peak, memory.current);
            let cells = [
                format!("{:.1} s", row.work),
                mib(&row.memory),
                format!("{:.2} s", row.opened),
                mib(&row.reopened_memory),
            ];
            table.row(row.name.clone(), cells);
        }
        table
    }

    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        let mut memory = Requirement::new("memory of a large vault, peak", Bound::AtMost(LIMIT_MIB), "MiB");
        let mut opening =
            Requirement::new("opening a large vault after a kill", Bound::AtMost(MAX_OPEN_SECONDS), "s");
        for row in &self.0 {
            memory.add(&row.name, Some(row.memory.peak.max(row.reopened_memory.peak)));
            opening.add(&row.name, Some(row.opened));
        }
        vec![memory, opening]
    }
}
