//! The rounds: every subject's disk is created and filled; then in each round each job goes to one
//! subject after another, so that compared figures are measured within seconds of each other. One
//! more round, in the middle, is counted and not timed.

use crate::measuring::counters;
use crate::serving::grid::Grid;
use crate::serving::job::{CacheState, Direction, IoJob};
use crate::serving::request_offsets::WritePositions;
use crate::serving::server::RunningServer;
use crate::serving::subject::Subject;
use crate::serving::turn::Task;
use crate::workspace::Workspace;
use lacuna_contracts::{Error, Result};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const FILL: IoJob = IoJob::of_size(Direction::Write, 1 << 20);
/// The exports of a disk with levels.
const PUBLIC: &str = "";
const HIDDEN: &str = "1";

/// The rounds of one section.
pub(crate) struct Rounds<'w> {
    work: &'w Workspace,
    section: &'static str,
    /// Bytes of every disk that are written and read.
    size: u64,
    /// Number of times that each disk is filled before the measurements.
    pub fills: u32,
    /// Divisor of the requests of a turn; sequential writes cover the disk in any case.
    pub requests_divisor: u64,
    entries: Vec<(Subject, Vec<IoJob>)>,
    /// The places where the sequential writes to each disk go on from turn to turn.
    positions: HashMap<Subject, WritePositions>,
}

impl<'w> Rounds<'w> {
    /// Rounds on disks of the scale's size that are filled once.
    pub(crate) fn new(work: &'w Workspace, section: &'static str) -> Self {
        Rounds {
            work,
            section,
            size: work.scale.disk,
            fills: 1,
            requests_divisor: 1,
            entries: Vec::new(),
            positions: HashMap::new(),
        }
    }

    /// Adds a subject with its jobs, or jobs to a known subject.
    pub(crate) fn add(&mut self, subject: Subject, jobs: &[IoJob]) {
        self.positions.entry(subject).or_default();
        match self.entries.iter_mut().find(|(known, _)| *known == subject) {
            Some((_, known)) => known.extend(jobs),
            None => self.entries.push((subject, jobs.to_vec())),
        }
    }

    /// Runs all turns, then removes the disks.
    pub(crate) fn run(self) -> Result<Grid> {
        for (subject, _) in &self.entries {
            self.fill(*subject)?;
        }
        let mut grid = Grid::default();
        let (jobs, rounds) = (self.all_jobs(), self.work.scale.rounds);
        let is_counting = counters::unavailable_reason().is_none();
        for round in 0..rounds {
            // The jobs change the disks, most of all the first ones after the fills. So the counts
            // are those of the disks in the middle of the timed turns.
            if is_counting && round == rounds / 2 {
                // A quick run counts only one job.
                let counted = if self.work.scale.quick { 1 } else { jobs.len() };
                self.count(&jobs[..counted], &mut grid)?;
            }
            self.work.report_progress(&format!("{}: round {} of {rounds}", self.section, round + 1))?;
            self.time(round, &jobs, &mut grid)?;
        }
        self.measure_stops(is_counting, &mut grid)?;
        grid.subtract_stop_costs();
        for (subject, _) in &self.entries {
            std::fs::remove_file(subject.disk(self.work))
                .map_err(|e| Error::io("cannot remove a disk", &e))?;
        }
        Ok(grid)
    }

    /// One round of these jobs, timed.
    fn time(&self, round: u32, jobs: &[IoJob], grid: &mut Grid) -> Result<()> {
        for job in jobs {
            let mut takers: Vec<Subject> = self.subjects_of(*job).collect();
            // Every subject follows each neighbour in half of the rounds.
            if round % 2 == 1 {
                takers.reverse();
            }
            for subject in takers {
                self.work.interrupt.check()?;
                let work = self.task_for(subject, *job, u64::from(round) + 1);
                let server = self.start_ready(subject, work)?;
                let took = work.timed(server).map_err(|e| e.context(subject.name()))?;
                grid.add(subject, *job, &took);
                self.work.write_back()?;
            }
        }
        Ok(())
    }

    /// One round of these jobs, not timed: the kernel counts the servers' operations.
    fn count(&self, jobs: &[IoJob], grid: &mut Grid) -> Result<()> {
        self.work.report_progress(&format!("{}: counting", self.section))?;
        for (job, subject) in jobs.iter().flat_map(|job| self.subjects_of(*job).map(move |s| (*job, s))) {
            self.work.interrupt.check()?;
            let work = self.task_for(subject, job, 0);
            let server = self.start_ready(subject, work)?;
            let counts = work.counted(self.work, server).map_err(|e| e.context(subject.name()))?;
            grid.turns_mut(subject, job).count(counts);
            self.work.write_back()?;
        }
        Ok(())
    }

