//! One table for all front ends: what a client says, and what it is told.

use super::*;
use crate::client::{Reply, call};
use crate::exchange::Exchange;
use crate::file::FileIdentity;
use crate::jobs::JobHandler;
use crate::protocol::Meant;
use crate::record::{Front, MountRecord};
use lacuna_contracts::{Status, StatusItem, Term};
use parking_lot::Mutex;
use serde_json::json;
use std::io::Read;
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use tempfile::TempDir;

const UUID: &str = "0123";

/// Something with one counter that forgets.
struct Source;

impl StatusSource for Source {
    fn status(&self) -> Status {
        Status { items: vec![StatusItem::new("dirty", 7, "bytes")] }
    }

    fn purge(&self) -> Result<Status> {
        Ok(Status { items: vec![StatusItem::new("purged_keys", 1, "keys")] })
    }

    fn stat(&self, ino: u64) -> Option<Result<Value>> {
        (ino == 1).then(|| Ok(json!("root")))
    }
}

struct Quiet;

impl ServerState for Quiet {
    fn closing(&self) -> bool {
        false
    }

    fn last_error(&self) -> Option<Error> {
        None
    }
}

/// Says which disk was meant.
struct Checker;

impl JobHandler for Checker {
    fn run(&self, op: &Op, _exchange: &mut Exchange) -> Result<Value> {
        match op {
            Op::Check { disk } => to_value(disk),
            other => Err(other.unknown()),
        }
    }
}

fn service(front: Front, source: Arc<dyn StatusSource>) -> (Service, Receiver<Waiting>) {
    let identity = Identity {
        location: "/a.img".into(),
        format: "flash".into(),
        uuid: Some(UUID.into()),
        id: Some("ID".into()),
        ..Identity::default()
    };
    let (waits, waiting) = channel();
    let service = Service {
        record: Record { since: 7, ..Record::new(&identity, front, false) },
        identity,
        sources: vec![source],
        state: Arc::new(Quiet),
        jobs: Jobs::new(Some(Arc::new(Checker)), Arc::new(|| Ok(())), Term::quoted),
        naming: Term::quoted,
        close: Box::new(move |client| _ = waits.send(client)),
    };
    (service, waiting)
}

fn mount() -> Front {
    let mountpoint = "/mnt".into();
    Front::Fuse(MountRecord { mountpoint, loop_device: None, raw: true, vault: false, via: None })
}

fn served() -> Front {
    Front::Nbd { uris: vec!["nbd://localhost".into()] }
}

struct Scene {
    server: Option<Server>,
    closing: Receiver<Waiting>,
    socket: PathBuf,
    _instance: Instance,
    _base: TempDir,
}

impl Scene {
    fn new(front: Front) -> Scene {
        let base = tempfile::tempdir().unwrap();
        let instance = Instance::of_server(base.path(), "/a.img").unwrap();
        let (service, closing) = service(front, Arc::new(Source));
        let server = Server::start(&instance, service).unwrap();
        let socket = instance.control();
        Scene { server: Some(server), closing, socket, _instance: instance, _base: base }
    }
}

/// All that the server says to a client that says this, and then ends, or is silent.
fn answers(socket: &Path, said: &[u8], ends: bool) -> String {
    let mut client = UnixStream::connect(socket).unwrap();
    let _ = client.write_all(said);
    if ends {
        client.shutdown(Shutdown::Write).unwrap();
    }
    let mut heard = Vec::new();
    let _ = client.read_to_end(&mut heard);
    String::from_utf8(heard).unwrap()
}

/// The kind of the one error that is the answer.
fn refusal(heard: &str, said: &[u8]) -> Kind {
    assert_eq!(heard.lines().filter(|line| !line.is_empty()).count(), 1, "{said:?}: {heard}");
    match Answer::parse(heard.trim_start().as_bytes()) {
        Some(Answer::Error(refusal)) => refusal.error().kind(),
        other => panic!("{said:?}: {other:?}"),
    }
}

