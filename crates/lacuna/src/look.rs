//! A file or block device that is looked at without taking hold of it: its header has copies of which one is whole at any
//! moment, so that a disk can be looked at while it is served.

use lacuna_core::{Error, Kind, Result};
use lacuna_medium::{Access, FileMedium, Links, Medium, ReadExtent, WriteExtent, open_to_look};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// An open file or block device.
pub(crate) struct Look {
    file: File,
    path: String,
    /// Length in bytes.
    pub(crate) len: u64,
    /// Bytes that a file takes on its file system.
    pub(crate) used: Option<u64>,
    /// Whether another process holds it.
    pub(crate) in_use: bool,
}

impl Look {
    /// Opens it. Errors: those of all verbs for what is no medium.
    pub(crate) fn at(path: &Path, links: Links) -> Result<Look> {
        // Refuses directories and the like in the words that all verbs use.
        let in_use = match FileMedium::open_linked(path, Access::Read, links) {
            Ok(_) => false,
            Err(e) if e.kind() == Kind::Busy => true,
            Err(e) => return Err(e),
        };
        let failed = |e: std::io::Error| Error::io(format!("cannot read {}", path.display()), &e);
        let mut file = open_to_look(path, links).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let used = meta.is_file().then(|| meta.blocks() * 512);
        Ok(Look { file, path: path.display().to_string(), len, used, in_use })
    }

    /// Fills a buffer from an offset on.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(buf, offset);
        read.map_err(|e| Error::io(format!("cannot read {}", self.path), &e))
    }
}

/// For what reads media and nothing else.
impl Medium for Look {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        batch.iter_mut().try_for_each(|extent| Look::read(self, extent.offset, extent.buf))
    }

    fn will_read(&self, offset: u64, len: u64) {
        let Some(len) = NonZeroU64::new(len) else { return };
        // A system that does not take the advice fetches it when it is read.
        let _advised = fadvise(&self.file, offset, Some(len), Advice::WillNeed);
    }

    fn write(&self, _batch: &[WriteExtent<'_>]) -> Result<()> {
        Err(self.refused())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(self.refused())
    }

    fn set_len(&self, _len: u64) -> Result<()> {
        Err(self.refused())
    }
}

impl Look {
    fn refused(&self) -> Error {
        Error::new(Kind::ReadOnly, format!("cannot write to {}: it is looked at alone", self.path))
    }
}
