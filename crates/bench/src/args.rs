//! The options of the run, and what sizes follow from them.

use clap::{Parser, ValueEnum};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Measure lacuna beside its peers.
#[derive(Parser)]
#[command(name = "lacuna-bench", version)]
pub(crate) struct Args {
    /// How often every server has its turn [default: 5, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    repeats: Option<u32>,
    /// Tiny sizes and one repeat, to see that everything works; the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Measure only this; may be repeated
    #[arg(long, value_name = "SECTION")]
    only: Vec<Section>,
    /// Directory for benchmarks.md and plots [default: docs; nowhere with --quick or --only]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Directory for the disks, on the file system to measure; they need about 20 GiB, with Ceph
    /// 50 GiB
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// The lacuna command [default: built with Cargo, or the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub lacuna: Option<PathBuf>,
}

/// A part of the run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Section {
    /// lacuna beside nbdkit and qemu-nbd
    Peers,
    /// The ciphers and layouts beside each other
    Ciphers,
    /// HCTR2 beside another implementation and XTS
    Hctr2,
    /// Memory and opening time on a disk of 1 TiB
    Memory,
    /// The deniable format beside sealed
    Levels,
    /// The deniable format by counting and on simulated disks: the same on every machine
    Models,
    /// What waits for a cell in the oblivious format, by simulation: the same on every machine
    Stash,
    /// The format flash in memory: speed beside itself without keys, purges and opening of 64 GiB
    Flash,
    /// The evaluation of paper 003 redone: a week of a simulated phone, by the purge period
    Phone,
    /// The schemes of paper 002 on the system's own files and on synthetic traces, in memory
    Integrity,
    /// The entropy test on hundreds of millions of random blocks, beside its bound
    FalseAccept,
    /// Vaults beside gocryptfs, cryfs and encfs; needs root
    Vaults,
    /// ext4 in a disk beside ext4 on a plain loop device and gocryptfs; needs root
    Mounted,
    /// Disks on Ceph, beside librbd's own encryption; takes most of an hour
    Rados,
}

/// How large and how long everything is.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// Turns of every server.
    pub repeats: u32,
    /// Whether this run only tries everything out.
    pub quick: bool,
    /// Bytes of each disk.
    pub disk: u64,
    /// Length of a job that compares peers.
    pub peer_job: Duration,
    /// Length of a job that compares ciphers.
    pub cipher_job: Duration,
    /// Requests to the disk of 1 TiB.
    pub requests: u32,
    /// Window for one cipher in memory.
    pub cipher_window: Duration,
    /// Bytes of each image on Ceph.
    pub image: u64,
    /// Length of a job on Ceph; one that writes takes longer, until all is durable.
    pub image_job: Duration,
}

impl Args {
    /// Whether this section was asked for.
    pub(crate) fn wants(&self, section: Section) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }

    /// Where to write, if anywhere. A partial run must not replace the record of a whole one unasked.
    pub(crate) fn out(&self) -> Option<&Path> {
        let whole = !self.quick && self.only.is_empty();
        self.out.as_deref().or_else(|| whole.then_some(Path::new("docs")))
    }

    /// The sizes of this run.
    pub(crate) fn scale(&self) -> Scale {
        let quick = self.quick;
        let time = |tiny, whole| Duration::from_millis(if quick { tiny } else { whole });
        Scale {
            repeats: self.repeats.unwrap_or(if quick { 1 } else { 5 }),
            quick,
            disk: if quick { 16 << 20 } else { 2 << 30 },
            peer_job: time(50, 1500),
            cipher_job: time(50, 1000),
            requests: if quick { 500 } else { 60_000 },
            cipher_window: time(5, 250),
            image: if quick { 64 << 20 } else { 1 << 30 },
            image_job: time(50, 3000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_words_fit_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn only_a_whole_run_replaces_the_record() {
        let out =
            |words: &[&str]| Args::parse_from([&["lacuna-bench"], words].concat()).out().map(Path::to_owned);
        assert_eq!(out(&[]), Some(PathBuf::from("docs")));
        assert_eq!(out(&["--quick"]), None);
        assert_eq!(out(&["--only", "peers"]), None);
        assert_eq!(out(&["--quick", "--out", "x"]), Some(PathBuf::from("x")));
    }
}
