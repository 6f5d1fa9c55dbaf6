//! Vaults from the command line: creation, opening, checks, passphrases, and refusals.

use crate::harness::{
    CloseOnDrop, Signal, is_program_available, noise, send, skip_unless, skipped, wait_until,
};
use crate::vault_harness::VaultScene;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

#[test]
fn files_are_there_when_a_vault_is_opened_again() {
    let Some(scene) = VaultScene::new(&["--integrity", "comp"]) else { return };
    let lacuna = |args: &[&str]| scene.0.lacuna(args);
    let opened = scene.open().code(0);
    assert!(opened.stdout.starts_with("opened v at ") && opened.stderr.is_empty(), "{}", opened.stderr);
    let (long, text) = (noise(1, 100_000), "plain words, again and again\n".repeat(1000));
    scene.write("long", &long);
    fs::create_dir(scene.0.path("mnt/dir")).unwrap();
    scene.write("dir/text", text.as_bytes());
    let stat = lacuna(&["vault", "stat", "mnt/long", "--json"]).code(0).json();
    assert_eq!(
        (&stat["scheme"], &stat["integrity"], &stat["blocks"]),
        (&"comp".into(), &"comp".into(), &25.into())
    );
    assert!(
        stat["trusted_bytes"].as_u64().unwrap() <= 200 && stat["random_looking"].as_u64().unwrap() >= 24,
        "{stat}"
    );
    assert!(lacuna(&["vault", "stat", "mnt/dir/text"]).code(0).stdout.contains("scheme           comp"));
    lacuna(&["vault", "stat", "key"]).code(4);

    let status = lacuna(&["status", "v", "--json"]).code(0).json();
    assert_eq!((&status["servers"][0]["vault"], &status["servers"][0]["raw"]), (&true.into(), &false.into()));
    assert!(lacuna(&["list"]).code(0).stdout.contains("/v "));
    assert_eq!(lacuna(&["info", "v", "--json"]).code(0).json()["medium"]["in_use"], true);
    // A second mount, and other commands that need the vault exclusively.
    fs::create_dir(scene.0.path("mnt2")).unwrap();
    let second = scene.keyed(&["open", "v", "mnt2"]).code(5);
    assert!(second.stderr.contains("it is open at "), "{}", second.stderr);
    let checked = scene.keyed(&["vault", "check", "v"]).code(5);
    assert!(
        checked.stderr.contains("it is open at ") && checked.stderr.contains("(process "),
        "{}",
        checked.stderr
    );
    lacuna(&["close", "v"]).code(0);

    // No names or contents are visible.
    let mut seen = 0;
    for file in walk(&scene.0.path("v")) {
        let bytes = fs::read(&file).unwrap();
        assert!(!bytes.windows(11).any(|at| at == b"plain words"), "{}", file.display());
        seen += 1;
    }
    assert!(seen >= 5, "{seen} files");

    scene.keyed(&["open", "v", "mnt", "--read-only"]).code(0);
    assert!(scene.read("long").unwrap() == long && scene.read("dir/text").unwrap() == text.as_bytes());
    assert_eq!(fs::write(scene.0.path("mnt/new"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(lacuna(&["status", "mnt", "--json"]).json()["servers"][0]["read_only"], true);
    scene.close().code(0);
    let checked = scene.keyed(&["vault", "check", "v"]).code(0);
    assert!(checked.stdout.contains(", 0 bad"), "{}", checked.stdout);
    let json = scene.keyed(&["vault", "check", "v", "--json"]).code(0).json();
    assert_eq!((&json["bad"], &json["bad_blocks"]), (&0.into(), &serde_json::json!([])));
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
fn passphrases_and_headers_of_vaults_are_those_of_disks() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    let lacuna = |args: &[&str]| scene.0.lacuna(args);
    fs::write(scene.0.path("second"), "another").unwrap();
    let wrong = lacuna(&["open", "v", "mnt", "--key-file", "second"]).code(2);
    assert!(wrong.stderr.contains("wrong passphrase"), "{}", wrong.stderr);
    scene.keyed(&["key", "add", "v", "--new-key-file", "second"]).code(0);
    let saved = lacuna(&["header", "backup", "v", "v.hdr"]).code(0).stdout;
    assert!(saved.contains("keep it as safe as the vault"), "{saved}");
    let doctor = lacuna(&["doctor", "v.hdr"]).code(0).stdout;
    assert!(
        doctor.contains(
            "a backup of the header of a vault, whole; the vault itself is elsewhere; format vault"
        ),
        "{doctor}"
    );
    scene.keyed(&["key", "remove", "v", "--remove-key-file", "second"]).code(0);
    lacuna(&["vault", "check", "v", "--key-file", "second"]).code(2);
    let older = ["header", "restore", "v", "v.hdr", "--key-file", "second", "--yes"];
    let older = lacuna(&older).code(11).stderr;
    assert!(older.contains("in the vault") && !older.contains("disk"), "{older}");

    let info = lacuna(&["info", "v", "--json"]).code(0).json();
    assert_eq!((&info["header"]["format"], &info["integrity"]), (&"vault".into(), &"auto".into()));
    assert!(info["anchor"]["number"].as_u64().is_some_and(|number| number > 0), "{info}");
    assert!(info["anchor"]["path"].as_str().unwrap().ends_with(info["header"]["uuid"].as_str().unwrap()));
    let words = lacuna(&["info", "v"]).code(0).stdout;
    assert!(
        words.contains("format           vault version 1") && words.contains("remembered       state "),
        "{words}"
    );

    // A vault without its header is reported as such, and the header can be restored.
    fs::remove_file(scene.0.path("v/lacuna.vault")).unwrap();
    let lost = scene.open().code(4);
    assert!(lost.stderr.contains("without its header"), "{}", lost.stderr);
    // A refused restoration leaves no file that looks like a damaged header.
    fs::write(scene.0.path("wrong"), "not it").unwrap();
    lacuna(&["header", "restore", "v", "v.hdr", "--key-file", "wrong", "--yes"]).code(2);
    assert!(!scene.0.path("v/lacuna.vault").exists());
    lacuna(&["header", "restore", "v", "v.hdr", "--key-file", "second", "--yes"]).code(0);
    lacuna(&["vault", "check", "v", "--key-file", "second"]).code(0);
}

/// The mount is gone and the server lives, as long as a program has a file open.
#[test]
fn an_opening_says_which_server_it_waits_for() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    fs::create_dir(scene.0.path("other")).unwrap();
    let _closing = CloseOnDrop(&scene.0, &["other"]);
    scene.open().code(0);
    scene.write("file", b"content");
    let held = fs::File::open(scene.0.path("mnt/file")).unwrap();
    scene.0.tool("umount", &["--internal-only", "--lazy", "mnt"]);
    let mut open = scene.0.command(&["open", "v", "other", "--key-file", "key"]);
    let mut opening = open.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut said = BufReader::new(opening.stderr.take().unwrap()).lines().map(Result::unwrap);
    let noted = said.find(|line| line.contains("has no mount"));
    assert!(noted.is_some_and(|line| line.contains("for at most 10 seconds")));
    drop(held);
    assert_eq!(opening.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read(scene.0.path("other/file")).unwrap(), b"content");
}

/// The mount of such a server is not seen here, so that no wait for it would help.
#[test]
fn an_opening_does_not_wait_for_a_server_in_another_mount_namespace() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    skip_unless!(is_program_available("unshare"));
    if !Command::new("unshare").args(["--mount", "true"]).status().unwrap().success() {
        return skipped("another mount namespace: this user may make none");
    }
    let program = env!("CARGO_BIN_EXE_lacuna");
    let mut inside = Command::new("unshare");
    inside.args(["--mount", program, "open", "v", "mnt", "--key-file", "key"]);
    let (dir, state) = (scene.0.path(""), scene.0.path("state"));
    inside.current_dir(&dir).env("XDG_RUNTIME_DIR", &dir).env("XDG_STATE_HOME", state);
    assert!(inside.stdout(Stdio::null()).status().unwrap().success());
    let refused = scene.keyed(&["open", "v", "mnt"]).code(5).stderr;
    assert!(!refused.contains("has no mount"), "{refused}");
    let servers = scene.0.lacuna(&["status", "v", "--json"]).code(0).json();
    send(Signal::TERM, &servers["servers"][0]["pid"]);
    wait_until("the end of the server", || {
        scene.0.lacuna(&["info", "v", "--json"]).json()["medium"]["in_use"] == false
    });
}

#[test]
fn a_vault_with_garbage_for_a_header_is_a_vault_and_comes_back() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    let lacuna = |args: &[&str]| scene.0.lacuna(args);
    let header = scene.0.path("v/lacuna.vault");
    lacuna(&["header", "backup", "v", "v.hdr"]).code(0);
    for garbage in [Vec::new(), b"garbage".to_vec(), noise(3, 600_000)] {
        fs::write(&header, &garbage).unwrap();
        let ways = [
            scene.open(),
            lacuna(&["info", "v"]),
            lacuna(&["header", "backup", "v", "x.hdr"]),
            scene.keyed(&["header", "repair", "v"]),
        ];
        for said in ways.map(|ran| ran.code(4).stderr) {
            assert!(said.contains("a vault without its header") && !said.contains("disk"), "{said}");
            assert!(said.contains("`lacuna header restore v BACKUP`"), "{said}");
        }
        let doctor = lacuna(&["doctor", "v"]).code(4).stdout;
        assert!(doctor.contains("no whole copy in the file lacuna.vault"), "{doctor}");
        assert!(doctor.contains("`lacuna header restore v BACKUP`") && !doctor.contains("disk"), "{doctor}");
        let restored = scene.keyed(&["header", "restore", "v", "v.hdr", "--yes"]).code(0).stderr;
        assert!(restored.contains("its file lacuna.vault is overwritten"), "{restored}");
        lacuna(&["doctor", "v"]).code(0);
    }
    // The end of the file holds nothing except the last copy.
    let whole = fs::read(&header).unwrap();
    fs::write(&header, &whole[..600_000]).unwrap();
    let noted = lacuna(&["info", "v"]).code(0).stderr;
    assert!(noted.contains("`lacuna header repair` rewrites all copies"), "{noted}");
    scene.keyed(&["header", "repair", "v"]).code(0);
    assert!(fs::read(&header).unwrap() == whole);
}

