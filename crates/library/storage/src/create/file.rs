//! Creates a disk on a file or block device.

use crate::backing::Backing;
use crate::create::create_context::{
    CreateContext, CreatePrompt, CreatedDisk, describe_disk, header_on, overwrite_hint, write_disk,
};
use crate::foreign;
use crate::format::{AvailableSpace, Params};
use crate::human_size;
use crate::observer::run_step;
use crate::sync_directory::sync_directory;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::{HEADER_AREA, NewHeader, PublicHeader, copy_c, medium_len};
use lacuna_medium::{Access, FileMedium, Medium, check_can_create, check_takes_len};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// The description of a device with unknown content.
const DEVICE_WITH_DATA: &str = "a device that holds data";

/// Creates the disk.
pub(crate) fn create(
    context: &CreateContext<'_>,
    path: &Path,
    passphrases: CreatePrompt<'_>,
) -> Result<CreatedDisk> {
    let CreateContext { options, observer } = context;
    let place = CreateTarget::inspect(path, options.force)?;
    // The claim and the question rest on the same read.
    let disk = place.existing_disk();
    let content = place.describe_content(&disk);
    // `CreateTarget::inspect` has refused content that may not be overwritten.
    let _claim = context.claim(disk)?;
    if options.preallocate && matches!(place, CreateTarget::Device(_)) {
        return Err(options
            .create_error()
            .found("preallocation of a block device: lacuna does not allocate its space")
            .expected("preallocation of a file")
            .hint("leave it out; on a thin volume, reserve the space with the tools of the volume"));
    }
    let params = options.shape.format.plan(options, AvailableSpace::File(place.available_bytes()))?;
    // A circular log needs its whole length sooner or later, and a disk with levels cannot be
    // written at all if the host has no space for the next write.
    let space = Allocation {
        len: medium_len(params.end()),
        is_required: options.preallocate,
        is_wanted: options.preallocate || params.has_levels(),
    };
    let is_file = !matches!(place, CreateTarget::Device(_));
    if is_file {
        check_takes_len(path, space.len, space.is_required)
            .map_err(|e| e.context(format!("cannot create {}", path.display())))?;
    }
    if let Some(there) = content {
        observer.confirm_overwrite(&there)?;
    }
    let header = context.build_header(&*params, passphrases)?;
    let laying = format!("laying out {}", path.display());
    let created = CreatedDisk::from_header(params, &header);
    run_step(*observer, &laying, || place.write_disk(path, &*created.parameters, space, header))?;
    let taken = std::fs::metadata(path).map_or(space.len, |about| about.blocks() * 512);
    if is_file && space.is_wanted && taken < space.len {
        observer.note(&format!(
            "the host did not allocate all of the space of {}: writes will need {} more",
            path.display(),
            human_size(space.len - taken)
        ));
    }
    Ok(created)
}

/// The space of the medium.
#[derive(Clone, Copy)]
struct Allocation {
    /// Length of the medium in bytes.
    len: u64,
    /// Whether all of it must be allocated ahead.
    is_required: bool,
    /// Whether to allocate it ahead, if the file system supports it and has the space.
    is_wanted: bool,
}

impl Allocation {
    fn apply(self, medium: &FileMedium) -> Result<()> {
        if !self.is_wanted {
            return Ok(());
        }
        let taken = match medium.allocate(0, self.len) {
            // The space is allocated as it is written, as long as there is any.
            Err(e) if e.kind() == Kind::NoSpace && !self.is_required => return Ok(()),
            taken => taken?,
        };
        if taken || !self.is_required {
            return Ok(());
        }
        Err(Error::new(Kind::Usage, "cannot preallocate the disk")
            .found("a file system without preallocation")
            .expected("one with fallocate, such as ext4, xfs, btrfs or tmpfs")
            .hint("do not preallocate it, or put the disk on another file system"))
    }
}

