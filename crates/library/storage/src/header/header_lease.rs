//! Changes of the header of an open disk.
//!
//! An open disk has its master keys and does not read its header again. So the header can be
//! rewritten beside it, if only one command at a time does that, and if the process with the lock
//! on the medium is the writer. That process does not handle passphrases: the command that changes
//! them reads and writes the header through a [`HeaderLease`], which gives access only to the
//! copies of the header, and does the cryptography in its own process.

use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::{COPY_A, COPY_B, HEADER_LEN, copy_c};
use lacuna_medium::Medium;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// The medium of the header of an open disk.
pub struct OpenDiskHeader {
    /// Holds the lock.
    medium: Arc<dyn Medium>,
    read_only: bool,
    /// Whether the medium is a block device.
    on_device: bool,
    lease: Mutex<()>,
}

impl OpenDiskHeader {
    /// For an open disk; `read_only`: other processes may have it open as well; `on_device`: the
    /// medium is a block device.
    pub(crate) fn new(medium: Arc<dyn Medium>, read_only: bool, on_device: bool) -> Self {
        OpenDiskHeader { medium, read_only, on_device, lease: Mutex::new(()) }
    }

    /// Whether the medium is a block device.
    pub fn is_on_device(&self) -> bool {
        self.on_device
    }

    /// Lends the header to one command at a time. Errors: [`Kind::Busy`] while another command has
    /// it, and for a disk that is open read-only, since this process may not write its header.
    pub fn lease(&self) -> Result<HeaderLease<'_>> {
        if self.read_only {
            return Err(Error::new(Kind::Busy, "cannot change the header of the disk")
                .found("a disk that is open read-only")
                .expected("one that is open for writing, or closed")
                .hint("close it first"));
        }
        let Some(held) = self.lease.try_lock() else {
            return Err(Error::new(Kind::Busy, "cannot change the header of the disk")
                .found("another command that is changing it now")
                .hint("try again when it is done"));
        };
        let medium = self.medium.reopened()?.unwrap_or_else(|| Arc::clone(&self.medium));
        Ok(HeaderLease { medium, _held: held })
    }
}

/// The borrowed header of an open disk. Dropping it ends the loan.
pub struct HeaderLease<'d> {
    medium: Arc<dyn Medium>,
    _held: MutexGuard<'d, ()>,
}

impl HeaderLease<'_> {
    /// Length of the medium in bytes.
    pub fn medium_len(&self) -> u64 {
        self.medium.len()
    }

    /// Reads part of a copy of the header. Errors: [`Kind::Usage`] for anything else.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check(offset, buf.len())?;
        self.medium.read_at(offset, buf)
    }

    /// Writes part of a copy of the header. Errors: the same.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check(offset, data.len())?;
        self.medium.write_at(offset, data)
    }

    /// Makes all writes durable.
    pub fn sync(&self) -> Result<()> {
        self.medium.sync()
    }

    /// The medium itself, for this process.
    pub(crate) fn medium(&self) -> &Arc<dyn Medium> {
        &self.medium
    }

    fn check(&self, offset: u64, len: usize) -> Result<()> {
        let copies = [Some(COPY_A), Some(COPY_B), copy_c(self.medium.len())];
        let inside = |start: u64| {
            let from = offset.checked_sub(start)?;
            from.checked_add(len as u64).filter(|end| *end <= HEADER_LEN as u64)
        };
        if copies.into_iter().flatten().any(|start| inside(start).is_some()) {
            return Ok(());
        }
        Err(Error::new(Kind::Usage, "cannot give access to the medium")
            .found(format!("offset {offset}, length {len}"))
            .expected("a part of a copy of the header"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_header::HEADER_AREA;
    use lacuna_medium::MemoryMedium;

    #[test]
    fn a_lease_gives_access_only_to_header_copies() {
        let held = OpenDiskHeader::new(Arc::new(MemoryMedium::new(8 << 20)), false, false);
        let lease = held.lease().unwrap();
        assert_eq!(held.lease().err().unwrap().kind(), Kind::Busy);
        let end = copy_c(8 << 20).unwrap();
        for at in [COPY_A, COPY_B, end] {
            lease.write(at, &[1; HEADER_LEN]).unwrap();
            lease.read(at + 100, &mut [0; 100]).unwrap();
            assert_eq!(lease.write(at + 1, &[1; HEADER_LEN]).unwrap_err().kind(), Kind::Usage);
        }
        for at in [HEADER_LEN as u64, HEADER_AREA, COPY_B - 1, end - 1, u64::MAX, u64::MAX - 5] {
            assert_eq!(lease.write(at, &[1; 10]).unwrap_err().kind(), Kind::Usage, "{at}");
            assert_eq!(lease.read(at, &mut [0; 10]).unwrap_err().kind(), Kind::Usage, "{at}");
        }
        drop(lease);
        assert!(held.lease().is_ok());
        let reading = OpenDiskHeader::new(Arc::new(MemoryMedium::new(8 << 20)), true, false);
        assert_eq!(reading.lease().err().unwrap().kind(), Kind::Busy);
    }
}
