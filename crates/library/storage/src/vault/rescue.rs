//! Copies the content of a damaged vault to a directory of the system: by name if a name verifies,
//! otherwise by inode number.
//!
//! Nothing is written to the vault. The target is new or empty, and nothing outside of it is
//! written: every file, directory and link is created there under a name without a slash that is
//! neither `.` nor `..`, and no link is followed.

mod report;
mod target;
mod target_limit;

pub use report::{MissingPart, RescueReport};
pub use target::check_rescue_target;

use lacuna_contracts::{Error, Result, printable};
use lacuna_vault::{Attr, BLOCK, FileKind, FsError, INTEGRITY_XATTR, ROOT, Rescue, SeekTo, Time, Vault};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, makedev, mknodat};
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileTimes, OpenOptions, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use target::make_target;
use target_limit::{TargetLimit, UnkeptAttributes, reason};

/// The directory in the target for nodes without a name.
const NAMELESS: &str = "lost+found";
/// Bytes per read.
const READ_LEN: usize = 1 << 20;
/// The deepest nesting of directories.
const MAX_DEPTH: usize = 4096;

/// Copies everything that verifies to `target`, which is created, or is an empty directory.
/// `progress` gets the number of copied nodes.
///
/// Errors: [`Kind::Exists`](lacuna_contracts::Kind::Exists) if the target is not empty, and all
/// errors of the system about it.
/// Missing parts of the vault are no error, and neither are nodes that the target cannot hold: they
/// are listed as missing, unless they have a place under another name.
pub fn rescue(rescue: &Rescue, target: &Path, progress: &mut dyn FnMut(u64)) -> Result<RescueReport> {
    make_target(target)?;
    let next = rescue.next_inode();
    let seen = vec![0; (next / 64 + 1) as usize];
    let mut rescuer = Rescuer {
        rescue,
        vault: rescue.vault(),
        report: RescueReport::default(),
        seen,
        unkept: UnkeptAttributes::default(),
        progress,
        buffer: vec![0; READ_LEN],
    };
    if let Some(refusal) = rescue.refusal() {
        rescuer.report_later_commits(refusal)?;
    }
    rescuer.mark_seen(ROOT);
    rescuer.copy_tree(ROOT, target, OsStr::new(""))?;
    rescuer.copy_nameless(next, target)?;
    Ok(rescuer.report)
}

struct Rescuer<'a> {
    rescue: &'a Rescue,
    vault: &'a Vault,
    report: RescueReport,
    /// One bit per node: set if it was copied or is listed as missing.
    seen: Vec<u64>,
    unkept: UnkeptAttributes,
    progress: &'a mut dyn FnMut(u64),
    buffer: Vec<u8>,
}

/// A directory that is being copied.
struct DirectoryCopy {
    /// Its attributes, if they verify.
    attr: Option<Attr>,
    path: OsString,
    target: PathBuf,
    entries: std::vec::IntoIter<(Vec<u8>, u64, FileKind)>,
}