#[test]
fn verbs_for_disks_are_refused_on_a_vault_with_the_alternative() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    let keyed = |args: &[&str]| scene.keyed(args);
    for (args, instead) in [
        (&["serve", "v", "--socket", "s"][..], "`lacuna open v MOUNTPOINT`"),
        (&["check", "v"], "`lacuna vault check v`"),
        (&["rescue", "v", "image"], "`lacuna vault rescue v TARGET`"),
        (&["resize", "v", "--size", "1G"], "grows and shrinks"),
        (&["purge", "v"], "deleted with `rm`"),
        (&["create", "v", "--size", "64M", "--force"], "choose another path"),
    ] {
        let refused = keyed(args).code(1);
        assert!(refused.stderr.contains("a vault") && refused.stderr.contains(instead), "{}", refused.stderr);
    }
    let snapshots = scene.0.lacuna(&["snapshot", "list", "v"]).code(1);
    assert!(snapshots.stderr.contains("`lacuna vault accept v`"), "{}", snapshots.stderr);
    for options in [&["--mkfs", "ext4"][..], &["--raw"], &["--write-through"], &["--purge-period", "5"]] {
        let refused = keyed(&[&["open", "v", "mnt"], options].concat()).code(1);
        assert!(refused.stderr.contains(options[0]), "{}", refused.stderr);
    }
    // Places that are invalid for a vault, for its anchor, or for its mount point.
    let again = scene.init("v", &[]).code(1);
    assert!(again.stderr.contains("found: a vault"), "{}", again.stderr);
    scene.init(".", &[]).code(1);
    scene.init("no/where", &[]).code(4);
    scene.init("w", &["--anchor", "w/anchor"]).code(1);
    assert!(!scene.0.path("w").exists());
    keyed(&["open", "v", "v"]).code(1);
    for nothing in ["mnt", "key", "missing"] {
        keyed(&["vault", "check", nothing]).code(4);
    }
    keyed(&["open", "mnt", "mnt"]).code(1);
    fs::create_dir(scene.0.path("empty")).unwrap();
    let no_vault = keyed(&["open", "empty", "mnt"]).code(4);
    assert!(no_vault.stderr.contains("is not a vault"), "{}", no_vault.stderr);
}

