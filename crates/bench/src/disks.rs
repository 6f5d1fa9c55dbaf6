//! Disks of format `sealed` over NBD: beside the servers that people use today, and the ciphers and layouts beside each other.

use crate::grid::Grid;
use crate::job::{Caches, Direction, Job, Size};
use crate::page::{History, Run};
use crate::requirement::{self, Bound, Requirement};
use crate::rounds::Rounds;
use crate::section::{Measured, Stable};
use crate::servers;
use crate::subject::{Subject, XTS};
use crate::table::{Table, figure, head};
use crate::workspace::Workspace;
use crate::{peers_plot, ratios_plot};
use lacuna_core::Result;
use std::path::Path;

const HISTORY: History = History {
    heading: "### History of disks over NBD",
    about: "Processor time to the better LUKS server, to an unencrypted server, and of gcm to xts, each for sequential writes and reads and random writes and reads",
    head: &[
        "date",
        "lacuna",
        "processor",
        "rounds",
        "xts to LUKS",
        "xts to nbdkit file",
        "gcm to xts",
        "reached",
    ],
};

/// Request sizes that are compared.
pub(crate) const SIZES: [u32; 4] = [4 << 10, 64 << 10, 1 << 20, 4 << 20];
const SMALL: u32 = SIZES[0];
const LARGE: u32 = 1 << 20;

/// Random nonces and tags, the default.
pub(crate) const GCM: Subject = Subject::Lacuna { cipher: "gcm", layout: Some("segment-end") };
/// Random IVs.
pub(crate) const XTS_RANDOM: Subject = Subject::Lacuna { cipher: "xts-random", layout: Some("segment-end") };
const INTERLEAVED: Subject = Subject::Lacuna { cipher: "xts-random", layout: Some("interleaved") };
const HCTR2: Subject = Subject::Lacuna { cipher: "hctr2", layout: None };
const RIVALS: [Subject; 2] = [Subject::NbdkitLuks, Subject::QemuLuks];
const PLAIN: Subject = Subject::NbdkitFile;
/// Ours and the peers.
pub(crate) const BESIDE_PEERS: [Subject; 5] = [GCM, XTS, RIVALS[0], RIVALS[1], PLAIN];
const CIPHERS: [Subject; 5] = [XTS, XTS_RANDOM, GCM, INTERLEAVED, HCTR2];

const WRITE: Job = Job::of_size(Direction::Write, LARGE);
const READ: Job = Job::of_size(Direction::Read, LARGE);
const RANDOM_WRITE: Job = Job::of_size(Direction::Write, SMALL);
const RANDOM_READ: Job = Job::of_size(Direction::Read, SMALL);

/// The four that everything is compared in.
pub(crate) const MAIN: [Job; 4] = [WRITE, READ, RANDOM_WRITE, RANDOM_READ];

/// Each job beside peers, with the processor time allowed to the better LUKS server and to the server without encryption.
pub(crate) const PEER_JOBS: [(Job, f64, f64); 6] = [
    (WRITE, 0.20, 1.33),
    (READ, 0.40, 1.33),
    (RANDOM_WRITE, 1.0, 1.0),
    (RANDOM_READ, 0.40, 1.0),
    (Job { depth: 1, ..RANDOM_WRITE }, 1.0, 1.0),
    (Job { depth: 1, ..RANDOM_READ }, 1.0, 1.0),
];

/// Reads from other states of the caches.
const STATES: [Job; 4] = [
    Job { caches: Caches::JustStarted, ..RANDOM_READ },
    Job { caches: Caches::Cold, ..RANDOM_READ },
    Job { caches: Caches::JustStarted, ..READ },
    Job { caches: Caches::Cold, ..READ },
];

const fn synced(job: Job) -> Job {
    Job { fsync: Some(32), ..job }
}

/// With a flush after every 32 writes.
pub(crate) const SYNCED: [Job; 2] = [synced(RANDOM_WRITE), synced(WRITE)];

/// The figures.
pub(crate) struct Disks {
    pub grid: Grid,
    skipped: Vec<String>,
}

