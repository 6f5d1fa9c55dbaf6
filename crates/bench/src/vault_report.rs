//! Section 12: vaults beside `gocryptfs`, `cryfs`, `encfs` and ext4 in a `sealed` disk, on the same file system.

use crate::grid::Samples;
use crate::page::{History, Run};
use crate::requirement::{self, Bound, Requirement};
use crate::table::{Table, figure, head};
use crate::vault_jobs::{self, JOBS, Load, VaultJob};
use crate::vault_large::{self, Large};
use crate::vault_schemes::{self, Schemes};
use crate::vault_subject::Mountable;
use crate::vault_tree;
use crate::workspace::Workspace;
use lacuna_core::Result;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

const HISTORY: History = History {
    heading: "### History of vaults",
    about: "Ratios of a vault with its defaults to the best of gocryptfs, cryfs and encfs: sequential writes and reads, random writes without and with fsync, unpacking, git status, git fsck, removing",
    head: &["date", "lacuna", "ratios", "reached"],
};
/// A subject whose turn takes longer has no second one.
const LONG: Duration = Duration::from_secs(150);
const OURS: Mountable = Mountable::Vault("auto");
const PEERS: [Mountable; 3] = [Mountable::Gocryptfs, Mountable::Cryfs, Mountable::Encfs];
/// In the order of their turns.
const SUBJECTS: [Mountable; 5] =
    [OURS, Mountable::Gocryptfs, Mountable::Cryfs, Mountable::Encfs, Mountable::Sealed];

/// The figures.
pub(crate) struct Vaults {
    rates: HashMap<(Mountable, VaultJob), Samples>,
    load: Load,
    schemes: Schemes,
    large: Large,
    /// Who could not take part, or not in every repeat, and why.
    pub skipped: Vec<String>,
}

/// Measures.
pub(crate) fn measure(work: &Workspace) -> Result<Vaults> {
    let load = if work.scale.quick {
        Load { file: 4 << 20, writes: 100, synced: 10, files: 60 }
    } else {
        Load { file: 1 << 30, writes: 20_000, synced: 1000, files: 20_000 }
    };
    work.spread();
    work.goes_on("vaults: making a tree of small files")?;
    let archive = vault_tree::archive(work, load.files)?;
    let (size, requests, files, blocks) =
        if work.scale.quick { (8 << 20, 100, 2000, 100) } else { (512 << 20, 20_000, 1_000_000, 100_000) };
    let schemes = vault_schemes::measure(work, size, requests)?;
    let large = vault_large::measure(work, files, blocks)?;
    let mut vaults = Vaults { rates: HashMap::new(), load, schemes, large, skipped: Vec::new() };
    let (mut subjects, mut once) = (Vec::new(), Vec::new());
    for subject in SUBJECTS {
        match subject.missing() {
            Some(why) => {
                work.goes_on(&why)?;
                vaults.skipped.push(why);
            }
            None => subjects.push(subject),
        }
    }
    for repeat in 0..work.scale.repeats {
        for subject in &subjects {
            let name = subject.name();
            work.goes_on(&format!("vaults: repeat {} of {}, {name}", repeat + 1, work.scale.repeats))?;
            let begin = Instant::now();
            vaults.turn(work, *subject, &archive, u64::from(repeat) + 1)?;
            if begin.elapsed() > LONG && work.scale.repeats > 1 {
                vaults
                    .skipped
                    .push(format!("{name} has one turn alone, which took {} s.", begin.elapsed().as_secs()));
                once.push(*subject);
            }
        }
        subjects.retain(|subject| !once.contains(subject));
        // Nobody always has the place behind the same neighbour.
        subjects.reverse();
    }
    Ok(vaults)
}

impl Vaults {
    /// All jobs on one new file system.
    fn turn(&mut self, work: &Workspace, subject: Mountable, archive: &Path, seed: u64) -> Result<()> {
        subject.create(work)?;
        subject.mount(work)?;
        let done = self.jobs(work, subject, archive, seed);
        // What was mounted is unmounted, whatever happened.
        let unmounted = subject.unmount(work);
        done.and(unmounted).map_err(|e| e.context(subject.name()))?;
        subject.remove(work)?;
        work.settle()
    }

