//! The load: `fio` with its NBD engine, one invocation for a list of jobs that run one after the other.

use crate::program;
use crate::workspace::Workspace;
use lacuna_core::{Error, Kind, Result};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Whether a job reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

impl Direction {
    /// The word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    /// Reads or writes.
    pub direction: Direction,
    /// Whether addresses are random.
    pub random: bool,
    /// Bytes per request.
    pub size: u32,
    /// Requests under way.
    pub depth: u32,
    /// A flush after so many writes.
    pub fsync: Option<u32>,
}

impl Job {
    /// For people: `random 4 KiB write, depth 32`.
    pub(crate) fn name(&self) -> String {
        let order = if self.random { "random" } else { "sequential" };
        let fsync = self.fsync.map(|n| format!(", fsync every {n}")).unwrap_or_default();
        format!("{order} {} {}, depth {}{fsync}", size_name(self.size), self.direction.name(), self.depth)
    }

    fn mode(&self) -> String {
        format!("{}{}", if self.random { "rand" } else { "" }, self.direction.name())
    }
}

/// `4 KiB`, `1 MiB`.
pub(crate) fn size_name(bytes: u32) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// How much each job of an invocation does.
#[derive(Clone, Copy)]
pub(crate) enum Amount {
    /// The whole disk once.
    Once,
    /// As much as fits in this time, from the start again where the disk ends.
    Time(Duration),
    /// So many requests.
    Requests(u32),
}

/// An invocation.
pub(crate) struct Load<'a> {
    /// The server.
    pub uri: &'a str,
    /// Bytes of the disk.
    pub size: u64,
    /// How much each job does.
    pub amount: Amount,
    /// How long a timed job runs before its rate counts.
    pub ramp: Duration,
    /// Whether a job that writes ends when what it wrote is durable, which its rate then counts.
    pub durable: bool,
    /// Decides the addresses; the same for all servers.
    pub seed: u64,
    /// The jobs.
    pub jobs: &'a [Job],
}

/// What a job reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Bytes per second.
    pub bytes: f64,
    /// Requests per second.
    pub requests: f64,
}

/// An error if `fio` or its NBD engine is missing.
pub(crate) fn available() -> Result<()> {
    program::output(Command::new("fio").arg("--enghelp=nbd")).map(drop).map_err(|e| {
        e.context("cannot measure without fio and its nbd engine").remedy("install fio, built with libnbd")
    })
}

/// The options that are the same for every job, for the record.
pub(crate) const SHARED_OPTIONS: [&str; 6] = [
    "--ioengine=nbd",
    "--refill_buffers=0",
    "--buffer_compress_percentage=0",
    "--end_fsync=0",
    "--norandommap=1",
    "--allrandrepeat=0",
];

/// How often jobs are run in one of which nothing was done.
const TRIES: usize = 5;

/// Runs the jobs and gives their rates in the same order.
pub(crate) fn run(work: &Workspace, load: &Load<'_>) -> Result<Vec<Rate>> {
    // A medium that stalls for longer than a short job takes says nothing of its rate.
    for _ in 0..TRIES {
        if let Some(rates) = run_once(work, load)? {
            return Ok(rates);
        }
    }
    Err(Error::new(Kind::Other, "cannot use what fio wrote")
        .found(format!("nothing done in one of the jobs, {TRIES} times"))
        .expected("the rate of each job"))
}

