//! A served disk stays open while clients use it. Every output counts them, and only `--force` cuts
//! them off.

use crate::daily::IsolatedScene;
use crate::harness::{RunOutput, Scene, Serving, Terminal, noise, wait_until};
use crate::nbd_client::Client;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// The disk in the output of `status --json`.
fn status(ran: &RunOutput) -> Value {
    ran.json()["servers"][0].clone()
}

/// Waits until the server of `disk.img` counts this number of clients.
fn wait_for_clients(scene: &Scene, count: u64) {
    wait_until("the number of clients", || {
        status(&scene.lacuna(&["status", "disk.img", "--json"]).code(0))["clients"] == count
    });
}

/// This process as a client of a unix socket.
fn own() -> String {
    format!("(process {})", std::process::id())
}

#[test]
fn a_disk_with_clients_is_closed_by_force_alone() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let server = scene.serve(&[]);
    wait_for_clients(&scene, 0);
    let mut clients = [(); 2].map(|()| Client::connect(&server.socket).unwrap());
    wait_for_clients(&scene, 2);
    let refused = scene.lacuna(&["close", "disk.img"]).code(5).stderr;
    for words in ["disk.img", "2 clients are connected: 2 of ", &own(), "--force"] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    // The clients are served on.
    clients[0].write_at(0, &noise(1, 4096)).unwrap();
    assert!(clients[1].read_at(0, 4096).unwrap() == noise(1, 4096));

    let answer = status(&scene.lacuna(&["status", "disk.img", "--json"]).code(0));
    let peer = answer["peers"][0].as_str().unwrap();
    assert!(answer["clients"] == 2 && peer.starts_with("2 of ") && peer.contains(&own()), "{answer}");
    assert_eq!(answer["refused_clients"], serde_json::json!({ "count": 0, "last": null }));
    let text = scene.lacuna(&["status", "disk.img"]).code(0).stdout;
    assert!(text.contains("2: 2 of ") && text.contains(&own()), "{text}");
    let watched = scene.lacuna(&["status", "disk.img", "--watch", "--count", "1"]).code(0).stdout;
    assert!(watched.contains(", 2 clients"), "{watched}");
    let path = scene.path("disk.img").canonicalize().unwrap().display().to_string();
    let list = scene.lacuna(&["list"]).code(0).stdout;
    let line = list.lines().find(|line| line.contains(&path)).unwrap_or_else(|| panic!("{list}"));
    assert!(line.contains(", 2 clients"), "{line}");
    let list = scene.lacuna(&["list", "--json"]).code(0).json();
    let open = list["open"].as_array().unwrap();
    assert!(open.iter().any(|one| one["location"] == path.as_str() && one["clients"] == 2), "{list}");

    let [one, other] = clients;
    drop(one);
    wait_for_clients(&scene, 1);
    let refused = scene.lacuna(&["close", "disk.img"]).code(5).stderr;
    assert!(refused.contains("1 client is connected: "), "{refused}");
    drop(other);
    scene.lacuna(&["close", "disk.img"]).code(0);
    assert_eq!(server.wait(), 0);

    let server = scene.serve(&[]);
    let mut client = Client::connect(&server.socket).unwrap();
    wait_for_clients(&scene, 1);
    scene.lacuna(&["close", "disk.img", "--force"]).code(0);
    assert_eq!(server.wait(), 0);
    client.read_at(0, 4096).unwrap_err();
}

/// Serves a disk on a machine without other open disks.
fn serve(apart: &IsolatedScene, disk: &str, socket: &str) -> Serving {
    let program = [env!("CARGO_BIN_EXE_lacuna"), "serve", disk, "--socket", socket, "--key-file", "key"];
    apart.scene.serve_command(&mut apart.command(&program))
}

