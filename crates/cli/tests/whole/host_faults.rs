//! Faults and limits of the host: what fails is the request that meets them, with a word of what to do.

use crate::nbd_client::Client;
use crate::scene::{Device, Scene, can_mount, have, noise};
use std::fs;

/// A shell that limits its files before it becomes the program: `ulimit -f` counts blocks of 512 bytes or of 1 KiB.
fn limited(scene: &Scene, args: &[&str]) -> crate::scene::Ran {
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
    let cheap = [&create[..], &crate::scene::CHEAP].concat();
    let ran = limited(&scene, &cheap);
    assert!(ran.code > 0 && ran.stderr.contains("too large"), "{}: {}", ran.code, ran.stderr);
    assert!(!scene.path("disk.img").exists(), "half a disk is left");
}

#[test]
fn a_device_that_takes_no_writes_names_the_way_to_read_it() {
    if !can_mount("/dev/loop-control") {
        return;
    }
    let scene = Scene::with_disk(&["--size", "16M"]);
    let server = scene.serve(&[]);
    Client::connect(&server.socket).unwrap().write_at(0, &noise(1, 8192)).unwrap();
    assert_eq!(server.stop(), 0);
    let device = Device::over(&scene, &["-r", "disk.img"]);
    let add = ["key", "add", &device.0, "--key-file", "key", "--new-key-file", "key"];
    let serve = ["serve", &device.0, "--socket", "s", "--key-file", "key"];
    for words in [&serve[..], &["check", &device.0, "--key-file", "key"], &add] {
        let said = scene.lacuna(words);
        assert!(said.code > 0 && said.stderr.contains("takes no writes"), "{words:?}: {}", said.stderr);
        assert!(said.stderr.contains("--read-only"), "{words:?}: {}", said.stderr);
    }
    scene.lacuna(&["check", &device.0, "--read-only", "--key-file", "key"]).code(0);
}

/// The maker of a directory chooses its name.
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

/// Pages of a medium that memory holds, as the system tells its owner.
fn resident(scene: &Scene, file: &str) -> u64 {
    let told = scene.tool("fincore", &["--bytes", "--noheadings", "--output", "PAGES", file]).stdout;
    told.trim().parse().unwrap_or_else(|e| panic!("{e}: {told:?}"))
}

/// Which slots were read would tell that there is a level that was read.
#[test]
fn memory_holds_nothing_of_a_closed_disk_with_levels() {
    // What a file system in memory holds is resident for good.
    let in_memory = |scene: &Scene| scene.tool("stat", &["-f", "-c", "%T", "."]).stdout.contains("tmpfs");
    if !have("fincore") || in_memory(&Scene::new()) {
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