#[test]
fn a_copy_of_an_open_vault_is_refused_in_the_words_of_vaults() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    scene.0.tool("cp", &["-r", "v", "copy"]);
    scene.open().code(0);
    fs::create_dir(scene.0.path("mnt2")).unwrap();
    for words in [&["open", "copy", "mnt2"][..], &["vault", "accept", "copy", "--yes"]] {
        let said = scene.keyed(words).code(5).stderr;
        assert!(said.contains("a copy of it is open at ") && said.contains("/mnt (process "), "{said}");
        assert!(said.contains("the same vault") && said.contains("--read-only"), "{said}");
        assert!(!said.contains("disk"), "{said}");
    }
    scene.close().code(0);
}

/// The server ends by itself after an unmount by another program. Then nothing is left to close.
#[test]
fn a_vault_unmounted_by_hand_is_closed() {
    skip_unless!(is_program_available("fusermount3"));
    let Some(scene) = VaultScene::new(&[]) else { return };
    scene.open().code(0);
    scene.write("file", b"content");
    scene.0.tool("fusermount3", &["-u", "mnt"]);
    wait_until("the end of the server", || scene.0.lacuna(&["status", "v"]).code == 4);
    for place in ["mnt", "v"] {
        let said = scene.0.lacuna(&["close", place]).code(4).stderr;
        assert!(said.contains("nothing of lacuna open there") && said.contains("`lacuna list`"), "{said}");
    }
    scene.open().code(0);
    assert_eq!(scene.read("file").unwrap(), b"content");
    scene.close().code(0);
}

