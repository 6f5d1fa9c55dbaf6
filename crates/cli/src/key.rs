//! `key add|change|remove|refresh`: what is asked and said around the operations of [`lacuna::keys`].

use crate::args::{KeyArgs, KeyNewArgs, KeyRefreshArgs, KeyRemoveArgs, PassphraseArgs, Source};
use crate::console::{self, Console};
use crate::cost;
use crate::online;
use crate::passphrase;
use crate::recovery::{self, Works};
use lacuna::keys::{Keys, Rewrites};
use lacuna::{Error, Kind, Opener, PublicHeader, Result};
use std::fmt::Write;

/// What is said when a token is enrolled on a disk with levels, whichever level it is for.
const ANYBODY_CAN_TRY: &str = "whoever has this token, and the PIN if it has one, can try it on the disk under any name, and so open what it \
    opens: a token for a level that nobody may find needs a PIN";

/// `lacuna key add`.
pub(crate) fn add(args: &KeyNewArgs, console: Console) -> Result<()> {
    let (given, new) = roles(args)?;
    let Unlocked { mut keys, mut works } = unlock(&args.key, &given, "Passphrase for", false, console)?;
    if enrols(new.as_ref(), &keys, console) {
        works.push(Works { level: deepest(&works), token: true });
        recovery::check(&works, args.key.recovery)?;
    }
    keys.add(passphrase::another(new.as_ref(), &given, &args.key.location.to_string(), keys.uuid())?)?;
    write(keys, &args.key, console, "added the passphrase")
}

/// `lacuna key change`.
pub(crate) fn change(args: &KeyNewArgs, console: Console) -> Result<()> {
    let (given, new) = (&args.key.passphrase, args.new.source());
    let Unlocked { mut keys, mut works } =
        unlock(&args.key, given, "Passphrase to replace for", false, console)?;
    if enrols(new.as_ref(), &keys, console) {
        works[0].token = true;
        recovery::check(&works, args.key.recovery)?;
    }
    keys.change(passphrase::another(new.as_ref(), given, &args.key.location.to_string(), keys.uuid())?)?;
    write(keys, &args.key, console, "changed the passphrase")
}

/// `lacuna key remove`.
pub(crate) fn remove(args: &KeyRemoveArgs, console: Console) -> Result<()> {
    let given = &args.key.passphrase;
    let Unlocked { mut keys, works } =
        unlock(&args.key, given, "Passphrase that keeps working for", false, console)?;
    let (prompt, source) = (format!("Passphrase to remove from {}: ", args.key.location), args.source());
    if !source.as_ref().is_some_and(Source::is_token) {
        recovery::check(&works, args.key.recovery)?;
    }
    let gone = passphrase::one(source.as_ref(), given, keys.uuid(), &prompt).map_err(|e| {
        if source.is_some() {
            e
        } else {
            e.remedy("give the passphrase to remove with --remove-key-file or --remove-key-fd")
        }
    })?;
    keys.remove(gone)?;
    write(keys, &args.key, console, "removed the passphrase")
}

/// `lacuna key refresh`.
pub(crate) fn refresh(args: &KeyRefreshArgs, console: Console) -> Result<()> {
    let KeyRefreshArgs { key, add_level, new } = args;
    let new = new.source();
    if !add_level && new.is_some() {
        return Err(Error::new(Kind::Usage, "cannot use a new passphrase")
            .found("one for `key refresh` without --add-level")
            .remedy("use `lacuna key add` for a passphrase more, or give --add-level for a level more"));
    }
    let Unlocked { mut keys, mut works } = unlock(key, &key.passphrase, "Passphrase for", true, console)?;
    if enrols(new.as_ref(), &keys, console) {
        works.push(Works { level: deepest(&works) + 1, token: true });
    }
    recovery::check(&works, key.recovery)?;
    if *add_level {
        let location = key.location.to_string();
        keys.add_level(passphrase::another(new.as_ref(), &key.passphrase, &location, keys.uuid())?)?;
    }
    let done = if *add_level { "added a level and rewrote the key slots" } else { "rewrote the key slots" };
    write(keys, key, console, done)
}

/// Which passphrases of `key add` open the disk, and which is the new one: a token, if nothing else is said to be new.
fn roles(args: &KeyNewArgs) -> Result<(PassphraseArgs, Option<Source>)> {
    let mut given = args.key.passphrase.clone();
    let new = args.new.source();
    if new.is_some() || given.tokens().next().is_none() {
        return Ok((given, new));
    }
    let mut tokens = given.sources.extract_if(.., |source| source.is_token());
    let (first, more) = (tokens.next(), tokens.count());
    if more > 0 {
        return Err(Error::new(Kind::Usage, "cannot tell which token to enrol")
            .found("more than one --token")
            .expected("one")
            .remedy(
                "give the one to enrol with --new-token, and with --token those that open the disk already",
            ));
    }
    Ok((given, first))
}

