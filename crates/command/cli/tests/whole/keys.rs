//! Adding, changing and removing passphrases, and growing disks.

use crate::harness::{CHEAP, RunOutput, Scene, is_program_available, noise, skip_unless};
use crate::pty::PtySession;
use std::fs;

/// A disk, and two more passphrases in files.
fn scene(format: &str) -> Scene {
    let scene = Scene::with_disk(&["--size", "64M", "--format", format]);
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

fn key(scene: &Scene, words: &[&str]) -> RunOutput {
    scene.lacuna(&[&["key", words[0], "disk.img", "--key-file", "key"], &words[1..]].concat())
}

#[test]
fn key_operations_on_levels_need_all_passphrases() {
    let scene = scene("deniable");
    let works = |expected: [bool; 3]| {
        assert_eq!(["key", "second", "third"].map(|name| opens(&scene, name)), expected);
    };
    // Refused without consent to the loss.
    let ran = key(&scene, &["add", "--new-key-file", "second"]).code(1);
    assert!(ran.stderr.contains("rewrites all key slots"), "{}", ran.stderr);
    // Also refused without the number of passphrases to keep.
    assert!(key(&scene, &["add", "--new-key-file", "second", "--yes"]).code(1).stderr.contains("--keep"));
    works([true, false, false]);

    let ran = key(&scene, &["add", "--new-key-file", "second", "--yes", "--keep", "1"]).code(0);
    assert_eq!(ran.stderr.matches("rewrites all key slots").count(), 1, "{}", ran.stderr);
    works([true, true, false]);
    // The warning is printed before any prompt.
    let ran =
        scene.lacuna(&["key", "refresh", "disk.img", "--yes", "--keep", "1", "--askpass", "false"]).code(1);
    assert!(ran.stderr.contains("rewrites all key slots"), "{}", ran.stderr);
    key(&scene, &["add", "--new-key-file", "second", "--key-file", "second", "--yes", "--keep", "2"]).code(1);
    // One of two passphrases is missing.
    let forgotten = key(&scene, &["add", "--new-key-file", "third", "--yes", "--keep", "2"]).code(1).stderr;
    assert!(
        forgotten.contains("another number of passphrases") && forgotten.contains("2, as --keep says"),
        "{forgotten}"
    );
    // A passphrase that is given twice counts once.
    key(&scene, &["add", "--key-file", "key", "--new-key-file", "third", "--yes", "--keep", "2"]).code(1);
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

    // The first given passphrase is changed, the other ones stay.
    key(&scene, &[&["change", "--new-key-file", "third"], &keep[..]].concat()).code(0);
    works([false, true, true]);
    key(&scene, &["refresh", "--yes", "--keep", "1"]).code(2);
    // A refresh keeps only the given passphrases.
    scene.lacuna(&["key", "refresh", "disk.img", "--key-file", "third", "--yes", "--keep", "1"]).code(0);
    works([false, false, true]);
}

#[test]
fn info_counts_the_passphrases_of_a_disk_without_levels() {
    let info = |scene: &Scene, options: &[&str]| {
        scene.lacuna(&[&["info", "disk.img"][..], options].concat()).code(0)
    };
    let sealed = scene("sealed");
    assert_eq!(info(&sealed, &["--json", "--key-file", "key"]).json()["passphrases"], 1);
    key(&sealed, &["add", "--new-key-file", "second"]).code(0);
    for name in ["key", "second"] {
        assert_eq!(info(&sealed, &["--json", "--key-file", name]).json()["passphrases"], 2);
    }
    let text = info(&sealed, &["--key-file", "key"]).stdout;
    assert!(text.contains("\npassphrases      2\n"), "{text}");
    assert!(info(&sealed, &["--json"]).json()["passphrases"].is_null());
    assert!(info(&sealed, &[]).stdout.contains("\npassphrases      counted with a passphrase"));
    // Deniability contract: with levels there is no such row and no such field.
    for format in ["deniable", "oblivious"] {
        let levels = scene(format);
        let json = info(&levels, &["--json", "--key-file", "key"]).json();
        assert!(json["id"].is_string() && json.get("passphrases").is_none(), "{json}");
        let text = info(&levels, &["--key-file", "key"]).stdout;
        assert!(!text.contains("\npassphrases "), "{text}");
    }
}

#[test]
fn a_passphrase_is_added_and_removed_alone_on_a_sealed_disk() {
    let scene = scene("sealed");
    let works = |expected: [bool; 3]| {
        assert_eq!(["key", "second", "third"].map(|name| opens(&scene, name)), expected);
    };
    let ran = key(&scene, &["add", "--new-key-file", "second"]).code(0);
    assert!(ran.stdout.contains("2 passphrases work now") && ran.stderr.is_empty(), "{}", ran.stderr);
    key(&scene, &["add", "--new-key-file", "second"]).code(1);
    // The options that disks with levels require are accepted here: no passphrase is lost.
    key(&scene, &["add", "--new-key-file", "third", "--yes", "--keep", "1"]).code(0);
    works([true, true, true]);
    let dearer = ["add", "--new-key-file", "third", "--kdf-memory", "2M", "--kdf-passes", "2"];
    assert!(key(&scene, &dearer).code(1).stderr.contains("--kdf-memory of `lacuna key refresh`"));

    fs::write(scene.path("unheard"), "of\n").unwrap();
    key(&scene, &["remove", "--remove-key-file", "unheard"]).code(2);
    key(&scene, &["remove", "--remove-key-file", "key"]).code(1);
    key(&scene, &["remove", "--remove-key-file", "second"]).code(0);
    works([true, false, true]);
    key(&scene, &["change", "--new-key-file", "third"]).code(1);
    key(&scene, &["change", "--new-key-file", "second"]).code(0);
    works([false, true, true]);
    // A refresh keeps only the given passphrases, and warns of that.
    let refresh = ["key", "refresh", "disk.img", "--key-file", "third"];
    assert!(
        scene.lacuna(&refresh).code(1).stderr.contains("Every passphrase that you do not give now stops")
    );
    works([false, true, true]);
    let ran = scene.lacuna(&[&refresh[..], &["--yes", "--keep", "1"]].concat()).code(0);
    assert!(!ran.stderr.contains("for ever"), "{}", ran.stderr);
    works([false, false, true]);
    scene.lacuna(&["key", "remove", "disk.img", "--key-file", "third", "--remove-key-file", "third"]).code(1);
    works([false, false, true]);
}

/// Makes `ask`, which answers prompts with the lines of `answers` in turn and records them in
/// `asked`.
pub(crate) fn answering(scene: &Scene, answers: &str) {
    let script = "#!/bin/sh\necho \"$1\" >>asked\nsed -n \"$(wc -l <asked)p\" answers\n";
    fs::write(scene.path("ask"), script).unwrap();
    scene.tool("chmod", &["+x", "ask"]);
    fs::write(scene.path("answers"), answers).unwrap();
    let _ = fs::remove_file(scene.path("asked"));
}

pub(crate) fn asked(scene: &Scene) -> Vec<String> {
    fs::read_to_string(scene.path("asked")).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_passphrase_may_be_mistyped_twice() {
    let scene = scene("sealed");
    let check = ["check", "disk.img", "--askpass", "./ask"];
    answering(&scene, "correkt\nhorse\ncorrect horse\n");
    scene.lacuna(&check).code(0);
    assert!(asked(&scene)[2].starts_with("That passphrase opens nothing. "), "{:?}", asked(&scene));
    answering(&scene, "correkt\nhorse\nbattery\nstaple\n");
    scene.lacuna(&check).code(2);
    assert_eq!(asked(&scene).len(), 3);
}

#[test]
fn two_levels_with_one_passphrase_are_asked_for_again() {
    let scene = Scene::new();
    let create = ["create", "disk.img", "--size", "64M", "--format", "deniable", "--levels", "2"];
    answering(&scene, "one\none\none\none\ntwo\ntwo\n");
    scene.lacuna(&[&create[..], &["--askpass", "./ask"], &CHEAP].concat()).code(0);
    assert!(
        asked(&scene)[4].starts_with("Another level has this passphrase already. "),
        "{:?}",
        asked(&scene)
    );
    answering(&scene, "two\n");
    let levels = scene.lacuna(&["check", "disk.img", "--askpass", "./ask", "--json"]).code(0).json();
    assert_eq!(levels["bad"], 0);
}

#[test]
fn typed_passphrases_are_tried_one_by_one() {
    skip_unless!(is_program_available("script"));
    for (format, level) in [("sealed", false), ("deniable", true)] {
        let scene = scene(format);
        scene
            .lacuna(
                &[
                    &["key", "add", "disk.img", "--key-file", "key", "--new-key-file", "second"][..],
                    if level { &["--yes", "--keep", "1"] } else { &[] },
                ]
                .concat(),
            )
            .code(0);
        let mut typist = PtySession::new(&scene, "key add disk.img");
        typist.answer("Passphrase for disk.img: ", "correct hose");
        typist.answer("That passphrase opens nothing. Passphrase for disk.img: ", "correct horse");
        if level {
            typist.answer("Another passphrase to keep? (Enter = no more)", "correct horse");
            typist.answer("You gave that one already. Another passphrase to keep?", "sekond");
            typist.answer("That passphrase opens nothing. Type the passphrase to keep again", "second");
            typist.answer("Another passphrase to keep?", "");
        }
        if level {
            typist.answer("Go on? [y/N]", "y");
        }
        typist.answer("New passphrase for disk.img: ", "third");
        typist.answer("The same again: ", "third");
        assert_eq!(typist.end(), 0);
        assert_eq!(["key", "second", "third"].map(|name| opens(&scene, name)), [true; 3], "{format}");
    }
}

#[test]
fn a_new_passphrase_must_be_repeated_in_three_attempts() {
    let scene = Scene::new();
    let create = |name: &str, answers: &str| {
        answering(&scene, answers);
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
    let scene = scene("sealed");
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
    for options in [["--cipher", "xts-random"], ["--cipher", "gcm"], ["--cipher", "xts"]] {
        // Not a multiple of the segment size: growth begins within a segment.
        let scene = Scene::with_disk(&[["--size", "30M"], options].concat());
        scene.serve(&[]).used_by(|client| {
            client.write_at(0, &noise(1, 3 << 20)).unwrap();
            client.write_at(28 << 20, &noise(2, 2 << 20)).unwrap();
        });

        let resize = |size: &str| scene.lacuna(&["resize", "disk.img", "--size", size, "--key-file", "key"]);
        resize("16M").code(1);
        resize("2T").code(1);
        resize("31000001").code(1);
        resize("30M").code(0);
        resize("200M").code(0);
        assert_eq!(scene.lacuna(&["info", "disk.img", "--json"]).code(0).json()["size"], 200 << 20);

        scene.serve(&[]).used_by(|client| {
            assert!(client.read_at(0, 3 << 20).unwrap() == noise(1, 3 << 20), "{options:?}");
            assert!(client.read_at(28 << 20, 2 << 20).unwrap() == noise(2, 2 << 20), "{options:?}");
            assert!(client.read_at(30 << 20, 8 << 20).unwrap().iter().all(|byte| *byte == 0));
            client.write_at(190 << 20, &noise(3, 8 << 20)).unwrap();
        });
        let data =
            scene.serve(&["--read-only"]).used_by(|client| client.read_at(190 << 20, 8 << 20).unwrap());
        assert!(data == noise(3, 8 << 20), "{options:?}");
        scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    }
}
