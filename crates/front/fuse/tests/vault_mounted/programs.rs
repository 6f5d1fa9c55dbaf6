//! Tests with real programs in a vault: copying, comparing, `git`, a build, SQLite and `tar`. All
//! data is still there after the vault was unmounted and mounted again.

use crate::fixture::{VaultFixture, say, skip_if};
use crate::machine::{lacking, run, skipped};
use crate::serving::MountMode;
use crate::shutdown::close_dead;
use lacuna_testkit::skip_unless;
use std::fmt::Write;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// The copied parts of `/usr/share`; all of it if `LACUNA_SHARE` is `all`.
const PARTS: [&str; 8] = ["doc", "perl", "zoneinfo", "i18n", "mime", "bash-completion", "X11", "terminfo"];

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok()
}

/// Names, kinds, modes, owners, sizes, times and targets, without the sizes of directories.
fn listing(dir: &Path) -> String {
    let format =
        ["-type", "d", "-printf", "%P d %m %U %G %T@\\n", "-o", "-printf", "%P %y %m %U %G %s %T@ %l\\n"];
    let mut lines: Vec<String> =
        run(Command::new("find").arg(".").args(format).current_dir(dir)).lines().map(str::to_owned).collect();
    lines.sort();
    lines.join("\n")
}

#[test]
fn copies_of_usr_share_are_identical() {
    skip_if!(lacking());
    let all = std::env::var("LACUNA_SHARE").is_ok_and(|part| part == "all");
    let parts: Vec<&str> = if all {
        vec![""]
    } else {
        PARTS.into_iter().filter(|part| Path::new("/usr/share").join(part).is_dir()).collect()
    };
    let place = VaultFixture::new();
    let server = place.mount(MountMode::Create);
    let copies: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(n, part)| (Path::new("/usr/share").join(part), place.mountpoint().join(format!("{n}"))))
        .collect();
    for (from, to) in &copies {
        run(Command::new("cp").arg("-a").arg(from).arg(to));
    }
    place.unmount(server);

    let server = place.mount(MountMode::Open);
    for (from, to) in &copies {
        run(Command::new("diff").args(["--no-dereference", "-r"]).arg(from).arg(to));
        assert!(listing(from) == listing(to), "{} and {}: attributes differ", from.display(), to.display());
    }
    for (_, to) in &copies {
        fs::remove_dir_all(to).unwrap();
    }
    assert_eq!(fs::read_dir(place.mountpoint()).unwrap().count(), 0);
    place.unmount_and_verify(server);
}

fn git(dir: &Path, args: &[&str]) -> String {
    let mut git = Command::new("git");
    git.arg("-C").arg(dir).args(["-c", "protocol.file.allow=always", "-c", "gc.auto=0"]).args(args);
    for (name, value) in [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@example.org"),
        ("GIT_COMMITTER_NAME", "a"),
        ("GIT_COMMITTER_EMAIL", "a@example.org"),
    ] {
        git.env(name, value);
    }
    run(&mut git)
}

fn text_of(n: usize) -> String {
    let line = |line| format!("line {line} of file {n}: {}\n", "word ".repeat(line % 11));
    (0..n % 200 + 3).map(line).collect::<Vec<_>>().concat()
}

/// Makes a repository with a few commits and a merge.
fn make_repository(dir: &Path) {
    fs::create_dir(dir).unwrap();
    git(dir, &["init", "-q", "-b", "main"]);
    for commit in 0..4 {
        for n in (0..400).filter(|n| commit == 0 || n % 7 == commit) {
            let path = dir.join(format!("{}/{}", n % 13, n % 5));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join(format!("file {n}")), text_of(n + commit * 1000)).unwrap();
        }
        git(dir, &["add", "-A"]);
        git(dir, &["commit", "-q", "-m", &format!("commit {commit}")]);
    }
    git(dir, &["checkout", "-q", "-b", "side", "HEAD~2"]);
    fs::write(dir.join("side"), "of the side").unwrap();
    git(dir, &["add", "-A"]);
    git(dir, &["commit", "-q", "-m", "side"]);
    git(dir, &["checkout", "-q", "main"]);
    git(dir, &["merge", "-q", "--no-edit", "side"]);
}