/// The existing content at the path.
enum CreateTarget {
    Nothing,
    File(Arc<FileMedium>),
    Device(Arc<FileMedium>),
}

impl CreateTarget {
    fn inspect(path: &Path, force: bool) -> Result<CreateTarget> {
        let refused = || Error::new(Kind::Usage, format!("cannot create {}", path.display()));
        let kind = match std::fs::metadata(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                if parent.is_dir() {
                    return check_can_create(path).map(|()| CreateTarget::Nothing);
                }
                let missing = format!("no directory {}", parent.display());
                return Err(refused().with_kind(Kind::NotFound).found(missing).hint("make it first"));
            }
            other => {
                other.map_err(|e| Error::io(format!("cannot look at {}", path.display()), &e))?.file_type()
            }
        };
        if kind.is_block_device() {
            return Self::open_device(path, force).map(|medium| CreateTarget::Device(Arc::new(medium)));
        }
        if !kind.is_file() {
            return Err(refused()
                .found(if kind.is_dir() { "a directory" } else { "neither a file nor a block device" })
                .expected("a path where nothing exists, or a block device"));
        }
        if force {
            return FileMedium::open(path, Access::Write).map(|medium| CreateTarget::File(Arc::new(medium)));
        }
        // Only for the error message: the file is refused in any case.
        let there = FileMedium::open(path, Access::Read).and_then(|medium| known_in(&medium)).ok().flatten();
        let found = there.unwrap_or_else(|| "a file that exists already".to_owned());
        let refused = refused().with_kind(Kind::Exists).found(found).expected("a path where nothing exists");
        Err(refused.hint(overwrite_hint()))
    }

    /// The bytes of a device that the disk can use, before the last copy of the header.
    fn available_bytes(&self) -> Option<u64> {
        match self {
            CreateTarget::Device(medium) => Some(copy_c(medium.len()).unwrap_or(0)),
            CreateTarget::Nothing | CreateTarget::File(_) => None,
        }
    }

    /// The existing disk: it may be open under another name.
    fn existing_disk(&self) -> Result<Option<PublicHeader>> {
        let (CreateTarget::File(medium) | CreateTarget::Device(medium)) = self else { return Ok(None) };
        header_on(&**medium)
    }

    /// A description of the existing content, with the result of [`CreateTarget::existing_disk`].
    /// `None` if there is none.
    fn describe_content(&self, disk: &Result<Option<PublicHeader>>) -> Option<String> {
        match (self, disk) {
            (_, Ok(Some(there))) => Some(describe_disk(there)),
            (CreateTarget::File(medium), _) => match foreign::recognized(&**medium) {
                Ok(Some(foreign)) => Some(format!("a file with {foreign}")),
                Ok(None) | Err(_) => {
                    (medium.len() > 0).then(|| format!("a file of {}", human_size(medium.len())))
                }
            },
            (CreateTarget::Device(_), Err(e)) => {
                Some(format!("a device with an unreadable header ({})", e.summary()))
            }
            (CreateTarget::Device(medium), Ok(None)) => match data_on(medium) {
                Ok(data) => data,
                Err(e) => Some(format!("a device that cannot be read ({})", e.summary())),
            },
            (CreateTarget::Nothing, _) => None,
        }
    }

    fn open_device(path: &Path, force: bool) -> Result<FileMedium> {
        let medium = FileMedium::open(path, Access::Write)?;
        if force {
            return Ok(medium);
        }
        // A disk may have lost its beginning and still open with the copy of its header at the end.
        let found = match header_on(&medium) {
            Ok(Some(there)) => describe_disk(&there),
            Ok(None) => match data_on(&medium)? {
                Some(data) => data,
                None => return Ok(medium),
            },
            Err(e) => {
                format!("a device that holds data, or a disk with an unreadable header ({})", e.summary())
            }
        };
        Err(Error::new(Kind::Exists, format!("cannot create a disk on {}", path.display()))
            .found(found)
            .expected("zeros in its first MiB, and neither a lacuna disk nor content of another program")
            .hint(overwrite_hint()))
    }

    /// Creates the disk on a medium of this length. A file that was created here is removed if that
    /// fails.
    fn write_disk(
        self,
        path: &Path,
        params: &dyn Params,
        space: Allocation,
        header: NewHeader,
    ) -> Result<()> {
        let lay = |medium: &Arc<FileMedium>| write_disk(&Backing::File(medium.clone()), params, header);
        match self {
            CreateTarget::Device(medium) => lay(&medium),
            CreateTarget::File(medium) => {
                // If the file system refuses the length or the space, the content stays.
                let before = medium.len();
                medium.release_allocation();
                let possible = medium.set_len(before.max(space.len)).and_then(|()| space.apply(&medium));
                let possible = possible.inspect_err(|_| drop(medium.set_len(before)));
                let emptied = possible.and_then(|()| medium.set_len(0));
                let made =
                    emptied.and_then(|()| medium.set_len(space.len)).and_then(|()| space.apply(&medium));
                made.and_then(|()| lay(&medium))
            }
            CreateTarget::Nothing => FileMedium::create(path, 0).map(Arc::new).and_then(|medium| {
                // If a step fails after this, the file must be removed.
                let made = medium.set_len(space.len).and_then(|()| space.apply(&medium));
                let laid = made.and_then(|()| lay(&medium));
                laid.and_then(|()| sync_directory(path)).inspect_err(|_| {
                    // It is ours: this process created it.
                    let _ = std::fs::remove_file(path);
                })
            }),
        }
        .map_err(|e| e.context(format!("cannot create {}", path.display())))
    }
}

