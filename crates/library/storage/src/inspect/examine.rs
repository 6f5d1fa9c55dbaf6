//! Examines the medium of a possibly damaged disk or vault, without a passphrase and without
//! holding it.
//!
//! [`public_info`](crate::inspect::public_info) fails if a header cannot be read; this function
//! reports the state of each copy.

use crate::backing::ResolvedLocation;
use crate::foreign::{self, Foreign};
use crate::format::Params;
use crate::formats::table;
use crate::header::copy_remedy::CopyRemedy;
use crate::header::stale_headers;
use crate::rados::ClusterOptions;
use lacuna_contracts::{BLOCK_SIZE, Error, Result, SEGMENT_BLOCKS};
use lacuna_header::{CopyState, Diagnosis, Location, copy_c};
use lacuna_medium::Medium;

/// The least number of blocks by which a disk is said to be able to grow with its device: a new
/// disk leaves less than this, since it has whole segments and spare ones.
const LEAST_GAIN: u64 = 4 * SEGMENT_BLOCKS;

/// The result of an examination.
pub struct Examination {
    /// The copies of the header.
    pub header: Diagnosis,
    /// The parameters in the header, or the error of parsing them; `None` if no copy is intact.
    pub parameters: Option<Result<Box<dyn Params>>>,
    /// Content of another program over the first or the last copy of the header; on a medium
    /// without a header, content of another program anywhere. The error is that of a place that
    /// cannot be read.
    pub foreign: Result<Option<Foreign>>,
    /// The place of the last copy of the header, if the medium has grown since it was written: no
    /// copy is at the end, and this one is where the end was.
    pub former_copy: Option<u64>,
    /// Length of the medium in bytes; for a pool or flash, of the part with the header.
    pub len: u64,
    /// Allocated bytes of a file on its file system.
    pub used: Option<u64>,
    /// Whether another process holds it.
    pub in_use: bool,
    /// Whether it is on a block device.
    pub is_on_device: bool,
}

impl Examination {
    /// The least length of the medium, with the disk and all copies of its header; `None` if the
    /// header cannot be read.
    pub fn needed_len(&self) -> Option<u64> {
        Some(self.parameters.as_ref()?.as_ref().ok()?.medium_len())
    }

    /// Whether a file is longer than its disk needs: it was extended after the header was written.
    pub fn is_longer_than_needed(&self) -> bool {
        let grows = matches!(&self.parameters, Some(Ok(params)) if params.grows_on_medium());
        grows && self.used.is_some() && self.needed_len().is_some_and(|needed| self.len > needed)
    }

    /// How far the medium has grown since the last copy of the header was written, in bytes.
    pub fn growth(&self) -> Option<u64> {
        copy_c(self.len)?.checked_sub(self.former_copy?)
    }

    /// The bytes by which the disk can grow on its block device. `None` for a disk that takes all
    /// of it, with less than 16 MiB left, and for one that is not on a device or does not grow. The
    /// size in the header tells, so a repair of the header or a new passphrase changes nothing.
    pub fn gain(&self) -> Option<u64> {
        let Some(Ok(parameters)) = &self.parameters else { return None };
        let most = parameters.max_blocks_in(copy_c(self.len)?).filter(|_| self.is_on_device)?;
        let gain = most.saturating_sub(parameters.describe().size / BLOCK_SIZE as u64);
        (gain >= LEAST_GAIN).then_some(gain.saturating_mul(BLOCK_SIZE as u64))
    }

    /// The bytes by which the medium is shorter than the disk with all copies of its header.
    pub fn missing_len(&self) -> Option<u64> {
        self.needed_len()?.checked_sub(self.len).filter(|missing| *missing > 0)
    }

    /// The way back to whole copies of the header.
    pub fn copy_remedy(&self) -> CopyRemedy {
        if let Ok(Some(foreign)) = &self.foreign
            && self.header.has_header()
        {
            let last_alone = self.header.has_only_last_copy();
            return CopyRemedy::WrittenOver(foreign.way_back(self.header.noun(), last_alone));
        }
        let Some(Ok(parameters)) = &self.parameters else { return CopyRemedy::Repair };
        // The file with the header of a vault has no other content: a repair makes it longer.
        if self.len < parameters.end() && !parameters.is_vault() {
            return CopyRemedy::Lengthen;
        }
        let takes_growth = self.is_on_device && parameters.max_blocks_in(0).is_some();
        if takes_growth && self.growth().is_some() { CopyRemedy::Resize } else { CopyRemedy::Repair }
    }

    /// The error for writing to a disk that another program has written over.
    pub fn written_over(&self) -> Option<Error> {
        match &self.foreign {
            Ok(Some(foreign)) if self.header.has_header() => {
                Some(foreign.refusal(self.header.noun(), self.header.has_only_last_copy()))
            }
            _ => None,
        }
    }
}

/// Examines the medium at a location. Errors: those of accessing it.
pub fn examine(location: &Location, cluster: &ClusterOptions) -> Result<Examination> {
    let seen = ResolvedLocation::of(location, cluster).probe()?;
    let medium = seen.backing.header()?;
    let (used, in_use) = (seen.used, seen.in_use);
    Ok(Examination { used, in_use, ..examine_medium(&*medium, location) })
}

