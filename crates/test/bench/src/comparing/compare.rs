//! Compares two commits: whether the second takes more processor time per request than the first.
//! Both servers run at the same time and take turns at short slices of the same job, so that a
//! disturbance of the machine slows both; each session starts both anew.

use crate::args::CompareArgs;
use crate::comparing::commits;
use crate::comparing::compared_disks::SUBJECTS;
use crate::comparing::confidence::{Ratio, RatioVerdict};
use crate::interrupt::Interrupt;
use crate::measuring::samples::Samples;
use crate::nbd::disks::{MAIN, SYNCED};
use crate::pages::table::Table;
use crate::serving::job::{Direction, IoJob};
use crate::serving::request_offsets::WritePosition;
use crate::serving::scale::Scale;
use crate::serving::server::RunningServer;
use crate::serving::side_by_side::{JobTime, SliceSession};
use crate::serving::subject::Subject;
use crate::serving::turn::Task;
use crate::workspace::Workspace;
use lacuna_contracts::{Error, Result};
use std::path::{Path, PathBuf};

/// Bytes of each disk.
const DISK: u64 = 128 << 20;
/// Sessions with the same disks.
const SESSIONS_OF_A_DISK: u32 = 4;
/// Slices of each server for each job in a session, by default.
pub(crate) const SLICES: u64 = 24;

/// The jobs of both servers.
const JOBS: [IoJob; 5] = [MAIN[0], MAIN[1], MAIN[2], MAIN[3], SYNCED[0]];

/// One of the two programs, with a workspace of its own.
struct ComparedProgram {
    work: Workspace,
}

/// Two ratios of the second program's processor time to that of the first: by the lower quartile of
/// the slices, which is precise but ignores work in only a few slices, and by their sum, which
/// covers everything but is less precise.
#[derive(Clone, Copy)]
pub(crate) struct Ratios {
    pub quartile: Ratio,
    pub sum: Ratio,
}

/// The ratios of several sessions.
#[derive(Clone, Default)]
struct Sessions {
    quartile: Samples,
    sum: Samples,
}

/// The result of a comparison: ratios for each disk and job, and for each disk over all jobs.
pub(crate) struct Comparison {
    jobs: Vec<(&'static str, String, Ratios)>,
    all: Vec<(&'static str, Ratios)>,
}

/// Compares two commits or programs and prints the result. Returns false, for exit code 1, if the
/// second takes more processor time.
pub(crate) fn run(args: &CompareArgs) -> Result<bool> {
    let interrupt = Interrupt::install()?;
    let programs = [program(&args.one, &interrupt)?, program(&args.other, &interrupt)?];
    let subjects = if args.only.is_empty() { vec![SUBJECTS[0]] } else { args.only.clone() };
    let slices = args.slices.unwrap_or(SLICES);
    let comparison = compare(&programs, args.sessions, slices, &args.dir, &subjects, &interrupt)?;
    println!("{}", comparison.text(&args.one, &args.other));
    Ok(comparison.verdict() != RatioVerdict::More)
}

/// The program at a path, or that of a commit.
fn program(name: &str, interrupt: &Interrupt) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok(path.to_owned());
    }
    commits::build_program(&commits::resolve(name)?, interrupt)
}

