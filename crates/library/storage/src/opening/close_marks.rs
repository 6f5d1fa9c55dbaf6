//! Marks of disks in files that were closed well. While the mark of a file is valid, the pages of
//! the file that the system has cached are those of the medium, so the next opening may keep them.
//!
//! A mark is a small file in a directory that only this user can change. It names the boot, the
//! state of the disk's file, which every write by any program changes, and the UUID of the disk. No
//! byte of it is on the medium: writing it there would change the state.
//!
//! Invariants:
//! - A mark is made only if the disk was closed without an error, after a sync of all its writes,
//!   and only if no sync of the medium failed while the disk was open.
//! - An opening for writing removes the mark before anything is written. So a server that died, or
//!   that is started again by its keeper, leaves and finds none.
//! - A closing removes the marks that are superfluous, so that few stay of files that do not exist
//!   any more: a mark does not tell the path of its file.
//! - Without a valid mark everything is read from the medium. A wrong mark, which only this user
//!   and root could make, keeps cached pages and does nothing else.

use lacuna_contracts::Result;
use lacuna_header::{HEADER_AREA, Uuid, copy_c};
use lacuna_medium::{FileStamp, Medium};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::cmp::Reverse;
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The kernel's file with the boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// No mark is longer, in bytes.
const MOST_BYTES: u64 = 1024;
/// The number of marks that stay. With more disks, the disks that were closed first are read anew.
const MOST_MARKS: usize = 64;
/// The age at which a mark is removed, in seconds: few pages stay cached for thirty days.
const MOST_AGE: i64 = 30 * 24 * 3600;
/// The permission bits of a directory that other users can change.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The directory with the marks of a user.
#[derive(Debug)]
pub struct CloseMarks {
    dir: PathBuf,
    boot: String,
}

impl CloseMarks {
    /// The marks in a directory, which is made with the first mark. It should not outlive the boot.
    /// If other users can change it, it has no valid mark and gets none. `None` on a system that
    /// does not name its boot.
    pub fn in_dir(dir: PathBuf) -> Option<CloseMarks> {
        let boot = std::fs::read_to_string(BOOT_ID).ok()?;
        Some(CloseMarks { dir, boot: boot.trim().to_owned() })
    }

    /// The name of the mark of a file.
    fn name(stamp: &FileStamp) -> String {
        format!("{:x}-{:x}", stamp.device, stamp.inode)
    }

    /// The mark of a file in this state, up to the UUID of the disk.
    fn state(&self, stamp: &FileStamp) -> String {
        let FileStamp { device, inode, len, changed: (seconds, nanoseconds) } = stamp;
        format!(
            "lacuna closed 1\nboot {}\ndevice {device}\ninode {inode}\nlength {len}\nchanged {seconds}.{nanoseconds:09}\n",
            self.boot
        )
    }

    /// The whole mark.
    fn text(&self, stamp: &FileStamp, uuid: Uuid) -> String {
        format!("{}disk {uuid}\n", self.state(stamp))
    }

