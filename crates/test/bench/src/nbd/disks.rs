//! Measures disks of format `sealed` over NBD: compared with common servers, and the ciphers with
//! each other.

use crate::pages::table::{Table, head};
use crate::serving::grid::Grid;
use crate::serving::job::{CacheState, Direction, IoJob};
use crate::serving::processor_ratios::{ProcessorRatios, SideBySide};
use crate::serving::rounds::Rounds;
use crate::serving::subject::{Subject, XTS};
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
const LUKS_SERVERS: [Subject; 2] = [Subject::NbdkitLuks, Subject::QemuLuks];
pub(crate) const PLAIN: Subject = Subject::NbdkitFile;
/// Our subjects and the peers.
pub(crate) const BESIDE_PEERS: [Subject; 5] = [GCM, XTS, LUKS_SERVERS[0], LUKS_SERVERS[1], PLAIN];
/// The subjects that run side by side on one processor.
const STEADY: [Subject; 5] = [PLAIN, XTS, XTS_RANDOM, GCM, HCTR2];
pub(crate) const CIPHERS: [Subject; 4] = [XTS, XTS_RANDOM, GCM, HCTR2];

pub(crate) const WRITE: IoJob = IoJob::of_size(Direction::Write, LARGE);
pub(crate) const READ: IoJob = IoJob::of_size(Direction::Read, LARGE);
pub(crate) const RANDOM_WRITE: IoJob = IoJob::of_size(Direction::Write, SMALL);
pub(crate) const RANDOM_READ: IoJob = IoJob::of_size(Direction::Read, SMALL);

/// The four jobs of all comparisons.
pub(crate) const MAIN: [IoJob; 4] = [WRITE, READ, RANDOM_WRITE, RANDOM_READ];

/// The jobs beside peers, with the maximum processor time relative to the better LUKS server and to
/// the server without encryption.
pub(crate) const PEER_JOBS: [(IoJob, f64, f64); 6] = [
    (WRITE, 0.20, 1.33),
    (READ, 0.40, 1.33),
    (RANDOM_WRITE, 1.0, 1.0),
    (RANDOM_READ, 0.40, 1.0),
    (IoJob { depth: 1, ..RANDOM_WRITE }, 1.0, 1.0),
    (IoJob { depth: 1, ..RANDOM_READ }, 1.0, 1.0),
];

/// Reads with other states of the caches.
pub(crate) const CACHE_STATES: [IoJob; 4] = [
    IoJob { caches: CacheState::JustStarted, ..RANDOM_READ },
    IoJob { caches: CacheState::Cold, ..RANDOM_READ },
    IoJob { caches: CacheState::JustStarted, ..READ },
    IoJob { caches: CacheState::Cold, ..READ },
];

const fn synced(job: IoJob) -> IoJob {
    IoJob { fsync: Some(32), ..job }
}

/// Jobs with a flush after every 32 writes.
pub(crate) const SYNCED: [IoJob; 2] = [synced(RANDOM_WRITE), synced(WRITE)];

/// The results.
pub(crate) struct DiskResults {
    pub grid: Grid,
    pub ratios: ProcessorRatios,
    /// Subjects that could not be measured, with the reasons.
    pub skipped: Vec<String>,
}

/// Measures the disks.
pub(crate) fn measure(work: &Workspace) -> Result<DiskResults> {
    let mut rounds = Rounds::new(work, "disks");
    let mut skipped: Vec<String> = crate::measuring::counters::unavailable_reason().into_iter().collect();
    let both = |size| [Direction::Write, Direction::Read].map(|direction| IoJob::of_size(direction, size));
    let sizes: Vec<IoJob> = SIZES.into_iter().flat_map(both).collect();
    for subject in BESIDE_PEERS {
        if let Some(why) = subject.unavailable_reason() {
            work.report_progress(&why)?;
            skipped.push(why);
            continue;
        }
        rounds.add(subject, &PEER_JOBS.map(|(job, ..)| job));
        rounds.add(subject, &CACHE_STATES);
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
    let ratios = match PLAIN.unavailable_reason() {
        Some(_) => ProcessorRatios::default(),
        None => SideBySide { section: "disks", subjects: &STEADY, jobs: &MAIN }.measure(work)?,
    };
    Ok(DiskResults { grid, ratios, skipped })
}

impl DiskResults {
    /// The LUKS server that takes less processor time for this job.
    fn best_luks_server(&self, job: IoJob) -> Option<Subject> {
        let ratio =
            |subject: &Subject| self.grid.processor_ratio(*subject, LUKS_SERVERS[0], job).unwrap_or(f64::MAX);
        LUKS_SERVERS
            .into_iter()
            .filter(|s| self.grid.has(*s, job))
            .min_by(|a, b| ratio(a).total_cmp(&ratio(b)))
    }

    /// The ratio of the processor times of two servers: side by side on one processor, otherwise in
    /// the rounds.
    pub(crate) fn processor_ratio(&self, subject: Subject, to: Subject, job: IoJob) -> Option<f64> {
        self.ratios.ratio(subject, to, job).or_else(|| self.grid.processor_ratio(subject, to, job))
    }

    pub(crate) fn ratio_to_luks(&self, job: IoJob) -> Option<f64> {
        self.grid.processor_ratio(XTS, self.best_luks_server(job)?, job)
    }

    /// Every cipher relative to `xts`, for jobs of all sizes.
    pub(crate) fn ciphers(&self) -> [Table; 2] {
        let others: Vec<Subject> = CIPHERS[1..].to_vec();
        let mut jobs: Vec<IoJob> = SIZES
            .into_iter()
            .flat_map(|size| [IoJob::of_size(Direction::Write, size), IoJob::of_size(Direction::Read, size)])
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

    pub(crate) fn all_jobs() -> Vec<IoJob> {
        let mut jobs: Vec<IoJob> = PEER_JOBS.map(|(job, ..)| job).to_vec();
        jobs.extend(CACHE_STATES);
        jobs.push(SYNCED[0]);
        jobs
    }
}
