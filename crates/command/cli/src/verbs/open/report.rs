//! The report of `open` on where the levels of a disk are mounted.

use crate::args::OpenArgs;
use crate::terminal::console::Console;
use lacuna_storage::{Result, shell_word};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// An open disk with mounted levels.
pub(crate) struct OpenedDisk {
    pub has_levels: bool,
    /// The number of open levels.
    pub levels: u64,
    /// For each mounted level, whether its file system was made now.
    pub made: Vec<bool>,
}

impl OpenedDisk {
    /// Prints where it is mounted, and how to close it. A terminal shows each level.
    pub(crate) fn report(&self, args: &OpenArgs, console: Console) -> Result<()> {
        // Standard output may be a log too.
        let lines = if self.has_levels && io::stdout().is_terminal() {
            self.by_level(args)
        } else {
            self.in_one_line(args)
        };
        lines.iter().try_for_each(|line| console.done(line))
    }

    /// The line for a log.
    ///
    /// Deniability contract: on a disk with levels it names the first mount point alone, and is the
    /// same for any number of mount points.
    fn in_one_line(&self, args: &OpenArgs) -> Vec<String> {
        let mounted = args.mountpoints.iter().zip(&self.made).take(1);
        let line = |(at, made): (&PathBuf, &bool)| {
            let file_system = file_system(args, *made);
            format!("opened {} at {}{file_system}; {}", args.location, shown(at), self.end(args))
        };
        mounted.map(line).collect()
    }

    /// The lines for a terminal.
    fn by_level(&self, args: &OpenArgs) -> Vec<String> {
        let mounted = (args.first_level()..).zip(args.mountpoints.iter().zip(&self.made));
        let mut lines: Vec<String> = mounted
            .map(|(level, (at, made))| {
                let (name, file_system) = (name(level), file_system(args, *made));
                format!("{name} of {} is at {}{file_system}", args.location, shown(at))
            })
            .collect();
        let first = args.first_level();
        let is_mounted = |level: &u64| (first..first + self.made.len() as u64).contains(level);
        lines.extend((0..self.levels).filter(|level| !is_mounted(level)).map(|level| {
            format!("{} is open, protected and not mounted; `--level {level}` mounts it", name(level))
        }));
        lines.push(self.end(args));
        lines
    }

    /// How to close it. A mount point of a disk with levels would close one of them.
    fn end(&self, args: &OpenArgs) -> String {
        let word = match args.mountpoints.first().filter(|_| !self.has_levels) {
            Some(at) => shell_word(at),
            None => shell_word(args.location.to_string()),
        };
        format!("`lacuna close {word}` ends it")
    }
}

fn shown(at: &Path) -> String {
    at.display().to_string()
}

/// A level in words.
fn name(level: u64) -> String {
    format!("level {level} ({})", if level == 0 { "public" } else { "hidden" })
}

/// Whether the file system was made or was already there, if one was to be made.
fn file_system(args: &OpenArgs, made: bool) -> String {
    match &args.mkfs {
        Some(wanted) if made => format!(", with {wanted} made on it"),
        Some(_) => ", with the file system that was there already".to_owned(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use clap::Parser;

    fn args(words: &[&str]) -> OpenArgs {
        let words = [&["lacuna", "open", "d.img"][..], words].concat();
        match Cli::try_parse_from(words).unwrap().verb {
            Verb::Open(args) => args,
            _ => unreachable!(),
        }
    }

    fn opened(levels: u64, made: &[bool]) -> OpenedDisk {
        OpenedDisk { has_levels: true, levels, made: made.to_vec() }
    }

    #[test]
    fn a_terminal_is_told_which_level_is_where() {
        let both = opened(2, &[false, false]).by_level(&args(&["/a", "/b"]));
        assert_eq!(
            both,
            [
                "level 0 (public) of d.img is at /a",
                "level 1 (hidden) of d.img is at /b",
                "`lacuna close d.img` ends it"
            ]
        );
        let public = opened(2, &[true]).by_level(&args(&["/a", "--mkfs", "ext4"]));
        assert_eq!(public[0], "level 0 (public) of d.img is at /a, with ext4 made on it");
        assert_eq!(public[1], "level 1 (hidden) is open, protected and not mounted; `--level 1` mounts it");
        let hidden = opened(3, &[false]).by_level(&args(&["/a", "--level", "1"]));
        assert_eq!(hidden[0], "level 1 (hidden) of d.img is at /a");
        assert!(hidden[1].starts_with("level 0 (public) is open") && hidden[2].starts_with("level 2 "));
    }

    #[test]
    fn a_log_gets_the_same_line_for_any_number_of_levels() {
        let one = opened(1, &[false]).in_one_line(&args(&["/a"]));
        assert_eq!(one, ["opened d.img at /a; `lacuna close d.img` ends it"]);
        assert_eq!(opened(2, &[false]).in_one_line(&args(&["/a"])), one);
        assert_eq!(opened(2, &[false, false]).in_one_line(&args(&["/a", "/b"])), one);
        assert_eq!(opened(2, &[false]).in_one_line(&args(&["/a", "--level", "1"])), one);
        let plain = OpenedDisk { has_levels: false, ..opened(1, &[false]) };
        assert_eq!(plain.in_one_line(&args(&["/a"])), ["opened d.img at /a; `lacuna close /a` ends it"]);
    }
}