    /// The directory. Errors: [`ErrorKind::PermissionDenied`] if other users can change it.
    fn open_dir(&self) -> std::io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = File::from(openat(CWD, &self.dir, flags, Mode::empty())?);
        let about = dir.metadata()?;
        let is_own = about.uid() == geteuid().as_raw() && about.mode() & WRITABLE_BY_OTHERS == 0;
        if is_own { Ok(dir) } else { Err(ErrorKind::PermissionDenied.into()) }
    }

    fn read(&self, stamp: &FileStamp) -> std::io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mark = File::from(openat(self.open_dir()?, Self::name(stamp), flags, Mode::empty())?);
        let mut bytes = Vec::new();
        mark.take(MOST_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Whether a disk in a file of this state was closed well. A mark that cannot be read is not
    /// valid, for whatever reason.
    pub(crate) fn has_any(&self, stamp: &FileStamp) -> bool {
        self.read(stamp).is_ok_and(|mark| mark.starts_with(self.state(stamp).as_bytes()))
    }

    /// Whether this disk, in a file of this state, was closed well.
    fn has(&self, stamp: &FileStamp, uuid: Uuid) -> bool {
        self.read(stamp).is_ok_and(|mark| mark == self.text(stamp, uuid).as_bytes())
    }

    /// The same, and removes the mark of the file. A mark that stays is not valid either.
    fn take(&self, stamp: &FileStamp, uuid: Uuid) -> bool {
        let had = self.has(stamp, uuid);
        let removed = self.open_dir().and_then(|dir| {
            unlinkat(dir, Self::name(stamp), AtFlags::empty())?;
            Ok(())
        });
        had && removed.is_ok()
    }

    /// Marks the file as that of a disk that was closed well.
    fn set(&self, stamp: &FileStamp, uuid: Uuid) -> std::io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let dir = self.open_dir()?;
        let (name, new) = (Self::name(stamp), format!("{}.new", Self::name(stamp)));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut mark = File::from(openat(&dir, &new, flags, Mode::RUSR | Mode::WUSR)?);
        mark.write_all(self.text(stamp, uuid).as_bytes())?;
        renameat(&dir, &new, &dir, &name)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs().cast_signed());
        prune(&dir, now - MOST_AGE)
    }
}