/// Compares two programs in sessions, with disks in `dir` and `slices` slices of each server for
/// each job in a session.
pub(crate) fn compare(
    programs: &[PathBuf; 2],
    sessions: u32,
    slices: u64,
    dir: &Path,
    subjects: &[(&'static str, Subject)],
    interrupt: &Interrupt,
) -> Result<Comparison> {
    let side = |program: &PathBuf| -> Result<ComparedProgram> {
        Ok(ComparedProgram {
            work: Workspace::new(dir, program.clone(), Scale::new(false, None), interrupt.clone())?,
        })
    };
    let sides = [side(&programs[0])?, side(&programs[1])?];
    let mut found = Comparison { jobs: Vec::new(), all: Vec::new() };
    for &(name, subject) in subjects {
        let mut by_job = vec![Sessions::default(); JOBS.len()];
        let mut all = Sessions::default();
        let mut position = WritePosition::default();
        for session in 0..sessions {
            sides[0]
                .work
                .report_progress(&format!("compare: {name}, session {} of {sessions}", session + 1))?;
            if session % SESSIONS_OF_A_DISK == 0 {
                make_disks(&sides, subject, session / SESSIONS_OF_A_DISK)?;
                position = WritePosition::default();
            }
            let session =
                SliceSession { jobs: &JOBS, slices, disk: DISK, number: session.into(), position: &position };
            let ratios = run_session(&sides, subject, session)?;
            ratios.iter().zip(&mut by_job).for_each(|(ratio, sessions)| sessions.push(*ratio));
            all.push([0, 1].map(|kind| geometric_mean(ratios.iter().map(|pair| pair[kind]))));
        }
        let jobs = JOBS.iter().zip(&by_job);
        found.jobs.extend(jobs.map(|(job, sessions)| (name, job.name(), sessions.ratios())));
        found.all.push((name, all.ratios()));
        sides.iter().try_for_each(|side| side.remove(subject))?;
    }
    Ok(found)
}

/// Creates and fills the disks of both anew; each side is first in half of the cases, because the
/// place of a disk affects its cost.
fn make_disks(sides: &[ComparedProgram; 2], subject: Subject, time: u32) -> Result<()> {
    sides
        .iter()
        .filter(|side| subject.disk(&side.work).exists())
        .try_for_each(|side| side.remove(subject))?;
    let first = (time % 2) as usize;
    [first, 1 - first].into_iter().try_for_each(|side| sides[side].fill(subject))
}

fn geometric_mean(ratios: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = ratios.len() as f64;
    (ratios.map(f64::ln).sum::<f64>() / count).exp()
}

impl Sessions {
    fn push(&mut self, [quartile, sum]: [f64; 2]) {
        self.quartile.push(quartile);
        self.sum.push(sum);
    }

    fn ratios(&self) -> Ratios {
        Ratios { quartile: Ratio::of(&self.quartile), sum: Ratio::of(&self.sum) }
    }
}

impl ComparedProgram {
    fn start(&self, subject: Subject) -> Result<RunningServer<'_>> {
        let socket = self.work.path("socket");
        RunningServer::start(&self.work, &mut subject.serve(&self.work, &socket)?, &socket)
    }

    fn remove(&self, subject: Subject) -> Result<()> {
        std::fs::remove_file(subject.disk(&self.work)).map_err(|e| Error::io("cannot remove a disk", &e))
    }

    fn fill(&self, subject: Subject) -> Result<()> {
        subject.create(&self.work, DISK)?;
        let server = self.start(subject)?;
        let job = IoJob::of_size(Direction::Write, 1 << 20);
        Task::alone(job, DISK, job.requests(DISK), 0).perform(&server)?;
        server.stop()?;
        self.work.write_back()
    }
}

/// Starts both servers, lets them do all jobs in turns, and stops them. Returns the ratios of the
/// processor times for each job, by the lower quartile and by the sum of the slices.
fn run_session(
    sides: &[ComparedProgram; 2],
    subject: Subject,
    session: SliceSession<'_>,
) -> Result<Vec<[f64; 2]>> {
    // Each side is started first in half of the sessions.
    let first = (session.number % 2) as usize;
    let mut servers = [(first, sides[first].start(subject)?), (1 - first, sides[1 - first].start(subject)?)];
    servers.sort_by_key(|(side, _)| *side);
    let spent = session.run(&sides[0].work, &servers.each_ref().map(|(_, server)| server))?;
    for (_, server) in servers {
        server.stop()?;
    }
    let ratios = |of_job: Vec<JobTime>| {
        let (one, other) = (of_job[0], of_job[1]);
        [other.quartile / one.quartile, other.sum / one.sum]
    };
    Ok(spent.into_iter().map(ratios).collect())
}

impl Comparison {
    /// `More` if the second takes more for any disk, in all jobs together or in one of them;
    /// otherwise `Less` if it takes less for any.
    pub(crate) fn verdict(&self) -> RatioVerdict {
        let all =
            self.all.iter().map(|(_, ratios)| ratios).chain(self.jobs.iter().map(|(.., ratios)| ratios));
        let verdicts: Vec<RatioVerdict> =
            all.flat_map(|ratios| [ratios.quartile.verdict, ratios.sum.verdict]).collect();
        let has = |wanted| verdicts.contains(&wanted);
        if has(RatioVerdict::More) {
            RatioVerdict::More
        } else if has(RatioVerdict::Less) {
            RatioVerdict::Less
        } else {
            RatioVerdict::Same
        }
    }

    /// The ratios for the first disk over all jobs.
    pub(crate) fn overall(&self) -> Ratios {
        self.all[0].1
    }

    fn text(&self, one: &str, other: &str) -> String {
        let columns =
            ["disk", "job", "lower quartile", "99.9 % confidence", "", "sum", "99.9 % confidence", ""];
        let mut table = Table::new(format!("Processor time of {other} to {one}"), columns);
        let cells = |ratios: &Ratios| {
            let cells = |ratio: Ratio| {
                let (low, high) = ratio.interval;
                [format!("{:.3}", ratio.median), format!("{low:.3} to {high:.3}"), ratio.verdict.to_string()]
            };
            [cells(ratios.quartile), cells(ratios.sum)].concat()
        };
        for (disk, job, ratios) in &self.jobs {
            table.row(*disk, std::iter::once(job.clone()).chain(cells(ratios)));
        }
        for (disk, ratios) in &self.all {
            table.row(*disk, std::iter::once("all jobs".to_owned()).chain(cells(ratios)));
        }
        table.text()
    }
}
