//! Use of a disk with hidden levels: mounted together, served in parallel, opened with fewer
//! levels.

use crate::clients::fio_verifies;
use crate::closing::{FEW, MANY, slow, with_cover};
use crate::harness::{
    CloseOnDrop, Scene, Terminal, can_mount, can_mount_ext4, is_program_available, noise, skip_unless,
    wait_until,
};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::Arc;

/// A part of the note that every opening of a disk with levels for writing prints.
const WARNING: &str = "deeper levels that are not open are overwritten";

/// A disk of two levels: `key` opens level 0, `deep` both. Hidden writes get cover often, to save
/// time.
fn scene(format: &str, size: &str) -> Scene {
    scene_of(&["--format", format, "--size", size, "--cover", "5"])
}

fn scene_of(shape: &[&str]) -> Scene {
    let scene = Scene::new();
    fs::write(scene.path("deep"), "battery staple").unwrap();
    scene.create("disk.img", &[shape, &["--levels", "2", "--key-file", "deep"]].concat()).code(0);
    for dir in ["public", "hidden"] {
        fs::create_dir(scene.path(dir)).unwrap();
    }
    scene
}

fn make_tree(scene: &Scene, name: &str, salt: u64) {
    for dir in 0..20u64 {
        let path = scene.path(&format!("{name}/d{dir}"));
        fs::create_dir_all(&path).unwrap();
        for file in 0..40 {
            let seed = salt + dir * 40 + file;
            fs::write(path.join(format!("file {file}")), noise(seed, (seed * 7919 % 20_000) as usize))
                .unwrap();
        }
    }
}

#[test]
fn trees_on_two_levels_come_back() {
    trees_come_back(&["--format", "deniable", "--size", "400M", "--cover", "5"]);
}

#[test]
fn trees_on_two_levels_of_an_oblivious_disk_come_back() {
    trees_come_back(&["--format", "oblivious", "--size", "900M", "--cover", "20"]);
}

#[test]
fn trees_on_two_levels_of_a_plausible_disk_come_back() {
    trees_come_back(&["--format", "oblivious", "--size", "900M", "--hiding", "plausible"]);
}

fn trees_come_back(shape: &[&str]) {
    skip_unless!(can_mount_ext4());
    let scene = scene_of(shape);
    let _closing = CloseOnDrop(&scene, &["public", "hidden"]);
    make_tree(&scene, "one", 1);
    make_tree(&scene, "two", 100_000);
    let both = ["open", "disk.img", "public", "hidden", "--key-file", "deep"];
    scene.lacuna(&[&both[..], &["--mkfs", "ext4"]].concat()).code(0);
    std::thread::scope(|scope| {
        scope.spawn(|| scene.tool("cp", &["-a", "one", "public/tree"]));
        scope.spawn(|| scene.tool("cp", &["-a", "two", "hidden/tree"]));
    });
    // While it is open, other commands cannot open it, and its server checks it.
    scene.lacuna(&["serve", "disk.img", "--socket", "s", "--key-file", "key"]).code(5);
    scene.lacuna(&["check", "disk.img"]).code(0);
    let status = scene.lacuna(&["status", "hidden", "--json"]).code(0).json();
    assert_eq!(status["servers"][0]["items"][0]["value"], 1);
    scene.lacuna(&["close", "public"]).code(0);
    // The other level stays until it is closed.
    scene.tool("diff", &["-r", "two", "hidden/tree"]);
    scene.lacuna(&["close", "hidden"]).code(0);
    scene.wait_until_free("disk.img");

    scene.lacuna(&both).code(0);
    scene.tool("diff", &["-r", "one", "public/tree"]);
    scene.tool("diff", &["-r", "two", "hidden/tree"]);
    scene.lacuna(&["close", "hidden"]).code(0);
    scene.lacuna(&["close", "public"]).code(0);
    scene.wait_until_free("disk.img");

    let ran = scene.lacuna(&["open", "disk.img", "public", "--key-file", "key"]).code(0);
    assert!(ran.stderr.contains(WARNING), "{}", ran.stderr);
    scene.tool("diff", &["-r", "one", "public/tree"]);
    scene.lacuna(&["close", "public"]).code(0);
    scene.wait_until_free("disk.img");
    let before = fs::read(scene.path("disk.img")).unwrap();
    let ran = scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    assert!(fs::read(scene.path("disk.img")).unwrap() == before, "check wrote");
    assert!(!ran.stderr.contains(WARNING), "{}", ran.stderr);
    assert!(!ran.stdout.contains("level 1"), "{}", ran.stdout);
}

