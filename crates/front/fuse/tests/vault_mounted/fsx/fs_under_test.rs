//! One of the two file systems, and its answers to operations.

use super::operation::{DataKind, FsOp, IoMethod, SLOTS};
use super::tree;
use crate::conformance::MemoryMap;
use lacuna_sim::Rng;
use rustix::fs::{Advice, AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::{Errno, Result};
use std::fs::File;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

/// The outcome of an operation, as far as the two must agree.
#[derive(Debug, PartialEq)]
pub(super) enum OpResult {
    Done,
    /// The error number.
    Failed(Errno),
    /// Number of bytes, and their digest.
    Bytes(usize, u64),
    /// Any other result.
    Words(String),
    /// There is no open file, or nothing to do.
    Nothing,
}

pub(super) struct FsUnderTest {
    root: PathBuf,
    slots: [Option<File>; SLOTS],
    /// Whether to use direct input and output. A plain directory may refuse unaligned access, so it
    /// does not.
    direct: bool,
}

impl FsUnderTest {
    pub(super) fn new(root: &Path, direct: bool) -> Self {
        FsUnderTest { root: root.to_owned(), slots: Default::default(), direct }
    }

    pub(super) fn close(&mut self) {
        self.slots = Default::default();
    }

    pub(super) fn apply(&mut self, act: &FsOp) -> OpResult {
        let answer = match act {
            FsOp::Open { slot, path, flags } => self.open(*slot, path, *flags),
            FsOp::Close { slot } => {
                self.slots[*slot] = None;
                Ok(OpResult::Done)
            }
            FsOp::SyncAll => rustix::fs::open(&self.root, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                .and_then(rustix::fs::syncfs)
                .map(|()| OpResult::Done),
            act => match self.on_open(act) {
                Some(answer) => answer,
                None => self.on_names(act),
            },
        };
        answer.unwrap_or_else(OpResult::Failed)
    }

    fn open(&mut self, slot: usize, path: &str, flags: OFlags) -> Result<OpResult> {
        // The old file is closed first, as an assignment to a variable would do.
        self.slots[slot] = None;
        let file = rustix::fs::open(self.root.join(path), flags, Mode::from_raw_mode(0o644))?;
        self.slots[slot] = Some(File::from(file));
        Ok(OpResult::Done)
    }

    fn on_names(&self, act: &FsOp) -> Result<OpResult> {
        let at = |path: &String| self.root.join(path);
        let bits = |mode: &u32| Mode::from_raw_mode(*mode);
        match act {
            FsOp::Create { path, mode, exclusive } => {
                let exclusive = if *exclusive { OFlags::EXCL } else { OFlags::empty() };
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | exclusive;
                rustix::fs::open(at(path), flags, bits(mode)).map(drop)?;
            }
            FsOp::MakeDirectory { path, mode } => rustix::fs::mkdir(at(path), bits(mode))?,
            FsOp::MakePipe { path } => rustix::fs::mknodat(CWD, at(path), FileType::Fifo, Mode::RUSR, 0)?,
            FsOp::Symlink { path, target } => rustix::fs::symlink(target.as_str(), at(path))?,
            FsOp::Link { from, to } => rustix::fs::link(at(from), at(to))?,
            FsOp::Unlink { path } => rustix::fs::unlink(at(path))?,
            FsOp::RemoveDirectory { path } => rustix::fs::rmdir(at(path))?,
            FsOp::Rename { from, to, how } => rustix::fs::renameat_with(CWD, at(from), CWD, at(to), *how)?,
            FsOp::Chmod { path, mode } => rustix::fs::chmod(at(path), bits(mode))?,
            FsOp::Chown { path, uid, gid } => {
                let (uid, gid) = (rustix::fs::Uid::from_raw(*uid), rustix::fs::Gid::from_raw(*gid));
                rustix::fs::chownat(CWD, at(path), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            FsOp::SetTimes { path, secs, nanos } => return set_times(&at(path), *secs, *nanos),
            FsOp::SetAttribute { path, name, len, seed } => {
                let value = Rng::new(*seed).bytes(*len);
                rustix::fs::lsetxattr(at(path), *name, &value, XattrFlags::empty())?;
            }
            FsOp::RemoveAttribute { path, name } => rustix::fs::lremovexattr(at(path), *name)?,
            FsOp::Stat { path } => {
                return rustix::fs::lstat(at(path)).map(|s| OpResult::Words(tree::attributes(&s)));
            }
            FsOp::List { path } => {
                return tree::list(&at(path)).map(|names| OpResult::Words(names.join(", ")));
            }
            FsOp::ReadLink { path } => {
                return rustix::fs::readlink(at(path), vec![])
                    .map(|target| OpResult::Words(format!("{target:?}")));
            }
            other => unreachable!("{other:?} is not about names"),
        }
        Ok(OpResult::Done)
    }

    /// The result of an operation on an open file; `None` for other operations.
    fn on_open(&self, act: &FsOp) -> Option<Result<OpResult>> {
        let slot = match act {
            FsOp::Read { slot, .. }
            | FsOp::Write { slot, .. }
            | FsOp::SetLength { slot, .. }
            | FsOp::Allocate { slot, .. }
            | FsOp::Copy { from: slot, .. }
            | FsOp::CheckHoles { slot }
            | FsOp::Sync { slot }
            | FsOp::Settle { slot }
            | FsOp::StatOpen { slot } => *slot,
            _ => return None,
        };
        let Some(file) = &self.slots[slot] else { return Some(Ok(OpResult::Nothing)) };
        Some(match act {
            FsOp::Read { offset, len, way, .. } => self.read(file, *offset, *len, *way),
            FsOp::Write { offset, len, way, kind, seed, .. } => {
                self.write(file, *offset, &content(*kind, *seed, *len), *way)
            }
            FsOp::SetLength { len, .. } => rustix::fs::ftruncate(file, *len).map(|()| OpResult::Done),
            FsOp::Allocate { how, offset, len, .. } => {
                rustix::fs::fallocate(file, *how, *offset, *len).map(|()| OpResult::Done)
            }
            FsOp::Copy { from_at, to, to_at, len, .. } => match &self.slots[*to] {
                Some(target) => copy(file, *from_at, target, *to_at, *len),
                None => Ok(OpResult::Nothing),
            },
            FsOp::CheckHoles { .. } => check_holes(file),
            FsOp::Sync { .. } => rustix::fs::fsync(file).map(|()| OpResult::Done),
            FsOp::Settle { .. } => rustix::fs::fdatasync(file)
                .and_then(|()| rustix::fs::fadvise(file, 0, NonZeroU64::new(u64::MAX >> 1), Advice::DontNeed))
                .map(|()| OpResult::Done),
            _ => rustix::fs::fstat(file).map(|stat| OpResult::Words(tree::attributes(&stat))),
        })
    }

    fn read(&self, file: &File, offset: u64, len: usize, way: IoMethod) -> Result<OpResult> {
        if way == IoMethod::Mapped {
            let Some((start, within, len)) = mappable(file, offset, len)? else {
                return Ok(OpResult::Nothing);
            };
            let map = MemoryMap::reading(file, start, within + len)?;
            return Ok(bytes(&map.read(within, len)));
        }
        let mut out = vec![0; len];
        let mut done = 0;
        self.directly(file, way, || {
            while done < len {
                match rustix::io::pread(file, &mut out[done..], offset + done as u64)? {
                    0 => break,
                    read => done += read,
                }
            }
            Ok(())
        })?;
        Ok(bytes(&out[..done]))
    }

    fn write(&self, file: &File, offset: u64, data: &[u8], way: IoMethod) -> Result<OpResult> {
        if way == IoMethod::Mapped {
            let Some((start, within, len)) = mappable(file, offset, data.len())? else {
                return Ok(OpResult::Nothing);
            };
            MemoryMap::shared(file, start, within + len)?.write(within, &data[..len]);
            return Ok(OpResult::Done);
        }
        self.directly(file, way, || {
            let mut done = 0;
            while done < data.len() {
                done += rustix::io::pwrite(file, &data[done..], offset + done as u64)?;
            }
            Ok(OpResult::Done)
        })
    }

    /// Runs `work` with direct input and output if `way` says so.
    fn directly<T>(&self, file: &File, way: IoMethod, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let flags = rustix::fs::fcntl_getfl(file)?;
        let regular = FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) == FileType::RegularFile;
        let direct = self.direct && way == IoMethod::Direct && regular;
        if direct {
            rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT)?;
        }
        let result = work();
        if direct {
            rustix::fs::fcntl_setfl(file, flags)?;
        }
        result
    }
}

/// The page where the mapping begins, the offset in it, and the length within the file; `None` if
/// there is nothing to map.
fn mappable(file: &File, offset: u64, len: usize) -> Result<Option<(u64, usize, usize)>> {
    let stat = rustix::fs::fstat(file)?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let len = (stat.st_size as u64).saturating_sub(offset).min(len as u64) as usize;
    let within = (offset % 4096) as usize;
    Ok((regular && len > 0).then_some((offset - within as u64, within, len)))
}

fn bytes(data: &[u8]) -> OpResult {
    OpResult::Bytes(data.len(), tree::digest(data))
}

fn content(kind: DataKind, seed: u64, len: usize) -> Vec<u8> {
    match kind {
        DataKind::Noise => Rng::new(seed).bytes(len),
        DataKind::Text => format!("{seed:x} is the number of these words; ")
            .into_bytes()
            .into_iter()
            .cycle()
            .take(len)
            .collect(),
        DataKind::Zeros => vec![0; len],
    }
}

fn set_times(path: &Path, secs: i64, nanos: i64) -> Result<OpResult> {
    let time = Timespec { tv_sec: secs, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    // Not by path again: the path may lead through this very link, and following a link accesses
    // it.
    let node = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    let stat = rustix::fs::fstat(&node)?;
    Ok(OpResult::Words(format!(
        "{}.{} {}.{}",
        stat.st_atime, stat.st_atime_nsec, stat.st_mtime, stat.st_mtime_nsec
    )))
}

fn copy(from: &File, mut from_at: u64, to: &File, mut to_at: u64, len: usize) -> Result<OpResult> {
    let mut done = 0;
    while done < len {
        match rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len - done)? {
            0 => break,
            copied => done += copied,
        }
    }
    Ok(OpResult::Bytes(done, 0))
}

/// Every hole that the file system reports must read as zeros. The places of holes may differ.
fn check_holes(file: &File) -> Result<OpResult> {
    let stat = rustix::fs::fstat(file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(OpResult::Nothing);
    }
    let (mut at, size) = (0, stat.st_size as u64);
    while at < size {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => size,
            other => other?,
        };
        let mut hole = vec![0; (data - at) as usize];
        // A write-only handle fails here.
        rustix::io::pread(file, &mut hole, at)?;
        if hole.iter().any(|byte| *byte != 0) {
            return Ok(OpResult::Words(format!("data in the hole from {at} to {data}")));
        }
        at = if data < size { rustix::fs::seek(file, SeekFrom::Hole(data))? } else { size };
    }
    Ok(OpResult::Done)
}
