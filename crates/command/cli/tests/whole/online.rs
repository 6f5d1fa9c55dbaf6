//! Operations on an open disk while programs use it: checking, changing passphrases, growing.

use crate::harness::{
    CloseOnDrop, RunOutput, Scene, Serving, Signal, can_mount, can_mount_ext4, noise, send, skip_unless,
    skipped,
};
use crate::nbd_client::Client;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const CHUNK: usize = 256 << 10;

/// Sets the flag that ends concurrent work, also when a test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn scene(options: &[&str]) -> Scene {
    let scene = Scene::with_disk(options);
    for name in ["second", "third", "wrong"] {
        fs::write(scene.path(name), format!("{name}\n")).unwrap();
    }
    scene
}

/// Runs `work` while a client writes one chunk after another, flushes occasionally, and reads its
/// data back.
fn while_writing<R>(socket: &Path, chunks: u64, work: impl FnOnce() -> R) -> R {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = Client::connect(socket).unwrap();
            let mut round = 0;
            // Every chunk at least once, so that there is data to check afterwards.
            while round < chunks || !done.load(Ordering::Relaxed) {
                let at = (round % chunks) * CHUNK as u64;
                client.write_at(at, &noise(round % chunks + 1, CHUNK)).unwrap();
                if round % 5 == 0 {
                    client.flush().unwrap();
                    assert!(client.read_at(at, CHUNK).unwrap() == noise(round % chunks + 1, CHUNK));
                }
                round += 1;
            }
        });
        let ending = StopAtEnd(&done);
        let result = work();
        drop(ending);
        writer.join().unwrap();
        result
    })
}

fn holds(socket: &Path, chunks: u64) {
    let mut client = Client::connect(socket).unwrap();
    for at in 0..chunks {
        assert!(client.read_at(at * CHUNK as u64, CHUNK).unwrap() == noise(at + 1, CHUNK), "chunk {at}");
    }
}

fn opens(scene: &Scene, key: &str) -> bool {
    match scene.lacuna(&["check", "disk.img", "--read-only", "--key-file", key]).code {
        0 => true,
        2 => false,
        code => panic!("exit code {code}"),
    }
}

fn key(scene: &Scene, words: &[&str]) -> RunOutput {
    scene.lacuna(&[&["key", words[0], "disk.img"], &words[1..]].concat())
}

fn size_of(scene: &Scene) -> u64 {
    scene.lacuna(&["info", "disk.img", "--json"]).code(0).json()["size"].as_u64().unwrap()
}

