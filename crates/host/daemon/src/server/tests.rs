//! Tests that both front ends answer each request the same way.

use super::*;
use crate::client::{CallOutcome, call};
use crate::file::FileIdentity;
use crate::incoming::MOST_INCOMING;
use crate::jobs::JobHandler;
use crate::protocol::{ExpectedDisk, Job};
use crate::record::{FrontEnd, MountKind, MountRecord};
use crate::server::client_connection::JobStream;
use lacuna_contracts::{Status, StatusItem, Term};
use lacuna_testkit::wait_until;
use parking_lot::Mutex;
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use tempfile::TempDir;

const UUID: &str = "0123";

/// A source with one counter that can be purged.
struct PurgeableSource;

impl StatusSource for PurgeableSource {
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

struct StateWithoutFailures;

impl ServerState for StateWithoutFailures {
    fn is_closing(&self) -> bool {
        false
    }

    fn last_error(&self) -> Option<Error> {
        None
    }
}

/// A front end with a failed request.
struct StateWithFailure;

impl ServerState for StateWithFailure {
    fn is_closing(&self) -> bool {
        false
    }

    fn last_error(&self) -> Option<Error> {
        Some(Error::new(Kind::Io, "a request failed"))
    }
}

/// Answers with the disk that the job names.
struct EchoCheck;

impl JobHandler for EchoCheck {
    fn run(&self, job: &Job, _exchange: &mut JobStream) -> Result<Value> {
        match job {
            Job::Check { disk } => to_value(disk),
            other => Err(ControlOp::Job(other.clone()).unsupported_error()),
        }
    }
}

fn service(front: FrontEnd, source: Arc<dyn StatusSource>) -> (Service, Receiver<ClosingClient>) {
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
        state: Arc::new(StateWithoutFailures),
        jobs: Jobs::new(Some(Arc::new(EchoCheck)), Arc::new(|| Ok(())), Term::quoted),
        naming: Term::quoted,
        close: Box::new(move |client| _ = waits.send(client)),
    };
    (service, waiting)
}

fn mount() -> FrontEnd {
    FrontEnd::Fuse(MountRecord { mountpoint: "/mnt".into(), kind: MountKind::Raw })
}

fn served() -> FrontEnd {
    FrontEnd::Nbd { uris: vec!["nbd://localhost".into()] }
}

struct ServerFixture {
    server: Option<ControlServer>,
    closing: Receiver<ClosingClient>,
    socket: PathBuf,
    _instance: Instance,
    _base: TempDir,
}

impl ServerFixture {
    fn new(front: FrontEnd) -> ServerFixture {
        ServerFixture::of(front, Arc::new(PurgeableSource))
    }

    fn of(front: FrontEnd, source: Arc<dyn StatusSource>) -> ServerFixture {
        ServerFixture::with_limit(front, source, REQUEST_WITHIN)
    }

    /// Clients may take as long as they like to send their request.
    fn patient(front: FrontEnd) -> ServerFixture {
        ServerFixture::with_limit(front, Arc::new(PurgeableSource), Duration::from_secs(1_000_000))
    }

    fn with_limit(front: FrontEnd, source: Arc<dyn StatusSource>, request_within: Duration) -> ServerFixture {
        let base = tempfile::tempdir().unwrap();
        let instance = Instance::of_server(base.path(), "/a.img").unwrap();
        let (service, closing) = service(front, source);
        let server = ControlServer::with_limit(&instance, service, request_within).unwrap();
        let socket = instance.control();
        ServerFixture { server: Some(server), closing, socket, _instance: instance, _base: base }
    }
}

/// All bytes that the server sends to a client that sends `said`, and then shuts down its side or
/// keeps silent.
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

/// The kind of the error, which must be the only answer.
fn refusal(heard: &str, said: &[u8]) -> Kind {
    assert_eq!(heard.lines().filter(|line| !line.is_empty()).count(), 1, "{said:?}: {heard}");
    match ServerAnswer::parse(heard.trim_start().as_bytes()) {
        Some(ServerAnswer::Error { refusal, server: AfterFailure::Stays }) => refusal.error().kind(),
        other => panic!("{said:?}: {other:?}"),
    }
}

