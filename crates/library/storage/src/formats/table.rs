//! The table of formats, for parsing headers.

use crate::backing::BackingKind;
use crate::format::{Format, FormatInfo, Params};
use crate::formats::deniable::DeniableFormat;
use crate::formats::flash::FlashFormat;
use crate::formats::oblivious::ObliviousFormat;
use crate::formats::sealed::SealedFormat;
use crate::formats::sealed_objects::SealedObjectsFormat;
use crate::formats::vault::VaultFormat;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::{Location, PublicHeader};
use parking_lot::RwLock;

/// The formats of this build, in the order of presentation.
pub static FORMATS: [&dyn Format; 6] =
    [&SealedFormat, &SealedObjectsFormat, &DeniableFormat, &ObliviousFormat, &FlashFormat, &VaultFormat];

/// The formats added by the program.
static ADDED_FORMATS: RwLock<Vec<&'static dyn Format>> = RwLock::new(Vec::new());

/// Adds a format for the rest of this process: its disks are then opened, checked and described
/// like those of this build. A program adds its formats when it starts. Errors: [`Kind::Exists`] if
/// an existing format has the number or the name, [`Kind::Usage`] for a number that is reserved for
/// later formats of lacuna ([`FormatId::is_custom`](lacuna_header::FormatId::is_custom)).
pub fn add_format(format: &'static dyn Format) -> Result<()> {
    let (mut added, new) = (ADDED_FORMATS.write(), format.info());
    let mut known = FORMATS.iter().chain(added.iter()).map(|format| format.info());
    if let Some(other) = known.find(|other| other.id == new.id || other.name == new.name) {
        return Err(Error::new(Kind::Exists, format!("cannot add the format {}", new.name))
            .found(format!("the format {}, with the number {}", other.name, other.id.0))
            .expected("a number and a name that no other format has"));
    }
    if !new.id.is_custom() {
        return Err(Error::new(Kind::Usage, format!("cannot add the format {}", new.name))
            .found(format!("the number {}, which is reserved for formats of lacuna", new.id.0))
            .expected("a number from 32768 up, or from 49152 up if its disks may have levels"));
    }
    added.push(format);
    Ok(())
}

/// The default format of a new disk at a location.
pub fn default_format(location: &Location) -> &'static dyn Format {
    let mut formats = FORMATS.iter().copied();
    let usual = formats.find(|format| format.info().creatable_on.iter().any(|kind| kind.can_be_at(location)));
    usual.unwrap_or(FORMATS[0])
}

/// The names of the formats of this build that fulfil a condition, in words.
pub(crate) fn format_names(is: impl Fn(&FormatInfo) -> bool) -> String {
    let infos = FORMATS.iter().map(|format| format.info()).filter(is);
    infos.map(|info| info.name).collect::<Vec<_>>().join(" or ")
}

/// Refuses a disk's header in a directory: a user with write access to the directory could have put
/// it there.
pub(crate) fn refuse_disk_header_in_directory(header: &PublicHeader, location: &Location) -> Result<()> {
    let is_of_vault = || find(header).is_some_and(|format| format.info().is_vault());
    match location {
        Location::Path(path) if path.is_dir() && !is_of_vault() => {
            Err(Error::new(Kind::NotFound, format!("{} is not a vault", path.display()))
                .found(format!("the header of a disk, of the format {}, in it", header.format))
                .expected("the header of a vault")
                .hint(
                    "another program or person put it there; restore the header of the vault from a backup",
                ))
        }
        _ => Ok(()),
    }
}

fn find(header: &PublicHeader) -> Option<&'static dyn Format> {
    let added = ADDED_FORMATS.read();
    FORMATS.iter().chain(added.iter()).copied().find(|format| format.info().id == header.format)
}

/// Parses the parameters from the header at `location`.
pub(crate) fn parse(header: &PublicHeader, location: &Location) -> Result<Box<dyn Params>> {
    refuse_disk_header_in_directory(header, location)?;
    match find(header).filter(|format| format.info().backing_kind.can_be_at(location)) {
        Some(format) => parse_as(format, header),
        None => Err(unknown(header, known_formats(location))),
    }
}