#[test]
fn fio_verifies_both_levels_at_once() {
    fio_verifies_levels("deniable");
}

#[test]
fn fio_verifies_both_levels_of_an_oblivious_disk_at_once() {
    fio_verifies_levels("oblivious");
}

fn fio_verifies_levels(format: &str) {
    let scene = scene(format, "300M");
    let server = scene.serve_with_key("deep");
    let deep = server.uri.replace("nbd+unix:///?", "nbd+unix:///1?");
    std::thread::scope(|scope| {
        scope.spawn(|| fio_verifies(&scene, &server.uri, "--size=24m"));
        scope.spawn(|| fio_verifies(&scene, &deep, "--size=24m"));
    });
    assert_eq!(server.stop(), 0);
    let ran = scene.lacuna(&["check", "disk.img", "--key-file", "deep", "--json"]).code(0).json();
    assert_eq!(ran["bad"], 0);
    assert_eq!(ran["verified"], true);
}

#[test]
fn public_output_does_not_depend_on_the_number_of_levels() {
    for format in ["deniable", "oblivious"] {
        assert_no_level_count(format);
    }
}

fn assert_no_level_count(format: &str) {
    let scene = scene(format, "64M");
    fs::write(scene.path("wrong"), "no").unwrap();
    let wrong = scene.lacuna(&["check", "disk.img", "--key-file", "wrong"]).code(2);
    let single = Scene::new();
    fs::write(single.path("wrong"), "no").unwrap();
    single.create("disk.img", &["--size", "64M", "--format", format]).code(0);
    let of_single = single.lacuna(&["check", "disk.img", "--key-file", "wrong"]).code(2);
    assert_eq!(wrong.stderr, of_single.stderr);
    // The public facts are the same as well, except names and sizes in use.
    let facts = |scene: &Scene| {
        let mut info = scene.lacuna(&["info", "disk.img", "--json"]).code(0).json();
        info["header"]["uuid"] = "".into();
        info["medium"]["used"] = 0.into();
        info["cover_ms"] = 0.into();
        info["overwritten_within"] = 0.into();
        info
    };
    assert_eq!(facts(&scene), facts(&single));
}

#[test]
fn invalid_options_for_levels_are_refused() {
    let scene = scene("deniable", "64M");
    for option in [&["--hiding", "plausible"][..], &["--cells-per-write", "4"]] {
        let ran =
            scene.create("odd.img", &[&["--size", "64M", "--format", "deniable"], option].concat()).code(1);
        assert!(ran.stderr.contains("the format oblivious"), "{}", ran.stderr);
    }
    for option in [&["--spare", "0.2"][..], &["--geometry", "paper"], &["--layout", "kv"]] {
        scene.create("odd.img", &[&["--size", "64M", "--format", "oblivious"], option].concat()).code(1);
    }
    let ran = scene.create("small.img", &["--size", "4M", "--format", "oblivious"]).code(1);
    assert!(ran.stderr.contains("at least"), "{}", ran.stderr);
    let ran = scene.create("small.img", &["--size", "4M", "--format", "deniable"]).code(1);
    assert!(ran.stderr.contains("at least"), "{}", ran.stderr);
    for format in ["deniable", "oblivious"] {
        for size in ["0", "5000", "4M"] {
            let ran = scene.create("small.img", &["--size", size, "--format", format]).code(1);
            let least =
                ran.stderr.split("at least --size ").nth(1).unwrap_or_else(|| panic!("{}", ran.stderr));
            let least = least.split_whitespace().next().unwrap();
            scene.create(&format!("{format}{size}"), &["--size", least, "--format", format]).code(0);
        }
        scene.create("odd.img", &["--size", "64M", "--format", format, "--cipher", "xts"]).code(1);
        scene
            .create(&format!("{format}.img"), &["--size", "64M", "--format", format, "--cipher", "gcm"])
            .code(0);
    }
    scene.create("odd.img", &["--size", "64M", "--levels", "2"]).code(1);
    let ran = scene.create("odd.img", &["--size", "64M", "--format", "deniable", "--levels", "3"]).code(1);
    assert!(ran.stderr.contains("one for each level"), "{}", ran.stderr);
    assert!(!scene.path("odd.img").exists());
    for size in ["1G", "5000"] {
        let ran = scene.lacuna(&["resize", "disk.img", "--size", size, "--key-file", "deep"]).code(1);
        assert!(ran.stderr.contains("keeps its size"), "{}", ran.stderr);
    }
    let ran = scene.lacuna(&["open", "disk.img", "public", "hidden", "--raw", "--key-file", "key"]);
    assert_ne!(ran.code, 0);

    let file = fs::OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    file.set_len(40 << 20).unwrap();
    let ran = scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(10);
    assert!(ran.stderr.contains("cut short"), "{}", ran.stderr);
}