#[test]
fn a_served_disk_is_checked_rekeyed_and_grown_under_a_client() {
    let scene = scene(&["--size", "64M"]);
    let server = scene.serve(&[]);
    while_writing(&server.socket, 40, || {
        let report = scene.lacuna(&["check", "disk.img", "--json"]).code(0).json();
        assert_eq!((&report["bad"], &report["verified"]), (&0.into(), &true.into()));
        assert_eq!(report["good"].as_u64().unwrap() + report["unwritten"].as_u64().unwrap(), 16384);
        let ran = scene.lacuna(&["check", "disk.img", "--key-file", "wrong"]).code(0);
        assert!(ran.stdout.contains(" verified, ") && ran.stderr.contains("was not used"), "{}", ran.stderr);

        key(&scene, &["add", "--key-file", "wrong", "--new-key-file", "second"]).code(2);
        key(&scene, &["add", "--key-file", "key", "--new-key-file", "second"]).code(0);
        key(&scene, &["change", "--key-file", "second", "--new-key-file", "third"]).code(0);
        key(&scene, &["refresh", "--key-file", "key", "--key-file", "third", "--yes", "--keep", "2"]).code(0);
        scene.lacuna(&["header", "backup", "disk.img", "backup"]).code(0);
        scene.lacuna(&["header", "repair", "disk.img", "--key-file", "third"]).code(0);
        key(&scene, &["remove", "--key-file", "third", "--remove-key-file", "key"]).code(0);
        // A different header cannot be restored while the disk is open.
        scene.lacuna(&["header", "restore", "disk.img", "backup", "--key-file", "key", "--yes"]).code(5);

        for size in ["80M", "200M"] {
            let said = scene.lacuna(&["resize", "disk.img", "--size", size]).code(0).stdout;
            assert!(said.contains("when they connect again"), "{said}");
        }
        scene.lacuna(&["resize", "disk.img", "--size", "100M"]).code(1);
        let said = scene.lacuna(&["resize", "disk.img", "--size", "200M"]).code(0).stdout;
        assert!(said.contains("has this size already"), "{said}");
        let refused = scene.lacuna(&["resize", "disk.img", "--size", "3T"]).code(1).stderr;
        assert!(refused.contains("its map has room for that"), "{refused}");
    });
    assert_eq!(size_of(&scene), 200 << 20);
    let status = scene.lacuna(&["status", "disk.img", "--json"]).json();
    assert_eq!(status["servers"][0]["size"], 200 << 20);
    let end = (200 << 20) - CHUNK as u64;
    Client::connect(&server.socket).unwrap().write_at(end, &noise(99, CHUNK)).unwrap();
    holds(&server.socket, 40);
    assert_eq!(server.stop(), 0);

    assert_eq!(["key", "second", "third"].map(|name| opens(&scene, name)), [false, false, true]);
    let server = scene.serve_with_key("third");
    holds(&server.socket, 40);
    assert!(Client::connect(&server.socket).unwrap().read_at(end, CHUNK).unwrap() == noise(99, CHUNK));
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_kill_while_a_disk_grows_leaves_the_old_size_or_the_new() {
    let scene = scene(&["--size", "16M"]);
    let mut sizes: Vec<u64> = Vec::new();
    // In the last round the server is killed after the growth.
    let delays = [0, 1, 2, 4, 7, 12, 20, 40, u64::MAX];
    for (round, delay) in delays.into_iter().enumerate() {
        let mut server = scene.serve(&[]);
        let mut client = Client::connect(&server.socket).unwrap();
        let before = size_of(&scene);
        let wanted = before + (4 << 20);
        client.write_at(0, &noise(round as u64 + 1, CHUNK)).unwrap();
        client.flush().unwrap();
        let wanted_words = wanted.to_string();
        let mut resize = scene.command(&["-q", "resize", "disk.img", "--size", &wanted_words]);
        let mut resize = resize.stderr(std::process::Stdio::null()).spawn().unwrap();
        if delay == u64::MAX {
            assert!(resize.wait().unwrap().success());
        }
        // A client writes until the kill.
        for part in 1..=delay.min(40) {
            if client.write_at(part * CHUNK as u64 % (8 << 20) + CHUNK as u64, &noise(part, CHUNK)).is_err() {
                break;
            }
        }
        server.kill();
        let _ = resize.wait();
        let after = size_of(&scene);
        assert!(after == before || after == wanted, "{after}");
        sizes.push(after);
        let read = scene.serve(&[]).used_by(|client| client.read_at(0, CHUNK).unwrap());
        assert!(read == noise(round as u64 + 1, CHUNK), "round {round}");
        scene.lacuna(&["-q", "check", "disk.img", "--key-file", "key"]).code(0);
    }
    assert!(sizes.is_sorted() && sizes.last() > sizes.first(), "{sizes:?}");
}

#[test]
fn open_levels_are_checked_and_rekeyed_without_revealing_levels() {
    for format in ["deniable", "oblivious"] {
        let scene = scene(&["--size", "64M", "--format", format]);
        let with_level = |words: &[&str]| {
            let deep = ["refresh", "--key-file", "key", "--add-level", "--yes", "--keep", "1"];
            key(&scene, &[&deep[..], words].concat())
        };
        let server = scene.serve(&[]);
        while_writing(&server.socket, 8, || {
            // A level that is not open is unknown; the check covers the open levels.
            let words = scene.lacuna(&["check", "disk.img"]).code(0).stdout;
            assert!(words.contains(" 0 bad") && !words.contains("level"), "{words}");
            key(&scene, &["add", "--key-file", "wrong", "--new-key-file", "second", "--yes", "--keep", "1"])
                .code(2);
            key(&scene, &["add", "--key-file", "key", "--new-key-file", "second", "--yes", "--keep", "1"])
                .code(0);
            let refused = scene.lacuna(&["resize", "disk.img", "--size", "128M"]).code(1).stderr;
            assert!(refused.contains("which keeps its size"), "{refused}");
        });
        holds(&server.socket, 8);
        assert_eq!(server.stop(), 0);
        assert_eq!(["key", "second", "third"].map(|name| opens(&scene, name)), [true, true, false]);
        // A level is added while a server without it runs.
        let server = scene.serve(&[]);
        with_level(&["--new-key-file", "third"]).code(0);
        Client::connect(&server.socket).unwrap().write_at(0, &noise(50, CHUNK)).unwrap();
        assert_eq!(server.stop(), 0);
        assert_eq!(["key", "second", "third"].map(|name| opens(&scene, name)), [true, false, true]);
        let server = scene.serve_with_key("third");
        assert!(Client::connect(&server.socket).unwrap().read_at(0, CHUNK).unwrap() == noise(50, CHUNK));
        scene.lacuna(&["check", "disk.img"]).code(0);
        assert_eq!(server.stop(), 0);
    }
}

#[test]
fn bad_blocks_of_an_open_disk_are_named() {
    let scene = scene(&["--size", "64M"]);
    let server = scene.serve(&[]);
    let mut client = Client::connect(&server.socket).unwrap();
    client.write_at(0, &noise(1, 4 << 20)).unwrap();
    client.flush().unwrap();
    assert_eq!(server.stop(), 0);
    let file = fs::OpenOptions::new().read(true).write(true).open(scene.path("disk.img")).unwrap();
    // Two written blocks.
    let data = scene.lacuna(&["info", "disk.img", "--json"]).json()["data_offset"].as_u64().unwrap();
    let bytes = fs::read(scene.path("disk.img")).unwrap();
    let written = |at: &u64| bytes[*at as usize..].iter().take(4096).any(|byte| *byte != 0);
    let place = (data..).step_by(4096).filter(written).nth(10).unwrap();
    file.write_all_at(&noise(9, 8192), place).unwrap();
    let server = scene.serve(&[]);
    let offline_words = scene.lacuna(&["check", "disk.img"]).code(10);
    assert!(offline_words.stdout.contains("bad") && offline_words.stderr.contains("restore the data of"));
    let report = scene.lacuna(&["check", "disk.img", "--json"]).code(10).json();
    assert!(report["bad"].as_u64().unwrap() >= 2 && report["bad_blocks"][0]["error"].is_string(), "{report}");
    assert_eq!(server.stop(), 0);
    let closed = scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(10);
    assert_eq!(closed.stdout, offline_words.stdout);
}

#[test]
fn a_mounted_file_system_is_checked_and_grows_in_use() {
    skip_unless!(can_mount_ext4());
    let scene = scene(&["--size", "64M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    scene.lacuna(&["open", "disk.img", "mnt", "--key-file", "key", "--mkfs", "ext4"]).code(0);
    let (done, mut grew) = (AtomicBool::new(false), false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut round = 0u64;
            while !done.load(Ordering::Relaxed) || round < 20 {
                let mut file = fs::File::create(scene.path(&format!("mnt/file {}", round % 20))).unwrap();
                file.write_all(&noise(round % 20 + 1, CHUNK)).unwrap();
                file.sync_all().unwrap();
                round += 1;
            }
        });
        let ending = StopAtEnd(&done);
        scene.lacuna(&["check", "disk.img"]).code(0);
        key(&scene, &["add", "--key-file", "key", "--new-key-file", "second"]).code(0);
        let said = scene.lacuna(&["resize", "disk.img", "--size", "128M"]).code(0).stdout;
        assert!(said.contains("`resize2fs /dev/loop"), "{said}");
        let ran = scene.lacuna(&["resize", "disk.img", "--size", "256M", "--grow-fs"]);
        assert!(ran.stdout.contains("is now 256 MiB"), "{}{}", ran.stdout, ran.stderr);
        grew = ran.code == 0;
        assert!(grew || ran.code == 20, "{}", ran.code);
        assert!(grew || ran.stderr.contains("Permission denied to resize"), "{}", ran.stderr);
        let alone = scene.lacuna(&["resize", "mnt", "--grow-fs"]).code(if grew { 0 } else { 20 });
        assert!(grew || alone.stderr.contains("open it with --raw"), "{}", alone.stderr);
        drop(ending);
        writer.join().unwrap();
    });
    // More than the old size had room for.
    let large = noise(77, if grew { 150 << 20 } else { 20 << 20 });
    if !grew {
        skipped("the kernel does not let a mounted ext4 grow here");
    }
    fs::write(scene.path("mnt/large"), &large).unwrap();
    scene.lacuna(&["close", "mnt"]).code(0);
    scene.lacuna(&["open", "disk.img", "mnt", "--key-file", "second"]).code(0);
    assert!(fs::read(scene.path("mnt/large")).unwrap() == large);
    for round in 0..20 {
        assert!(fs::read(scene.path(&format!("mnt/file {round}"))).unwrap() == noise(round + 1, CHUNK));
    }
    scene.lacuna(&["close", "mnt"]).code(0);
}