#[test]
fn git_clones_and_finds_nothing_wrong() {
    skip_if!(lacking());
    skip_unless!(has("git"), "there is no git");
    let place = VaultFixture::new();
    let server = place.mount(MountMode::Create);
    let at = |name: &str| place.mountpoint().join(name);
    make_repository(&at("source"));
    for (name, how) in [("linked", "--local"), ("copied", "--no-hardlinks"), ("fetched", "--no-local")] {
        git(&place.mountpoint(), &["clone", "-q", how, "source", name]);
    }
    let check = |dir: &Path| {
        assert_eq!(git(dir, &["status", "--porcelain"]), "");
        git(dir, &["fsck", "--full", "--strict"]);
        git(dir, &["log", "--stat"])
    };
    let names = ["source", "linked", "copied", "fetched"];
    let log = check(&at("source"));
    for name in names {
        assert_eq!(check(&at(name)), log);
    }
    git(&at("copied"), &["gc", "-q", "--aggressive", "--prune=now"]);
    git(&at("linked"), &["checkout", "-q", "HEAD~1"]);
    git(&at("linked"), &["checkout", "-q", "main"]);
    fs::write(at("fetched").join("side"), "changed").unwrap();
    assert_eq!(git(&at("fetched"), &["status", "--porcelain"]), " M side\n");
    git(&at("fetched"), &["checkout", "-q", "side", "--"]);
    git(&at("fetched"), &["reset", "-q", "--hard", "main"]);
    place.unmount(server);

    let server = place.mount(MountMode::Open);
    for name in names {
        assert_eq!(check(&at(name)), log, "{name}");
    }
    place.unmount_and_verify(server);
}

/// Makes a C program of many files, and its makefile.
fn make_sources(dir: &Path, count: usize) {
    fs::create_dir(dir).unwrap();
    let mut header = "#pragma once\n#define FACTOR 1\n".to_owned();
    let mut main = "#include \"all.h\"\n#include <stdio.h>\nint main(void) {\n  int sum = 0;\n".to_owned();
    for n in 0..count {
        writeln!(header, "int part_{n}(int);").unwrap();
        writeln!(main, "  sum += part_{n}({n});").unwrap();
        let source = format!("#include \"all.h\"\nint part_{n}(int x) {{ return FACTOR * (x + {n}); }}\n");
        fs::write(dir.join(format!("part_{n}.c")), source).unwrap();
    }
    main += "  printf(\"%d\\n\", sum);\n  return 0;\n}\n";
    fs::write(dir.join("all.h"), header).unwrap();
    fs::write(dir.join("main.c"), main).unwrap();
    let rules = "SOURCES := $(filter-out main.c,$(wildcard *.c))\nOBJECTS := $(SOURCES:.c=.o)\n\
        program: main.o libparts.a\n\tgcc -o $@ main.o -L. -lparts\n\
        libparts.a: $(OBJECTS)\n\trm -f $@\n\tar rcs $@ $(OBJECTS)\n\
        %.o: %.c all.h\n\tgcc -O1 -g -c -o $@ $<\n\
        clean:\n\trm -f *.o *.a program\n";
    fs::write(dir.join("Makefile"), rules).unwrap();
}

#[test]
fn program_is_built_and_runs() {
    skip_if!(lacking());
    skip_unless!(has("make") && has("gcc"), "there is no make, or no gcc");
    let place = VaultFixture::new();
    let server = place.mount(MountMode::Create);
    let dir = place.mountpoint().join("project");
    let make = |args: &[&str]| run(Command::new("make").args(args).current_dir(&dir));
    let sum = |factor: u32| format!("{}\n", (0..30).map(|n| factor * 2 * n).sum::<u32>());
    make_sources(&dir, 30);
    make(&["-j2"]);
    assert_eq!(run(&mut Command::new(dir.join("program"))), sum(1));
    assert!(make(&[]).contains("up to date"));
    let header = fs::read_to_string(dir.join("all.h")).unwrap();
    fs::write(dir.join("all.h"), header.replace("FACTOR 1", "FACTOR 3")).unwrap();
    assert_eq!(make(&["-j2"]).matches("-c -o").count(), 31);
    assert_eq!(run(&mut Command::new(dir.join("program"))), sum(3));
    place.unmount(server);

    let server = place.mount(MountMode::Open);
    assert!(make(&[]).contains("up to date"));
    assert_eq!(run(&mut Command::new(dir.join("program"))), sum(3));
    make(&["clean"]);
    make(&["-j2"]);
    assert_eq!(run(&mut Command::new(dir.join("program"))), sum(3));
    place.unmount_and_verify(server);
}