#[test]
fn all_is_closed_except_disks_in_use() {
    let Some(apart) = IsolatedScene::new() else { return };
    let scene = &apart.scene;
    fs::create_dir(scene.path("mnt")).unwrap();
    for name in ["disk.img", "other.img", "mounted.img"] {
        scene.create(name, &["--size", "64M"]).code(0);
    }
    let (used, idle) = (serve(&apart, "disk.img", "nbd.sock"), serve(&apart, "other.img", "other.sock"));
    apart.lacuna(&["open", "mounted.img", "mnt", "--raw", "--key-file", "key"]).code(0);
    let _client = Client::connect(&used.socket).unwrap();
    let count = || status(&apart.lacuna(&["status", "disk.img", "--json"]).code(0))["clients"].clone();
    wait_until("the client", || count() == 1);
    let mut user = apart.command(&["sh", "-c", "cd mnt && echo there && exec sleep 1000"]);
    let mut user = user.stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(user.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();

    let refused = apart.lacuna(&["close", "--all"]).code(5).stderr;
    assert!(refused.contains("/disk.img") && refused.contains("1 client is connected"), "{refused}");
    assert!(refused.contains("/mnt") && !refused.contains("other.img"), "{refused}");
    assert_eq!(idle.wait(), 0);
    // A mount has no clients, and force does not apply to it.
    assert!(status(&apart.lacuna(&["status", "mnt", "--json"]).code(0))["clients"].is_null());
    let refused = apart.lacuna(&["close", "mnt", "--force"]).code(5).stderr;
    assert!(refused.contains("sleep (process ") && refused.contains("served disks alone"), "{refused}");
    let refused = apart.lacuna(&["close", "--all", "--force"]).code(5).stderr;
    assert!(refused.contains("/mnt") && !refused.contains("/disk.img"), "{refused}");
    assert_eq!(used.wait(), 0);
    user.kill().unwrap();
    user.wait().unwrap();
    apart.lacuna(&["close", "--all"]).code(0);
}

/// With the name of a client a log would have the level that the client uses.
#[test]
fn a_log_learns_nothing_of_the_clients_of_a_disk_with_levels() {
    for format in ["deniable", "oblivious"] {
        // The clock never beats while the test runs.
        let scene = Scene::with_levels(format, &["--size", "64M", "--cover", "3600000"]);
        let server = scene.serve_with_key("deep");
        let before = fs::read(scene.path("disk.img")).unwrap();
        let refused = ["0", "1"].map(|export| {
            let _client = Client::connect_to(&server.socket, export).unwrap();
            wait_for_clients(&scene, 1);
            let answer = scene.lacuna_on_terminal(&["close", "disk.img"]).code(5).stderr;
            assert!(answer.contains("1 client is connected: ") && answer.contains(&own()), "{answer}");
            scene.lacuna(&["close", "disk.img"]).code(20).stderr
        });
        assert_eq!(refused[0], refused[1], "{format}");
        assert!(!refused[0].contains("client") && !refused[0].contains("process"), "{}", refused[0]);
        // A refused close writes no cover.
        assert!(fs::read(scene.path("disk.img")).unwrap() == before, "{format}");
        wait_for_clients(&scene, 0);
        let _client = Client::connect_to(&server.socket, "1").unwrap();
        wait_for_clients(&scene, 1);
        scene.lacuna(&["close", "disk.img", "--force"]).code(0);
        assert_eq!(server.wait(), 0);
    }
}

#[test]
fn the_list_and_the_status_fit_the_terminal() {
    let Some(apart) = IsolatedScene::new() else { return };
    let scene = &apart.scene;
    for name in ["disk.img", "other.img"] {
        scene.create(name, &["--size", "64M"]).code(0);
    }
    let servers = [serve(&apart, "disk.img", "nbd.sock"), serve(&apart, "other.img", "other.sock")];
    let _client = Client::connect(&servers[0].socket).unwrap();
    for verb in ["list", "status"] {
        let shown = |columns: Option<u16>| {
            let terminal = Terminal::new();
            columns.iter().for_each(|columns| terminal.resize(*columns, 24));
            let mut command = apart.command(&[env!("CARGO_BIN_EXE_lacuna"), verb]);
            assert!(command.stdout(terminal.stdio()).status().unwrap().success());
            // The command holds the terminal open.
            drop(command);
            terminal.output()
        };
        for columns in [Some(60), Some(80), None] {
            let text = shown(columns);
            for line in text.lines() {
                // A single fact, such as a path, is not divided.
                let fits = line.chars().count() <= usize::from(columns.unwrap_or(80));
                assert!(fits || !line.trim_end_matches(',').contains(", "), "{columns:?}: {text}");
            }
            assert!(text.contains("other.img") && text.contains("nbd+unix:///?socket="), "{text}");
        }
        let wide = shown(Some(400));
        assert!(wide.lines().any(|line| line.contains("disk.img") && line.contains("nbd.sock")), "{wide}");
    }
    let piped = apart.lacuna(&["list"]).code(0).stdout;
    assert_eq!(piped.lines().count(), 2, "{piped}");
}
