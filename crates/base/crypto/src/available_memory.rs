//! The memory that this process may still use. Linux grants address space freely and kills a
//! process that then uses too much, so callers check first: the machine, and the control groups
//! that bound this process.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The roots of control groups: version 2, and the memory controller of version 1.
const CGROUP_V2_ROOT: &str = "/sys/fs/cgroup";
const CGROUP_V1_ROOT: &str = "/sys/fs/cgroup/memory";

/// Memory in KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AvailableMemory {
    /// The total.
    pub(crate) total_kib: u64,
    /// Memory still available, with swap.
    pub(crate) available_kib: u64,
    /// The control group limit that determines `available_kib`, for messages; `None` if the machine
    /// does.
    pub(crate) limit: Option<String>,
}

/// The memory of this process; `None` if the system does not report it.
pub(crate) fn available_memory() -> Option<AvailableMemory> {
    let machine = read_to_string("/proc/meminfo").ok()?;
    let swap_kib = field(&machine, "SwapFree:").unwrap_or(0);
    let mut memory = AvailableMemory {
        total_kib: field(&machine, "MemTotal:")?,
        available_kib: field(&machine, "MemAvailable:")?.saturating_add(swap_kib),
        limit: None,
    };
    // The file is absent on a system without control groups.
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    for dir in directories(&groups) {
        if let Some(group) = CgroupMemory::read(&dir) {
            memory.apply_limit(&group, swap_kib, &dir);
        }
    }
    Some(memory)
}

/// The memory of the machine, or of the control group if that has less, in bytes; `None` if the
/// system does not report it.
pub fn total_memory() -> Option<u64> {
    available_memory().map(|memory| memory.total_kib.saturating_mul(1024))
}

impl AvailableMemory {
    /// Applies the limits of a control group.
    fn apply_limit(&mut self, group: &CgroupMemory, swap_kib: u64, dir: &Path) {
        let room = group.free_kib() + group.swap.min(swap_kib);
        self.total_kib = self.total_kib.min(group.limit);
        if room < self.available_kib {
            self.available_kib = room;
            self.limit = Some(format!("{} KiB, of the control group {}", group.limit, dir.display()));
        }
    }
}

/// The memory figures of a control group, in KiB.
#[derive(Debug, PartialEq, Eq)]
struct CgroupMemory {
    limit: u64,
    used: u64,
    /// The part of `used` that is page cache, which the kernel frees on demand.
    cached: u64,
    /// Swap that may be used in addition.
    swap: u64,
}

impl CgroupMemory {
    fn free_kib(&self) -> u64 {
        self.limit.saturating_sub(self.used.saturating_sub(self.cached))
    }

    /// `None` if the group has no limit, or `dir` is not a control group.
    fn read(dir: &Path) -> Option<CgroupMemory> {
        let read = |file: &str| read_to_string(dir.join(file)).ok();
        let number = |file: &str| kib(&read(file)?);
        let stat = read("memory.stat").unwrap_or_default();
        let cached = |fields: [&str; 2]| {
            fields.into_iter().filter_map(|name| bytes_in(&stat, name)).sum::<u64>() >> 10
        };
        if let Some(limit) = number("memory.max") {
            let swap = number("memory.swap.max")
                .map(|most| most.saturating_sub(number("memory.swap.current").unwrap_or(0)));
            return Some(CgroupMemory {
                limit,
                used: number("memory.current")?,
                cached: cached(["inactive_file", "active_file"]),
                // Unlimited if there is no limit or no swap accounting.
                swap: swap.unwrap_or(u64::MAX >> 10),
            });
        }
        let (limit, used) = (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?);
        let both = number("memory.memsw.limit_in_bytes").zip(number("memory.memsw.usage_in_bytes"));
        let cached = cached(["total_inactive_file", "total_active_file"]);
        let room = limit.saturating_sub(used.saturating_sub(cached));
        let swap = both.map_or(u64::MAX >> 10, |(limit, used)| {
            limit.saturating_sub(used.saturating_sub(cached)).saturating_sub(room)
        });
        Some(CgroupMemory { limit, used, cached, swap })
    }
}

