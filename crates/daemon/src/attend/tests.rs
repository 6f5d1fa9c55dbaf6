//! Clients of all kinds, good and hostile, of one server.

use super::*;
use crate::exchange::{Conversation, Heard, LINE_LIMIT};
use lacuna_core::Term;
use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// Repeats what it hears, counts without end, or fails.
struct Parrot;

impl Attendant for Parrot {
    fn attend(&self, request: &str, exchange: &mut Exchange) -> Result<Value> {
        match request {
            "repeat" => {
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
            "count" => loop {
                exchange.go_on()?;
                std::thread::sleep(Duration::from_millis(1));
            },
            "panic" => panic!("as if by a defect"),
            other => Err(unknown(other)),
        }
    }
}

struct Place {
    dir: TempDir,
    attendance: Attendance,
}

impl Place {
    fn new() -> Place {
        let place = Place {
            dir: tempfile::tempdir().unwrap(),
            attendance: Attendance::of(Some(Arc::new(Parrot)), Arc::new(|| Ok(())), Term::quoted),
        };
        let listener = UnixListener::bind(place.socket()).unwrap();
        let attendance = place.attendance.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut word = vec![0; 64];
                let len = stream.read(&mut word).unwrap();
                let first = String::from_utf8_lossy(&word[..len]).trim_end().to_owned();
                if Attendance::is_request(&first) {
                    attendance.take(&first, stream).unwrap();
                }
            }
        });
        place
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn begin(&self, request: &str) -> Result<Conversation> {
        Conversation::begin(&self.socket(), request, "the parrot".into())
    }
}

#[test]
fn messages_go_both_ways_until_the_outcome() {
    let place = Place::new();
    let mut talk = place.begin("repeat").unwrap();
    for word in ["one", "two", "three"] {
        talk.say(&json!(word)).unwrap();
        match talk.hear().unwrap() {
            Heard::Message(message) => assert_eq!(message["said"], word),
            Heard::Done(_) => panic!("done before {word}"),
        }
    }
    assert!(matches!(talk.hear().unwrap(), Heard::Done(done) if done == 3));
    let refused = |request: &str| match place.begin(request).and_then(|mut talk| talk.hear()) {
        Err(e) => (e.kind(), e.to_string()),
        Ok(_) => panic!("{request}"),
    };
    assert_eq!(refused("sing").0, Kind::Usage);
    assert!(refused("panic").1.contains("a defect"));
    // And it lives.
    assert!(place.begin("repeat").is_ok());
}

#[test]
fn the_end_of_a_server_ends_work_and_refuses_more() {
    let place = Place::new();
    let mut counting: Vec<_> = (0..MOST).map(|_| place.begin("count").unwrap()).collect();
    assert_eq!(place.begin("count").err().unwrap().kind(), Kind::Busy);
    // One that leaves makes room for another: the server notices when it next says that it is at work.
    drop(counting.pop());
    while place.begin("count").is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    place.attendance.end();
    counting.iter_mut().for_each(|talk| assert!(talk.hear().is_err()));
    assert_eq!(place.begin("count").err().unwrap().kind(), Kind::Busy);
}

#[test]
fn bytes_of_strangers_do_no_harm() {
    let place = Place::new();
    let say = |bytes: &[u8], then: &[u8]| {
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        stream.write_all(bytes).unwrap();
        let mut heard = [0; 1];
        let started = stream.read(&mut heard).unwrap_or(0) == 1 && heard[0] == b'\n';
        let _ = stream.write_all(then);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        (started, String::from_utf8_lossy(&answer).into_owned())
    };
    for first in ["request/2 repeat\n", "request/\n", "request/1\n", "request/1  \n", "request/\u{0}1 x\n"] {
        assert!(!say(first.as_bytes(), b"").1.contains("\"ok\":true"), "{first:?}");
    }
    let long = vec![b'7'; LINE_LIMIT as usize + 1];
    let deep = [vec![b'['; 60_000], vec![b'\n']].concat();
    for then in [&long[..], &deep, b"\xff\xfe\n", b"{\"op\":\n", b"half a line", b"\0\0\0\n"] {
        let (started, answer) = say(b"request/1 repeat\n", then);
        assert!(started && answer.contains("\"ok\":false"), "{answer}");
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
        say(b"request/1 repeat\n", &bytes);
    }
    assert!(place.begin("repeat").is_ok());
}

#[test]
fn a_client_notices_a_server_that_talks_nonsense() {
    for nonsense in [
        "",
        "{\"items\":[]}\n",
        "\n",
        "\nno json\n",
        "\n{\"ok\":fal",
        "\n{\"ok\":true,\"private\":false,\"stays\":false}\n",
        "{\"ok\":false,\"kind\":\"busy\",\"private\":false,\"stays\":false}\n",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let talker = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(nonsense.as_bytes());
        });
        let talk = Conversation::begin(&path, "repeat", "the liar".into());
        assert!(talk.and_then(|mut talk| talk.hear()).is_err(), "{nonsense:?}");
        talker.join().unwrap();
    }
}