#[test]
fn a_level_is_added_seen_and_dropped() {
    let scene = Scene::new();
    fs::write(scene.path("deep"), "battery staple").unwrap();
    scene.create("disk.img", &["--size", "64M", "--format", "deniable", "--cover", "5"]).code(0);
    let refresh = ["key", "refresh", "--yes", "--keep", "1", "disk.img", "--key-file", "key"];
    scene.lacuna(&[&refresh[..], &["--new-key-file", "deep"]].concat()).code(1);
    scene.lacuna(&[&refresh[..], &["--add-level", "--new-key-file", "deep"]].concat()).code(0);

    // A level that was never open.
    let info = scene.lacuna(&["info", "disk.img", "--json", "--key-file", "deep"]).code(0).json();
    assert_eq!(info["levels"][1]["data"], 0);
    // The header gives its maximum size, the passphrase its actual size.
    let (size, most) =
        (info["levels"][1]["size"].as_u64().unwrap(), info["hidden_sizes"][0].as_u64().unwrap());
    assert!(size <= most && size >= most / 16 * 15 - 4096, "{info}");
    let server = scene.serve_with_key("deep");
    fs::write(scene.path("noise"), noise(3, 4 << 20)).unwrap();
    let deep = server.uri.replace("nbd+unix:///?", "nbd+unix:///1?");
    if is_program_available("nbdcopy") {
        scene.tool("nbdcopy", &["--flush", "noise", &deep]);
        scene.tool("nbdcopy", &["--flush", "noise", &server.uri]);
        // Its server tells, without a passphrase.
        let levels = scene.lacuna(&["info", "disk.img", "--json"]).code(0).json()["levels"].take();
        assert_eq!(levels[0]["data"], 4 << 20);
        assert_eq!(levels[1]["data"], 4 << 20);
        assert_eq!(levels[1]["waiting_for_cover"], 0);
        assert!(levels[0]["write_amplification"].as_f64().unwrap() > 2.0, "{levels}");
    }
    assert_eq!(server.stop(), 0);
    let words = scene.lacuna(&["info", "disk.img", "--key-file", "deep"]).code(0).stdout;
    assert!(words.contains("level 1"), "{words}");
    assert!(!scene.lacuna(&["info", "disk.img"]).code(0).stdout.contains("level 1"));
    assert!(!scene.lacuna(&["info", "disk.img", "--key-file", "key"]).code(0).stdout.contains("level 1"));

    scene.lacuna(&refresh).code(0);
    scene.lacuna(&["check", "disk.img", "--key-file", "deep"]).code(2);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    scene.create("flat.img", &["--size", "16M"]).code(0);
    let refresh = ["key", "refresh", "--yes", "--keep", "1", "flat.img", "--key-file", "key"];
    let add = [&refresh[..], &["--add-level", "--new-key-file", "deep"]].concat();
    assert!(scene.lacuna(&add).code(1).stderr.contains("the format deniable or oblivious"));
}

