//! Creates a disk on flash: on an existing UBI volume, or on a new simulated chip.

use crate::backing::flash::attach;
use crate::backing::{Backing, FlashPlace, HeaderMedium};
use crate::create::making::{self, Created, Making, Passphrases, lacuna_disk, overwrite};
use crate::format::{Params, Room};
use crate::human;
use crate::observer::during;
use crate::size::blocks;
use crate::sync_directory::sync_directory;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::{NewHeader, PublicHeader};
use lacuna_medium::{Access, FileMedium, Medium};
use lacuna_nand::{Flash, FlashGeometry, Leb, UbiVolume};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// The warning about a simulated chip.
const FORGETS_NOTHING: &str = "a simulated chip is for trying, tests and measurements: a file forgets nothing by itself, for old \
    contents stay on the SSD below it. What is deleted for good is what the simulated chip shows";

/// Creates the disk.
pub(crate) fn run(
    making: &Making<'_>,
    place: FlashPlace<'_>,
    passphrases: Passphrases<'_>,
) -> Result<Created> {
    if making.options.preallocate {
        return Err(making
            .options
            .refused()
            .found("preallocation on flash")
            .expected("preallocation of a file")
            .remedy("leave it out: flash has all the space that it says it has"));
    }
    match place {
        FlashPlace::Ubi(path) => on_ubi(making, path, passphrases),
        FlashPlace::Nand(path) => on_nand(making, path, passphrases),
    }
}

fn on_ubi(making: &Making<'_>, path: &Path, passphrases: Passphrases<'_>) -> Result<Created> {
    let flash: Arc<dyn Flash> = Arc::new(UbiVolume::open(path, false)?);
    let there = content(&*flash)?;
    let disk = disk_on(&flash);
    let there = disk.as_ref().ok().and_then(Option::as_ref).map(lacuna_disk).or(there);
    if let Some(there) = &there
        && !making.options.force
    {
        return Err(making
            .options
            .refused()
            .with_kind(Kind::Exists)
            .found(there.clone())
            .expected("a volume that holds nothing")
            .remedy(overwrite()));
    }
    let _claim = making.claim(disk)?;
    let geometry = flash.geometry();
    let params = making.options.shape.format.plan(making.options, Room::Flash(geometry))?;
    there.map_or(Ok(()), |there| making.observer.replaces(&there))?;
    let header = making.draft(&*params, passphrases)?;
    lay(making, params, geometry, header, flash)
}

fn on_nand(making: &Making<'_>, path: &Path, passphrases: Passphrases<'_>) -> Result<Created> {
    let there = look_at(making, path)?;
    let (options, format) = (making.options, making.options.shape.format);
    let size = blocks(options.size.ok_or_else(|| options.no_size("a simulated chip"))?)?;
    let chip = format.chip(options, size)?;
    let geometry = chip.flash();
    let params = format.plan(options, Room::Flash(geometry))?;
    let mut _claim = None;
    if let Some((medium, words)) = &there {
        _claim = making.claim(disk_in(path, medium))?;
        making.observer.replaces(words)?;
    }
    let header = making.draft(&*params, passphrases)?;
    let is_new = there.is_none();
    let medium = match there {
        Some((medium, _)) => medium,
        None => Arc::new(FileMedium::create(path, 0)?),
    };
    let made = chip
        .make(&medium)
        .and_then(|()| attach(path, medium.clone()))
        .and_then(|flash| lay(making, params, geometry, header, flash))
        .and_then(|made| if is_new { sync_directory(path).map(|()| made) } else { Ok(made) });
    if made.is_err() && is_new {
        // It is ours: this process created it.
        let _ = std::fs::remove_file(path);
    }
    made.inspect(|_| making.observer.note(FORGETS_NOTHING))
        .map_err(|e| e.context(format!("cannot create nand:{}", path.display())))
}

/// The existing file, held, if it may be overwritten, with its description. `None` if there is no
/// file.
fn look_at(making: &Making<'_>, path: &Path) -> Result<Option<(Arc<FileMedium>, String)>> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(format!("cannot look at {}", path.display()), &e)),
        Ok(about) if about.is_file() => {}
        Ok(_) => {
            return Err(making
                .options
                .refused()
                .found("something that is not a file")
                .expected("a path where nothing exists, for a file that holds a simulated chip"));
        }
    }
    let access = if making.options.force { Access::Write } else { Access::Read };
    let medium = Arc::new(FileMedium::open(path, access)?);
    // Only for the description.
    let there = disk_in(path, &medium).ok().flatten();
    let words =
        there.map_or_else(|| format!("a file of {}", human(medium.len())), |there| lacuna_disk(&there));
    if making.options.force {
        return Ok(Some((medium, words)));
    }
    let refused = making.options.refused().with_kind(Kind::Exists).found(words);
    Err(refused.expected("a path where nothing exists").remedy(overwrite()))
}

/// The disk on flash, if there is one. Errors: if its header cannot be read.
fn disk_on(flash: &Arc<dyn Flash>) -> Result<Option<PublicHeader>> {
    making::disk_on(&HeaderMedium::new(flash.clone()))
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
fn content(flash: &dyn Flash) -> Result<Option<String>> {
    for leb in (0..flash.geometry().lebs).map(Leb) {
        if flash.is_mapped(leb)? {
            return Ok(Some("flash that holds data".to_owned()));
        }
    }
    Ok(None)
}

/// Creates the disk on flash, its header last. It was planned for flash with this `geometry`.
fn lay(
    making: &Making<'_>,
    params: Box<dyn Params>,
    geometry: FlashGeometry,
    header: NewHeader,
    flash: Arc<dyn Flash>,
) -> Result<Created> {
    if flash.geometry() != geometry {
        return Err(Error::new(Kind::Io, "blocks of the flash went bad while the disk was made")
            .found(format!("{} erase blocks", flash.geometry().lebs))
            .expected(format!("{}", geometry.lebs))
            .remedy("try again"));
    }
    let created = Created::with(params, &header);
    let laying = format!("laying out {}", making.options.location);
    let backing = Backing::Flash(flash);
    during(making.observer, &laying, || making::lay(&backing, &*created.parameters, header))?;
    Ok(created)
}
