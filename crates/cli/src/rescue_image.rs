//! What `rescue` writes: the image, and beside it the map.
//!
//! Invariants: no symbolic link is followed and no other kind of file opened, nothing but a file that this command made, or may overwrite,
//! is written, and never the disk itself. What is not rescued reads as zeros.

use crate::place::Place;
use crate::rescue_map::{Area, MapFile};
use lacuna::{Advice, BLOCK_SIZE, Error, Kind, Result, Setting};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An image that is being written.
pub(crate) struct Image {
    file: File,
    path: PathBuf,
    map: MapFile,
    map_path: PathBuf,
    /// Bytes so far.
    end: u64,
}

/// Where the map of an image is.
pub(crate) fn map_path(target: &Path) -> PathBuf {
    let mut name = OsString::from(target);
    name.push(".map");
    PathBuf::from(name)
}

/// Refuses a target that is in the way, before a passphrase is asked for.
///
/// Errors: [`Kind::Usage`] for what exists and may not be overwritten.
pub(crate) fn check(target: &Path, force: bool) -> Result<()> {
    [target.to_owned(), map_path(target)].iter().try_for_each(|path| match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::io(format!("cannot look at {}", path.display()), &e)),
        Ok(about) if !about.is_file() => Err(no_file(path, about.is_symlink())),
        Ok(_) if !force => Err(exists(path)),
        Ok(_) => Ok(()),
    })
}

impl Image {
    /// Makes an image of `len` bytes of which nothing is there yet, and its map. `source`: the file or device of the disk.
    ///
    /// Errors: those of [`check`], [`Kind::Busy`] for a file that another program holds, and what the system reports.
    pub(crate) fn create(target: &Path, force: bool, source: Place, len: u64) -> Result<Image> {
        check(target, force)?;
        let map_path = map_path(target);
        let file = empty_file(target, force, source)?;
        let map = empty_file(&map_path, force, source)?;
        file.set_len(len).map_err(|e| failed(target, &e))?;
        let map = MapFile::begin(map).map_err(|e| failed(&map_path, &e))?;
        Ok(Image { file, path: target.to_owned(), map, map_path, end: 0 })
    }

    /// Puts the next blocks, which were read. Zeros take no space.
    pub(crate) fn rescued(&mut self, content: &[u8]) -> Result<()> {
        let mut from = None;
        for (at, block) in
            content.chunks(BLOCK_SIZE).enumerate().map(|(nth, block)| (nth * BLOCK_SIZE, block))
        {
            match (from, block.iter().all(|byte| *byte == 0)) {
                (None, false) => from = Some(at),
                (Some(start), true) => {
                    self.write(&content[start..at], start)?;
                    from = None;
                }
                _ => {}
            }
        }
        if let Some(start) = from {
            self.write(&content[start..], start)?;
        }
        self.add(content.len() as u64, Area::Rescued)
    }

    /// The next blocks were never written: they are zeros.
    pub(crate) fn unwritten(&mut self, blocks: u64) -> Result<()> {
        self.add(blocks * BLOCK_SIZE as u64, Area::Rescued)
    }

    /// The next block is lost.
    pub(crate) fn lost(&mut self) -> Result<()> {
        self.add(BLOCK_SIZE as u64, Area::Lost)
    }

    /// Makes it all durable.
    pub(crate) fn finish(self) -> Result<()> {
        self.file.sync_all().map_err(|e| failed(&self.path, &e))?;
        self.map.finish().map_err(|e| failed(&self.map_path, &e))
    }

    fn write(&self, data: &[u8], within: usize) -> Result<()> {
        self.file.write_all_at(data, self.end + within as u64).map_err(|e| failed(&self.path, &e))
    }

    fn add(&mut self, size: u64, became: Area) -> Result<()> {
        self.end += size;
        self.map.add(size, became).map_err(|e| failed(&self.map_path, &e))
    }
}