#[test]
fn an_altered_block_is_an_error_that_names_it_and_all_else_is_there() {
    let Some(scene) = VaultScene::new(&["--integrity", "mt"]) else { return };
    let content = noise(5, 10 * 4096);
    scene.open().code(0);
    fs::create_dir(scene.0.path("mnt/dir")).unwrap();
    scene.write("dir/altered", &content);
    scene.write("good", &content);
    let backing = scene.backing("dir/altered");
    scene.close().code(0);
    let mut bytes = fs::read(&backing).unwrap();
    bytes[7 * 4096 + 100] ^= 1;
    fs::write(&backing, bytes).unwrap();
    let named = backing.strip_prefix(scene.0.path("v")).unwrap().to_str().unwrap();

    let server = scene.open_in_foreground(&[]);
    let failed = scene.read("dir/altered").map(|read| read.len());
    assert_eq!(failed.map_err(|e| e.raw_os_error()), Err(Some(libc::EIO)));
    let file = fs::File::open(scene.0.path("mnt/dir/altered")).unwrap();
    let mut start = vec![0; 4096];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut start, 0).unwrap();
    assert!(start == content[..4096] && scene.read("good").unwrap() == content);
    drop(file);
    scene.close().code(0);
    assert_eq!(server.wait(), 0);
    let said = scene.log_text();
    assert!(said.contains("/dir/altered") && said.contains(named) && said.contains("block 7"), "{said}");

    let checked = scene.keyed(&["vault", "check", "v"]).code(10);
    assert!(
        checked.stdout.contains(&format!("/dir/altered, block 7 (backing file {named})")),
        "{}",
        checked.stdout
    );
    let json = scene.keyed(&["vault", "check", "v", "--json"]).code(10).json();
    assert_eq!((&json["bad"], &json["bad_blocks"][0]["block"]), (&1.into(), &7.into()));
    assert_eq!(json["bad_blocks"][0]["path"], "/dir/altered");
    assert_eq!(json["bad_blocks"][0]["backing"], named);
}

