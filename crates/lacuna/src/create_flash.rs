//! Makes a disk on flash: on a UBI volume that is there, or on a simulated chip that is made for it.

use crate::create_file::sync_directory;
use crate::flash_place::{FlashPlace, attach};
use crate::human;
use crate::making::{self, Making, NewDisk, lacuna_disk, overwrite};
use crate::observer::during;
use crate::parameters::Parameters;
use crate::shape::{ChipShape, Created, Shape, blocks};
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result, SecretVec};
use lacuna_crypto::{RandomSource, SystemRandom};
use lacuna_flash::{FlashDisk, HeaderMedium, Params};
use lacuna_header::{NewHeader, PublicHeader};
use lacuna_medium::{Access, FileMedium, Medium};
use lacuna_nand::{ChipGeometry, Flash, FlashGeometry, Leb, Mapping, SimulatedChip, UbiVolume, Wearing};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// What is said of a simulated chip.
const FORGETS_NOTHING: &str = "a simulated chip is for trying, tests and measurements: a file forgets nothing by itself, for old \
    contents stay on the SSD below it. What is deleted for good is what the simulated chip shows";

/// The most erase blocks of a simulated chip that are tried.
const MOST_BLOCKS: u32 = 1 << 24;

/// What a disk on flash is to be.
#[derive(Clone, Copy)]
struct Wanted {
    key_len: u8,
    spare: u32,
    chip: ChipShape,
}

/// Makes the disk.
pub(crate) fn run(
    making: &Making<'_>,
    place: FlashPlace<'_>,
    passphrases: impl FnOnce(NewDisk) -> Result<Vec<Vec<SecretVec>>>,
) -> Result<Created> {
    let wanted = wanted(making)?;
    match place {
        FlashPlace::Ubi(path) => on_ubi(making, path, wanted, passphrases),
        FlashPlace::Nand(path) => on_nand(making, path, wanted, passphrases),
    }
}

fn wanted(making: &Making<'_>) -> Result<Wanted> {
    let Shape::Flash { key_bits, spare_permille, chip } = making.options.shape else {
        return Err(making
            .refused()
            .found("a format for flat media on flash")
            .expected("the format flash")
            .remedy("choose the format flash, or give the path of a file or block device"));
    };
    if making.options.preallocate {
        return Err(making
            .refused()
            .found("preallocation on flash")
            .expected("preallocation of a file")
            .remedy("leave it out: flash has all the space that it says it has"));
    }
    let key_len = match key_bits {
        128 => 16,
        256 => 32,
        _ => {
            return Err(making
                .refused()
                .found(format!("keys of {key_bits} bits"))
                .expected("keys of 128 or 256 bits"));
        }
    };
    Ok(Wanted { key_len, spare: spare_permille.into(), chip })
}

fn on_ubi(
    making: &Making<'_>,
    path: &Path,
    wanted: Wanted,
    passphrases: impl FnOnce(NewDisk) -> Result<Vec<Vec<SecretVec>>>,
) -> Result<Created> {
    let flash: Arc<dyn Flash> = Arc::new(UbiVolume::open(path, false)?);
    let there = content(&*flash)?;
    let disk = disk_on(&flash);
    let there = disk.as_ref().ok().and_then(Option::as_ref).map(lacuna_disk).or(there);
    if let Some(there) = &there
        && !making.options.force
    {
        return Err(making
            .refused()
            .with_kind(Kind::Exists)
            .found(there.clone())
            .expected("a volume that holds nothing")
            .remedy(overwrite()));
    }
    let _claim = making.claim(disk)?;
    let params = plan(making, flash.geometry(), wanted)?;
    there.map_or(Ok(()), |there| making.observer.replaces(&there))?;
    let header = making.draft(&Parameters::Flash(params), passphrases)?;
    lay(making, &flash, params, header)
}

