//! Vaults in an unexpected state: rolled back, copied between machines, and changed on two at once.

use crate::harness::{Terminal, is_program_available, skip_unless, wait_until};
use crate::vault_harness::VaultScene;
use std::fs;

/// Makes `to` equal to `from`, like a synchronisation program. Compares contents, because rsync
/// takes files of equal length and modification second for equal.
fn sync(scene: &VaultScene, from: &str, to: &str) {
    scene.0.tool("rsync", &["-a", "--checksum", "--delete", &format!("{from}/"), to]);
}

/// The screen of a terminal on which this command ran and its question was answered with no.
fn answer_no(scene: &VaultScene, args: &[&str]) -> String {
    let mut terminal = Terminal::new();
    let seen = terminal.collect_output();
    terminal.types("n");
    let mut command = scene.0.command(args);
    command.stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(terminal.stdio());
    assert_eq!(command.status().unwrap().code(), Some(1));
    wait_until("the refusal", || seen.lock().unwrap().contains("nothing was changed"));
    seen.lock().unwrap().replace('\r', "")
}

#[test]
fn an_older_vault_is_refused_until_it_is_accepted() {
    skip_unless!(is_program_available("rsync"));
    let Some(scene) = VaultScene::new(&[]) else { return };
    scene.work_on("state", "v", |scene| scene.write("file", b"first"));
    sync(&scene, "v", "backup");
    // The vault is in the expected state: nothing to accept.
    assert!(scene.keyed(&["vault", "accept", "v", "--yes"]).code(0).stdout.contains("nothing to accept"));
    scene.work_on("state", "v", |scene| scene.write("file", b"second"));
    sync(&scene, "v", "newest");

    sync(&scene, "backup", "v");
    for verb in [&["open", "v", "mnt"][..], &["vault", "check", "v"]] {
        let refused = scene.keyed(verb).code(11);
        assert!(
            refused.stderr.contains("older")
                && refused.stderr.contains("`lacuna vault accept ")
                && !refused.stderr.contains(" DIR"),
            "{}",
            refused.stderr
        );
    }
    let unasked = scene.keyed(&["vault", "accept", "v"]).code(1);
    assert!(unasked.stderr.contains("--yes"), "{}", unasked.stderr);
    // `--quiet` silences nothing that leads to a question.
    for quiet in [&[][..], &["--quiet"]] {
        let answered = answer_no(&scene, &[&["vault", "accept", "v", "--key-file", "key"], quiet].concat());
        let wanted = ["older", "\n  expected: ", "\n  hint: go on only if", "is gone", "Go on?"];
        assert!(wanted.iter().all(|part| answered.contains(part)), "{answered}");
        assert!(answered.contains("lacuna: nothing was changed"), "{answered}");
        assert!(!answered.contains("\\n"), "{answered}");
    }
    // The newest state is accepted again after it is restored.
    sync(&scene, "newest", "v");
    scene.work_on("state", "v", |scene| assert_eq!(scene.read("file").unwrap(), b"second"));

    sync(&scene, "backup", "v");
    let accepted = scene.keyed(&["vault", "accept", "v", "--yes"]).code(0);
    assert!(
        accepted.stderr.contains("expected") && accepted.stdout.contains("accepted"),
        "{}",
        accepted.stderr
    );
    scene.work_on("state", "v", |scene| {
        assert_eq!(scene.read("file").unwrap(), b"first");
        scene.write("file", b"third");
    });
    // The state that was given up in its favour is now another history.
    sync(&scene, "newest", "v");
    scene.open().code(11);
}

