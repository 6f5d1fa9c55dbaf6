//! `create` on a file or block device.

use crate::args::{CreateArgs, Format, HidingArg};
use crate::claim;
use crate::console::{self, Console};
use crate::cost::Wanted;
use crate::draft::{blocks, check_layout, draft, no_size};
use crate::parameters::Parameters;
use crate::size::human;
use crate::working;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_crypto::SystemRandom;
use lacuna_deniable::{Deniable, Geometry, Params as DeniableParams};
use lacuna_header::{HEADER_AREA, NewHeader, PublicHeader, Unlocked, copy_c, medium_len};
use lacuna_medium::{Access, FileMedium, Medium};
use lacuna_oblivious::{Hiding, Oblivious, Params as ObliviousParams, Plan};
use lacuna_sealed::{Layout, Params, Sealed};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// The spare factor, in thousandths, unless one is given: the paper's choice (section 6).
const SPARE: u16 = 200;
/// The time between two stripes, or batches, of cover unless one is given.
const COVER_MILLIS: u32 = 1000;

/// MiB within which a disk with levels fits, whatever its shape.
const MOST_LEAST: u64 = 4096;

/// Makes the disk.
pub fn run(
    args: &CreateArgs,
    path: &Path,
    wanted: &Wanted,
    console: Console,
) -> Result<(Parameters, PublicHeader)> {
    let place = Place::look(path, args.force)?;
    if let Some(there) = place.disk() {
        claim::take(there.uuid, &format!("cannot overwrite {}", path.display()), console)?;
        // A script that gives the passphrase means what it says.
        if !args.passphrase.is_given() && console::can_ask() {
            console.note(&format!("{} holds {}, which is lost then", path.display(), lacuna_disk(&there)));
            console::confirm()?;
        }
    }
    if args.preallocate && matches!(place, Place::Device(_)) {
        return Err(Error::new(Kind::Usage, format!("cannot create {}", path.display()))
            .found("--preallocate for a block device, whose space is not for lacuna to take")
            .expected("--preallocate for a file")
            .remedy("leave it away; on a thin volume, see to its space with the tools that made it"));
    }
    let parameters = plan(args, &place)?;
    let len = medium_len(parameters.end());
    let header = draft(args, &parameters, wanted, console)?;
    let public = header.unlocked().header.clone();
    // A log that is written round and round needs its whole length sooner or later, and a disk with levels cannot be
    // written at all when the host has no space for the next write.
    let whole = Whole { wanted: args.preallocate, taken: args.preallocate || parameters.has_levels() };
    let laying = format!("laying out {}", path.display());
    let is_file = !matches!(place, Place::Device(_));
    working::show(console, &laying, |_| place.write(path, &parameters, (len, whole), header))?;
    let taken = std::fs::metadata(path).map_or(len, |about| about.blocks() * 512);
    if is_file && whole.taken && taken < len {
        console.note(&format!(
            "the host did not give {} all of its space: it will want {} more as it is written",
            path.display(),
            human(len - taken)
        ));
    }
    Ok((parameters, public))
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
        Err(Error::new(Kind::Usage, "cannot take the space of the disk ahead (--preallocate)")
            .found("a file system that does not do this")
            .expected("one that has fallocate, such as ext4, xfs, btrfs or tmpfs")
            .remedy("leave --preallocate away, or put the disk on another file system"))
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
        let there = FileMedium::open(path, Access::Read).ok().and_then(|medium| disk_on(&medium));
        let found =
            there.map_or_else(|| "a file that exists already".to_owned(), |there| lacuna_disk(&there));
        Err(refused()
            .found(found)
            .expected("a path where nothing exists")
            .remedy("choose another path, or give --force to overwrite it"))
    }

    /// The bytes of a device that are there for the disk, before the last copy of the header.
    fn room(&self) -> Option<u64> {
        match self {
            Place::Device(medium) => Some(copy_c(medium.len()).unwrap_or(0)),
            Place::Nothing | Place::File(_) => None,
        }
    }

    /// The disk that is there already: it may be open under another name.
    fn disk(&self) -> Option<PublicHeader> {
        let (Place::File(medium) | Place::Device(medium)) = self else { return None };
        disk_on(medium)
    }

    fn device(path: &Path, force: bool) -> Result<FileMedium> {
        let medium = FileMedium::open(path, Access::Write)?;
        let mut start = vec![0; HEADER_AREA.min(medium.len()) as usize];
        medium.read_at(0, &mut start)?;
        // A disk may have nothing left at its beginning and still open by the copy of its header at the end.
        let there = disk_on(&medium);
        if force || there.is_none() && start.iter().all(|byte| *byte == 0) {
            return Ok(medium);
        }
        Err(Error::new(Kind::Usage, format!("cannot create a disk on {}", path.display()))
            .found(there.map_or_else(|| "a device that holds data".to_owned(), |there| lacuna_disk(&there)))
            .expected("zeros in its first MiB, and no lacuna disk")
            .remedy("make sure that it is the right device, then give --force to overwrite it"))
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

/// What a medium says of the disk on it, if there is one.
fn disk_on(medium: &FileMedium) -> Option<PublicHeader> {
    lacuna_header::read_public(medium).ok().map(|(there, _)| there)
}

fn lacuna_disk(there: &PublicHeader) -> String {
    format!("a lacuna disk (UUID {})", there.uuid)
}

/// Lays the disk itself behind its header.
fn lay(medium: &Arc<FileMedium>, parameters: &Parameters, unlocked: &Unlocked) -> Result<()> {
    match parameters {
        Parameters::Flat(params) => Sealed::create(&**medium, params, &unlocked.master_keys[0]),
        Parameters::Deniable(params) => {
            let random = Arc::new(SystemRandom::new()?);
            let medium = Arc::clone(medium) as Arc<dyn Medium>;
            let uuid = &unlocked.header.uuid.0;
            Deniable::create(&medium, params, &unlocked.master_keys, uuid, random.clone(), random)
        }
        Parameters::Oblivious(params) => {
            let random = Arc::new(SystemRandom::new()?);
            let medium = Arc::clone(medium) as Arc<dyn Medium>;
            let uuid = &unlocked.header.uuid.0;
            Oblivious::create(&medium, params, &unlocked.master_keys, uuid, random.clone(), random)
        }
        Parameters::Objects(_) => unreachable!("a disk on objects is not made in a file"),
    }
}

/// Removes the file that could not be made whole. That it was ours is sure: it was created by this process.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// Makes the name of a new file durable.
pub fn sync_directory(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(parent).and_then(|dir| dir.sync_all());
    synced.map_err(|e| Error::io(format!("cannot sync the directory {}", parent.display()), &e))
}

fn plan(args: &CreateArgs, place: &Place) -> Result<Parameters> {
    match args.format {
        Format::Sealed => plan_sealed(args, place).map(Parameters::Flat),
        Format::Deniable => plan_deniable(args, place).map(Parameters::Deniable),
        Format::Oblivious => plan_oblivious(args, place).map(Parameters::Oblivious),
    }
}

/// Lays out a disk with levels by `plan`, which is given the bytes that they share.
fn plan_levels<P>(args: &CreateArgs, place: &Place, plan: impl Fn(u64) -> Result<P>) -> Result<P> {
    room(args, place).and_then(&plan).map_err(|e| {
        // The least that can be had depends on the other options.
        let least = (1..=MOST_LEAST).find(|mib| plan(mib << 20).is_ok()).unwrap_or(0);
        let too_small = args.size.is_some_and(|size| size.0 < least << 20);
        if too_small { e.remedy(format!("give at least --size {least}M")) } else { e }
    })
}

/// The bytes that the levels of a disk share.
fn room(args: &CreateArgs, place: &Place) -> Result<u64> {
    let held = place.room();
    match (args.size, held) {
        (Some(size), Some(held)) if size.0 > held => {
            Err(Error::new(Kind::Usage, "the disk does not fit its medium")
                .found(format!("a medium of {held} bytes"))
                .expected(format!("at least the {} bytes of --size", size.0))
                .remedy("choose a smaller --size, or leave it away"))
        }
        (Some(size), _) => Ok(blocks(size)? * BLOCK_SIZE as u64),
        (None, Some(held)) => Ok(held),
        (None, None) => Err(no_size(args, "a file")),
    }
}

fn plan_deniable(args: &CreateArgs, place: &Place) -> Result<DeniableParams> {
    let wanted = &args.shape;
    let geometry = wanted.geometry.unwrap_or(Geometry::DEFAULT);
    let (spare, cover) = (wanted.spare.unwrap_or(SPARE), wanted.cover.unwrap_or(COVER_MILLIS));
    plan_levels(args, place, |room| DeniableParams::plan(room, geometry, spare, cover))
}

fn plan_oblivious(args: &CreateArgs, place: &Place) -> Result<ObliviousParams> {
    let wanted = &args.shape;
    let hiding = match wanted.hiding {
        Some(HidingArg::Plausible) => Hiding::Plausible,
        Some(HidingArg::Opportunistic) | None => Hiding::Opportunistic,
    };
    let plan = Plan {
        hiding,
        per_write: wanted.cells_per_write.unwrap_or(Plan::DEFAULT.per_write),
        // Hidden flushes wait for batches with either hiding.
        cover_millis: wanted.cover.unwrap_or(COVER_MILLIS),
        ..Plan::DEFAULT
    };
    plan_levels(args, place, |room| ObliviousParams::plan(room, plan))
}

fn plan_sealed(args: &CreateArgs, place: &Place) -> Result<Params> {
    check_layout(args, Layout::SegmentEnd.name())?;
    let layout = match args.layout {
        None => Layout::SegmentEnd,
        Some(wanted) => Layout::ALL.into_iter().find(|l| l.name() == wanted.name()).ok_or_else(|| {
            Error::new(Kind::Usage, "cannot use this layout")
                .found(format!("--layout {} for {}", wanted.name(), args.location))
                .expected(format!("one of {}", Layout::ALL.map(Layout::name).join(", ")))
                .remedy("leave --layout away; this one is for rados: locations")
        })?,
    };
    let room = place.room();
    match (args.size, room) {
        (Some(size), _) => Params::plan(args.cipher(), layout, blocks(size)?, room),
        (None, Some(room)) => Params::largest(args.cipher(), layout, room),
        (None, None) => Err(no_size(args, "a file")),
    }
}
