//! The command line. The doc comments of arguments are also the text of `--help` and of the manual
//! pages.

pub(crate) mod cost;
mod daily;
#[cfg(test)]
mod documented;
mod header;
mod help_screen;
mod keys;
mod location;
mod open;
mod passphrases;
mod rescue;
mod shared_options;
pub(crate) mod size;
mod snapshots;
mod vault;

pub(crate) use daily::{CloseArgs, DoctorArgs, EraseArgs, ListArgs, StatusArgs};
pub(crate) use header::{HeaderBackupArgs, HeaderCheckArgs, HeaderRepairArgs, HeaderRestoreArgs, HeaderVerb};
pub(crate) use keys::{KeyArgs, KeyNewArgs, KeyRefreshArgs, KeyRemoveArgs, KeyVerb};
pub(crate) use open::{OpenArgs, OpeningArgs};
pub(crate) use passphrases::{NewPassphraseArgs, PassphraseArgs, PassphraseSource, RecoveryArgs};
pub(crate) use rescue::RescueArgs;
pub(crate) use shared_options::{
    ClusterArgs, CostArgs, ExpectArgs, FlashArgs, HidingArg, IdleArgs, PoolAccessArgs, PurgingArgs,
    ShapeArgs, WaitingArgs, WritingArgs,
};
pub(crate) use snapshots::{DeleteArgs, SnapshotArgs, SnapshotListArgs, SnapshotVerb};
pub(crate) use vault::{
    AnchorArgs, VaultAcceptArgs, VaultCheckArgs, VaultInitArgs, VaultMountArgs, VaultRescueArgs,
    VaultStatArgs, VaultVerb,
};

use crate::args::size::Size;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Command, CommandFactory, Parser, Subcommand, ValueEnum};
use lacuna_storage::format::Format;
use lacuna_storage::{Cipher, FORMATS, Location, ObjectLayout};
use location::location;
use std::path::PathBuf;

pub(crate) const EXIT_CODES: &str = "Exit codes: 0 fine, 1 usage, 2 wrong passphrase or no permission, 3 out of memory, \
4 no such location or not a lacuna disk, 5 busy, 10 corrupt or tampered, 11 rolled back, 12 purge incomplete, \
13 no space, 14 waiting for cover ran out, 20 any other failure.";

/// Encrypted storage against adversaries that look more than once.
///
/// A LOCATION is the path of a file or block device; rados:POOL/NAME for a disk in a pool of Ceph
/// RADOS, and rados:POOL/NAME@SNAPSHOT for its snapshot; or ubi:/dev/ubi0_0 for a UBI volume on raw
/// flash. A vault is a directory. Sizes take the suffixes K, M, G and T (powers of 1024), or KB,
/// MB, GB and TB (powers of 1000).
#[derive(Parser)]
#[command(name = "lacuna", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// Print only errors and requested output
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print more about what happens
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The command line, with help that is as wide as the terminal.
pub(crate) fn command() -> Command {
    command_of_width(help_screen::width())
}

/// The command line, with help of this number of columns.
fn command_of_width(columns: usize) -> Command {
    let command = Cli::command().term_width(columns);
    let page = help_screen::template(&command, columns);
    command.help_template(page)
}

/// The verb. The first page of help has a line for each, which is not wider than 80 columns.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Create an encrypted disk
    #[command(visible_alias = "format")]
    Create(CreateArgs),
    /// Open a disk or a vault and mount its file system
    ///
    /// It stays open until `lacuna close`.
    #[command(visible_alias = "mount")]
    Open(OpenArgs),
    /// Close a disk or a vault, and wait until its data is on the medium
    ///
    /// Ends a mount of `open` or a server of `serve`.
    #[command(visible_aliases = ["umount", "unmount"])]
    Close(CloseArgs),
    /// Serve a disk to NBD clients until INT, TERM or HUP
    Serve(ServeArgs),
    /// Describe a disk or a vault; with a passphrase, also show its ID
    ///
    /// The description is public and needs no passphrase.
    Info(InfoArgs),
    /// List the open disks and vaults of this user
    List(ListArgs),
    /// Show the activity of open disks and vaults; with -v all counters
    Status(StatusArgs),
    /// Read and verify every block of a disk
    ///
    /// The exit code is 10 if any block is bad.
    Check(CheckArgs),
    /// Copy the readable data of a damaged disk into an image
    ///
    /// The exit code is 10 if some data cannot be read.
    Rescue(RescueArgs),
    /// Diagnose a disk or a vault without a passphrase
    ///
    /// The exit code is 10 if there is damage.
    Doctor(DoctorArgs),
    /// Add, change, remove or refresh passphrases
    #[command(subcommand)]
    Key(KeyVerb),
    /// Back up, check, restore or repair the header of a disk
    #[command(subcommand)]
    Header(HeaderVerb),
    /// Make a disk larger, open or closed
    Resize(ResizeArgs),
    /// Make deleted data on a disk on flash unrecoverable for good
    ///
    /// The exit code is 12 if that fails.
    Purge(PurgeArgs),
    /// Manage snapshots of a disk in RADOS
    #[command(subcommand)]
    Snapshot(SnapshotVerb),
    /// Manage vaults: file systems in an untrusted directory
    #[command(subcommand)]
    Vault(VaultVerb),
    /// Remove a disk in RADOS with its snapshots and all its data
    Delete(DeleteArgs),
    /// Make a disk or a vault unreadable for good
    ///
    /// Destroys all copies of its header.
    Erase(EraseArgs),
    /// Measure the ciphers and the passphrase cost on this machine
    Bench(BenchArgs),
    /// Print shell completions
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory
    Man(ManArgs),
}