/// The directories of the control groups that bound this process, from its own group up to the
/// root, according to `/proc/self/cgroup`.
fn directories(groups: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let base = match controllers {
            "" => CGROUP_V2_ROOT,
            some if some.split(',').any(|controller| controller == "memory") => CGROUP_V1_ROOT,
            _ => continue,
        };
        // In a container the path may be the outer one; the group mounted at `base` is then the
        // container's own.
        let own = path.trim_start_matches('/');
        found.extend(Path::new(own).ancestors().map(|part| Path::new(base).join(part)));
    }
    found
}

/// A number of bytes, in KiB. `None` for `max`, and for the huge number that stands for no limit in
/// version 1.
fn kib(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok().filter(|bytes| *bytes < 1 << 60).map(|bytes| bytes >> 10)
}

/// A field of `/proc/meminfo`, in KiB.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// A field of `memory.stat`, in bytes.
fn bytes_in(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::write;

    #[test]
    fn control_groups_are_listed_from_the_own_group_to_the_root() {
        let unified = directories("0::/system.slice/lacuna.service\n");
        let expected = ["system.slice/lacuna.service", "system.slice", ""];
        assert_eq!(unified, expected.map(|part| Path::new(CGROUP_V2_ROOT).join(part)));
        let first = directories("12:cpu,cpuacct:/x\n4:memory:/docker/a\n1:name=systemd:/\n0::/\n");
        let expected = ["docker/a", "docker", ""].map(|part| Path::new(CGROUP_V1_ROOT).join(part));
        assert_eq!(first, [&expected[..], &[PathBuf::from(CGROUP_V2_ROOT).join("")]].concat());
        assert!(directories("").is_empty() && directories("nonsense\n").is_empty());
    }

    #[test]
    fn a_control_group_limits_the_available_memory() {
        let dir = tempfile::tempdir().unwrap();
        let group = |files: &[(&str, &str)]| {
            files.iter().for_each(|(name, text)| write(dir.path().join(name), text).unwrap());
            CgroupMemory::read(dir.path())
        };
        assert_eq!(group(&[("memory.max", "max\n")]), None);
        let files = [
            ("memory.max", "314572800\n"),
            ("memory.current", "104857600\n"),
            ("memory.stat", "anon 1\ninactive_file 20971520\nactive_file 31457280\n"),
            ("memory.swap.max", "0\n"),
        ];
        let found = group(&files).unwrap();
        assert_eq!(found, CgroupMemory { limit: 307_200, used: 102_400, cached: 51_200, swap: 0 });
        let mut memory = AvailableMemory { total_kib: 1 << 24, available_kib: 1 << 23, limit: None };
        memory.apply_limit(&found, 1 << 20, Path::new("/g"));
        assert_eq!((memory.total_kib, memory.available_kib), (307_200, 256_000));
        assert!(memory.limit.as_ref().unwrap().contains("307200 KiB, of the control group /g"));
        // A group that allows more changes nothing.
        let large = CgroupMemory { limit: 1 << 30, used: 0, cached: 0, swap: 0 };
        let before = memory.clone();
        memory.apply_limit(&large, 0, Path::new("/"));
        assert_eq!(memory, before);
    }

    #[test]
    fn control_groups_version_1_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("memory.limit_in_bytes", "314572800"),
            ("memory.usage_in_bytes", "104857600"),
            ("memory.memsw.limit_in_bytes", "419430400"),
            ("memory.memsw.usage_in_bytes", "104857600"),
        ];
        files.iter().for_each(|(name, text)| write(dir.path().join(name), text).unwrap());
        let found = CgroupMemory::read(dir.path()).unwrap();
        assert_eq!((found.free_kib(), found.swap), (204_800, 102_400));
        write(dir.path().join("memory.limit_in_bytes"), "9223372036854771712").unwrap();
        assert_eq!(CgroupMemory::read(dir.path()), None);
    }
}