/// Measures.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn Measured>> {
    let mut rounds = Rounds::new(work, "disks");
    let mut skipped: Vec<String> = crate::counters::missing().into_iter().collect();
    let both = |size| [Direction::Write, Direction::Read].map(|direction| Job::of_size(direction, size));
    let sizes: Vec<Job> = SIZES.into_iter().flat_map(both).collect();
    for subject in BESIDE_PEERS {
        if let Some(why) = subject.missing() {
            work.goes_on(&why)?;
            skipped.push(why);
            continue;
        }
        rounds.add(subject, &PEER_JOBS.map(|(job, ..)| job));
        rounds.add(subject, &STATES);
        rounds.add(subject, &SYNCED[..1]);
    }
    for subject in [XTS, GCM] {
        rounds.add(subject, &sizes.iter().copied().filter(|job| !MAIN.contains(job)).collect::<Vec<_>>());
        rounds.add(subject, &SYNCED[1..]);
    }
    rounds.add(XTS_RANDOM, &[&sizes[..], &SYNCED].concat());
    rounds.add(INTERLEAVED, &[&MAIN[..], &SYNCED].concat());
    rounds.add(HCTR2, &MAIN);
    Ok(Box::new(Disks { grid: rounds.run()?, skipped }))
}

impl Disks {
    /// The LUKS server that takes less processor time for this job.
    fn rival(&self, job: Job) -> Option<Subject> {
        let ratio =
            |subject: &Subject| self.grid.processor_ratio(*subject, RIVALS[0], job).unwrap_or(f64::MAX);
        RIVALS.into_iter().filter(|s| self.grid.has(*s, job)).min_by(|a, b| ratio(a).total_cmp(&ratio(b)))
    }

    fn to_luks(&self, job: Job) -> Option<f64> {
        self.grid.processor_ratio(XTS, self.rival(job)?, job)
    }

    /// Every cipher beside `xts`: jobs of all sizes.
    fn ciphers(&self) -> [Table; 2] {
        let others: Vec<Subject> = CIPHERS[1..].to_vec();
        let mut jobs: Vec<Job> = SIZES
            .into_iter()
            .flat_map(|size| [Job::of_size(Direction::Write, size), Job::of_size(Direction::Read, size)])
            .collect();
        jobs.extend(SYNCED);
        let columns = || head("job", others.iter().map(|subject| subject.name()));
        let mut time = Table::new("Ciphers and layouts: processor time to xts", columns());
        let mut speed = Table::new("Ciphers and layouts: speed to xts, writes until durable", columns());
        for job in jobs {
            time.row(job.name(), others.iter().map(|s| self.grid.processor_ratio_cell(*s, XTS, job)));
            speed.row(job.name(), others.iter().map(|s| self.grid.ratio_cell(*s, XTS, job, true)));
        }
        [time, speed]
    }

    fn all_jobs() -> Vec<Job> {
        let mut jobs: Vec<Job> = PEER_JOBS.map(|(job, ..)| job).to_vec();
        jobs.extend(STATES);
        jobs.push(SYNCED[0]);
        jobs
    }
}

impl Measured for Disks {
    fn results(&self) -> Vec<Table> {
        let names = || head("job", BESIDE_PEERS.map(Subject::name));
        let mut speed = Table::new("A disk over NBD: speed", names());
        let mut row = |job: Job, until: &str, durable: bool| {
            speed
                .row(format!("{}{until}", job.name()), BESIDE_PEERS.map(|s| self.grid.cell(s, job, durable)));
        };
        row(WRITE, ", until durable", true);
        row(READ, "", true);
        row(RANDOM_WRITE, ", until answered", false);
        row(RANDOM_WRITE, ", until durable", true);
        row(SYNCED[0], "", true);
        row(RANDOM_READ, "", true);
        row(STATES[0], "", true);
        row(STATES[1], "", true);
        row(Job { depth: 1, ..RANDOM_READ }, "", true);
        let mut time =
            Table::new("A disk over NBD: processor time of the server, before + behind the answer", names());
        for job in MAIN {
            time.row(servers::with_unit(job), BESIDE_PEERS.map(|s| self.grid.processor_cell(s, job)));
        }
        vec![speed, time]
    }

