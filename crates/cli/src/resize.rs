//! `resize`: makes a disk larger.
//!
//! The medium grows and is synced before the header says so. A power cut in between leaves the old disk on a
//! medium that is longer than it need be, which opens as before; there is no moment at which the header
//! promises blocks that the medium does not have. In RADOS objects come with the first write to them, and the
//! header is all there is to change. A block device must have grown before.

use crate::args::ResizeArgs;
use crate::cluster;
use crate::console::Console;
use crate::draft::blocks;
use crate::parameters::Parameters;
use crate::size::human;
use crate::unlock;
use lacuna_core::{Error, Kind, Result};
use lacuna_header::{Location, copy_c, medium_len};
use lacuna_medium::Access;
use lacuna_sealed::Sealed;
use std::os::unix::fs::FileTypeExt;

/// `lacuna resize`.
pub fn run(args: &ResizeArgs, console: Console) -> Result<()> {
    if let Some(disk) = unlock::peek(&args.location).filter(Parameters::has_levels) {
        return Err(Error::new(Kind::Usage, format!("cannot resize {}", args.location))
            .found(format!("a disk with levels, of the format {}, which keeps its size", disk.format()))
            .expected("a disk of the format sealed")
            .remedy("create a larger one and copy what you need"));
    }
    let given = args.size.map(blocks).transpose()?;
    cluster::refuse_snapshot(&args.location, "resize")?;
    if given.is_none() && !is_device(&args.location) {
        return Err(no_size(args));
    }
    let mut volume = unlock::unlock(&args.location, &args.holder, Access::Write, &args.passphrase, console)?;
    // A disk of version 1 of the header has no copy of it at the end.
    let first_version = volume.unlocked.header.version == 1;
    let parameters = match (given, volume.parameters) {
        (None, Parameters::Flat(params)) => {
            let room = if first_version { Some(volume.header.len()) } else { copy_c(volume.header.len()) };
            Parameters::Flat(params.grown_into(room.unwrap_or(0)))
        }
        (Some(wanted), parameters) => parameters.grown(wanted)?,
        (None, _) => return Err(no_size(args)),
    };
    if parameters == volume.parameters {
        let most = parameters.size() == parameters.largest();
        let why = if most { ", and its map has no room for more" } else { "" };
        return console.done(&format!("{} has this size already{why}", args.location));
    }
    if let Parameters::Flat(params) = &parameters {
        let end = parameters.end();
        let needed = if first_version { end } else { medium_len(end) };
        if volume.header.len() < needed {
            volume.header.set_len(needed)?;
        }
        Sealed::reserve_map(&*volume.header, params)?;
        volume.header.sync()?;
    }
    lacuna_header::update_params(
        &mut volume.unlocked,
        &*volume.header,
        parameters.encode(),
        parameters.end(),
    )?;
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
