//! Makes a disk on a file or block device.

use crate::human;
use crate::making::{Making, NewDisk, disk_on, lacuna_disk, overwrite};
use crate::observer::during;
use crate::parameters::Parameters;
use crate::shape::{Created, Shape, blocks};
use lacuna_core::{Advice, BLOCK_SIZE, Error, Kind, Result, SecretVec, Setting};
use lacuna_crypto::{Cipher, SystemRandom};
use lacuna_deniable::Params as DeniableParams;
use lacuna_header::{HEADER_AREA, NewHeader, PublicHeader, Unlocked, copy_c, medium_len};
use lacuna_levels::{LevelFormat, Masters, Randomness};
use lacuna_medium::{Access, FileMedium, Medium};
use lacuna_oblivious::Params as ObliviousParams;
use lacuna_sealed::{Params, Sealed};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// What is said of a device that is not blank.
const DATA: &str = "a device that holds data";

/// MiB within which a disk with levels fits, whatever its shape.
const MOST_LEAST: u64 = 4096;

/// Makes the disk.
pub(crate) fn run(
    making: &Making<'_>,
    path: &Path,
    passphrases: impl FnOnce(NewDisk) -> Result<Vec<Vec<SecretVec>>>,
) -> Result<Created> {
    let Making { options, observer } = making;
    let place = Place::look(path, options.force)?;
    // Only what may be overwritten comes this far.
    let _claim = making.claim(place.disk())?;
    if options.preallocate && matches!(place, Place::Device(_)) {
        return Err(making
            .refused()
            .found("preallocation of a block device, whose space is not for lacuna to take")
            .expected("preallocation of a file")
            .remedy("leave it out; on a thin volume, see to its space with the tools that made it"));
    }
    let parameters = plan(making, &place)?;
    if let Some(there) = place.content() {
        observer.replaces(&there)?;
    }
    let len = medium_len(parameters.end());
    let header = making.draft(&parameters, passphrases)?;
    let created = Created::with(parameters, &header);
    // A log that is written round and round needs its whole length sooner or later, and a disk with levels cannot be
    // written at all when the host has no space for the next write.
    let whole = Whole { wanted: options.preallocate, taken: options.preallocate || parameters.has_levels() };
    let laying = format!("laying out {}", path.display());
    let is_file = !matches!(place, Place::Device(_));
    during(*observer, &laying, || place.write(path, &parameters, (len, whole), header))?;
    let taken = std::fs::metadata(path).map_or(len, |about| about.blocks() * 512);
    if is_file && whole.taken && taken < len {
        observer.note(&format!(
            "the host did not give {} all of its space: it will want {} more as it is written",
            path.display(),
            human(len - taken)
        ));
    }
    Ok(created)
}

/// Whether the space of the medium is taken ahead.
#[derive(Clone, Copy)]
struct Whole {
    /// Whether it must be.
    wanted: bool,
    /// Whether it is where the file system can, and has it.
    taken: bool,
}

impl Whole {
    fn take(self, medium: &FileMedium, len: u64) -> Result<()> {
        if !self.taken {
            return Ok(());
        }
        let taken = match medium.allocate(0, len) {
            // It is taken as it is written, until there is none left.
            Err(e) if e.kind() == Kind::NoSpace && !self.wanted => return Ok(()),
            taken => taken?,
        };
        if taken || !self.wanted {
            return Ok(());
        }
        Err(Error::new(Kind::Usage, "cannot take the space of the disk ahead")
            .found("a file system that does not do this")
            .expected("one that has fallocate, such as ext4, xfs, btrfs or tmpfs")
            .remedy("do not preallocate it, or put the disk on another file system"))
    }
}

/// What is at the path before anything is written.
enum Place {
    Nothing,
    File(Arc<FileMedium>),
    Device(Arc<FileMedium>),
}

