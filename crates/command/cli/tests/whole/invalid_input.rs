//! Invalid input: each case gets its exit code and an error of one line, and changes nothing.

use crate::harness::{CHEAP, Scene, can_mount, is_program_available, noise, skip_unless, skipped};
use std::fs;
use std::process::{Command, Stdio};

#[test]
fn invalid_sizes_are_refused() {
    let scene = Scene::new();
    for size in ["0", "5", "4097", "1x", "", "-4096", "1.5Q", "17T", "99999999999999999999T"] {
        let ran = scene.create("new.img", &[&format!("--size={size}")]).code(1);
        assert!(ran.stderr.starts_with("lacuna: "), "{}", ran.stderr);
        assert!(!scene.path("new.img").exists(), "--size {size:?} left a file");
    }
    assert!(scene.create("new.img", &[]).code(1).stderr.contains("--size"));
    assert!(!scene.path("new.img").exists());
    scene.create("tiny.img", &["--size", "4096"]).code(0);
    assert_eq!(scene.lacuna(&["info", "tiny.img", "--json"]).code(0).json()["size"], 4096);
    scene.lacuna(&["check", "tiny.img", "--key-file", "key"]).code(0);
}

#[test]
fn invalid_arguments_are_refused() {
    let scene = Scene::new();
    for args in [
        &["frobnicate"][..],
        &["--no-such-option"],
        &["info"],
        &["info", "--jsn", "disk.img"],
        &["create", "new.img", "--size", "64M", "--cipher", "rot13"],
        &["create", "new.img", "--size", "64M", "--cipher", "xts", "--layout", "kv", "--key-file", "key"],
        &["create", "new.img", "--size", "64M", "--format", "unheard-of"],
        &["create", "new.img", "--size", "64M", "--kdf-passes", "1", "--key-file", "key"],
        &["create", "new.img", "--size", "64M", "--kdf-memory", "1K", "--key-file", "key"],
        &["serve", "disk.img", "--key-file", "key"],
        &["serve", "disk.img", "--socket", "a", "--cache", "1K", "--key-file", "key"],
        &["create", "new.img", "--size", "-5M", "--key-file", "key"],
        &["create", "new.img", "--size", "--force", "--key-file", "key"],
        &["info", "rados:pool"],
        &["info", "nand:"],
        &[],
    ] {
        scene.lacuna(args).code(1);
    }
    assert!(!scene.path("new.img").exists());
    for args in [&["--help"][..], &["--version"], &["help", "create"], &["key", "add", "--help"]] {
        assert!(!scene.lacuna(args).code(0).stdout.is_empty());
    }
}

