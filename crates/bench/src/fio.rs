//! The load: `fio` with its NBD engine, one invocation for each job.

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
    Read,
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
}

/// `4 KiB`, `1 MiB`.
pub(crate) fn size_name(bytes: u32) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// How much a job does.
#[derive(Clone, Copy)]
pub(crate) enum Amount {
    /// The whole disk once.
    Once,
    /// As much as fits in this time, from the start again where the disk ends.
    Time(Duration),
    /// So many requests.
    Requests(u32),
}

/// A job on a disk.
#[derive(Clone, Copy)]
pub(crate) struct Load<'a> {
    /// The server.
    pub uri: &'a str,
    /// Bytes of the disk.
    pub size: u64,
    /// What is done.
    pub job: Job,
    /// How much of it.
    pub amount: Amount,
    /// How long a timed job runs before its rate counts.
    pub ramp: Duration,
    /// Whether a job that writes ends when what it wrote is durable, which its rate then counts.
    pub durable: bool,
    /// Decides the addresses; the same for all servers.
    pub seed: u64,
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

/// How often a job is run in which nothing was done.
const TRIES: usize = 5;

/// Runs a job.
pub(crate) fn run(work: &Workspace, load: Load<'_>) -> Result<Rate> {
    // A medium that stalls for longer than a short job takes says nothing of its rate.
    for _ in 0..TRIES {
        if let Some(rate) = run_once(work, load)? {
            return Ok(rate);
        }
    }
    Err(strange(format!("nothing done in {}, {TRIES} times", load.job.name())))
}

/// None if nothing was done.
fn run_once(work: &Workspace, load: Load<'_>) -> Result<Option<Rate>> {
    let out = work.path("fio.json");
    let mut child = start(load, &out)?;
    let status = loop {
        work.interrupt.check()?;
        match child.0.try_wait().map_err(|e| failed(&e))? {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let text = std::fs::read_to_string(&out).map_err(|e| Error::io("cannot read what fio wrote", &e))?;
    if !status.success() {
        let start: String = text.chars().take(500).collect();
        return Err(Error::new(Kind::Other, "fio failed").found(format!("{status}: {start}")));
    }
    parse(&text, load.job)
}

/// A load that goes on beside others until this is dropped. Nobody asks for its rates.
pub(crate) struct Beside(Guard);

impl Beside {
    /// Ends it. An error if it has ended by itself, and so was not there all the time.
    pub(crate) fn end(mut self) -> Result<()> {
        match self.0.0.try_wait().map_err(|e| failed(&e))? {
            None => Ok(()),
            Some(status) => Err(Error::new(Kind::Other, "the load beside the one that counts has ended")
                .found(status.to_string())
                .expected("that it goes on")),
        }
    }
}

/// Starts a load beside others.
pub(crate) fn beside(work: &Workspace, load: Load<'_>) -> Result<Beside> {
    start(load, &work.path("fio-beside.json")).map(Beside)
}

fn failed(e: &std::io::Error) -> Error {
    Error::io("cannot run fio", e)
}

fn start(load: Load<'_>, out: &Path) -> Result<Guard> {
    let mut command = Command::new("fio");
    command.arg("--output-format=json").arg(format!("--output={}", out.display()));
    command.args(arguments(load));
    // What goes wrong, fio also writes into its output file.
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.map(Guard).map_err(|e| failed(&e))
}

fn arguments(load: Load<'_>) -> Vec<String> {
    let mut words = vec!["--name=job".to_owned()];
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
    let Job { direction, random, size, depth, fsync } = load.job;
    let order = if random { "rand" } else { "" };
    words.push(format!("--rw={order}{}", direction.name()));
    words.push(format!("--bs={size}"));
    words.push(format!("--iodepth={depth}"));
    words.extend(fsync.map(|n| format!("--fsync={n}")));
    let durable = load.durable && direction == Direction::Write;
    words.extend(durable.then(|| "--end_fsync=1".to_owned()));
    words
}

fn strange(found: impl Into<String>) -> Error {
    Error::new(Kind::Other, "cannot use what fio wrote").found(found).expected("the rate of a job")
}

/// The rate of a job; none if it did nothing.
fn parse(text: &str, job: Job) -> Result<Option<Rate>> {
    // Messages may stand in front of the JSON.
    let start = text.find('{').unwrap_or(0);
    let json: Value = serde_json::from_str(&text[start..]).map_err(|e| strange(e.to_string()))?;
    let result = &json["jobs"][0];
    if result["error"].as_i64() != Some(0) {
        return Err(strange(format!("error {} in {}", result["error"], job.name())));
    }
    let part = &result[job.direction.name()];
    match (part["bw_bytes"].as_f64(), part["iops"].as_f64()) {
        (Some(bytes), Some(requests)) => Ok((requests > 0.0).then_some(Rate { bytes, requests })),
        _ => Err(strange(format!("no rate of {}", job.name()))),
    }
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
    }

    #[test]
    fn rates_are_read_from_json_behind_messages() {
        let text = r#"note: hello
            {"jobs":[{"error":0,"write":{"bw_bytes":8192,"iops":2.0}}]}"#;
        assert_eq!(parse(text, JOB).unwrap(), Some(Rate { bytes: 8192.0, requests: 2.0 }));
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
            assert!(parse(text, JOB).is_err(), "{text}");
        }
        let idle = r#"{"jobs":[{"error":0,"write":{"bw_bytes":0,"iops":0}}]}"#;
        assert!(parse(idle, JOB).unwrap().is_none());
    }
}