/// None if a job did nothing in its time.
fn run_once(work: &Workspace, load: &Load<'_>) -> Result<Option<Vec<Rate>>> {
    let out = work.path("fio.json");
    let mut child = start(load, &out)?;
    let status = loop {
        work.interrupt.check()?;
        match child.0.try_wait().map_err(failed)? {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let text = std::fs::read_to_string(&out).map_err(|e| Error::io("cannot read what fio wrote", &e))?;
    if !status.success() {
        let start: String = text.chars().take(500).collect();
        return Err(Error::new(Kind::Other, "fio failed").found(format!("{status}: {start}")));
    }
    parse(&text, load.jobs)
}

/// A load that goes on beside others until this is dropped. Nobody asks for its rates.
pub(crate) struct Beside(Guard);

impl Beside {
    /// Ends it. An error if it has ended by itself, and so was not there all the time.
    pub(crate) fn end(mut self) -> Result<()> {
        match self.0.0.try_wait().map_err(failed)? {
            None => Ok(()),
            Some(status) => Err(Error::new(Kind::Other, "the load beside the one that counts has ended")
                .found(status.to_string())
                .expected("that it goes on")),
        }
    }
}

/// Starts a load beside others.
pub(crate) fn beside(work: &Workspace, load: &Load<'_>) -> Result<Beside> {
    start(load, &work.path("fio-beside.json")).map(Beside)
}

fn failed(e: std::io::Error) -> Error {
    Error::io("cannot run fio", &e)
}

fn start(load: &Load<'_>, out: &Path) -> Result<Guard> {
    let mut command = Command::new("fio");
    command.arg("--output-format=json").arg(format!("--output={}", out.display()));
    command.args(arguments(load));
    // What goes wrong, fio also writes into its output file.
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.map(Guard).map_err(failed)
}

fn arguments(load: &Load<'_>) -> Vec<String> {
    let mut words = vec!["--name=global".to_owned()];
    words.extend(SHARED_OPTIONS.map(str::to_owned));
    words.push(format!("--uri={}", load.uri));
    words.push(format!("--size={}", load.size));
    words.push(format!("--randseed={}", load.seed));
    match load.amount {
        Amount::Once => {}
        Amount::Time(time) => {
            words.extend(["--time_based".into(), format!("--runtime={}ms", time.as_millis())]);
            words.push(format!("--ramp_time={}ms", load.ramp.as_millis()));
        }
        Amount::Requests(count) => words.push(format!("--number_ios={count}")),
    }
    for (i, job) in load.jobs.iter().enumerate() {
        words.push(format!("--name=job{i}"));
        words.push("--stonewall".to_owned());
        words.push(format!("--rw={}", job.mode()));
        words.push(format!("--bs={}", job.size));
        words.push(format!("--iodepth={}", job.depth));
        words.extend(job.fsync.map(|n| format!("--fsync={n}")));
        let durable = load.durable && job.direction == Direction::Write;
        words.extend(durable.then(|| "--end_fsync=1".to_owned()));
    }
    words
}

/// The rates of jobs; none if one of them did nothing.
fn parse(text: &str, jobs: &[Job]) -> Result<Option<Vec<Rate>>> {
    let strange = |found: String| {
        Error::new(Kind::Other, "cannot use what fio wrote").found(found).expected("the rate of each job")
    };
    // Messages may stand in front of the JSON.
    let start = text.find('{').unwrap_or(0);
    let json: Value = serde_json::from_str(&text[start..]).map_err(|e| strange(e.to_string()))?;
    let results = json["jobs"].as_array().filter(|r| r.len() == jobs.len());
    let results = results.ok_or_else(|| strange("another number of jobs".into()))?;
    let rate = |(job, result): (&Job, &Value)| {
        if result["error"].as_i64() != Some(0) {
            return Err(strange(format!("error {} in {}", result["error"], job.name())));
        }
        let part = &result[job.direction.name()];
        match (part["bw_bytes"].as_f64(), part["iops"].as_f64()) {
            (Some(bytes), Some(requests)) => Ok((requests > 0.0).then_some(Rate { bytes, requests })),
            _ => Err(strange(format!("no rate of {}", job.name()))),
        }
    };
    jobs.iter().zip(results).map(rate).collect()
}

/// Ends the process if it has not ended by itself.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // Both fail harmlessly if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Job =
        Job { direction: Direction::Write, random: true, size: 4096, depth: 32, fsync: Some(32) };

    #[test]
    fn a_job_has_a_name_for_people() {
        assert_eq!(JOB.name(), "random 4 KiB write, depth 32, fsync every 32");
        assert_eq!(JOB.mode(), "randwrite");
    }

    #[test]
    fn rates_are_read_from_json_behind_messages() {
        let text = r#"note: hello
            {"jobs":[{"error":0,"write":{"bw_bytes":8192,"iops":2.0}}]}"#;
        assert_eq!(parse(text, &[JOB]).unwrap().unwrap(), [Rate { bytes: 8192.0, requests: 2.0 }]);
    }

    #[test]
    fn failed_and_missing_jobs_are_errors_and_idle_ones_have_no_rates() {
        for text in [
            "",
            "{}",
            r#"{"jobs":[]}"#,
            r#"{"jobs":[{"error":5,"write":{"bw_bytes":8192,"iops":2.0}}]}"#,
            r#"{"jobs":[{"error":0,"read":{"bw_bytes":8192,"iops":2.0}}]}"#,
        ] {
            assert!(parse(text, &[JOB]).is_err(), "{text}");
        }
        let idle = r#"{"jobs":[{"error":0,"write":{"bw_bytes":0,"iops":0}}]}"#;
        assert!(parse(idle, &[JOB]).unwrap().is_none());
    }
}