#[test]
fn words_of_other_tools_name_the_verb() {
    let scene = Scene::new();
    for (words, hint) in [
        (&["vault", "open", "v", "mnt"][..], "`lacuna open` does that"),
        (&["key", "list", "disk.img"], "`lacuna info` does that"),
        (&["passwd", "disk.img"], "`lacuna key change` does that"),
        (&["luksOpen", "disk.img", "name"], "`lacuna open` does that"),
        (&["version"], "`lacuna --version` does that"),
        (&["resize", "disk.img", "--size", "-5M"], "a disk does not shrink"),
    ] {
        let said = scene.lacuna(words).code(1).stderr;
        assert!(said.contains(hint) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn caches_larger_than_half_of_the_memory() {
    let scene = Scene::with_disk(&["--size", "16M"]);
    let said = scene.lacuna(&["check", "disk.img", "--cache", "900000G", "--key-file", "key"]).code(3).stderr;
    assert!(said.contains("memory for caches") && !said.contains("--cache"), "{said}");
}

#[test]
fn layouts_are_refused_on_a_path() {
    let scene = Scene::new();
    for layout in ["adaptive", "segment-end", "interleaved", "kv"] {
        let ran = scene.create("new.img", &["--size", "64M", "--layout", layout]).code(1);
        assert!(ran.stderr.contains("layouts are a choice of rados: locations"), "{}", ran.stderr);
        assert!(!scene.path("new.img").exists());
    }
}

#[test]
fn invalid_passphrases_are_refused() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::write(scene.path("empty"), "\n").unwrap();
    fs::write(scene.path("wrong"), "wrong horse\n").unwrap();
    let check = |key: &str| scene.lacuna(&["check", "disk.img", "--key-file", key]);
    check("wrong").code(2);
    check("empty").code(1);
    check("missing").code(1);
    scene.lacuna(&["create", "new.img", "--size", "64M", "--key-file", "empty"]).code(1);
    scene.lacuna(&["create", "new.img", "--size", "64M", "--key-file", "key", "--key-file", "wrong"]).code(1);
    // Without a terminal and without another source.
    let mut lone = Command::new("setsid");
    lone.arg("--wait").arg(env!("CARGO_BIN_EXE_lacuna")).args(["check", "disk.img"]);
    let out = lone.current_dir(scene.path(".")).stdin(Stdio::null()).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stderr));

    // Every other source.
    scene.lacuna_with_input(&["check", "disk.img", "--key-file", "-"], "correct horse").code(0);
    scene.lacuna_with_input(&["check", "disk.img", "--key-file", "-"], "correct horse\n\n").code(2);
    let descriptor = |number: &str| {
        let script = format!("exec \"$0\" check disk.img --key-fd {number} 5<key");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_lacuna")]).current_dir(scene.path("."));
        shell.stdin(Stdio::null()).output().unwrap().status.code()
    };
    assert_eq!(descriptor("5"), Some(0));
    for not_open in ["6", "2", "3", "5000000000"] {
        assert_eq!(descriptor(not_open), Some(1), "--key-fd {not_open}");
    }
    fs::write(scene.path("ask"), "#!/bin/sh\ntest -n \"$1\" && cat key\n").unwrap();
    scene.tool("chmod", &["+x", "ask"]);
    scene.lacuna(&["check", "disk.img", "--askpass", "./ask"]).code(0);
    scene.lacuna(&["check", "disk.img", "--askpass", "false"]).code(1);
    scene.lacuna(&["check", "disk.img", "--askpass", "./no-such-program"]).code(1);
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let scene = Scene::new();
    fs::write(scene.path("precious"), b"data").unwrap();
    scene.create("precious", &["--size", "64M"]).code(1);
    assert_eq!(fs::read(scene.path("precious")).unwrap(), b"data");
    // Refused for another reason, so the file is unchanged even with `--force`.
    scene.create("precious", &["--size", "5", "--force"]).code(1);
    assert_eq!(fs::read(scene.path("precious")).unwrap(), b"data");
    scene.create("precious", &["--size", "64M", "--force"]).code(0);
    scene.lacuna(&["check", "precious", "--key-file", "key"]).code(0);
    scene.create(".", &["--size", "64M", "--force"]).code(1);
    scene.create("no/such/dir.img", &["--size", "64M"]).code(4);
}

#[test]
fn a_pid_file_overwrites_no_other_file() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let before = fs::read(scene.path("disk.img")).unwrap();
    let serve = ["serve", "disk.img", "--key-file", "key", "--socket", "s", "--pid-file", "disk.img"];
    assert!(scene.lacuna(&serve).code(1).stderr.contains("process number"));
    assert!(fs::read(scene.path("disk.img")).unwrap() == before);
    fs::write(scene.path("stale"), "4711\n").unwrap();
    let server = scene.serve(&["--pid-file", "stale", "--max-connections", "3"]);
    assert_ne!(fs::read_to_string(scene.path("stale")).unwrap(), "4711\n");
    assert_eq!(server.stop(), 0);
    assert!(!scene.path("stale").exists());
}

#[test]
fn a_passphrase_is_read_from_a_descriptor() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    skip_unless!(can_mount("/proc/self/status"));
    // As `nobody`, which cannot read /proc of processes with protected memory.
    scene.tool("chmod", &["a+rwx", "."]);
    scene.tool("chmod", &["a+rw", "disk.img", "key"]);
    let script = "exec setpriv --reuid 65534 --clear-groups \"$0\" check disk.img --key-fd 5 5<key";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_lacuna")]).current_dir(scene.path("."));
    let out = shell.stdin(Stdio::null()).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_disk_is_opened_by_one_process_at_a_time() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let server = scene.serve(&[]);
    let again = ["serve", "disk.img", "--socket", "other.sock", "--key-file", "key"];
    scene.lacuna(&again).code(5);
    scene.lacuna(&[&again[..], &["--read-only"]].concat()).code(5);
    // Before a passphrase is asked for.
    fs::write(scene.path("ask"), "#!/bin/sh\ntouch asked; cat key\n").unwrap();
    scene.tool("chmod", &["+x", "ask"]);
    scene.lacuna(&["create", "disk.img", "--size", "64M", "--force", "--askpass", "./ask"]).code(5);
    assert!(!scene.path("asked").exists());
    assert_eq!(server.stop(), 0);
    assert!(!scene.path("nbd.sock").exists());
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
}

