//! `create`: lays a new disk on a file or block device.
//!
//! What can be refused is refused before a passphrase is asked for, and what shall be overwritten is held against
//! other processes from then on.

use crate::args::{CreateArgs, Format};
use crate::console::Console;
use crate::cost::Wanted;
use crate::passphrase;
use crate::size::{Size, human};
use crate::unlock::path_of;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_crypto::SystemRandom;
use lacuna_medium::{Access, FileMedium, Medium};
use lacuna_sealed::{Layout, Params, Sealed};
use lacuna_volume::{CreateHeader, FormatId, HEADER_AREA, NewHeader, Unlocked};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// `lacuna create`.
pub fn run(args: &CreateArgs, console: Console) -> Result<()> {
    let Format::Sealed = args.format;
    let path = path_of(&args.location)?;
    let place = Place::look(path, args.force)?;
    let params = plan(args, &place)?;
    let wanted = Wanted::from_args(&args.cost)?.unwrap_or_else(Wanted::usual);
    let passphrases = passphrase::to_create(&args.passphrase, &args.location.to_string())?;
    if passphrases.len() != 1 {
        return Err(Error::new(Kind::Usage, format!("cannot create {}", args.location))
            .found(format!("{} passphrases", passphrases.len()))
            .expected("one to begin with")
            .remedy("create the disk with one, then use `lacuna key add`"));
    }
    let header = CreateHeader {
        format: FormatId::SEALED,
        params: params.encode().to_vec(),
        cost: wanted.settle(console),
        levels: &[passphrases],
        uuid: None,
    };
    let random = SystemRandom::new()?;
    let unlocked = place.write(path, &params, NewHeader::build(header, &random)?)?;
    console.done(&format!(
        "created {}: {}, {}, {}, UUID {}",
        args.location,
        human(params.blocks * BLOCK),
        params.cipher.name(),
        params.layout.name(),
        unlocked.header.uuid
    ))
}

/// What is at the path before anything is written.
enum Place {
    Nothing,
    File(FileMedium),
    Device(FileMedium),
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
            return Self::device(path, force).map(Place::Device);
        }
        if !kind.is_file() {
            return Err(refused()
                .found(if kind.is_dir() { "a directory" } else { "neither a file nor a block device" })
                .expected("a path where nothing exists, or a block device"));
        }
        if force {
            return FileMedium::open(path, Access::Write).map(Place::File);
        }
        Err(refused()
            .found("a file that exists already")
            .expected("a path where nothing exists")
            .remedy("choose another path, or give --force to overwrite it"))
    }

    fn device(path: &Path, force: bool) -> Result<FileMedium> {
        // For a block device this flag means: not if the system itself uses it, mounted or as swap.
        let exclusive = File::options().read(true).custom_flags(libc::O_EXCL).open(path);
        exclusive.map_err(|e| Error::io(format!("cannot create a disk on {}", path.display()), &e))?;
        let medium = FileMedium::open(path, Access::Write)?;
        let mut start = vec![0; HEADER_AREA.min(medium.len()) as usize];
        medium.read_at(0, &mut start)?;
        if force || start.iter().all(|byte| *byte == 0) {
            return Ok(medium);
        }
        Err(Error::new(Kind::Usage, format!("cannot create a disk on {}", path.display()))
            .found("a device that holds data")
            .expected("zeros in its first MiB")
            .remedy("make sure that it is the right device, then give --force to overwrite it"))
    }

    /// Lays the disk down. A file that was made here goes again if that fails.
    fn write(self, path: &Path, params: &Params, header: NewHeader) -> Result<Unlocked> {
        let len = params.geometry().medium_len();
        let lay = |medium: &FileMedium| {
            header.write(medium, |unlocked| Sealed::create(medium, params, &unlocked.master_keys[0]))
        };
        match self {
            Place::Device(medium) => lay(&medium),
            Place::File(medium) => {
                // A length that the file system refuses shall cost nothing of what is there.
                let emptied = medium.set_len(medium.len().max(len)).and_then(|()| medium.set_len(0));
                emptied.and_then(|()| medium.set_len(len)).and_then(|()| lay(&medium))
            }
            Place::Nothing => FileMedium::create(path, 0).and_then(|medium| {
                // From here on there is a file to remove.
                let laid = medium.set_len(len).and_then(|()| lay(&medium));
                laid.and_then(|unlocked| sync_directory(path).map(|()| unlocked))
                    .inspect_err(|_| remove(path))
            }),
        }
        .map_err(|e| e.context(format!("cannot create {}", path.display())))
    }
}

/// Removes the file that could not be made whole. That it was ours is sure: it was created by this process.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// Makes the name of a new file durable.
fn sync_directory(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(parent).and_then(|dir| dir.sync_all());
    synced.map_err(|e| Error::io(format!("cannot sync the directory {}", parent.display()), &e))
}

fn plan(args: &CreateArgs, place: &Place) -> Result<Params> {
    let layout = match args.layout {
        Some(layout) if args.cipher.meta_size() == 0 && layout != Layout::SegmentEnd => {
            return Err(Error::new(Kind::Usage, "cannot use this layout")
                .found(format!("--layout {} with --cipher {}", layout.name(), args.cipher.name()))
                .expected("a cipher that keeps metadata: xts-random or gcm")
                .remedy("leave --layout away"));
        }
        layout => layout.unwrap_or(Layout::SegmentEnd),
    };
    let room = match place {
        Place::Device(medium) => Some(medium.len()),
        _ => None,
    };
    match (args.size, room) {
        (Some(size), _) => Params::plan(args.cipher, layout, blocks(size)?, room),
        (None, Some(room)) => Params::largest(args.cipher, layout, room),
        (None, None) => Err(Error::new(Kind::Usage, format!("cannot create {}", args.location))
            .found("no size")
            .expected("--size for a disk in a file")
            .remedy("give for example --size 20G")),
    }
}

/// A size in blocks.
pub fn blocks(size: Size) -> Result<u64> {
    if size.0 > 0 && size.0.is_multiple_of(BLOCK) {
        return Ok(size.0 / BLOCK);
    }
    let below = (size.0 / BLOCK).max(1) * BLOCK;
    Err(Error::new(Kind::Usage, "cannot use this --size")
        .found(format!("{} bytes", size.0))
        .expected("a multiple of 4096, and not 0")
        .remedy(format!("give for example --size {below}")))
}
