//! A whole run with tiny sizes, so that the benches do not rot. The figures mean nothing and are not looked at.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BENCH: &str = env!("CARGO_BIN_EXE_lacuna-bench");

/// The `lacuna` of the same profile, or why there is none: the tests of the whole workspace build it. A test that ran cargo itself
/// would have most of the workspace built once more, with the features and environment of its own.
fn lacuna() -> Result<PathBuf, String> {
    let path = Path::new(BENCH).with_file_name("lacuna");
    if path.is_file() { Ok(path) } else { Err(format!("{} is not there: build it first", path.display())) }
}

/// Says that a test skips itself, past the capture of the test runner.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

fn fio() -> bool {
    Command::new("fio").arg("--enghelp=nbd").output().is_ok_and(|out| out.status.success())
}

fn run(args: &[&str], dirs: [&Path; 2], lacuna: &Path) -> Output {
    let mut bench = Command::new(BENCH);
    bench.args(args).arg("--dir").arg(dirs[0]).arg("--out").arg(dirs[1]).arg("--lacuna").arg(lacuna);
    bench.output().expect("the bench runs")
}

#[test]
fn a_quick_run_writes_the_report_and_leaves_nothing_else() {
    if !fio() {
        skipped("fio with its nbd engine is not installed");
        return;
    }
    let lacuna = match lacuna() {
        Ok(path) => path,
        Err(why) => return skipped(&why),
    };
    let (disks, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let page = out.path().join("benchmarks.md");
    std::fs::write(&page, "# Kept\n").unwrap();

    let done = run(&["--quick"], [disks.path(), out.path()], &lacuna);
    let (said, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{errors}");
    for words in [
        "Beside other servers",
        "lacuna xts-random kv",
        "hctr2-rs",
        "1 TiB",
        "levels sparse",
        "Table 4",
        "2 runs one after another",
        "speed with keys and without",
        "opening after a crash",
        "Assignment of keys",
        "Size of the caches",
        "Memory of the caches",
        "Locality",
        "Wear by purge period",
        "Size of a data node",
        "The claims of paper 002",
        "Trace like HOME02",
        "IsRand on uniformly random blocks",
        "ext4 in sealed gcm",
        "requirements are reached",
    ] {
        assert!(said.contains(words), "{words} is not in:\n{said}");
    }
    let text = std::fs::read_to_string(&page).unwrap();
    for words in
        ["# Kept\n", "### Method", "### Machine", "### History", "plots/peers.svg", "plots/levels-writes.svg"]
    {
        assert!(text.contains(words), "{words} is not in:\n{text}");
    }
    for plot in [
        "peers.svg",
        "ratio-by-size.svg",
        "levels-writes.svg",
        "levels-runs.svg",
        "phone-erasures.svg",
        "phone-wear.svg",
        "integrity-low.svg",
        "integrity-high.svg",
        "false-accept.svg",
    ] {
        let drawn = std::fs::read_to_string(out.path().join("plots").join(plot)).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"), "{plot}");
    }
    assert_eq!(std::fs::read_dir(disks.path()).unwrap().count(), 0, "files stay behind");
    on_ceph(&said, &text, out.path());

    let again = run(&["--quick", "--only", "hctr2"], [disks.path(), out.path()], &lacuna);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert!(String::from_utf8_lossy(&again.stdout).contains("stays as it is"));
    assert!(
        std::fs::read_to_string(&page).unwrap() == text,
        "a run of a part leaves the record of a whole one"
    );
}

/// What a run with a cluster says and draws, and what one without says.
fn on_ceph(said: &str, text: &str, out: &Path) {
    if std::env::var_os("LACUNA_CEPH_CONF").is_none() {
        assert!(said.contains("Ceph is skipped"), "{said}");
        return skipped("the part of the bench on Ceph: LACUNA_CEPH_CONF is not set");
    }
    assert!(said.contains("On Ceph: random reads") && said.contains("xts-random adaptive"), "{said}");
    for words in ["## On Ceph", "plots/ceph-throughput.svg", "### History on Ceph"] {
        assert!(text.contains(words), "{words} is not in:\n{text}");
    }
    for plot in ["ceph-throughput.svg", "ceph-write-overhead.svg"] {
        let drawn = std::fs::read_to_string(out.join("plots").join(plot)).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"), "{plot}");
    }
}

#[test]
fn without_a_lacuna_the_error_says_what_to_do() {
    if !fio() {
        skipped("fio with its nbd engine is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let done = run(&["--quick"], [dir.path(), dir.path()], &dir.path().join("none"));
    assert_eq!(done.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&done.stderr).contains("cargo build --release -p lacuna-cli"));
}