fn on_nand(
    making: &Making<'_>,
    path: &Path,
    wanted: Wanted,
    passphrases: impl FnOnce(NewDisk) -> Result<Vec<Vec<SecretVec>>>,
) -> Result<Created> {
    let there = look_at(making, path)?;
    let size = blocks(making.options.size.ok_or_else(|| making.no_size("a simulated chip"))?)?;
    let chip = NewChip::for_blocks(making, size, wanted)?;
    let params = plan(making, chip.flash(), wanted)?;
    let mut _claim = None;
    if let Some((medium, words)) = &there {
        _claim = making.claim(disk_in(path, medium))?;
        making.observer.replaces(words)?;
    }
    let header = making.draft(&Parameters::Flash(params), passphrases)?;
    let is_new = there.is_none();
    let medium = match there {
        Some((medium, _)) => medium,
        None => Arc::new(FileMedium::create(path, 0)?),
    };
    let made = chip
        .make(&medium)
        .and_then(|()| lay(making, &attach(path, medium.clone())?, params, header))
        .and_then(|made| if is_new { sync_directory(path).map(|()| made) } else { Ok(made) });
    if made.is_err() && is_new {
        // That it is ours is sure: it was created by this process.
        let _ = std::fs::remove_file(path);
    }
    made.inspect(|_| making.observer.note(FORGETS_NOTHING))
        .map_err(|e| e.context(format!("cannot create nand:{}", path.display())))
}

/// The file that is there and may be overwritten, held, and what it is in words. None if nothing is.
fn look_at(making: &Making<'_>, path: &Path) -> Result<Option<(Arc<FileMedium>, String)>> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(format!("cannot look at {}", path.display()), &e)),
        Ok(about) if about.is_file() => {}
        Ok(_) => {
            return Err(making
                .refused()
                .found("something that is not a file")
                .expected("a path where nothing exists, for a file that holds a simulated chip"));
        }
    }
    let access = if making.options.force { Access::Write } else { Access::Read };
    let medium = Arc::new(FileMedium::open(path, access)?);
    // For the words alone.
    let there = disk_in(path, &medium).ok().flatten();
    let words =
        there.map_or_else(|| format!("a file of {}", human(medium.len())), |there| lacuna_disk(&there));
    if making.options.force {
        return Ok(Some((medium, words)));
    }
    let refused = making.refused().with_kind(Kind::Exists).found(words);
    Err(refused.expected("a path where nothing exists").remedy(overwrite()))
}

/// A simulated chip that is made for a disk.
struct NewChip {
    geometry: ChipGeometry,
    wearing: Wearing,
    /// Says which blocks are bad from the factory.
    seed: u64,
}

impl NewChip {
    /// The smallest chip that a disk of so many blocks fits.
    fn for_blocks(making: &Making<'_>, blocks: u64, wanted: Wanted) -> Result<NewChip> {
        let Wanted { key_len, spare, chip: ChipShape { page, pages, wearing } } = wanted;
        let seed = random_number()?;
        let chip = |blocks: u32| NewChip { geometry: ChipGeometry { page, pages, blocks }, wearing, seed };
        let fits = |count: u32| {
            let params = Params { blocks, most_blocks: blocks, key_len, flash: chip(count).flash() };
            params.spare().is_some_and(|left| left >= spare)
        };
        Params::check_leb(chip(8).flash())?;
        // From below: what fits a chip does not fit one whose blocks cannot all be numbered.
        let mut most = 8;
        while most < MOST_BLOCKS && !fits(most) {
            most *= 2;
        }
        if !fits(most) {
            return Err(making
                .refused()
                .found(format!("{} on a chip with pages of {page} bytes, {pages} to a block", human(blocks * BLOCK_SIZE as u64)))
                .expected("a disk that fits a chip of 16 million erase blocks, pages of 512 bytes to 64 KiB, 4 to 4096 to a block")
                .remedy("choose a smaller disk, or another chip"));
        }
        let mut least = (most / 2).max(8);
        while least < most {
            let middle = least + (most - least) / 2;
            if fits(middle) { most = middle } else { least = middle + 1 }
        }
        Ok(chip(most))
    }