#[test]
fn a_check_writes_nothing() {
    for shape in [
        &["--format", "deniable", "--cover", "1"][..],
        &["--format", "oblivious", "--cover", "1"],
        &["--format", "oblivious", "--hiding", "plausible", "--cover", "1"],
    ] {
        let scene = scene_of(&[shape, &["--size", "64M"]].concat());
        if is_program_available("nbdcopy") {
            let server = scene.serve_with_key("deep");
            fs::write(scene.path("noise"), noise(3, 2 << 20)).unwrap();
            scene.tool("nbdcopy", &["--flush", "noise", &server.uri]);
            assert_eq!(server.stop(), 0);
        }
        let before = fs::read(scene.path("disk.img")).unwrap();
        for key in ["key", "deep"] {
            let ran = scene.lacuna(&["check", "disk.img", "--key-file", key]).code(0);
            assert!(!ran.stderr.contains(WARNING), "{}", ran.stderr);
            assert!(fs::read(scene.path("disk.img")).unwrap() == before, "{shape:?} with {key}");
        }
    }
}

#[test]
fn damage_is_named_by_level_and_the_rest_reads() {
    let scene = scene("deniable", "64M");
    let server = scene.serve_with_key("deep");
    let deep = server.uri.replace("nbd+unix:///?", "nbd+unix:///1?");
    skip_unless!(is_program_available("nbdcopy"));
    fs::write(scene.path("noise"), noise(3, 8 << 20)).unwrap();
    scene.tool("nbdcopy", &["--flush", "noise", &deep]);
    scene.tool("nbdcopy", &["--flush", "noise", &server.uri]);
    assert_eq!(server.stop(), 0);
    // One public and one hidden block of each stripe, until a used block was hit: the stripes of
    // the data depend on the cover.
    let file = fs::OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    let check = ["check", "disk.img", "--key-file", "deep"];
    let damaged = (40..250).find_map(|stripe| {
        let begin = (1 << 20) + (256 << 10) + stripe * (256 << 10);
        for block in [5, 40] {
            file.write_all_at(b"damage", begin + block * 4096 + 100).unwrap();
        }
        let check = scene.lacuna(&[&check[..], &["--json"]].concat());
        (check.code != 0).then_some(check)
    });
    let answer = damaged.unwrap().code(10).json();
    let mut levels: Vec<u64> =
        answer["bad_blocks"].as_array().unwrap().iter().map(|bad| bad["level"].as_u64().unwrap()).collect();
    levels.dedup();
    assert!(answer["good"].as_u64().unwrap() > 3000, "{answer}");
    let public = scene.lacuna(&["check", "disk.img", "--key-file", "key", "--json"]);
    assert!(public.json()["bad_blocks"].as_array().unwrap().iter().all(|bad| bad["level"] == 0));
    assert!(!levels.is_empty(), "{answer}");
    let words = scene.lacuna_on_terminal(&check).code(10).stderr;
    assert_eq!(words.contains("while that level was not open"), levels.contains(&1), "{words}");
    let words = scene.lacuna(&check).code(10).stderr;
    assert!(!words.contains("level"), "{words}");
}

/// The messages of a server of the disk on its standard error.
fn warning(scene: &Scene, key: &str) -> String {
    let serve = ["serve", "disk.img", "--socket", "nbd.sock", "--key-file", key];
    let log = fs::File::create(scene.path("log")).unwrap();
    assert_eq!(scene.serve_command_logging_to(&mut scene.command(&serve), log.into()).stop(), 0);
    fs::read_to_string(scene.path("log")).unwrap()
}

#[test]
fn the_warning_is_the_same_with_and_without_a_hidden_level() {
    for (format, cover, words) in [
        ("deniable", "1000", "even if nothing is written: all of them within about 4.2 minutes"),
        ("oblivious", "1000", "even if nothing is written: all of them within about "),
        ("deniable", "0", "writing to level 0 overwrites deeper levels"),
        ("oblivious", "0", "writing to level 0 overwrites deeper levels"),
    ] {
        let shape = ["--format", format, "--size", "64M", "--cover", cover];
        let (two, one) = (scene_of(&shape), Scene::new());
        one.create("disk.img", &shape).code(0);
        let text = warning(&one, "key");
        assert!(text.contains(words) && text.contains("To look only, give --read-only."), "{text}");
        for key in ["key", "deep"] {
            assert_eq!(warning(&two, key), text, "{format}, {key}");
        }
    }
}

