//! Options that several verbs share.

use crate::args::size::Size;
use crate::terminal::settings;
use clap::{Args, ValueEnum};
use lacuna_storage::{BLOCK_SIZE, ChipShape, DiskId, Geometry, PurgePolicy};
use std::path::PathBuf;
use std::time::Duration;

/// What stretching a passphrase is to cost.
#[derive(Args)]
#[command(next_help_heading = "Options for passphrases")]
pub(crate) struct CostArgs {
    /// Most memory that trying one passphrase may take; a quarter of the machine's memory is the
    /// limit in any case [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub kdf_memory: Option<Size>,
    /// Skip the measurement, which aims at one second: use exactly --kdf-memory and this many
    /// passes. A low cost makes passphrases easy to guess; meant for tests and demonstrations
    #[arg(long, value_name = "N", requires = "kdf_memory", hide_short_help = true)]
    pub kdf_passes: Option<u32>,
}

/// Where a cluster is.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for rados: locations")]
pub(crate) struct ClusterArgs {
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
pub(crate) struct HolderArgs {
    /// Where the cluster is.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Take the disk over from the client that holds it, which is shut out from the cluster and
    /// loses what it had not flushed
    #[arg(long)]
    pub steal: bool,
}

/// Which disk or vault it has to be.
#[derive(Args, Clone, Copy)]
pub(crate) struct ExpectArgs {
    /// Refuse every disk or vault but the one with this ID, with exit code 10. `create` and `vault
    /// init` print it, and `info` when it is given a passphrase: an exchanged one is refused even
    /// if your passphrase opens it
    #[arg(long, value_name = "ID", value_parser = id)]
    pub expect: Option<DiskId>,
}

fn id(text: &str) -> Result<DiskId, String> {
    text.parse::<DiskId>().map_err(|e| settings::words(&e))
}

/// When writes are acknowledged.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for writing")]
pub(crate) struct WritingArgs {
    /// Acknowledge a write when it is durable on the medium or in the cluster, rather than gather
    /// writes in memory until a flush: clients that connect again by themselves then lose nothing
    /// if the server dies. Not for disks with levels
    #[arg(long)]
    pub write_through: bool,
}

/// How long something stays open that nobody uses.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for closing")]
pub(crate) struct IdleArgs {
    /// Close it when nobody used it for so long, such as 90s, 15m or 2h. What is in use stays open:
    /// a mounted file system with an open file or a program in one of its directories, or mounted
    /// in a container too, and a server with a client. Reading what the kernel has cached is not
    /// noticed. Not for disks with levels, whose cover would end when it is not used
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub idle_timeout: Option<Duration>,
}

/// The shape of a disk with levels.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for disks with levels")]
pub(crate) struct ShapeArgs {
    /// Levels to make, the public one with them, each with a passphrase of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4))]
    pub levels: Option<u8>,
    /// Milliseconds between the writes that an open disk makes by itself, to cover hidden ones: a
    /// stripe of a deniable disk, a batch of an oblivious one; 0 for none [default: 1000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=86_400_000))]
    pub cover: Option<u32>,
    /// Deniable: public and hidden blocks in a stripe, as P+H, or `paper` for 1+1 [default: 32+31]
    #[arg(long, value_name = "P+H", value_parser = geometry)]
    pub geometry: Option<Geometry>,
    /// Deniable and flash: part of the log that stays spare: more is faster and wears flash less,
    /// less holds more [default: 0.2; flash 0.15]
    #[arg(long, value_name = "PART", value_parser = spare)]
    pub spare: Option<u16>,
    /// Oblivious: what hides hidden operations [default: opportunistic]
    #[arg(long, value_enum)]
    pub hiding: Option<HidingArg>,
    /// Oblivious: cells that a write rewrites: more is slower, and less waits. With 2, a third of
    /// the cells are used, with more a half [default: 2]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u8).range(2..=16))]
    pub cells_per_write: Option<u8>,
}

/// What hides the operations of hidden levels.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HidingArg {
    /// Every operation of every level rewrites cells, reads too: hidden ones pass for public reads
    /// (HIVE)
    Plausible,
    /// Hidden writes wait for public ones, which carry them along; reads write nothing (HIVE-B)
    Opportunistic,
}

/// A disk on flash.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for disks on flash")]
pub(crate) struct FlashArgs {
    /// Bits of the key that each block has [default: 256]
    #[arg(long, value_name = "BITS", value_parser = ["128", "256"])]
    pub key_bits: Option<String>,
    /// For nand: locations, the simulated chip to make, as KEY=VALUE with commas between: page
    /// (bytes of a page) and pages (of an erase block), endurance (erasures that a block stands),
    /// and bad (blocks of a thousand from the factory), program-faults and erase-faults (of a
    /// million) [default: page=4K,pages=64]
    #[arg(long, value_name = "LIST", value_parser = chip)]
    pub chip: Option<ChipShape>,
}