    /// The logical erase blocks that come out.
    fn flash(&self) -> FlashGeometry {
        // Counting those of a large chip for each guess would take long, and where none is bad there is nothing to count.
        let bad = match self.wearing.factory_bad {
            0 => 0,
            _ => SimulatedChip::factory_bad(self.geometry, self.wearing, self.seed),
        };
        Mapping::geometry_on(self.geometry, bad)
    }

    /// Makes the chip in an empty file, or in one whose content goes, and divides it.
    fn make(&self, medium: &Arc<FileMedium>) -> Result<()> {
        medium.forget_space();
        medium.set_len(0)?;
        medium.set_len(SimulatedChip::medium_len(self.geometry))?;
        SimulatedChip::create(&**medium, self.geometry, self.wearing, self.seed)?;
        Mapping::create(&SimulatedChip::open(medium.clone(), self.seed)?, random_number()?)
    }
}

fn random_number() -> Result<u64> {
    let mut bytes = [0; 8];
    SystemRandom::new()?.fill(&mut bytes);
    Ok(u64::from_le_bytes(bytes))
}

/// The disk on flash, if there is one. Errors: what keeps its header from being read.
fn disk_on(flash: &Arc<dyn Flash>) -> Result<Option<PublicHeader>> {
    making::disk_on(&HeaderMedium::new(flash.clone()))
}

/// The disk on a simulated chip in a file, if it is such a file with a disk on it.
fn disk_in(path: &Path, medium: &Arc<FileMedium>) -> Result<Option<PublicHeader>> {
    match attach(path, medium.clone()) {
        Ok(flash) => disk_on(&flash),
        Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::NotFound) => Ok(None),
        Err(e) => Err(e),
    }
}

/// What is on flash, in words, if anything is.
fn content(flash: &dyn Flash) -> Result<Option<String>> {
    for leb in (0..flash.geometry().lebs).map(Leb) {
        if flash.is_mapped(leb)? {
            return Ok(Some("flash that holds data".to_owned()));
        }
    }
    Ok(None)
}

/// The disk that is to be made on this flash.
fn plan(making: &Making<'_>, flash: FlashGeometry, wanted: Wanted) -> Result<Params> {
    let Wanted { key_len, spare, .. } = wanted;
    let largest = Params::fitting(flash, key_len, spare)?;
    let Some(size) = making.options.size else { return Ok(largest) };
    let params = Params { blocks: blocks(size)?, ..largest };
    if params.blocks > largest.blocks {
        return Err(making
            .refused()
            .with_kind(Kind::NoSpace)
            .found(format!("{} bytes on this flash", params.blocks * BLOCK_SIZE as u64))
            .expected(format!(
                "at most {} bytes, with what it has to keep spare",
                largest.blocks * BLOCK_SIZE as u64
            ))
            .remedy("choose a smaller size, or none for all of it"));
    }
    params.layout()?;
    Ok(params)
}

/// Lays the disk on the flash, its header last.
fn lay(making: &Making<'_>, flash: &Arc<dyn Flash>, params: Params, header: NewHeader) -> Result<Created> {
    if flash.geometry() != params.flash {
        return Err(Error::new(Kind::Io, "blocks of the flash went bad while the disk was made")
            .found(format!("{} erase blocks", flash.geometry().lebs))
            .expected(format!("{}", params.flash.lebs))
            .remedy("try again"));
    }
    let created = Created::with(Parameters::Flash(params), &header);
    let random: Arc<dyn RandomSource> = Arc::new(SystemRandom::new()?);
    let laying = format!("laying out {}", making.options.location);
    during(making.observer, &laying, || {
        header.write(&HeaderMedium::new(flash.clone()), |unlocked| {
            FlashDisk::create(flash, &params, &unlocked.master_keys[0], &random)
        })
    })?;
    Ok(created)
}
