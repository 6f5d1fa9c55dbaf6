//! Other programs: their presence and versions, and the path of the measured `lacuna`.

use lacuna_contracts::{Error, Kind, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a program and returns its standard output. Errors: if it cannot run or fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::io(format!("cannot run {name}"), &e).hint("install it"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&done.stderr);
    Err(Error::new(Kind::Other, format!("{name} failed"))
        .found(format!("{}: {}", done.status, stderr.trim()))
        .expected("exit code 0"))
}

/// The first line of the output of `name --version`; `None` if it does not run.
pub(crate) fn version(name: &str) -> Option<String> {
    let text = output(Command::new(name).arg("--version")).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

/// Whether this program runs successfully with these arguments.
pub(crate) fn is_runnable(name: &str, args: &[&str]) -> bool {
    output(Command::new(name).args(args)).is_ok()
}

/// The path of the measured `lacuna`: the given one, or a new build with the profile of this
/// program, or, outside Cargo, the one beside this program.
pub(crate) fn lacuna(given: Option<&Path>) -> Result<PathBuf> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => sibling_program()?,
    };
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::new(Kind::NotFound, "no lacuna to measure")
        .found(format!("nothing at {}", path.display()))
        .hint("build it with `cargo build --release -p lacuna-cli`, or give --lacuna PATH"))
}

fn sibling_program() -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(|e| Error::io("cannot find this program", &e))?;
    let dir = own.parent().unwrap_or(Path::new("."));
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "-p", "lacuna-cli"]);
        // `cargo run` describes this package in the environment. Build programs of libraries that
        // read these variables would run again, and their libraries would be built again.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                build.env_remove(&name);
            }
        }
        if dir.ends_with("release") {
            build.arg("--release");
        }
        // Cargo shows the progress of a build, which may take minutes.
        let built = build.status().map_err(|e| Error::io("cannot run cargo", &e))?;
        if !built.success() {
            return Err(Error::new(Kind::Other, "cannot build lacuna").found(built.to_string()));
        }
    }
    Ok(dir.join("lacuna"))
}
