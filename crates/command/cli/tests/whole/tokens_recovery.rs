//! A level is never left with a token as its only key unless the user requests it, and messages
//! about that reveal no level to a log.

use crate::harness::{CHEAP, RunOutput, Scene};
use crate::keys::{answering, asked};
use crate::tokens::SoftTpm;
use std::fs;

const DENIABLE: [&str; 6] = ["--format", "deniable", "--size", "64M", "--cover", "0"];

/// Runs `lacuna key VERB disk.img …` with its standard error on a terminal.
fn key_on_terminal(scene: &Scene, words: &[&str]) -> RunOutput {
    scene.lacuna_on_terminal(&[&["key", words[0], "disk.img"], &words[1..]].concat())
}

/// Runs the same with its standard error in a log.
fn key(scene: &Scene, words: &[&str]) -> RunOutput {
    scene.lacuna(&[&["key", words[0], "disk.img"], &words[1..]].concat())
}

fn opens(scene: &Scene, words: &[&str]) -> bool {
    match scene.lacuna(&[&["check", "disk.img"], words].concat()).code {
        0 => true,
        2 => false,
        code => panic!("exit code {code}"),
    }
}

/// Number of levels that a passphrase or token opens.
fn levels(scene: &Scene, words: &[&str]) -> Option<usize> {
    let ran = scene.lacuna(&[&["info", "disk.img", "--json"], words].concat()).code(0);
    ran.json()["levels"].as_array().map(Vec::len)
}

/// A disk where `key` opens level 0, and `token` and `recovery` open level 1.
fn create_with_hidden_token(scene: &Scene, token: &str) {
    answering(scene, "recovery\nrecovery\n");
    let with = ["--levels", "2", "--token", token, "--askpass", "./ask"];
    scene.create("disk.img", &[&DENIABLE[..], &with].concat()).code(0);
    fs::write(scene.path("recovery"), "recovery").unwrap();
}

#[test]
fn a_hidden_levels_token_is_used_like_its_passphrase() {
    let scene = Scene::new();
    let Some(_tpm) = SoftTpm::start(&scene) else { return };
    let token = SoftTpm::token("neutral,");
    create_with_hidden_token(&scene, &token);
    assert_eq!(asked(&scene)[0], "New recovery passphrase for level 1 of disk.img: ");
    assert_eq!(levels(&scene, &["--key-file", "key"]), Some(1));
    assert_eq!(levels(&scene, &["--token", &token]), Some(2));
    assert_eq!(levels(&scene, &["--key-file", "recovery"]), Some(2));
    // Refused without a passphrase of the same level; the reason is shown on a terminal only.
    let refresh = ["refresh", "--key-file", "key", "--token", &token, "--yes", "--keep", "2"];
    let ran = key_on_terminal(&scene, &refresh).code(1);
    assert!(ran.stderr.contains("recovery passphrase"), "{}", ran.stderr);
    let with_recovery =
        ["refresh", "--key-file", "recovery", "--token", &token, "--key-file", "key", "--yes", "--keep", "3"];
    key_on_terminal(&scene, &with_recovery).code(0);
    assert_eq!(levels(&scene, &["--token", &token]), Some(2));
}

#[test]
fn a_log_shows_the_same_for_a_token_of_any_level() {
    let token = SoftTpm::token("neutral,");
    let key_and_token = ["--key-file", "key", "--token", &token, "--yes", "--keep", "2"];
    let operations = [
        [&["refresh"][..], &key_and_token].concat(),
        [&["add"][..], &key_and_token, &["--new-token", "keyring:other"]].concat(),
        [&["change"][..], &key_and_token, &["--new-key-file", "recovery"]].concat(),
        [
            &["change"][..],
            &["--key-file", "key", "--key-file", "deep", "--yes", "--keep", "2"],
            &["--new-token", &token],
        ]
        .concat(),
        [&["remove"][..], &key_and_token, &["--remove-key-file", "recovery"]].concat(),
    ];
    let heard = |hidden: Option<bool>| -> Option<Vec<(i32, String)>> {
        let scene = Scene::new();
        let _tpm = SoftTpm::start(&scene)?;
        match hidden {
            Some(true) => create_with_hidden_token(&scene, &token),
            Some(false) => {
                scene.create("disk.img", &DENIABLE).code(0);
                let add = ["add", "--key-file", "key", "--token", &token, "--yes", "--keep", "1"];
                key(&scene, &add).code(0);
            }
            None => {
                scene.create("disk.img", &DENIABLE).code(0);
            }
        }
        // New and removed keys are read before a passphrase is asked for.
        fs::write(scene.path("recovery"), "recovery").unwrap();
        let before = fs::read(scene.path("disk.img")).unwrap();
        let heard = operations.iter().map(|words| {
            let ran = key(&scene, words);
            assert!(ran.stderr.contains("no terminal"), "{}", ran.stderr);
            (ran.code, ran.stdout + &ran.stderr)
        });
        let heard = heard.collect();
        assert!(fs::read(scene.path("disk.img")).unwrap() == before);
        Some(heard)
    };
    let Some(hidden) = heard(Some(true)) else { return };
    assert!(hidden.iter().all(|(code, _)| *code == 1), "{hidden:?}");
    assert_eq!(Some(&hidden), heard(Some(false)).as_ref());
    assert_eq!(Some(&hidden), heard(None).as_ref());
}

