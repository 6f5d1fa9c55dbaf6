//! The size of the terminal, and text that is folded to its width.

use rustix::termios::tcgetwinsize;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

/// The size of a terminal that does not report one.
pub(crate) const USUAL: TerminalSize = TerminalSize { columns: 80, rows: 24 };

/// The size of a terminal in characters.
#[derive(Clone, Copy)]
pub(crate) struct TerminalSize {
    pub columns: usize,
    pub rows: usize,
}

/// The size that a terminal reports.
fn reported(terminal: impl AsFd) -> Option<TerminalSize> {
    let size = tcgetwinsize(terminal).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0)?;
    Some(TerminalSize { columns: size.ws_col.into(), rows: size.ws_row.into() })
}

/// The size of the terminal on standard output.
pub(crate) fn size() -> TerminalSize {
    reported(io::stdout()).unwrap_or(USUAL)
}

/// The columns for a text that a pager may show: of the terminal of this process, or else the
/// variable COLUMNS.
pub(crate) fn columns_for_pager() -> Option<usize> {
    let terminal =
        reported(io::stdout()).or_else(|| reported(io::stderr())).or_else(|| reported(io::stdin()));
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0);
    terminal.map(|size| size.columns).or_else(variable)
}

/// The width of standard output; `None` if it is no terminal, where lines may have any length.
pub(crate) fn width() -> Option<usize> {
    io::stdout().is_terminal().then(|| size().columns)
}

/// Whether the line is not wider than this, if there is a width.
pub(crate) fn fits(line: &str, width: Option<usize>) -> bool {
    width.is_none_or(|width| line.chars().count() <= width)
}

/// The pieces with spaces between them, in lines that are filled up to a width. A piece is never
/// divided, so that a command or a path in it can be copied.
pub(crate) fn filled<'p>(pieces: impl IntoIterator<Item = &'p str>, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        let room = width.saturating_sub(piece.chars().count() + 1);
        match lines.last_mut().filter(|line| line.chars().count() <= room) {
            Some(line) => {
                line.push(' ');
                line.push_str(piece);
            }
            None => lines.push(piece.to_owned()),
        }
    }
    lines
}

/// Facts as one text with commas, folded between two facts, below an indentation.
pub(crate) fn listed(facts: &[String], indentation: &str, width: usize) -> Vec<String> {
    let last = facts.len().saturating_sub(1);
    let comma = |(at, fact): (usize, &String)| if at < last { format!("{fact},") } else { fact.clone() };
    let facts: Vec<String> = facts.iter().enumerate().map(comma).collect();
    let lines = filled(facts.iter().map(String::as_str), width.saturating_sub(indentation.len()));
    lines.into_iter().map(|line| format!("{indentation}{line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fill_lines_and_stay_whole() {
        assert_eq!(filled("a bc def g".split(' '), 4), ["a bc", "def", "g"]);
        assert_eq!(filled(["longer than that", "a", "b"], 4), ["longer than that", "a b"]);
        assert_eq!(filled([], 4), [""; 0]);
        assert_eq!(filled(["a", "b"], 0), ["a", "b"]);
        let facts = ["at /mnt", "since noon", "closing"].map(str::to_owned);
        assert_eq!(listed(&facts, "  ", 80), ["  at /mnt, since noon, closing"]);
        assert_eq!(listed(&facts, "  ", 22), ["  at /mnt, since noon,", "  closing"]);
        assert!(fits("line", Some(4)) && !fits("lines", Some(4)) && fits("lines", None));
    }
}
