//! The state of a tree that two file systems must agree on.

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, Result};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{DirEntryExt, FileTypeExt};
use std::path::Path;

/// Number of bytes of a file that are read at a time.
const STEP: usize = 1 << 20;

/// FNV-1a over words of eight bytes: fast, without protection against an adversary.
pub(super) fn digest(data: &[u8]) -> u64 {
    fold(0xcbf2_9ce4_8422_2325, data)
}

/// Continues a digest.
pub(super) fn fold(start: u64, data: &[u8]) -> u64 {
    data.chunks(8).fold(start, |sum, piece| {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3).rotate_left(23)
    })
}

/// Attributes, without the size and the link count of directories, which may differ between file
/// systems.
pub(super) fn attributes(stat: &Stat) -> String {
    let own = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let (links, size) = if own { (0, 0) } else { (stat.st_nlink, stat.st_size) };
    format!("{:o} {}:{} {links} links {size} bytes", stat.st_mode, stat.st_uid, stat.st_gid)
}

/// Names and kinds of a directory's entries, in the order of names.
pub(super) fn list(path: &Path) -> Result<Vec<String>> {
    let number = |e: std::io::Error| Errno::from_raw_os_error(e.raw_os_error().unwrap_or(0));
    let mut names = vec![];
    for entry in fs::read_dir(path).map_err(number)? {
        let entry = entry.map_err(number)?;
        let kind = entry.file_type().map_err(number)?;
        let letter = match kind {
            kind if kind.is_dir() => "d",
            kind if kind.is_symlink() => "l",
            kind if kind.is_fifo() => "p",
            _ => "f",
        };
        assert!(entry.ino() != 0);
        names.push(format!("{} {letter}", entry.file_name().display()));
    }
    names.sort();
    Ok(names)
}

/// All nodes of a tree: path, attributes, extended attributes, target or digest of the content.
pub(super) fn read(top: &Path) -> Vec<String> {
    let mut nodes = vec![];
    visit(top, top, &mut nodes);
    nodes.sort();
    nodes
}

fn visit(top: &Path, path: &Path, nodes: &mut Vec<String>) {
    let stat = rustix::fs::lstat(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let content = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => format!("{:016x}", digest_of(path)),
        FileType::Symlink => format!("{:?}", rustix::fs::readlink(path, vec![]).unwrap()),
        _ => String::new(),
    };
    let name = path.strip_prefix(top).unwrap().display();
    nodes.push(format!("{name}: {} {content} {}", attributes(&stat), extended(path)));
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        for entry in fs::read_dir(path).unwrap() {
            visit(top, &entry.unwrap().path(), nodes);
        }
    }
}

fn digest_of(path: &Path) -> u64 {
    let flags = OFlags::RDONLY | OFlags::NOATIME;
    let mut file = fs::File::from(rustix::fs::open(path, flags, Mode::empty()).unwrap());
    let mut buffer = vec![0; STEP];
    let mut sum = digest(&[]);
    loop {
        let mut filled = 0;
        while filled < STEP {
            match file.read(&mut buffer[filled..]).unwrap_or_else(|e| panic!("{}: {e}", path.display())) {
                0 => break,
                read => filled += read,
            }
        }
        sum = fold(sum, &buffer[..filled]);
        if filled < STEP {
            return sum;
        }
    }
}

/// Extended attributes that the operations set.
fn extended(path: &Path) -> String {
    let mut list = vec![0; 4096];
    let len = rustix::fs::llistxattr(path, &mut list[..]).unwrap();
    let names = list[..len].split(|byte| *byte == 0).map(|name| String::from_utf8_lossy(name).into_owned());
    let ours = |name: &String| name.starts_with("user.") || name.starts_with("trusted.");
    let mut names: Vec<String> =
        names.filter(|name| ours(name) && !name.starts_with("user.lacuna.")).collect();
    names.sort();
    let mut words = vec![];
    for name in names {
        let mut value = vec![0; 4096];
        let len = rustix::fs::lgetxattr(path, name.as_str(), &mut value[..]).unwrap();
        words.push(format!("{name}={:x}", digest(&value[..len])));
    }
    words.join(" ")
}
