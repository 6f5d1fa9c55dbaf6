//! A UBI volume of Linux, through its character device such as `/dev/ubi0_0`.
//!
//! An atomic change only queues the old physical block for erasure, and `fsync` does not drain that
//! queue. The erasure of a logical block from user space does: it returns when the queue of the
//! whole device is empty. [`Flash::drain`] therefore erases a block that is reserved for this, the
//! last of the volume. The erasure reports success even if a block could not be erased and was
//! marked as bad instead; `bad_blocks` finds these.
//!
//! A change needs exclusive use of the volume, even against readers: it waits while another program
//! has the volume open for a short inspection. After a failed change the kernel still expects the
//! rest of its data, and would take the next write for it. So the first failed change ends all
//! writing.
//!
//! UBI neither erases nor reports physical blocks that it cannot identify: those with a damaged
//! header and content behind it, which damage other than a power cut leaves.

use crate::bad_blocks::BadBlocks;
use crate::flash::{Flash, FlashGeometry, Leb, Unerased};
use crate::sysfs::{number, text};
use crate::ubi_calls;
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The minimum page size for formats. NOR flash and memory have smaller pages.
const SHORTEST_PAGE: u32 = 512;
/// The time that a call waits while another program has the volume open.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval between two attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// `EBADMSG`: a page with more errors than can be corrected.
const UNCORRECTABLE: i32 = rustix::io::Errno::BADMSG.raw_os_error();

/// An open volume. If this process opened it for writing, no other process can write to it.
pub struct UbiVolume {
    file: File,
    path: PathBuf,
    geometry: FlashGeometry,
    /// Bytes from one block to the next in the device: a block need not be whole pages.
    stride: u64,
    /// Whether a change failed. Locked during a change: until it is complete, the kernel takes
    /// every write for its content.
    change_failed: Mutex<bool>,
    bad_blocks: Mutex<BadBlocks>,
}

impl UbiVolume {
    /// Opens a volume. The system allows one writing process at a time.
    ///
    /// Errors: [`Kind::NotFound`] if it is no UBI volume, [`Kind::Busy`] if another process writes
    /// to it, [`Kind::Permission`].
    pub fn open(path: &Path, read_only: bool) -> Result<UbiVolume> {
        let failed = |e: &std::io::Error| Error::io(format!("cannot open {}", path.display()), e);
        let name = std::fs::canonicalize(path).map_err(|e| failed(&e))?;
        let name = name.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let volume = Path::new("/sys/class/ubi").join(&name);
        let not_ours = |found: String| {
            Error::new(Kind::NotFound, format!("{} is not a UBI volume that can be used", path.display()))
                .found(found)
                .expected("a dynamic volume of UBI, such as /dev/ubi0_0")
                .hint("make one with `ubimkvol`")
        };
        let number_in = |name: &str| name.parse::<u32>().ok();
        let parts = name.split_once('_').filter(|_| volume.is_dir());
        let Some((device, id)) = parts.and_then(|(device, id)| Some((device, number_in(id)?))) else {
            return Err(not_ours("no entry of it in /sys/class/ubi".into()));
        };
        let kind = text(&volume.join("type"))?;
        if kind != "dynamic" {
            return Err(not_ours(format!("a volume of the type {kind}")));
        }
        let stride = number(&volume.join("usable_eb_size"))?;
        let lebs = number(&volume.join("reserved_ebs"))?;
        let page = number(&Path::new("/sys/class/ubi").join(device).join("min_io_size"))?.max(SHORTEST_PAGE);
        let leb_len = stride / page * page;
        if lebs < 2 || leb_len == 0 {
            return Err(not_ours(format!("{lebs} blocks of {stride} bytes with pages of {page}")));
        }
        let mut options = OpenOptions::new();
        let file = if read_only {
            // A change excludes readers for a short time.
            while_busy(|| options.read(true).open(path)).map_err(|e| failed(&e))?
        } else {
            let file = options.read(true).write(true).open(path).map_err(|e| failed(&e))?;
            ubi_calls::allow_direct_writes(&file).map_err(|e| failed(&e))?;
            file
        };
        // The last block is reserved for draining the queue.
        let geometry = FlashGeometry { page, leb_len, lebs: lebs - 1 };
        Ok(UbiVolume {
            file,
            path: path.to_owned(),
            geometry,
            stride: stride.into(),
            change_failed: Mutex::new(false),
            bad_blocks: Mutex::new(BadBlocks::new(device, id)?),
        })
    }

    /// A path-only handle (`O_PATH`) on the device. It neither reads nor writes, and excludes no
    /// other process.
    ///
    /// Errors: those of the system.
    pub fn path_only(&self) -> Result<OwnedFd> {
        lacuna_medium::path_only(&self.file, &self.path)
    }

