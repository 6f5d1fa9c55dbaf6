//! Reads passphrases from files, descriptors, tokens, a helper program or the terminal.

use crate::args::{PassphraseArgs, PassphraseSource, RecoveryArgs};
use crate::terminal::console;
use crate::terminal::descriptor;
use crate::terminal::hidden_input;
use crate::terminal::token;
use crate::terminal::weak_passphrase;
use lacuna_storage::keys::is_same_passphrase;
use lacuna_storage::{
    Error, HeaderOpener, KEY_SLOTS, Kind, NewDisk, OpenHeader, Passphrase, PassphraseMatch, PublicHeader,
    Result, Uuid, printable, shell_word,
};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Maximum length of a passphrase or key file.
const LIMIT: usize = 1 << 20;
/// The credential of systemd that is used if no option gives a passphrase.
const CREDENTIAL: &str = "lacuna.passphrase";
/// Attempts for a passphrase that opens nothing, or for a new one that was not repeated correctly.
const ATTEMPTS: u32 = 3;

/// Opens a header with the passphrases of the options, or with a passphrase that the user is asked
/// for, up to three times.
pub(crate) fn open_header(
    args: &PassphraseArgs,
    location: &str,
    disk: &PublicHeader,
    open: HeaderOpener<'_>,
) -> Result<PassphraseMatch> {
    open_with_prompt(args, &format!("Passphrase for {location}: "), disk, open)
}

/// [`open_header`] with another prompt.
pub(crate) fn open_with_prompt(
    args: &PassphraseArgs,
    prompt: &str,
    disk: &PublicHeader,
    open: HeaderOpener<'_>,
) -> Result<PassphraseMatch> {
    let mut given = from_options(args, disk.uuid)?;
    if given.is_empty() && args.askpass.is_none() {
        given.extend(credential()?);
    }
    if !given.is_empty() {
        // Deniability contract: the number of passphrases would tell a log how many levels there
        // may be. With level 0 alone one is enough.
        let may_show_count = !disk.format.has_levels() || console::is_terminal();
        let unlocked = open(&given).map_err(|e| with_token_hint(args, e, may_show_count))?;
        return Ok((unlocked, given));
    }
    let (unlocked, passphrase) = ask_until_open(prompt, open, |prompt| ask(args, prompt))?;
    Ok((unlocked, vec![passphrase]))
}

/// [`open_with_prompt`] for a key operation that drops all passphrases that are not given: on a
/// terminal it asks for one passphrase after another, and tries each before it asks for the next.
pub(crate) fn open_with_all(
    args: &PassphraseArgs,
    prompt: &str,
    disk: &PublicHeader,
    open: HeaderOpener<'_>,
) -> Result<PassphraseMatch> {
    let (mut unlocked, mut passphrases) = open_with_prompt(args, prompt, disk, open)?;
    let mut already = "";
    while !args.is_given() {
        let prompt = format!("{already}Another passphrase to keep? (Enter = no more): ");
        let typed = hidden_input::read_line(&prompt)?;
        if typed.expose().is_empty() {
            break;
        }
        already = "";
        if passphrases.iter().any(|known| is_same_passphrase(known, &typed)) {
            already = "You gave that one already. ";
            continue;
        }
        // After a mistyped passphrase, Enter does not end the list: otherwise the user would lose
        // this passphrase unintentionally.
        let (further, passphrase) = retry_from(typed, open)?;
        unlocked.merge(further)?;
        passphrases.push(passphrase);
    }
    Ok((unlocked, passphrases))
}

/// [`ask_until_open`], beginning with a passphrase that was typed already.
fn retry_from(typed: Passphrase, open: HeaderOpener<'_>) -> Result<(OpenHeader, Passphrase)> {
    let typed = RefCell::new(Some(typed));
    let prompt = "Type the passphrase to keep again (Ctrl-C: nothing is changed): ";
    ask_until_open(prompt, open, |prompt| match typed.take() {
        Some(typed) => Ok(typed),
        None => require_nonempty(hidden_input::read_line(prompt)?, "the terminal"),
    })
}

