//! The section on vaults, beside `gocryptfs`, `cryfs`, `encfs` and ext4 in a `sealed` disk, on the
//! same file system.

use crate::measuring::section_results::{SectionResults, StableFigure};
use crate::mounted::file_jobs::{FileJob, Load, MountRates, Workload};
use crate::mounted::mountable::Mountable;
use crate::pages::page::{HistoryTable, RunInfo};
use crate::pages::requirement::{self, Bound, Requirement};
use crate::pages::table::{Table, figure, head};
use crate::vaults::large::{self, LargeVaults};
use crate::vaults::schemes::{self, Schemes};
use crate::vaults::tree;
use crate::workspace::Workspace;
use lacuna_contracts::Result;
use std::time::{Duration, Instant};

const HISTORY: HistoryTable = HistoryTable {
    heading: "### History of vaults",
    about: "Ratios of processor time of the machine: a vault with its defaults to the peer (gocryptfs, cryfs \
            or encfs) with the least; sequential writes and reads, random writes without and with fsync, \
            unpacking, git status, git fsck, removing",
    head: &["date", "lacuna", "ratios", "reached"],
};
/// A subject with a longer turn has only one turn.
const MAX_REPEATED_TURN: Duration = Duration::from_secs(150);
const OURS: Mountable = Mountable::Vault("auto");
const PEERS: [Mountable; 3] = [Mountable::Gocryptfs, Mountable::Cryfs, Mountable::Encfs];
/// The subjects, in the order of their turns.
const SUBJECTS: [Mountable; 5] =
    [OURS, Mountable::Gocryptfs, Mountable::Cryfs, Mountable::Encfs, Mountable::Sealed("gcm")];

/// All jobs in the order of execution, with the maximum processor time relative to the thriftiest
/// peer: 1.5 times the speed means two thirds of the time.
const JOBS: [(FileJob, f64); 8] = [
    (FileJob::Write, 0.67),
    (FileJob::Read, 1.0),
    (FileJob::RandomWrite, 0.67),
    (FileJob::SyncedWrite, 1.0),
    (FileJob::Unpack, 0.5),
    (FileJob::GitStatus, 1.0),
    (FileJob::GitFsck, 1.0),
    (FileJob::Remove, 0.5),
];

/// The results of the section.
struct VaultResults {
    rates: MountRates,
    load: Load,
    schemes: Schemes,
    large: LargeVaults,
    /// Subjects that could not be measured, or not in every round, with the reasons.
    skipped: Vec<String>,
}

/// Measures the section.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    let load = Load::of(work.scale);
    work.spread_directories();
    work.report_progress("vaults: making a tree of small files")?;
    let archive = tree::archive(work, load.files)?;
    let (size, requests, files, blocks) =
        if work.scale.quick { (8 << 20, 100, 2000, 100) } else { (64 << 20, 5000, 1_000_000, 100_000) };
    let schemes = schemes::measure(work, size, requests)?;
    let large = large::measure(work, files, blocks)?;
    let mut vaults = VaultResults { rates: MountRates::default(), load, schemes, large, skipped: Vec::new() };
    let (mut subjects, mut once) = (Vec::new(), Vec::new());
    for subject in SUBJECTS {
        match subject.unavailable_reason() {
            Some(why) => {
                work.report_progress(&why)?;
                vaults.skipped.push(why);
            }
            None => subjects.push(subject),
        }
    }
    for round in 0..work.scale.rounds {
        vaults.schemes.run_session(work)?;
        for subject in &subjects {
            let name = subject.name();
            work.report_progress(&format!("vaults: round {} of {}, {name}", round + 1, work.scale.rounds))?;
            let begin = Instant::now();
            let workload = Workload { load, archive: &archive, seed: u64::from(round) + 1 };
            vaults.rates.turn(work, *subject, &JOBS.map(|(job, _)| job), workload)?;
            if begin.elapsed() > MAX_REPEATED_TURN && work.scale.rounds > 1 {
                vaults.skipped.push(format!(
                    "{name} had only one turn, because that took {} s.",
                    begin.elapsed().as_secs()
                ));
                once.push(*subject);
            }
        }
        subjects.retain(|subject| !once.contains(subject));
        // Every subject follows each neighbour in half of the rounds.
        subjects.reverse();
    }
    Ok(Box::new(vaults))
}

impl VaultResults {
    fn ratio(&self, job: FileJob) -> Option<f64> {
        self.rates.processor_ratio(OURS, self.rates.lowest_processor(&PEERS, job)?, job)
    }
}

impl SectionResults for VaultResults {
    fn results(&self) -> Vec<Table> {
        let mut both = Table::new(
            "Vaults beside other encrypting file systems, speed / processor time of the whole machine",
            head("job", SUBJECTS.map(Mountable::name)),
        );
        for (job, _) in JOBS {
            both.row(
                job.name(),
                SUBJECTS.map(|subject| self.rates.speed_and_processor_cell(subject, job, self.load.files)),
            );
        }
        vec![both]
    }

    fn tables(&self) -> Vec<Table> {
        let mut tables = self.results();
        tables.extend(self.schemes.tables());
        tables.push(self.large.table());
        tables
    }

    /// The requirements relative to peers, and those of the schemes and of large vaults.
    fn requirements(&self) -> Vec<Requirement> {
        let promise = |(job, most): (FileJob, f64)| {
            let line =
                format!("processor time of the machine, vault to the peer with the least: {}", job.name());
            Requirement::new(line, Bound::AtMost(most), "").case("", self.ratio(job))
        };
        let beside = JOBS.into_iter().map(promise);
        beside.chain(self.schemes.requirements()).chain(self.large.requirements()).collect()
    }

    fn stable(&self) -> Vec<StableFigure> {
        self.schemes.stable()
    }

    fn skipped(&self) -> &[String] {
        &self.skipped
    }

    fn body(&self, run: &RunInfo) -> String {
        let mut parts: Vec<String> = self.tables().iter().map(Table::markdown).collect();
        let Load { file, writes, synced, files } = self.load;
        parts.push(format!(
            "### Method of vaults\n\n\
            Every file system lies in a directory of the same disk and is made anew for each of {} rounds. \
            Speeds and processor times are measured as for [mounted disks](#method-of-mounted-disks). The \
            peers have their defaults, except for a short key derivation for all. The file has {} MiB, half \
            text and half random bytes. The jobs make {writes} random writes, and {synced} with an fsync \
            each. The tree is a `git` repository of {files} files of 128 bytes to 60 kB. On ext4 the \
            directories of the file systems are spread over the disk (`chattr +T`), so that no subject pays \
            for files that an earlier subject removed. Before a cold job the file system is unmounted and \
            the kernel's caches are emptied. A vault checks the freshness of every block. Of the peers, only \
            `cryfs` notices an older block of a file; none has a trusted place that reveals an older state \
            of the whole file system.\n\n\
            The schemes run in the process of the benchmark, without a mount and mounted. Their processor \
            time is that of the process, the lower quartile of the rounds.\n",
            run.scale.rounds,
            file >> 20
        ));
        parts.join("\n")
    }

    fn history(&self, run: &RunInfo, requirements: &[Requirement], old: &str) -> Option<String> {
        let ratios = JOBS.map(|(job, _)| figure(self.ratio(job), 2)).join(", ");
        let figures = [ratios, requirement::tally(requirements)];
        Some(HISTORY.with_row(old, &[&run.short_cells()[..], &figures].concat()))
    }
}