    fn jobs(&mut self, work: &Workspace, subject: Mountable, archive: &Path, seed: u64) -> Result<()> {
        for (job, _) in JOBS {
            work.interrupt.check()?;
            if job.is_cold() {
                subject.unmount(work)?;
                work.settle()?;
                work.forget_pages()?;
                subject.mount(work)?;
            }
            let rate = vault_jobs::run(job, &subject.mountpoint(work), self.load, archive, seed)?;
            self.rates.entry((subject, job)).or_default().push(rate);
            work.settle()?;
        }
        Ok(())
    }

    fn median(&self, subject: Mountable, job: VaultJob) -> Option<f64> {
        self.rates.get(&(subject, job)).map(Samples::median)
    }

    fn best_peer(&self, job: VaultJob) -> Option<f64> {
        PEERS.into_iter().filter_map(|peer| self.median(peer, job)).max_by(f64::total_cmp)
    }

    fn ratio(&self, job: VaultJob) -> Option<f64> {
        Some(self.median(OURS, job)? / self.best_peer(job)?)
    }

    fn cell(&self, subject: Mountable, job: VaultJob) -> String {
        let Some(samples) = self.rates.get(&(subject, job)) else { return "-".into() };
        let median = samples.median();
        let speed = if job.in_bytes() {
            format!("{:.1} MB/s", median / 1e6)
        } else {
            format!("{:.2} s", self.load.files as f64 / median)
        };
        format!("{speed} ({:.0}%)", samples.spread())
    }

    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut table = Table::new(
            "Vaults beside other encrypting file systems",
            head("job", SUBJECTS.map(Mountable::name)),
        );
        for (job, _) in JOBS {
            table.row(job.name(), SUBJECTS.map(|subject| self.cell(subject, job)));
        }
        let mut tables = vec![table];
        tables.extend(self.schemes.tables());
        tables.push(self.large.table());
        tables
    }

    /// The promises about peers.
    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        let promise = |(job, least): (VaultJob, f64)| {
            let line = format!("vault to the best of the others: {}", job.name());
            Requirement::new(line, Bound::AtLeast(least), "").case("", self.ratio(job))
        };
        let beside = JOBS.into_iter().map(promise);
        beside.chain(self.schemes.requirements()).chain(self.large.requirements()).collect()
    }

    /// The part of the page, to stand in the place of an old one.
    pub(crate) fn part(&self, run: &Run, old: &str) -> String {
        let requirements = self.requirements();
        let mut parts = requirement::opening(&format!("Vaults: run of {}", run.date), &requirements);
        parts.extend(self.tables().iter().map(Table::markdown));
        parts.extend(self.skipped.iter().map(|why| format!("{why}\n")));
        parts.push(self.method(run.scale.repeats));
        let ratios = JOBS.map(|(job, _)| figure(self.ratio(job), 2)).join(", ");
        let figures = [ratios, requirement::tally(&requirements)];
        parts.push(HISTORY.and(old, &[&run.short_cells()[..], &figures].concat()));
        parts.join("\n")
    }

    fn method(&self, repeats: u32) -> String {
        let Load { file, writes, synced, files } = self.load;
        format!(
            "### Method of vaults\n\n\
            Every file system lies in a directory of the same disk and is made anew for each of {repeats} repeats; the \
            figures are medians, with the spread from the least to the greatest. The peers have their defaults (the key \
            derivation aside, which is short for all). The file has {} MiB, half text and half random; {writes} random \
            writes, {synced} with an fsync each. The tree is a `git` repository of {files} files of 128 bytes to 60 kB. \
            On ext4 their directories are spread over the disk (`chattr +T`), so that nobody pays for files that the one before \
            removed. Before a cold job the file system is unmounted and the kernel's caches are emptied. A vault checks every \
            block for freshness; of the others only `cryfs` notices an older block of a file, and none has a trusted \
            place that notices an older whole.\n",
            file >> 20
        )
    }
}
