//! Passphrases come and go, and disks grow.

use crate::nbd_client::Client;
use crate::scene::{CHEAP, Ran, Scene, noise};
use std::fs;

/// A disk, and two more passphrases in files.
fn scene() -> Scene {
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::write(scene.path("second"), "second\n").unwrap();
    fs::write(scene.path("third"), "third\n").unwrap();
    scene
}

fn opens(scene: &Scene, key: &str) -> bool {
    match scene.lacuna(&["check", "disk.img", "--key-file", key]).code {
        0 => true,
        2 => false,
        code => panic!("exit code {code}"),
    }
}

fn key(scene: &Scene, words: &[&str]) -> Ran {
    scene.lacuna(&[&["key", words[0], "disk.img", "--key-file", "key"], &words[1..]].concat())
}

#[test]
fn passphrases_come_and_go() {
    let scene = scene();
    let works = |expected: [bool; 3]| {
        assert_eq!(["key", "second", "third"].map(|name| opens(&scene, name)), expected);
    };
    // Not without being told of the loss.
    let ran = key(&scene, &["add", "--new-key-file", "second"]).code(1);
    assert!(ran.stderr.contains("rewrites all key slots"), "{}", ran.stderr);
    // Nor without being told how many there are to stay.
    assert!(key(&scene, &["add", "--new-key-file", "second", "--yes"]).code(1).stderr.contains("--keep"));
    works([true, false, false]);

    let ran = key(&scene, &["add", "--new-key-file", "second", "--yes", "--keep", "1"]).code(0);
    assert_eq!(ran.stderr.matches("rewrites all key slots").count(), 1, "{}", ran.stderr);
    assert!(!ran.stderr.contains("level"), "{}", ran.stderr);
    works([true, true, false]);
    // It is said before anything is asked for.
    let ran =
        scene.lacuna(&["key", "refresh", "disk.img", "--yes", "--keep", "1", "--askpass", "false"]).code(1);
    assert!(ran.stderr.contains("rewrites all key slots"), "{}", ran.stderr);
    key(&scene, &["add", "--new-key-file", "second", "--key-file", "second", "--yes", "--keep", "2"]).code(1);
    // One of two was forgotten.
    let forgotten = key(&scene, &["add", "--new-key-file", "third", "--yes", "--keep", "2"]).code(1).stderr;
    assert!(forgotten.contains("1 passphrases") && forgotten.contains("2, as --keep says"), "{forgotten}");
    works([true, true, false]);
    key(&scene, &["add", "--key-file", "second", "--new-key-file", "third", "--yes", "--keep", "2"]).code(0);
    works([true, true, true]);

    let keep = ["--key-file", "second", "--yes", "--keep", "2"];
    key(&scene, &[&["remove", "--remove-key-file", "key"], &keep[..]].concat()).code(1);
    fs::write(scene.path("unheard"), "of\n").unwrap();
    key(&scene, &[&["remove", "--remove-key-file", "unheard"], &keep[..]].concat()).code(2);
    works([true, true, true]);
    key(&scene, &[&["remove", "--remove-key-file", "third"], &keep[..]].concat()).code(0);
    works([true, true, false]);

    // Which is the first one of two kinds would be a guess.
    let both = ["change", "--new-key-file", "third", "--key-fd", "0", "--yes", "--keep", "2"];
    assert!(key(&scene, &both).code(1).stderr.contains("--key-fd"));
    works([true, true, false]);

    // The first one given is changed, the others stay.
    key(&scene, &[&["change", "--new-key-file", "third"], &keep[..]].concat()).code(0);
    works([false, true, true]);
    key(&scene, &["refresh", "--yes", "--keep", "1"]).code(2);
    // Refreshing keeps what is given, and nothing else.
    scene.lacuna(&["key", "refresh", "disk.img", "--key-file", "third", "--yes", "--keep", "1"]).code(0);
    works([false, false, true]);
}