impl Place {
    fn look(path: &Path, force: bool) -> Result<Place> {
        let refused = || Error::new(Kind::Usage, format!("cannot create {}", path.display()));
        let kind = match std::fs::metadata(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                if parent.is_dir() {
                    return Ok(Place::Nothing);
                }
                let missing = format!("no directory {}", parent.display());
                return Err(refused().with_kind(Kind::NotFound).found(missing).remedy("make it first"));
            }
            other => {
                other.map_err(|e| Error::io(format!("cannot look at {}", path.display()), &e))?.file_type()
            }
        };
        if kind.is_block_device() {
            return Self::device(path, force).map(|medium| Place::Device(Arc::new(medium)));
        }
        if !kind.is_file() {
            return Err(refused()
                .found(if kind.is_dir() { "a directory" } else { "neither a file nor a block device" })
                .expected("a path where nothing exists, or a block device"));
        }
        if force {
            return FileMedium::open(path, Access::Write).map(|medium| Place::File(Arc::new(medium)));
        }
        // For the words alone: it is refused whatever it is.
        let there = FileMedium::open(path, Access::Read).and_then(|medium| disk_on(&medium)).ok().flatten();
        let found =
            there.map_or_else(|| "a file that exists already".to_owned(), |there| lacuna_disk(&there));
        let refused = refused().with_kind(Kind::Exists).found(found).expected("a path where nothing exists");
        Err(refused.remedy(overwrite()))
    }

    /// The bytes of a device that are there for the disk, before the last copy of the header.
    fn room(&self) -> Option<u64> {
        match self {
            Place::Device(medium) => Some(copy_c(medium.len()).unwrap_or(0)),
            Place::Nothing | Place::File(_) => None,
        }
    }

    /// The disk that is there already: it may be open under another name.
    fn disk(&self) -> Result<Option<PublicHeader>> {
        let (Place::File(medium) | Place::Device(medium)) = self else { return Ok(None) };
        disk_on(&**medium)
    }

    /// What is there already, in words. None for what is empty.
    fn content(&self) -> Option<String> {
        match (self, self.disk()) {
            (_, Ok(Some(there))) => Some(lacuna_disk(&there)),
            (Place::File(medium), _) => {
                (medium.len() > 0).then(|| format!("a file of {}", human(medium.len())))
            }
            (Place::Device(_), Err(e)) => {
                Some(format!("a device whose header cannot be read ({})", e.finding()))
            }
            (Place::Device(medium), Ok(None)) => match starts_with_data(medium) {
                Ok(false) => None,
                Ok(true) => Some(DATA.to_owned()),
                Err(_) => Some("a device that cannot be read".to_owned()),
            },
            (Place::Nothing, _) => None,
        }
    }

    fn device(path: &Path, force: bool) -> Result<FileMedium> {
        let medium = FileMedium::open(path, Access::Write)?;
        // A disk may have nothing left at its beginning and still open by the copy of its header at the end.
        let there = disk_on(&medium);
        if force || matches!(there, Ok(None)) && !starts_with_data(&medium)? {
            return Ok(medium);
        }
        let found = match there {
            Ok(Some(there)) => lacuna_disk(&there),
            Ok(None) => DATA.to_owned(),
            Err(e) => {
                format!("a device that holds data, or a disk whose header cannot be read ({})", e.finding())
            }
        };
        Err(Error::new(Kind::Exists, format!("cannot create a disk on {}", path.display()))
            .found(found)
            .expected("zeros in its first MiB, and no lacuna disk")
            .remedy(overwrite()))
    }

    /// Lays the disk down on a medium of this length. A file that was made here goes again if that fails.
    fn write(
        self,
        path: &Path,
        parameters: &Parameters,
        (len, whole): (u64, Whole),
        header: NewHeader,
    ) -> Result<()> {
        let lay = |medium: &Arc<FileMedium>| {
            let contents = |unlocked: &Unlocked| lay(medium, parameters, unlocked);
            header.write(&**medium, contents).map(drop)
        };
        match self {
            Place::Device(medium) => lay(&medium),
            Place::File(medium) => {
                // If the file system refuses the length or the space, what is there stays.
                let before = medium.len();
                medium.forget_space();
                let possible = medium.set_len(before.max(len)).and_then(|()| whole.take(&medium, len));
                let possible = possible.inspect_err(|_| drop(medium.set_len(before)));
                let emptied = possible.and_then(|()| medium.set_len(0));
                let made = emptied.and_then(|()| medium.set_len(len)).and_then(|()| whole.take(&medium, len));
                made.and_then(|()| lay(&medium))
            }
            Place::Nothing => FileMedium::create(path, 0).map(Arc::new).and_then(|medium| {
                // From here on there is a file to remove.
                let made = medium.set_len(len).and_then(|()| whole.take(&medium, len));
                let laid = made.and_then(|()| lay(&medium));
                laid.and_then(|()| sync_directory(path)).inspect_err(|_| remove(path))
            }),
        }
        .map_err(|e| e.context(format!("cannot create {}", path.display())))
    }
}