#[test]
fn no_key_operation_leaves_a_token_alone_on_a_disk_with_levels() {
    let scene = Scene::new();
    let Some(_tpm) = SoftTpm::start(&scene) else { return };
    let (a, b) = (SoftTpm::token("a,"), SoftTpm::token("b,"));
    scene.create("disk.img", &DENIABLE).code(0);
    fs::write(scene.path("new"), "new").unwrap();
    key(&scene, &["add", "--key-file", "key", "--token", &a, "--yes", "--keep", "1"]).code(0);
    let more = ["add", "--key-file", "key", "--token", &a, "--new-token", &b, "--yes", "--keep", "2"];
    key_on_terminal(&scene, &more).code(0);

    // One token opens and another is removed: the passphrase, which is not given, would be lost as
    // well.
    let remove = ["remove", "--token", &a, "--remove-token", &b, "--yes"];
    let ran = key_on_terminal(&scene, &[&remove[..], &["--keep", "1"]].concat()).code(1);
    assert!(ran.stderr.contains("recovery passphrase"), "{}", ran.stderr);
    assert!(opens(&scene, &["--key-file", "key"]) && opens(&scene, &["--token", &b]));
    key_on_terminal(&scene, &[&remove[..], &["--keep", "2", "--key-file", "key"]].concat()).code(0);
    assert!(opens(&scene, &["--key-file", "key"]) && !opens(&scene, &["--token", &b]));

    // A passphrase that is given twice does not remain when it is changed.
    let twice =
        ["change", "--key-file", "key", "--key-file", "key", "--new-token", &b, "--yes", "--keep", "1"];
    key_on_terminal(&scene, &twice).code(1);
    assert!(opens(&scene, &["--key-file", "key"]));
    // The remedy: a passphrase replaces the token.
    key(&scene, &["change", "--token", &a, "--new-key-file", "new", "--yes", "--keep", "1"]).code(0);
    assert!(opens(&scene, &["--key-file", "new"]) && !opens(&scene, &["--token", &a]));
}

#[test]
fn a_passphrase_of_another_level_is_no_recovery() {
    let scene = Scene::new();
    let Some(_tpm) = SoftTpm::start(&scene) else { return };
    let token = SoftTpm::token("");
    create_with_hidden_token(&scene, &token);
    fs::write(scene.path("new"), "new").unwrap();
    let change =
        ["change", "--key-file", "key", "--token", &token, "--new-key-file", "new", "--yes", "--keep", "2"];
    let ran = key_on_terminal(&scene, &change).code(1);
    assert!(ran.stderr.contains("recovery passphrase"), "{}", ran.stderr);
    assert_eq!(levels(&scene, &["--key-file", "recovery"]), Some(2));
    key(&scene, &[&change[..], &["--no-recovery"]].concat()).code(0);
    assert_eq!(levels(&scene, &["--key-file", "new"]), Some(1));
    assert_eq!(levels(&scene, &["--token", &token]), Some(2));
}

#[test]
fn a_token_is_removed_alone_where_other_passphrases_keep_working() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let Some(_tpm) = SoftTpm::start(&scene) else { return };
    let (a, b) = (SoftTpm::token("a,"), SoftTpm::token("b,"));
    for token in [&a, &b] {
        key(&scene, &["add", "--key-file", "key", "--token", token]).code(0);
    }
    key(&scene, &["remove", "--token", &a, "--remove-token", &b]).code(0);
    assert!(opens(&scene, &["--key-file", "key"]) && !opens(&scene, &["--token", &b]));
}

#[test]
fn a_new_level_gets_a_passphrase_before_a_token() {
    let scene = Scene::new();
    let Some(_tpm) = SoftTpm::start(&scene) else { return };
    let token = SoftTpm::token("");
    scene.create("disk.img", &DENIABLE).code(0);
    fs::write(scene.path("new"), "new").unwrap();
    let level = ["refresh", "--key-file", "key", "--add-level", "--yes", "--keep", "1"];
    let with_token = [&level[..], &["--new-token", &token]].concat();
    let ran = key(&scene, &with_token).code(1);
    assert!(ran.stderr.contains("make the level with --new-key-file"), "{}", ran.stderr);
    // The suggestion of the message works, and so does the alternative.
    key(&scene, &[&level[..], &["--new-key-file", "new"]].concat()).code(0);
    let add =
        ["add", "--key-file", "key", "--key-file", "new", "--new-token", &token, "--yes", "--keep", "2"];
    key(&scene, &add).code(0);
    assert_eq!(levels(&scene, &["--token", &token]), Some(2));
    key(&scene, &[&with_token[..], &["--no-recovery"]].concat()).code(0);
    assert_eq!(levels(&scene, &["--token", &token]), Some(2));
    assert!(!opens(&scene, &["--key-file", "new"]));
}

#[test]
fn two_levels_have_two_tokens_or_names() {
    let scene = Scene::new();
    let Some(_tpm) = SoftTpm::start(&scene) else { return };
    let (one, same) = (SoftTpm::token("pcrs=7,"), SoftTpm::token(""));
    let create = [&["create", "disk.img", "--levels", "2"], &DENIABLE[..], &CHEAP].concat();
    let ran =
        scene.lacuna(&[&create[..], &["--token", &one, "--token", &same, "--no-recovery"]].concat()).code(1);
    assert!(ran.stderr.contains("give the second another NAME"), "{}", ran.stderr);
    let other = SoftTpm::token("other,");
    scene.lacuna(&[&create[..], &["--token", &one, "--token", &other, "--no-recovery"]].concat()).code(0);
    assert_eq!(
        (levels(&scene, &["--token", &one]), levels(&scene, &["--token", &other])),
        (Some(1), Some(2))
    );
}