/// When a disk on flash is purged.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for disks on flash")]
pub(crate) struct PurgingArgs {
    /// Seconds for which anything deleted stays recoverable at most while the disk is open; 0 to
    /// purge on request and before closing alone [default: 900]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    pub purge_period: Option<u64>,
    /// Purge as soon as so much was deleted or overwritten
    #[arg(long, value_name = "SIZE")]
    pub purge_above: Option<Size>,
    /// Purge as soon as anything is deleted or overwritten between these bytes of the disk, such as
    /// 0-1M: writing there gets slow; may be repeated
    #[arg(long, value_name = "FROM-TO", value_parser = byte_range)]
    pub sensitive: Vec<(u64, u64)>,
}

impl PurgingArgs {
    /// What is given, or the default. None to purge on request and before closing alone.
    pub(crate) fn policy(&self) -> Option<PurgePolicy> {
        let usual = PurgePolicy::default();
        if self.purge_period == Some(0) && self.purge_above.is_none() {
            return None;
        }
        Some(PurgePolicy {
            period: match self.purge_period {
                // Longer than any machine runs.
                Some(0) => Duration::from_secs(u32::MAX.into()),
                given => given.map_or(usual.period, Duration::from_secs),
            },
            most_recoverable: self
                .purge_above
                .map_or(usual.most_recoverable, |size| size.0 / BLOCK_SIZE as u64),
        })
    }

    /// One of those given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let given = [
            ("--purge-period", self.purge_period.is_some()),
            ("--purge-above", self.purge_above.is_some()),
            ("--sensitive", !self.sensitive.is_empty()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }
}

fn byte_range(text: &str) -> Result<(u64, u64), String> {
    let expected = || "two offsets such as 0-1M, the second larger".to_owned();
    let (from, to) = text.split_once('-').ok_or_else(expected)?;
    let offset = |text: &str| if text == "0" { Ok(0) } else { text.parse::<Size>().map(|size| size.0) };
    match (offset(from), offset(to)) {
        (Ok(from), Ok(to)) if from < to => Ok((from, to)),
        _ => Err(expected()),
    }
}

fn chip(text: &str) -> Result<ChipShape, String> {
    let mut chip = ChipShape::default();
    for part in text.split(',') {
        let refused = || {
            format!(
                "{part} is not one of page=, pages=, endurance=, bad=, program-faults=, erase-faults= with a number"
            )
        };
        let (key, value) = part.split_once('=').ok_or_else(refused)?;
        let value = value.parse::<Size>().ok().and_then(|size| u32::try_from(size.0).ok());
        let value = value.or_else(|| part.ends_with("=0").then_some(0)).ok_or_else(refused)?;
        let place = match key {
            "page" => &mut chip.page,
            "pages" => &mut chip.pages,
            "endurance" => &mut chip.wearing.endurance,
            "bad" => &mut chip.wearing.factory_bad,
            "program-faults" => &mut chip.wearing.program_faults,
            "erase-faults" => &mut chip.wearing.erase_faults,
            _ => return Err(refused()),
        };
        *place = value;
    }
    Ok(chip)
}

/// How long hidden writes wait.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for disks with levels")]
pub(crate) struct WaitingArgs {
    /// How long what is hidden waits for public writes on a disk made with --cover 0 before `open`,
    /// `close` or the request of a client fails; requests of a mounted file system wait as long as
    /// it takes [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub cover_timeout: Option<u32>,
}

impl WaitingArgs {
    /// What is given, or the default.
    pub(crate) fn cover_timeout(&self) -> Duration {
        Duration::from_secs(self.cover_timeout.unwrap_or(60).into())
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let expected = || "a time such as 90s, 15m, 2h or 1d".to_owned();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit {
        "" | "s" | "sec" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(expected()),
    };
    let seconds = number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    seconds
        .filter(|seconds| *seconds > 0)
        .map(|seconds| Duration::from_secs(seconds.into()))
        .ok_or_else(expected)
}

fn geometry(text: &str) -> Result<Geometry, String> {
    if text == "paper" {
        return Ok(Geometry::PAPER);
    }
    let parsed = text.split_once('+').and_then(|(public, hidden)| {
        Some(Geometry { public: public.parse().ok()?, hidden: hidden.parse().ok()? })
    });
    parsed.ok_or_else(|| "two numbers such as 32+31, or paper".into())
}

fn spare(text: &str) -> Result<u16, String> {
    let part: f64 = text.parse().map_err(|_| "a part such as 0.2")?;
    if (0.05..=0.9).contains(&part) { Ok((part * 1000.0).round() as u16) } else { Err("0.05 to 0.9".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, seconds) in
            [("5", 5), ("90s", 90), ("15min", 900), ("15m", 900), ("2h", 7200), ("1d", 86_400)]
        {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "0", "0m", "m", "-1s", "1.5h", "1 h", "9999999d", "1w"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