#[test]
fn a_hidden_level_that_the_cover_overwrote_is_told_to_its_owner() {
    skip_unless!(can_mount_ext4());
    let scene = scene_of(&["--format", "deniable", "--size", "24M", "--cover", "20"]);
    let _closing = CloseOnDrop(&scene, &["public", "hidden"]);
    let open = ["open", "disk.img", "public", "hidden", "--key-file", "deep"];
    scene.lacuna(&[&open[..], &["--mkfs", "ext4"]].concat()).code(0);
    fs::write(scene.path("hidden/secret"), noise(1, 512 << 10)).unwrap();
    scene.lacuna(&["close", "disk.img", "--wait"]).code(0);
    scene.wait_until_free("disk.img");
    // More beats than the log has stripes, and no write.
    let server = scene.serve_with_key("key");
    wait_until("a cycle of the log", || {
        let status = scene.lacuna(&["status", "disk.img", "--json"]).code(0).json();
        let items = status["servers"][0]["items"].as_array().unwrap();
        items.iter().any(|item| item["name"] == "refreshes" && item["value"].as_u64().unwrap() > 200)
    });
    assert_eq!(server.stop(), 0);
    for args in [["check", "disk.img", "--key-file", "deep"], ["info", "disk.img", "--key-file", "deep"]] {
        let words = scene.lacuna_on_terminal(&args).code(0).stderr;
        assert!(words.contains("level 1 is empty") && words.contains("cannot be brought back"), "{words}");
        assert!(!scene.lacuna(&args).code(0).stderr.contains("level 1"), "{args:?}");
    }
    let words = scene.lacuna_on_terminal(&open).code(4).stderr;
    assert!(words.contains("cannot mount level 1 of disk.img: an empty level"), "{words}");
    assert!(words.contains("without its passphrase, and cannot be brought back"), "{words}");
    let words = scene.lacuna(&open).code(20).stderr;
    assert!(words.contains("keeps the reason out of logs") && !words.contains("level 1"), "{words}");
}

#[test]
fn a_hidden_level_is_mounted_alone_and_closed_with_its_cover() {
    skip_unless!(can_mount_ext4());
    let scene = slow("deniable", "1000");
    let _closing = CloseOnDrop(&scene, &["public", "hidden"]);
    let both = ["open", "disk.img", "public", "hidden", "--key-file", "deep"];
    with_cover(&scene, &[&both[..], &["--mkfs", "ext4"]].concat());
    scene.lacuna(&["close", "disk.img", "--wait"]).code(0);
    scene.wait_until_free("disk.img");
    let alone = ["open", "disk.img", "hidden", "--level", "1", "--key-file", "deep"];
    for (target, len, code) in [("hidden", FEW, 0), ("disk.img", MANY, 20)] {
        let text = scene.lacuna(&alone).code(0).stdout;
        assert!(!text.contains("level"), "{text}");
        assert!(scene.path("hidden/lost+found").exists() && !scene.path("public/lost+found").exists());
        let status = scene.lacuna(&["status", "hidden", "--json"]).code(0).json();
        assert_eq!(status["servers"][0]["items"][0]["value"], 1);
        fs::write(scene.path(&format!("hidden/{len}")), noise(1, len)).unwrap();
        // The cover carries along a little; waiting for all of the rest would take more than a
        // minute.
        let words = scene.lacuna(&["close", target]).code(code).stderr;
        assert!(!["level", "hidden", "cover"].iter().any(|word| words.contains(word)), "{words}");
        // Level 0 is closed, too, when the command returns.
        let closed = fs::read(scene.path("disk.img")).unwrap();
        scene.wait_until_free("disk.img");
        assert!(fs::read(scene.path("disk.img")).unwrap() == closed, "it was written after the close");
    }
    scene.lacuna(&alone).code(0);
    assert!(fs::read(scene.path(&format!("hidden/{FEW}"))).unwrap() == noise(1, FEW));
    scene.lacuna(&["close", "disk.img"]).code(0);
}