#[test]
fn a_raw_mount_shows_the_new_length() {
    skip_unless!(can_mount("/dev/fuse"));
    let scene = scene(&["--size", "64M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    scene.lacuna(&["open", "disk.img", "mnt", "--raw", "--key-file", "key"]).code(0);
    let file = fs::OpenOptions::new().read(true).write(true).open(scene.path("mnt/disk")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 64 << 20);
    // A raw mount has no file system to grow.
    scene.lacuna(&["resize", "disk.img", "--size", "80M", "--grow-fs"]).code(1);
    assert_eq!(file.metadata().unwrap().len(), 64 << 20);
    scene.lacuna(&["resize", "disk.img", "--size", "80M"]).code(0);
    assert_eq!(file.metadata().unwrap().len(), 80 << 20);
    file.write_all_at(&noise(3, CHUNK), (80 << 20) - CHUNK as u64).unwrap();
    scene.lacuna(&["check", "disk.img"]).code(0);
    drop(file);
    scene.lacuna(&["close", "mnt"]).code(0);
}

#[test]
fn a_server_does_nothing_for_another_file_at_the_path_of_its_disk() {
    let scene = scene(&["--size", "64M"]);
    let server = scene.serve(&[]);
    fs::rename(scene.path("disk.img"), scene.path("moved.img")).unwrap();
    let before = fs::metadata(scene.path("moved.img")).unwrap().len();
    // First a copy of the same disk, then a different disk that is not open.
    for other in ["a copy", "another"] {
        if other == "a copy" {
            fs::copy(scene.path("moved.img"), scene.path("disk.img")).unwrap();
        } else {
            fs::remove_file(scene.path("disk.img")).unwrap();
            scene.lacuna(&["create", "disk.img", "--size", "64M", "--key-file", "key"]).code(0);
        }
        let code = if other == "a copy" { 5 } else { 0 };
        let ran = scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(code);
        assert!(code == 0 || ran.stderr.contains("/moved.img` ends that"), "{}", ran.stderr);
        scene.lacuna(&["resize", "disk.img", "--size", "128M", "--key-file", "key"]).code(code);
        key(&scene, &["add", "--key-file", "key", "--new-key-file", "second"]).code(code);
        assert_eq!(fs::metadata(scene.path("moved.img")).unwrap().len(), before, "{other}");
    }
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_stopped_server_and_hostile_bytes_keep_no_command_waiting() {
    let scene = scene(&["--size", "64M"]);
    let server = scene.serve(&[]);
    let socket = scene.control("disk.img", "nbd");
    let hostile = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let _ = stream.write_all(bytes);
    };
    let header = request(&scene, "header");
    for bytes in [
        format!("{header}{{\"write\":[0,\"00\"]}}\n"),
        request(&scene, "resize").replace('}', ",\"size\":-1}"),
        request(&scene, "sing"),
        request(&scene, "check").replace("\"v\":1", "\"v\":9"),
        "{\"v\":1,\"op\":\"job\",\"job\":\"check\"}\n".to_owned(),
        "{\"v\":1,\"op\":\"job\",\"job\":\"resize\",\"disk\":{\"file\":\"file:1:1\"},\"size\":1}\n"
            .to_owned(),
        "\n".to_owned(),
    ] {
        hostile(bytes.as_bytes());
    }
    hostile(&[request(&scene, "check").as_bytes(), &noise(5, 4096)[..]].concat());
    hostile(&noise(6, 1 << 16));
    ask_for_what_is_not_the_header(&scene, &socket);
    // The server drops the remains of these connections at once.
    crate::harness::wait_until("that the header is free", || {
        key(&scene, &["add", "--key-file", "key", "--new-key-file", "second"]).code == 0
    });
    scene.lacuna(&["check", "disk.img"]).code(0);
    stop_and_ask(&scene, &server);
    assert_eq!(server.stop(), 0);
}

/// A request as `lacuna` makes it, for the file of the open disk.
fn request(scene: &Scene, job: &str) -> String {
    let about = fs::metadata(scene.path("disk.img")).unwrap();
    let file = format!("file:{}:{}", about.dev(), about.ino());
    format!("{{\"v\":1,\"op\":\"job\",\"job\":\"{job}\",\"disk\":{{\"file\":\"{file}\"}}}}\n")
}

/// The server's answer at this socket, without keep-alives, to a client that sends `said` and then
/// shuts down its side.
fn answer(socket: &Path, said: &[u8]) -> serde_json::Value {
    let mut stream = UnixStream::connect(socket).unwrap();
    // The server may not read all of it.
    let _ = stream.write_all(said);
    stream.shutdown(Shutdown::Write).unwrap();
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    serde_json::from_slice(heard.trim_ascii()).unwrap()
}

#[test]
fn malformed_requests_get_the_same_answers_from_a_server_and_a_mount() {
    skip_unless!(can_mount("/dev/fuse"));
    let scene = scene(&["--size", "64M"]);
    scene.create("mounted.img", &["--size", "64M"]).code(0);
    fs::create_dir(scene.path("mnt")).unwrap();
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    let server = scene.serve(&[]);
    scene.lacuna(&["open", "mounted.img", "mnt", "--raw", "--key-file", "key"]).code(0);
    let sockets = [scene.control("disk.img", "nbd"), scene.control("mounted.img", "fuse")];
    let long = format!("{{\"v\":1,\"op\":\"status\"{}}}\n", " ".repeat(4096));
    let stat = "{\"v\":1,\"op\":\"stat\",\"ino\":1}\n";
    let other = "{\"v\":1,\"op\":\"purge\",\"uuid\":\"00000000-0000-0000-0000-000000000000\"}\n";
    for (said, kind) in [
        ("", "usage"),
        ("\n", "usage"),
        ("status\n", "usage"),
        ("nonsense\n", "usage"),
        ("{\"v\":1,\"op\":\"status\"", "usage"),
        (long.as_str(), "usage"),
        ("{\"v\":1,\"op\":\"nonsense\"}\n", "usage"),
        ("{\"v\":2,\"op\":\"status\"}\n", "usage"),
        ("{\"op\":\"close\"}\n", "usage"),
        (stat, "usage"),
        (other, "purge-incomplete"),
        ("{\"v\":1,\"op\":\"purge\"}\n", "usage"),
    ] {
        let replies = sockets.each_ref().map(|socket| answer(socket, said.as_bytes()));
        assert!(replies.iter().all(|reply| reply["error"]["kind"] == kind), "{said:?}: {replies:?}");
    }
    // A silent client does not delay the answers of other clients.
    let _silent = sockets.each_ref().map(|socket| UnixStream::connect(socket).unwrap());
    let status = sockets.each_ref().map(|socket| answer(socket, b"{\"v\":1,\"op\":\"status\"}\n"));
    let fields = status.each_ref().map(|reply| reply["ok"].as_object().unwrap().keys().collect::<Vec<_>>());
    assert_eq!(fields[0], fields[1]);
    for name in ["disk.img", "mounted.img"] {
        scene.lacuna(&["check", name]).code(0);
        scene.lacuna(&["close", name]).code(0);
    }
    assert_eq!(server.wait(), 0);
}

/// Requests parts of the medium outside the header, and invalid parts. None of these requests is
/// performed.
fn ask_for_what_is_not_the_header(scene: &Scene, socket: &Path) {
    let before = fs::read(scene.path("disk.img")).unwrap();
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    stream.write_all(request(scene, "header").as_bytes()).unwrap();
    let mut line = || {
        let mut line = String::new();
        while line.trim().is_empty() {
            line.clear();
            assert!(answers.read_line(&mut line).unwrap() > 0, "the server ended");
        }
        line
    };
    assert!(line().contains("len"));
    let wrong = [
        r#"{"read":[20000,4096]}"#,
        r#"{"read":[0,16385]}"#,
        r#"{"read":[18446744073709551615,16]}"#,
        r#"{"read":[-1,1]}"#,
        r#"{"read":[0,1e300]}"#,
        r#"{"read":[0]}"#,
        r#"{"write":[1048576,"00"]}"#,
        r#"{"write":[16383,"0000"]}"#,
        r#"{"write":[0,"0"]}"#,
        r#"{"write":[0,"zz"]}"#,
        r#"{"write":[0,7]}"#,
        r#"{"sync":"yes"}"#,
        "[]",
        "null",
    ];
    for message in wrong {
        stream.write_all(format!("{message}\n").as_bytes()).unwrap();
        let answer = line();
        assert!(answer.contains("failed"), "{message}: {answer}");
    }
    drop(stream);
    assert!(fs::read(scene.path("disk.img")).unwrap() == before);
}

fn stop_and_ask(scene: &Scene, server: &Serving) {
    server.signal(Signal::STOP);
    let asked: Vec<_> = [&["check", "disk.img"][..], &["resize", "disk.img", "--size", "80M"]]
        .into_iter()
        .map(|args| {
            let mut command = scene.command(args);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in asked {
        let ran = RunOutput::from(child.wait_with_output().unwrap()).code(20);
        assert!(ran.stderr.contains("silence for") && ran.stderr.contains("kill -CONT"), "{}", ran.stderr);
    }
    send(Signal::CONT, server.process());
}