impl Rescuer<'_> {
    /// Reports the changes of later commits, as far as they are known.
    fn report_later_commits(&mut self, refusal: &Error) -> Result<()> {
        let (numbers, paths) = self.rescue.unreachable_changes()?;
        self.report.add("/", format!("states after the recovered one ({})", refusal.summary()));
        if let (Some(first), Some(last)) = (numbers.first(), numbers.last()) {
            for path in paths {
                self.report.add(&path, format!("the unreachable changes of states {first} to {last}"));
            }
        }
        Ok(())
    }

    /// Marks a node as handled. Returns whether it was not handled before.
    fn mark_seen(&mut self, ino: u64) -> bool {
        let Some(bits) = self.seen.get_mut((ino / 64) as usize) else { return true };
        let bit = 1 << (ino % 64);
        let is_new = *bits & bit == 0;
        *bits |= bit;
        is_new
    }

    /// Undoes [`Rescuer::mark_seen`]: the node is handled later, as one without a name.
    fn leave_for_later(&mut self, ino: u64) {
        if let Some(bits) = self.seen.get_mut((ino / 64) as usize) {
            *bits &= !(1 << (ino % 64));
        }
    }

    /// Lists a node that the target cannot hold, and returns the limit that it exceeds.
    ///
    /// Errors: any other error of the target.
    fn pass_over(&mut self, path: &OsStr, e: Error) -> Result<TargetLimit> {
        let Some(limit) = TargetLimit::of(&e) else { return Err(e) };
        let what = match limit {
            TargetLimit::Name => "its name",
            TargetLimit::Node => "all of it",
        };
        self.report.add(path, format!("{what}, which the target cannot hold ({})", reason(&e)));
        Ok(limit)
    }

    /// Copies the content of a directory that exists in the target.
    fn copy_tree(&mut self, top: u64, at: &Path, path: &OsStr) -> Result<()> {
        let mut levels = vec![self.read_directory(top, at.to_owned(), path.to_owned())];
        while let Some(level) = levels.last_mut() {
            let Some((name, ino, kind)) = level.entries.next() else {
                let DirectoryCopy { attr, path, target: at, .. } = levels.pop().expect("it is there");
                attr.map_or(Ok(()), |attr| self.copy_attributes(&attr, &at, &path))?;
                continue;
            };
            let path = path_in(&level.path, &name);
            let at = level.target.join(file_name(name, ino));
            if kind != FileKind::Directory {
                self.copy_named(ino, &at, &path)?;
            } else if levels.len() >= MAX_DEPTH || !self.mark_seen(ino) {
                self.report.add(&path, "a directory that was copied elsewhere, or is too deep");
            } else if let Err(e) = make_directory(&at) {
                if self.pass_over(&path, e)? == TargetLimit::Name {
                    self.leave_for_later(ino);
                }
            } else {
                self.report.directories += 1;
                levels.push(self.read_directory(ino, at, path));
            }
        }
        Ok(())
    }

    /// Copies a node that is not a directory to one of its names.
    fn copy_named(&mut self, ino: u64, at: &Path, path: &OsStr) -> Result<()> {
        let is_first = self.mark_seen(ino);
        if let Err(e) = self.copy_node(ino, at, path)
            && self.pass_over(path, e)? == TargetLimit::Name
            && is_first
        {
            self.leave_for_later(ino);
        }
        Ok(())
    }

    /// The entries of a directory.
    fn read_directory(&mut self, ino: u64, at: PathBuf, path: OsString) -> DirectoryCopy {
        let mut entries = Vec::new();
        let all = self.rescue.entries(ino, &mut |name, ino, kind| entries.push((name.to_vec(), ino, kind)));
        let shown = if path.is_empty() { OsStr::new("/") } else { path.as_os_str() };
        if !all {
            self.report.add(shown, "some of the names in it");
        }
        let attr = match self.vault.attr(ino) {
            Ok(attr) => Some(attr),
            Err(e) => {
                self.report.add(shown, format!("its attributes ({})", describe_error(&e)));
                None
            }
        };
        DirectoryCopy { attr, path, target: at, entries: entries.into_iter() }
    }

    /// Copies a node that is not a directory, and was marked as seen.
    fn copy_node(&mut self, ino: u64, at: &Path, path: &OsStr) -> Result<()> {
        let attr = match self.vault.attr(ino) {
            Ok(attr) => attr,
            Err(e) => {
                self.report.add(path, format!("all of it ({})", describe_error(&e)));
                return Ok(());
            }
        };
        let made = match attr.kind {
            FileKind::File => self.copy_file(&attr, at, path)?,
            FileKind::Symlink => self.copy_symlink(&attr, at, path)?,
            FileKind::Directory => {
                self.report.add(path, "a directory that is listed as another kind of file");
                false
            }
            kind => self.copy_special(kind, &attr, at, path),
        };
        if made {
            self.report.files += 1;
            self.copy_attributes(&attr, at, path)?;
        }
        (self.progress)(self.report.files + self.report.directories);
        Ok(())
    }

    fn copy_symlink(&mut self, attr: &Attr, at: &Path, path: &OsStr) -> Result<bool> {
        match self.vault.read_link(attr.ino) {
            Ok(to) => {
                let made = std::os::unix::fs::symlink(OsString::from_vec(to), at);
                made.map(|()| true).map_err(|e| cannot_make(at, &e))
            }
            Err(e) => {
                self.report.add(path, format!("its target ({})", describe_error(&e)));
                Ok(false)
            }
        }
    }

    fn copy_special(&mut self, kind: FileKind, attr: &Attr, at: &Path, path: &OsStr) -> bool {
        let is = match kind {
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharDevice => FileType::CharacterDevice,
            _ => FileType::BlockDevice,
        };
        let device = makedev(attr.rdev >> 8 & 0xfff, attr.rdev & 0xff | attr.rdev >> 12 & 0xfff00);
        let made = mknodat(CWD, at, is, Mode::from_raw_mode(0o600), device);
        if let Err(e) = made {
            self.report.add(path, format!("a special file that cannot be made here ({e})"));
        }
        made.is_ok()
    }

    /// Copies a file.
    fn copy_file(&mut self, attr: &Attr, at: &Path, path: &OsStr) -> Result<bool> {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(at);
        let file = made.map_err(|e| cannot_make(at, &e))?;
        match self.copy_content(attr, &file, at, path) {
            Err(e) if TargetLimit::of(&e).is_some() => {
                // A part of a file must not look like the whole one.
                std::fs::remove_file(at).map_err(|e| cannot_make(at, &e))?;
                Err(e)
            }
            done => done.map(|()| true),
        }
    }

    /// Copies the content of a file. Blocks that do not verify become holes.
    fn copy_content(&mut self, attr: &Attr, file: &File, at: &Path, path: &OsStr) -> Result<()> {
        let failed = |e: &std::io::Error| cannot_make(at, e);
        file.set_len(attr.size).map_err(|e| failed(&e))?;
        let (mut offset, mut most, mut bad) = (0, READ_LEN, None::<(u64, u64, String)>);
        while offset < attr.size {
            match self.vault.seek(attr.ino, offset, SeekTo::Data) {
                Ok(data) => offset = offset.max(data),
                Err(FsError::Errno(_)) => break,
                // If the data cannot be located, all of it is tried.
                Err(FsError::Storage(_)) => {}
            }
            let wanted = (attr.size - offset).min(most as u64) as usize;
            match self.vault.read(attr.ino, offset, &mut self.buffer[..wanted]) {
                Ok(0) => break,
                Ok(read) => {
                    file.write_all_at(&self.buffer[..read], offset).map_err(|e| failed(&e))?;
                    self.report.bytes += read as u64;
                    offset += read as u64;
                    most = (2 * most).min(READ_LEN);
                }
                // Any block of the piece may be the unreadable one.
                Err(_) if wanted > BLOCK => most = BLOCK,
                Err(e) => {
                    let block = offset / BLOCK as u64;
                    match &mut bad {
                        Some((_, end, _)) if *end == block => *end += 1,
                        _ => {
                            self.report_bad_run(path, bad.take());
                            bad = Some((block, block + 1, describe_error(&e)));
                        }
                    }
                    offset = (block + 1) * BLOCK as u64;
                }
            }
        }
        self.report_bad_run(path, bad);
        Ok(())
    }

    fn report_bad_run(&mut self, path: &OsStr, run: Option<(u64, u64, String)>) {
        if let Some((first, end, why)) = run {
            let blocks = if end - first == 1 {
                format!("block {first}")
            } else {
                format!("blocks {first}-{}", end - 1)
            };
            self.report.add(path, format!("{blocks} ({why})"));
        }
    }

    /// Sets the extended attributes, the times and the permissions of a copied node, without the
    /// setuid and setgid bits. Its owner is the user that runs the rescue.
    fn copy_attributes(&mut self, attr: &Attr, at: &Path, path: &OsStr) -> Result<()> {
        match self.vault.list_xattrs(attr.ino) {
            Ok(names) => {
                for name in names.into_iter().filter(|name| name != INTEGRITY_XATTR) {
                    self.copy_xattr(attr.ino, &name, at, path);
                }
            }
            Err(FsError::Errno(_)) => {}
            Err(e) => self.report.add(path, format!("its extended attributes ({})", describe_error(&e))),
        }
        if matches!(attr.kind, FileKind::File | FileKind::Directory) {
            let file = File::open(at).map_err(|e| cannot_make(at, &e))?;
            let times =
                FileTimes::new().set_accessed(system_time(attr.atime)).set_modified(system_time(attr.mtime));
            let mode = Permissions::from_mode(u32::from(attr.mode & 0o1777));
            for (attribute, set) in
                [("times", file.set_times(times)), ("permissions", file.set_permissions(mode))]
            {
                let unkept = self.unkept.note(attribute, set.map_err(|e| cannot_make(at, &e)))?;
                unkept.into_iter().for_each(|what| self.report.add(path, what));
            }
        }
        Ok(())
    }

    fn copy_xattr(&mut self, ino: u64, name: &[u8], at: &Path, path: &OsStr) {
        let shown = String::from_utf8_lossy(name).into_owned();
        let set = match self.vault.get_xattr(ino, name) {
            Ok(value) => lsetxattr(at, name, &value, XattrFlags::empty()).map_err(|e| e.to_string()),
            Err(e) => Err(describe_error(&e)),
        };
        if let Err(why) = set {
            self.report.add(path, format!("the extended attribute {shown} ({why})"));
        }
    }

    /// Copies nodes without a name: directories first, for they may contain the names of other
    /// nodes.
    fn copy_nameless(&mut self, next: u64, target: &Path) -> Result<()> {
        let mut below = None::<PathBuf>;
        for (directories, ino) in
            [true, false].into_iter().flat_map(|of| (ROOT + 1..next).map(move |ino| (of, ino)))
        {
            let path = OsString::from(format!("(inode {ino})"));
            let attr = match self.vault.attr(ino) {
                // A node without names is about to be removed.
                Ok(attr) if attr.nlink > 0 => attr,
                // It was removed.
                Ok(_) | Err(FsError::Errno(_)) => continue,
                Err(e) => {
                    if self.mark_seen(ino) {
                        self.report.add(&path, format!("all of it, if it existed ({})", describe_error(&e)));
                    }
                    continue;
                }
            };
            let is_directory = attr.kind == FileKind::Directory;
            if is_directory != directories || !self.mark_seen(ino) {
                continue;
            }
            let below = match &below {
                Some(below) => below,
                None => below.insert(make_lost_and_found(target)?),
            };
            let at = below.join(format!("inode {ino}"));
            let made = if is_directory { make_directory(&at) } else { self.copy_node(ino, &at, &path) };
            if let Err(e) = made {
                self.pass_over(&path, e)?;
                continue;
            }
            self.report.nameless += 1;
            self.report.add(&path, format!("its name; it is {}", at.display()));
            if is_directory {
                self.report.directories += 1;
                self.copy_tree(ino, &at, &path)?;
            }
        }
        Ok(())
    }
}

