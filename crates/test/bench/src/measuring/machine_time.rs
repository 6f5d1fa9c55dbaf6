//! The processor time of the whole machine, including clients, servers and kernel threads. It is
//! the only complete figure for a mounted file system, because all three work for it.

use lacuna_contracts::{Error, Kind, Result};
use std::time::Duration;

/// Files with the processor time of all processes, in versions 2 and 1 of the kernel's control
/// groups.
const USAGE: [&str; 3] = [
    "/sys/fs/cgroup/cpu.stat",
    "/sys/fs/cgroup/cpuacct/cpuacct.usage",
    "/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage",
];

/// Processor time since the machine started.
pub(crate) fn used() -> Result<Duration> {
    let texts = USAGE.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    texts.into_iter().find_map(|text| parse(&text)).ok_or_else(|| {
        Error::new(Kind::NotFound, "cannot read the processor time of the machine")
            .expected(format!("one of {}", USAGE.join(", ")))
    })
}

/// Parses `usage_usec N` among other lines, or a single number of nanoseconds.
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
    fn both_versions_of_control_groups_are_read() {
        assert_eq!(parse("1500\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(parse("nr_periods 0\nusage_usec 7\nuser_usec 3\n"), Some(Duration::from_micros(7)));
        assert_eq!(parse("nonsense"), None);
    }
}
