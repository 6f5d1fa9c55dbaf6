//! Access to a file or block device: that of a disk, or the header of a vault in its directory. It
//! is held, or examined without being held: one copy of its header is intact at any moment, so a
//! disk can be examined while it is served.

use crate::vault::directory::{HEADER_FILE, is_vault};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{Access, FileMedium, LinkPolicy, Medium, ReadExtent, WriteExtent, open_for_inspection};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// The place of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLocation<'l> {
    /// At a path that the user names.
    Named(&'l Path),
    /// In the directory of a vault, which is untrusted: a symbolic link is refused.
    VaultHeader(&'l Path),
}

impl<'l> FileLocation<'l> {
    /// The file with the header of the disk or vault at a path.
    pub(crate) fn of(path: &'l Path) -> Self {
        if is_vault(path) { FileLocation::VaultHeader(path) } else { FileLocation::Named(path) }
    }

    /// Holds it. Errors: those of [`FileMedium::open`].
    pub(crate) fn hold(self, access: Access) -> Result<FileMedium> {
        self.with_path(|path, links| FileMedium::open_linked(path, access, links))
    }

    /// Examines it without holding it.
    pub(crate) fn probe(self) -> Result<ReadOnlyProbe> {
        self.with_path(ReadOnlyProbe::open)
    }

    fn with_path<R>(self, by: impl FnOnce(&Path, LinkPolicy) -> R) -> R {
        match self {
            FileLocation::Named(path) => by(path, LinkPolicy::Followed),
            FileLocation::VaultHeader(dir) => by(&dir.join(HEADER_FILE), LinkPolicy::Refused),
        }
    }
}

/// A file or block device that is examined without being held.
pub(crate) struct ReadOnlyProbe {
    file: File,
    path: String,
    len: u64,
    /// Allocated bytes of a file on its file system.
    pub(crate) used: Option<u64>,
    /// Whether another process holds it.
    pub(crate) in_use: bool,
}

impl ReadOnlyProbe {
    /// Opens it. Errors: those of all commands for a path that is not a medium.
    pub(crate) fn open(path: &Path, links: LinkPolicy) -> Result<ReadOnlyProbe> {
        // Refuses directories and the like with the same error as all other commands.
        let in_use = match FileMedium::open_linked(path, Access::Read, links) {
            Ok(_) => false,
            Err(e) if e.kind() == Kind::Busy => true,
            Err(e) => return Err(e),
        };
        let failed = |e: std::io::Error| Error::io(format!("cannot read {}", path.display()), &e);
        let mut file = open_for_inspection(path, links).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let used = meta.is_file().then(|| meta.blocks() * 512);
        Ok(ReadOnlyProbe { file, path: path.display().to_string(), len, used, in_use })
    }

    fn read_only_error(&self) -> Error {
        Error::new(Kind::ReadOnly, format!("cannot write to {}: it is open for inspection only", self.path))
    }
}

/// For readers of media.
impl Medium for ReadOnlyProbe {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        batch.iter_mut().try_for_each(|extent| {
            let read = self.file.read_exact_at(extent.buf, extent.offset);
            read.map_err(|e| Error::io(format!("cannot read {}", self.path), &e))
        })
    }

    /// Only headers are read here, at places that do not depend on levels.
    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read(batch)
    }

    fn will_read(&self, offset: u64, len: u64) {
        let Some(len) = NonZeroU64::new(len) else { return };
        // Without support for the advice, the data is read on demand.
        let _advised = fadvise(&self.file, offset, Some(len), Advice::WillNeed);
    }

    fn write(&self, _batch: &[WriteExtent<'_>]) -> Result<()> {
        Err(self.read_only_error())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(self.read_only_error())
    }

    fn set_len(&self, _len: u64) -> Result<()> {
        Err(self.read_only_error())
    }
}
