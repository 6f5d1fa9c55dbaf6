//! Who holds the lock of a file, as the kernel's table of locks tells.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;

/// A process that holds a lock.
pub(crate) struct Holder {
    pid: u32,
    user: u32,
}

impl Holder {
    /// The first process that holds a lock on the file. `None` where the table does not tell: not every file system has the same
    /// device number there, and processes of other containers have no number here.
    pub(crate) fn of(file: &Metadata) -> Option<Holder> {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let place = place(file.dev(), file.ino());
        let pid = locks.lines().find_map(|line| holder_at(line, &place))?;
        let user = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        Some(Holder { pid, user })
    }

    /// Words such as `process 812 of user 1000`.
    pub(crate) fn words(&self) -> String {
        format!("process {} of user {}", self.pid, self.user)
    }

    /// Whether the process is not this user's.
    pub(crate) fn is_stranger(&self) -> bool {
        self.user != rustix::process::geteuid().as_raw()
    }
}

/// How the table names a file.
fn place(device: u64, inode: u64) -> String {
    format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// The process in a line of the table, if the line is about that place and the lock is held.
fn holder_at(line: &str, place: &str) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // A line with an arrow is of one who waits.
    match words[..] {
        [_, kind, _, _, pid, at, ..] if kind != "->" && at == place => {
            pid.parse().ok().filter(|pid| *pid > 0)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_lines_of_the_kernel() {
        let at = |line| holder_at(line, "fe:00:5366296");
        assert_eq!(at("1: FLOCK  ADVISORY  WRITE 18358 fe:00:5366296 0 EOF"), Some(18358));
        for other in [
            "1: FLOCK  ADVISORY  WRITE 18358 fe:00:53662960 0 EOF",
            "1: -> FLOCK  ADVISORY  WRITE 18358 fe:00:5366296 0 EOF",
            "1: FLOCK  ADVISORY  WRITE -1 fe:00:5366296 0 EOF",
            "1: FLOCK",
            "",
        ] {
            assert_eq!(at(other), None, "{other}");
        }
        assert_eq!(place(0xfe00, 7), "fe:00:7");
    }

    #[test]
    fn finds_this_process() {
        let file = tempfile::tempfile().unwrap();
        file.lock().unwrap();
        // Where the table does not tell, nobody is named.
        if let Some(holder) = Holder::of(&file.metadata().unwrap()) {
            assert!(holder.words().starts_with(&format!("process {} ", std::process::id())));
            assert!(!holder.is_stranger());
        }
    }
}
