//! Where passphrases come from: files, descriptors, a helper program, or the terminal.

use crate::args::{NewPassphraseArgs, PassphraseArgs};
use crate::descriptor;
use lacuna::keys::same;
use lacuna::{Error, Kind, Opened, Opener, Passphrase, Result, Unlocked};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::process::{Command, Stdio};

/// Longest passphrase or key file.
const LIMIT: usize = 1 << 20;
/// The credential of systemd that is taken for the passphrase where no option names one.
const CREDENTIAL: &str = "lacuna.passphrase";
/// How often a passphrase is asked for that opens nothing, or a new one that was not repeated alike.
const ATTEMPTS: u32 = 3;

/// Opens a header with the passphrases that the options give, or with one that is asked for, three times if need be.
pub(crate) fn to_open(args: &PassphraseArgs, location: &str, open: Opener<'_>) -> Result<Opened> {
    opened_by(args, &format!("Passphrase for {location}: "), open)
}

/// [`to_open`] with a prompt of its own.
pub(crate) fn opened_by(args: &PassphraseArgs, prompt: &str, open: Opener<'_>) -> Result<Opened> {
    let mut given = given(args)?;
    if given.is_empty() {
        given.extend(credential()?);
    }
    if !given.is_empty() {
        return Ok((open(&given)?, given));
    }
    let (unlocked, passphrase) = tried(prompt, open, |prompt| ask(args, prompt))?;
    Ok((unlocked, vec![passphrase]))
}

/// [`opened_by`] for a key operation that loses what is not given: where a person types, one passphrase after another is asked
/// for, and each is tried before the next.
pub(crate) fn to_keep(args: &PassphraseArgs, prompt: &str, open: Opener<'_>) -> Result<Opened> {
    let (mut unlocked, mut passphrases) = opened_by(args, prompt, open)?;
    let mut already = "";
    while !args.is_given() {
        let number = passphrases.len() + 1;
        let prompt =
            format!("{already}Passphrase {number} that is to keep working (just Enter if there is none): ");
        let typed = typed_in(&prompt)?;
        if typed.expose().is_empty() {
            break;
        }
        already = "";
        if passphrases.iter().any(|known| same(known, &typed)) {
            already = "You gave that one already. ";
            continue;
        }
        // Enter after a mistake is no answer: a person who gives up on a passphrase does not mean to lose it.
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
        None => checked(typed_in(prompt)?, "the terminal"),
    })
}

/// Asks for a passphrase until it opens the header, but not for ever.
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

/// The passphrases for a new disk, one for each level; asked for twice where a person types.
pub(crate) fn to_create(args: &PassphraseArgs, location: &str, levels: u8) -> Result<Vec<Passphrase>> {
    let typed = args.key_file.iter().any(|path| is_typed(path));
    let given = if typed { Vec::new() } else { given(args)? };
    if !given.is_empty() {
        return Ok(given);
    }
    let prompt = |level| match levels {
        1 => format!("New passphrase for {location}: "),
        _ => format!("New passphrase for level {level} of {location}: "),
    };
    let mut passphrases: Vec<Passphrase> = Vec::new();
    for level in 0..levels {
        passphrases.push(one_more(args, &prompt(level), &passphrases)?);
    }
    Ok(passphrases)
}

/// A new passphrase that differs from those before it: of two levels with the same one, only the deeper could be opened.
fn one_more(args: &PassphraseArgs, prompt: &str, before: &[Passphrase]) -> Result<Passphrase> {
    let mut prompt = prompt.to_owned();
    for attempt in 0..ATTEMPTS {
        let new = twice(args, &prompt)?;
        if before.iter().all(|known| !same(known, &new)) {
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

/// One more passphrase, for `key add` and `key change`.
pub(crate) fn another(new: &NewPassphraseArgs, args: &PassphraseArgs, location: &str) -> Result<Passphrase> {
    match (&new.new_key_file, new.new_key_fd) {
        (Some(path), _) if !is_typed(path) => from_path(path),
        (None, Some(number)) => from_descriptor(number),
        _ => twice(args, &format!("New passphrase for {location}: "))
            .map_err(|e| e.remedy("give the new passphrase with --new-key-file PATH or --new-key-fd N")),
    }
}

/// One passphrase from a file, a descriptor or a question.
pub(crate) fn one(
    path: Option<&Path>,
    number: Option<u32>,
    args: &PassphraseArgs,
    prompt: &str,
) -> Result<Passphrase> {
    match (path, number) {
        (Some(path), _) => from_path(path),
        (None, Some(number)) => from_descriptor(number),
        (None, None) => ask(args, prompt),
    }
}

fn given(args: &PassphraseArgs) -> Result<Vec<Passphrase>> {
    let files = args.key_file.iter().map(|path| from_path(path));
    files.chain(args.key_fd.iter().map(|number| from_descriptor(*number))).collect()
}

/// The passphrase that a unit of systemd was given under the name `lacuna.passphrase`, if it was.
fn credential() -> Result<Option<Passphrase>> {
    let Some(dir) = std::env::var_os("CREDENTIALS_DIRECTORY") else { return Ok(None) };
    let path = Path::new(&dir).join(CREDENTIAL);
    if path.exists() { from_path(&path).map(Some) } else { Ok(None) }
}

/// Asks until the same was given twice in a row, but not for ever.
fn twice(args: &PassphraseArgs, prompt: &str) -> Result<Passphrase> {
    let mut prompt = prompt.to_owned();
    for attempt in 0..ATTEMPTS {
        let first = ask(args, &prompt)?;
        let second = ask(args, "The same again: ")?;
        if same(&first, &second) {
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
    checked(typed_in(prompt)?, "the terminal")
}

fn typed_in(prompt: &str) -> Result<Passphrase> {
    let typed = rpassword::prompt_password(prompt).map_err(|e| {
        Error::new(Kind::Usage, "cannot ask for a passphrase")
            .found(e.to_string())
            .expected("a terminal")
            .remedy("give --key-file PATH, --key-fd N or --askpass CMD")
    })?;
    Ok(Passphrase::new(typed.into_bytes()))
}

/// Whether standard input is meant, and a person types there: read like a file, it would be seen by everybody who looks at the
/// screen, and a new passphrase would not be asked for twice.
fn is_typed(path: &Path) -> bool {
    path == Path::new("-") && io::stdin().is_terminal()
}

/// Whether a person types the passphrase, so that there is one to ask.
pub(crate) fn is_asked_for(args: &PassphraseArgs) -> bool {
    !args.is_given() || args.key_file.iter().any(|path| is_typed(path))
}

fn from_path(path: &Path) -> Result<Passphrase> {
    if path == Path::new("-") {
        if is_typed(path) {
            return checked(typed_in("Passphrase: ")?, "the terminal");
        }
        return read(descriptor::stdin()?, "standard input");
    }
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|e| {
        let error = Error::io(format!("cannot read the passphrase from {shown}"), &e);
        // Exit code 4 would say that the disk is not there.
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
    // All the room at once: a buffer that grows leaves copies behind.
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