#[test]
fn both_front_ends_answer_every_request_the_same_way() {
    let scenes = [ServerFixture::new(mount()), ServerFixture::new(served())];
    let long = [&b"{\"v\":1,\"op\":\"status\""[..], &[b' '; 2000], b"}\n"].concat();
    let endless = [b'7'; 3000];
    let refused: [(&[u8], bool, Kind); 20] = [
        // The first client gets 2 seconds for the end of its line.
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
        (b"{\"v\":1,\"op\":\"job\",\"job\":\"check\"}\n", true, Kind::Usage),
        (b"{\"v\":1,\"op\":\"job\",\"job\":\"flush\"}\n", true, Kind::Usage),
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
            b"{\"v\":1,\"op\":\"job\",\"job\":\"check\",\"disk\":{\"file\":\"file:1:2\",\"id\":\"ID\"}}\n",
            json!({ "file": "file:1:2", "id": "ID" }),
        ),
    ];
    for (said, expected) in done {
        let [one, other] = scenes.each_ref().map(|scene| answers(&scene.socket, said, true));
        assert_eq!(one, other, "{said:?}");
        let Some(ServerAnswer::Ok(value)) = ServerAnswer::parse(one.trim_start().as_bytes()) else {
            panic!("{said:?}: {one}");
        };
        if expected.is_null() {
            let purged: PurgeReport = serde_json::from_value(value).unwrap();
            assert!(purged.uuid.as_deref() == Some(UUID) && purged.items[0].name == "purged_keys");
        } else {
            assert_eq!(value, expected);
        }
    }
    let [mounted, nbd] = scenes.each_ref().map(|scene| {
        let Ok(CallOutcome::Done(value)) = call(&scene.socket, &ControlOp::Status) else {
            panic!("no status")
        };
        serde_json::from_value::<ServerStatus>(value).unwrap()
    });
    assert!(mounted.record.mount().is_some() && nbd.record.mount().is_none());
    assert_eq!(ServerStatus { record: mounted.record.clone(), ..nbd }, mounted);
    assert!(mounted.items[0].value == 7 && mounted.id.as_deref() == Some("ID") && mounted.file.is_none());
    assert!(scenes.iter().all(|scene| scene.closing.try_recv().is_err()), "no client asked for the end");
}

/// Checks that a client gets only a success.
fn check_success(client: &mut UnixStream) {
    let mut heard = String::new();
    client.read_to_string(&mut heard).unwrap();
    let answer = ServerAnswer::parse(heard.trim_start().as_bytes());
    assert!(matches!(answer, Some(ServerAnswer::Ok(_))), "{heard}");
}

/// Checks that the server answers requests that need no time.
fn check_responsive(socket: &Path) {
    let job = ControlOp::Job(Job::Check { disk: ExpectedDisk { file: FileIdentity::Unknown, id: None } });
    for op in [ControlOp::Status, job] {
        assert!(matches!(call(socket, &op), Ok(CallOutcome::Done(_))));
    }
}

/// Sends the rest of a request of the status, and reads the answer.
fn finish(client: &mut UnixStream, rest: &[u8]) {
    client.write_all(rest).unwrap();
    check_success(client);
}

/// Checks that the server still waits for the request of a client.
fn check_waited_for(client: &mut UnixStream) {
    client.set_nonblocking(true).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    client.set_nonblocking(false).unwrap();
}

#[test]
fn a_silent_or_departed_client_delays_no_other_client() {
    let request = b"{\"v\":1,\"op\":\"status\"}\n";
    for front in [mount(), served()] {
        let scene = ServerFixture::patient(front);
        let mut waited_for =
            [0, 1, 7, 20].map(|sent| (client(&scene.socket, &request[..sent]), &request[sent..]));
        drop(UnixStream::connect(&scene.socket).unwrap());
        check_responsive(&scene.socket);
        for (client, _) in &mut waited_for {
            check_waited_for(client);
        }
        for (client, rest) in waited_for.iter_mut().rev() {
            finish(client, rest);
        }
        // The end of the server does not wait for a silent client that it has accepted.
        let _silent = client(&scene.socket, b"");
        assert!(matches!(call(&scene.socket, &ControlOp::Status), Ok(CallOutcome::Done(_))));
        drop(scene);
    }
}

