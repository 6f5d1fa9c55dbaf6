//! Creates a disk on flash: on an existing UBI volume, or on a new simulated chip.

use crate::backing::flash::attach;
use crate::backing::{Backing, FlashLocation, HeaderMedium};
use crate::create::create_context::{
    self, CreateContext, CreatePrompt, CreatedDisk, describe_disk, overwrite_hint,
};
use crate::format::{AvailableSpace, Params};
use crate::human_size;
use crate::observer::run_step;
use crate::size::size_in_blocks;
use crate::sync_directory::sync_directory;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::{NewHeader, PublicHeader};
use lacuna_medium::{Access, FileMedium, Medium, check_can_create};
use lacuna_nand::{Flash, FlashGeometry, Leb, UbiVolume};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// The warning about a simulated chip.
const SIMULATED_CHIP_NOTE: &str = "a simulated chip is for trials, tests and measurements: a file erases nothing by itself, because old \
    contents stay on the SSD below it. A purge erases data only from the simulated chip";

/// Creates the disk.
pub(crate) fn create(
    context: &CreateContext<'_>,
    place: FlashLocation<'_>,
    passphrases: CreatePrompt<'_>,
) -> Result<CreatedDisk> {
    if context.options.preallocate {
        return Err(context
            .options
            .create_error()
            .found("preallocation on flash")
            .expected("preallocation of a file")
            .hint("leave it out: flash needs no preallocation"));
    }
    match place {
        FlashLocation::Ubi(path) => create_on_ubi(context, path, passphrases),
        FlashLocation::Nand(path) => create_on_chip(context, path, passphrases),
    }
}

fn create_on_ubi(
    context: &CreateContext<'_>,
    path: &Path,
    passphrases: CreatePrompt<'_>,
) -> Result<CreatedDisk> {
    let flash: Arc<dyn Flash> = Arc::new(UbiVolume::open(path, false)?);
    let there = describe_content(&*flash)?;
    let disk = disk_on(&flash);
    let there = disk.as_ref().ok().and_then(Option::as_ref).map(describe_disk).or(there);
    if let Some(there) = &there
        && !context.options.force
    {
        return Err(context
            .options
            .create_error()
            .with_kind(Kind::Exists)
            .found(there.clone())
            .expected("an empty volume")
            .hint(overwrite_hint()));
    }
    let _claim = context.claim(disk)?;
    let geometry = flash.geometry();
    let params = context.options.shape.format.plan(context.options, AvailableSpace::Flash(geometry))?;
    there.map_or(Ok(()), |there| context.observer.confirm_overwrite(&there))?;
    let header = context.build_header(&*params, passphrases)?;
    write_disk(context, params, geometry, header, flash)
}

fn create_on_chip(
    context: &CreateContext<'_>,
    path: &Path,
    passphrases: CreatePrompt<'_>,
) -> Result<CreatedDisk> {
    let there = open_existing(context, path)?;
    let (options, format) = (context.options, context.options.shape.format);
    let size = size_in_blocks(options.size.ok_or_else(|| options.missing_size("a simulated chip"))?)?;
    let chip = format.chip(options, size)?;
    let geometry = chip.flash();
    let params = format.plan(options, AvailableSpace::Flash(geometry))?;
    let (mut existing, mut _claim) = (None, None);
    if let Some(ExistingFile { medium, disk, words }) = there {
        _claim = context.claim(disk)?;
        context.observer.confirm_overwrite(&words)?;
        existing = Some(medium);
    }
    let header = context.build_header(&*params, passphrases)?;
    let is_new = existing.is_none();
    let medium = match existing {
        Some(medium) => medium,
        None => Arc::new(FileMedium::create(path, 0)?),
    };
    let made = chip
        .make(&medium)
        .and_then(|()| attach(path, medium.clone()))
        .and_then(|flash| write_disk(context, params, geometry, header, flash))
        .and_then(|made| if is_new { sync_directory(path).map(|()| made) } else { Ok(made) });
    if made.is_err() && is_new {
        // It is ours: this process created it.
        let _ = std::fs::remove_file(path);
    }
    made.inspect(|_| context.observer.note(SIMULATED_CHIP_NOTE))
        .map_err(|e| e.context(format!("cannot create nand:{}", path.display())))
}

/// An existing file, held, which may be overwritten.
struct ExistingFile {
    medium: Arc<FileMedium>,
    /// The disk on its chip, as it was read once: the claim and the description rest on it.
    disk: Result<Option<PublicHeader>>,
    words: String,
}

/// The existing file, if it may be overwritten. `None` if there is no file, and one can be made.
fn open_existing(context: &CreateContext<'_>, path: &Path) -> Result<Option<ExistingFile>> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return check_can_create(path).map(|()| None),
        Err(e) => return Err(Error::io(format!("cannot look at {}", path.display()), &e)),
        Ok(about) if about.is_file() => {}
        Ok(_) => {
            return Err(context
                .options
                .create_error()
                .found("something that is not a file")
                .expected("a path where nothing exists, for a file that holds a simulated chip"));
        }
    }
    let access = if context.options.force { Access::Write } else { Access::Read };
    let medium = Arc::new(FileMedium::open(path, access)?);
    let disk = disk_in(path, &medium);
    let words = match &disk {
        Ok(Some(there)) => describe_disk(there),
        // The claim reports an error.
        _ => format!("a file of {}", human_size(medium.len())),
    };
    if context.options.force {
        return Ok(Some(ExistingFile { medium, disk, words }));
    }
    let refused = context.options.create_error().with_kind(Kind::Exists).found(words);
    Err(refused.expected("a path where nothing exists").hint(overwrite_hint()))
}

/// The disk on flash, if there is one. Errors: if its header cannot be read.
fn disk_on(flash: &Arc<dyn Flash>) -> Result<Option<PublicHeader>> {
    create_context::header_on(&HeaderMedium::new(flash.clone()))
}

/// The disk on a simulated chip in a file, if the file has both.
fn disk_in(path: &Path, medium: &Arc<FileMedium>) -> Result<Option<PublicHeader>> {
    match attach(path, medium.clone()) {
        Ok(flash) => disk_on(&flash),
        Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::NotFound) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A description of the content of flash, if it has any.
fn describe_content(flash: &dyn Flash) -> Result<Option<String>> {
    for leb in (0..flash.geometry().lebs).map(Leb) {
        if flash.is_mapped(leb)? {
            return Ok(Some("flash that holds data".to_owned()));
        }
    }
    Ok(None)
}

/// Creates the disk on flash, its header last. It was planned for flash with this `geometry`.
fn write_disk(
    context: &CreateContext<'_>,
    params: Box<dyn Params>,
    geometry: FlashGeometry,
    header: NewHeader,
    flash: Arc<dyn Flash>,
) -> Result<CreatedDisk> {
    if flash.geometry() != geometry {
        return Err(Error::new(Kind::Io, "blocks of the flash went bad while the disk was made")
            .found(format!("{} erase blocks", flash.geometry().lebs))
            .expected(format!("{}", geometry.lebs))
            .hint("try again"));
    }
    let created = CreatedDisk::from_header(params, &header);
    let laying = format!("laying out {}", context.options.location);
    let backing = Backing::Flash(flash);
    run_step(context.observer, &laying, || {
        create_context::write_disk(&backing, &*created.parameters, header)
    })?;
    Ok(created)
}
