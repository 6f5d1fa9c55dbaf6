//! Faults and limits of the host: only the affected request fails, and its error names a remedy.

use crate::harness::{
    CloseOnDrop, Device, RunOutput, Scene, can_mount, is_program_available, noise, skip_unless, skipped,
};
use crate::nbd_client::Client;
use crate::vault_harness::VaultScene;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs the program from a shell that limits file sizes: `ulimit -f` counts blocks of 512 bytes or
/// of 1 KiB.
fn limited(scene: &Scene, args: &[&str]) -> crate::harness::RunOutput {
    let lacuna = env!("CARGO_BIN_EXE_lacuna");
    let script = format!("ulimit -f 2048; exec {lacuna} \"$@\"");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script, "sh"]).args(args).current_dir(scene.path("."));
    command.env("XDG_RUNTIME_DIR", scene.path(".")).env("XDG_STATE_HOME", scene.path("state"));
    command.output().unwrap().into()
}

#[test]
fn a_limit_of_file_sizes_is_an_error_and_no_signal() {
    let scene = Scene::new();
    let create = ["create", "disk.img", "--size", "64M", "--preallocate", "--key-file", "key"];
    let cheap = [&create[..], &crate::harness::CHEAP].concat();
    let ran = limited(&scene, &cheap);
    assert!(ran.code > 0 && ran.stderr.contains("too large"), "{}: {}", ran.code, ran.stderr);
    assert!(!scene.path("disk.img").exists(), "half a disk is left");
}

/// The limit is within the disk, whatever unit the shell uses.
#[test]
fn the_server_of_a_disk_lives_on_at_a_limit_of_file_sizes() {
    let scene = Scene::with_disk(&["--size", "200M"]);
    let script = "ulimit -f 200000; exec \"$0\" serve disk.img --socket nbd.sock --key-file key";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_lacuna")]).env("XDG_STATE_HOME", scene.path("state"));
    let server = scene.serve_command(&mut shell);
    let mut client = Client::connect(&server.socket).unwrap();
    let refused = (0..200).find_map(|chunk| {
        let write = client.write_at(chunk << 20, &noise(chunk + 1, 1 << 20));
        write.and_then(|()| client.flush()).err()
    });
    assert!(refused.is_some(), "nothing was refused");
    drop(client);
    scene.lacuna(&["status", "disk.img"]).code(0);
    assert!(server.stop() >= 0, "a signal ended it");
}

