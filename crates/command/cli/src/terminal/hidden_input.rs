//! Reads a line from the terminal without showing it.
//!
//! Invariant: the terminal shows input again before a signal ends or stops the process, and hides
//! it again when the process goes on. KILL and STOP cannot be caught, and signals of a fault of the
//! program and real-time signals are not; after STOP, the prompt appears again with CONT.

use crate::terminal::caught_signals::CaughtSignals;
use lacuna_storage::{Error, Kind, Passphrase, Result, printable};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGCONT, SIGTSTP};
use signal_hook::low_level::raise;
use std::fs::File;
use std::io::{self, Write};

/// The longest line that the kernel passes on, with its newline. It drops the rest of a longer one
/// without a word.
const LONGEST: usize = 4096;

/// Prints `prompt` on the terminal of the process, and reads a line.
pub(crate) fn read_line(prompt: &str) -> Result<Passphrase> {
    let asking = |e: io::Error| {
        Error::new(Kind::Usage, "cannot ask for a passphrase")
            .found(e.to_string())
            .expected("a terminal")
            .hint("give --key-file PATH, --key-fd N or --askpass CMD")
    };
    let terminal = File::options().read(true).write(true).open("/dev/tty").map_err(asking)?;
    let prompt = printable(prompt);
    let mut line = Passphrase::zeroed(LONGEST);
    let mut typed_before = OptionalActions::Now;
    loop {
        match ask(&terminal, &prompt, line.expose_mut(), typed_before).map_err(asking)? {
            Asked::Line(len) => return whole(&line.expose()[..len]),
            Asked::Signal(signal) => {
                // With its former action: usually the process ends or stops here.
                raise(signal).map_err(asking)?;
                if !asks_again(signal) {
                    return Err(asking(io::ErrorKind::Interrupted.into()));
                }
            }
        }
        typed_before = OptionalActions::Flush;
    }
}

/// The outcome of a question.
enum Asked {
    /// A line of this length.
    Line(usize),
    /// A signal that ends or stops the process, before or after a line.
    Signal(i32),
}

/// Asks once. The terminal and the handlers of signals are as before when this returns.
/// `typed_before`: whether input from before the prompt is dropped.
fn ask(terminal: &File, prompt: &str, line: &mut [u8], typed_before: OptionalActions) -> io::Result<Asked> {
    let signals = CaughtSignals::new(&[])?;
    let hidden = HiddenInput::new(terminal, typed_before)?;
    let asked = hidden.ask(prompt, line, &signals);
    drop(hidden);
    let mut asked = asked?;
    // A signal that came while the terminal was set is not lost.
    while let Some(signal) = signals.next_signal()? {
        asked = match asked {
            Asked::Line(len) if signal == SIGCONT => Asked::Line(len),
            // It ends the process, which other signals only stop or continue.
            Asked::Signal(end) if !asks_again(end) => Asked::Signal(end),
            _ => Asked::Signal(signal),
        };
    }
    Ok(asked)
}

/// Whether the question is asked again after a signal: it stops the process, or lets it go on
/// before it stopped.
fn asks_again(signal: i32) -> bool {
    matches!(signal, SIGTSTP | SIGCONT)
}

/// A terminal that does not show input, until this is dropped.
struct HiddenInput<'t> {
    terminal: &'t File,
    former: Termios,
}

impl<'t> HiddenInput<'t> {
    fn new(terminal: &'t File, typed_before: OptionalActions) -> io::Result<Self> {
        let hidden = HiddenInput { terminal, former: tcgetattr(terminal)? };
        hidden.hide(typed_before)?;
        Ok(hidden)
    }

    fn hide(&self, typed_before: OptionalActions) -> io::Result<()> {
        let mut modes = self.former.clone();
        modes.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        Ok(retry_on_intr(|| tcsetattr(self.terminal, typed_before, &modes))?)
    }

    fn ask(&self, prompt: &str, line: &mut [u8], signals: &CaughtSignals) -> io::Result<Asked> {
        let mut terminal = self.terminal;
        terminal.write_all(prompt.as_bytes())?;
        let mut len = 0;
        loop {
            let mut ready = [PollFd::new(terminal, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            }
            let may_read = !ready[0].revents().is_empty();
            if let Some(signal) = signals.next_signal()? {
                if signal != SIGCONT {
                    return Ok(Asked::Signal(signal));
                }
                // Another program may have set the terminal meanwhile.
                self.hide(OptionalActions::Flush)?;
                terminal.write_all(prompt.as_bytes())?;
                len = 0;
            } else if may_read {
                let read = retry_on_intr(|| rustix::io::read(terminal, &mut line[len..]))?;
                if read == 0 && len == 0 {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the end of the input"));
                }
                let end = line[len..len + read].iter().position(|byte| *byte == b'\n');
                len += end.unwrap_or(read);
                if end.is_some() || read == 0 || len == line.len() {
                    return Ok(Asked::Line(len));
                }
            }
        }
    }
}

impl Drop for HiddenInput<'_> {
    fn drop(&mut self) {
        let mut terminal = self.terminal;
        // A terminal that is gone needs no settings.
        let _restored = retry_on_intr(|| tcsetattr(terminal, OptionalActions::Now, &self.former));
        let _ended = terminal.write_all(b"\n");
    }
}

/// The line, if the terminal passed on all of it.
fn whole(line: &[u8]) -> Result<Passphrase> {
    if line.len() >= LONGEST - 1 {
        return Err(Error::new(Kind::Usage, "cannot use the passphrase from the terminal")
            .found("a line that is longer than a terminal passes on")
            .expected(format!("at most {} bytes", LONGEST - 2))
            .hint("give a longer passphrase with --key-file PATH"));
    }
    Ok(Passphrase::new(line.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_the_terminal_may_have_cut_is_refused() {
        assert_eq!(whole(&[b'x'; LONGEST - 2]).map(|line| line.expose().len()).ok(), Some(LONGEST - 2));
        assert_eq!(whole(&[b'x'; LONGEST - 1]).err().map(|e| e.kind()), Some(Kind::Usage));
    }
}
