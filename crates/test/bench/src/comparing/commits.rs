//! Programs of commits: each is built once from the files of its commit, and kept in a directory
//! below `target/compare`.

use crate::interrupt::Interrupt;
use crate::program;
use lacuna_contracts::{Error, Kind, Result};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The root of this repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn git() -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(root());
    command
}

fn git_output(words: &[&str]) -> Result<String> {
    program::output(git().args(words)).map(|text| text.trim().to_owned())
}

/// The hash of the commit with this name.
pub(crate) fn resolve(name: &str) -> Result<String> {
    git_output(&["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]).map_err(|e| {
        Error::new(Kind::NotFound, format!("there is no commit {name}"))
            .found(e.to_string())
            .hint("give a commit of this repository, or the path of a lacuna program")
    })
}

/// Creates a commit on top of another, with some files changed. No branch contains it, so git
/// collects it in time.
pub(crate) fn commit_onto(commit: &str, subject: &str, files: &[(&str, &str)]) -> Result<String> {
    let index = root().join("target/compare/index");
    let failed = |e| Error::io("cannot make a commit", &e);
    std::fs::create_dir_all(index.with_file_name("")).map_err(failed)?;
    let with_index = |words: &[&str]| {
        program::output(git().args(words).env("GIT_INDEX_FILE", &index)).map(|text| text.trim().to_owned())
    };
    with_index(&["read-tree", commit])?;
    for (path, content) in files {
        let mut hash = git();
        hash.args(["hash-object", "-w", "--stdin"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut hash = hash.spawn().map_err(failed)?;
        hash.stdin.take().map_or(Ok(()), |mut input| input.write_all(content.as_bytes())).map_err(failed)?;
        let blob = hash.wait_with_output().map_err(failed)?;
        let blob = String::from_utf8_lossy(&blob.stdout).trim().to_owned();
        with_index(&["update-index", "--add", "--cacheinfo", &format!("100644,{blob},{path}")])?;
    }
    let tree = with_index(&["write-tree"])?;
    let author = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
    git_output(&[&author[..], &["commit-tree", &tree, "-p", commit, "-m", subject]].concat())
}

/// The contents of a file in a commit.
pub(crate) fn file_of(commit: &str, path: &str) -> Result<String> {
    program::output(git().arg("show").arg(format!("{commit}:{path}")))
}

/// The program of a commit. Commits with the same files share it.
pub(crate) fn build_program(commit: &str, interrupt: &Interrupt) -> Result<PathBuf> {
    let files = git_output(&["rev-parse", &format!("{commit}^{{tree}}")])?;
    let home = root().join("target/compare");
    let compiler = program::output(Command::new("rustc").arg("-V"))?;
    let compiler = compiler.split_whitespace().nth(1).unwrap_or("unknown").to_owned();
    let (kept, tree) = (home.join(format!("lacuna-{files}-{compiler}")), home.join("tree"));
    if kept.is_file() {
        return Ok(kept);
    }
    interrupt.check()?;
    eprintln!("building {}", &commit[..commit.len().min(12)]);
    let failed = |e| Error::io(format!("cannot build commit {commit}"), &e);
    if tree.exists() {
        std::fs::remove_dir_all(&tree).map_err(failed)?;
    }
    std::fs::create_dir_all(&tree).map_err(failed)?;
    let archive = home.join("tree.tar");
    program::output(git().args(["archive", "--format=tar", "-o"]).arg(&archive).arg(commit))?;
    // `-m` sets the times of the files to now: cargo rebuilds files that are newer than its last
    // build.
    program::output(Command::new("tar").arg("-C").arg(&tree).arg("-xmf").arg(&archive))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--release", "-p", "lacuna-cli"]).current_dir(&tree);
    program::output(build.env("CARGO_TARGET_DIR", home.join("build")))?;
    // Copy under another name first, so that a partial copy is never used.
    let copied = home.join("lacuna.new");
    std::fs::copy(home.join("build/release/lacuna"), &copied)
        .and_then(|_| std::fs::rename(&copied, &kept))
        .and_then(|()| std::fs::remove_file(&archive))
        .and_then(|()| std::fs::remove_dir_all(&tree))
        .map_err(failed)?;
    Ok(kept)
}
