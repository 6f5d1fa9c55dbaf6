//! Options that several verbs share.

use crate::args::size::Size;
use clap::{Args, ValueEnum};
use lacuna_storage::{BLOCK_SIZE, ChipShape, DiskId, PurgePolicy, StripeGeometry};
use std::path::PathBuf;
use std::time::Duration;

/// Cost of passphrase stretching.
#[derive(Args)]
#[command(next_help_heading = "Options for passphrases")]
pub(crate) struct CostArgs {
    /// Maximum memory for trying one passphrase; never more than a quarter of the machine's memory
    /// [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub kdf_memory: Option<Size>,
    /// Skip the measurement, which aims at one second: use exactly --kdf-memory and this many
    /// passes. A low cost makes passphrases easy to guess; meant for tests and demonstrations
    #[arg(long, value_name = "N", requires = "kdf_memory", hide_short_help = true)]
    pub kdf_passes: Option<u32>,
}

/// The cluster.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for rados: locations")]
pub(crate) struct ClusterArgs {
    /// Configuration file of the cluster [default: as for Ceph's own programs, such as
    /// /etc/ceph/ceph.conf]
    #[arg(long, value_name = "PATH")]
    pub ceph_conf: Option<PathBuf>,
    /// User of the cluster [default: admin]
    #[arg(long, value_name = "ID")]
    pub ceph_id: Option<String>,
    /// Namespace of the disk in its pool
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Fail a request that the cluster does not answer in this time [default: wait]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: Option<u32>,
}

/// The cluster, for verbs that need the disk exclusively.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for rados: locations")]
pub(crate) struct PoolAccessArgs {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Take the disk over from the client that holds it. That client is blocked from the cluster
    /// and loses its unflushed data
    #[arg(long)]
    pub steal: bool,
}

/// The required identity of the disk or vault.
#[derive(Args, Clone, Copy)]
pub(crate) struct ExpectArgs {
    /// Require the disk or vault with this ID; any other is refused with exit code 10. `create` and
    /// `vault init` print the ID, and `info` does when it is given a passphrase. This detects a
    /// disk that was exchanged for another one that your passphrase opens
    #[arg(long, value_name = "ID", value_parser = id)]
    pub expect: Option<DiskId>,
}

fn id(text: &str) -> lacuna_storage::Result<DiskId> {
    text.parse()
}

/// When writes are acknowledged.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for writing")]
pub(crate) struct WritingArgs {
    /// Acknowledge a write only when it is durable on the medium or in the cluster, instead of
    /// gathering writes in memory until a flush: clients that reconnect by themselves then lose
    /// nothing if the server dies. Not for disks with levels
    #[arg(long)]
    pub write_through: bool,
}

/// Closing of an unused disk or vault.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for closing")]
pub(crate) struct IdleArgs {
    /// Close it after it was unused for this time, such as 90s, 15m or 2h. In use is: a mounted
    /// file system with an open file, with a program in one of its directories, or mounted in a
    /// container too; and a server with a client. Reads from the kernel's cache do not count as
    /// use. Not for disks with levels, because their cover would end
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub idle_timeout: Option<Duration>,
}

/// Shape of a disk with levels.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for disks with levels")]
pub(crate) struct ShapeArgs {
    /// Number of levels, including the public one, each with its own passphrase
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4))]
    pub levels: Option<u8>,
    /// Milliseconds between the writes that an open disk makes by itself, to cover hidden ones: a
    /// stripe of a deniable disk, a batch of an oblivious one; 0 for none [default: 1000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=86_400_000))]
    pub cover: Option<u32>,
    /// Deniable: public and hidden blocks in a stripe, as P+H, or `paper` for 1+1 [default: 32+31]
    #[arg(long, value_name = "P+H", value_parser = geometry, hide_short_help = true)]
    pub geometry: Option<StripeGeometry>,
    /// Deniable and flash: the fraction of the log that stays spare. A larger one makes the disk
    /// faster and wears flash less, a smaller one leaves more space for data [default: 0.2; flash
    /// 0.15]
    #[arg(long, value_name = "PART", value_parser = spare, hide_short_help = true)]
    pub spare: Option<u16>,
    /// Oblivious: how hidden operations are hidden [default: opportunistic]
    #[arg(long, value_enum, hide_short_help = true)]
    pub hiding: Option<HidingArg>,
    /// Oblivious: cells that a write rewrites. More cells make writes slower and the stash smaller.
    /// With 2, a third of the cells hold data, with more a half [default: 2]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u8).range(2..=16), hide_short_help = true)]
    pub cells_per_write: Option<u8>,
}

/// How operations on hidden levels are hidden.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HidingArg {
    /// Every operation on every level rewrites cells, also a read: hidden operations look like
    /// public reads (HIVE)
    Plausible,
    /// Hidden writes wait for public writes, which carry them; reads write nothing (HIVE-B)
    Opportunistic,
}

/// Options of a disk on flash.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for disks on flash")]
pub(crate) struct FlashArgs {
    /// Bits of the key of each block [default: 256]
    #[arg(long, value_name = "BITS", value_parser = ["128", "256"], hide_short_help = true)]
    pub key_bits: Option<String>,
    /// For nand: locations, the simulated chip to make, as KEY=VALUE with commas between: page
    /// (bytes of a page) and pages (of an erase block), endurance (erasures that a block survives),
    /// bad (factory bad blocks per thousand), program-faults and erase-faults (per million)
    /// [default: page=4K,pages=64]
    #[arg(long, value_name = "LIST", value_parser = chip, hide_short_help = true)]
    pub chip: Option<ChipShape>,
}

/// When a disk on flash is purged.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for disks on flash")]
pub(crate) struct PurgingArgs {
    /// Maximum seconds for which deleted data stays recoverable while the disk is open; 0 to purge
    /// only on request and before closing [default: 900]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    pub purge_period: Option<u64>,
    /// Purge as soon as this amount was deleted or overwritten
    #[arg(long, value_name = "SIZE")]
    pub purge_above: Option<Size>,
    /// Purge as soon as anything is deleted or overwritten between these bytes of the disk, such as
    /// 0-1M. Writes there become slow; may be repeated
    #[arg(long, value_name = "FROM-TO", value_parser = byte_range, hide_short_help = true)]
    pub sensitive: Vec<(u64, u64)>,
}

impl PurgingArgs {
    /// The policy of the options, or the default. `None` to purge only on request and before
    /// closing.
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
            max_recoverable: self
                .purge_above
                .map_or(usual.max_recoverable, |size| size.0 / BLOCK_SIZE as u64),
        })
    }

    /// The name of an option that was given, if any was.
    pub(crate) fn given_option(&self) -> Option<&'static str> {
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
    /// On a disk made with --cover 0: how long hidden writes wait for public writes before `open`,
    /// `close` or a client's request fails; requests of a mounted file system wait without limit
    /// [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub cover_timeout: Option<u32>,
}

impl WaitingArgs {
    /// The timeout of the options, or the default.
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

fn geometry(text: &str) -> Result<StripeGeometry, String> {
    if text == "paper" {
        return Ok(StripeGeometry::PAPER);
    }
    let parsed = text.split_once('+').and_then(|(public, hidden)| {
        Some(StripeGeometry { public: public.parse().ok()?, hidden: hidden.parse().ok()? })
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
