//! The output of `rescue`: the image, and its map beside it. A run continues an earlier one.
//!
//! Invariants: only regular files are opened, symbolic links are not followed; only a file that
//! this command made or may overwrite is written, and never the disk itself. Blocks that are not
//! rescued read as zeros. Every area that a map lists as rescued was durable in the image before
//! the map listed it. A second run therefore writes a map of its own, which replaces the first when
//! every block was tried. After a crash of that run the next one completes this map with the areas
//! of the first map, replaces the first, and then begins.

use crate::verbs::rescue::areas::{MapReader, OF_LATER_RUN, RescueAreas, is_torn};
use crate::verbs::rescue::map::{AreaStatus, MapFile, RescuedDisk};
use lacuna_daemon::FileIdentity;
use lacuna_storage::{BLOCK_SIZE, Error, Hint, Kind, Result, Setting};
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An image that is being written.
pub(crate) struct RescueImage {
    file: File,
    path: PathBuf,
    /// The areas according to earlier runs.
    areas: RescueAreas,
    map: MapFile,
    map_path: PathBuf,
    /// Whether the map replaces an earlier one when it is complete.
    replaces: bool,
    /// Bytes so far.
    end: u64,
}

/// The path of an image's map.
pub(crate) fn map_path(target: &Path) -> PathBuf {
    let mut name = OsString::from(target);
    name.push(".map");
    PathBuf::from(name)
}

/// The path of the map of a continued run, until that map is complete.
fn new_map_path(target: &Path) -> PathBuf {
    let mut name = OsString::from(map_path(target));
    name.push(".");
    name.push(OF_LATER_RUN);
    PathBuf::from(name)
}

/// Whether there is an image with its map, so that the run continues. Refuses an unsuitable target
/// before a passphrase is asked for.
///
/// Errors: [`Kind::Usage`] for existing files that may not be overwritten.
pub(crate) fn check(target: &Path, force: bool) -> Result<bool> {
    let paths = [target.to_owned(), map_path(target), new_map_path(target)];
    let mut found = Vec::new();
    for path in &paths {
        if is_there(path)? {
            found.push(path);
        }
    }
    match found[..] {
        [image, map, ..] if !force && *image == paths[0] && *map == paths[1] => Ok(true),
        [other, ..] if !force => Err(exists(other)),
        _ => Ok(false),
    }
}

/// Whether a file exists. Errors: [`Kind::Usage`] for anything other than a file.
fn is_there(path: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io(format!("cannot look at {}", path.display()), &e)),
        Ok(about) if !about.is_file() => Err(no_file(path, about.is_symlink())),
        Ok(_) => Ok(true),
    }
}

impl RescueImage {
    /// Opens an image and its map: new ones, or those of an earlier run. `source`: the file or
    /// device of the disk.
    ///
    /// Errors: those of [`check`], [`Kind::Busy`] for a file that another program has locked,
    /// [`Kind::Usage`] for a map of another disk or image, and errors of the system.
    pub(crate) fn open(
        target: &Path,
        force: bool,
        source: FileIdentity,
        of: &RescuedDisk,
    ) -> Result<RescueImage> {
        if check(target, force)? {
            RescueImage::resume(target, source, of)
        } else {
            RescueImage::create(target, force, source, of)
        }
    }

    fn create(target: &Path, force: bool, source: FileIdentity, of: &RescuedDisk) -> Result<RescueImage> {
        let (map_path, newer) = (map_path(target), new_map_path(target));
        if is_there(&newer)? {
            // Refuses the disk itself, and a locked file.
            existing_file(&newer, source)?;
        }
        let file = empty_file(target, force, source)?;
        let map = empty_file(&map_path, force, source)?;
        // The old map is emptied durably before the image gets its length: no old area may count as
        // rescued in the new image.
        map.sync_all().map_err(|e| failed(&map_path, &e))?;
        // This map described the old image.
        remove(&newer)?;
        file.set_len(of.len).map_err(|e| failed(target, &e))?;
        let about = file.metadata().map_err(|e| failed(target, &e))?;
        let map = MapFile::begin(map, &of.lines(&about)).map_err(|e| failed(&map_path, &e))?;
        let areas = RescueAreas::of(None, of.len);
        Ok(RescueImage { file, path: target.to_owned(), areas, map, map_path, replaces: false, end: 0 })
    }