/// Asks for a passphrase until it opens the header, at most [`ATTEMPTS`] times.
fn ask_until_open(
    prompt: &str,
    open: HeaderOpener<'_>,
    ask: impl Fn(&str) -> Result<Passphrase>,
) -> Result<(OpenHeader, Passphrase)> {
    let again = format!("That passphrase opens nothing. {prompt}");
    for attempt in 1.. {
        let passphrases = [ask(if attempt == 1 { prompt } else { &again })?];
        match open(&passphrases) {
            Err(e) if e.kind() == Kind::Passphrase && attempt < ATTEMPTS => {}
            opened => {
                let [passphrase] = passphrases;
                return opened.map(|unlocked| (unlocked, passphrase));
            }
        }
    }
    unreachable!("the last attempt returns")
}

/// Adds advice to the refusal of a passphrase that is the secret of a token.
///
/// Deniability contract: the text depends neither on the purpose of the enrolment nor on whether
/// the token is enrolled; the number of passphrases is left out unless `may_show_count`.
fn with_token_hint(args: &PassphraseArgs, e: Error, may_show_count: bool) -> Error {
    if e.kind() != Kind::Passphrase {
        return e;
    }
    let e = if may_show_count { e } else { e.without_details() };
    let Some(token) = args.tokens().next() else { return e };
    let e = match args.sources.len() {
        1 if may_show_count => e.found(format!("a secret of the token {token} that opens nothing")),
        _ => e,
    };
    e.hint(format!(
        "possible causes for a token: {}. Give the recovery passphrase instead, and enrol the token again with `lacuna key add DISK \
         --token {}`",
        token::why_not(token),
        shell_word(token.to_string())
    ))
}

/// Adds advice to the refusal of a token's secret as the passphrase to remove: the possible
/// reasons, and how to drop its slot in another way.
///
/// Deniability contract: the text depends neither on the purpose of the enrolment nor on whether
/// the token is enrolled.
pub(crate) fn with_removal_hint(source: Option<&PassphraseSource>, e: Error) -> Error {
    let Some(PassphraseSource::Token(token)) = source.filter(|_| e.kind() == Kind::Passphrase) else {
        return e;
    };
    e.found(format!("a secret of the token {token} that opens nothing")).hint(format!(
        "{}. `lacuna key refresh` with every passphrase that is to keep working drops the secret of the \
         token",
        token::why_not(token)
    ))
}

/// The first passphrase of something without levels, which is not a token.
pub(crate) fn first_passphrases(args: &PassphraseArgs, location: &str) -> Result<Vec<Passphrase>> {
    Ok(choose_for_levels(args, location, 1)?.into_iter().flatten().collect())
}

/// The passphrases of a new disk. Each level has one passphrase, or a token and a recovery
/// passphrase.
pub(crate) fn for_create(
    args: &PassphraseArgs,
    recovery: RecoveryArgs,
    location: &str,
    new: NewDisk,
) -> Result<Vec<Vec<Passphrase>>> {
    if args.tokens().next().is_none() {
        return choose_for_levels(args, location, new.levels);
    }
    check_tokens(args, recovery, location, new.levels)?;
    let mut all: Vec<Vec<Passphrase>> = Vec::new();
    for (level, source) in (0..new.levels).zip(&args.sources) {
        let mut of_level = Vec::new();
        match source {
            PassphraseSource::Token(_) if recovery.no_recovery => {}
            PassphraseSource::Token(_) => {
                let prompt = match new.levels {
                    1 => format!("New recovery passphrase for {location}: "),
                    _ => format!("New recovery passphrase for level {level} of {location}: "),
                };
                of_level.push(ask_distinct(args, &prompt, &all)?);
            }
            source if is_terminal_source(source) => {
                of_level.push(ask_distinct(args, &new_prompt(location, new.levels, level), &all)?);
            }
            source => of_level.push(from_source(source, args, new.uuid, false)?),
        }
        all.push(of_level);
    }
    // Tokens come last: a token keeps its new secret even if the user gives up at a prompt.
    for (of_level, source) in all.iter_mut().zip(&args.sources).filter(|(_, source)| source.is_token()) {
        of_level.insert(0, from_source(source, args, new.uuid, true)?);
    }
    Ok(all)
}

