//! Programs of others that tests drive.

use std::io::{self, Write};
use std::process::{Command, Stdio};

/// Whether a program is here and works; says on standard error if not, so that a test can skip itself. One that is here and does not
/// work, as `nbdsh` does not with a Python that lacks its module, counts as missing.
pub fn have(program: &str) -> bool {
    let why = match try_out(program) {
        Ok(None) => return true,
        Ok(Some(words)) => format!("{program} does not work here: {words}"),
        Err(_) => format!("this machine has no {program}"),
    };
    // Not eprintln, which the test runner would keep to itself.
    let _ = writeln!(io::stderr(), "skipped: {why}");
    false
}

/// What a program says that does not work; none from one that does.
fn try_out(program: &str) -> io::Result<Option<String>> {
    let ran = Command::new(program).args(probe(program)).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&ran.stderr);
    Ok((!ran.status.success()).then(|| said.lines().last().unwrap_or("nothing").to_owned()))
}

/// With what a program does next to nothing.
fn probe(program: &str) -> &'static [&'static str] {
    match program {
        "mkfs.ext4" => &["-V"],
        "nbdsh" => &["-c", "pass"],
        "openssl" => &["version"],
        _ => &["--version"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_program_that_does_not_work_is_missing() {
        assert!(have("cat") && !have("no-such-program-here"));
        let dir = std::env::temp_dir().join(format!("lacuna-program-{}", std::process::id()));
        let script = "#!/bin/sh\necho \"No module named 'nbd'\" >&2\nexit 1\n";
        std::fs::write(&dir, script).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
        let found = (have(dir.to_str().unwrap()), try_out(dir.to_str().unwrap()).unwrap());
        std::fs::remove_file(&dir).unwrap();
        assert_eq!(found, (false, Some("No module named 'nbd'".to_owned())));
    }
}
