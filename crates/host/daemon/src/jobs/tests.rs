//! Clients of all kinds, good and hostile, of one server.

use super::*;
use crate::client::{Conversation, Heard};
use crate::file::FileIdentity;
use crate::protocol::{Afterwards, Answer, LINE_LIMIT, Meant, first_line};
use lacuna_contracts::Term;
use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// Repeats what it hears.
const REPEAT: Job = Job::Flush;
/// Counts without end.
const COUNT: Job = Job::Cover;
/// Panics.
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
            Job::Header { .. } => panic!("as if by a defect"),
            other => Err(Op::Job(other.clone()).unknown()),
        }
    }
}

struct Place {
    dir: TempDir,
    jobs: Jobs,
}

impl Place {
    fn new() -> Place {
        let place = Place {
            dir: tempfile::tempdir().unwrap(),
            jobs: Jobs::new(Some(Arc::new(Parrot)), Arc::new(|| Ok(())), Term::quoted),
        };
        let listener = UnixListener::bind(place.socket()).unwrap();
        let jobs = place.jobs.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if let Ok(Op::Job(job)) = first_line(&stream).and_then(|line| Op::parse(&line)) {
                    let line = Line::new(stream).unwrap();
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
        Conversation::begin(&self.socket(), job, "the parrot".into())
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
    // And it lives.
    assert!(place.begin(&REPEAT).is_ok());
}

#[test]
fn the_end_of_a_server_ends_work_and_refuses_more() {
    let place = Place::new();
    let mut counting: Vec<_> = (0..MOST).map(|_| place.begin(&COUNT).unwrap()).collect();
    assert_eq!(place.begin(&COUNT).err().unwrap().kind(), Kind::Busy);
    // One that leaves makes room for another: the server notices when it next says that it is at work.
    drop(counting.pop());
    while place.begin(&COUNT).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    place.jobs.end();
    counting.iter_mut().for_each(|talk| assert!(talk.hear().is_err()));
    assert_eq!(place.begin(&COUNT).err().unwrap().kind(), Kind::Busy);
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
