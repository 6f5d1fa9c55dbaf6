//! Access traces in a text format (docs/integrity.md): requests that write, read and truncate
//! files.

use lacuna_contracts::{Error, Kind, Result};
use std::collections::HashMap;
use std::fmt::Write;

/// The first line of a trace.
const MAGIC: &str = "lacuna access trace 1";
/// Maximum blocks of a request: 256 MiB.
const MOST_BLOCKS: u64 = 65_536;
/// Maximum blocks of a file: 1 TiB.
const MOST_LENGTH: u64 = 1 << 28;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Writes blocks.
    Write,
    /// Reads blocks.
    Read,
    /// Truncates the file to `first` blocks.
    Truncate,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// The kind of the request.
    pub access: AccessKind,
    /// The index of the file in [`Trace::files`].
    pub file: usize,
    /// The first block.
    pub first: u64,
    /// Number of blocks; zero for [`AccessKind::Truncate`].
    pub count: u64,
}

/// A trace: its files, and the requests in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Comments of the text, for readers.
    pub comments: Vec<String>,
    /// The names of the files, and the blocks that each has before the first request.
    pub files: Vec<(String, u64)>,
    /// The requests.
    pub requests: Vec<TraceRequest>,
}

impl Trace {
    /// The text of the trace.
    pub fn text(&self) -> String {
        let mut text = format!("{MAGIC}\n");
        self.comments.iter().for_each(|line| writeln!(text, "# {line}").expect("a string takes everything"));
        for (name, blocks) in &self.files {
            writeln!(text, "file {name} {blocks}").expect("a string takes everything");
        }
        for TraceRequest { access, file, first, count } in &self.requests {
            let name = &self.files[*file].0;
            let line = match access {
                AccessKind::Write => format!("w {name} {first} {count}\n"),
                AccessKind::Read => format!("r {name} {first} {count}\n"),
                AccessKind::Truncate => format!("t {name} {first}\n"),
            };
            text.push_str(&line);
        }
        text
    }

    /// Parses a trace. It takes at most a few times the memory of the text. Errors:
    /// [`Kind::Usage`].
    pub fn parse(text: &str) -> Result<Trace> {
        let mut lines = (1..).zip(text.lines());
        if lines.next().is_none_or(|(_, line)| line.trim_end() != MAGIC) {
            return Err(parse_error(1, "another first line", &format!("`{MAGIC}`")));
        }
        let mut reader = TraceParser::default();
        for (number, line) in lines {
            reader.line(number, line)?;
        }
        Ok(reader.trace)
    }

    /// Blocks of all requests of this kind.
    pub fn blocks(&self, access: AccessKind) -> u64 {
        self.requests.iter().filter(|request| request.access == access).map(|request| request.count).sum()
    }
}

fn parse_error(line: usize, found: &str, expected: &str) -> Error {
    Error::new(Kind::Usage, format!("cannot parse line {line} of a trace")).found(found).expected(expected)
}

/// A trace that is being parsed, with its files by name.
#[derive(Default)]
struct TraceParser {
    trace: Trace,
    names: HashMap<String, usize>,
}

impl TraceParser {
    fn line(&mut self, number: usize, line: &str) -> Result<()> {
        if let Some(about) = line.strip_prefix('#') {
            self.trace.comments.push(about.trim().to_owned());
            return Ok(());
        }
        let words: Vec<&str> = line.split_ascii_whitespace().take(5).collect();
        let number_of = |word: &str, most: u64| {
            let value = word.parse::<u64>().ok().filter(|value| *value <= most);
            value.ok_or_else(|| parse_error(number, word, &format!("a number up to {most}")))
        };
        match words[..] {
            [] => {}
            ["file", name, blocks] => {
                let blocks = number_of(blocks, MOST_LENGTH)?;
                let file = self.file(name);
                self.trace.files[file].1 = blocks;
            }
            ["t", name, first] => {
                let (first, file) = (number_of(first, MOST_LENGTH)?, self.file(name));
                self.trace.requests.push(TraceRequest {
                    access: AccessKind::Truncate,
                    file,
                    first,
                    count: 0,
                });
            }
            [what @ ("w" | "r"), name, first, count] => {
                let (first, count) = (number_of(first, MOST_LENGTH)?, number_of(count, MOST_BLOCKS)?);
                let access = if what == "w" { AccessKind::Write } else { AccessKind::Read };
                let file = self.file(name);
                self.trace.requests.push(TraceRequest { access, file, first, count });
            }
            _ => {
                let known =
                    "`file NAME BLOCKS`, `w NAME FIRST COUNT`, `r NAME FIRST COUNT` or `t NAME BLOCKS`";
                return Err(parse_error(number, line, known));
            }
        }
        Ok(())
    }

    /// The file with this name; a new, empty one at its first mention.
    fn file(&mut self, name: &str) -> usize {
        if let Some(file) = self.names.get(name) {
            return *file;
        }
        self.trace.files.push((name.to_owned(), 0));
        self.names.insert(name.to_owned(), self.trace.files.len() - 1);
        self.trace.files.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_trace_is_read_as_it_was_written() {
        let request = |access, first, count| TraceRequest { access, file: 1, first, count };
        let requests = [(AccessKind::Write, 7, 3), (AccessKind::Read, 8, 1), (AccessKind::Truncate, 2, 0)];
        let trace = Trace {
            comments: vec!["synthetic".into()],
            files: vec![("a".into(), 5), ("b".into(), 0)],
            requests: requests.map(|(access, first, count)| request(access, first, count)).to_vec(),
        };
        assert_eq!(Trace::parse(&trace.text()).unwrap(), trace);
        assert_eq!(trace.blocks(AccessKind::Write), 3);
    }

    #[test]
    fn malformed_traces_are_refused() {
        for bad in ["", "w a 0 1", "lacuna access trace 1\nw a 0", "lacuna access trace 1\nr a 0 -1"] {
            assert_eq!(Trace::parse(bad).unwrap_err().kind(), Kind::Usage, "{bad}");
        }
        let long = "lacuna access trace 1\nw a 0 65537";
        assert!(Trace::parse(long).is_err());
    }

    proptest! {
        #[test]
        fn hostile_text_is_refused_or_read(lines in "(lacuna access trace 1\n)?([wrt] [ab] [0-9]{1,12} [0-9]{1,7}\n|\\PC*\n){0,9}") {
            let _ = Trace::parse(&lines);
        }
    }
}