/// `create`.
#[derive(Args)]
pub(crate) struct CreateArgs {
    /// File to create, block device to use, rados:POOL/NAME, ubi:/dev/ubi0_0, or nand:PATH
    #[arg(value_parser = location())]
    pub location: Location,
    /// Size of the disk, a multiple of 4096; on a block device the largest that fits if not given.
    /// For a disk with levels, the size of the medium, which the levels share
    #[arg(long, allow_hyphen_values = true)]
    pub size: Option<Size>,
    /// How the medium is used [default: sealed, on flash flash]
    #[arg(long, value_parser = format())]
    pub format: Option<&'static dyn Format>,
    /// How blocks are encrypted; only gcm detects altered data. xts-random is for small random
    /// writes at the highest speed, and where there is no room for tags: it does not detect altered
    /// data [default: gcm]
    #[arg(long, value_parser = cipher())]
    pub cipher: Option<Cipher>,
    /// In RADOS, where the metadata of each block is kept [default: adaptive in replicated pools,
    /// segment-end in erasure-coded ones]
    #[arg(long, value_parser = layout(), hide_short_help = true)]
    pub layout: Option<ObjectLayout>,
    /// Overwrite an existing file, a device that is not blank, or a disk in RADOS
    #[arg(long)]
    pub force: bool,
    /// Allocate the whole file now, so that a full host cannot make writes fail. Otherwise a sealed
    /// disk takes space as it is written, except for a small reserve; disks with levels always
    /// allocate all of it
    #[arg(long)]
    pub preallocate: bool,
    /// The shape of a disk with levels.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Options of a disk on flash.
    #[command(flatten)]
    pub flash: FlashArgs,
    /// Cost of the passphrase.
    #[command(flatten)]
    pub cost: CostArgs,
    /// The cluster, and whether to take the disk over from another client.
    #[command(flatten)]
    pub pool_access: PoolAccessArgs,
    /// The passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
    /// Whether the disk may depend on a token alone.
    #[command(flatten)]
    pub recovery: RecoveryArgs,
}

impl CreateArgs {
    /// The requested format, or the default format of the location.
    pub(crate) fn format(&self) -> &'static dyn Format {
        self.format.unwrap_or_else(|| lacuna_storage::default_format(&self.location))
    }
}

/// `serve`.
#[derive(Args)]
#[allow(clippy::struct_excessive_bools)] // each is an option of its own
pub(crate) struct ServeArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// Listen on a unix socket at this path; may be repeated, and combined with --listen
    #[arg(long, value_name = "PATH")]
    pub socket: Vec<PathBuf>,
    /// Listen on a TCP address; port 0 takes any free one; may be repeated, and combined with
    /// --socket
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Vec<String>,
    /// Directory with server-cert.pem and server-key.pem; if it has ca-cert.pem, clients must
    /// present a certificate
    #[arg(long, value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,
    /// Whether clients may or must encrypt [default with --tls-dir: require]
    #[arg(long, value_enum, requires = "tls_dir")]
    pub tls: Option<Tls>,
    /// On TCP addresses, serve clients of other machines that present no certificate, and without
    /// --tls-dir in plain text
    #[arg(long)]
    pub allow_strangers: bool,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Go to the background once clients can connect
    #[arg(long)]
    pub fork: bool,
    /// Do not keep a second process that starts the server again if it dies, with all writes that
    /// it acknowledged
    #[arg(long, hide_short_help = true)]
    pub no_keeper: bool,
    /// Write the process ID to this file, which must not exist or must contain only a number
    #[arg(long, value_name = "F")]
    pub pid_file: Option<PathBuf>,
    /// Maximum number of connections. A further client takes the place of one that has not chosen
    /// an export yet; if all have, it is refused
    #[arg(
        long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096),
        hide_short_help = true
    )]
    pub max_connections: u16,
    /// Threads for each connection [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256), hide_short_help = true)]
    pub workers: Option<u16>,
    /// How the disk is opened.
    #[command(flatten)]
    pub opening: OpeningArgs,
    /// The passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// Whether clients may or must encrypt.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tls {
    /// A client may ask for TLS
    Allow,
    /// Only TLS is served
    Require,
}

