//! The machine and the programs of the run, for the record.

use crate::program;
use crate::workspace::Workspace;

/// The facts that figures depend on, as pairs of name and value.
pub struct MachineFacts(Vec<(&'static str, String)>);

impl MachineFacts {
    /// All facts, in the order of listing.
    pub fn facts(&self) -> &[(&'static str, String)] {
        &self.0
    }

    /// The value of a fact.
    pub fn fact(&self, name: &str) -> &str {
        self.0.iter().find(|(n, _)| *n == name).map_or("unknown", |(_, value)| value)
    }
}

/// A Markdown list of facts.
pub(crate) fn list<'f>(facts: impl IntoIterator<Item = (&'f str, &'f str)>) -> String {
    facts.into_iter().flat_map(|(name, value)| ["- ", name, ": ", value, "\n"]).collect()
}

/// Collects the facts of this machine.
pub(crate) fn describe(work: &Workspace) -> MachineFacts {
    let cpu = read("/proc/cpuinfo");
    let instructions: Vec<&str> = field(&cpu, "flags")
        .unwrap_or_default()
        .split_whitespace()
        .filter(|flag| ["aes", "vaes", "pclmulqdq", "vpclmulqdq", "avx2", "avx512f"].contains(flag))
        .collect();
    let memory = read("/proc/meminfo");
    let kib = field(&memory, "MemTotal").and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok());
    let absent = || "not installed".to_owned();
    let version = |name: &str| program::version(name).unwrap_or_else(absent);
    MachineFacts(vec![
        ("processor", field(&cpu, "model name").unwrap_or("unknown").to_owned()),
        ("instructions", instructions.join(" ")),
        ("cores", std::thread::available_parallelism().map_or(0, usize::from).to_string()),
        ("memory", kib.map_or_else(|| "unknown".into(), |k| format!("{:.1} GiB", k as f64 / 1_048_576.0))),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("file system", file_system(work).unwrap_or_else(|| "unknown".into())),
        ("lacuna", version(&work.lacuna.to_string_lossy())),
        ("nbdkit", version("nbdkit")),
        ("qemu-nbd", version("qemu-nbd")),
    ])
}

fn read(path: &str) -> String {
    // Facts that the kernel does not provide are recorded as unknown.
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first line `name : value`.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let values = text.lines().filter_map(|line| line.split_once(':'));
    values.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

/// The type of the file system that the disks are on.
fn file_system(work: &Workspace) -> Option<String> {
    let place = std::fs::canonicalize(work.path(".")).ok()?;
    let mounts = read("/proc/mounts");
    let fields = mounts.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let holding = fields.filter(|fields| fields.len() > 2 && place.starts_with(fields[1]));
    // Of two mounts at the same place the later one is visible.
    holding.max_by_key(|fields| fields[1].len()).map(|fields| fields[2].to_owned())
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 1\nmodel name\t: Some CPU: fast\n";
        assert_eq!(field(text, "model name"), Some("Some CPU: fast"));
        assert_eq!(field(text, "flags"), None);
    }
}