    fn resume(target: &Path, source: FileIdentity, of: &RescuedDisk) -> Result<RescueImage> {
        let (map_path, newer) = (map_path(target), new_map_path(target));
        let file = existing_file(target, source)?;
        let about = file.metadata().map_err(|e| failed(target, &e))?;
        if about.len() != of.len {
            return Err(refused(target)
                .found(format!("an image of {} bytes", about.len()))
                .expected(format!("one of {} bytes, as long as the rescued disk", of.len))
                .hint(force_hint()));
        }
        let lines = of.lines(&about);
        let mut known = MapReader::of(existing_file(&map_path, source)?, &map_path, &lines, of.len)?;
        if is_there(&newer)? {
            let left = existing_file(&newer, source)?;
            // A run may have been killed before it wrote anything, or a power cut truncated its
            // file: then no run used its map.
            if !is_torn(&left, &lines).map_err(|e| failed(&newer, &e))? {
                // The rescued areas of that run stay recorded, even if this run is killed at once.
                MapReader::of(left, &newer, &lines, of.len)?.complete(known)?;
                std::fs::rename(&newer, &map_path).map_err(|e| failed(&map_path, &e))?;
                known = MapReader::of(existing_file(&map_path, source)?, &map_path, &lines, of.len)?;
            }
        }
        remove(&newer)?;
        let map = empty_file(&newer, false, source)?;
        let map = MapFile::begin(map, &lines).map_err(|e| failed(&newer, &e))?;
        let areas = RescueAreas::of(Some(known), of.len);
        Ok(RescueImage { file, path: target.to_owned(), areas, map, map_path: newer, replaces: true, end: 0 })
    }

    /// The next blocks, and whether they are in the image; the caller passes such blocks to
    /// [`RescueImage::record_kept`]. `None` when every block was tried.
    ///
    /// Errors: those of [`RescueAreas::next_area`].
    pub(crate) fn next_blocks(&mut self) -> Result<Option<(Range<u64>, bool)>> {
        let block = BLOCK_SIZE as u64;
        let area = self.areas.next_area()?;
        Ok(area.map(|(bytes, is_there)| (bytes.start / block..bytes.end / block, is_there)))
    }

    /// Records the next blocks as already in the image.
    pub(crate) fn record_kept(&mut self, blocks: u64) -> Result<()> {
        self.add(blocks * BLOCK_SIZE as u64, AreaStatus::Rescued)
    }

