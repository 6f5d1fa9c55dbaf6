//! The tree of small files that is unpacked: an archive of a `git` repository of text, in the shape
//! of a source tree.

use crate::program;
use crate::workspace::Workspace;
use lacuna_contracts::{Error, Result};
use lacuna_sim::Rng;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The words in the files.
const WORDS: [&str; 16] = [
    "the ", "let ", "value ", "= ", "return ", "if ", "fn ", "{\n", "}\n", "block", "(", ")", "; ", "index",
    ".", "page ",
];
/// Files in a directory.
const SIBLINGS: u64 = 20;

/// An archive of `files` files in a repository, created once per run.
pub(crate) fn archive(work: &Workspace, files: u64) -> Result<PathBuf> {
    let (tree, archive) = (work.path("tree"), work.path("tree.tar"));
    let failed = |e| Error::io("cannot make a tree of files", &e);
    let mut rng = Rng::new(18);
    for file in 0..files {
        let dir = tree.join(format!("part{}/unit{}", file / SIBLINGS / 10, file / SIBLINGS));
        if file % SIBLINGS == 0 {
            std::fs::create_dir_all(&dir).map_err(failed)?;
        }
        std::fs::write(dir.join(format!("file{file}.rs")), text(&mut rng)).map_err(failed)?;
    }
    git(&tree, &["init", "-q"])?;
    git(&tree, &["add", "."])?;
    // Without garbage collection in the background after the commit.
    let author = ["-c", "gc.auto=0", "-c", "user.name=n", "-c", "user.email=n@localhost"];
    git(&tree, &[&author[..], &["commit", "-q", "-m", "a tree"]].concat())?;
    git(&tree, &["gc", "-q"])?;
    program::output(Command::new("tar").arg("-C").arg(&tree).arg("-cf").arg(&archive).arg("."))?;
    std::fs::remove_dir_all(&tree).map_err(failed)?;
    Ok(archive)
}

/// Runs `git` in a tree, without global or system configuration.
pub(crate) fn git(tree: &Path, words: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    program::output(command.arg("-C").arg(tree).args(words))
}

/// The text of a file. Sizes are as in source trees: half of the files have less than 4 KiB, a few
/// have 60 KiB.
fn text(rng: &mut Rng) -> String {
    let size = 1usize << (8 + rng.below(9));
    let size = (size / 2 + rng.below(size as u64) as usize).min(60_000);
    let mut text = String::with_capacity(size + 16);
    while text.len() < size {
        text.push_str(WORDS[rng.below(WORDS.len() as u64) as usize]);
    }
    text
}