/// Whether a token is enrolled. Says what that means on a disk with levels.
fn enrols(new: Option<&Source>, keys: &Keys, console: Console) -> bool {
    let enrols = new.is_some_and(Source::is_token);
    if enrols && keys.has_levels() {
        // In the same words whatever there is (deniability contract).
        console.note(ANYBODY_CAN_TRY);
    }
    enrols
}

fn deepest(works: &[Works]) -> u8 {
    works.iter().map(|one| one.level).max().unwrap_or(0)
}

/// An unlocked disk, and the passphrases that unlocked it.
struct Unlocked {
    keys: Keys,
    works: Vec<Works>,
}

/// Unlocks the disk. `first`: what the first passphrase is, for a prompt. `all`: the operation rewrites all slots, whatever
/// the format.
fn unlock(
    args: &KeyArgs,
    given: &PassphraseArgs,
    first: &str,
    all: bool,
    console: Console,
) -> Result<Unlocked> {
    let cost = cost::from_args(&args.cost)?;
    let mut works = Vec::new();
    let ask = |rewrites, disk: &PublicHeader, open: Opener<'_>| {
        let prompt = format!("{first} {}: ", args.location);
        let opened = if let Rewrites::All(warning) = rewrites {
            check_agreement(args, warning)?;
            // Said before anything is asked for, so that the answers are given knowingly.
            console.note(warning);
            passphrase::to_keep(given, &prompt, disk.uuid, open)?
        } else {
            passphrase::opened_by(given, &prompt, disk.uuid, open)?
        };
        // Where nothing was given, all were typed.
        let token = |at: usize| given.sources.get(at).is_some_and(Source::is_token);
        let levels = opened.0.opened_levels().iter().enumerate();
        works = levels.map(|(at, level)| Works { level: *level, token: token(at) }).collect();
        Ok(opened)
    };
    let location = &args.location;
    let keys = match online::header(location, &args.holder)? {
        Some(header) => Keys::unlock_open((location, header), all, cost, &console, ask)?,
        None => Keys::unlock((location, &args.holder.of(location)?), all, cost, &console, ask)?,
    };
    let given = keys.given();
    match args.keep {
        Some(keep) if keys.levels().is_some() && usize::from(keep) != given => {
            Err(Error::new(Kind::Usage, "nothing was changed")
                .found(match given {
                    1 => "one passphrase that opens the disk".to_owned(),
                    several => format!("{several} passphrases that differ and open the disk"),
                })
                .expected(format!("{keep}, as --keep says"))
                .remedy("give every passphrase that is to keep working, each with its own --key-file"))
        }
        _ => Ok(Unlocked { keys, works }),
    }
}

/// Writes what was changed, after a last question where other passphrases stop working.
fn write(keys: Keys, args: &KeyArgs, console: Console, done: &str) -> Result<()> {
    let levels = keys.levels();
    if let Some(levels) = levels.as_ref().filter(|_| !args.yes) {
        console.note(&afterwards(levels, keys.has_levels()));
        console::confirm()?;
    }
    let left = keys.write(&console)?;
    let left = format!("{left} {}", work(left));
    console.done(&match levels {
        None => format!("{done}; {left} now"),
        Some(_) => format!("{done}; from now on {left}, of those given now"),
    })
}

/// What will work and what will not, in the last words before the answer.
fn afterwards(levels: &[u8], has_levels: bool) -> String {
    let mut words = format!("{} {} afterwards, and no other", levels.len(), work(levels.len()));
    if let Some(deepest) = levels.iter().max().filter(|_| has_levels) {
        let _ = write!(words, "; every level deeper than {deepest} is lost for ever");
        if levels.iter().all(|level| *level > 0) {
            words.push_str("; none of them opens level 0 alone");
        }
    }
    words
}

fn work(passphrases: usize) -> &'static str {
    if passphrases == 1 { "passphrase works" } else { "passphrases work" }
}

/// Refuses to rewrite all slots for somebody who cannot be asked and did not say how many passphrases there are.
fn check_agreement(args: &KeyArgs, warning: &str) -> Result<()> {
    if !args.yes && !console::can_ask() {
        return Err(Error::new(Kind::Usage, "cannot ask whether to go on")
            .found("no terminal")
            .remedy(format!("read this, then give --yes --keep N. {warning}")));
    }
    if args.yes && args.keep.is_none() {
        // A script that was written for one passphrase would be the end of a second.
        return Err(Error::new(Kind::Usage, "cannot go on without asking")
            .found("--yes without --keep")
            .expected("--keep N: the number of existing passphrases that keep working")
            .remedy(format!(
                "count the passphrases you give without the new one, for example --keep 1. {warning}"
            )));
    }
    Ok(())
}