/// The known content of an existing file, in words: a disk, or content of another program.
fn known_in(medium: &FileMedium) -> Result<Option<String>> {
    Ok(match header_on(medium)? {
        Some(there) => Some(describe_disk(&there)),
        None => foreign::recognized(medium)?.map(|foreign| format!("a file with {foreign}")),
    })
}

/// The content of a device without a disk, in words. `None` if the device is blank.
fn data_on(medium: &FileMedium) -> Result<Option<String>> {
    match foreign::recognized(medium)? {
        Some(foreign) => Ok(Some(format!("a device with {foreign}"))),
        None => Ok(starts_with_data(medium)?.then(|| DEVICE_WITH_DATA.to_owned())),
    }
}

/// Whether the first MiB contains anything except zeros.
fn starts_with_data(medium: &FileMedium) -> Result<bool> {
    let mut start = vec![0; HEADER_AREA.min(medium.len()) as usize];
    medium.read_at(0, &mut start)?;
    Ok(start.iter().any(|byte| *byte != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_crypto::{Argon2Cost, SeededRandom};
    use lacuna_header::{FormatId, NewHeaderSpec, Uuid};

    #[test]
    fn content_is_described_by_the_read_that_decides_the_claim() {
        let dir = tempfile::tempdir().unwrap();
        let medium = FileMedium::create(&dir.path().join("disk.img"), medium_len(HEADER_AREA)).unwrap();
        let header = NewHeaderSpec {
            format: FormatId::SEALED,
            params: vec![],
            end: HEADER_AREA,
            cost: Argon2Cost::new(8, 1, 1).unwrap(),
            levels: &[vec![lacuna_contracts::SecretVec::new(b"secret".to_vec())]],
            uuid: Some(Uuid([7; 16])),
        };
        NewHeader::build(header, &SeededRandom::new(1)).unwrap().write(&medium, |_| Ok(())).unwrap();
        let target = CreateTarget::File(Arc::new(medium));
        let words = |disk| target.describe_content(&disk).unwrap();
        assert!(words(target.existing_disk()).contains("UUID 07070707"));
        let failed = words(Err(Error::new(Kind::Io, "a read that failed once")));
        assert!(failed.starts_with("a file of"), "{failed}");
    }
}
