//! `resize`: makes a disk larger.
//!
//! The medium grows and is synced before the header says so. A power cut in between leaves the old disk on a
//! medium that is longer than it need be, which opens as before; there is no moment at which the header
//! promises blocks that the medium does not have.

use crate::args::ResizeArgs;
use crate::console::Console;
use crate::create::blocks;
use crate::info::largest;
use crate::size::human;
use crate::unlock;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_medium::{Access, Medium};
use lacuna_sealed::Params;

/// `lacuna resize`.
pub fn run(args: &ResizeArgs, console: Console) -> Result<()> {
    let wanted = blocks(args.size)?;
    let mut volume = unlock::unlock(&args.location, Access::Write, &args.passphrase, console)?;
    let params = grown(&volume.params, wanted)?;
    if params.blocks == volume.params.blocks {
        return console.done(&format!("{} has this size already", args.location));
    }
    let needed = params.geometry().medium_len();
    if volume.medium.len() < needed {
        volume.medium.set_len(needed)?;
    }
    volume.medium.sync()?;
    lacuna_volume::update_params(&mut volume.unlocked, &volume.medium, params.encode().to_vec())?;
    console.done(&format!(
        "{} is now {}; make the file system on it larger too (for ext4: resize2fs)",
        args.location,
        human(params.blocks * BLOCK_SIZE as u64)
    ))
}

fn grown(old: &Params, blocks: u64) -> Result<Params> {
    let present = old.blocks * BLOCK_SIZE as u64;
    let refused = || {
        Error::new(Kind::Usage, "cannot resize the disk")
            .found(format!("--size of {} bytes", blocks * BLOCK_SIZE as u64))
    };
    if blocks < old.blocks {
        return Err(refused()
            .expected(format!("at least its present size, {present} bytes"))
            .remedy("a disk cannot shrink: create a smaller one and copy what you need"));
    }
    // No overflow: both are at most the 2^52 blocks that fit 64 bits of bytes.
    if blocks * BLOCK_SIZE as u64 > largest(old) {
        return Err(refused()
            .expected(format!(
                "at most {} ({} bytes), for which its map has room",
                human(largest(old)),
                largest(old)
            ))
            .remedy("create a larger disk and copy what you need"));
    }
    Ok(Params { blocks, ..*old })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sealed::{Cipher, Layout};

    #[test]
    fn grows_within_the_map_and_never_shrinks() {
        let old = Params::plan(Cipher::Gcm, Layout::SegmentEnd, 16384, None).unwrap();
        let new = grown(&old, 50_000).unwrap();
        assert_eq!(new, Params { blocks: 50_000, ..old });
        assert_eq!(Params::parse(&new.encode()).unwrap(), new);
        let most = largest(&old) / BLOCK_SIZE as u64;
        assert_eq!(Params::parse(&grown(&old, most).unwrap().encode()).unwrap().blocks, most);
        for bad in [16383, most + 1, u64::MAX / BLOCK_SIZE as u64] {
            assert_eq!(grown(&old, bad).unwrap_err().kind(), Kind::Usage);
        }
    }
}