#[test]
fn a_level_that_cannot_be_mounted_alone_is_refused() {
    skip_unless!(can_mount("/dev/fuse") && is_program_available("fusermount3"));
    let scene = scene("deniable", "64M");
    scene.create("uncovered", &["--format", "deniable", "--size", "64M", "--cover", "0"]).code(0);
    scene.create("flat", &["--size", "16M"]).code(0);
    for (args, words) in [
        (
            &["disk.img", "hidden", "--level", "1", "--key-file", "key"][..],
            "expected: one that opens level 1",
        ),
        (&["disk.img", "hidden", "--level", "7", "--key-file", "deep"][..], "expected: at most "),
        (&["disk.img", "public", "hidden", "--level", "1", "--key-file", "deep"][..], "2 mount points"),
        (&["uncovered", "hidden", "--level", "1", "--key-file", "key"][..], "writes no cover by itself"),
    ] {
        let open = [&["open"][..], args, &["--raw"][..]].concat();
        let text = scene.lacuna_on_terminal(&open).code(1).stderr;
        assert!(text.contains(words), "{args:?}: {text}");
        let text = scene.lacuna(&open).code(20).stderr;
        assert!(text.contains("keeps the reason out of logs"), "{args:?}: {text}");
    }
    let flat = ["open", "flat", "hidden", "--level", "0", "--raw", "--key-file", "key"];
    let text = scene.lacuna(&flat).code(1).stderr;
    assert!(text.contains("a disk without levels"), "{text}");
}

/// The arguments that mount files of the levels.
fn raw<'a>(dirs: &[&'a str], key: &'a str) -> Vec<&'a str> {
    [&["open", "disk.img"][..], dirs, &["--raw", "--key-file", key][..]].concat()
}

/// Runs the program with its standard output on a terminal, and closes the disk. Returns the text
/// shown.
fn shown_by(scene: &Scene, args: &[&str]) -> String {
    let terminal = Terminal::new();
    let seen = terminal.collect_output();
    let mut command = scene.command(args);
    assert!(command.stdout(terminal.stdio()).stderr(Stdio::null()).status().unwrap().success());
    drop((command, terminal));
    wait_until("the end of the output", || Arc::strong_count(&seen) == 1);
    scene.lacuna(&["close", "disk.img"]).code(0);
    scene.wait_until_free("disk.img");
    seen.lock().unwrap().clone()
}

#[test]
fn a_terminal_is_told_which_level_is_where_and_a_log_is_not() {
    skip_unless!(can_mount("/dev/fuse") && is_program_available("fusermount3"));
    let scene = scene("deniable", "64M");
    let opened: Vec<(String, String)> =
        [raw(&["public"], "key"), raw(&["public"], "deep"), raw(&["public", "hidden"], "deep")]
            .iter()
            .map(|args| {
                let ran = scene.lacuna(args).code(0);
                scene.lacuna(&["close", "disk.img"]).code(0);
                scene.wait_until_free("disk.img");
                (ran.stdout, ran.stderr)
            })
            .collect();
    assert!(opened.iter().all(|other| *other == opened[0]), "{opened:?}");
    assert!(!opened[0].0.contains("level"), "{opened:?}");

    let both = shown_by(&scene, &raw(&["public", "hidden"], "deep"));
    let at = |dir: &str| scene.path(dir).canonicalize().unwrap().display().to_string();
    let line = |level: &str, dir: &str| format!("level {level} of disk.img is at {}", at(dir));
    assert!(both.contains(&line("0 (public)", "public")), "{both}");
    assert!(both.contains(&line("1 (hidden)", "hidden")), "{both}");
    let unmounted = "level 1 (hidden) is open, protected and not mounted; `--level 1` mounts it";
    let protected = shown_by(&scene, &raw(&["public"], "deep"));
    assert!(protected.contains(unmounted) && !both.contains(unmounted), "{protected}");
    let public = shown_by(&scene, &raw(&["public"], "key"));
    assert!(public.contains("level 0 (public)") && !public.contains("level 1"), "{public}");
}
