//! A UBI volume of Linux, through its character device such as `/dev/ubi0_0`.
//!
//! An atomic change only queues the old physical block for erasure, and `fsync` does not drain that
//! queue. The erasure of a logical block from user space does: it returns when the queue of the
//! whole device is empty. [`Flash::drain`] therefore erases a block that it keeps for this, the
//! last of the volume. It says success too of a block that could not be erased and was marked as
//! bad instead; `bad_blocks` finds these.
//!
//! A change needs the volume for this process alone, readers included: while another program has it
//! open for a moment, to look what it is, changes wait. A change that fails leaves the system in
//! the belief that it goes on, and whatever is written next would be taken for its rest: nothing is
//! written any more then.
//!
//! What UBI itself keeps because it cannot tell what it is (physical blocks with a damaged header
//! and content behind it, which damage other than a power cut leaves) it does not erase, and does
//! not tell of.

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

/// The shortest page that formats can use. NOR flash and memory can be programmed in smaller steps.
const SHORTEST_PAGE: u32 = 512;
/// How long a call waits for another program that has the volume open.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it tries again meanwhile.
const PAUSE: Duration = Duration::from_millis(5);
/// `EBADMSG`: what was read has more errors than can be corrected.
const UNCORRECTABLE: i32 = rustix::io::Errno::BADMSG.raw_os_error();

/// A volume that this process has open, alone.
pub struct UbiVolume {
    file: File,
    path: PathBuf,
    geometry: FlashGeometry,
    /// Bytes from one block to the next in the device: its blocks need not be whole pages.
    stride: u64,
    /// Held by a change: until it is complete, the system takes whatever is written for its
    /// content. Whether one failed.
    change_failed: Mutex<bool>,
    bad_blocks: Mutex<BadBlocks>,
}

impl UbiVolume {
    /// Opens a volume. The system lets one process write to it at a time.
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
                .remedy("make one with `ubimkvol`")
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
            // Changes shut readers out, each for a moment.
            while_busy(|| options.read(true).open(path)).map_err(|e| failed(&e))?
        } else {
            let file = options.read(true).write(true).open(path).map_err(|e| failed(&e))?;
            ubi_calls::allow_direct_writes(&file).map_err(|e| failed(&e))?;
            file
        };
        // The last block is the one by which the queue is drained.
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

    /// The device itself, opened as a path alone: what neither reads, nor writes, nor keeps others
    /// out.
    ///
    /// Errors: what the system reports.
    pub fn path_only(&self) -> Result<OwnedFd> {
        lacuna_medium::path_only(&self.file, &self.path)
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
        u64::from(block.0) * self.stride + u64::from(offset)
    }

    /// Reads what a power cut or decay left of some pages: one that cannot be decoded becomes
    /// zeros.
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

    /// Whether writing is still possible.
    fn check_changes(&self, failed: bool) -> Result<()> {
        if !failed {
            return Ok(());
        }
        Err(Error::new(Kind::ReadOnly, format!("cannot write to {} any more", self.path.display()))
            .found("a change of a block that failed before")
            .expected("a volume on which every write succeeded")
            .remedy("see `dmesg`, and open it again"))
    }
}

impl Flash for UbiVolume {
    fn geometry(&self) -> FlashGeometry {
        self.geometry
    }

    /// A page that has more errors than can be corrected reads as zeros. A power cut leaves such
    /// pages, as its contract says.
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
        // The change happens with the last byte; where it is written does not matter.
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
        // For flash whose driver has a cache.
        self.file.sync_all().map_err(|e| Error::io(format!("cannot flush {}", self.path.display()), &e))
    }
}

/// Tries again while another program has the volume open.
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
