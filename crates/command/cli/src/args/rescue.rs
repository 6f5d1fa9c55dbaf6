//! Arguments of `rescue`.

use super::{ExpectArgs, PassphraseArgs, PoolAccessArgs, location};
use crate::args::size::Size;
use clap::Args;
use lacuna_storage::Location;
use std::path::PathBuf;

/// `rescue`.
#[derive(Args)]
pub(crate) struct RescueArgs {
    /// The disk, which must not be open. Nothing is written to it
    #[arg(value_parser = location())]
    pub location: Location,
    /// The image to write: a sparse, decrypted file as long as the disk. TARGET.map lists the
    /// rescued ranges, in the format of GNU ddrescue's map files. If both exist and belong to this
    /// disk, only the missing ranges are read again
    pub target: PathBuf,
    /// Of a disk with levels, the level to rescue; the passphrase has to open it
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=7))]
    pub level: u8,
    /// Start over, and overwrite TARGET and TARGET.map if they are files
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The required identity of the disk.
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// Memory for all caches
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub cache: Size,
    /// The cluster, and whether to take the disk over from another client.
    #[command(flatten)]
    pub pool_access: PoolAccessArgs,
    /// The passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}
