//! Section 2: what random IVs, authentication, the other layouts and wide blocks cost, beside our own `xts`.

use crate::fio::{Direction, Job, size_name};
use crate::grid::Grid;
use crate::requirement::{Bound, Requirement};
use crate::rounds::Rounds;
use crate::subject::{Subject, XTS};
use crate::table::{Table, head};
use crate::workspace::Workspace;
use lacuna_core::Result;

/// Request sizes with a promise.
pub(crate) const SIZES: [u32; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const SMALL: u32 = 4 << 10;
const LARGE: u32 = 1 << 20;

/// Random IVs, the default.
pub(crate) const XTS_RANDOM: Subject = Subject::Lacuna { cipher: "xts-random", layout: Some("segment-end") };
/// Random nonces and tags.
pub(crate) const GCM: Subject = Subject::Lacuna { cipher: "gcm", layout: Some("segment-end") };
const OTHERS: [Subject; 3] = [
    Subject::Lacuna { cipher: "xts-random", layout: Some("interleaved") },
    Subject::Lacuna { cipher: "xts-random", layout: Some("kv") },
    Subject::Lacuna { cipher: "hctr2", layout: None },
];

pub(crate) struct Ciphers {
    pub grid: Grid,
}

/// The job for a size: random with 32 under way below 256 KiB, sequential with 8 from there.
pub(crate) fn job(direction: Direction, size: u32) -> Job {
    let random = size < 256 << 10;
    Job { direction, random, size, depth: if random { 32 } else { 8 }, fsync: None }
}

fn random_large(direction: Direction) -> Job {
    Job { random: true, ..job(direction, LARGE) }
}

fn synced(size: u32) -> Job {
    Job { fsync: Some(32), ..job(Direction::Write, size) }
}

/// Both directions at these sizes.
fn both(sizes: &[u32]) -> Vec<Job> {
    sizes.iter().flat_map(|size| [job(Direction::Write, *size), job(Direction::Read, *size)]).collect()
}

/// The jobs with flushes come first, when the page cache has nothing else to write.
fn all_jobs() -> Vec<Job> {
    let mut jobs = vec![synced(SMALL), synced(LARGE)];
    jobs.extend(both(&SIZES));
    jobs.extend([random_large(Direction::Write), random_large(Direction::Read)]);
    jobs
}

pub(crate) fn measure(work: &Workspace) -> Result<Ciphers> {
    let mut rounds = Rounds::new(work, "ciphers", work.scale.cipher_job);
    for subject in [XTS, XTS_RANDOM, GCM] {
        rounds.add(subject, &all_jobs());
    }
    for subject in OTHERS {
        rounds.add(subject, &both(&[SMALL, LARGE]));
    }
    Ok(Ciphers { grid: rounds.run()? })
}

impl Ciphers {
    /// What subjects reached in a job, and their ratios to `xts`.
    fn cells(&self, subjects: &[Subject], job: Job) -> impl Iterator<Item = String> {
        subjects.iter().flat_map(move |s| [self.grid.cell(*s, job), self.grid.ratio_cell(*s, XTS, job)])
    }

    pub(crate) fn tables(&self) -> [Table; 2] {
        let columns = ["job", "xts", "xts-random", "ratio", "gcm", "ratio"];
        let mut sizes = Table::new("Random IVs and authentication beside xts (segment-end)", columns);
        for job in all_jobs() {
            let cells = self.cells(&[XTS_RANDOM, GCM], job);
            sizes.row(job.name(), std::iter::once(self.grid.cell(XTS, job)).chain(cells));
        }
        let columns = OTHERS.into_iter().flat_map(|subject| [subject.name(), "to xts".into()]);
        let mut others =
            Table::new("The other layouts, and HCTR2 as the cipher of a disk", head("job", columns));
        for job in both(&[SMALL, LARGE]) {
            others.row(job.name(), self.cells(&OTHERS, job));
        }
        [sizes, others]
    }

    /// The promises about ciphers.
    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        let mut all = Vec::new();
        for (subject, name, writes) in [(XTS_RANDOM, "xts-random", 0.90), (GCM, "gcm", 0.85)] {
            let mut add = |what: &str, least: f64, jobs: &[Job]| {
                let line = format!("{name} to xts: {what}");
                let empty = Requirement::new(line, Bound::AtLeast(least), "");
                all.push(jobs.iter().fold(empty, |requirement, job| {
                    requirement.case(size_name(job.size), self.grid.ratio(subject, XTS, *job))
                }));
            };
            add("reads, 4 KiB to 4 MiB", 0.95, &SIZES.map(|size| job(Direction::Read, size)));
            add("writes, 4 KiB to 4 MiB", writes, &SIZES.map(|size| job(Direction::Write, size)));
            add("writes, fsync every 32", 0.75, &[synced(SMALL), synced(LARGE)]);
        }
        all
    }
}
