//! The form of errors, and sentences that a newcomer understands at the first reading.

use crate::harness::{CHEAP, Scene};

#[test]
fn an_error_takes_three_lines_on_a_terminal_and_one_in_a_log() {
    let scene = Scene::with_disk(&["--size", "16M"]);
    let resize = ["resize", "disk.img", "--key-file", "key"];
    let log = scene.lacuna(&resize).code(1).stderr;
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.starts_with("lacuna: cannot resize disk.img; found: no --size; expected: "), "{log}");
    let terminal = scene.lacuna_on_terminal(&resize).code(1).stderr;
    let lines: Vec<&str> = terminal.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "lacuna: cannot resize disk.img: no --size"), "{terminal}");
    assert!(lines[1].starts_with("  expected: ") && lines[2].starts_with("  hint: "), "{terminal}");
    // Also one without an expectation.
    std::fs::create_dir(scene.path("dir")).unwrap();
    let serve = ["serve", "disk.img", "--fork", "--socket", "dir", "--key-file", "key"];
    let log = scene.lacuna(&serve).code(1).stderr;
    let terminal = scene.lacuna_on_terminal(&serve).code(1).stderr;
    assert!(log.contains("dir; found: something there that is not a socket; choose another path"), "{log}");
    let lines = "dir: something there that is not a socket\r\n  hint: choose another path for the socket\r\n";
    assert!(terminal.ends_with(lines), "{terminal:?}");
}

#[test]
fn a_wrong_command_line_takes_one_line_in_a_log() {
    let scene = Scene::new();
    for words in
        [&["open", "a", "b", "--key-fiel", "c"][..], &["close"], &["ls"], &["resize", "a", "--size=x"]]
    {
        let log = scene.lacuna(words).code(1).stderr;
        assert!(log.starts_with("lacuna: ") && log.lines().count() == 1, "{log}");
        let terminal = scene.lacuna_on_terminal(words).code(1).stderr;
        let lines: Vec<&str> = terminal.lines().collect();
        assert!(lines.len() <= 3 && lines[1..].iter().all(|line| line.starts_with("  ")), "{terminal}");
    }
}

#[test]
fn advice_names_the_disk_and_the_directory() {
    let scene = Scene::with_disk(&["--size", "16M"]);
    let init = [&["vault", "init", "v", "--token", "keyring:x"][..], &CHEAP].concat();
    let said = scene.lacuna(&init).code(1).stderr;
    assert!(!cfg!(feature = "tokens") || said.contains("`lacuna key add v --token keyring:x`"), "{said}");
    let said = scene.lacuna(&["info", "no disk"]).code(4).stderr;
    assert!(said.contains("`lacuna create 'no disk'`"), "{said}");
    let server = scene.serve(&[]);
    let said = scene.create("disk.img", &["--size", "16M", "--force"]).code(5).stderr;
    assert!(said.contains("`lacuna close disk.img`"), "{said}");
    assert_eq!(server.stop(), 0);
}

/// Number by number as in the list of puzzling sentences of a newcomer's review.
#[test]
fn sentences_are_plain() {
    let scene = Scene::with_disk(&["--size", "16M"]);
    let refresh = ["key", "refresh", "disk.img", "--key-file", "key"];
    // 24.
    let said = scene.lacuna(&[&refresh[..], &["--yes"]].concat()).code(1).stderr;
    assert!(said.contains("also say how many passphrases you are keeping"), "{said}");
    let said = scene.lacuna(&refresh).code(1).stderr;
    assert!(said.contains("with --keep N the number of passphrases that you keep"), "{said}");
}