/// Inverts the lowest bit of every byte of a file.
fn alter(file: &std::path::Path) {
    let altered: Vec<u8> = fs::read(file).unwrap().iter().map(|byte| byte ^ 1).collect();
    fs::write(file, altered).unwrap();
}

#[test]
fn one_copy_of_the_names_is_enough_and_without_both_the_files_are_named() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    let content = noise(1, 20_000);
    scene.open().code(0);
    scene.write("file", &content);
    scene.close().code(0);
    let vault = scene.0.path("v");
    let all = scene.keyed(&["vault", "check", "v", "--json"]).code(0).json()["blocks"].as_u64().unwrap();
    let mut alike = std::collections::BTreeMap::<Vec<u8>, Vec<_>>::new();
    for file in walk(&vault).into_iter().filter(|file| file.parent() != Some(&vault)) {
        alike.entry(fs::read(&file).unwrap()).or_default().push(file);
    }
    let name = |file: &std::path::Path| file.strip_prefix(&vault).unwrap().display().to_string();
    let (mut named, mut listed) = (0, 0);
    for (whole, files) in &mut alike {
        if files.len() > 1 {
            // Only a rescue reads the third file; a check does not notice changes in it.
            let is_third = |file: &std::path::PathBuf| {
                alter(file);
                let code = scene.keyed(&["vault", "check", "v"]).code;
                fs::write(file, whole).unwrap();
                code == 0
            };
            assert_eq!(files.len(), 3);
            files.retain(|file| !is_third(file));
            assert_eq!(files.len(), 2);
        }
        let restore = || files.iter().for_each(|file| fs::write(file, whole).unwrap());
        alter(&files[0]);
        let ran = scene.keyed(&["vault", "check", "v"]).code(10);
        let [_, second] = &files[..] else {
            let counted = format!("{} blocks verified, 5 bad", all - 5);
            assert!(ran.stdout.contains(&name(&files[0])) && ran.stdout.contains(&counted), "{}", ran.stdout);
            listed += 1;
            restore();
            continue;
        };
        assert!(ran.stdout.contains(&format!("{all} blocks verified, 0 bad")), "{}", ran.stdout);
        assert!(ran.stdout.contains("of the namespace in one backing file alone"), "{}", ran.stdout);
        assert!(ran.stderr.contains("lacuna vault check v --repair"), "{}", ran.stderr);
        alter(second);
        let refused = scene.keyed(&["vault", "check", "v"]).code(10);
        let is_named = files.iter().any(|file| refused.stderr.contains(&name(file)));
        assert!(is_named && refused.stderr.contains("which hold all names"), "{}", refused.stderr);
        named += 1;
        restore();
    }
    assert!(named > 0 && listed == 1, "{named} {listed}");
    // After a repair the other copy is not needed.
    for (_, files) in alike.iter().filter(|(_, files)| files.len() == 2) {
        for file in files {
            alter(file);
            let repaired = scene.keyed(&["vault", "check", "v", "--repair"]).code(0);
            assert!(repaired.stdout.contains("written anew"), "{}", repaired.stdout);
            scene.keyed(&["vault", "check", "v"]).code(0);
        }
    }
    scene.open().code(0);
    assert!(scene.read("file").unwrap() == content);
    scene.close().code(0);
}

