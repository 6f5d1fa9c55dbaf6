//! Two commits beside each other: whether one takes more processor time for a request than the other. Both servers are alive and do
//! short slices of the same job in turns, so that whatever slows the machine slows both; each session starts both anew.

use crate::args::{CompareArgs, Scale};
use crate::client::{Client, Places};
use crate::commits;
use crate::confidence::{Ratio, Verdict};
use crate::disks::{GCM, MAIN, XTS_RANDOM};
use crate::interrupt::Interrupt;
use crate::job::{Direction, Job};
use crate::processor::Processor;
use crate::samples::Samples;
use crate::server::Server;
use crate::subject::{Shape, Subject, Variant, XTS};
use crate::table::Table;
use crate::turn::Work;
use crate::workspace::Workspace;
use lacuna_core::Result;
use std::path::{Path, PathBuf};

/// Bytes of each disk.
const DISK: u64 = 128 << 20;
/// Slices of each server at each job in a session.
const SLICES: u64 = 24;

/// The disks that can be compared, by name.
pub(crate) const SUBJECTS: [(&str, Subject); 5] = [
    ("gcm", GCM),
    ("xts", XTS),
    ("xts-random", XTS_RANDOM),
    ("deniable", Subject::Levels(Shape::Half)),
    ("oblivious", Subject::Oblivious(Variant::Opportunistic)),
];

/// One of the two programs, with a directory of its own.
struct Side {
    work: Workspace,
}

/// What a comparison found: for each disk and job a ratio, and one for each disk over all jobs.
pub(crate) struct Comparison {
    jobs: Vec<(&'static str, String, Ratio)>,
    all: Vec<(&'static str, Ratio)>,
}

/// Compares two commits or programs, and says what came out. The exit code is 1 if the other takes more.
pub(crate) fn run(args: &CompareArgs) -> Result<bool> {
    let interrupt = Interrupt::install()?;
    let programs = [program(&args.one, &interrupt)?, program(&args.other, &interrupt)?];
    let subjects = if args.only.is_empty() { vec![SUBJECTS[0]] } else { args.only.clone() };
    let comparison = compare(&programs, args.sessions, &args.dir, &subjects, &interrupt)?;
    println!("{}", comparison.text(&args.one, &args.other));
    Ok(comparison.verdict() != Verdict::More)
}

/// The program at a path, or of a commit.
fn program(name: &str, interrupt: &Interrupt) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok(path.to_owned());
    }
    commits::program_of(&commits::resolve(name)?, interrupt)
}

