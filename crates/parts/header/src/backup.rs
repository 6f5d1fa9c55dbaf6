//! A copy of the header outside the medium: made, opened to see that it works, and written back.
//!
//! A backup is one header copy, byte for byte. It opens with the passphrases of the day on which it
//! was made, also with those that were removed since, and it names the size that the disk had then.

use crate::copies::{HeaderCopy, Survey, store_bytes};
use crate::layout::HEADER_LEN;
use crate::public::PublicHeader;
use crate::unlock::{Unlocked, open};
use lacuna_contracts::{Error, Kind, Result, SecretVec};
use lacuna_medium::{Medium, MemoryMedium};

/// A whole header, without a medium.
pub struct HeaderBackup {
    bytes: Box<[u8; HEADER_LEN]>,
    public: PublicHeader,
}

impl HeaderBackup {
    /// Takes the newest sound copy of something that has `len` bytes, of which `read` fills a
    /// buffer from an offset on, with notes about the copies. No passphrase is needed, so nothing
    /// is authenticated.
    pub fn take(
        len: u64,
        read: &dyn Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<(HeaderBackup, Vec<String>)> {
        let mut survey = Survey::read_with(len, read)?;
        let notes = survey.findings(&survey.sound[0], &[]).notes;
        let newest = survey.sound.swap_remove(0);
        Ok((HeaderBackup { bytes: newest.bytes, public: newest.public }, notes))
    }

    /// Reads the bytes of a backup.
    ///
    /// Errors: [`Kind::NotFound`] if they are no header, [`Kind::Corrupt`] if they are a damaged
    /// one.
    pub fn parse(bytes: &[u8]) -> Result<HeaderBackup> {
        let public = PublicHeader::parse(bytes)?;
        let bytes: &[u8; HEADER_LEN] = bytes.try_into().map_err(|_| {
            Error::new(Kind::NotFound, "cannot read the backup of a header")
                .found(format!("{} bytes", bytes.len()))
                .expected(format!("{HEADER_LEN} bytes, as every backup of a header has"))
        })?;
        Ok(HeaderBackup { bytes: Box::new(*bytes), public })
    }

    /// The bytes of the backup.
    pub fn bytes(&self) -> &[u8; HEADER_LEN] {
        &self.bytes
    }

    /// What it says without a passphrase.
    pub fn public(&self) -> &PublicHeader {
        &self.public
    }

    /// Opens the backup itself, as [`open`] opens a medium.
    pub fn open(&self, passphrases: &[SecretVec]) -> Result<Unlocked> {
        open(&MemoryMedium::from_bytes(self.bytes.to_vec()), passphrases)
    }

    /// Writes the backup to all places of the header. What lies between them stays.
    ///
    /// A power cut in the middle of restoring an older header leaves copies of both; the newer one
    /// counts until the last copy is written.
    pub fn restore(&self, medium: &dyn Medium) -> Result<()> {
        store_bytes(medium, &self.bytes, self.public.end, &HeaderCopy::ALL)
    }
}

/// Writes all copies anew as the one is that opened; no passphrase and no parameter changes.
pub fn repair(medium: &dyn Medium, unlocked: &mut Unlocked) -> Result<()> {
    unlocked.check_writable()?;
    unlocked.write_failed = true;
    store_bytes(medium, &unlocked.bytes, unlocked.header.end, &unlocked.order)?;
    unlocked.write_failed = false;
    unlocked.healed();
    Ok(())
}