/// An empty file that only its owner reads, unless an existing one is overwritten that others could read.
fn empty_file(path: &Path, force: bool, source: Place) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    if force {
        options.create(true)
    } else {
        options.create_new(true)
    };
    // A pipe that came there meanwhile is not waited for.
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let file = options.open(path).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => exists(path),
        _ if e.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => no_file(path, true),
        _ => failed(path, &e),
    })?;
    let about = file.metadata().map_err(|e| failed(path, &e))?;
    if !about.is_file() {
        return Err(no_file(path, false));
    }
    if Place::told(&about) == source {
        return Err(refused(path).found("the disk that is to be rescued").expected("another file"));
    }
    if about.nlink() > 1 {
        return Err(refused(path)
            .found(format!("a file with {} names (hard links)", about.nlink()))
            .expected("a file that no other name leads to")
            .remedy("choose a path where nothing exists"));
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(refused(path)
                .with_kind(Kind::Busy)
                .found("it is in use by another process: it may be a disk that is open")
                .remedy("choose another path"));
        }
        Err(TryLockError::Error(e)) => return Err(failed(path, &e)),
    }
    // Only now: what was there may not be overwritten before.
    file.set_len(0).map_err(|e| failed(path, &e))?;
    Ok(file)
}

fn refused(path: &Path) -> Error {
    Error::new(Kind::Usage, format!("cannot write to {}", path.display()))
}

fn exists(path: &Path) -> Error {
    refused(path)
        .found("a file that exists already")
        .expected("a path where nothing exists")
        .remedy(Advice::from("choose another path, or overwrite it with ").setting(Setting::Force))
}

fn no_file(path: &Path, link: bool) -> Error {
    refused(path)
        .found(if link { "a symbolic link" } else { "something that is no file" })
        .expected("a path where nothing exists")
        .remedy("choose another path")
}

fn failed(path: &Path, e: &std::io::Error) -> Error {
    let error = Error::io(format!("cannot write to {}", path.display()), e);
    if error.kind() != Kind::NoSpace {
        return error;
    }
    error.remedy(
        "free space there, or choose another place: the image takes as much as is written on the disk",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = BLOCK_SIZE;

    #[test]
    fn an_image_holds_what_was_rescued_and_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("image");
        let content: Vec<u8> = [vec![1; BLOCK], vec![0; 2 * BLOCK], vec![2; BLOCK]].concat();
        let mut image = Image::create(&target, false, Place::Elsewhere, 9 * BLOCK as u64).unwrap();
        image.rescued(&content).unwrap();
        image.lost().unwrap();
        image.unwritten(3).unwrap();
        image.rescued(&[3; BLOCK]).unwrap();
        image.finish().unwrap();
        let expected = [content, vec![0; 4 * BLOCK], vec![3; BLOCK]].concat();
        assert!(std::fs::read(&target).unwrap() == expected);
        let about = std::fs::metadata(&target).unwrap();
        assert!(about.blocks() * 512 <= 4 * BLOCK as u64, "{} bytes are taken", about.blocks() * 512);
        assert_eq!(about.mode() & 0o777, 0o600);
        let map = std::fs::read_to_string(map_path(&target)).unwrap();
        assert!(map.contains("0x0000004000  0x0000001000  -\n0x0000005000  0x0000004000  +\n"), "{map}");
    }

    #[test]
    fn nothing_but_a_file_of_its_own_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let create = |name: &str, force| Image::create(&at(name), force, Place::Elsewhere, 4096).map(|_| ());
        let kind = |name: &str, force| create(name, force).map_err(|e| e.kind());
        std::fs::write(at("there"), "mine").unwrap();
        std::os::unix::fs::symlink(at("there"), at("link")).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        assert_eq!(kind("there", false), Err(Kind::Usage));
        for name in ["link", "dir"] {
            assert_eq!(kind(name, true), Err(Kind::Usage), "{name}");
        }
        // Nor by way of the map.
        std::os::unix::fs::symlink(at("there"), at("image.map")).unwrap();
        assert_eq!(kind("image", true), Err(Kind::Usage));
        assert!(!at("image").exists());
        std::fs::hard_link(at("there"), at("second")).unwrap();
        assert_eq!(kind("second", true), Err(Kind::Usage));
        assert_eq!(std::fs::read(at("there")).unwrap(), b"mine");
        std::fs::remove_file(at("second")).unwrap();
        // The disk itself, and a file that another program holds.
        let disk = Place::told(&std::fs::metadata(at("there")).unwrap());
        assert_eq!(Image::create(&at("there"), true, disk, 4096).err().unwrap().kind(), Kind::Usage);
        let held = File::open(at("there")).unwrap();
        held.lock_shared().unwrap();
        assert_eq!(kind("there", true), Err(Kind::Busy));
        drop(held);
        assert_eq!(std::fs::read(at("there")).unwrap(), b"mine");
        create("there", true).unwrap();
        assert_eq!(std::fs::read(at("there")).unwrap(), [0; 4096]);
    }
}