/// Refuses unsuitable tokens for a new disk, before a secret is made in any of them.
fn check_tokens(args: &PassphraseArgs, recovery: RecoveryArgs, location: &str, levels: u8) -> Result<()> {
    let refused = || Error::new(Kind::Usage, format!("cannot create {location}"));
    let sources = &args.sources;
    if sources.len() != usize::from(levels) {
        return Err(refused()
            .found(format!("{} passphrases and tokens", sources.len()))
            .expected(format!("{levels}: one for each level"))
            .hint("add more with `lacuna key add` afterwards"));
    }
    let tokens: Vec<_> = args.tokens().collect();
    if let Some((_, twice)) = tokens.iter().enumerate().find(|(at, token)| tokens[..*at].contains(*token)) {
        return Err(refused()
            .found(format!("the token {twice} for two levels"))
            .expected("another secret for each level")
            .hint("give the second another NAME"));
    }
    if recovery.no_recovery {
        return Ok(());
    }
    if sources.len() + tokens.len() > KEY_SLOTS {
        return Err(refused()
            .found(format!("{} passphrases, recovery passphrases among them", sources.len() + tokens.len()))
            .expected(format!("at most {KEY_SLOTS}"))
            .hint("enrol fewer tokens, or give --no-recovery"));
    }
    if is_unattended(args) {
        return Err(refused()
            .found("a token, and no terminal or program to ask for a recovery passphrase")
            .expected("a terminal, or a program that asks")
            .hint("give --askpass CMD; or create it with a passphrase, then `lacuna key add`; or give --no-recovery"));
    }
    Ok(())
}

/// Passphrases without tokens for a new disk or vault, one for each level; asked for twice on a
/// terminal.
fn choose_for_levels(args: &PassphraseArgs, location: &str, levels: u8) -> Result<Vec<Vec<Passphrase>>> {
    if !args.sources.is_empty() && !args.sources.iter().any(is_terminal_source) {
        // There is no token, so the disk's UUID is unused.
        let given = args.sources.iter().map(|source| from_source(source, args, Uuid([0; 16]), false));
        return given.map(|passphrase| Ok(vec![passphrase?])).collect();
    }
    let mut passphrases: Vec<Vec<Passphrase>> = Vec::new();
    for level in 0..levels {
        let new = ask_distinct(args, &new_prompt(location, levels, level), &passphrases)?;
        passphrases.push(vec![new]);
    }
    Ok(passphrases)
}

fn new_prompt(location: &str, levels: u8, level: u8) -> String {
    match levels {
        1 => format!("New passphrase for {location}: "),
        _ => format!("New passphrase for level {level} of {location}: "),
    }
}

/// A new passphrase that differs from the earlier ones: if two levels had the same one, it would
/// open only the deeper level.
fn ask_distinct(args: &PassphraseArgs, prompt: &str, before: &[Vec<Passphrase>]) -> Result<Passphrase> {
    let mut prompt = prompt.to_owned();
    for attempt in 0..ATTEMPTS {
        let new = ask_twice(args, &prompt)?;
        if before.iter().flatten().all(|known| !is_same_passphrase(known, &new)) {
            return Ok(new);
        }
        if attempt == 0 {
            prompt.insert_str(0, "Another level has this passphrase already. ");
        }
    }
    Err(Error::new(Kind::Usage, "cannot take a new passphrase")
        .found(format!("one that another level has, {ATTEMPTS} times"))
        .expected("a different passphrase for each level"))
}

