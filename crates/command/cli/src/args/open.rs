//! Arguments of `open`, and those of all servers of disks.

use super::{
    AnchorArgs, ExpectArgs, IdleArgs, PassphraseArgs, PoolAccessArgs, PurgingArgs, VaultMountArgs,
    WaitingArgs, WritingArgs, location,
};
use crate::args::size::Size;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use lacuna_mount::MountMethod;
use lacuna_storage::{Budget, Location, OpenDiskOptions};
use std::path::PathBuf;

/// How a server opens its disk: the options that `open` and `serve` share.
#[derive(Args)]
pub(crate) struct OpeningArgs {
    /// The required identity of the disk or vault.
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// Memory for all caches
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub cache: Size,
    /// The cluster, and whether to take the disk over from another client.
    #[command(flatten)]
    pub pool_access: PoolAccessArgs,
    /// Closing when unused.
    #[command(flatten)]
    pub idle: IdleArgs,
    /// When writes are acknowledged.
    #[command(flatten)]
    pub writing: WritingArgs,
    /// How long hidden writes wait.
    #[command(flatten)]
    pub waiting: WaitingArgs,
    /// When a disk on flash is purged.
    #[command(flatten)]
    pub purging: PurgingArgs,
}

impl OpeningArgs {
    /// The options for opening a disk, with a budget for all its caches.
    pub(crate) fn options(&self, read_only: bool, budget: Budget) -> OpenDiskOptions {
        OpenDiskOptions {
            read_only,
            budget,
            write_through: self.writing.write_through,
            cover_timeout: self.waiting.cover_timeout(),
            purge_policy: self.purging.policy(),
            expect: self.expect.expect,
        }
    }
}

/// `open`.
#[derive(Args)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct OpenArgs {
    /// The disk, or the directory of a vault
    #[arg(value_parser = location())]
    pub location: Location,
    /// Directories: one, or one for each level of a disk, starting at level 0. A missing one is
    /// made and removed with the mount; for a disk with levels only in memory, as below /run
    #[arg(required = true, num_args = 1..=8)]
    pub mountpoints: Vec<PathBuf>,
    /// Mount only this level of a disk with levels, at one directory. The other levels that the
    /// passphrase opens are open too, and protected
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=7))]
    pub level: Option<u8>,
    /// Make a file system of this type first, such as ext4; refused if the disk is not blank. With
    /// several mount points, levels that have a file system keep it
    #[arg(long, value_name = "TYPE")]
    pub mkfs: Option<String>,
    /// With --mkfs: also overwrite data of unknown kind, such as an interrupted mkfs leaves. A
    /// known file system is never overwritten
    #[arg(long, requires = "mkfs")]
    pub force: bool,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Stay in the foreground
    #[arg(long)]
    pub foreground: bool,
    /// Mount only a file `disk` that is the disk; needs no loop device. Mapping it with mmap and
    /// MAP_SHARED needs Linux 6.6; on older kernels it fails with ENODEV, and `serve` is the
    /// alternative
    #[arg(long)]
    pub raw: bool,
    /// How the file system is mounted. loop: by the kernel from a loop device, which needs root.
    /// fuse2fs: by the program fuse2fs, ext2, ext3 and ext4, without root. lklfuse: by the program
    /// lklfuse, without root [default: loop if possible, otherwise the program that is installed]
    #[arg(long, value_name = "METHOD", value_parser = mount_method(), conflicts_with = "raw")]
    pub via: Option<MountMethod>,
    /// More options for mount -o, separated by commas: for example discard, or noload to read, with
    /// --read-only, an ext4 that was not unmounted
    #[arg(long, value_name = "LIST", conflicts_with = "raw")]
    pub mount_options: Option<String>,
    /// How the disk is opened.
    #[command(flatten)]
    pub opening: OpeningArgs,
    /// The anchor of a vault.
    #[command(flatten)]
    pub anchor: AnchorArgs,
    /// How a vault is mounted.
    #[command(flatten)]
    pub vault: VaultMountArgs,
    /// The passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

impl OpenArgs {
    /// The number of the level at the first mount point.
    pub(crate) fn first_level(&self) -> u64 {
        self.level.unwrap_or(0).into()
    }
}

fn mount_method() -> impl TypedValueParser<Value = MountMethod> {
    PossibleValuesParser::new(MountMethod::ALL.map(MountMethod::name)).try_map(|name| {
        MountMethod::ALL.into_iter().find(|method| method.name() == name).ok_or("no such method")
    })
}
