//! Section 1: lacuna with `xts` beside the servers that people use today.

use crate::fio::{Direction, Job};
use crate::grid::Grid;
use crate::requirement::{Bound, Requirement};
use crate::rounds::Rounds;
use crate::subject::{Subject, XTS};
use crate::table::{Table, head};
use crate::workspace::Workspace;
use lacuna_core::Result;

const fn job(direction: Direction, random: bool, size: u32, depth: u32) -> Job {
    Job { direction, random, size, depth, fsync: None }
}

/// Each job with the ratio required to the better LUKS server and to the server without encryption.
pub(crate) const JOBS: [(Job, f64, f64); 6] = [
    (job(Direction::Write, false, 1 << 20, 8), 5.0, 0.75),
    (job(Direction::Read, false, 1 << 20, 8), 2.5, 0.75),
    (job(Direction::Write, true, 4096, 32), 1.0, 1.0),
    (job(Direction::Read, true, 4096, 32), 2.5, 1.0),
    (job(Direction::Write, true, 4096, 1), 1.0, 1.0),
    (job(Direction::Read, true, 4096, 1), 1.0, 1.0),
];

/// In the order of their turns.
pub(crate) const SUBJECTS: [Subject; 4] = [XTS, Subject::NbdkitLuks, Subject::QemuLuks, Subject::NbdkitFile];

pub(crate) struct Peers {
    pub grid: Grid,
    /// Who could not take part, and why.
    pub skipped: Vec<String>,
}

pub(crate) fn measure(work: &Workspace) -> Result<Peers> {
    let mut rounds = Rounds::new(work, "peers", work.scale.peer_job);
    let mut skipped = Vec::new();
    for subject in SUBJECTS {
        match subject.missing() {
            Some(why) => {
                work.goes_on(&why)?;
                skipped.push(why);
            }
            None => rounds.add(subject, &JOBS.map(|(job, ..)| job)),
        }
    }
    Ok(Peers { grid: rounds.run()?, skipped })
}

impl Peers {
    /// The better LUKS server in this job.
    fn rival(&self, job: Job) -> Option<Subject> {
        let speed = |subject: &Subject| self.grid.median(*subject, job).unwrap_or(0.0);
        let rivals = [Subject::NbdkitLuks, Subject::QemuLuks];
        rivals.into_iter().filter(|s| self.grid.has(*s, job)).max_by(|a, b| speed(a).total_cmp(&speed(b)))
    }

    /// Ours over the better LUKS server.
    pub(crate) fn to_luks(&self, job: Job) -> Option<f64> {
        self.grid.ratio(XTS, self.rival(job)?, job)
    }

    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new("Beside other servers", head("job", SUBJECTS.map(Subject::name)));
        for (job, ..) in JOBS {
            table.row(job.name(), SUBJECTS.map(|subject| self.grid.cell(subject, job)));
        }
        table
    }

    /// The promises about peers.
    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        let luks = JOBS.iter().map(|(job, least, _)| {
            let line = format!("to the better LUKS server: {}", job.name());
            Requirement::new(line, Bound::AtLeast(*least), "").case("", self.to_luks(*job))
        });
        let plain = JOBS.iter().map(|(job, _, least)| {
            let line = format!("to nbdkit without encryption: {}", job.name());
            let ratio = self.grid.ratio(XTS, Subject::NbdkitFile, *job);
            Requirement::new(line, Bound::AtLeast(*least), "").case("", ratio)
        });
        luks.chain(plain).collect()
    }
}