#[test]
fn of_too_many_silent_clients_those_are_refused_that_came_first() {
    let request = b"{\"v\":1,\"op\":\"status\"}\n";
    let scene = ServerFixture::patient(served());
    let mut silent: Vec<UnixStream> = (0..=MOST_INCOMING).map(|_| client(&scene.socket, b"")).collect();
    // It connects before it sends: the second silent client may be refused as well.
    finish(&mut client(&scene.socket, b""), request);
    let mut refused = String::new();
    silent[0].read_to_string(&mut refused).unwrap();
    assert_eq!(refusal(&refused, b""), Kind::Busy);
    for client in &mut silent[2..] {
        check_waited_for(client);
        finish(client, request);
    }
}

#[test]
fn a_closing_client_waits_for_the_outcome_while_others_are_answered() {
    for front in [mount(), served()] {
        let mut scene = ServerFixture::new(front);
        let close = |socket: PathBuf, force| {
            std::thread::spawn(move || call(&socket, &ControlOp::Close { force }).unwrap())
        };
        let refused = close(scene.socket.clone(), false);
        let client = scene.closing.recv().unwrap();
        assert!(!client.is_forced());
        assert!(matches!(call(&scene.socket, &ControlOp::Status), Ok(CallOutcome::Done(_))));
        client.refuse(&Error::new(Kind::Busy, "it is in use"));
        assert!(
            matches!(refused.join().unwrap(), CallOutcome::Refused(e, AfterFailure::Stays) if e.kind() == Kind::Busy)
        );
        let closed = close(scene.socket.clone(), true);
        let client = scene.closing.recv().unwrap();
        assert!(client.is_forced());
        drop(scene.server.take());
        assert!(call(&scene.socket, &ControlOp::Status).is_err());
        client.answer(&Ok(()));
        assert!(matches!(closed.join().unwrap(), CallOutcome::Done(Value::Null)));
        let scene = ServerFixture::new(served());
        let failed = close(scene.socket.clone(), false);
        scene.closing.recv().unwrap().answer(&Err(Error::new(Kind::Io, "written data is lost")));
        assert!(
            matches!(failed.join().unwrap(), CallOutcome::Refused(e, AfterFailure::Ends) if e.kind() == Kind::Io)
        );
    }
}

/// Purges and stats block as long as the other side of the channels lives.
struct BlockingSource(Mutex<Vec<Receiver<()>>>);

impl BlockingSource {
    fn wait(&self) {
        let held = self.0.lock().pop();
        held.into_iter().for_each(|held| _ = held.recv());
    }
}

impl StatusSource for BlockingSource {
    fn status(&self) -> Status {
        Status::default()
    }

    fn purge(&self) -> Result<Status> {
        self.wait();
        Ok(Status::default())
    }

    fn stat(&self, _ino: u64) -> Option<Result<Value>> {
        self.wait();
        Some(Ok(json!("slow")))
    }
}

#[test]
fn slow_requests_get_keepalives_while_others_are_answered() {
    let (ends, held): (Vec<Sender<()>>, Vec<Receiver<()>>) = (0..2).map(|_| channel()).unzip();
    let scene = ServerFixture::of(mount(), Arc::new(BlockingSource(Mutex::new(held))));
    let said: [&[u8]; 3] = [
        b"{\"v\":1,\"op\":\"purge\"}\n",
        b"{\"v\":1,\"op\":\"stat\",\"ino\":1}\n",
        b"{\"v\":1,\"op\":\"close\"}\n",
    ];
    let mut clients = said.map(|said| client(&scene.socket, said));
    let closing = scene.closing.recv().unwrap();
    assert!(matches!(call(&scene.socket, &ControlOp::Status), Ok(CallOutcome::Done(_))));
    for client in &mut clients {
        // One keepalive at the beginning, and one after a second.
        let mut beats = [0; 2];
        client.read_exact(&mut beats).unwrap();
        assert_eq!(beats, *b"\n\n");
    }
    drop(ends);
    closing.answer(&Ok(()));
    clients.iter_mut().for_each(check_success);
}

/// A client that has sent `said`.
fn client(socket: &Path, said: &[u8]) -> UnixStream {
    let mut client = UnixStream::connect(socket).unwrap();
    client.write_all(said).unwrap();
    client
}