#[test]
fn verified_data_of_a_damaged_vault_is_rescued() {
    let Some(scene) = VaultScene::new(&["--integrity", "mt"]) else { return };
    let content = noise(2, 5 * 4096);
    scene.open().code(0);
    fs::create_dir(scene.0.path("mnt/dir")).unwrap();
    scene.write("dir/altered", &content);
    scene.write("good", &content);
    let backing = scene.backing("dir/altered");
    scene.close().code(0);
    let whole = scene.keyed(&["vault", "rescue", "v", "whole"]).code(0);
    assert!(whole.stdout.contains("rescued 2 files"), "{}", whole.stdout);
    assert!(fs::read(scene.0.path("whole/dir/altered")).unwrap() == content);
    // Never over existing files.
    scene.keyed(&["vault", "rescue", "v", "whole"]).code(1);
    let mut bytes = fs::read(&backing).unwrap();
    bytes[2 * 4096] ^= 1;
    fs::write(&backing, bytes).unwrap();
    fs::remove_file(scene.0.path("v/super.0")).unwrap();
    let before: Vec<_> = walk(&scene.0.path("v")).iter().map(|file| fs::read(file).unwrap()).collect();
    let ran = scene.keyed(&["vault", "rescue", "v", "out"]).code(10);
    assert!(ran.stdout.contains("missing: /dir/altered: block 2 ("), "{}", ran.stdout);
    let mut expected = content.clone();
    expected[2 * 4096..3 * 4096].fill(0);
    assert!(fs::read(scene.0.path("out/dir/altered")).unwrap() == expected);
    assert!(fs::read(scene.0.path("out/good")).unwrap() == content);
    let json = scene.keyed(&["vault", "rescue", "v", "again", "--json"]).code(10).json();
    assert_eq!((&json["lost"], &json["missing"][0]["path"]), (&1.into(), &"/dir/altered".into()));
    // The vault is unchanged.
    let after: Vec<_> = walk(&scene.0.path("v")).iter().map(|file| fs::read(file).unwrap()).collect();
    assert!(before == after);
}

#[test]
fn the_next_opening_removes_the_mount_of_a_killed_server() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    scene.open().code(0);
    let kept = noise(3, 50_000);
    scene.write("kept", &kept);
    fs::File::open(scene.0.path("mnt/kept")).unwrap().sync_all().unwrap();
    scene.write("perhaps", b"not synced");
    scene.kill_server();

    let opened = scene.open().code(0);
    assert!(opened.stderr.contains("its mount is cleared away"), "{}", opened.stderr);
    assert!(scene.read("kept").unwrap() == kept);
    assert!(scene.read("perhaps").map_or(true, |bytes| bytes.is_empty() || bytes == b"not synced"));
    scene.close().code(0);
    scene.keyed(&["vault", "check", "v"]).code(0);
}

#[test]
fn a_busy_vault_stays_open_and_its_users_are_named() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    scene.open().code(0);
    let inside = scene.0.path("mnt");
    let mut user = std::process::Command::new("sleep").arg("1000").current_dir(&inside).spawn().unwrap();
    let busy = scene.close();
    let _ = user.kill();
    user.wait().unwrap();
    let busy = busy.code(5);
    assert!(busy.stderr.contains("sleep"), "{}", busy.stderr);
    scene.write("still", b"there");
    // After closing, the directory below is visible again.
    let mounted = fs::metadata(&inside).unwrap().dev();
    scene.close().code(0);
    assert_ne!(fs::metadata(&inside).unwrap().dev(), mounted);
}

#[test]
fn a_vault_opens_right_after_a_plain_umount() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    for round in 0..10 {
        scene.open().code(0);
        scene.write("file", &noise(round, 100_000));
        // A starting program of another test inherits files of this process for a moment.
        wait_until("the end of the use of the mount", || {
            let mut umount = std::process::Command::new("umount");
            umount.arg(scene.0.path("mnt")).stderr(std::process::Stdio::null());
            umount.status().unwrap().success()
        });
    }
    scene.open().code(0);
    assert!(scene.read("file").unwrap() == noise(9, 100_000));
    scene.close().code(0);
}
