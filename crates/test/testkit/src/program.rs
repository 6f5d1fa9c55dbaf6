//! Finds external programs that tests use, and reports tests that are skipped.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// The result for each program that was asked for: the reason why it cannot be used, or `None`.
static RESULTS: Mutex<BTreeMap<String, Option<String>>> = Mutex::new(BTreeMap::new());

/// Whether a program exists and works. If not, prints the reason on standard error, and the test
/// can skip itself. A program that exists but does not work, such as `nbdsh` with a Python that
/// lacks its module, counts as missing. Each program is tried once per process.
pub fn is_program_available(program: &str) -> bool {
    let mut tried = RESULTS.lock().unwrap_or_else(PoisonError::into_inner);
    let why = tried.entry(program.to_owned()).or_insert_with(|| unavailable_reason(program));
    let Some(why) = why else { return true };
    skipped(why);
    false
}

/// Reports a skipped test, past the output capture of the test runner.
pub fn skipped(why: &str) {
    // Not eprintln, because the test runner captures it.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Ends a test that this machine cannot run. The expression is a requirement on the machine. If it
/// is false, the macro prints the reason; without a reason the expression itself has printed it.
#[macro_export]
macro_rules! skip_unless {
    ($can_run:expr) => {
        if !$can_run {
            return;
        }
    };
    ($can_run:expr, $why:expr) => {
        if !$can_run {
            return $crate::skipped($why);
        }
    };
}

/// The reason why a program cannot be used; `None` if it can.
fn unavailable_reason(program: &str) -> Option<String> {
    let mut why = None;
    for words in probes(program) {
        match Command::new(program).args(*words).stdin(Stdio::null()).output() {
            Ok(ran) if ran.status.success() => return None,
            Ok(ran) => {
                let stderr = String::from_utf8_lossy(&ran.stderr);
                let said = stderr.lines().last().unwrap_or("no error output");
                why.get_or_insert(format!("{program} does not work here: {said}"));
            }
            Err(e) => return Some(format!("this machine has no {program} that can be run ({e})")),
        }
    }
    why
}

/// Argument lists for a trivial run of a program that fails if it lacks a dependency. One success
/// is enough.
fn probes(program: &str) -> &'static [&'static [&'static str]] {
    match program {
        "nbdsh" => &[&["-c", "import nbd"]],
        "openssl" => &[&["version"]],
        "python3" => &[&["-c", "import fcntl, json, mmap, os, struct"]],
        // strace is useless if processes may not be traced.
        "strace" => &[&["-o", "/dev/null", "true"]],
        _ => &[&["--version"], &["-V"]],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Creates a program that runs `script`.
    fn program(dir: &std::path::Path, name: &str, script: &str) -> String {
        let path = dir.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_program_that_does_not_work_is_missing() {
        let dir = std::env::temp_dir().join(format!("lacuna-program-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let broken = program(&dir, "broken", "echo \"No module named 'nbd'\" >&2; exit 1");
        let short = program(&dir, "short", "[ \"$1\" = -V ]");
        let counting = program(&dir, "counting", "echo >> \"$0.runs\"");
        let found = (
            is_program_available(&broken),
            unavailable_reason(&broken),
            is_program_available(&short),
            is_program_available(&counting),
            is_program_available(&counting),
        );
        let runs = std::fs::read(format!("{counting}.runs")).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let words = format!("{broken} does not work here: No module named 'nbd'");
        assert_eq!(found, (false, Some(words), true, true, true));
        assert_eq!(runs.len(), 1, "it was tried more than once");
        assert!(is_program_available("cat") && !is_program_available("no-such-program-here"));
    }

    /// Programs with uncommon version options are found.
    #[test]
    fn programs_that_work_are_not_taken_for_missing() {
        for (name, words) in
            [("mke2fs", "-V"), ("mkfs.ext4", "-V"), ("openssl", "version"), ("cmp", "--version")]
        {
            let works = Command::new(name).arg(words).stdin(Stdio::null()).output();
            if works.is_ok_and(|ran| ran.status.success()) {
                assert!(is_program_available(name), "{name}");
            }
        }
    }
}