/// A control group with little memory, like that of a container.
struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    /// Returns `None`, with a message, where no group can be made.
    fn with_memory(bytes: u64) -> Option<MemoryCgroup> {
        let root = Path::new("/sys/fs/cgroup");
        let first = root.join("memory");
        let name = format!("lacuna-test-{}", std::process::id());
        let (group, limit) = if first.is_dir() {
            (first.join(name), "memory.limit_in_bytes")
        } else {
            // If the controller is enabled already, or cannot be enabled, the next steps show it.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
            (root.join(name), "memory.max")
        };
        let made = fs::create_dir(&group).and_then(|()| fs::write(group.join(limit), bytes.to_string()));
        let group = MemoryCgroup(group);
        match made {
            Ok(()) => Some(group),
            Err(e) => {
                skipped(&format!("no group with a limit of memory can be made: {e}"));
                None
            }
        }
    }

    /// Runs `lacuna` in the group.
    fn lacuna(&self, scene: &Scene, words: &[&str]) -> RunOutput {
        let mut shell = Command::new("sh");
        let script = "echo $$ > \"$GROUP/cgroup.procs\" && exec \"$0\" \"$@\"";
        shell.args(["-c", script, env!("CARGO_BIN_EXE_lacuna")]).args(words).env("GROUP", &self.0);
        shell.env("XDG_RUNTIME_DIR", scene.path(".")).env("XDG_STATE_HOME", scene.path("state"));
        shell.current_dir(scene.path(".")).stdin(Stdio::null()).output().unwrap().into()
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_passphrase_costs_no_more_memory_than_a_container_has() {
    let Some(group) = MemoryCgroup::with_memory(300 << 20) else { return };
    let scene = Scene::new();
    group.lacuna(&scene, &["create", "disk.img", "--size", "64M", "--key-file", "key"]).code(0);
    let dear = ["--size", "64M", "--kdf-memory", "512M", "--kdf-passes", "1", "--key-file", "key"];
    scene.lacuna(&[&["create", "dear.img"], &dear[..]].concat()).code(0);
    let refused = group.lacuna(&scene, &["check", "dear.img", "--key-file", "key"]).code(3).stderr;
    // The message tells the user which limit to raise, and that the machine itself has enough
    // memory.
    let name = group.0.file_name().unwrap().to_str().unwrap();
    assert!(refused.contains("under a limit of 307200 KiB, of the control group /"), "{refused}");
    assert!(refused.contains(name) && refused.contains("raise the limit"), "{refused}");
}

/// Paths are bytes.
#[test]
fn names_need_not_be_text() {
    let scene = Scene::with_disk(&["--size", "16M"]);
    let name = OsStr::from_bytes(b"caf\xe9");
    let with = |before: &[&str], after: &[&str]| -> RunOutput {
        scene.command(before).arg(name).args(after).output().unwrap().into()
    };
    let cheap = [&["--size", "16M", "--key-file", "key"][..], &crate::harness::CHEAP].concat();
    with(&["create"], &cheap).code(0);
    assert!(scene.path("").join(name).is_file());
    // Programs get the bytes too.
    for words in [&["info", "--json"][..], &["doctor", "--json"], &["check", "--json", "--key-file", "key"]] {
        let answer = with(words, &[]).json();
        assert_eq!(
            (&answer["location"], &answer["location_bytes"]),
            (&"caf\u{fffd}".into(), &"636166e9".into())
        );
    }
    assert!(scene.lacuna(&["info", "disk.img", "--json"]).json()["location_bytes"].is_null());
    skip_unless!(can_mount("/dev/fuse"));
    fs::remove_file(scene.path("").join(name)).unwrap();
    fs::create_dir(scene.path("").join(name)).unwrap();
    with(&["open", "disk.img"], &["--raw", "--key-file", "key"]).code(0);
    assert!(scene.path("").join(name).join("disk").exists());
    with(&["status"], &[]).code(0);
    let server = with(&["status", "--json"], &[]).code(0).json()["servers"][0].clone();
    let bytes = server["mountpoint_bytes"].as_str().unwrap();
    assert!(bytes.ends_with("2f636166e9") && server["location_bytes"].is_null(), "{server}");
    let listed = scene.lacuna(&["list", "--json"]).code(0).json();
    assert!(listed["open"].as_array().unwrap().iter().any(|one| one["at_bytes"] == bytes), "{listed}");
    with(&["close"], &[]).code(0);
    assert!(!scene.path("").join(name).join("disk").exists());
}

/// Opens the vault `v` of a scene from a shell that runs `before` first.
fn opened_by_shell(vault: &VaultScene, before: &str) -> RunOutput {
    let script = format!("{before}; exec \"$0\" open v mnt --key-file key");
    shell(vault, &script).output().unwrap().into()
}

fn shell(vault: &VaultScene, script: &str) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script, env!("CARGO_BIN_EXE_lacuna")])
        .current_dir(vault.0.path("."))
        .stdin(Stdio::null());
    shell.env("XDG_RUNTIME_DIR", vault.0.path(".")).env("XDG_STATE_HOME", vault.0.path("state"));
    shell
}

/// `ulimit -f` of 20 or 40 MiB simulates a file system that limits files to 4 GiB.
#[test]
fn a_write_beyond_the_longest_file_fails_alone_in_a_vault() {
    let Some(vault) = VaultScene::new(&[]) else { return };
    opened_by_shell(&vault, "ulimit -f 40960").code(0);
    vault.write("keep", b"kept");
    let big = fs::File::create(vault.0.path("mnt/big")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&big, &[1; 100_000], 60 << 20).unwrap();
    let refused = big.sync_all().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFBIG), "{refused}");
    drop(big);
    vault.write("other", b"goes on");
    fs::File::open(vault.0.path("mnt/other")).unwrap().sync_all().unwrap();
    fs::remove_file(vault.0.path("mnt/big")).unwrap();
    vault.close().code(0);
    vault.open().code(0);
    assert_eq!(
        (&vault.read("keep").unwrap()[..], &vault.read("other").unwrap()[..]),
        (&b"kept"[..], &b"goes on"[..])
    );
    vault.close().code(0);
}

/// The hard limit cannot be raised: the vault works within it.
#[test]
fn few_descriptors_are_enough_for_a_vault() {
    let Some(vault) = VaultScene::new(&[]) else { return };
    opened_by_shell(&vault, "ulimit -n 64").code(0);
    for n in 0..400 {
        vault.write(&format!("{n}"), &[n as u8; 70_000]);
    }
    vault.close().code(0);
    vault.keyed(&["vault", "check", "v"]).code(0);
}

