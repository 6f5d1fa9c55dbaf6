//! Runs a reader of a format in Python. It was written only from the pages that describe the
//! format, and shares no code with lacuna.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// The output of the Python program `script` with `args`. Panics with its standard error if it
/// fails. `None`, with a message on standard error, if this machine has no python3 with the package
/// that the readers need.
pub fn python_reader(script: &Path, args: &[OsString]) -> Option<String> {
    let probe = "from cryptography.hazmat.primitives.kdf.argon2 import Argon2id";
    let able = Command::new("python3").args(["-c", probe]).output().is_ok_and(|out| out.status.success());
    if !able {
        // Not eprintln, because the test runner captures it.
        let why = b"skipped: needs python3 with the package cryptography 44 or newer\n";
        let _ = std::io::stderr().write_all(why);
        return None;
    }
    let out = Command::new("python3").arg(script).args(args).output();
    let out = out.unwrap_or_else(|e| panic!("cannot run {}: {e}", script.display()));
    assert!(out.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&out.stderr));
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}
