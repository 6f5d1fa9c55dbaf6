//! Section 12: vaults beside `gocryptfs`, `cryfs`, `encfs` and ext4 in a `sealed` disk, on the same file system.

use crate::file_jobs::{FileJob, Load, Rates};
use crate::mountable::Mountable;
use crate::page::{History, Run};
use crate::requirement::{self, Bound, Requirement};
use crate::table::{Table, figure, head};
use crate::vault_large::{self, Large};
use crate::vault_schemes::{self, Schemes};
use crate::vault_tree;
use crate::workspace::Workspace;
use lacuna_core::Result;
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
    [OURS, Mountable::Gocryptfs, Mountable::Cryfs, Mountable::Encfs, Mountable::Sealed("gcm")];

/// All of them in the order in which they are done, with the ratio wanted to the best peer.
const JOBS: [(FileJob, f64); 8] = [
    (FileJob::Write, 1.5),
    (FileJob::Read, 1.0),
    (FileJob::RandomWrite, 1.5),
    (FileJob::SyncedWrite, 1.0),
    (FileJob::Unpack, 2.0),
    (FileJob::GitStatus, 1.0),
    (FileJob::GitFsck, 1.0),
    (FileJob::Remove, 2.0),
];

/// The figures.
pub(crate) struct Vaults {
    rates: Rates,
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
    let mut vaults = Vaults { rates: Rates::default(), load, schemes, large, skipped: Vec::new() };
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
            let how = (load, archive.as_path(), u64::from(repeat) + 1);
            vaults.rates.turn(work, *subject, &JOBS.map(|(job, _)| job), how)?;
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
    fn best_peer(&self, job: FileJob) -> Option<f64> {
        PEERS.into_iter().filter_map(|peer| self.rates.median(peer, job)).max_by(f64::total_cmp)
    }

    fn ratio(&self, job: FileJob) -> Option<f64> {
        Some(self.rates.median(OURS, job)? / self.best_peer(job)?)
    }

    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut table = Table::new(
            "Vaults beside other encrypting file systems",
            head("job", SUBJECTS.map(Mountable::name)),
        );
        for (job, _) in JOBS {
            table.row(job.name(), SUBJECTS.map(|subject| self.rates.cell(subject, job, self.load.files)));
        }
        let mut tables = vec![table];
        tables.extend(self.schemes.tables());
        tables.push(self.large.table());
        tables
    }

    /// The promises about peers.
    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        let promise = |(job, least): (FileJob, f64)| {
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