/// Whether anything but zeros stands in the first MiB.
fn starts_with_data(medium: &FileMedium) -> Result<bool> {
    let mut start = vec![0; HEADER_AREA.min(medium.len()) as usize];
    medium.read_at(0, &mut start)?;
    Ok(start.iter().any(|byte| *byte != 0))
}

/// Lays the disk itself behind its header.
fn lay(medium: &Arc<FileMedium>, parameters: &Parameters, unlocked: &Unlocked) -> Result<()> {
    match parameters {
        Parameters::Flat(params) => Sealed::create(&**medium, params, &unlocked.master_keys[0]),
        Parameters::Deniable(params) => lay_levels(params, medium, unlocked),
        Parameters::Oblivious(params) => lay_levels(params, medium, unlocked),
        Parameters::Objects(_) | Parameters::Flash(_) | Parameters::Vault(_) => {
            unreachable!("{parameters:?} is not planned for a file")
        }
    }
}

fn lay_levels(params: &impl LevelFormat, medium: &Arc<FileMedium>, unlocked: &Unlocked) -> Result<()> {
    let masters = Masters { keys: &unlocked.master_keys, uuid: &unlocked.header.uuid.0 };
    let medium = Arc::clone(medium) as Arc<dyn Medium>;
    params.create(&medium, masters, Randomness::of(Arc::new(SystemRandom::new()?)))
}

/// Removes the file that could not be made whole. That it was ours is sure: it was created by this process.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// Makes the name of a new file durable.
pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(parent).and_then(|dir| dir.sync_all());
    synced.map_err(|e| Error::io(format!("cannot sync the directory {}", parent.display()), &e))
}

fn plan(making: &Making<'_>, place: &Place) -> Result<Parameters> {
    match making.options.shape {
        Shape::Sealed { cipher, layout: None } => plan_sealed(making, place, cipher).map(Parameters::Flat),
        Shape::Sealed { layout: Some(layout), .. } => {
            Err(Error::new(Kind::Usage, "cannot use this layout")
                .found(format!("the layout {} for {}", layout.name(), making.options.location))
                .expected("no choice of a layout: layouts are a choice of rados: locations")
                .remedy("leave it out"))
        }
        Shape::Deniable { geometry, spare_permille, cover_millis, .. } => {
            let plan = |room| DeniableParams::plan(room, geometry, spare_permille, cover_millis);
            plan_levels(making, place, plan).map(Parameters::Deniable)
        }
        Shape::Oblivious { plan, .. } => {
            plan_levels(making, place, |room| ObliviousParams::plan(room, plan)).map(Parameters::Oblivious)
        }
        Shape::Flash { .. } => Err(making
            .refused()
            .found("the format flash on a file or block device")
            .expected("flash that can be erased: ubi:/dev/ubi0_0, or a simulated chip, nand:chip.img")
            .remedy(
                "below a file or a block device, an SSD among them, old contents stay, and nothing can be forgotten there",
            )),
    }
}

/// Lays out a disk with levels by `plan`, which is given the bytes that they share.
fn plan_levels<P>(making: &Making<'_>, place: &Place, plan: impl Fn(u64) -> Result<P>) -> Result<P> {
    room(making, place).and_then(&plan).map_err(|e| {
        // The least that can be had depends on the other options.
        let least = (1..=MOST_LEAST).find(|mib| plan(mib << 20).is_ok()).unwrap_or(0);
        let too_small = making.options.size.is_some_and(|size| size < least << 20);
        let advice = Advice::from("give at least ").setting(Setting("size")).text(format!(" {least}M"));
        if too_small { e.remedy(advice) } else { e }
    })
}

/// The bytes that the levels of a disk share.
fn room(making: &Making<'_>, place: &Place) -> Result<u64> {
    let held = place.room();
    match (making.options.size, held) {
        (Some(size), Some(held)) if size > held => {
            Err(Error::new(Kind::Usage, "the disk does not fit its medium")
                .found(format!("a medium of {held} bytes"))
                .expected(format!("at least the {size} bytes that were asked for"))
                .remedy("choose a smaller size, or none"))
        }
        (Some(size), _) => Ok(blocks(size)? * BLOCK_SIZE as u64),
        (None, Some(held)) => Ok(held),
        (None, None) => Err(making.no_size("a file")),
    }
}

fn plan_sealed(making: &Making<'_>, place: &Place, cipher: Cipher) -> Result<Params> {
    let room = place.room();
    match (making.options.size, room) {
        (Some(size), _) => Params::plan(cipher, blocks(size)?, room),
        (None, Some(room)) => Params::largest(cipher, room),
        (None, None) => Err(making.no_size("a file")),
    }
}