/// A new passphrase, for `key add` and `key change`.
pub(crate) fn new_passphrase(
    source: Option<&PassphraseSource>,
    args: &PassphraseArgs,
    location: &str,
    disk: Uuid,
) -> Result<Passphrase> {
    match source {
        Some(source) if !is_terminal_source(source) => from_source(source, args, disk, true),
        _ => ask_twice(args, &format!("New passphrase for {location}: "))
            .map_err(|e| e.hint("give the new passphrase with --new-key-file PATH or --new-key-fd N")),
    }
}

/// One passphrase from its source, or else from a question.
pub(crate) fn one_passphrase(
    source: Option<&PassphraseSource>,
    args: &PassphraseArgs,
    disk: Uuid,
    prompt: &str,
) -> Result<Passphrase> {
    source.map_or_else(|| ask(args, prompt), |source| from_source(source, args, disk, false))
}

fn from_options(args: &PassphraseArgs, disk: Uuid) -> Result<Vec<Passphrase>> {
    args.sources.iter().map(|source| from_source(source, args, disk, false)).collect()
}

/// `create`: the token is being enrolled.
fn from_source(
    source: &PassphraseSource,
    args: &PassphraseArgs,
    disk: Uuid,
    create: bool,
) -> Result<Passphrase> {
    match source {
        PassphraseSource::File(path) => from_path(path),
        PassphraseSource::Descriptor(number) => from_descriptor(*number),
        PassphraseSource::Token(token) => {
            let ask_pin = |prompt: &str| if is_unattended(args) { Err(no_pin()) } else { ask(args, prompt) };
            let secret = token::secret(token, disk, &ask_pin, create)?;
            require_nonempty(secret, &format!("the token {token}"))
        }
    }
}

/// A key file cannot hold a PIN, so the usual advice on missing passphrases does not apply.
fn no_pin() -> Error {
    Error::new(Kind::Usage, "cannot ask for the PIN")
        .found("no terminal")
        .expected("a terminal, or a program that asks")
        .hint("give --askpass CMD, which is asked for the PIN")
}

/// The credential `lacuna.passphrase` of a systemd unit, if it has one.
fn credential() -> Result<Option<Passphrase>> {
    credential_path().map(|path| from_path(&path)).transpose()
}

/// The path of that credential. systemd sets the directory also for units without it.
pub(crate) fn credential_path() -> Option<PathBuf> {
    let dir = std::env::var_os("CREDENTIALS_DIRECTORY")?;
    let path = Path::new(&dir).join(CREDENTIAL);
    // An existing credential that cannot be read is an error of the reader.
    let is_missing = std::fs::symlink_metadata(&path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    (!is_missing).then_some(path)
}

/// Asks until both answers agree, at most [`ATTEMPTS`] times. A weak passphrase that was typed gets
/// a note on the terminal, which is the same for every level.
fn ask_twice(args: &PassphraseArgs, prompt: &str) -> Result<Passphrase> {
    let mut prompt = prompt.to_owned();
    for attempt in 0..ATTEMPTS {
        let first = ask(args, &prompt)?;
        let second = ask(args, "The same again: ")?;
        if is_same_passphrase(&first, &second) {
            let weak = weak_passphrase::note(&first).filter(|_| args.askpass.is_none());
            if let Some(note) = weak.filter(|_| console::is_terminal()) {
                console::print_always(&format!("note: {note}"));
            }
            return Ok(first);
        }
        if attempt == 0 {
            prompt.insert_str(0, "The two differ. ");
        }
    }
    Err(Error::new(Kind::Usage, "cannot take a new passphrase")
        .found(format!("two that differ, {ATTEMPTS} times"))
        .expected("the same twice"))
}

fn ask(args: &PassphraseArgs, prompt: &str) -> Result<Passphrase> {
    if let Some(program) = &args.askpass {
        return from_program(program, prompt);
    }
    require_nonempty(hidden_input::read_line(prompt)?, "the terminal")
}

/// Whether there is neither a program nor a terminal to ask.
fn is_unattended(args: &PassphraseArgs) -> bool {
    args.askpass.is_none() && File::options().read(true).write(true).open("/dev/tty").is_err()
}

/// Whether the path means standard input and that is a terminal. Read as a file, a passphrase would
/// be visible on the screen, and a new one would not be asked for twice.
fn is_terminal_stdin(path: &Path) -> bool {
    path == Path::new("-") && io::stdin().is_terminal()
}

/// Whether the user types the passphrase, so that questions are possible.
pub(crate) fn is_interactive(args: &PassphraseArgs) -> bool {
    !args.is_given() || args.sources.iter().any(is_terminal_source)
}

fn is_terminal_source(source: &PassphraseSource) -> bool {
    matches!(source, PassphraseSource::File(path) if is_terminal_stdin(path))
}

fn from_path(path: &Path) -> Result<Passphrase> {
    if path == Path::new("-") {
        if is_terminal_stdin(path) {
            return require_nonempty(hidden_input::read_line("Passphrase: ")?, "the terminal");
        }
        return read(descriptor::stdin()?, "standard input");
    }
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|e| {
        let error = Error::io(format!("cannot read the passphrase from {shown}"), &e);
        // Exit code 4 would mean that the disk does not exist.
        if error.kind() == Kind::NotFound { error.with_kind(Kind::Usage) } else { error }
    })?;
    read(file, &shown)
}

