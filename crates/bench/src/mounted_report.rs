//! Section 15: ext4 in a `sealed` disk through `lacuna open`, beside ext4 on a plain loop device and `gocryptfs`, on the same
//! file system.

use crate::file_jobs::{FileJob, Load, Rates};
use crate::mountable::Mountable;
use crate::page::{History, Run};
use crate::requirement::{self, Bound, Requirement};
use crate::table::{Table, figure, head};
use crate::vault_tree;
use crate::workspace::Workspace;
use lacuna_core::Result;

const HISTORY: History = History {
    heading: "### History of mounted disks",
    about: "The worst ratios over all jobs of ext4 through `lacuna open` to ext4 on a plain loop device and to gocryptfs, \
    of xts-random and gcm",
    head: &["date", "lacuna", "xts-random", "gcm", "reached"],
};
const OURS: [Mountable; 2] = [Mountable::Sealed("xts-random"), Mountable::Sealed("gcm")];
/// In the order of their turns.
const SUBJECTS: [Mountable; 4] = [OURS[0], Mountable::Plain, OURS[1], Mountable::Gocryptfs];
/// Those that ours are compared with, and the ratio wanted.
const PEERS: [(Mountable, f64); 2] = [(Mountable::Plain, 0.85), (Mountable::Gocryptfs, 1.0)];
/// In the order in which they are done.
const JOBS: [FileJob; 7] = [
    FileJob::Write,
    FileJob::Read,
    FileJob::RandomWrite,
    FileJob::RandomRead,
    FileJob::SyncedWrite,
    FileJob::Unpack,
    FileJob::Remove,
];

/// The figures.
pub(crate) struct OnMounts {
    rates: Rates,
    load: Load,
    /// Who could not take part, and why.
    pub skipped: Vec<String>,
}

/// Measures.
pub(crate) fn measure(work: &Workspace) -> Result<OnMounts> {
    let load = if work.scale.quick {
        Load { file: 4 << 20, writes: 100, synced: 10, files: 60 }
    } else {
        Load { file: 1 << 30, writes: 20_000, synced: 2000, files: 20_000 }
    };
    work.spread();
    work.goes_on("mounted disks: making a tree of small files")?;
    let archive = vault_tree::archive(work, load.files)?;
    let mut mounts = OnMounts { rates: Rates::default(), load, skipped: Vec::new() };
    mounts.skipped.extend(SUBJECTS.iter().filter_map(|subject| subject.missing()));
    let mut subjects: Vec<_> = SUBJECTS.into_iter().filter(|subject| subject.missing().is_none()).collect();
    for repeat in 0..work.scale.repeats {
        for subject in &subjects {
            let name = subject.name();
            work.goes_on(&format!("mounted disks: repeat {} of {}, {name}", repeat + 1, work.scale.repeats))?;
            mounts.rates.turn(work, *subject, &JOBS, (load, archive.as_path(), u64::from(repeat) + 1))?;
        }
        // Nobody always has the place behind the same neighbour.
        subjects.reverse();
    }
    Ok(mounts)
}

impl OnMounts {
    /// The least ratio over all jobs.
    fn worst(&self, ours: Mountable, to: Mountable) -> Option<f64> {
        JOBS.into_iter().filter_map(|job| self.rates.ratio(ours, to, job)).min_by(f64::total_cmp)
    }

    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut speeds = Table::new(
            "ext4 in a disk beside ext4 on a loop device and gocryptfs",
            head("job", SUBJECTS.map(Mountable::name)),
        );
        let pairs = PEERS.into_iter().flat_map(|(to, _)| OURS.map(|ours| (ours, to)));
        let names = pairs.clone().map(|(ours, to)| format!("{} to {}", ours.name(), to.name()));
        let mut ratios = Table::new("Ratios of mounted disks", head("job", names));
        for job in JOBS {
            speeds.row(job.name(), SUBJECTS.map(|subject| self.rates.cell(subject, job, self.load.files)));
            ratios
                .row(job.name(), pairs.clone().map(|(ours, to)| figure(self.rates.ratio(ours, to, job), 2)));
        }
        vec![speeds, ratios]
    }

    /// The promises about peers: of each, all jobs and both ciphers.
    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        let promise = |(to, least): (Mountable, f64)| {
            let line = format!("ext4 in a disk to {}", to.name());
            let mut promise = Requirement::new(line, Bound::AtLeast(least), "");
            for (ours, job) in OURS.into_iter().flat_map(|ours| JOBS.map(|job| (ours, job))) {
                promise.add(format!("{}, {}", ours.name(), job.name()), self.rates.ratio(ours, to, job));
            }
            promise
        };
        PEERS.into_iter().map(promise).collect()
    }

    /// The part of the page, to stand in the place of an old one.
    pub(crate) fn part(&self, run: &Run, old: &str) -> String {
        let requirements = self.requirements();
        let mut parts = requirement::opening(&format!("Mounted disks: run of {}", run.date), &requirements);
        parts.extend(self.tables().iter().map(Table::markdown));
        parts.extend(self.skipped.iter().map(|why| format!("{why}\n")));
        parts.push(self.method(run.scale.repeats));
        let worst = |ours| {
            let of = |(to, _): (Mountable, f64)| figure(self.worst(ours, to), 2);
            PEERS.map(of).join(" / ")
        };
        let figures = [worst(OURS[0]), worst(OURS[1]), requirement::tally(&requirements)];
        parts.push(HISTORY.and(old, &[&run.short_cells()[..], &figures].concat()));
        parts.join("\n")
    }

    fn method(&self, repeats: u32) -> String {
        let Load { file, writes, synced, files } = self.load;
        format!(
            "### Method of mounted disks\n\n\
            Every file system is made anew for each of {repeats} repeats, in a file or directory of the same disk; the figures are \
            medians with the spread from the least to the greatest, a ratio is the median of the ratios of the repeats. The \
            loop device is made by `mount -o loop` with its defaults. The file has {} MiB; {writes} random writes, four times as \
            many random reads by 4 threads, {synced} writes with an fsync each. The tree is the one of vaults, of {files} files, \
            and durable at the end of each job. Before a cold job the file system is unmounted and the kernel's caches are emptied.\n",
            file >> 20
        )
    }
}