/// Examines the medium of the header of the disk at a location. Whether a process holds it, and
/// what a file takes on its file system, is not known.
pub(crate) fn examine_medium(medium: &dyn Medium, location: &Location) -> Examination {
    let header = Diagnosis::of(medium.len(), &|offset, buf| medium.read_at(offset, buf));
    let parameters = header.header.as_ref().map(|header| table::parse(header, location));
    // Elsewhere the medium of the header is lacuna's alone.
    let (foreign, former_copy) = match location {
        Location::Path(_) => (foreign::over_copies(medium, &header), former_copy(medium, &header)),
        Location::Nand(_) | Location::Ubi(_) | Location::Rados { .. } => (Ok(None), None),
    };
    let (len, is_on_device) = (medium.len(), location.is_block_device());
    Examination { header, parameters, foreign, former_copy, len, used: None, in_use: false, is_on_device }
}

/// The way back for a header with these notes about its copies. Without a note, the medium is not
/// examined.
pub(crate) fn remedy_for(notes: &[String], medium: &dyn Medium, location: &Location) -> CopyRemedy {
    if notes.is_empty() { CopyRemedy::Repair } else { examine_medium(medium, location).copy_remedy() }
}

fn former_copy(medium: &dyn Medium, found: &Diagnosis) -> Option<u64> {
    let is_missing = found.copies.last().is_some_and(|last| last.state == CopyState::Missing);
    let header = found.header.as_ref().filter(|_| is_missing)?;
    stale_headers::find_at_end(medium, header).offsets.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::SecretVec;
    use lacuna_crypto::{Argon2Cost, Cipher, SeededRandom};
    use lacuna_header::{FormatId, NewHeader, NewHeaderSpec, Uuid, medium_len};
    use lacuna_medium::MemoryMedium;
    use lacuna_sealed::Params as SealedParams;

    /// The medium of a sealed disk, as far as its header goes.
    fn with_header() -> MemoryMedium {
        let params = SealedParams::plan(Cipher::Gcm, 4096, None).unwrap();
        let end = Params::end(&params);
        let medium = MemoryMedium::new(medium_len(end));
        let header = NewHeaderSpec {
            format: FormatId::SEALED,
            params: params.encode().to_vec(),
            end,
            cost: Argon2Cost::new(8, 1, 1).unwrap(),
            levels: &[vec![SecretVec::new(b"secret".to_vec())]],
            uuid: Some(Uuid([3; 16])),
        };
        NewHeader::build(header, &SeededRandom::new(1)).unwrap().write(&medium, |_| Ok(())).unwrap();
        medium
    }

    fn examined(medium: &MemoryMedium) -> Examination {
        examine_medium(medium, &Location::parse("no-such-disk.img").unwrap())
    }

    #[test]
    fn the_remedy_is_one_that_is_not_refused() {
        let medium = with_header();
        medium.write_at(0, &[0; 4096]).unwrap();
        assert_eq!(examined(&medium).copy_remedy(), CopyRemedy::Repair);
        medium.write_at(0, b"XFSB").unwrap();
        let CopyRemedy::WrittenOver(advice) = examined(&medium).copy_remedy() else { panic!("repair") };
        let advice = advice.to_string();
        assert!(advice.contains("an xfs file system lies in the place of the first copy"), "{advice}");
        assert!(advice.ends_with("take a backup of its header and restore that"), "{advice}");
    }

    #[test]
    fn a_device_that_has_grown_is_to_be_resized_and_a_shorter_one_lengthened() {
        let medium = with_header();
        let len = medium.len();
        medium.set_len(len + (40 << 20)).unwrap();
        let grown = examined(&medium);
        assert_eq!((grown.growth(), grown.copy_remedy()), (Some(40 << 20), CopyRemedy::Repair));
        let device = Examination { is_on_device: true, ..grown };
        assert_eq!(device.copy_remedy(), CopyRemedy::Resize);
        medium.set_len(len - (1 << 20)).unwrap();
        assert_eq!(examined(&medium).copy_remedy(), CopyRemedy::Lengthen);
    }

    /// A repair writes the last copy at the new end, and so leaves no sign of the growth but the
    /// size in the header.
    #[test]
    fn the_room_of_a_device_shows_after_its_header_was_repaired() {
        let medium = with_header();
        medium.set_len(medium.len() + (40 << 20)).unwrap();
        let secret = [SecretVec::new(b"secret".to_vec())];
        let mut unlocked = lacuna_header::open(&medium, &secret).unwrap();
        lacuna_header::repair(&medium, &mut unlocked).unwrap();
        let repaired = Examination { is_on_device: true, ..examined(&medium) };
        assert_eq!(repaired.growth(), None);
        assert!(repaired.gain().is_some_and(|gain| gain >= 32 << 20), "{:?}", repaired.gain());
        let file = Examination { is_on_device: false, ..repaired };
        assert_eq!(file.gain(), None);
    }
}