    fn tables(&self) -> Vec<Table> {
        let jobs = Disks::all_jobs();
        let mut tables = servers::tables(&self.grid, "Beside other servers", &BESIDE_PEERS, &jobs);
        tables.extend(self.ciphers());
        let jobs: Vec<Job> = MAIN.into_iter().chain(SYNCED).collect();
        tables.extend(servers::tables(&self.grid, "Ciphers and layouts", &CIPHERS, &jobs));
        tables
    }

    fn requirements(&self) -> Vec<Requirement> {
        let luks = PEER_JOBS.iter().map(|(job, most, _)| {
            let line = format!("processor time of xts to the better LUKS server: {}", job.name());
            Requirement::new(line, Bound::AtMost(*most), "").case("", self.to_luks(*job))
        });
        let plain = PEER_JOBS.iter().map(|(job, _, most)| {
            let line = format!("processor time of xts to nbdkit without encryption: {}", job.name());
            let ratio = self.grid.processor_ratio(XTS, PLAIN, *job);
            Requirement::new(line, Bound::AtMost(*most), "").case("", ratio)
        });
        let mut all: Vec<Requirement> = luks.chain(plain).collect();
        for (subject, name, writes) in [(XTS_RANDOM, "xts-random", 1.11), (GCM, "gcm", 1.18)] {
            let mut add = |what: &str, most: f64, jobs: &[Job]| {
                let line = format!("processor time of {name} to xts: {what}");
                let empty = Requirement::new(line, Bound::AtMost(most), "");
                all.push(jobs.iter().fold(empty, |requirement, job| {
                    let ratio = self.grid.processor_ratio(subject, XTS, *job);
                    requirement.case(Size(job.size).to_string(), ratio)
                }));
            };
            add("reads, 4 KiB to 4 MiB", 1.05, &SIZES.map(|size| Job::of_size(Direction::Read, size)));
            add("writes, 4 KiB to 4 MiB", writes, &SIZES.map(|size| Job::of_size(Direction::Write, size)));
            add("writes, fsync every 32", 1.33, &SYNCED);
        }
        let written = |line: &str, most: f64, jobs: &[Job]| {
            let line = format!("bytes that gcm writes to the medium for a byte: {line}");
            jobs.iter().fold(Requirement::new(line, Bound::AtMost(most), ""), |requirement, job| {
                let counted = self.grid.counted(GCM, *job).map(|counted| counted.written);
                requirement.case(Size(job.size).to_string(), counted)
            })
        };
        all.push(written("sequential", 1.02, &[WRITE, Job::of_size(Direction::Write, SIZES[3])]));
        all.push(written("random", 2.5, &[RANDOM_WRITE]));
        all
    }

    fn stable(&self) -> Vec<Stable> {
        let mut jobs = Disks::all_jobs();
        jobs.retain(|job| job.caches == Caches::Warm && job.fsync.is_none());
        servers::stable(&self.grid, &CIPHERS, &jobs, PLAIN)
    }

    fn skipped(&self) -> &[String] {
        &self.skipped
    }

    fn plot(&self, plots: &Path) -> Result<()> {
        peers_plot::draw(self, &plots.join("peers.svg"))?;
        ratios_plot::draw(self, &plots.join("ratio-by-size.svg"))
    }

    fn body(&self, run: &Run) -> String {
        let mut parts: Vec<String> = self.tables().iter().map(Table::markdown).collect();
        parts.push("![processor time beside other servers](plots/peers.svg)\n".into());
        parts.push("![processor time by request size](plots/ratio-by-size.svg)\n".into());
        parts.push(servers::method(&run.scale));
        parts.join("\n")
    }

    fn history(&self, run: &Run, requirements: &[Requirement], old: &str) -> Option<String> {
        let row = |ratio: &dyn Fn(Job) -> Option<f64>| MAIN.map(|job| figure(ratio(job), 2)).join(" / ");
        let figures = [
            row(&|job| self.to_luks(job)),
            row(&|job| self.grid.processor_ratio(XTS, PLAIN, job)),
            row(&|job| self.grid.processor_ratio(GCM, XTS, job)),
            requirement::tally(requirements),
        ];
        Some(HISTORY.and(old, &[&run.cells()[..], &figures].concat()))
    }
}