/// The shell has a pipe open: if the server kept it, the reader would wait for the end of the
/// server.
#[test]
fn a_server_keeps_no_descriptor_that_it_was_started_with() {
    let Some(vault) = VaultScene::new(&[]) else { return };
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut shell = shell(&vault, "exec 9>&1 >/dev/null; exec \"$0\" open v mnt --key-file key");
    let opened = shell.stdout(writer).status().unwrap();
    assert!(opened.success());
    drop(shell);
    // Ends as soon as no process has the pipe open for writing. If the server kept it, that is at
    // its end.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    vault.0.lacuna(&["status", "mnt"]).code(0);
    vault.close().code(0);
}

/// The program that serves the file system is a child of the server, and lives as long.
#[test]
fn a_program_that_serves_keeps_no_descriptor_of_the_shell() {
    let programs = ["fuse2fs", "mkfs.ext4"];
    skip_unless!(can_mount("/dev/fuse") && programs.iter().all(|name| is_program_available(name)));
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let script =
        "exec 9>&1 >/dev/null; exec \"$0\" open disk.img mnt --mkfs ext4 --via fuse2fs --key-file key";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_lacuna")]).current_dir(scene.path("."));
    shell.env("XDG_RUNTIME_DIR", scene.path(".")).env("XDG_STATE_HOME", scene.path("state"));
    let opened = shell.stdin(Stdio::null()).stdout(writer).status().unwrap();
    assert!(opened.success());
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    drop(shell);
    // As above.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    assert_eq!(scene.lacuna(&["status", "mnt", "--json"]).code(0).json()["servers"][0]["via"], "fuse2fs");
    scene.lacuna(&["close", "mnt"]).code(0);
}

/// Every verb that writes to the disk at `location`. `backup` is a backup of its header.
fn writing_verbs<'a>(location: &'a str, backup: &'a str) -> Vec<Vec<&'a str>> {
    let mut verbs = vec![
        vec!["serve", location, "--socket", "s", "--key-file", "key"],
        vec!["check", location, "--key-file", "key"],
        vec!["key", "add", location, "--key-file", "key", "--new-key-file", "key"],
        vec!["header", "restore", location, backup, "--yes", "--older", "--key-file", "key"],
        vec!["header", "repair", location, "--key-file", "key"],
        vec!["erase", location, "--yes"],
    ];
    if location.starts_with("nand:") {
        verbs.push(vec!["purge", location, "--key-file", "key"]);
    } else {
        verbs.push(vec!["resize", location, "--size", "32M", "--key-file", "key"]);
    }
    if can_mount("/dev/fuse") {
        verbs.push(vec!["open", location, "mnt", "--raw", "--key-file", "key"]);
        verbs.push(vec!["open", location, "mnt", "--key-file", "key"]);
    }
    verbs
}

/// Checks that each of them is refused for `reason`, and that the error tells how to read the disk.
#[track_caller]
fn assert_way_to_read(scene: &Scene, location: &str, backup: &str, reason: &str) {
    for words in writing_verbs(location, backup) {
        let said = scene.lacuna(&words);
        assert!(said.code > 0 && said.stderr.contains(reason), "{words:?}: {} {}", said.code, said.stderr);
        // `erase` advises to destroy the medium: a disk that is to be erased is not to be read.
        let is_named = said.stderr.contains("--read-only") || words[0] == "erase";
        assert!(is_named, "{words:?}: {}", said.stderr);
    }
    scene.lacuna(&["check", location, "--read-only", "--key-file", "key"]).code(0);
}

/// Disks with data, and backups of their headers: a disk in a file, and a disk on flash.
fn written_disks() -> Scene {
    let scene = Scene::with_disk(&["--size", "16M"]);
    scene.create("nand:chip.img", &["--size", "8M"]).code(0);
    fs::create_dir(scene.path("mnt")).unwrap();
    for (location, backup) in [("disk.img", "disk.bak"), ("nand:chip.img", "chip.bak")] {
        scene.serve_disk(location, &[]).used_by(|client| client.write_at(0, &noise(1, 8192)).unwrap());
        scene.lacuna(&["header", "backup", location, backup]).code(0);
    }
    scene
}

#[test]
fn a_device_that_takes_no_writes_names_the_way_to_read_it() {
    skip_unless!(can_mount("/dev/loop-control"));
    let scene = written_disks();
    for (file, backup, prefix) in [("disk.img", "disk.bak", ""), ("chip.img", "chip.bak", "nand:")] {
        let before = fs::read(scene.path(file)).unwrap();
        let device = Device::over(&scene, &["-r", file]);
        assert_way_to_read(&scene, &format!("{prefix}{}", device.0), backup, "takes no writes");
        assert!(fs::read(scene.path(file)).unwrap() == before, "{file}");
    }
}

