//! The places where a server listens: several at once, and sockets of a service manager.

use crate::harness::{Scene, Signal, is_program_available, send, skip_unless};
use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

#[test]
fn a_disk_is_served_at_several_addresses() {
    skip_unless!(is_program_available("nbdinfo"));
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serve = ["serve", "disk.img", "--key-file", "key", "--fork", "--pid-file", "pid"];
    let places = ["--socket", "a", "--socket", "b", "--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let uris = scene.lacuna(&[&serve[..], &places].concat()).code(0).stdout;
    let uris: Vec<&str> = uris.lines().collect();
    let status = scene.lacuna(&["status", "disk.img", "--json"]).code(0).json();
    let words = scene.lacuna(&["status", "disk.img"]).code(0).stdout;
    let sizes: Vec<_> = uris.iter().map(|uri| scene.tool("nbdinfo", &["--size", uri]).stdout).collect();
    send(Signal::TERM, fs::read_to_string(scene.path("pid")).unwrap());
    scene.wait_until_free("disk.img");
    assert_eq!(sizes, ["67108864\n"; 4]);
    assert_eq!(status["servers"][0]["uris"], serde_json::json!(uris));
    assert_eq!(status["servers"][0]["uri"], uris[0]);
    assert!(uris.iter().all(|uri| words.contains(uri)), "{words}");
    assert!(!scene.path("a").exists() && !scene.path("b").exists());
}

#[test]
fn every_address_must_be_unreachable_for_unauthenticated_clients() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serve = ["serve", "disk.img", "--key-file", "key", "--socket", "a", "--listen", "127.0.0.1:0"];
    let refused = scene.lacuna(&[&serve[..], &["--listen", "0.0.0.0:0"]].concat()).code(1).stderr;
    assert!(
        refused.contains("cannot listen on 0.0.0.0:0") && refused.contains("--allow-strangers"),
        "{refused}"
    );
    assert!(!scene.path("a").exists());
}

/// A server that gets `listener` as from a service manager.
fn activated(scene: &Scene, listener: TcpListener, options: &[&str]) -> Command {
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", env!("CARGO_BIN_EXE_lacuna")]);
    command.args(["serve", "disk.img", "--key-file", "key"]);
    command.args(options).current_dir(scene.path(".")).env("XDG_RUNTIME_DIR", scene.path("."));
    command.stdin(Stdio::from(OwnedFd::from(listener)));
    command
}

#[test]
fn a_passed_socket_open_to_unauthenticated_clients_is_refused() {
    skip_unless!(is_program_available("nbdinfo"));
    let scene = Scene::with_disk(&["--size", "64M"]);
    let open = || TcpListener::bind("0.0.0.0:0").unwrap();
    let refused = activated(&scene, open(), &[]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("--allow-strangers"), "{said}");

    for (listener, options) in [
        (TcpListener::bind("127.0.0.1:0").unwrap(), &[][..]),
        (open(), &["--allow-strangers", "--pid-file", "pid"]),
    ] {
        let address = listener.local_addr().unwrap();
        let mut child = activated(&scene, listener, options).stdout(Stdio::piped()).spawn().unwrap();
        let uri = format!("nbd://127.0.0.1:{}", address.port());
        let size = scene.tool("nbdinfo", &["--size", &uri]).stdout;
        send(Signal::TERM, child.id());
        assert_eq!((size.as_str(), child.wait().unwrap().code()), ("67108864\n", Some(0)));
    }
}
