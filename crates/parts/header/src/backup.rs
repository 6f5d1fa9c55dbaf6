//! Header backups: a copy of the header outside the medium, which can be taken, opened and
//! restored.
//!
//! A backup is one header copy, byte for byte. It opens with the passphrases of the day on which it
//! was made, including passphrases that were removed since, and it records the size of the disk on
//! that day.

use crate::copies::{CopySurvey, HeaderCopy, store_bytes};
use crate::diagnosis::Diagnosis;
use crate::layout::HEADER_LEN;
use crate::public::PublicHeader;
use crate::unlock::{OpenHeader, open};
use lacuna_contracts::{Error, Kind, Result, SecretVec};
use lacuna_medium::{Medium, MemoryMedium};

/// A whole header outside a medium.
pub struct HeaderBackup {
    bytes: Box<[u8; HEADER_LEN]>,
    public: PublicHeader,
}

impl HeaderBackup {
    /// Takes the newest sound copy of a medium of `len` bytes, and notes about its copies. `read`
    /// fills a buffer, starting at an offset. No passphrase is needed, so nothing is authenticated.
    pub fn take(
        len: u64,
        read: &dyn Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<(HeaderBackup, Vec<String>)> {
        CopySurvey::read_with(len, read).map(HeaderBackup::of_newest)
    }

    /// [`HeaderBackup::take`] without the notes, and the state of all copies, from one reading of
    /// the medium.
    pub fn take_with_diagnosis(
        len: u64,
        read: &dyn Fn(u64, &mut [u8]) -> Result<()>,
    ) -> (Diagnosis, Result<HeaderBackup>) {
        let survey = CopySurvey::read_all(len, read);
        let diagnosis = Diagnosis::of_survey(&survey);
        (diagnosis, survey.require_sound().map(|survey| HeaderBackup::of_newest(survey).0))
    }

    /// The newest copy of a survey with a sound copy, and notes about its copies.
    fn of_newest(mut survey: CopySurvey) -> (HeaderBackup, Vec<String>) {
        let notes = survey.findings(&survey.sound[0], &[]).notes;
        let newest = survey.sound.swap_remove(0);
        (HeaderBackup { bytes: newest.bytes, public: newest.public }, notes)
    }

    /// Reads the bytes of a backup.
    ///
    /// Errors: [`Kind::NotFound`] if they are not a header, [`Kind::Corrupt`] if they are a damaged
    /// one.
    pub fn parse(bytes: &[u8]) -> Result<HeaderBackup> {
        let public = PublicHeader::parse(bytes)?;
        let bytes: &[u8; HEADER_LEN] = bytes.try_into().map_err(|_| {
            Error::new(Kind::NotFound, "cannot read the backup of a header")
                .found(format!("a header with more bytes behind it, as a {} has", public.format.noun()))
                .expected(format!("{HEADER_LEN} bytes, as every backup of a header has"))
        })?;
        Ok(HeaderBackup { bytes: Box::new(*bytes), public })
    }

    /// The bytes of the backup.
    pub fn bytes(&self) -> &[u8; HEADER_LEN] {
        &self.bytes
    }

    /// The fields that can be read without a passphrase.
    pub fn public(&self) -> &PublicHeader {
        &self.public
    }

    /// Opens the backup itself, as [`open`] opens a medium.
    pub fn open(&self, passphrases: &[SecretVec]) -> Result<OpenHeader> {
        open(&MemoryMedium::from_bytes(self.bytes.to_vec()), passphrases)
    }

    /// Writes the backup to all places of the header. The bytes between them stay.
    ///
    /// A power cut in the middle of restoring an older header leaves copies of both; the newer one
    /// counts until the last copy is written.
    pub fn restore(&self, medium: &dyn Medium) -> Result<()> {
        store_bytes(medium, &self.bytes, self.public.end, &HeaderCopy::ALL)
    }
}

/// Rewrites all copies from the copy that opened. No passphrase and no parameter changes.
pub fn repair(medium: &dyn Medium, unlocked: &mut OpenHeader) -> Result<()> {
    unlocked.check_writable()?;
    unlocked.write_failed = true;
    store_bytes(medium, &unlocked.bytes, unlocked.header.end, &unlocked.write_order)?;
    unlocked.write_failed = false;
    unlocked.note_rewritten();
    Ok(())
}