/// Checks that a server refuses one more client that sends `said`, and advises it.
fn check_refused(socket: &Path, said: &[u8], most: usize) {
    let refused = answers(socket, said, true);
    assert_eq!(refusal(&refused, said), Kind::Busy);
    let found = format!("{most} clients with the same request");
    assert!(refused.contains(&found) && refused.contains("try again when they are done"), "{refused}");
}

#[test]
fn the_number_of_slow_requests_is_limited() {
    let stat = (&b"{\"v\":1,\"op\":\"stat\",\"ino\":1}\n"[..], MOST_STATS);
    let purge = (&b"{\"v\":1,\"op\":\"purge\"}\n"[..], MOST_PURGES);
    for (said, most) in [stat, purge] {
        let (ends, held): (Vec<Sender<()>>, Vec<Receiver<()>>) = (0..most).map(|_| channel()).unzip();
        let scene = ServerFixture::of(mount(), Arc::new(BlockingSource(Mutex::new(held))));
        // Clients are accepted in the order of their connections.
        let mut clients: Vec<UnixStream> = (0..most).map(|_| client(&scene.socket, said)).collect();
        check_refused(&scene.socket, said, most);
        check_refused(&scene.socket, said, most);
        // Requests without a thread of their own, and other work, are still answered.
        check_responsive(&scene.socket);
        drop(ends);
        clients.iter_mut().for_each(check_success);
        // The line is closed after the permit is released.
        for _ in 0..2 * most {
            check_success(&mut client(&scene.socket, said));
        }
    }
}

#[test]
fn the_number_of_closing_clients_is_limited() {
    let said = b"{\"v\":1,\"op\":\"close\"}\n";
    for front in [mount(), served()] {
        let scene = ServerFixture::new(front);
        let clients: Vec<UnixStream> = (0..MOST_CLOSING).map(|_| client(&scene.socket, said)).collect();
        let closing: Vec<ClosingClient> = clients.iter().map(|_| scene.closing.recv().unwrap()).collect();
        check_refused(&scene.socket, said, MOST_CLOSING);
        closing.into_iter().for_each(|client| client.refuse(&Error::new(Kind::Busy, "it is in use")));
        let _client = client(&scene.socket, said);
        scene.closing.recv().unwrap().answer(&Ok(()));
    }
}

/// Fails to purge as long as it has a client, and drops that client meanwhile.
struct FailingOnceSource(Mutex<Option<UnixStream>>);

impl StatusSource for FailingOnceSource {
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
fn a_failed_purge_stays_in_the_status_until_a_purge_succeeds() {
    let (client, server) = UnixStream::pair().unwrap();
    let source: Arc<dyn StatusSource> = Arc::new(FailingOnceSource(Mutex::new(Some(client))));
    let mut service = service(mount(), Arc::clone(&source)).0;
    service.state = Arc::new(StateWithFailure);
    let dispatcher = RequestDispatcher::new(service);
    let wait_for = |kind: Option<Kind>| {
        wait_until(&format!("{kind:?}"), || dispatcher.unreported.purge_failure().map(|e| e.kind()) == kind);
    };
    dispatcher.purge(&ClientConnection::new(server), Arc::clone(&source)).unwrap();
    wait_for(Some(Kind::PurgeIncomplete));
    // It takes precedence over the earlier failure.
    assert_eq!(
        dispatcher.status().last_error.as_deref(),
        Some("a purge for a client that has left: the disk was not purged")
    );
    let (_client, server) = UnixStream::pair().unwrap();
    dispatcher.purge(&ClientConnection::new(server), source).unwrap();
    wait_for(None);
    assert_eq!(dispatcher.status().last_error.as_deref(), Some("a request failed"));
}

#[test]
fn a_failed_accept_is_reported_once() {
    let dispatcher = RequestDispatcher::new(service(mount(), Arc::new(PurgeableSource)).0);
    dispatcher.unreported.record_accept_failure(Error::new(Kind::Io, "no client could be accepted"));
    assert_eq!(dispatcher.status().last_error.as_deref(), Some("no client could be accepted"));
    assert_eq!(dispatcher.status().last_error, None);
}