/// Whether python3 is installed with this module.
pub(crate) fn python_has(module: &str) -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", &format!("import {module}")]).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}

/// Runs a task of `sqlite.py` in the mounted vault.
fn sqlite(place: &VaultFixture, task: &str) -> Command {
    let mut python = Command::new("python3");
    python.args(["-c", include_str!("sqlite.py"), task]).arg(place.mountpoint());
    python
}

#[test]
fn databases_of_sqlite_keep_their_integrity() {
    skip_if!(lacking());
    skip_unless!(python_has("sqlite3"), "there is no python3 with sqlite3");
    let place = VaultFixture::new();
    let server = place.mount(MountMode::Create);
    let python = |task: &str| run(&mut sqlite(&place, task));
    python("write");
    let before = python("check");
    place.unmount(server);

    let server = place.mount(MountMode::Open);
    assert_eq!(python("check"), before);
    say(before.trim());
    python("write");
    place.unmount_and_verify(server);
}

#[test]
fn the_sqlite_tests_of_python_pass() {
    skip_if!(lacking());
    skip_unless!(python_has("test.test_sqlite3"), "there is no python3 with its tests of sqlite3");
    let place = VaultFixture::new();
    let server = place.mount(MountMode::Create);
    // The tests' files are in the current directory or in that of temporary files.
    let mut tests = Command::new("python3");
    tests.args(["-B", "-m", "unittest", "-q", "test.test_sqlite3"]);
    run(tests.current_dir(place.mountpoint()).env("TMPDIR", place.mountpoint()));
    place.unmount_and_verify(server);
}

#[test]
fn committed_rows_outlive_a_killed_server() {
    skip_if!(lacking());
    skip_unless!(python_has("sqlite3"), "there is no python3 with sqlite3");
    let place = VaultFixture::new();
    let mut server = place.mount(MountMode::Create);
    for mode in ["wal", "delete"] {
        let mut writer =
            sqlite(&place, "commit").arg(mode).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines().map_while(Result::ok);
        for expected in 1..=60 {
            assert_eq!(lines.next(), Some(expected.to_string()), "{mode}");
        }
        server.kill();
        let last: u64 = lines.last().map_or(60, |line| line.parse().unwrap());
        assert!(!writer.wait().unwrap().success());
        close_dead(&place);
        server = place.mount(MountMode::Open);
        let kept: u64 = run(sqlite(&place, "kept").arg(mode)).trim().parse().unwrap();
        // One more row may have become durable before it was reported.
        assert!(kept == last || kept == last + 1, "{mode}: {kept} rows of {last}");
    }
    place.unmount(server);
    place.take_log();
    place.verify();
    place.assert_nothing_left();
}

