//! The section on mounted disks: ext4 in a `sealed` disk through `lacuna open`, beside ext4 on a
//! plain loop device and `gocryptfs`, on the same file system.

use crate::measuring::section_results::SectionResults;
use crate::mounted::file_jobs::{FileJob, Load, MountRates, Workload};
use crate::mounted::mountable::Mountable;
use crate::pages::page::{HistoryTable, RunInfo};
use crate::pages::requirement::{self, Bound, Requirement};
use crate::pages::table::{Table, figure, head};
use crate::vaults::tree;
use crate::workspace::Workspace;
use lacuna_contracts::Result;

const HISTORY: HistoryTable = HistoryTable {
    heading: "### History of mounted disks",
    about: "Processor time of the machine for ext4 through `lacuna open`, with xts-random and with gcm: the \
    worst ratio of all jobs, to ext4 on a loop device / to gocryptfs",
    head: &["date", "lacuna", "xts-random", "gcm", "reached"],
};
const OURS: [Mountable; 2] = [Mountable::Sealed("gcm"), Mountable::Sealed("xts-random")];
/// The subjects, in the order of their turns.
const SUBJECTS: [Mountable; 4] = [OURS[0], Mountable::Plain, OURS[1], Mountable::Gocryptfs];
/// The subjects that ours are compared with.
const PEERS: [Mountable; 2] = [Mountable::Plain, Mountable::Gocryptfs];
/// Minimum speed relative to a loop device. It encrypts nothing, so processor time is not compared.
const LEAST_OF_LOOP: f64 = 0.85;
/// Maximum processor time relative to `gocryptfs`.
const MOST_OF_PEER: f64 = 1.0;
/// The jobs, in the order of execution.
const JOBS: [FileJob; 7] = [
    FileJob::Write,
    FileJob::Read,
    FileJob::RandomWrite,
    FileJob::RandomRead,
    FileJob::SyncedWrite,
    FileJob::Unpack,
    FileJob::Remove,
];

/// The results of the section.
struct MountResults {
    rates: MountRates,
    load: Load,
    skipped: Vec<String>,
}

/// Measures the section.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    let load = Load::of(work.scale);
    work.spread_directories();
    work.report_progress("mounted disks: making a tree of small files")?;
    let archive = tree::archive(work, load.files)?;
    let mut mounts = MountResults { rates: MountRates::default(), load, skipped: Vec::new() };
    mounts.skipped.extend(SUBJECTS.iter().filter_map(|subject| subject.unavailable_reason()));
    let mut subjects: Vec<_> =
        SUBJECTS.into_iter().filter(|subject| subject.unavailable_reason().is_none()).collect();
    for round in 0..work.scale.rounds {
        for subject in &subjects {
            let name = subject.name();
            work.report_progress(&format!(
                "mounted disks: round {} of {}, {name}",
                round + 1,
                work.scale.rounds
            ))?;
            let workload = Workload { load, archive: &archive, seed: u64::from(round) + 1 };
            mounts.rates.turn(work, *subject, &JOBS, workload)?;
        }
        // Every subject follows each neighbour in half of the rounds.
        subjects.reverse();
    }
    Ok(Box::new(mounts))
}

impl MountResults {
    /// The highest ratio over all jobs.
    fn worst(&self, ours: Mountable, to: Mountable) -> Option<f64> {
        JOBS.into_iter().filter_map(|job| self.rates.processor_ratio(ours, to, job)).max_by(f64::total_cmp)
    }
}

impl SectionResults for MountResults {
    fn results(&self) -> Vec<Table> {
        let mut both = Table::new(
            "Mounted: ext4 in a disk, speed / processor time of the whole machine",
            head("job", SUBJECTS.map(Mountable::name)),
        );
        for job in JOBS {
            both.row(
                job.name(),
                SUBJECTS.map(|subject| self.rates.speed_and_processor_cell(subject, job, self.load.files)),
            );
        }
        vec![both]
    }

    fn tables(&self) -> Vec<Table> {
        let pairs = PEERS.into_iter().flat_map(|to| OURS.map(|ours| (ours, to)));
        let names = || pairs.clone().map(|(ours, to)| format!("{} to {}", ours.name(), to.name()));
        let mut times = Table::new("Mounted disks: ratios of processor time", head("job", names()));
        let mut speeds = Table::new("Mounted disks: ratios of speed", head("job", names()));
        for job in JOBS {
            let time = |(ours, to)| figure(self.rates.processor_ratio(ours, to, job), 2);
            times.row(job.name(), pairs.clone().map(time));
            speeds.row(job.name(), pairs.clone().map(|(ours, to)| self.rates.ratio_cell(ours, to, job)));
        }
        self.results().into_iter().chain([times, speeds]).collect()
    }

    /// The requirements relative to peers, over all jobs and both ciphers.
    fn requirements(&self) -> Vec<Requirement> {
        let line = "speed, ext4 in a disk to ext4 on a loop device";
        let mut speed = Requirement::new(line, Bound::AtLeast(LEAST_OF_LOOP), "");
        let line = "processor time of the machine, ext4 in a disk to gocryptfs";
        let mut time = Requirement::new(line, Bound::AtMost(MOST_OF_PEER), "");
        for (ours, job) in OURS.into_iter().flat_map(|ours| JOBS.map(|job| (ours, job))) {
            let name = format!("{}, {}", ours.name(), job.name());
            speed.add(&name, self.rates.ratio(ours, Mountable::Plain, job));
            time.add(&name, self.rates.processor_ratio(ours, Mountable::Gocryptfs, job));
        }
        vec![speed, time]
    }

    fn skipped(&self) -> &[String] {
        &self.skipped
    }

    fn body(&self, run: &RunInfo) -> String {
        let mut parts: Vec<String> = self.tables().iter().map(Table::markdown).collect();
        let Load { file, writes, synced, files } = self.load;
        parts.push(format!(
            "### Method of mounted disks\n\n\
            Every file system is made anew for each of {} rounds, in a file or directory of the same disk. \
            Speeds are medians, marked with `~` as for [servers](#method-for-servers). Processor time is \
            that of the whole machine, because the server, the client and threads of the kernel share the \
            work. It includes the write-back of dirty pages after a job, and is the lower quartile of the \
            rounds. `mount -o loop` makes the loop device with its defaults. The file has {} MiB. The jobs \
            make {writes} random writes, four times that number of random reads by 4 threads, and {synced} \
            writes with an fsync each. The tree is that of the vaults, with {files} files; it is durable at \
            the end of each job. Before a cold job the file system is unmounted and the kernel's caches are \
            emptied.\n",
            run.scale.rounds,
            file >> 20
        ));
        parts.join("\n")
    }

    fn history(&self, run: &RunInfo, requirements: &[Requirement], old: &str) -> Option<String> {
        let worst = |ours| PEERS.map(|to| figure(self.worst(ours, to), 2)).join(" / ");
        let figures = [worst(OURS[1]), worst(OURS[0]), requirement::tally(requirements)];
        Some(HISTORY.with_row(old, &[&run.short_cells()[..], &figures].concat()))
    }
}