#[test]
fn whatever_a_client_says_both_fronts_tell_it_the_same_and_go_on() {
    let scenes = [Scene::new(mount()), Scene::new(served())];
    let long = [&b"{\"v\":1,\"op\":\"status\""[..], &[b' '; 2000], b"}\n"].concat();
    let endless = [b'7'; 3000];
    let refused: [(&[u8], bool, Kind); 20] = [
        // The first has 2 seconds for the end of its line.
        (b"{\"v\":1,\"op\":\"status\"}", false, Kind::TimedOut),
        (b"", true, Kind::Usage),
        (b"{\"v\":1,\"op\":\"status\"}", true, Kind::Usage),
        (b"{\"v\":1,\"op\":\"clo", true, Kind::Usage),
        (&long, true, Kind::Usage),
        (&endless, true, Kind::Usage),
        (b"\n", true, Kind::Usage),
        (b"{}\n", true, Kind::Usage),
        (b"status\n", true, Kind::Usage),
        (b"close\n", true, Kind::Usage),
        (b"purge 0123\n", true, Kind::Usage),
        (b"\xff\xfe\x00\n", true, Kind::Usage),
        (b"{\"op\":\"status\"}\n", true, Kind::Usage),
        (b"{\"v\":0,\"op\":\"status\"}\n", true, Kind::Usage),
        (b"{\"v\":2,\"op\":\"close\"}\n", true, Kind::Usage),
        (b"{\"v\":1,\"op\":\"nonsense\"}\n", true, Kind::Usage),
        (b"{\"v\":1,\"op\":\"check\"}\n", true, Kind::Usage),
        (b"{\"v\":1,\"op\":\"flush\"}\n", true, Kind::Usage),
        (b"{\"v\":1,\"op\":\"stat\",\"ino\":2}\n", true, Kind::Usage),
        (b"{\"v\":1,\"op\":\"purge\",\"uuid\":\"4567\"}\n", true, Kind::PurgeIncomplete),
    ];
    for (said, ends, kind) in refused {
        let [one, other] = scenes.each_ref().map(|scene| answers(&scene.socket, said, ends));
        assert_eq!(one, other, "{said:?}");
        assert_eq!(refusal(&one, said), kind, "{said:?}");
    }
    let done: [(&[u8], Value); 4] = [
        (b"{\"v\":1,\"op\":\"purge\"}\n", json!(null)),
        (b"{\"v\":1,\"op\":\"purge\",\"uuid\":\"0123\"}\n", json!(null)),
        (b"{\"v\":1,\"op\":\"stat\",\"ino\":1}\n", json!("root")),
        (
            b"{\"v\":1,\"op\":\"check\",\"disk\":{\"file\":\"file:1:2\",\"id\":\"ID\"}}\n",
            json!({ "file": "file:1:2", "id": "ID" }),
        ),
    ];
    for (said, expected) in done {
        let [one, other] = scenes.each_ref().map(|scene| answers(&scene.socket, said, true));
        assert_eq!(one, other, "{said:?}");
        let Some(Answer::Ok(value)) = Answer::parse(one.trim_start().as_bytes()) else {
            panic!("{said:?}: {one}");
        };
        if expected.is_null() {
            let purged: Purged = serde_json::from_value(value).unwrap();
            assert!(purged.uuid.as_deref() == Some(UUID) && purged.items[0].name == "purged_keys");
        } else {
            assert_eq!(value, expected);
        }
    }
    let [mounted, nbd] = scenes.each_ref().map(|scene| {
        let Ok(Reply::Done(value)) = call(&scene.socket, &Op::Status) else { panic!("no status") };
        serde_json::from_value::<ServerStatus>(value).unwrap()
    });
    assert!(mounted.record.mount().is_some() && nbd.record.mount().is_none());
    assert_eq!(ServerStatus { record: mounted.record.clone(), ..nbd }, mounted);
    assert!(mounted.items[0].value == 7 && mounted.id.as_deref() == Some("ID") && mounted.file.is_none());
    assert!(scenes.iter().all(|scene| scene.closing.try_recv().is_err()), "no client asked for the end");
}

#[test]
fn a_client_that_is_silent_or_leaves_keeps_no_other_from_its_answer() {
    for front in [mount(), served()] {
        let scene = Scene::new(front);
        let mut half = UnixStream::connect(&scene.socket).unwrap();
        half.write_all(b"{\"v\":1,").unwrap();
        drop(UnixStream::connect(&scene.socket).unwrap());
        // The half line is waited for for 2 seconds, and this client has patience for 5.
        assert!(matches!(call(&scene.socket, &Op::Status), Ok(Reply::Done(_))));
        drop(half);
        let disk = Meant { file: FileIdentity::Unknown, id: None };
        assert!(matches!(call(&scene.socket, &Op::Check { disk }), Ok(Reply::Done(_))));
    }
}

#[test]
fn a_client_that_closes_waits_for_the_end_and_others_are_told_meanwhile() {
    for front in [mount(), served()] {
        let mut scene = Scene::new(front);
        let close = |socket: PathBuf| std::thread::spawn(move || call(&socket, &Op::Close).unwrap());
        let refused = close(scene.socket.clone());
        let client = scene.closing.recv().unwrap();
        assert!(matches!(call(&scene.socket, &Op::Status), Ok(Reply::Done(_))));
        client.refuse(&Error::new(Kind::Busy, "it is in use"));
        assert!(matches!(refused.join().unwrap(), Reply::Refused(e, true) if e.kind() == Kind::Busy));
        let closed = close(scene.socket.clone());
        let client = scene.closing.recv().unwrap();
        drop(scene.server.take());
        assert!(call(&scene.socket, &Op::Status).is_err());
        client.answer(&Ok(()));
        assert!(matches!(closed.join().unwrap(), Reply::Done(Value::Null)));
    }
}

/// Fails to forget as long as it has a client, who leaves meanwhile.
struct Left(Mutex<Option<UnixStream>>);

impl StatusSource for Left {
    fn status(&self) -> Status {
        Status::default()
    }

    fn purge(&self) -> Result<Status> {
        match self.0.lock().take() {
            Some(_left) => Err(Error::new(Kind::PurgeIncomplete, "the disk was not purged")),
            None => Ok(Status::default()),
        }
    }
}

#[test]
fn a_purge_that_failed_is_told_though_its_client_has_left_until_one_succeeds() {
    let (client, server) = UnixStream::pair().unwrap();
    let source: Arc<dyn StatusSource> = Arc::new(Left(Mutex::new(Some(client))));
    let desk = Desk::new(service(mount(), Arc::clone(&source)).0);
    let wait_for = |kind: Option<Kind>| {
        for _ in 0..3000 {
            if desk.untold.last().map(|e| e.kind()) == kind {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it never said {kind:?}");
    };
    desk.purge(server, Arc::clone(&source)).unwrap();
    wait_for(Some(Kind::PurgeIncomplete));
    assert_eq!(
        desk.status().last_error.as_deref(),
        Some("a purge whose client has left: the disk was not purged")
    );
    // Other trouble is no purge's to clear.
    desk.untold.not_accepted(Error::new(Kind::Io, "no client could be accepted"));
    let (_client, server) = UnixStream::pair().unwrap();
    desk.purge(server, source).unwrap();
    wait_for(Some(Kind::Io));
}
