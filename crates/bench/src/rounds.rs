//! The turns: every subject's disk is made and filled, then in each repeat each job goes to one subject after
//! another, so that what a ratio compares was measured within seconds.

use crate::fio::{self, Amount, Direction, Job, Load, Rate};
use crate::grid::Grid;
use crate::server::Server;
use crate::subject::Subject;
use crate::workspace::Workspace;
use lacuna_core::{Error, Result};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

const FILL: Job = Job { direction: Direction::Write, random: false, size: 1 << 20, depth: 8, fsync: None };

/// Longer than anything that a load goes on beside.
const LONG: Duration = Duration::from_secs(600);

/// The turns of one section.
pub(crate) struct Rounds<'w> {
    work: &'w Workspace,
    section: &'static str,
    time: Duration,
    /// Bytes of every disk that are written and read.
    pub size: u64,
    /// How often each disk is filled before anything is measured.
    pub fills: u32,
    /// How long each job runs before it is measured.
    pub ramp: Duration,
    entries: Vec<(Subject, Vec<Job>)>,
}

impl<'w> Rounds<'w> {
    /// Turns in which each job takes `time`, on disks that are filled once and have the size of the scale.
    pub(crate) fn new(work: &'w Workspace, section: &'static str, time: Duration) -> Self {
        let (size, fills, ramp, entries) = (work.scale.disk, 1, Duration::ZERO, Vec::new());
        Rounds { work, section, time, size, fills, ramp, entries }
    }

    /// A subject and its jobs, or more jobs of one that is there.
    pub(crate) fn add(&mut self, subject: Subject, jobs: &[Job]) {
        match self.entries.iter_mut().find(|(known, _)| *known == subject) {
            Some((_, known)) => known.extend(jobs),
            None => self.entries.push((subject, jobs.to_vec())),
        }
    }

    /// Takes all turns, then removes the disks.
    pub(crate) fn run(self) -> Result<Grid> {
        for (subject, _) in &self.entries {
            self.fill(*subject)?;
        }
        let mut grid = Grid::default();
        let jobs = self.all_jobs();
        for repeat in 0..self.work.scale.repeats {
            self.work.goes_on(&format!(
                "{}: repeat {} of {}",
                self.section,
                repeat + 1,
                self.work.scale.repeats
            ))?;
            for job in &jobs {
                let mut takers: Vec<Subject> = self.takers(*job).collect();
                // Nobody always has the place behind the same neighbour.
                if repeat % 2 == 1 {
                    takers.reverse();
                }
                for subject in takers {
                    self.turn(subject, *job, u64::from(repeat) + 1, &mut grid)?;
                }
            }
        }
        for (subject, _) in &self.entries {
            std::fs::remove_file(subject.disk(self.work))
                .map_err(|e| Error::io("cannot remove a disk", &e))?;
        }
        Ok(grid)
    }

    fn fill(&self, subject: Subject) -> Result<()> {
        self.work.goes_on(&format!("{}: filling {}", self.section, subject.name()))?;
        subject.create(self.work, self.size)?;
        let server = self.start(subject)?;
        for seed in 0..self.fills {
            self.perform(subject, &server, Amount::Once, u64::from(seed), FILL)?;
        }
        server.stop()?;
        self.work.settle()
    }

    fn turn(&self, subject: Subject, job: Job, seed: u64, grid: &mut Grid) -> Result<()> {
        let server = self.start(subject)?;
        let rate = self.perform(subject, &server, Amount::Time(self.time), seed, job);
        grid.add(subject, job, rate.map_err(|e| e.context(subject.name()))?);
        server.stop().map_err(|e| e.context(subject.name()))?;
        self.work.settle()
    }

    /// Runs a job on what the subject serves. A job that writes to a hidden level has the same beside it on level 0,
    /// until everything hidden is through.
    fn perform(
        &self,
        subject: Subject,
        server: &Server,
        amount: Amount,
        seed: u64,
        job: Job,
    ) -> Result<Rate> {
        let uri = &server.uri();
        let public = Load { uri, size: self.size, job, amount, ramp: self.ramp, durable: false, seed };
        let Some(hidden) = subject.hidden_export(uri) else { return fio::run(self.work, public) };
        let hidden = Load { uri: &hidden, ..public };
        if job.direction == Direction::Read {
            return fio::run(self.work, hidden);
        }
        let beside = fio::beside(self.work, Load { amount: Amount::Time(LONG), ..public })?;
        let rate = fio::run(self.work, hidden)?;
        fio::run(self.work, Load { durable: true, amount: Amount::Requests(1), ..hidden })?;
        beside.end()?;
        Ok(rate)
    }

    /// Every job of any subject, once, in the order of their first mention.
    fn all_jobs(&self) -> Vec<Job> {
        let mut jobs: Vec<Job> = Vec::new();
        for job in self.entries.iter().flat_map(|(_, jobs)| jobs) {
            if !jobs.contains(job) {
                jobs.push(*job);
            }
        }
        jobs
    }

    fn takers(&self, job: Job) -> impl Iterator<Item = Subject> {
        self.entries.iter().filter(move |(_, jobs)| jobs.contains(&job)).map(|(subject, _)| *subject)
    }

    fn start(&self, subject: Subject) -> Result<Server<'w>> {
        let socket = self.work.path("socket");
        let server = Server::start(self.work, &mut subject.serve(self.work, &socket), &socket)
            .map_err(|e| e.context(subject.name()))?;
        self.warm(subject)?;
        Ok(server)
    }

    /// Reads what the disk holds into the page cache, from which a server drops it when it opens the disk: it is not the medium
    /// that is compared.
    fn warm(&self, subject: Subject) -> Result<()> {
        let disk = subject.disk(self.work);
        if !disk.is_file() {
            return Ok(());
        }
        read_data(&disk).map_err(|e| Error::io(format!("cannot read {}", disk.display()), &e))
    }
}

/// Reads what a file holds, and no holes: a disk with the layout kv has tens of gigabytes of them.
fn read_data(path: &Path) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let mut end = 0;
    loop {
        let data = match seek(&file, SeekFrom::Data(end)) {
            Err(Errno::NXIO) => return Ok(()),
            found => found?,
        };
        end = seek(&file, SeekFrom::Hole(data))?;
        seek(&file, SeekFrom::Start(data))?;
        std::io::copy(&mut (&mut file).take(end - data), &mut std::io::sink())?;
    }
}