    fn failed(&self, what: &str, block: Leb) -> impl Fn(std::io::Error) -> Error {
        let what = format!("{what} of block {} of {}", block.0, self.path.display());
        move |e| {
            let error = Error::io(what.clone(), &e);
            if error.kind() == Kind::ReadOnly {
                return error
                    .hint("the device is worn out or damaged: copy its content to another; see `dmesg`");
            }
            error
        }
    }

    fn check(&self, block: Leb, offset: u32, len: usize) -> Result<()> {
        let end = u64::from(offset) + len as u64;
        if block.0 < self.geometry.lebs && end <= u64::from(self.geometry.leb_len) {
            return Ok(());
        }
        Err(Error::new(Kind::Other, "access past the end of the flash")
            .found(format!("block {}, bytes {offset} to {end}", block.0))
            .expected(format!("one of {} blocks of {} bytes", self.geometry.lebs, self.geometry.leb_len)))
    }

    fn at(&self, block: Leb, offset: u32) -> u64 {
        u64::from(block.0) * self.stride + u64::from(offset)
    }

    /// Reads page by page. Pages that cannot be decoded, after a power cut or decay, become zeros.
    fn read_page_by_page(&self, block: Leb, offset: u32, buf: &mut [u8]) -> std::io::Result<()> {
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let in_page = (self.geometry.page - at % self.geometry.page) as usize;
            let (part, behind) = rest.split_at_mut(in_page.min(rest.len()));
            match self.file.read_exact_at(part, self.at(block, at)) {
                Err(e) if e.raw_os_error() == Some(UNCORRECTABLE) => part.fill(0),
                result => result?,
            }
            at += part.len() as u32;
            rest = behind;
        }
        Ok(())
    }

    /// Returns an error if a change has failed.
    fn check_changes(&self, failed: bool) -> Result<()> {
        if !failed {
            return Ok(());
        }
        Err(Error::new(Kind::ReadOnly, format!("cannot write to {} any more", self.path.display()))
            .found("a change of a block that failed before")
            .expected("a volume on which every write succeeded")
            .hint("see `dmesg`, and open it again"))
    }
}

impl Flash for UbiVolume {
    fn geometry(&self) -> FlashGeometry {
        self.geometry
    }

    /// A page with more errors than can be corrected reads as zeros. A power cut may leave such
    /// pages, as the trait permits.
    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()> {
        self.check(block, offset, buf.len())?;
        match self.file.read_exact_at(buf, self.at(block, offset)) {
            Err(e) if e.raw_os_error() == Some(UNCORRECTABLE) => self.read_page_by_page(block, offset, buf),
            result => result,
        }
        .map_err(self.failed("read", block))
    }

    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()> {
        self.check(block, offset, data.len())?;
        let change_failed = self.change_failed.lock();
        self.check_changes(*change_failed)?;
        self.file.write_all_at(data, self.at(block, offset)).map_err(self.failed("write", block))
    }

    fn change(&self, block: Leb, data: &[u8]) -> Result<()> {
        self.check(block, 0, data.len())?;
        if data.is_empty() {
            return self.unmap(block);
        }
        let mut change_failed = self.change_failed.lock();
        self.check_changes(*change_failed)?;
        while_busy(|| ubi_calls::change(&self.file, block.0, data.len() as u32))
            .map_err(self.failed("change", block))?;
        // The change takes effect with the last byte. The file offset does not matter.
        let written = self.file.write_all_at(data, 0);
        *change_failed = written.is_err();
        written.map_err(self.failed("change", block))
    }

    fn unmap(&self, block: Leb) -> Result<()> {
        self.check(block, 0, 0)?;
        ubi_calls::unmap(&self.file, block.0).map_err(self.failed("unmapping", block))
    }

    fn is_mapped(&self, block: Leb) -> Result<bool> {
        self.check(block, 0, 0)?;
        ubi_calls::is_mapped(&self.file, block.0).map_err(self.failed("question for the mapping", block))
    }

    fn drain_of(&self, wanted: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>> {
        let spare = Leb(self.geometry.lebs);
        ubi_calls::erase(&self.file, spare.0).map_err(self.failed("erasure", spare))?;
        self.bad_blocks.lock().take(wanted)
    }

    fn sync(&self) -> Result<()> {
        // For flash with a cache in its driver.
        self.file.sync_all().map_err(|e| Error::io(format!("cannot flush {}", self.path.display()), &e))
    }
}

/// Retries while another program has the volume open.
fn while_busy<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    let start = Instant::now();
    loop {
        match call() {
            Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy && start.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}
