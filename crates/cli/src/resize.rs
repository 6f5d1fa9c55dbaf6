//! `resize`: makes a disk larger.
//!
//! The medium grows and is synced before the header says so. A power cut in between leaves the old disk on a
//! medium that is longer than it need be, which opens as before; there is no moment at which the header
//! promises blocks that the medium does not have. In RADOS objects come with the first write to them, and the
//! header is all there is to change.

use crate::args::ResizeArgs;
use crate::cluster;
use crate::console::Console;
use crate::create::blocks;
use crate::parameters::Parameters;
use crate::size::human;
use crate::unlock;
use lacuna_core::{Error, Kind, Result};
use lacuna_medium::Access;
use lacuna_volume::medium_len;

/// `lacuna resize`.
pub fn run(args: &ResizeArgs, console: Console) -> Result<()> {
    if let Some(disk) = unlock::peek(&args.location).filter(Parameters::has_levels) {
        return Err(Error::new(Kind::Usage, format!("cannot resize {}", args.location))
            .found(format!("a disk with levels, of the format {}, which keeps its size", disk.format()))
            .expected("a disk of the format sealed")
            .remedy("create a larger one and copy what you need"));
    }
    let wanted = blocks(args.size)?;
    cluster::refuse_snapshot(&args.location, "resize")?;
    let mut volume = unlock::unlock(&args.location, &args.holder, Access::Write, &args.passphrase, console)?;
    let parameters = volume.parameters.grown(wanted)?;
    if parameters == volume.parameters {
        return console.done(&format!("{} has this size already", args.location));
    }
    if let Parameters::Flat(_) = &parameters {
        let end = parameters.end();
        // A disk of version 1 of the header has no copy of it at the end.
        let needed = if volume.unlocked.header.version == 1 { end } else { medium_len(end) };
        if volume.header.len() < needed {
            volume.header.set_len(needed)?;
        }
        volume.header.sync()?;
    }
    lacuna_volume::update_params(
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