#[test]
fn tar_archives_are_identical() {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    let at = |name: &str| place.mountpoint().join(name);
    let source = place.dir().join("source");
    make_tree(&source);
    let pack = |dir: &Path, to: &Path| {
        // Later versions of the sparse format contain the process number.
        let options = [
            "--sort=name",
            "--format=posix",
            "--xattrs",
            "--sparse-version=0.0",
            "--sparse",
            "--numeric-owner",
        ];
        // Fields that always differ: the times of access and of change, and the process number of
        // `tar`.
        let times = "--pax-option=exthdr.name=%d/%f,delete=atime,delete=ctime";
        run(Command::new("tar").arg("-C").arg(dir).args(options).arg(times).arg("-cf").arg(to).arg("."));
    };
    let unpack = |from: &Path, to: &Path| {
        fs::create_dir(to).unwrap();
        run(Command::new("tar").arg("-C").arg(to).args(["--xattrs", "--xattrs-include=*", "-xpf"]).arg(from));
    };
    let original = place.dir().join("original.tar");
    pack(&source, &original);
    unpack(&original, &at("unpacked"));
    pack(&at("unpacked"), &at("again.tar"));
    let mut compare = Command::new("cmp");
    run(compare.arg(&original).arg(at("again.tar")));
    place.unmount(server);

    let server = place.mount(MountMode::Open);
    run(&mut compare);
    // `diff` considers two pipes always different.
    let differ = ["--no-dereference", "-r", "--exclude=fifo", "--exclude=null"];
    run(Command::new("diff").args(differ).arg(&source).arg(at("unpacked")));
    assert_eq!(listing(&source), listing(&at("unpacked")));
    unpack(&at("again.tar"), &place.dir().join("outside"));
    assert_eq!(listing(&source), listing(&place.dir().join("outside")));
    place.unmount_and_verify(server);
}

/// An access control list: `u::rwx,u:12:rw-,g::r-x,m::rwx,o::---`.
const LIST: &[u8] = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x06\0\x0c\0\0\0\
    \x04\0\x05\0\xff\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
/// The places of lists in a tree: a path and the name of the attribute.
const LISTS: [(&str, &str); 3] = [
    (".", "system.posix_acl_access"),
    (".", "system.posix_acl_default"),
    ("file", "system.posix_acl_access"),
];

#[track_caller]
fn assert_has_lists(dir: &Path) {
    for (path, name) in LISTS {
        let mut value = vec![0; 4096];
        let len = rustix::fs::getxattr(dir.join(path), name, &mut value[..])
            .unwrap_or_else(|e| panic!("{}: {path}, {name}: {e}", dir.display()));
        assert_eq!(&value[..len], LIST, "{}: {path}, {name}", dir.display());
    }
}

#[test]
fn copies_keep_their_access_control_lists() {
    skip_if!(lacking());
    let place = VaultFixture::new();
    let (source, outside) = (place.dir().join("source"), place.dir().join("outside"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), b"content").unwrap();
    for (path, name) in LISTS {
        let done = rustix::fs::setxattr(source.join(path), name, LIST, rustix::fs::XattrFlags::empty());
        if done == Err(rustix::io::Errno::OPNOTSUPP) {
            return skipped("directories of this machine take no access control lists");
        }
        done.unwrap();
    }
    let copy = |from: &Path, to: &Path| run(Command::new("cp").arg("-a").arg(from).arg(to));
    let server = place.mount(MountMode::Create);
    let inside = place.mountpoint().join("copy");
    copy(&source, &inside);
    assert_has_lists(&inside);
    place.unmount(server);

    let server = place.mount(MountMode::Open);
    assert_has_lists(&inside);
    copy(&inside, &outside);
    assert_has_lists(&outside);
    assert_eq!(listing(&source), listing(&outside));
    place.unmount_and_verify(server);
}

/// Makes a tree with every kind of node that an archive can hold.
fn make_tree(dir: &Path) {
    let script = "
        mkdir -p a/b/c empty; chmod 2750 a/b; chmod 1777 empty
        i=0; while [ $i -lt 200 ]; do echo \"file $i\" > a/$i; i=$((i + 1)); done
        head -c 300000 /dev/urandom > a/noise; ln a/noise a/b/noise-link; chown 12:34 a/noise
        truncate -s 5000000 a/sparse; echo middle | dd of=a/sparse bs=1 seek=3000000 conv=notrunc status=none
        ln -s nowhere a/dangling; ln -s ../noise a/b/symlink; mkfifo a/fifo; mknod a/null c 1 3
        printf x > 'a/b/c/a name with spaces'; chmod 4755 a/0; chmod 000 a/1
        touch -d '1965-03-04 05:06:07.123456789' a/2; touch -d '2101-01-01 00:00:00.5' a/3
    ";
    fs::create_dir(dir).unwrap();
    run(Command::new("sh").args(["-ec", script]).current_dir(dir));
    let any = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(dir.join("a/4"), "user.colour", b"green", any).unwrap();
}
