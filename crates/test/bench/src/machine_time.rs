//! The processor time of the whole machine, which includes clients, servers and the kernel's own
//! threads: the only whole figure for a mounted file system, whose work lies in all three.

use lacuna_contracts::{Error, Kind, Result};
use std::time::Duration;

/// Where the kernel tells what all processes used, in the second and in the first version of its
/// control groups.
const USAGE: [&str; 3] = [
    "/sys/fs/cgroup/cpu.stat",
    "/sys/fs/cgroup/cpuacct/cpuacct.usage",
    "/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage",
];

/// Processor time that was used since the machine started.
pub(crate) fn used() -> Result<Duration> {
    let texts = USAGE.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    texts.into_iter().find_map(|text| parse(&text)).ok_or_else(|| {
        Error::new(Kind::NotFound, "cannot read the processor time of the machine")
            .expected(format!("one of {}", USAGE.join(", ")))
    })
}

/// `usage_usec N` among other lines, or nanoseconds alone.
fn parse(text: &str) -> Option<Duration> {
    if let Ok(nanos) = text.trim().parse() {
        return Some(Duration::from_nanos(nanos));
    }
    let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    micros.trim().parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        assert_eq!(parse("1500\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(parse("nr_periods 0\nusage_usec 7\nuser_usec 3\n"), Some(Duration::from_micros(7)));
        assert_eq!(parse("nonsense"), None);
    }
}
