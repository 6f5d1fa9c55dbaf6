//! Options that several verbs share.

use crate::size::Size;
use clap::Args;
use std::path::PathBuf;

/// Where passphrases come from.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for passphrases")]
pub struct PassphraseArgs {
    /// Read the passphrase from this file (`-`: standard input); the whole file counts, one trailing newline
    /// excepted; may be repeated
    #[arg(long, value_name = "PATH")]
    pub key_file: Vec<PathBuf>,
    /// Read the passphrase from this open file descriptor; may be repeated
    #[arg(long, value_name = "N")]
    pub key_fd: Vec<u32>,
    /// Run this program, with the prompt as its only argument, and take what it prints as the passphrase
    #[arg(long, value_name = "CMD")]
    pub askpass: Option<PathBuf>,
}

/// Where a new passphrase comes from.
#[derive(Args)]
#[command(next_help_heading = "Options for passphrases")]
pub struct NewPassphraseArgs {
    /// Read the new passphrase from this file (`-`: standard input)
    #[arg(long, value_name = "PATH", conflicts_with = "new_key_fd")]
    pub new_key_file: Option<PathBuf>,
    /// Read the new passphrase from this open file descriptor
    #[arg(long, value_name = "N")]
    pub new_key_fd: Option<u32>,
}

/// What stretching a passphrase shall cost.
#[derive(Args)]
#[command(next_help_heading = "Options for passphrases")]
pub struct CostArgs {
    /// Most memory that trying one passphrase may take; a quarter of the machine's memory is the limit in any
    /// case [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub kdf_memory: Option<Size>,
    /// Skip the measurement, which aims at one second: use exactly --kdf-memory and this many passes. A low
    /// cost makes passphrases easy to guess; meant for tests and demonstrations
    #[arg(long, value_name = "N", requires = "kdf_memory", hide_short_help = true)]
    pub kdf_passes: Option<u32>,
}

/// Where a cluster is.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for rados: locations")]
pub struct ClusterArgs {
    /// Configuration file of the cluster [default: where Ceph's own programs look, such as
    /// /etc/ceph/ceph.conf]
    #[arg(long, value_name = "PATH")]
    pub ceph_conf: Option<PathBuf>,
    /// The user of the cluster to be [default: admin]
    #[arg(long, value_name = "ID")]
    pub ceph_id: Option<String>,
    /// Namespace of the disk in its pool
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Fail what the cluster does not answer in this time [default: wait until it does]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: Option<u32>,
}

/// Where a cluster is, for verbs that one client at a time may do.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for rados: locations")]
pub struct HolderArgs {
    /// Where the cluster is.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Take the disk over from the client that holds it, which is shut out from the cluster and loses what it had
    /// not flushed
    #[arg(long)]
    pub steal: bool,
}

/// When writes are acknowledged.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for rados: locations")]
pub struct WritingArgs {
    /// Acknowledge a write when it is in the cluster, rather than gather writes in memory until a flush
    #[arg(long)]
    pub write_through: bool,
}
