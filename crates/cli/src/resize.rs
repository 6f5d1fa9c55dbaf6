//! `resize`: what is refused before a passphrase is asked for, and what was done.

use crate::args::ResizeArgs;
use crate::console::Console;
use crate::unlock;
use lacuna::{Access, Error, Kind, Location, Parameters, Result, human};
use std::os::unix::fs::FileTypeExt;

/// `lacuna resize`.
pub(crate) fn run(args: &ResizeArgs, console: Console) -> Result<()> {
    if let Some(disk) = lacuna::peek(&args.location).filter(Parameters::has_levels) {
        return Err(Error::new(Kind::Usage, format!("cannot resize {}", args.location))
            .found(format!("a disk with levels, of the format {}, which keeps its size", disk.format()))
            .expected("a disk of the format sealed")
            .remedy("create a larger one and copy what you need"));
    }
    let size = args.size.map(|size| size.0);
    size.map(lacuna::blocks).transpose()?;
    lacuna::refuse_snapshot(&args.location, "resize")?;
    if size.is_none() && !is_device(&args.location) {
        return Err(no_size(args));
    }
    let mut volume = unlock::unlock(&args.location, &args.holder, Access::Write, &args.passphrase, console)?;
    let before = volume.parameters;
    let parameters = lacuna::resize(&mut volume, size)?;
    if parameters == before {
        let most = parameters.size() == parameters.largest();
        let why = if most { ", and its map has no room for more" } else { "" };
        return console.done(&format!("{} has this size already{why}", args.location));
    }
    console.done(&format!(
        "{} is now {}; make the file system on it larger too (for ext4: resize2fs)",
        args.location,
        human(parameters.size())
    ))
}

fn is_device(location: &Location) -> bool {
    let Location::Path(path) = location else { return false };
    std::fs::metadata(path).is_ok_and(|about| about.file_type().is_block_device())
}

fn no_size(args: &ResizeArgs) -> Error {
    Error::new(Kind::Usage, format!("cannot resize {}", args.location))
        .found("no --size")
        .expected("the new size of the disk; only on a block device it need not be given")
        .remedy("give for example --size 20G")
}