    /// Counts and measures the ends of sessions, after all turns. A disk with levels writes cover
    /// at each close, an eighth of its log. With a second close between two jobs, the head of a
    /// full log would pass the spare room and stand in the middle of live blocks.
    fn measure_stops(&self, is_counting: bool, grid: &mut Grid) -> Result<()> {
        self.work.report_progress(&format!("{}: ends of sessions", self.section))?;
        if is_counting {
            for subject in self.writers() {
                self.work.interrupt.check()?;
                let counts = self.one_write().counted_stop(self.work, self.start_to_stop(subject)?);
                grid.stop_costs_mut(subject).count(counts.map_err(|e| e.context(subject.name()))?);
                self.work.write_back()?;
            }
        }
        // They vary less than jobs, so one for two rounds is enough.
        for subject in (0..self.work.scale.rounds.div_ceil(2)).flat_map(|_| self.writers()) {
            self.work.interrupt.check()?;
            let ending = self.one_write().measure_stop(self.start_to_stop(subject)?);
            grid.stop_costs_mut(subject).push(&ending.map_err(|e| e.context(subject.name()))?);
            self.work.write_back()?;
        }
        Ok(())
    }

    /// The task of a job. A job that writes to a hidden level has equal writes to level 0 beside
    /// it, until all hidden writes are done. Sequential writes go on where the last ones ended.
    fn task_for(&self, subject: Subject, job: IoJob, seed: u64) -> Task<'_> {
        let hidden = subject.has_hidden_level();
        let export = if hidden { HIDDEN } else { PUBLIC };
        let beside = (hidden && job.direction == Direction::Write).then_some(PUBLIC);
        let requests = job.requests_of_turn(self.size, self.requests_divisor);
        let positions = self.positions.get(&subject);
        Task { job, disk: self.size, requests, export, cover_export: beside, seed, positions }
    }

    /// The smallest task that makes a session one with writes.
    fn one_write(&self) -> Task<'static> {
        let job = IoJob { depth: 1, ..IoJob::of_size(Direction::Write, 4096) };
        Task::alone(job, self.size, 1, 0)
    }

    /// All subjects with a job that writes.
    fn writers(&self) -> impl Iterator<Item = Subject> {
        let writes = |jobs: &[IoJob]| jobs.iter().any(|job| job.direction == Direction::Write);
        self.entries.iter().filter(move |(_, jobs)| writes(jobs)).map(|(subject, _)| *subject)
    }

    fn fill(&self, subject: Subject) -> Result<()> {
        self.work.report_progress(&format!("{}: filling {}", self.section, subject.name()))?;
        subject.create(self.work, self.size)?;
        let server = self.start(subject)?;
        for seed in 0..self.fills {
            let work = self.task_for(subject, FILL, u64::from(seed));
            let work = Task { requests: self.size / u64::from(FILL.size), ..work };
            work.perform(&server).map_err(|e| e.context(subject.name()))?;
        }
        server.stop()?;
        self.work.write_back()
    }

    /// Starts a server, with its caches in the state that the job requires.
    fn start_ready(&self, subject: Subject, work: Task<'_>) -> Result<RunningServer<'w>> {
        if work.job.caches != CacheState::Cold {
            let disk = subject.disk(self.work);
            read_data(&disk).map_err(|e| Error::io(format!("cannot read {}", disk.display()), &e))?;
        }
        let server = self.start(subject)?;
        work.prepare(self.work, &server).map_err(|e| e.context(subject.name()))?;
        Ok(server)
    }

    /// Starts a server for the end of a session, with the caches that it would have at a job.
    fn start_to_stop(&self, subject: Subject) -> Result<RunningServer<'w>> {
        self.start_ready(subject, self.task_for(subject, self.one_write().job, 0))
    }

    fn start(&self, subject: Subject) -> Result<RunningServer<'w>> {
        let socket = self.work.path("socket");
        RunningServer::start(self.work, &mut subject.serve(self.work, &socket)?, &socket)
            .map_err(|e| e.context(subject.name()))
    }

    /// Every job of any subject, once, in the order of first mention.
    fn all_jobs(&self) -> Vec<IoJob> {
        let mut jobs: Vec<IoJob> = Vec::new();
        for job in self.entries.iter().flat_map(|(_, jobs)| jobs) {
            if !jobs.contains(job) {
                jobs.push(*job);
            }
        }
        jobs
    }

    fn subjects_of(&self, job: IoJob) -> impl Iterator<Item = Subject> {
        self.entries.iter().filter(move |(_, jobs)| jobs.contains(&job)).map(|(subject, _)| *subject)
    }
}

/// Reads the data of a file, without its holes.
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
