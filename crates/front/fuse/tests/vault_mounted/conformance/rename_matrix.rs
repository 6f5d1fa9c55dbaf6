//! Checks of renaming every kind of node over every other, in one directory and across two:
//! replacing, refusing and exchanging.

use super::check_dir::{CheckDir, stat};
use super::{ConformanceCheck, checks};
use rustix::fs::{CWD, FileType, Mode, RenameFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    replace_in_one_directory,
    replace_across_directories,
    no_replace_in_one_directory,
    no_replace_across_directories,
    exchange_in_one_directory,
    exchange_across_directories,
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum NodeKind {
    Absent,
    File,
    EmptyDirectory,
    FullDirectory,
    Symlink,
    SymlinkToDirectory,
    Fifo,
    Socket,
}

use NodeKind::{Absent, EmptyDirectory, Fifo, File, FullDirectory, Socket, Symlink, SymlinkToDirectory};

const KINDS: [NodeKind; 8] =
    [Absent, File, EmptyDirectory, FullDirectory, Symlink, SymlinkToDirectory, Fifo, Socket];

impl NodeKind {
    fn make(self, path: &Path) {
        match self {
            Absent => {}
            File => fs::write(path, b"content").unwrap(),
            EmptyDirectory => fs::create_dir(path).unwrap(),
            FullDirectory => {
                fs::create_dir(path).unwrap();
                fs::write(path.join("inside"), b"x").unwrap();
            }
            Symlink => symlink("nowhere", path).unwrap(),
            SymlinkToDirectory => symlink(".", path).unwrap(),
            Fifo => rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0).unwrap(),
            Socket => rustix::fs::mknodat(CWD, path, FileType::Socket, Mode::RUSR, 0).unwrap(),
        }
    }

    fn is_directory(self) -> bool {
        matches!(self, EmptyDirectory | FullDirectory)
    }
}

/// The result on Linux of renaming `from` over `to`.
fn expected(from: NodeKind, to: NodeKind, flags: RenameFlags) -> Result<(), Errno> {
    if from == Absent {
        return Err(Errno::NOENT);
    }
    if flags == RenameFlags::NOREPLACE {
        return if to == Absent { Ok(()) } else { Err(Errno::EXIST) };
    }
    if flags == RenameFlags::EXCHANGE {
        return if to == Absent { Err(Errno::NOENT) } else { Ok(()) };
    }
    match (from.is_directory(), to) {
        (_, Absent) | (true, EmptyDirectory) => Ok(()),
        (true, FullDirectory) => Err(Errno::NOTEMPTY),
        (true, _) => Err(Errno::NOTDIR),
        (false, EmptyDirectory | FullDirectory) => Err(Errno::ISDIR),
        (false, _) => Ok(()),
    }
}

fn ino(path: &Path) -> Option<u64> {
    rustix::fs::lstat(path).ok().map(|stat| stat.st_ino)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn case(at: &CheckDir, from: NodeKind, to: NodeKind, flags: RenameFlags, across: bool) {
    let words = format!("{from:?} over {to:?}");
    let dir = at.dir(&words);
    let target = if across { at.dir(format!("{words}, target")) } else { dir.clone() };
    let (one, two) = (dir.join("one"), target.join("two"));
    from.make(&one);
    to.make(&two);
    let before = (ino(&one), ino(&two));
    let result = rustix::fs::renameat_with(CWD, &one, CWD, &two, flags);
    let expected = expected(from, to, flags);
    assert_eq!(result, expected, "{words}");
    let after = match (expected, flags == RenameFlags::EXCHANGE) {
        (Err(_), _) => before,
        (Ok(()), true) => (before.1, before.0),
        (Ok(()), false) => (None, before.0),
    };
    assert_eq!((ino(&one), ino(&two)), after, "{words}");
    let at_one = after.0.is_some().then(|| "one".to_owned());
    let at_two = after.1.is_some().then(|| "two".to_owned());
    if across {
        assert_eq!(
            (names(&dir), names(&target)),
            (at_one.into_iter().collect(), at_two.into_iter().collect())
        );
    } else {
        assert_eq!(names(&dir), at_one.into_iter().chain(at_two).collect::<Vec<_>>(), "{words}");
    }
    let moved = if expected.is_ok() { &two } else { &one };
    match from {
        File => assert_eq!(fs::read(moved).unwrap(), b"content", "{words}"),
        FullDirectory => assert_eq!(names(moved), ["inside"], "{words}"),
        _ => {}
    }
    if from.is_directory() && across {
        let holder = stat(moved.parent().unwrap()).st_ino;
        let up = format!("{}/..", moved.to_str().unwrap());
        assert_eq!(stat(up).st_ino, holder, "{words}: where .. leads");
    }
}

fn all(at: &CheckDir, flags: RenameFlags, across: bool) {
    for from in KINDS {
        for to in KINDS {
            case(at, from, to, flags, across);
        }
    }
}

fn replace_in_one_directory(at: &CheckDir) {
    all(at, RenameFlags::empty(), false);
}

fn replace_across_directories(at: &CheckDir) {
    all(at, RenameFlags::empty(), true);
}

fn no_replace_in_one_directory(at: &CheckDir) {
    all(at, RenameFlags::NOREPLACE, false);
}

fn no_replace_across_directories(at: &CheckDir) {
    all(at, RenameFlags::NOREPLACE, true);
}

fn exchange_in_one_directory(at: &CheckDir) {
    all(at, RenameFlags::EXCHANGE, false);
}

fn exchange_across_directories(at: &CheckDir) {
    all(at, RenameFlags::EXCHANGE, true);
}