/// A file made immutable until this is dropped.
struct ImmutableFile(PathBuf);

impl ImmutableFile {
    /// Returns `None`, with a message, where the system or the file system has no immutable files.
    fn set(path: PathBuf) -> Option<ImmutableFile> {
        let set = Command::new("chattr").arg("+i").arg(&path).output();
        if set.is_ok_and(|output| output.status.success()) {
            return Some(ImmutableFile(path));
        }
        skipped("no file can be made immutable here");
        None
    }
}

impl Drop for ImmutableFile {
    fn drop(&mut self) {
        let _ = Command::new("chattr").arg("-i").arg(&self.0).status();
    }
}

#[test]
fn an_immutable_file_names_the_way_to_read_it() {
    let scene = written_disks();
    for (location, file, backup) in
        [("disk.img", "disk.img", "disk.bak"), ("nand:chip.img", "chip.img", "chip.bak")]
    {
        let before = fs::read(scene.path(file)).unwrap();
        let Some(_immutable) = ImmutableFile::set(scene.path(file)) else { return };
        assert_way_to_read(&scene, location, backup, "it may be immutable");
        assert!(fs::read(scene.path(file)).unwrap() == before, "{file}");
    }
}

/// The name of a directory is chosen by its creator.
#[test]
fn names_reach_no_terminal_with_control_characters() {
    let scene = Scene::new();
    let name = "evil\u{1b}]0;PWN\u{7}\nlacuna: a line that was never said";
    fs::create_dir(scene.path(name)).unwrap();
    let disk = format!("{name}/disk.img");
    scene.create(&disk, &["--size", "16M"]).code(0);
    let server = scene.serve_disk(&disk, &[]);
    for words in [&["list"][..], &["status"]] {
        let ran = scene.lacuna(words).code(0);
        assert!(
            !ran.stdout.contains('\u{1b}') && !ran.stdout.contains("\nlacuna: a line"),
            "{:?}",
            ran.stdout
        );
        assert!(ran.stdout.contains("evil\\u{1b}]0;PWN\\u{7}\\nlacuna"), "{:?}", ran.stdout);
    }
    let refused = scene.lacuna(&["check", &format!("{disk}x"), "--key-file", "key"]);
    assert!(refused.code > 0 && !refused.stderr.contains('\u{1b}'), "{:?}", refused.stderr);
    assert_eq!(server.stop(), 0);
}

/// Number of resident pages of a medium, as the system reports it to the owner.
fn resident(scene: &Scene, file: &str) -> u64 {
    let output = scene.tool("fincore", &["--bytes", "--noheadings", "--output", "PAGES", file]).stdout;
    output.trim().parse().unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// The slots that were read would reveal the level that was read.
#[test]
fn memory_holds_nothing_of_a_closed_disk_with_levels() {
    // Pages of a file in tmpfs stay resident.
    let in_memory = |scene: &Scene| scene.tool("stat", &["-f", "-c", "%T", "."]).stdout.contains("tmpfs");
    if !is_program_available("fincore") || in_memory(&Scene::new()) {
        return;
    }
    for format in ["deniable", "oblivious"] {
        let scene = Scene::new();
        fs::write(scene.path("deep"), "battery staple\n").unwrap();
        let options =
            ["--format", format, "--levels", "2", "--size", "64M", "--cover", "20", "--key-file", "deep"];
        scene.create("disk.img", &options).code(0);
        let server = scene.serve_with_key("deep");
        let mut hidden = Client::connect_to(&server.socket, "1").unwrap();
        hidden.write_at(0, &noise(1, 64 << 10)).unwrap();
        hidden.read_at(0, 64 << 10).unwrap();
        drop(hidden);
        assert_eq!(server.stop(), 0);
        assert_eq!(resident(&scene, "disk.img"), 0, "{format}, after writing");
        let server = scene.serve_with_key("deep");
        let mut hidden = Client::connect_to(&server.socket, "1").unwrap();
        hidden.read_at(0, 64 << 10).unwrap();
        drop(hidden);
        assert_eq!(server.stop(), 0);
        assert_eq!(resident(&scene, "disk.img"), 0, "{format}, after reading");
        scene.lacuna(&["info", "disk.img", "--key-file", "deep"]).code(0);
        assert_eq!(resident(&scene, "disk.img"), 0, "{format}, after a look");
    }
}
