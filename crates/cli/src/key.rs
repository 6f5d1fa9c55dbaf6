//! `key add|change|remove|refresh`: what is asked and said around the operations of [`lacuna::keys`].

use crate::args::{KeyArgs, KeyNewArgs, KeyRefreshArgs, KeyRemoveArgs};
use crate::console::{self, Console};
use crate::cost;
use crate::online;
use crate::passphrase;
use lacuna::keys::{Keys, Rewrites};
use lacuna::{Error, Kind, Opener, Result};
use std::fmt::Write;

/// `lacuna key add`.
pub(crate) fn add(args: &KeyNewArgs, console: Console) -> Result<()> {
    let mut keys = unlock(&args.key, "Passphrase for", false, console)?;
    keys.add(passphrase::another(&args.new, &args.key.passphrase, &args.key.location.to_string())?)?;
    write(keys, &args.key, console, "added the passphrase")
}

/// `lacuna key change`.
pub(crate) fn change(args: &KeyNewArgs, console: Console) -> Result<()> {
    let given = &args.key.passphrase;
    if !given.key_file.is_empty() && !given.key_fd.is_empty() {
        // Which of the two kinds came first on the command line is not known here.
        return Err(Error::new(Kind::Usage, "cannot tell which passphrase to change")
            .found("both --key-file and --key-fd")
            .expected("the passphrase to change first, and those to keep in the same way")
            .remedy(
                "give all of them with --key-file (/dev/fd/N names descriptor N), or all with --key-fd",
            ));
    }
    let mut keys = unlock(&args.key, "Passphrase to replace for", false, console)?;
    keys.change(passphrase::another(&args.new, given, &args.key.location.to_string())?)?;
    write(keys, &args.key, console, "changed the passphrase")
}

/// `lacuna key remove`.
pub(crate) fn remove(args: &KeyRemoveArgs, console: Console) -> Result<()> {
    let mut keys = unlock(&args.key, "Passphrase that keeps working for", false, console)?;
    let prompt = format!("Passphrase to remove from {}: ", args.key.location);
    let file = args.remove_key_file.as_deref();
    let gone = passphrase::one(file, args.remove_key_fd, &args.key.passphrase, &prompt)
        .map_err(|e| e.remedy("give the passphrase to remove with --remove-key-file or --remove-key-fd"))?;
    keys.remove(gone)?;
    write(keys, &args.key, console, "removed the passphrase")
}

/// `lacuna key refresh`.
pub(crate) fn refresh(args: &KeyRefreshArgs, console: Console) -> Result<()> {
    let KeyRefreshArgs { key, add_level, new } = args;
    if !add_level && (new.new_key_file.is_some() || new.new_key_fd.is_some()) {
        return Err(Error::new(Kind::Usage, "cannot use a new passphrase")
            .found("one for `key refresh` without --add-level")
            .remedy("use `lacuna key add` for a passphrase more, or give --add-level for a level more"));
    }
    let mut keys = unlock(key, "Passphrase for", true, console)?;
    if *add_level {
        keys.add_level(passphrase::another(new, &key.passphrase, &key.location.to_string())?)?;
    }
    let done = if *add_level { "added a level and rewrote the key slots" } else { "rewrote the key slots" };
    write(keys, key, console, done)
}

/// Unlocks the disk. `first`: what the first passphrase is, for a prompt. `all`: the operation rewrites all slots, whatever
/// the format.
fn unlock(args: &KeyArgs, first: &str, all: bool, console: Console) -> Result<Keys> {
    let cost = cost::from_args(&args.cost)?;
    let ask = |rewrites, open: Opener<'_>| {
        let prompt = format!("{first} {}: ", args.location);
        let Rewrites::All(warning) = rewrites else {
            return passphrase::opened_by(&args.passphrase, &prompt, open);
        };
        check_agreement(args, warning)?;
        // Said before anything is asked for, so that the answers are given knowingly.
        console.note(warning);
        passphrase::to_keep(&args.passphrase, &prompt, open)
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
        _ => Ok(keys),
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
