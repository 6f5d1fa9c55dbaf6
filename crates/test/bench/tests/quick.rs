//! A whole run with tiny sizes: every bench runs and writes its pages. The figures are not checked.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BENCH: &str = env!("CARGO_BIN_EXE_lacuna-bench");

/// The `lacuna` of the same profile, or the reason that there is none: the tests of the whole
/// workspace build it. A test that ran cargo itself would rebuild most of the workspace, with other
/// features and another environment.
fn lacuna() -> Result<PathBuf, String> {
    let path = Path::new(BENCH).with_file_name("lacuna");
    if path.is_file() { Ok(path) } else { Err(format!("{} is not there: build it first", path.display())) }
}

/// Reports a skipped test, past the capture of the test runner.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

fn run(args: &[&str], dirs: [&Path; 2], lacuna: &Path) -> Output {
    let mut bench = Command::new(BENCH);
    bench.args(args).arg("--dir").arg(dirs[0]).arg("--out").arg(dirs[1]).arg("--lacuna").arg(lacuna);
    bench.output().expect("the bench runs")
}

#[test]
fn a_quick_run_writes_the_pages_and_leaves_nothing_else() {
    let lacuna = match lacuna() {
        Ok(path) => path,
        Err(why) => return skipped(&why),
    };
    let (disks, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (page, record) = (out.path().join("benchmarks.md"), out.path().join("record"));
    std::fs::write(&page, "# Kept\n").unwrap();

    let record_words = ["--record", record.to_str().unwrap()];
    let said = succeeds(&[&["--quick"], &record_words[..]].concat(), [disks.path(), out.path()], &lacuna);
    for words in [
        "Beside other servers: speed",
        "Beside other servers: processor time",
        "Beside other servers: latency",
        "Ciphers: processor time to xts",
        "random 4 KiB read, depth 32, just started",
        "hctr2-rs",
        "1 TiB",
        "levels sparse",
        "levels hidden",
        "On a modelled stick",
        "speed with keys and without",
        "opening after a crash",
        "ext4 in sealed gcm",
        "requirements are reached",
        "minutes: disks",
    ] {
        assert!(said.contains(words), "{words} is not in:\n{said}");
    }
    let results = std::fs::read_to_string(&page).unwrap();
    let method = std::fs::read_to_string(out.path().join("benchmarks-method.md")).unwrap();
    for (text, words) in [
        (&results, "# Kept\n"),
        (&results, "### A disk over NBD: speed"),
        (&results, "### Machine of the last run"),
        (&method, "### Method for servers"),
        (&method, "### Required and measured"),
        (&method, "### History of disks over NBD"),
        (&method, "plots/peers.svg"),
    ] {
        assert!(text.contains(words), "{words} is not in:\n{text}");
    }
    drawn(out.path(), &["peers.svg", "ratio-by-size.svg"]);
    assert_eq!(std::fs::read_dir(disks.path()).unwrap().count(), 0, "files stay behind");
    on_ceph(&said, &method, out.path());

    let agree = Command::new(BENCH).arg("agree").args([&record, &record]).output().unwrap();
    assert!(agree.status.success() && String::from_utf8_lossy(&agree.stdout).contains("agree within 5 %"));
    succeeds(&["--quick", "--only", "ciphers"], [disks.path(), out.path()], &lacuna);
    assert!(
        std::fs::read_to_string(&page).unwrap().contains("### A disk over NBD: speed"),
        "other parts stay"
    );
}

#[test]
fn a_program_is_compared_with_itself() {
    let lacuna = match lacuna() {
        Ok(path) => path,
        Err(why) => return skipped(&why),
    };
    let dir = tempfile::tempdir().unwrap();
    let lacuna = lacuna.to_str().unwrap();
    let done = Command::new(BENCH)
        .args(["compare", lacuna, lacuna, "--sessions", "11", "--slices", "2", "--dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    // The verdict of eleven sessions on a busy machine is not checked, only that there is one.
    assert!(said.contains("all jobs") && said.contains("99.9 % confidence"), "{said}{done:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files stay behind");
}

/// The output of a run that must succeed.
fn succeeds(args: &[&str], dirs: [&Path; 2], lacuna: &Path) -> String {
    let done = run(args, dirs, lacuna);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Asserts that the plots exist.
fn drawn(out: &Path, plots: &[&str]) {
    for plot in plots {
        let text = std::fs::read_to_string(out.join("plots").join(plot)).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{plot}");
    }
}

/// Checks the report on Ceph, with a cluster and without one.
fn on_ceph(said: &str, text: &str, out: &Path) {
    if std::env::var_os("LACUNA_CEPH_CONF").is_none() {
        assert!(said.contains("Ceph is skipped"), "{said}");
        return skipped("the part of the bench on Ceph: LACUNA_CEPH_CONF is not set");
    }
    assert!(said.contains("On Ceph: random reads") && said.contains("xts-random adaptive"), "{said}");
    for words in ["## On Ceph", "plots/ceph-throughput.svg", "### History on Ceph"] {
        assert!(text.contains(words), "{words} is not in:\n{text}");
    }
    drawn(out, &["ceph-throughput.svg", "ceph-write-overhead.svg"]);
}

#[test]
fn without_a_lacuna_the_error_has_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let done = run(&["--quick"], [dir.path(), dir.path()], &dir.path().join("none"));
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("cargo build --release -p lacuna-cli"));
}
