//! Tests jobs with well-behaved, slow and hostile clients.

use super::*;
use crate::client::{Conversation, Heard, to_server};
use crate::file::FileIdentity;
use crate::protocol::{Afterwards, Answer, LINE_LIMIT, Meant, read_line};
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
const UNKNOWN: Meant = Meant { file: FileIdentity::Unknown, id: None };

struct Parrot;

impl JobHandler for Parrot {
    fn run(&self, job: &Job, exchange: &mut Exchange) -> Result<Value> {
        match job {
            Job::Flush => {
                let mut heard = 0;
                while let Some(said) = exchange.hear(Duration::from_secs(60))? {
                    exchange.tell(&json!({ "said": said }))?;
                    heard += 1;
                    if heard == 3 {
                        break;
                    }
                }
                Ok(json!(heard))
            }
            Job::Cover => loop {
                exchange.go_on()?;
                std::thread::sleep(Duration::from_millis(1));
            },
            Job::Resize { .. } => loop {
                exchange.tell(&json!("word".repeat(4096)))?;
            },
            Job::Header { .. } => panic!("as if by a defect"),
            other @ Job::Check { .. } => Err(Op::Job(other.clone()).unknown()),
        }
    }
}

struct Place {
    dir: TempDir,
    jobs: Jobs,
}

impl Place {
    fn new() -> Place {
        Place::with(ReadLimits::default())
    }

    fn with(limits: ReadLimits) -> Place {
        let place = Place {
            dir: tempfile::tempdir().unwrap(),
            jobs: Jobs::with_limits(Some(Arc::new(Parrot)), Arc::new(|| Ok(())), Term::quoted, limits),
        };
        let listener = UnixListener::bind(place.socket()).unwrap();
        let jobs = place.jobs.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let request = read_line(&mut BufReader::new(&stream)).unwrap_or_default();
                if let Ok(Op::Job(job)) = Op::parse(&request) {
                    let line = Line::new(stream);
                    if let Err(e) = jobs.take(job, &line) {
                        line.answer(&Answer::of(Err(e), Afterwards::Stays, Term::quoted));
                    }
                }
            }
        });
        place
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn begin(&self, job: &Job) -> Result<Conversation> {
        Conversation::begin(to_server(&self.socket()), job, "the parrot".into())
    }

    /// Begins a job as soon as there is room.
    fn begin_in_time(&self, job: &Job) -> Conversation {
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
    let place = Place::new();
    let mut talk = place.begin(&REPEAT).unwrap();
    for word in ["one", "two", "three"] {
        talk.say(&json!(word)).unwrap();
        match talk.hear().unwrap() {
            Heard::Message(message) => assert_eq!(message["said"], word),
            Heard::Done(_) => panic!("done before {word}"),
        }
    }
    assert!(matches!(talk.hear().unwrap(), Heard::Done(done) if done == 3));
    let refused = |job: &Job| match place.begin(job).and_then(|mut talk| talk.hear()) {
        Err(e) => (e.kind(), e.to_string()),
        Ok(_) => panic!("{job:?}"),
    };
    assert_eq!(refused(&Job::Check { disk: UNKNOWN }).0, Kind::Usage);
    assert!(refused(&PANIC).1.contains("a defect"));
    // The server survives the panic.
    assert!(place.begin(&REPEAT).is_ok());
}

#[test]
fn the_end_of_a_server_ends_work_and_refuses_more() {
    let place = Place::new();
    let mut counting: Vec<_> = (0..MOST).map(|_| place.begin(&COUNT).unwrap()).collect();
    assert_eq!(place.begin(&COUNT).err().unwrap().kind(), Kind::Busy);
    // A client that leaves makes room for another: the server notices at the next keepalive.
    drop(counting.pop());
    while place.begin(&COUNT).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    place.jobs.end();
    counting.iter_mut().for_each(|talk| assert!(talk.hear().is_err()));
    assert_eq!(place.begin(&COUNT).err().unwrap().kind(), Kind::Busy);
}

#[test]
fn clients_that_do_not_read_give_their_places_to_those_that_come() {
    let (message, gives_way_after) = (Duration::from_secs(1_000_000), Duration::ZERO);
    let place = Place::with(ReadLimits { message, gives_way_after });
    // A client that gets only keepalives is not known to leave anything unread.
    let counting = place.begin(&COUNT).unwrap();
    let silent: Vec<_> = (1..MOST).map(|_| place.begin(&TALK).unwrap()).collect();
    let came: Vec<_> = (1..MOST).map(|_| place.begin_in_time(&COUNT)).collect();
    let refused = place.begin(&COUNT).err().unwrap();
    assert_eq!(refused.kind(), Kind::Busy);
    assert!(refused.to_string().contains("clients that it works for, and "), "{refused}");
    let first = Arc::clone(&place.jobs.0.active.lock()[0].line);
    assert!(!first.has_ended());
    drop((counting, silent, came));
}

#[test]
fn clients_that_do_not_read_keep_their_places_while_there_is_room() {
    let (message, gives_way_after) = (Duration::from_secs(1_000_000), Duration::ZERO);
    let place = Place::with(ReadLimits { message, gives_way_after });
    let mut silent = place.begin(&TALK).unwrap();
    let line = Arc::clone(&place.jobs.0.active.lock()[0].line);
    while line.unread_for().is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let others: Vec<_> = (1..MOST).map(|_| place.begin(&COUNT).unwrap()).collect();
    assert!(!line.has_ended());
    // The client reads again, and gets more than was sent before.
    for _ in 0..100 {
        assert!(matches!(silent.hear().unwrap(), Heard::Message(_)));
    }
    drop((silent, others));
}

#[test]
fn clients_that_do_not_read_in_time_are_let_go() {
    let (message, gives_way_after) = (Duration::from_millis(20), Duration::from_secs(1_000_000));
    let place = Place::with(ReadLimits { message, gives_way_after });
    let silent: Vec<_> = (0..MOST).map(|_| place.begin(&TALK).unwrap()).collect();
    let came: Vec<_> = (0..MOST).map(|_| place.begin_in_time(&COUNT)).collect();
    for mut talk in silent {
        // Each client reads the earlier messages, and then the end.
        let end = loop {
            match talk.hear() {
                Ok(Heard::Message(_)) => {}
                Ok(Heard::Done(_)) => panic!("it was never done"),
                Err(e) => break e,
            }
        };
        assert_ne!(end.kind(), Kind::TimedOut, "{end}");
    }
    drop(came);
}

#[test]
fn hostile_bytes_do_no_harm() {
    let place = Place::new();
    let say = |then: &[u8]| {
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        stream.write_all(Op::Job(REPEAT).line().unwrap().as_bytes()).unwrap();
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
