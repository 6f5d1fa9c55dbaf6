//! A UBI volume of Linux, through its character device such as `/dev/ubi0_0`.
//!
//! An atomic change only queues the old physical block for erasure, and `fsync` does not drain that queue. The erasure of a
//! logical block from user space does: it returns when the queue of the whole device is empty. [`Flash::drain`] therefore erases a
//! block that it keeps for this, the last of the volume.

use crate::flash::{Flash, FlashGeometry, Leb, Unerased};
use crate::ubi_calls;
use lacuna_core::{Error, Kind, Result};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A volume that this process has open, alone.
pub struct UbiVolume {
    file: File,
    path: PathBuf,
    geometry: FlashGeometry,
    /// Held by a change: until it is complete, the system takes whatever is written for its content.
    writing: Mutex<()>,
}

impl UbiVolume {
    /// Opens a volume. The system lets one process write to it at a time.
    ///
    /// Errors: [`Kind::NotFound`] if it is no UBI volume, [`Kind::Busy`] if another process writes to it, [`Kind::Permission`].
    pub fn open(path: &Path, read_only: bool) -> Result<UbiVolume> {
        let failed = |e: &std::io::Error| Error::io(format!("cannot open {}", path.display()), e);
        let name = std::fs::canonicalize(path).map_err(|e| failed(&e))?;
        let name = name.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let volume = Path::new("/sys/class/ubi").join(&name);
        let not_ours = |found: String| {
            Error::new(Kind::NotFound, format!("{} is not a UBI volume that can be used", path.display()))
                .found(found)
                .expected("a dynamic volume of UBI, such as /dev/ubi0_0")
                .remedy("make one with `ubimkvol`")
        };
        let Some((device, _)) = name.split_once('_').filter(|_| volume.is_dir()) else {
            return Err(not_ours("no entry of it in /sys/class/ubi".into()));
        };
        let kind = text(&volume.join("type"))?;
        if kind != "dynamic" {
            return Err(not_ours(format!("a volume of the type {kind}")));
        }
        let leb_len = number(&volume.join("usable_eb_size"))?;
        let lebs = number(&volume.join("reserved_ebs"))?;
        let page = number(&Path::new("/sys/class/ubi").join(device).join("min_io_size"))?;
        if lebs < 2 || page == 0 || leb_len % page != 0 {
            return Err(not_ours(format!("{lebs} blocks of {leb_len} bytes with pages of {page}")));
        }
        let file = OpenOptions::new().read(true).write(!read_only).open(path).map_err(|e| failed(&e))?;
        if !read_only {
            ubi_calls::allow_direct_writes(&file).map_err(|e| failed(&e))?;
        }
        // The last block is the one by which the queue is drained.
        let geometry = FlashGeometry { page, leb_len, lebs: lebs - 1 };
        Ok(UbiVolume { file, path: path.to_owned(), geometry, writing: Mutex::new(()) })
    }

    fn failed(&self, what: &str, block: Leb) -> impl Fn(std::io::Error) -> Error {
        let what = format!("{what} of block {} of {}", block.0, self.path.display());
        move |e| {
            let error = Error::io(what.clone(), &e);
            if error.kind() == Kind::ReadOnly {
                return error
                    .remedy("the device is worn out or damaged: copy what is there to another; see `dmesg`");
            }
            error
        }
    }

    fn check(&self, block: Leb, offset: u32, len: usize) -> Result<()> {
        let end = u64::from(offset) + len as u64;
        if block.0 < self.geometry.lebs && end <= u64::from(self.geometry.leb_len) {
            return Ok(());
        }
        Err(Error::new(Kind::Other, "cannot touch what lies outside of the flash")
            .found(format!("block {}, bytes {offset} to {end}", block.0))
            .expected(format!("one of {} blocks of {} bytes", self.geometry.lebs, self.geometry.leb_len)))
    }

    fn at(&self, block: Leb, offset: u32) -> u64 {
        u64::from(block.0) * u64::from(self.geometry.leb_len) + u64::from(offset)
    }
}

impl Flash for UbiVolume {
    fn geometry(&self) -> FlashGeometry {
        self.geometry
    }

    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()> {
        self.check(block, offset, buf.len())?;
        self.file.read_exact_at(buf, self.at(block, offset)).map_err(self.failed("read", block))
    }

    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()> {
        self.check(block, offset, data.len())?;
        let _writing = self.writing.lock();
        self.file.write_all_at(data, self.at(block, offset)).map_err(self.failed("write", block))
    }

    fn change(&self, block: Leb, data: &[u8]) -> Result<()> {
        self.check(block, 0, data.len())?;
        if data.is_empty() {
            return self.unmap(block);
        }
        let _writing = self.writing.lock();
        ubi_calls::change(&self.file, block.0, data.len() as u32).map_err(self.failed("change", block))?;
        // The change happens with the last byte; where it is written does not matter.
        self.file.write_all_at(data, 0).map_err(self.failed("change", block))
    }

    fn unmap(&self, block: Leb) -> Result<()> {
        self.check(block, 0, 0)?;
        ubi_calls::unmap(&self.file, block.0).map_err(self.failed("unmapping", block))
    }

    fn is_mapped(&self, block: Leb) -> Result<bool> {
        self.check(block, 0, 0)?;
        ubi_calls::is_mapped(&self.file, block.0).map_err(self.failed("question for the mapping", block))
    }

    fn drain(&self) -> Result<Vec<Unerased>> {
        let spare = Leb(self.geometry.lebs);
        ubi_calls::erase(&self.file, spare.0).map_err(self.failed("erasure", spare))?;
        Ok(vec![])
    }
}

fn text(path: &Path) -> Result<String> {
    let read =
        std::fs::read_to_string(path).map_err(|e| Error::io(format!("cannot read {}", path.display()), &e));
    Ok(read?.trim().to_owned())
}

fn number(path: &Path) -> Result<u32> {
    let text = text(path)?;
    text.parse().map_err(|_| {
        Error::new(Kind::Other, format!("cannot read {}", path.display())).found(text).expected("a number")
    })
}