/// The plain path of a name in a directory of the vault.
fn path_in(directory: &OsStr, name: &[u8]) -> OsString {
    let mut path = directory.to_owned();
    path.push("/");
    path.push(OsStr::from_bytes(name));
    path
}

/// The directory for nodes without a name.
fn make_lost_and_found(target: &Path) -> Result<PathBuf> {
    let mut below = target.join(NAMELESS);
    // The vault may contain the same name.
    while below.symlink_metadata().is_ok() {
        below.as_mut_os_string().push("_");
    }
    make_directory(&below)?;
    Ok(below)
}

fn make_directory(at: &Path) -> Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(at).map_err(|e| cannot_make(at, &e))
}

/// The name of an entry in the target: its own, unless that is not a valid name.
fn file_name(name: Vec<u8>, ino: u64) -> OsString {
    let is_name = !name.is_empty()
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    if is_name { OsString::from_vec(name) } else { format!("inode {ino}").into() }
}

fn cannot_make(at: &Path, e: &std::io::Error) -> Error {
    Error::io(format!("cannot create {}", printable(&at.to_string_lossy())), e)
}

fn describe_error(e: &FsError) -> String {
    match e {
        FsError::Storage(e) => e.summary(),
        FsError::Errno(number) => std::io::Error::from_raw_os_error(*number).to_string(),
    }
}

fn system_time(time: Time) -> SystemTime {
    let (since, nanos) =
        (Duration::from_secs(time.secs.unsigned_abs()), Duration::from_nanos(time.nanos.into()));
    let whole = if time.secs < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(since)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(since)
    };
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_target() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/etc/passwd", b"a\0b"] {
            assert_eq!(file_name(name.to_vec(), 7), "inode 7");
        }
        assert_eq!(file_name(b"...".to_vec(), 7), "...");
        // A path that is not UTF-8 keeps its bytes.
        assert_eq!(path_in(OsStr::new("/a"), b"caf\xe9").as_encoded_bytes(), b"/a/caf\xe9");
        assert_eq!(file_name(b"a\nb\x1b".to_vec(), 7), "a\nb\x1b");
    }

    #[test]
    fn times_before_1970_are_kept() {
        let half = system_time(Time { secs: -1, nanos: 500_000_000 });
        assert_eq!(SystemTime::UNIX_EPOCH.duration_since(half).unwrap(), Duration::from_millis(500));
        assert_eq!(
            system_time(Time { secs: i64::MIN, nanos: 0 }),
            system_time(Time { secs: i64::MIN, nanos: 0 })
        );
    }
}