/// `info`.
#[derive(Args)]
pub(crate) struct InfoArgs {
    /// The disk, or the directory of a vault
    #[arg(value_parser = location())]
    pub location: Location,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Passphrases, to show the ID, the number of passphrases (not with levels), the levels that
    /// they open, and on flash the recoverable data. Not needed while the disk is open: its server
    /// answers (without the number).
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The anchor of a vault.
    #[command(flatten)]
    pub anchor: AnchorArgs,
}

/// `check`.
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// Write nothing, not even to complete operations that a crash interrupted; a disk that needs
    /// that is refused. A disk with levels is never written by this verb
    #[arg(long)]
    pub read_only: bool,
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
    /// The passphrase, if the disk is not open: the server checks an open disk.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// `purge`.
#[derive(Args)]
pub(crate) struct PurgeArgs {
    /// The disk, or its mount point
    #[arg(required_unless_present = "all", value_name = "LOCATION|MOUNTPOINT", value_parser = location())]
    pub location: Option<Location>,
    /// Purge every disk on flash that this user has open for writing. A failure does not stop the
    /// rest; the exit code is that of the first failure
    #[arg(long, conflicts_with_all = ["location", "json", "expect"])]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The required identity of the disk.
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// Memory for all caches, if the disk is not open
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub cache: Size,
    /// The passphrase, if the disk is not open.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// `resize`.
#[derive(Args)]
pub(crate) struct ResizeArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// The new size, a multiple of 4096 and not less than the present one; on a block device the
    /// whole device if not given
    #[arg(long, allow_hyphen_values = true)]
    pub size: Option<Size>,
    /// Also grow the file system that is mounted from the disk: ext2, ext3, ext4, xfs or btrfs,
    /// with its own tool. Without --size it grows to the present size of the disk; on a block
    /// device the disk grows first
    #[arg(long)]
    pub grow_fs: bool,
    /// The required identity of the disk.
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// The cluster, and whether to take the disk over from another client.
    #[command(flatten)]
    pub pool_access: PoolAccessArgs,
    /// The passphrase, if the disk is not open.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// `bench`.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Maximum memory for the passphrase cost
    #[arg(long, default_value = "1G", value_name = "SIZE")]
    pub kdf_memory: Size,
    /// Milliseconds for each cipher
    #[arg(
        long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=60_000),
        hide_short_help = true
    )]
    pub millis: u64,
}

/// `completions`.
#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `man`.
#[derive(Args)]
pub(crate) struct ManArgs {
    /// An existing directory
    pub dir: PathBuf,
}

/// A parser of formats that can be created.
fn format() -> impl TypedValueParser<Value = &'static dyn Format> {
    let offered = FORMATS.iter().map(|format| format.info()).filter(|format| !format.creatable_on.is_empty());
    PossibleValuesParser::new(offered.map(|format| PossibleValue::new(format.name).help(format.summary)))
        .try_map(|name| FORMATS.iter().copied().find(|f| f.info().name == name).ok_or("no such format"))
}

fn cipher() -> impl TypedValueParser<Value = Cipher> {
    PossibleValuesParser::new(Cipher::ALL.map(Cipher::name))
        .try_map(|name| Cipher::ALL.into_iter().find(|c| c.name() == name).ok_or("no such cipher"))
}

/// A parser of object layouts.
fn layout() -> impl TypedValueParser<Value = ObjectLayout> {
    PossibleValuesParser::new(ObjectLayout::ALL.map(ObjectLayout::name))
        .try_map(|name| ObjectLayout::ALL.into_iter().find(|l| l.name() == name).ok_or("no such layout"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_definition_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
