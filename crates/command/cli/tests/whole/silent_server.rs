//! A server that holds its lock and answers nothing. The number of times that `close` asks it does
//! not depend on the number of mounted levels, and so neither does the time of the close.

use crate::closing::slow;
use crate::harness::{
    CloseOnDrop, RunOutput, Scene, Signal, can_mount, is_program_available, send, skip_unless,
};
use rustix::net::sockopt::socket_peercred;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::{fs, io, iter, thread};

/// The stopped server of `disk.img`, with sockets of the test in place of its own, which take
/// clients and answer none.
struct SilentServer {
    process: String,
    sockets: Vec<(PathBuf, UnixListener)>,
}

impl SilentServer {
    fn of(scene: &Scene) -> SilentServer {
        let status = scene.lacuna(&["status", "disk.img", "--json"]).code(0).json();
        let process = status["servers"][0]["pid"].to_string();
        send(Signal::STOP, &process);
        let replace = |socket: PathBuf| {
            fs::rename(&socket, socket.with_extension("kept")).unwrap();
            let listener = UnixListener::bind(&socket).unwrap();
            listener.set_nonblocking(true).unwrap();
            (socket, listener)
        };
        let sockets = scene.controls("disk.img", "fuse").into_iter().map(replace).collect();
        SilentServer { process, sockets }
    }

    /// The number of times that the process `command` has asked since the last call. Commands of
    /// other tests may ask too. A client stays in the backlog after it has gone.
    fn count_clients(&self, command: u32) -> usize {
        let is_of_command = |client: &UnixStream| {
            socket_peercred(client).unwrap().pid.as_raw_nonzero().get().cast_unsigned() == command
        };
        let of_socket = |listener: &UnixListener| {
            let clients = iter::from_fn(|| match listener.accept() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
                client => Some(client.unwrap().0),
            });
            clients.filter(is_of_command).count()
        };
        self.sockets.iter().map(|(_, listener)| of_socket(listener)).sum()
    }
}

impl Drop for SilentServer {
    fn drop(&mut self) {
        for (socket, _) in &self.sockets {
            let _ = fs::rename(socket.with_extension("kept"), socket);
        }
        send(Signal::CONT, &self.process);
    }
}

/// Mounts these levels of a disk, and closes the disk while its server is silent, without and with
/// `--deleted`. Returns for both the number of times that a server was asked, and the log.
fn close_silent(levels: &[&str]) -> Vec<(usize, String)> {
    let scene = slow("deniable", "20");
    let open = [&["open", "disk.img"][..], levels, &["--raw", "--key-file", "deep"]].concat();
    scene.lacuna(&open).code(0);
    let _closing = CloseOnDrop(&scene, levels);
    let server = SilentServer::of(&scene);
    assert_eq!(server.sockets.len(), levels.len());
    let dir = scene.path("").canonicalize().unwrap();
    let close = |args: &[&str]| {
        let mut command = scene.command(args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let process = child.id();
        let log = RunOutput::from(child.wait_with_output().unwrap()).code(20).stderr;
        let log = log.replace(&server.process, "PID").replace(dir.to_str().unwrap(), "DIR");
        (server.count_clients(process), log)
    };
    let asked = vec![close(&["close", "disk.img"]), close(&["close", "--deleted", "disk.img"])];
    drop(server);
    scene.lacuna(&["close", "disk.img"]).code(0);
    asked
}

#[test]
fn close_asks_a_silent_server_equally_often_for_any_number_of_levels() {
    skip_unless!(can_mount("/dev/fuse") && is_program_available("fusermount3"));
    let [one, both] = thread::scope(|scope| {
        let runs = [&["public"][..], &["public", "hidden"]];
        runs.map(|levels| scope.spawn(move || close_silent(levels))).map(|run| run.join().unwrap())
    });
    // For its status alone, and for its status and to close.
    assert_eq!([one[0].0, one[1].0], [1, 2], "{one:?}");
    assert_eq!(one, both);
}
