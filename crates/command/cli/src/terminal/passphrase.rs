//! Reads passphrases from files, descriptors, tokens, a helper program or the terminal.

use crate::args::{PassphraseArgs, RecoveryArgs, Source};
use crate::terminal::console;
use crate::terminal::descriptor;
use crate::terminal::hidden_input;
use crate::terminal::token;
use crate::terminal::weak_passphrase;
use lacuna_storage::keys::same;
use lacuna_storage::{
    Error, KEY_SLOTS, Kind, NewDisk, Opened, Opener, Passphrase, PublicHeader, Result, Unlocked, Uuid,
    shell_word,
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
pub(crate) fn to_open(
    args: &PassphraseArgs,
    location: &str,
    disk: &PublicHeader,
    open: Opener<'_>,
) -> Result<Opened> {
    opened_by(args, &format!("Passphrase for {location}: "), disk, open)
}

/// [`to_open`] with another prompt.
pub(crate) fn opened_by(
    args: &PassphraseArgs,
    prompt: &str,
    disk: &PublicHeader,
    open: Opener<'_>,
) -> Result<Opened> {
    let mut given = given(args, disk.uuid)?;
    if given.is_empty() && args.askpass.is_none() {
        given.extend(credential()?);
    }
    if !given.is_empty() {
        // Deniability contract: the number of passphrases would tell a log how many levels there
        // may be. With level 0 alone one is enough.
        let is_number_told = !disk.format.has_levels() || console::is_watched();
        let unlocked = open(&given).map_err(|e| about_tokens(args, e, is_number_told))?;
        return Ok((unlocked, given));
    }
    let (unlocked, passphrase) = tried(prompt, open, |prompt| ask(args, prompt))?;
    Ok((unlocked, vec![passphrase]))
}

/// [`opened_by`] for a key operation that drops all passphrases that are not given: on a terminal
/// it asks for one passphrase after another, and tries each before it asks for the next.
pub(crate) fn to_keep(
    args: &PassphraseArgs,
    prompt: &str,
    disk: &PublicHeader,
    open: Opener<'_>,
) -> Result<Opened> {
    let (mut unlocked, mut passphrases) = opened_by(args, prompt, disk, open)?;
    let mut already = "";
    while !args.is_given() {
        let prompt = format!("{already}Another passphrase to keep? (Enter = no more): ");
        let typed = hidden_input::read_line(&prompt)?;
        if typed.expose().is_empty() {
            break;
        }
        already = "";
        if passphrases.iter().any(|known| same(known, &typed)) {
            already = "You gave that one already. ";
            continue;
        }
        // After a mistyped passphrase, Enter does not end the list: otherwise the user would lose
        // this passphrase unintentionally.
        let (further, passphrase) = tried_from(typed, open)?;
        unlocked.join(further)?;
        passphrases.push(passphrase);
    }
    Ok((unlocked, passphrases))
}

/// [`tried`], beginning with a passphrase that was typed already.
fn tried_from(typed: Passphrase, open: Opener<'_>) -> Result<(Unlocked, Passphrase)> {
    let typed = RefCell::new(Some(typed));
    let prompt = "Type the passphrase to keep again (Ctrl-C: nothing is changed): ";
    tried(prompt, open, |prompt| match typed.take() {
        Some(typed) => Ok(typed),
        None => checked(hidden_input::read_line(prompt)?, "the terminal"),
    })
}

/// Asks for a passphrase until it opens the header, at most [`ATTEMPTS`] times.
fn tried(
    prompt: &str,
    open: Opener<'_>,
    ask: impl Fn(&str) -> Result<Passphrase>,
) -> Result<(Unlocked, Passphrase)> {
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
/// the token is enrolled; the number of passphrases is left out unless `is_number_told`.
fn about_tokens(args: &PassphraseArgs, e: Error, is_number_told: bool) -> Error {
    if e.kind() != Kind::Passphrase {
        return e;
    }
    let e = if is_number_told { e } else { e.without_finding() };
    let Some(token) = args.tokens().next() else { return e };
    let e = match args.sources.len() {
        1 if is_number_told => e.found(format!("a secret of the token {token} that opens nothing")),
        _ => e,
    };
    e.remedy(format!(
        "if it is that of the token: {}. Give the recovery passphrase instead, and enrol the token anew with `lacuna key add DISK \
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
pub(crate) fn about_removed(source: Option<&Source>, e: Error) -> Error {
    let Some(Source::Token(token)) = source.filter(|_| e.kind() == Kind::Passphrase) else { return e };
    e.found(format!("a secret of the token {token} that opens nothing")).remedy(format!(
        "{}. `lacuna key refresh` with every passphrase that is to keep working drops what the token was enrolled with",
        token::why_not(token)
    ))
}

/// The first passphrase of something without levels, which is not a token.
pub(crate) fn first(args: &PassphraseArgs, location: &str) -> Result<Vec<Passphrase>> {
    Ok(chosen(args, location, 1)?.into_iter().flatten().collect())
}

/// The passphrases of a new disk. Each level has one passphrase, or a token and a recovery
/// passphrase.
pub(crate) fn to_create(
    args: &PassphraseArgs,
    recovery: RecoveryArgs,
    location: &str,
    new: NewDisk,
) -> Result<Vec<Vec<Passphrase>>> {
    if args.tokens().next().is_none() {
        return chosen(args, location, new.levels);
    }
    check_tokens(args, recovery, location, new.levels)?;
    let mut all: Vec<Vec<Passphrase>> = Vec::new();
    for (level, source) in (0..new.levels).zip(&args.sources) {
        let mut of_level = Vec::new();
        match source {
            Source::Token(_) if recovery.no_recovery => {}
            Source::Token(_) => {
                let prompt = match new.levels {
                    1 => format!("New recovery passphrase for {location}: "),
                    _ => format!("New recovery passphrase for level {level} of {location}: "),
                };
                of_level.push(one_more(args, &prompt, &all)?);
            }
            source if is_typed_source(source) => {
                of_level.push(one_more(args, &new_prompt(location, new.levels, level), &all)?);
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
            .remedy("add others with `lacuna key add` afterwards"));
    }
    let tokens: Vec<_> = args.tokens().collect();
    if let Some((_, twice)) = tokens.iter().enumerate().find(|(at, token)| tokens[..*at].contains(*token)) {
        return Err(refused()
            .found(format!("the token {twice} for two levels"))
            .expected("another secret for each level")
            .remedy("give the second another NAME"));
    }
    if recovery.no_recovery {
        return Ok(());
    }
    if sources.len() + tokens.len() > KEY_SLOTS {
        return Err(refused()
            .found(format!("{} passphrases, recovery passphrases among them", sources.len() + tokens.len()))
            .expected(format!("at most {KEY_SLOTS}"))
            .remedy("enrol fewer tokens, or give --no-recovery"));
    }
    if nobody_to_ask(args) {
        return Err(refused()
            .found("a token, and nobody to ask for a recovery passphrase")
            .expected("a terminal, or a program that asks")
            .remedy("give --askpass CMD; or create it with a passphrase, then `lacuna key add`; or give --no-recovery"));
    }
    Ok(())
}

/// Passphrases without tokens for a new disk or vault, one for each level; asked for twice on a
/// terminal.
fn chosen(args: &PassphraseArgs, location: &str, levels: u8) -> Result<Vec<Vec<Passphrase>>> {
    if !args.sources.is_empty() && !args.sources.iter().any(is_typed_source) {
        // There is no token, so the disk's UUID is unused.
        let given = args.sources.iter().map(|source| from_source(source, args, Uuid([0; 16]), false));
        return given.map(|passphrase| Ok(vec![passphrase?])).collect();
    }
    let mut passphrases: Vec<Vec<Passphrase>> = Vec::new();
    for level in 0..levels {
        let new = one_more(args, &new_prompt(location, levels, level), &passphrases)?;
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
fn one_more(args: &PassphraseArgs, prompt: &str, before: &[Vec<Passphrase>]) -> Result<Passphrase> {
    let mut prompt = prompt.to_owned();
    for attempt in 0..ATTEMPTS {
        let new = twice(args, &prompt)?;
        if before.iter().flatten().all(|known| !same(known, &new)) {
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
pub(crate) fn another(
    source: Option<&Source>,
    args: &PassphraseArgs,
    location: &str,
    disk: Uuid,
) -> Result<Passphrase> {
    match source {
        Some(source) if !is_typed_source(source) => from_source(source, args, disk, true),
        _ => twice(args, &format!("New passphrase for {location}: "))
            .map_err(|e| e.remedy("give the new passphrase with --new-key-file PATH or --new-key-fd N")),
    }
}

/// One passphrase from its source, or else from a question.
pub(crate) fn one(
    source: Option<&Source>,
    args: &PassphraseArgs,
    disk: Uuid,
    prompt: &str,
) -> Result<Passphrase> {
    source.map_or_else(|| ask(args, prompt), |source| from_source(source, args, disk, false))
}

fn given(args: &PassphraseArgs, disk: Uuid) -> Result<Vec<Passphrase>> {
    args.sources.iter().map(|source| from_source(source, args, disk, false)).collect()
}

/// `create`: the token is being enrolled.
fn from_source(source: &Source, args: &PassphraseArgs, disk: Uuid, create: bool) -> Result<Passphrase> {
    match source {
        Source::File(path) => from_path(path),
        Source::Descriptor(number) => from_descriptor(*number),
        Source::Token(token) => {
            let ask_pin = |prompt: &str| if nobody_to_ask(args) { Err(no_pin()) } else { ask(args, prompt) };
            let secret = token::secret(token, disk, &ask_pin, create)?;
            checked(secret, &format!("the token {token}"))
        }
    }
}

/// A key file cannot hold a PIN, so the usual advice on missing passphrases does not apply.
fn no_pin() -> Error {
    Error::new(Kind::Usage, "cannot ask for the PIN")
        .found("no terminal")
        .expected("a terminal, or a program that asks")
        .remedy("give --askpass CMD, which is asked for the PIN")
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
fn twice(args: &PassphraseArgs, prompt: &str) -> Result<Passphrase> {
    let mut prompt = prompt.to_owned();
    for attempt in 0..ATTEMPTS {
        let first = ask(args, &prompt)?;
        let second = ask(args, "The same again: ")?;
        if same(&first, &second) {
            let weak = weak_passphrase::note(&first).filter(|_| args.askpass.is_none());
            if let Some(note) = weak.filter(|_| console::is_watched()) {
                console::now(&format!("note: {note}"));
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
    checked(hidden_input::read_line(prompt)?, "the terminal")
}

/// Whether there is neither a program nor a terminal to ask.
fn nobody_to_ask(args: &PassphraseArgs) -> bool {
    args.askpass.is_none() && File::options().read(true).write(true).open("/dev/tty").is_err()
}

/// Whether the path means standard input and that is a terminal. Read as a file, a passphrase would
/// be visible on the screen, and a new one would not be asked for twice.
fn is_typed(path: &Path) -> bool {
    path == Path::new("-") && io::stdin().is_terminal()
}

/// Whether the user types the passphrase, so that questions are possible.
pub(crate) fn is_asked_for(args: &PassphraseArgs) -> bool {
    !args.is_given() || args.sources.iter().any(is_typed_source)
}

fn is_typed_source(source: &Source) -> bool {
    matches!(source, Source::File(path) if is_typed(path))
}

fn from_path(path: &Path) -> Result<Passphrase> {
    if path == Path::new("-") {
        if is_typed(path) {
            return checked(hidden_input::read_line("Passphrase: ")?, "the terminal");
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
    let mut child = Command::new(program)
        .arg(prompt)
        .stdin(Stdio::null())
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
    checked(secret, name)
}

fn checked(secret: Passphrase, name: &str) -> Result<Passphrase> {
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
    fn one_trailing_newline_is_not_part_of_it() {
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