/// Removes superfluous marks: marks that were made before `oldest`, in seconds since 1970, and all
/// marks except the [`MOST_MARKS`] newest ones.
fn prune(dir: &File, oldest: i64) -> std::io::Result<()> {
    let mut marks = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_bytes().starts_with(b".") {
            continue;
        }
        match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) => marks.push((about.st_mtime, name.to_owned())),
            // An opening has taken it.
            Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
    marks.sort_by_key(|(made, _)| Reverse(*made));
    for (at, (made, name)) in marks.iter().enumerate() {
        if at < MOST_MARKS && *made >= oldest {
            continue;
        }
        match unlinkat(dir, name.as_c_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Makes the header of a held medium be read from the medium. Everything else is read from there
/// too, unless a mark says that the disk was closed well.
pub(crate) fn forget_cached_header(medium: &dyn Medium, marks: Option<&CloseMarks>) -> Result<()> {
    if let Some(marks) = marks
        && let Some(stamp) = medium.stamp()?
        && marks.has_any(&stamp)
    {
        let last = copy_c(medium.len()).unwrap_or(HEADER_AREA);
        return medium.forget_cached_outside(HEADER_AREA..last);
    }
    medium.forget_cached()
}

/// The mark of one disk that this process holds.
pub(crate) struct CloseMark {
    pub(crate) marks: Arc<CloseMarks>,
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) uuid: Uuid,
}

impl CloseMark {
    /// Whether the disk was closed well and not changed since. An opening for writing removes the
    /// mark.
    ///
    /// Errors: the medium cannot be looked at.
    pub(crate) fn consume(&self, read_only: bool) -> Result<bool> {
        let Some(stamp) = self.medium.stamp()? else { return Ok(false) };
        Ok(if read_only { self.marks.has(&stamp, self.uuid) } else { self.marks.take(&stamp, self.uuid) })
    }

    /// Makes the mark. The disk was closed without an error.
    ///
    /// Errors: a failed sync of the medium.
    pub(crate) fn make(&self) -> Result<()> {
        if let Some(stamp) = self.medium.settled_stamp()? {
            // Without a mark the next opening reads everything from the medium.
            let _unmarked = self.marks.set(&stamp, self.uuid);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::Duration;

    const UUID: Uuid = Uuid([7; 16]);
    const STAMP: FileStamp = FileStamp { device: 26, inode: 300, len: 1 << 30, changed: (1_800_000_000, 5) };

    #[test]
    fn a_mark_is_valid_for_one_state_of_one_file_of_one_disk_in_one_boot() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("closed");
        let marks = |boot: &str| CloseMarks { dir: dir.clone(), boot: boot.into() };
        let now = marks("a");
        assert!(!now.has_any(&STAMP) && !now.take(&STAMP, UUID));
        now.set(&STAMP, UUID).unwrap();
        assert!(now.has_any(&STAMP) && now.has(&STAMP, UUID));
        assert!(!marks("b").has_any(&STAMP) && !marks("b").has(&STAMP, UUID));
        assert!(!now.has(&STAMP, Uuid([8; 16])));
        for other in [
            FileStamp { device: 27, ..STAMP },
            FileStamp { inode: 301, ..STAMP },
            FileStamp { len: 1 << 31, ..STAMP },
            FileStamp { changed: (1_800_000_000, 50), ..STAMP },
            FileStamp { changed: (1_800_000_001, 5), ..STAMP },
        ] {
            assert!(!now.has_any(&other) && !now.has(&other, UUID), "{other:?}");
            // A mark under the name of another file is none of that file.
            fs::write(dir.join(CloseMarks::name(&other)), now.text(&STAMP, UUID)).unwrap();
            assert!(!now.has_any(&other), "{other:?}");
        }
        // Taken once.
        assert!(now.take(&STAMP, UUID));
        assert!(!now.has_any(&STAMP) && !now.take(&STAMP, UUID));
        // An opening of the changed file removes the mark too.
        now.set(&STAMP, UUID).unwrap();
        assert!(!now.take(&FileStamp { len: 1, ..STAMP }, UUID));
        assert!(!now.has_any(&STAMP));
    }

    #[test]
    fn a_directory_of_others_has_no_marks() {
        let base = tempfile::tempdir().unwrap();
        let (dir, link) = (base.path().join("closed"), base.path().join("link"));
        let marks = |dir: &PathBuf| CloseMarks { dir: dir.clone(), boot: "a".into() };
        marks(&dir).set(&STAMP, UUID).unwrap();
        symlink(&dir, &link).unwrap();
        assert!(marks(&dir).has_any(&STAMP) && !marks(&link).has_any(&STAMP));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!marks(&dir).has_any(&STAMP) && !marks(&dir).take(&STAMP, UUID));
        assert!(marks(&dir).set(&STAMP, UUID).is_err());
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        // A link in the place of a mark is not followed, and a longer file is no mark.
        let mark = dir.join(CloseMarks::name(&STAMP));
        fs::rename(&mark, base.path().join("elsewhere")).unwrap();
        symlink(base.path().join("elsewhere"), &mark).unwrap();
        assert!(!marks(&dir).has_any(&STAMP));
        fs::remove_file(&mark).unwrap();
        fs::write(&mark, [b' '; 1 << 16]).unwrap();
        assert!(!marks(&dir).has_any(&STAMP));
    }

    #[test]
    fn a_closing_removes_marks_that_are_old_and_the_oldest_of_many() {
        let base = tempfile::tempdir().unwrap();
        let marks = CloseMarks { dir: base.path().to_owned(), boot: "a".into() };
        let stamp = |inode| FileStamp { inode, ..STAMP };
        let set_age = |inode, seconds| {
            let mark = File::options().write(true).open(base.path().join(CloseMarks::name(&stamp(inode))));
            mark.unwrap().set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        let all = MOST_MARKS as u64 + 5;
        for inode in 0..all {
            marks.set(&stamp(inode), UUID).unwrap();
            set_age(inode, 10 * (all - inode));
        }
        marks.set(&stamp(all), UUID).unwrap();
        let has = |inode| marks.has_any(&stamp(inode));
        let first = all + 1 - MOST_MARKS as u64;
        assert!((0..first).all(|inode| !has(inode)) && (first..=all).all(has));
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), MOST_MARKS);
        set_age(all, MOST_AGE as u64 + 100);
        set_age(first, MOST_AGE as u64 - 100);
        marks.set(&stamp(first + 1), UUID).unwrap();
        assert!(!has(all) && (first..all).all(has));
    }

    #[test]
    fn this_system_names_its_boot() {
        let marks = CloseMarks::in_dir(PathBuf::from("/none")).unwrap();
        assert!(marks.boot.len() > 30 && !marks.boot.contains('\n'));
        assert!(!marks.has_any(&STAMP));
    }
}
