//! Tests jobs with well-behaved, slow and hostile clients.

use super::*;
use crate::client::{JobClient, JobReply, connect_with_timeout};
use crate::file::FileIdentity;
use crate::protocol::{AfterFailure, ExpectedDisk, LINE_LIMIT, ServerAnswer, read_line};
use lacuna_contracts::Term;
use serde_json::json;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// The handler repeats each message.
const REPEAT: Job = Job::Flush;
/// The handler loops until the job ends.
const COUNT: Job = Job::Cover;
/// The handler sends messages without end.
const TALK: Job = Job::Resize { disk: UNKNOWN, size: None };
/// The handler panics.
const PANIC: Job = Job::Header { disk: UNKNOWN };
/// Any disk.
const UNKNOWN: ExpectedDisk = ExpectedDisk { file: FileIdentity::Unknown, id: None };

struct EchoHandler;

impl JobHandler for EchoHandler {
    fn run(&self, job: &Job, exchange: &mut JobStream) -> Result<Value> {
        match job {
            Job::Flush => {
                let mut heard = 0;
                while let Some(said) = exchange.recv(Duration::from_secs(60))? {
                    exchange.send(&json!({ "said": said }))?;
                    heard += 1;
                    if heard == 3 {
                        break;
                    }
                }
                Ok(json!(heard))
            }
            Job::Cover => loop {
                exchange.check_cancelled()?;
                std::thread::sleep(Duration::from_millis(1));
            },
            Job::Resize { .. } => loop {
                exchange.send(&json!("word".repeat(4096)))?;
            },
            Job::Header { .. } => panic!("as if by a defect"),
            other @ Job::Check { .. } => Err(ControlOp::Job(other.clone()).unsupported_error()),
        }
    }
}

struct JobsFixture {
    dir: TempDir,
    jobs: Jobs,
}

impl JobsFixture {
    fn new() -> JobsFixture {
        JobsFixture::with(ReadLimits::default())
    }

