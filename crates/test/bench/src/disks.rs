//! Measures disks of format `sealed` over NBD: compared with common servers, and the ciphers with
//! each other.

use crate::grid::Grid;
use crate::job::{Caches, Direction, Job};
use crate::rounds::Rounds;
use crate::steady::{Steady, Together};
use crate::subject::{Subject, XTS};
use crate::table::{Table, head};
use crate::workspace::Workspace;
use lacuna_contracts::Result;

/// The compared request sizes.
pub(crate) const SIZES: [u32; 4] = [4 << 10, 64 << 10, 1 << 20, 4 << 20];
const SMALL: u32 = SIZES[0];
const LARGE: u32 = 1 << 20;

/// Random nonces and tags, the default.
pub(crate) const GCM: Subject = Subject::Lacuna { cipher: "gcm" };
/// Random IVs.
pub(crate) const XTS_RANDOM: Subject = Subject::Lacuna { cipher: "xts-random" };
const HCTR2: Subject = Subject::Lacuna { cipher: "hctr2" };
const RIVALS: [Subject; 2] = [Subject::NbdkitLuks, Subject::QemuLuks];
pub(crate) const PLAIN: Subject = Subject::NbdkitFile;
/// Our subjects and the peers.
pub(crate) const BESIDE_PEERS: [Subject; 5] = [GCM, XTS, RIVALS[0], RIVALS[1], PLAIN];
/// The subjects that run side by side on one processor.
const STEADY: [Subject; 5] = [PLAIN, XTS, XTS_RANDOM, GCM, HCTR2];
pub(crate) const CIPHERS: [Subject; 4] = [XTS, XTS_RANDOM, GCM, HCTR2];

pub(crate) const WRITE: Job = Job::of_size(Direction::Write, LARGE);
pub(crate) const READ: Job = Job::of_size(Direction::Read, LARGE);
pub(crate) const RANDOM_WRITE: Job = Job::of_size(Direction::Write, SMALL);
pub(crate) const RANDOM_READ: Job = Job::of_size(Direction::Read, SMALL);

/// The four jobs of all comparisons.
pub(crate) const MAIN: [Job; 4] = [WRITE, READ, RANDOM_WRITE, RANDOM_READ];

/// The jobs beside peers, with the maximum processor time relative to the better LUKS server and to
/// the server without encryption.
pub(crate) const PEER_JOBS: [(Job, f64, f64); 6] = [
    (WRITE, 0.20, 1.33),
    (READ, 0.40, 1.33),
    (RANDOM_WRITE, 1.0, 1.0),
    (RANDOM_READ, 0.40, 1.0),
    (Job { depth: 1, ..RANDOM_WRITE }, 1.0, 1.0),
    (Job { depth: 1, ..RANDOM_READ }, 1.0, 1.0),
];

/// Reads with other states of the caches.
pub(crate) const STATES: [Job; 4] = [
    Job { caches: Caches::JustStarted, ..RANDOM_READ },
    Job { caches: Caches::Cold, ..RANDOM_READ },
    Job { caches: Caches::JustStarted, ..READ },
    Job { caches: Caches::Cold, ..READ },
];

const fn synced(job: Job) -> Job {
    Job { fsync: Some(32), ..job }
}

/// Jobs with a flush after every 32 writes.
pub(crate) const SYNCED: [Job; 2] = [synced(RANDOM_WRITE), synced(WRITE)];

/// The results.
pub(crate) struct Disks {
    pub grid: Grid,
    pub steady: Steady,
    /// Subjects that could not be measured, with the reasons.
    pub skipped: Vec<String>,
}

/// Measures the disks.
pub(crate) fn measure(work: &Workspace) -> Result<Disks> {
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
    rounds.add(HCTR2, &MAIN);
    let grid = rounds.run()?;
    // The comparison side by side needs its baseline.
    let steady = match PLAIN.missing() {
        Some(_) => Steady::default(),
        None => Together { section: "disks", subjects: &STEADY, jobs: &MAIN }.measure(work)?,
    };
    Ok(Disks { grid, steady, skipped })
}

impl Disks {
    /// The LUKS server that takes less processor time for this job.
    fn rival(&self, job: Job) -> Option<Subject> {
        let ratio =
            |subject: &Subject| self.grid.processor_ratio(*subject, RIVALS[0], job).unwrap_or(f64::MAX);
        RIVALS.into_iter().filter(|s| self.grid.has(*s, job)).min_by(|a, b| ratio(a).total_cmp(&ratio(b)))
    }

    /// The ratio of the processor times of two servers: side by side on one processor, otherwise in
    /// the rounds.
    pub(crate) fn processor_ratio(&self, subject: Subject, to: Subject, job: Job) -> Option<f64> {
        self.steady.ratio(subject, to, job).or_else(|| self.grid.processor_ratio(subject, to, job))
    }

    pub(crate) fn to_luks(&self, job: Job) -> Option<f64> {
        self.grid.processor_ratio(XTS, self.rival(job)?, job)
    }

    /// Every cipher relative to `xts`, for jobs of all sizes.
    pub(crate) fn ciphers(&self) -> [Table; 2] {
        let others: Vec<Subject> = CIPHERS[1..].to_vec();
        let mut jobs: Vec<Job> = SIZES
            .into_iter()
            .flat_map(|size| [Job::of_size(Direction::Write, size), Job::of_size(Direction::Read, size)])
            .collect();
        jobs.extend(SYNCED);
        let columns = || head("job", others.iter().map(|subject| subject.name()));
        let mut time = Table::new("Ciphers: processor time to xts", columns());
        let mut speed = Table::new("Ciphers: speed to xts, writes until durable", columns());
        for job in jobs {
            time.row(job.name(), others.iter().map(|s| self.grid.processor_ratio_cell(*s, XTS, job)));
            speed.row(job.name(), others.iter().map(|s| self.grid.ratio_cell(*s, XTS, job, true)));
        }
        [time, speed]
    }

    pub(crate) fn all_jobs() -> Vec<Job> {
        let mut jobs: Vec<Job> = PEER_JOBS.map(|(job, ..)| job).to_vec();
        jobs.extend(STATES);
        jobs.push(SYNCED[0]);
        jobs
    }
}