    /// Writes the next blocks. Zeros take no space.
    pub(crate) fn write_rescued(&mut self, content: &[u8]) -> Result<()> {
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
            if from.is_none() {
                self.zero_stale(at as u64, BLOCK_SIZE as u64)?;
            }
        }
        if let Some(start) = from {
            self.write(&content[start..], start)?;
        }
        self.add(content.len() as u64, AreaStatus::Rescued)
    }

    /// Records the next blocks as never written: they are zeros.
    pub(crate) fn record_unwritten(&mut self, blocks: u64) -> Result<()> {
        self.zero_stale(0, blocks * BLOCK_SIZE as u64)?;
        self.add(blocks * BLOCK_SIZE as u64, AreaStatus::Rescued)
    }

    /// Records the next block as lost.
    pub(crate) fn record_lost(&mut self) -> Result<()> {
        self.zero_stale(0, BLOCK_SIZE as u64)?;
        self.add(BLOCK_SIZE as u64, AreaStatus::Lost)
    }

    /// Makes the image and the map durable.
    pub(crate) fn finish(self) -> Result<()> {
        self.file.sync_all().map_err(|e| failed(&self.path, &e))?;
        self.map.finish().map_err(|e| failed(&self.map_path, &e))?;
        if self.replaces {
            let whole = map_path(&self.path);
            std::fs::rename(&self.map_path, &whole).map_err(|e| failed(&whole, &e))?;
        }
        Ok(())
    }

    /// Zeroes data of a run that was killed before its map listed it. A new image has no such data.
    fn zero_stale(&self, within: u64, size: u64) -> Result<()> {
        if !self.replaces {
            return Ok(());
        }
        let (mut at, end) = (self.end + within, self.end + within + size);
        let mut block = [0; BLOCK_SIZE];
        while at < end {
            match seek(&self.file, SeekFrom::Data(at)) {
                Ok(data) => at = data / BLOCK_SIZE as u64 * BLOCK_SIZE as u64,
                // No data follows.
                Err(Errno::NXIO) => return Ok(()),
                Err(e) => return Err(failed(&self.path, &e.into())),
            }
            if at >= end {
                return Ok(());
            }
            self.file.read_exact_at(&mut block, at).map_err(|e| failed(&self.path, &e))?;
            if block.iter().any(|byte| *byte != 0) {
                self.file.write_all_at(&[0; BLOCK_SIZE], at).map_err(|e| failed(&self.path, &e))?;
            }
            at += BLOCK_SIZE as u64;
        }
        Ok(())
    }

    fn write(&self, data: &[u8], within: usize) -> Result<()> {
        self.file.write_all_at(data, self.end + within as u64).map_err(|e| failed(&self.path, &e))
    }

    fn add(&mut self, size: u64, became: AreaStatus) -> Result<()> {
        self.end += size;
        self.map.add(size, became);
        if !self.map.is_due() {
            return Ok(());
        }
        self.file.sync_data().map_err(|e| failed(&self.path, &e))?;
        self.map.save().map_err(|e| failed(&self.map_path, &e))
    }
}

/// Removes a file if it exists.
fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(failed(path, &e)),
        _ => Ok(()),
    }
}

/// Opens an empty file with mode 0600; an existing file that is overwritten keeps its mode.
fn empty_file(path: &Path, force: bool, source: FileIdentity) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    if force {
        options.create(true)
    } else {
        options.create_new(true)
    };
    let file = opened(path, &mut options, source)?;
    // Truncated only after the checks of `opened`.
    file.set_len(0).map_err(|e| failed(path, &e))?;
    Ok(file)
}

/// Opens a file of an earlier run.
fn existing_file(path: &Path, source: FileIdentity) -> Result<File> {
    opened(path, OpenOptions::new().read(true).write(true), source)
}

/// Opens and locks a regular file for writing.
fn opened(path: &Path, options: &mut OpenOptions, source: FileIdentity) -> Result<File> {
    // Do not block on a pipe that replaced the file.
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
    if FileIdentity::of(&about) == source {
        return Err(refused(path).found("the disk that is to be rescued").expected("another file"));
    }
    if about.nlink() > 1 {
        return Err(refused(path)
            .found(format!("a file with {} names (hard links)", about.nlink()))
            .expected("a file that no other name leads to")
            .hint("choose a path where nothing exists"));
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(refused(path)
                .with_kind(Kind::Busy)
                .found("it is in use by another process: it may be a disk that is open")
                .hint("choose another path"));
        }
        Err(TryLockError::Error(e)) => return Err(failed(path, &e)),
    }
    Ok(file)
}

fn refused(path: &Path) -> Error {
    Error::new(Kind::Usage, format!("cannot write to {}", path.display()))
}

fn exists(path: &Path) -> Error {
    refused(path)
        .found("a file that exists already")
        .expected("a path where nothing exists")
        .hint(Hint::from("choose another path, or overwrite it with ").setting(Setting("force")))
}

fn force_hint() -> Hint {
    Hint::from("choose another target, or begin anew and overwrite this one with ").setting(Setting("force"))
}

fn no_file(path: &Path, link: bool) -> Error {
    refused(path)
        .found(if link { "a symbolic link" } else { "something that is no file" })
        .expected("a path where nothing exists")
        .hint("choose another path")
}

fn failed(path: &Path, e: &std::io::Error) -> Error {
    let error = Error::io(format!("cannot write to {}", path.display()), e);
    if error.kind() != Kind::NoSpace {
        return error;
    }
    error.hint("free space there, or choose another place: the image takes the space of all data on the disk")
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
