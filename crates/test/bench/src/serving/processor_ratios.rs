//! Processor times that agree between two runs on one commit: servers run side by side on one
//! processor, and the median over several sessions is taken, each with newly started servers and
//! newly filled caches.

use crate::measuring::samples::Samples;
use crate::measuring::section_results::StableFigure;
use crate::pages::table::{Table, figure, head};
use crate::serving::job::{Direction, IoJob};
use crate::serving::request_offsets::WritePosition;
use crate::serving::server::RunningServer;
use crate::serving::side_by_side::{JobTime, SliceSession};
use crate::serving::subject::Subject;
use crate::serving::turn::Task;
use crate::workspace::Workspace;
use lacuna_contracts::{Error, Result};

/// Sessions; each takes half a minute if one of the servers is slow.
const SESSIONS: u32 = 12;
/// Slices of each server for each job in a session.
const SLICES: u64 = 20;

/// The servers and jobs that are measured side by side.
pub(crate) struct SideBySide<'a> {
    /// The section, for messages.
    pub section: &'static str,
    /// The servers; the first is the baseline.
    pub subjects: &'a [Subject],
    /// The jobs of the servers.
    pub jobs: &'a [IoJob],
}

/// The ratios of the sessions.
#[derive(Default)]
pub(crate) struct ProcessorRatios {
    base: Option<Subject>,
    cells: Vec<(Subject, IoJob, Samples)>,
}

impl SideBySide<'_> {
    /// Measures on disks of its own.
    pub(crate) fn measure(&self, work: &Workspace) -> Result<ProcessorRatios> {
        let disk = work.scale.disk;
        for subject in self.subjects {
            work.report_progress(&format!("{}: filling {}", self.section, subject.name()))?;
            fill(work, *subject, disk)?;
        }
        let (sessions, slices) = if work.scale.quick { (1, 2) } else { (SESSIONS, SLICES) };
        let position = WritePosition::default();
        let mut ratios = ProcessorRatios { base: self.subjects.first().copied(), cells: Vec::new() };
        for number in 0..sessions {
            let about = format!("{}: session {} of {sessions} on one processor", self.section, number + 1);
            work.report_progress(&about)?;
            let (jobs, number) = (self.jobs, number.into());
            let session = SliceSession { jobs, slices, disk, number, position: &position };
            self.run_session(work, session, &mut ratios)?;
        }
        for subject in self.subjects {
            let disk = subject.disk(work);
            std::fs::remove_file(&disk)
                .map_err(|e| Error::io(format!("cannot remove {}", disk.display()), &e))?;
        }
        Ok(ratios)
    }

    fn run_session(
        &self,
        work: &Workspace,
        session: SliceSession<'_>,
        ratios: &mut ProcessorRatios,
    ) -> Result<()> {
        // The kernel caches a file in pieces of sizes that depend on the memory that is free at
        // that time. Without this, a server that drops no cache would have the pieces of the fill
        // in all sessions of a run, and others in the next run.
        work.drop_caches()?;
        let beside = |(nth, subject): (usize, &Subject)| start(work, *subject, nth);
        let servers = self.subjects.iter().enumerate().map(beside).collect::<Result<Vec<_>>>()?;
        let spent = session.run(work, &servers.iter().collect::<Vec<_>>())?;
        servers.into_iter().try_for_each(|server| server.stop().map(drop))?;
        for (job, of_job) in session.jobs.iter().zip(spent) {
            let cost = |spent: &JobTime| match job.direction {
                // A server commits now and then: any quantile depends on the number of slices with
                // a commit in them.
                Direction::Write => spent.sum,
                Direction::Read => spent.quartile,
            };
            for (subject, spent) in self.subjects.iter().zip(&of_job).skip(1) {
                ratios.push(*subject, *job, cost(spent) / cost(&of_job[0]));
            }
        }
        Ok(())
    }
}

fn fill(work: &Workspace, subject: Subject, disk: u64) -> Result<()> {
    subject.create(work, disk)?;
    let server = start(work, subject, 0)?;
    let job = IoJob::of_size(Direction::Write, 1 << 20);
    let requests = disk / u64::from(job.size);
    let task = Task::alone(job, disk, requests, 0);
    task.perform(&server).map_err(|e| e.context(subject.name()))?;
    server.stop()?;
    work.write_back()
}

fn start(work: &Workspace, subject: Subject, nth: usize) -> Result<RunningServer<'_>> {
    let socket = work.path(&format!("socket-{nth}"));
    RunningServer::start(work, &mut subject.serve(work, &socket)?, &socket)
        .map_err(|e| e.context(subject.name()))
}

impl ProcessorRatios {
    fn push(&mut self, subject: Subject, job: IoJob, ratio: f64) {
        match self.cells.iter_mut().find(|(of, at, _)| (*of, *at) == (subject, job)) {
            Some((.., ratios)) => ratios.push(ratio),
            None => self.cells.push((subject, job, std::iter::once(ratio).collect())),
        }
    }

    /// The ratio of the processor times of two servers, if both were measured.
    pub(crate) fn ratio(&self, subject: Subject, to: Subject, job: IoJob) -> Option<f64> {
        Some(self.to_base(subject, job)? / self.to_base(to, job)?)
    }

    fn to_base(&self, subject: Subject, job: IoJob) -> Option<f64> {
        if self.base == Some(subject) {
            return Some(1.0);
        }
        let cell = self.cells.iter().find(|(of, at, _)| (*of, *at) == (subject, job));
        cell.map(|(.., ratios)| ratios.median())
    }

    fn names(&self) -> Option<(Vec<Subject>, Vec<IoJob>, Subject)> {
        let (mut subjects, mut jobs) = (Vec::new(), Vec::new());
        for (subject, job, _) in &self.cells {
            if !subjects.contains(subject) {
                subjects.push(*subject);
            }
            if !jobs.contains(job) {
                jobs.push(*job);
            }
        }
        Some((subjects, jobs, self.base?))
    }

    /// The ratios, with the intervals of their medians.
    pub(crate) fn table(&self) -> Option<Table> {
        let (subjects, jobs, base) = self.names()?;
        let title = format!("On one processor, side by side: processor time to {}", base.name());
        let mut table = Table::new(title, head("job", subjects.iter().map(|subject| subject.name())));
        for job in jobs {
            let cell = |subject: &Subject| {
                let cell = self.cells.iter().find(|(of, at, _)| (*of, *at) == (*subject, job));
                cell.map_or("-".to_owned(), |(.., ratios)| {
                    let (low, high) = ratios.interval();
                    format!("{} ({low:.2} to {high:.2})", figure(Some(ratios.median()), 2))
                })
            };
            table.row(job.name(), subjects.iter().map(cell));
        }
        Some(table)
    }

    /// The figures that two runs on the same commit must agree on.
    pub(crate) fn stable(&self) -> Vec<StableFigure> {
        let Some(base) = self.base else { return Vec::new() };
        let name = |subject: &Subject, job: &IoJob| {
            format!("{}, {}: processor time on one processor to {}", subject.name(), job.name(), base.name())
        };
        let of = |(subject, job, ratios): &(Subject, IoJob, Samples)| StableFigure {
            name: name(subject, job),
            value: ratios.median(),
        };
        self.cells.iter().map(of).collect()
    }
}