#[test]
fn a_new_passphrase_is_asked_for_until_it_is_repeated_alike_but_not_for_ever() {
    let scene = Scene::new();
    // Answers with the lines of `answers` in turn, and keeps what it was asked.
    let script = "#!/bin/sh\necho \"$1\" >>asked\nsed -n \"$(wc -l <asked)p\" answers\n";
    fs::write(scene.path("ask"), script).unwrap();
    scene.tool("chmod", &["+x", "ask"]);
    let create = |name: &str, answers: &str| {
        fs::write(scene.path("answers"), answers).unwrap();
        let _ = fs::remove_file(scene.path("asked"));
        let args = ["create", name, "--size", "64M", "--askpass", "./ask"];
        (scene.lacuna(&[&args[..], &CHEAP].concat()), fs::read_to_string(scene.path("asked")).unwrap())
    };
    let (ran, asked) = create("disk.img", "one\nother\ncorrect horse\ncorrect horse\n");
    ran.code(0);
    assert_eq!(asked.lines().filter(|line| line.starts_with("The two differ. ")).count(), 1, "{asked}");
    assert!(opens(&scene, "key"));
    let (ran, asked) = create("never.img", "1\n2\n3\n4\n5\n6\n7\n7\n");
    assert!(ran.code(1).stderr.contains("3 times"));
    assert_eq!(asked.lines().count(), 6);
    assert!(!scene.path("never.img").exists());
}

#[test]
fn a_new_cost_is_taken_over_and_the_old_one_is_kept() {
    let scene = scene();
    let kdf = || scene.lacuna(&["info", "disk.img", "--json"]).code(0).json()["header"]["kdf"].clone();
    assert_eq!(kdf()["memory_kib"], 1024);
    key(&scene, &["refresh", "--yes", "--keep", "1"]).code(0);
    assert_eq!(kdf()["memory_kib"], 1024);
    key(&scene, &["refresh", "--yes", "--keep", "1", "--kdf-memory", "2M", "--kdf-passes", "3"]).code(0);
    assert_eq!((&kdf()["memory_kib"], &kdf()["passes"]), (&2048.into(), &3.into()));
    assert!(opens(&scene, "key"));
}

#[test]
fn a_disk_grows_and_keeps_its_data() {
    for options in [
        &["--cipher", "xts-random"][..],
        &["--cipher", "gcm", "--layout", "kv"],
        &["--cipher", "gcm", "--layout", "interleaved"],
        &["--cipher", "xts"],
    ] {
        // Not a whole number of segments: growth begins inside one.
        let scene = Scene::with_disk(&[&["--size", "30M"], options].concat());
        let server = scene.serve(&[]);
        let mut client = Client::connect(&server.socket).unwrap();
        client.write_at(0, &noise(1, 3 << 20)).unwrap();
        client.write_at(28 << 20, &noise(2, 2 << 20)).unwrap();
        drop(client);
        assert_eq!(server.stop(), 0);

        let resize = |size: &str| scene.lacuna(&["resize", "disk.img", "--size", size, "--key-file", "key"]);
        resize("16M").code(1);
        resize("2T").code(1);
        resize("31000001").code(1);
        resize("30M").code(0);
        resize("200M").code(0);
        assert_eq!(scene.lacuna(&["info", "disk.img", "--json"]).code(0).json()["size"], 200 << 20);

        let server = scene.serve(&[]);
        let mut client = Client::connect(&server.socket).unwrap();
        assert!(client.read_at(0, 3 << 20).unwrap() == noise(1, 3 << 20), "{options:?}");
        assert!(client.read_at(28 << 20, 2 << 20).unwrap() == noise(2, 2 << 20), "{options:?}");
        assert!(client.read_at(30 << 20, 8 << 20).unwrap().iter().all(|byte| *byte == 0));
        client.write_at(190 << 20, &noise(3, 8 << 20)).unwrap();
        drop(client);
        assert_eq!(server.stop(), 0);
        let server = scene.serve(&["--read-only"]);
        let data = Client::connect(&server.socket).unwrap().read_at(190 << 20, 8 << 20).unwrap();
        assert!(data == noise(3, 8 << 20), "{options:?}");
        assert_eq!(server.stop(), 0);
        scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    }
}