/// Limits of files, sizes, levels, targets and sockets are known without a passphrase.
#[test]
fn a_request_that_must_fail_fails_before_a_passphrase_is_asked_for() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::write(scene.path("ask"), "#!/bin/sh\ntouch asked; cat key\n").unwrap();
    scene.tool("chmod", &["+x", "ask"]);
    scene.lacuna(&[&["vault", "init", "v", "--key-file", "key"][..], &CHEAP].concat()).code(0);
    fs::create_dir(scene.path("full")).unwrap();
    fs::write(scene.path("full/file"), "").unwrap();
    let cheap = CHEAP.join(" ");
    for (words, code) in [
        (format!("create new.img --size 1G {cheap}"), 13),
        ("resize disk.img --size 1G".to_owned(), 13),
        ("resize disk.img --size 4K".to_owned(), 1),
        ("rescue disk.img image --level 1".to_owned(), 1),
        ("vault rescue v full".to_owned(), 1),
        ("vault rescue v missing/target".to_owned(), 4),
        ("serve disk.img --socket key".to_owned(), 1),
        ("serve disk.img --socket missing/socket".to_owned(), 4),
        ("key add disk.img --new-key-file missing".to_owned(), 1),
        ("key change disk.img --new-key-file missing".to_owned(), 1),
    ] {
        // In units of 512 bytes, or of 1024.
        let script = format!("ulimit -f 524288; exec \"$0\" {words} --askpass ./ask");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_lacuna")]).current_dir(scene.path("."));
        shell.env("XDG_STATE_HOME", scene.path("state"));
        let out = shell.stdin(Stdio::null()).output().unwrap();
        assert_eq!(out.status.code(), Some(code), "{words}: {}", String::from_utf8_lossy(&out.stderr));
        assert!(!scene.path("asked").exists(), "{words}");
    }
    assert!(!scene.path("new.img").exists() && !scene.path("image").exists());
}

#[test]
fn a_place_that_takes_no_file_is_refused_before_a_passphrase_is_asked_for() {
    let scene = Scene::new();
    fs::write(scene.path("ask"), "#!/bin/sh\ntouch asked; cat key\n").unwrap();
    scene.tool("chmod", &["+x", "ask"]);
    std::os::unix::fs::symlink("gone", scene.path("link.img")).unwrap();
    let create = ["create", "link.img", "--size", "16M", "--askpass", "./ask"];
    let said = scene.lacuna(&[&create[..], &CHEAP].concat()).code(1).stderr;
    assert!(said.contains("a symbolic link to a missing file"), "{said}");
    assert!(!scene.path("asked").exists());
    skip_unless!(can_mount("/proc/self/status"));
    // The user `nobody` may not write to this directory.
    scene.tool("chmod", &["a+rwx", "."]);
    scene.tool("chmod", &["a+r", "key"]);
    fs::create_dir(scene.path("closed")).unwrap();
    scene.tool("chmod", &["755", "closed"]);
    for words in [
        "create closed/disk.img --size 16M",
        "create nand:closed/chip.img --size 16M",
        "vault init closed/v --anchor anchor",
        "vault init v --anchor closed/anchor",
    ] {
        let cheap = CHEAP.join(" ");
        let script =
            format!("exec setpriv --reuid 65534 --clear-groups \"$0\" {words} --askpass ./ask {cheap}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_lacuna")]).current_dir(scene.path("."));
        let out = shell.stdin(Stdio::null()).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{words}: {}", String::from_utf8_lossy(&out.stderr));
        assert!(!scene.path("asked").exists(), "{words}");
    }
}