/// Parses the parameters from a header that is at no location: a backup of it.
pub(crate) fn parse_backup(header: &PublicHeader) -> Result<Box<dyn Params>> {
    match find(header) {
        Some(format) => parse_as(format, header),
        None => Err(unknown(header, "a format that this build knows".to_owned())),
    }
}

/// Parses the parameters of a disk of this format. Refuses a disk that ends elsewhere than its
/// parameters say: the build that made it laid it out in another way.
fn parse_as(format: &dyn Format, header: &PublicHeader) -> Result<Box<dyn Params>> {
    let params = format.parse(&header.params)?;
    if params.end() == header.end {
        return Ok(params);
    }
    Err(Error::new(Kind::NotFound, "cannot use this disk")
        .found(format!("a layout of the format {} that ends at byte {}", header.format, header.end))
        .expected(format!("the layout that this build knows, which ends at byte {}", params.end()))
        .hint("use the build of lacuna that made the disk, and copy its content to a new one"))
}

fn unknown(header: &PublicHeader, expected: String) -> Error {
    Error::new(Kind::NotFound, "cannot use this disk")
        .found(format!("the format {}", header.format))
        .expected(expected)
        .hint("use a version of lacuna that knows it")
}

/// The formats that are readable at a location, in words.
fn known_formats(location: &Location) -> String {
    let added = ADDED_FORMATS.read();
    let names = |kind: BackingKind| {
        let known = FORMATS.iter().chain(added.iter()).map(|format| format.info());
        known.filter(|info| info.backing_kind == kind).map(|info| info.name).collect::<Vec<_>>().join(", ")
    };
    let (file, directory) = (names(BackingKind::File), names(BackingKind::Directory));
    let (flash, pool) = (names(BackingKind::Flash), names(BackingKind::Pool));
    match location {
        Location::Path(_) => {
            format!("a format that this build knows in a file: {file}; in a directory: {directory}")
        }
        Location::Nand(_) | Location::Ubi(_) => format!("the format that this build knows on flash: {flash}"),
        Location::Rados { .. } => format!("the format that this build knows in a pool: {pool}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::SecretVec;
    use lacuna_crypto::{Argon2Cost, Cipher, SeededRandom};
    use lacuna_header::{FormatId, NewHeader, NewHeaderSpec};
    use lacuna_sealed::Params as SealedParams;

    /// An earlier build put the metadata of each slot behind its blocks.
    #[test]
    fn a_disk_with_the_layout_of_another_build_is_refused() {
        let params = SealedParams::plan(Cipher::Gcm, 4096, None).unwrap();
        let g = params.geometry();
        let earlier = g.data + u64::from(g.slots) * (17 << 18);
        for (end, refusal) in [(g.end(), None), (earlier, Some(Kind::NotFound))] {
            let new = NewHeaderSpec {
                format: FormatId::SEALED,
                params: params.encode().to_vec(),
                end,
                cost: Argon2Cost::new(8, 1, 1).unwrap(),
                levels: &[vec![SecretVec::new(b"secret".to_vec())]],
                uuid: None,
            };
            let new = NewHeader::build(new, &SeededRandom::new(1)).unwrap();
            let header = &new.unlocked().header;
            let location = Location::parse("no-such-disk.img").unwrap();
            assert_eq!(parse(header, &location).err().map(|e| e.kind()), refusal);
            assert_eq!(parse_backup(header).err().map(|e| e.kind()), refusal);
        }
    }

    #[test]
    fn every_format_has_the_name_of_its_number_and_is_listed_once() {
        for format in &FORMATS {
            assert_eq!(format.info().name, format.info().id.to_string());
            assert_eq!(add_format(*format).unwrap_err().kind(), Kind::Exists);
        }
        let places = [("a", "sealed"), ("rados:p/a", "sealed"), ("nand:a", "flash"), ("ubi:a", "flash")];
        for (place, name) in places {
            assert_eq!(default_format(&Location::parse(place).unwrap()).info().name, name, "{place}");
        }
    }
}