    fn with(limits: ReadLimits) -> JobsFixture {
        let place = JobsFixture {
            dir: tempfile::tempdir().unwrap(),
            jobs: Jobs::with_limits(Some(Arc::new(EchoHandler)), Arc::new(|| Ok(())), Term::quoted, limits),
        };
        let listener = UnixListener::bind(place.socket()).unwrap();
        let jobs = place.jobs.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let request = read_line(&mut BufReader::new(&stream)).unwrap_or_default();
                if let Ok(ControlOp::Job(job)) = ControlOp::parse(&request) {
                    let line = ClientConnection::new(stream);
                    if let Err(e) = jobs.start(job, &line) {
                        line.answer(&ServerAnswer::of(Err(e), AfterFailure::Stays, Term::quoted));
                    }
                }
            }
        });
        place
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn begin(&self, job: &Job) -> Result<JobClient> {
        JobClient::begin(connect_with_timeout(&self.socket()), job, "the parrot".into())
    }

    /// Begins a job as soon as there is room.
    fn begin_when_possible(&self, job: &Job) -> JobClient {
        for _ in 0..3000 {
            match self.begin(job) {
                Ok(talk) => return talk,
                Err(e) => assert_eq!(e.kind(), Kind::Busy, "{e}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("there was never room");
    }
}

#[test]
fn messages_go_both_ways_until_the_outcome() {
    let place = JobsFixture::new();
    let mut talk = place.begin(&REPEAT).unwrap();
    for word in ["one", "two", "three"] {
        talk.send(&json!(word)).unwrap();
        match talk.recv().unwrap() {
            JobReply::Message(message) => assert_eq!(message["said"], word),
            JobReply::Done(_) => panic!("done before {word}"),
        }
    }
    assert!(matches!(talk.recv().unwrap(), JobReply::Done(done) if done == 3));
    let refused = |job: &Job| match place.begin(job).and_then(|mut talk| talk.recv()) {
        Err(e) => (e.kind(), e.to_string()),
        Ok(_) => panic!("{job:?}"),
    };
    assert_eq!(refused(&Job::Check { disk: UNKNOWN }).0, Kind::Usage);
    assert!(refused(&PANIC).1.contains("a defect"));
    // The server survives the panic.
    assert!(place.begin(&REPEAT).is_ok());
}

#[test]
fn ending_the_jobs_stops_them_and_refuses_new_ones() {
    let place = JobsFixture::new();
    let mut counting: Vec<_> = (0..MOST).map(|_| place.begin(&COUNT).unwrap()).collect();
    assert_eq!(place.begin(&COUNT).err().unwrap().kind(), Kind::Busy);
    // A client that leaves makes room for another: the server notices at the next keepalive.
    drop(counting.pop());
    while place.begin(&COUNT).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    place.jobs.end();
    counting.iter_mut().for_each(|talk| assert!(talk.recv().is_err()));
    assert_eq!(place.begin(&COUNT).err().unwrap().kind(), Kind::Busy);
}

#[test]
fn a_new_client_takes_the_place_of_one_that_does_not_read() {
    let (message, gives_way_after) = (Duration::from_secs(1_000_000), Duration::ZERO);
    let place = JobsFixture::with(ReadLimits { message, evictable_after: gives_way_after });
    // A client that gets only keepalives is not known to leave anything unread.
    let counting = place.begin(&COUNT).unwrap();
    let silent: Vec<_> = (1..MOST).map(|_| place.begin(&TALK).unwrap()).collect();
    let came: Vec<_> = (1..MOST).map(|_| place.begin_when_possible(&COUNT)).collect();
    let refused = place.begin(&COUNT).err().unwrap();
    assert_eq!(refused.kind(), Kind::Busy);
    assert!(refused.to_string().contains("clients with a job, and "), "{refused}");
    let first = Arc::clone(&place.jobs.0.active.lock()[0].connection);
    assert!(!first.has_ended());
    drop((counting, silent, came));
}

#[test]
fn a_client_that_does_not_read_keeps_its_place_while_there_is_room() {
    let (message, gives_way_after) = (Duration::from_secs(1_000_000), Duration::ZERO);
    let place = JobsFixture::with(ReadLimits { message, evictable_after: gives_way_after });
    let mut silent = place.begin(&TALK).unwrap();
    let line = Arc::clone(&place.jobs.0.active.lock()[0].connection);
    while line.unread_for().is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let others: Vec<_> = (1..MOST).map(|_| place.begin(&COUNT).unwrap()).collect();
    assert!(!line.has_ended());
    // The client reads again, and gets more than was sent before.
    for _ in 0..100 {
        assert!(matches!(silent.recv().unwrap(), JobReply::Message(_)));
    }
    drop((silent, others));
}

#[test]
fn the_job_of_a_client_that_does_not_read_in_time_ends() {
    let (message, gives_way_after) = (Duration::from_millis(20), Duration::from_secs(1_000_000));
    let place = JobsFixture::with(ReadLimits { message, evictable_after: gives_way_after });
    let silent: Vec<_> = (0..MOST).map(|_| place.begin(&TALK).unwrap()).collect();
    let came: Vec<_> = (0..MOST).map(|_| place.begin_when_possible(&COUNT)).collect();
    for mut talk in silent {
        // Each client reads the earlier messages, and then the end.
        let end = loop {
            match talk.recv() {
                Ok(JobReply::Message(_)) => {}
                Ok(JobReply::Done(_)) => panic!("it was never done"),
                Err(e) => break e,
            }
        };
        assert_ne!(end.kind(), Kind::TimedOut, "{end}");
    }
    drop(came);
}

#[test]
fn hostile_bytes_do_no_harm() {
    let place = JobsFixture::new();
    let say = |then: &[u8]| {
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        stream.write_all(ControlOp::Job(REPEAT).line().unwrap().as_bytes()).unwrap();
        let mut heard = [0; 1];
        let started = stream.read(&mut heard).unwrap_or(0) == 1 && heard[0] == b'\n';
        let _ = stream.write_all(then);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        (started, String::from_utf8_lossy(&answer).into_owned())
    };
    let long = vec![b'7'; LINE_LIMIT as usize + 1];
    let deep = [vec![b'['; 60_000], vec![b'\n']].concat();
    for then in [&long[..], &deep, b"\xff\xfe\n", b"{\"op\":\n", b"half a line", b"\0\0\0\n"] {
        let (started, answer) = say(then);
        assert!(started && answer.contains("{\"error\":"), "{answer}");
    }
    let mut seed = 1u64;
    for _ in 0..300 {
        let bytes: Vec<u8> = (0..seed % 200)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) as u8
            })
            .collect();
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        say(&bytes);
    }
    assert!(place.begin(&REPEAT).is_ok());
}