#[test]
fn damaged_and_foreign_headers_are_refused() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let good = fs::read(scene.path("disk.img")).unwrap();
    let check = |bytes: &[u8]| {
        fs::write(scene.path("disk.img"), bytes).unwrap();
        scene.lacuna(&["check", "disk.img", "--key-file", "key"])
    };
    let flipped = |at: &[usize]| {
        let mut bytes = good.clone();
        at.iter().for_each(|at| bytes[*at] ^= 0x10);
        bytes
    };
    let last = lacuna_header::copy_c(good.len() as u64).unwrap();
    let copies = [lacuna_header::COPY_A, lacuna_header::COPY_B, last].map(|at| at as usize + 20);
    for one in copies {
        let ran = check(&flipped(&[one])).code(0);
        assert!(ran.stderr.contains("`lacuna header repair` rewrites all copies"), "{}", ran.stderr);
        assert!(
            scene
                .lacuna(&["info", "disk.img"])
                .code(0)
                .stderr
                .contains("`lacuna header repair` rewrites all copies")
        );
    }
    let notes = scene.lacuna(&["info", "disk.img", "--json"]).code(0).json();
    assert_eq!(notes["notes"].as_array().unwrap().len(), 1);
    scene.lacuna(&["key", "refresh", "disk.img", "--yes", "--keep", "1", "--key-file", "key"]).code(0);
    assert_eq!(scene.lacuna(&["info", "disk.img"]).code(0).stderr, "");

    check(&flipped(&copies)).code(10);
    scene.lacuna(&["info", "disk.img"]).code(10);
    check(&noise(3, 2 << 20)).code(4);
    check(b"").code(4);
    check(&good[..1 << 20]).code(10);
    let info = scene.lacuna(&["info", "disk.img"]).code(10);
    assert!(info.stdout.contains("UUID") && info.stderr.contains("1048576 bytes"), "{}", info.stderr);
    let info = scene.lacuna(&["info", "disk.img", "--json"]).code(10).json();
    let needed = info["medium"]["needed"].as_u64().unwrap() as usize;
    assert_eq!(lacuna_header::medium_len(needed as u64), good.len() as u64);
    assert_eq!((&info["medium"]["size"], &info["medium"]["needed"]), (&(1 << 20).into(), &needed.into()));
    check(&good[..needed - 4096]).code(10);
    fs::remove_file(scene.path("disk.img")).unwrap();
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(4);
    scene.lacuna(&["info", "."]).code(4);
}

/// As `openssl x509 -req` of several systems makes it.
#[test]
fn a_certificate_of_version_1_is_named() {
    skip_unless!(is_program_available("openssl"));
    let scene = Scene::with_disk(&["--size", "16M"]);
    fs::create_dir(scene.path("tls")).unwrap();
    let openssl = |words: &str| scene.tool("openssl", &words.split(' ').collect::<Vec<_>>()).stdout;
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -keyout tls/ca-key.pem -out tls/ca-cert.pem -subj /CN=ca -days 2",
    );
    openssl("req -newkey rsa:2048 -nodes -keyout tls/server-key.pem -out request -subj /CN=localhost");
    openssl(
        "x509 -req -in request -CA tls/ca-cert.pem -CAkey tls/ca-key.pem -CAcreateserial -out tls/server-cert.pem -days 2",
    );
    if !openssl("x509 -noout -text -in tls/server-cert.pem").contains("Version: 1 ") {
        skipped("openssl makes certificates of version 3 by itself");
        return;
    }
    let serve = ["serve", "disk.img", "--listen", "127.0.0.1:0", "--tls-dir", "tls", "--key-file", "key"];
    let refused = scene.lacuna(&serve).code(1).stderr;
    assert!(refused.contains("server-cert.pem") && refused.contains("version 3"), "{refused}");
}

#[test]
fn a_failed_create_removes_its_file() {
    let scene = Scene::new();
    // The shell's file size limit makes the system refuse the write of `create`.
    let args = ["create", "new.img", "--size", "1G", "--key-file", "key"].into_iter().chain(CHEAP);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_lacuna")]);
    let out = shell.args(args).current_dir(scene.path(".")).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(13), "{said}");
    assert!(said.contains("`ulimit -f`") && said.contains("16 TiB"), "{said}");
    assert!(!scene.path("new.img").exists());
}