/// Compares two programs in some sessions on disks in a directory.
pub(crate) fn compare(
    programs: &[PathBuf; 2],
    sessions: u32,
    dir: &Path,
    subjects: &[(&'static str, Subject)],
    interrupt: &Interrupt,
) -> Result<Comparison> {
    let side = |program: &PathBuf| -> Result<Side> {
        Ok(Side { work: Workspace::new(dir, program.clone(), Scale::new(false, None), interrupt.clone())? })
    };
    let sides = [side(&programs[0])?, side(&programs[1])?];
    let mut found = Comparison { jobs: Vec::new(), all: Vec::new() };
    for &(name, subject) in subjects {
        for side in &sides {
            side.work.goes_on(&format!("compare: filling {name}"))?;
            side.fill(subject)?;
        }
        let mut by_job = vec![Samples::default(); MAIN.len()];
        let mut all = Samples::default();
        for session in 0..sessions {
            sides[0].work.goes_on(&format!("compare: {name}, session {} of {sessions}", session + 1))?;
            let ratios = hold_session(&sides, subject, u64::from(session))?;
            ratios.iter().zip(&mut by_job).for_each(|(ratio, samples)| samples.push(*ratio));
            let logs: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
            all.push((logs / ratios.len() as f64).exp());
        }
        let jobs = MAIN.iter().zip(&by_job);
        found.jobs.extend(jobs.map(|(job, ratios)| (name, job.name(), Ratio::of(ratios))));
        found.all.push((name, Ratio::of(&all)));
        for side in &sides {
            let disk = subject.disk(&side.work);
            std::fs::remove_file(disk).map_err(|e| lacuna_core::Error::io("cannot remove a disk", &e))?;
        }
    }
    Ok(found)
}

impl Side {
    fn start(&self, subject: Subject) -> Result<Server<'_>> {
        let socket = self.work.path("socket");
        Server::start(&self.work, &mut subject.serve(&self.work, &socket), &socket)
    }

    fn fill(&self, subject: Subject) -> Result<()> {
        subject.create(&self.work, DISK)?;
        let server = self.start(subject)?;
        let job = Job::of_size(Direction::Write, 1 << 20);
        let work = Work { job, disk: DISK, requests: job.requests(DISK), export: "", beside: None, seed: 0 };
        work.perform(&server)?;
        server.stop()?;
        self.work.settle()
    }
}

/// Starts both servers, has them do all jobs in turns, and ends them: the ratio of the processor times at each job.
fn hold_session(sides: &[Side; 2], subject: Subject, session: u64) -> Result<Vec<f64>> {
    // Each is started first, and begins each job, in half of the sessions.
    let first = (session % 2) as usize;
    let mut servers = [(first, sides[first].start(subject)?), (1 - first, sides[1 - first].start(subject)?)];
    servers.sort_by_key(|(side, _)| *side);
    let mut runners = Vec::new();
    for (_, server) in &servers {
        let work = Work { job: MAIN[0], disk: DISK, requests: 0, export: "", beside: None, seed: 0 };
        work.prepare(&sides[0].work, server)?;
        runners.push(Runner {
            client: Client::connect(server.socket(), "")?,
            clocks: Processor::of(server.pid())?,
            spent: Vec::new(),
        });
    }
    let mut ratios = Vec::new();
    for (nth, job) in MAIN.into_iter().enumerate() {
        let mut places = [(); 2].map(|()| Places::new(session * MAIN.len() as u64 + nth as u64));
        for slice in 0..SLICES {
            // One, other, other, one: what drifts weighs on both.
            let begins = if slice.div_ceil(2) % 2 == 1 { 1 - first } else { first };
            for side in [begins, 1 - begins] {
                runners[side].slice(job, &mut places[side])?;
            }
        }
        let [one, other] = [0, 1].map(|side| runners[side].lower_quartile());
        ratios.push(other? / one?);
        sides[0].work.settle()?;
    }
    drop(runners);
    for (_, server) in servers {
        server.stop()?;
    }
    Ok(ratios)
}

/// A client of one of the servers.
struct Runner {
    client: Client,
    clocks: Processor,
    /// Processor time of the server up to the beginning of each slice: what it does behind a slice belongs to that slice.
    spent: Vec<f64>,
}

impl Runner {
    fn slice(&mut self, job: Job, places: &mut Places) -> Result<()> {
        self.spent.push(self.clocks.total()?.as_secs_f64());
        let requests = (u64::from(16u32) << 20).div_ceil(u64::from(job.size)).min(512);
        self.client.perform(job, DISK, places, requests, drop)
    }

    /// Ends a job: the lower quartile of the times between the beginnings of slices.
    fn lower_quartile(&mut self) -> Result<f64> {
        self.client.flush()?;
        let spent = std::mem::take(&mut self.spent);
        let slices: Samples = spent.windows(2).map(|pair| pair[1] - pair[0]).collect();
        Ok(slices.lower_quartile())
    }
}

impl Comparison {
    /// More, if at any disk the other takes more in all jobs together or in one of them; else less, if it does so at any.
    pub(crate) fn verdict(&self) -> Verdict {
        let mut verdicts: Vec<Verdict> = self.all.iter().map(|(_, ratio)| ratio.verdict).collect();
        verdicts.extend(self.jobs.iter().map(|(.., ratio)| ratio.verdict));
        let has = |wanted| verdicts.contains(&wanted);
        if has(Verdict::More) {
            Verdict::More
        } else if has(Verdict::Less) {
            Verdict::Less
        } else {
            Verdict::Same
        }
    }

    /// The ratio at the first disk over all jobs.
    pub(crate) fn overall(&self) -> Ratio {
        self.all[0].1
    }

    fn text(&self, one: &str, other: &str) -> String {
        let columns = ["disk", "job", "ratio", "99.9 % confidence", "verdict"];
        let mut table = Table::new(format!("Processor time of {other} to {one}"), columns);
        let cells = |ratio: &Ratio| {
            let (low, high) = ratio.interval;
            [format!("{:.3}", ratio.median), format!("{low:.3} to {high:.3}"), ratio.verdict.to_string()]
        };
        for (disk, job, ratio) in &self.jobs {
            table.row(*disk, std::iter::once(job.clone()).chain(cells(ratio)));
        }
        for (disk, ratio) in &self.all {
            table.row(*disk, std::iter::once("all jobs".to_owned()).chain(cells(ratio)));
        }
        table.text()
    }
}