#[test]
fn two_machines_take_turns_and_a_conflict_is_noticed() {
    skip_unless!(is_program_available("rsync"));
    let Some(scene) = VaultScene::new(&[]) else { return };
    scene.work_on("state", "v", |scene| scene.write("file", b"1"));
    sync(&scene, "v", "w");
    let first = scene.on_machine("other", &["open", "w", "mnt"]).code(0);
    assert!(
        first.stderr.contains("cannot tell whether this copy of the vault is the newest"),
        "{}",
        first.stderr
    );
    scene.write("file", b"2");
    scene.close().code(0);
    sync(&scene, "w", "v");
    scene.work_on("state", "v", |scene| {
        assert_eq!(scene.read("file").unwrap(), b"2");
        scene.write("file", b"3");
    });
    sync(&scene, "v", "w");
    scene.work_on("other", "w", |scene| assert_eq!(scene.read("file").unwrap(), b"3"));
    sync(&scene, "w", "v");

    // Both machines write without having seen the other's changes.
    scene.work_on("state", "v", |scene| scene.write("file", b"here"));
    scene.work_on("other", "w", |scene| scene.write("file", b"there"));
    sync(&scene, "w", "v");
    let refused = scene.on_machine("state", &["open", "v", "mnt"]).code(11);
    assert!(refused.stderr.contains("two machines wrote at once"), "{}", refused.stderr);
    // The other machine continues with its own state; this one adopts that state after `vault
    // accept`.
    scene.on_machine("other", &["vault", "check", "w"]).code(0);
    scene.on_machine("state", &["vault", "accept", "v", "--yes"]).code(0);
    scene.work_on("state", "v", |scene| assert_eq!(scene.read("file").unwrap(), b"there"));
    sync(&scene, "v", "w");
    scene.work_on("other", "w", |scene| assert_eq!(scene.read("file").unwrap(), b"there"));
}

#[test]
fn the_anchor_may_be_in_a_given_file() {
    let Some(scene) = VaultScene::empty() else { return };
    // A missing stick cannot hold an anchor.
    let missing = scene.init("v", &["--anchor", "stick/anchor"]).code(4);
    assert!(missing.stderr.contains("no directory "), "{}", missing.stderr);
    fs::create_dir(scene.0.path("stick")).unwrap();
    scene.init("v", &["--anchor", "stick/anchor"]).code(0);
    assert!(scene.0.path("stick/anchor").exists() && !scene.0.path("state").exists());
    let open = ["open", "v", "mnt", "--anchor", "stick/anchor"];
    assert_eq!(scene.keyed(&open).code(0).stderr, "");
    scene.write("file", b"1");
    scene.close().code(0);
    // Without the anchor this machine knows no state of the vault, and warns; the anchor of another
    // vault is refused.
    assert!(scene.open().code(0).stderr.contains("cannot tell whether this copy of the vault is the newest"));
    scene.close().code(0);
    scene.init("w", &[]).code(0);
    let mixed = scene.keyed(&["vault", "check", "w", "--anchor", "stick/anchor"]);
    assert!(mixed.code != 0 && mixed.code != 10, "{}: {}", mixed.code, mixed.stderr);
    fs::remove_dir_all(scene.0.path("stick")).unwrap();
    scene.keyed(&open).code(4);
}

#[test]
fn an_incomplete_synchronisation_is_refused_and_can_be_completed() {
    skip_unless!(is_program_available("rsync"));
    let Some(scene) = VaultScene::new(&[]) else { return };
    scene.work_on("state", "v", |scene| scene.write("log", b"1"));
    sync(&scene, "v", "w");
    scene.work_on("other", "w", |scene| scene.write("there", b"2"));
    sync(&scene, "w", "v");
    scene.work_on("state", "v", |scene| {
        scene.write("large", &vec![b'3'; 100_000]);
        (0..500).for_each(|n| scene.write(&format!("file {n}"), b"3"));
    });
    // The superblocks were copied first.
    for name in ["super.0", "super.1"] {
        fs::copy(scene.0.path("v").join(name), scene.0.path("w").join(name)).unwrap();
    }
    let refused = scene.on_machine("other", &["open", "w", "mnt"]).code(10);
    assert!(refused.stderr.contains("let it finish"), "{}", refused.stderr);
    sync(&scene, "v", "w");
    scene.work_on("other", "w", |scene| assert_eq!(scene.read("large").unwrap().len(), 100_000));
}