fn from_descriptor(number: u32) -> Result<Passphrase> {
    read(descriptor::take(number)?, &format!("file descriptor {number}"))
}

fn from_program(program: &Path, prompt: &str) -> Result<Passphrase> {
    let shown = program.display().to_string();
    let failed = |e: &std::io::Error| {
        Error::new(Kind::Usage, format!("cannot ask {shown} for a passphrase"))
            .found(e.to_string())
            .expected("a program that prints the passphrase")
    };
    // Programs such as systemd-ask-password ask on the terminal of their standard input. Anything
    // else on standard input is not for them.
    let input = if io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() };
    // The program may show the name of a file on a terminal.
    let mut child = Command::new(program)
        .arg(&*printable(prompt))
        .stdin(input)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed(&e))?;
    let passphrase = match child.stdout.take() {
        Some(out) => read(out, &shown),
        None => Err(Error::new(Kind::Other, "no output to read")),
    };
    let status = child.wait().map_err(|e| failed(&e))?;
    if !status.success() {
        return Err(failed(&std::io::Error::other(status.to_string())));
    }
    passphrase
}

fn read(from: impl Read, name: &str) -> Result<Passphrase> {
    // Allocated at full size: a growing buffer leaves copies behind.
    let mut bytes = Vec::with_capacity(LIMIT + 1);
    let outcome = from.take(LIMIT as u64 + 1).read_to_end(&mut bytes);
    let too_long = bytes.len() > LIMIT;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    let secret = Passphrase::new(bytes);
    outcome.map_err(|e| {
        Error::io(format!("cannot read the passphrase from {name}"), &e).with_kind(Kind::Usage)
    })?;
    if too_long {
        return Err(Error::new(Kind::Usage, format!("cannot use the passphrase from {name}"))
            .found(format!("more than {LIMIT} bytes"))
            .expected("a key file of at most 1 MiB"));
    }
    require_nonempty(secret, name)
}

fn require_nonempty(secret: Passphrase, name: &str) -> Result<Passphrase> {
    if secret.expose().is_empty() {
        return Err(Error::new(Kind::Usage, format!("cannot use the passphrase from {name}"))
            .found("an empty one")
            .expected("at least one character"));
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passphrase_excludes_one_trailing_newline() {
        for (given, kept) in
            [("word", "word"), ("word\n", "word"), ("word\n\n", "word\n"), ("two\nlines\n", "two\nlines")]
        {
            assert_eq!(read(given.as_bytes(), "x").unwrap().expose(), kept.as_bytes());
        }
        for empty in ["", "\n"] {
            assert_eq!(read(empty.as_bytes(), "x").err().unwrap().kind(), Kind::Usage);
        }
        assert!(read(&vec![7; LIMIT][..], "x").is_ok());
        assert!(read(&vec![7; LIMIT + 1][..], "x").is_err());
    }
}
