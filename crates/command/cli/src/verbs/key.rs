//! `key add|change|remove|refresh`: questions and messages around the operations of
//! [`lacuna_storage::keys`].

use crate::args::cost;
use crate::args::{KeyArgs, KeyNewArgs, KeyRefreshArgs, KeyRemoveArgs, PassphraseArgs, PassphraseSource};
use crate::terminal::console::{self, Console};
use crate::terminal::passphrase;
use crate::terminal::recovery::{self, WorkingPassphrase};
use crate::verbs::remote_ops;
use crate::verbs::unlock::{check_id, explain_busy};
use lacuna_storage::keys::{PassphraseChange, SlotRewrite, is_same_passphrase};
use lacuna_storage::{
    DiskRef, Error, HeaderOpener, Kind, LeasedHeader, Passphrase, PassphraseMatch, PublicHeader, Result,
};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

/// The note when a token is enrolled on a disk with levels, for any level.
const TOKEN_NOTE: &str = "a holder of this token, with the PIN if it has one, can try it on the disk under \
    any name, and so open its level: a token for a level that must stay hidden needs a PIN";

/// `lacuna key add`.
pub(crate) fn add(args: &KeyNewArgs, console: Console) -> Result<()> {
    let (given, new) = split_sources(args)?;
    check_readable(new.as_ref())?;
    let enrols = is_token(new.as_ref());
    // A new passphrase opens the deepest level of the given ones, so it recovers the levels of all
    // given tokens.
    let doubtful = enrols && given.tokens().next().is_some();
    let asking =
        PassphraseQuery { given: &given, first: "Passphrase for", all: false, depends_on_level: doubtful };
    let UnlockedKeys { mut keys, passphrases: mut works } = unlock(&args.key, asking, console)?;
    let level = deepest(&works);
    if enrols {
        works.push(WorkingPassphrase { level, is_token: true });
        recovery::check(&works, args.key.recovery)?;
    }
    keys.check_free_slot()?;
    confirm(&args.key, &keys, Some(level), enrols, console)?;
    let secret =
        passphrase::new_passphrase(new.as_ref(), &given, &args.key.location.to_string(), keys.uuid())?;
    let used = |e| with_used_hint(new.as_ref(), e);
    keys.add(secret).map_err(used)?;
    write(keys, console, "added the passphrase").map_err(used)
}

/// `lacuna key change`.
pub(crate) fn change(args: &KeyNewArgs, console: Console) -> Result<()> {
    let (given, new) = (&args.key.passphrase, args.new.source());
    check_readable(new.as_ref())?;
    let enrols = is_token(new.as_ref());
    let doubtful = enrols || given.sources.iter().skip(1).any(PassphraseSource::is_token);
    let asking =
        PassphraseQuery { given, first: "Passphrase to replace for", all: false, depends_on_level: doubtful };
    let UnlockedKeys { mut keys, passphrases: mut works } = unlock(&args.key, asking, console)?;
    works[0].is_token = enrols;
    // If only one slot changes, passphrases that are not given keep working.
    if enrols || keys.levels().is_some() {
        recovery::check(&works, args.key.recovery)?;
    }
    confirm(&args.key, &keys, None, enrols, console)?;
    let secret =
        passphrase::new_passphrase(new.as_ref(), given, &args.key.location.to_string(), keys.uuid())?;
    let used = |e| with_used_hint(new.as_ref(), e);
    keys.replace(secret).map_err(used)?;
    write(keys, console, "changed the passphrase").map_err(used)
}

/// `lacuna key remove`.
pub(crate) fn remove(args: &KeyRemoveArgs, console: Console) -> Result<()> {
    let (given, source) = (&args.key.passphrase, args.source());
    check_readable(source.as_ref())?;
    let doubtful = given.tokens().next().is_some();
    let asking = PassphraseQuery {
        given,
        first: "Passphrase that keeps working for",
        all: false,
        depends_on_level: doubtful,
    };
    let UnlockedKeys { mut keys, passphrases: works } = unlock(&args.key, asking, console)?;
    let prompt = format!("Passphrase to remove from {}: ", args.key.location);
    // If only one slot changes, removing a token leaves every passphrase. Otherwise all passphrases
    // that are not given are dropped.
    if keys.levels().is_some() || !is_token(source.as_ref()) {
        recovery::check(&works, args.key.recovery)?;
    }
    let gone = passphrase::one_passphrase(source.as_ref(), given, keys.uuid(), &prompt).map_err(|e| {
        if source.is_some() {
            e
        } else {
            e.hint("give the passphrase to remove with --remove-key-file or --remove-key-fd")
        }
    })?;
    let opens_nothing = |e| passphrase::with_removal_hint(source.as_ref(), e);
    keys.remove(gone).map_err(opens_nothing)?;
    confirm(&args.key, &keys, None, false, console)?;
    write(keys, console, "removed the passphrase").map_err(opens_nothing)
}

/// `lacuna key refresh`.
pub(crate) fn refresh(args: &KeyRefreshArgs, console: Console) -> Result<()> {
    let KeyRefreshArgs { key, add_level, new } = args;
    let new = new.source();
    if !add_level && new.is_some() {
        return Err(Error::new(Kind::Usage, "cannot use a new passphrase")
            .found("one for `key refresh` without --add-level")
            .hint("use `lacuna key add` for a passphrase more, or give --add-level for a level more"));
    }
    check_readable(new.as_ref())?;
    let enrols = is_token(new.as_ref());
    if enrols && !key.recovery.no_recovery {
        return Err(Error::new(Kind::Usage, "cannot add a level that a token alone opens")
            .found("a token for the new level")
            .expected("a passphrase, which opens the level if the token is lost")
            .hint(
                "make the level with --new-key-file PATH, then enrol the token: `lacuna key add DISK --new-token TOKEN`; \
                 or give --no-recovery",
            ));
    }
    let given = &key.passphrase;
    let doubtful = given.tokens().next().is_some();
    let asking = PassphraseQuery { given, first: "Passphrase for", all: true, depends_on_level: doubtful };
    let UnlockedKeys { mut keys, passphrases: works } = unlock(key, asking, console)?;
    recovery::check(&works, key.recovery)?;
    if *add_level {
        keys.check_new_level()?;
        keys.check_free_slot()?;
        confirm(key, &keys, Some(deepest(&works) + 1), enrols, console)?;
        let secret = passphrase::new_passphrase(new.as_ref(), given, &key.location.to_string(), keys.uuid())?;
        keys.add_level(secret).map_err(|e| with_used_hint(new.as_ref(), e))?;
        return write(keys, console, "added a level and rewrote the key slots");
    }
    confirm(key, &keys, None, false, console)?;
    write(keys, console, "rewrote the key slots")
}

/// Separates the new passphrase of `key add` from the passphrases that open the disk: a token is
/// the new one if no option gives another.
fn split_sources(args: &KeyNewArgs) -> Result<(PassphraseArgs, Option<PassphraseSource>)> {
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
            .hint(
                "give the token to enrol with --new-token, and tokens that are enrolled already with --token",
            ));
    }
    Ok((given, first))
}

/// Refuses a file that this user cannot read, before another passphrase is asked for. The file is
/// not opened: it may be a pipe, which can be read once.
fn check_readable(source: Option<&PassphraseSource>) -> Result<()> {
    let Some(PassphraseSource::File(path)) = source.filter(|source| !is_stdin(source)) else { return Ok(()) };
    match accessat(CWD, path, Access::READ_OK, AtFlags::EACCESS) {
        // An old system cannot tell: reading the file shows it.
        Ok(()) | Err(Errno::NOSYS) => Ok(()),
        Err(e) => {
            let error = Error::io(format!("cannot read the passphrase from {}", path.display()), &e.into());
            // Exit code 4 would mean that the disk does not exist.
            Err(if error.kind() == Kind::NotFound { error.with_kind(Kind::Usage) } else { error })
        }
    }
}

fn is_stdin(source: &PassphraseSource) -> bool {
    matches!(source, PassphraseSource::File(path) if path.as_os_str() == "-")
}

fn is_token(source: Option<&PassphraseSource>) -> bool {
    source.is_some_and(PassphraseSource::is_token)
}

/// Adds to the error of a new passphrase that works already that it is the secret of a token.
fn with_used_hint(new: Option<&PassphraseSource>, e: Error) -> Error {
    match new {
        _ if e.kind() != Kind::Exists => e,
        Some(PassphraseSource::Token(token)) => e
            .with_kind(Kind::Usage)
            .found(format!("the secret of the token {token}, which is enrolled already"))
            .hint("use the token as it is, or give it another NAME for another secret"),
        // An existing passphrase is a usage error of `key`, like its other refusals.
        _ => e.with_kind(Kind::Usage),
    }
}

fn deepest(works: &[WorkingPassphrase]) -> u8 {
    works.iter().map(|one| one.level).max().unwrap_or(0)
}

/// An unlocked disk, and the passphrases that unlocked it.
struct UnlockedKeys {
    keys: PassphraseChange,
    passphrases: Vec<WorkingPassphrase>,
}

/// How to ask for the passphrases that unlock the disk.
#[derive(Clone, Copy)]
struct PassphraseQuery<'a> {
    /// The passphrases that are given.
    given: &'a PassphraseArgs,
    /// The beginning of the first prompt.
    first: &'static str,
    /// Whether the operation rewrites all slots, for every format.
    all: bool,
    /// Whether the level of each passphrase decides if a token is left alone.
    depends_on_level: bool,
}

/// Unlocks the disk.
fn unlock(args: &KeyArgs, asking: PassphraseQuery<'_>, console: Console) -> Result<UnlockedKeys> {
    let PassphraseQuery { given, first, all, depends_on_level: doubtful } = asking;
    let cost = cost::from_args(&args.cost)?;
    let mut works = Vec::new();
    let ask = |rewrites, disk: &PublicHeader, open: HeaderOpener<'_>| {
        if doubtful && disk.format.has_levels() {
            recovery::require_terminal(args.recovery)?;
        }
        let prompt = format!("{first} {}: ", args.location);
        let opened = if let SlotRewrite::All(warning) = rewrites {
            check_confirmable(args, warning)?;
            // Printed before the questions, so that the user answers knowingly.
            console.note(warning);
            passphrase::open_with_all(given, &prompt, disk, open)?
        } else {
            passphrase::open_with_prompt(given, &prompt, disk, open)?
        };
        let opened = check_id(opened, args.expect.expect, &args.location)?;
        works = working_passphrases(&opened, given);
        Ok(opened)
    };
    let location = &args.location;
    let keys = match remote_ops::header(location, &args.pool_access, args.expect)? {
        Some(medium) => {
            PassphraseChange::unlock_leased(&LeasedHeader { location, medium }, all, cost, &console, ask)?
        }
        None => PassphraseChange::unlock(
            DiskRef { location, pool_access: &args.pool_access.access_for(location)? },
            all,
            cost,
            &console,
            ask,
        )
        .map_err(|e| explain_busy(location, e, console))?,
    };
    let given = keys.given_count();
    match args.keep {
        Some(keep) if keys.levels().is_some() && usize::from(keep) != given => {
            Err(Error::new(Kind::Usage, "nothing was changed")
                .found(match given {
                    // Deniability contract: a log does not get the number of passphrases.
                    _ if !console::is_terminal() => "another number of passphrases that work".to_owned(),
                    1 => "one passphrase that works".to_owned(),
                    several => format!("{several} passphrases that differ and work"),
                })
                .expected(format!("{keep}, as --keep says"))
                .hint("give every passphrase that is to keep working, each with its own --key-file"))
        }
        _ => Ok(UnlockedKeys { keys, passphrases: works }),
    }
}

/// The passphrases that opened a disk, without duplicates, as the operation counts them.
fn working_passphrases(
    (unlocked, passphrases): &PassphraseMatch,
    given: &PassphraseArgs,
) -> Vec<WorkingPassphrase> {
    // Without sources all passphrases were typed.
    let is_token = |at: usize| is_token(given.sources.get(at));
    let mut each: Vec<(&Passphrase, WorkingPassphrase)> = Vec::new();
    for (at, (level, passphrase)) in unlocked.opened_levels().iter().zip(passphrases).enumerate() {
        match each.iter_mut().find(|(known, _)| is_same_passphrase(known, passphrase)) {
            // A passphrase given both as a token and otherwise does not depend on the token.
            Some((_, works)) => works.is_token &= is_token(at),
            None => each.push((passphrase, WorkingPassphrase { level: *level, is_token: is_token(at) })),
        }
    }
    each.into_iter().map(|(_, works)| works).collect()
}

/// Asks for confirmation if other passphrases stop working. `more`: the level of a passphrase that
/// is added. `enrols`: it is the secret of a token, which is explained.
///
/// Runs before a secret is made: a token keeps it, whatever the answer.
fn confirm(
    args: &KeyArgs,
    keys: &PassphraseChange,
    more: Option<u8>,
    enrols: bool,
    console: Console,
) -> Result<()> {
    if enrols && keys.has_levels() {
        // Deniability contract: the text does not depend on the levels.
        console.note(TOKEN_NOTE);
    }
    let Some(levels) = keys.levels().filter(|_| !args.yes) else { return Ok(()) };
    console.confirm(&outcome_text(&levels, more, keys.has_levels()), false)
}

/// Writes the changed key slots.
fn write(keys: PassphraseChange, console: Console, done: &str) -> Result<()> {
    let rewrites = keys.levels().is_some();
    let left = keys.write(&console)?;
    let left = format!("{left} {}", works_text(left));
    console.done(&if rewrites {
        format!("{done}; from now on {left}, of those given now")
    } else {
        format!("{done}; {left} now")
    })
}

/// The passphrases that will work and the levels that will be lost, for the question. `levels` are
/// those of the given passphrases, and `more` is that of an added one, perhaps a new level.
fn outcome_text(levels: &[u8], more: Option<u8>, has_levels: bool) -> String {
    let all: Vec<u8> = levels.iter().copied().chain(more).collect();
    let passphrases = match all.len() {
        1 => "the passphrase that you give".to_owned(),
        several => format!("the {several} passphrases that you give"),
    };
    let Some(deepest) = levels.iter().copied().max().filter(|_| has_levels) else {
        return format!("only {passphrases} will work");
    };
    // A new level takes the place of the next one, if there is one.
    let deeper = deepest + 1;
    let is_new = more == Some(deeper);
    let kept = match (deepest, is_new) {
        (0, false) => "level 0".to_owned(),
        (0, true) => "level 0 and a new level 1".to_owned(),
        (1, false) => "level 0 and level 1".to_owned(),
        (1, true) => "level 0, level 1 and a new level 2".to_owned(),
        (_, false) => format!("levels 0 to {deepest}"),
        (_, true) => format!("levels 0 to {deepest} and a new level {deeper}"),
    };
    let now = if is_new { " now" } else { "" };
    let mut words = format!(
        "you will have {kept}, with {passphrases}; if there is a level {deeper} or a deeper one{now}, it is lost for ever"
    );
    if all.iter().all(|level| *level > 0) {
        words.push_str("; none of these passphrases opens level 0 alone");
    }
    words
}

fn works_text(passphrases: usize) -> &'static str {
    if passphrases == 1 { "passphrase works" } else { "passphrases work" }
}

/// Refuses to rewrite all slots if the user cannot be asked and did not give the number of
/// passphrases.
fn check_confirmable(args: &KeyArgs, warning: &str) -> Result<()> {
    let warning = warning.trim_end_matches('.');
    if !args.yes && !console::can_ask() {
        return Err(Error::new(Kind::Usage, "cannot ask whether to go on")
            .found("no terminal")
            .expected(format!("consent. {warning}"))
            .hint("give --yes, and with --keep N the number of passphrases that you keep"));
    }
    if args.yes && args.keep.is_none() {
        // A script that was written for one passphrase would drop a second one.
        return Err(Error::new(Kind::Usage, "cannot go on without asking")
            .found("--yes without --keep")
            .expected(format!("consent, and the number of passphrases that you keep. {warning}"))
            .hint("also say how many passphrases you are keeping, without the new one: --keep 1"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_names_the_levels_that_stay_and_the_first_that_is_lost() {
        for (levels, more, words) in [
            (
                &[0_u8][..],
                Some(0),
                "level 0, with the 2 passphrases that you give; if there is a level 1 or a deeper one, ",
            ),
            (
                &[0, 2][..],
                None,
                "levels 0 to 2, with the 2 passphrases that you give; if there is a level 3 or a deeper one, ",
            ),
            // A new level takes the place of the first that is lost.
            (
                &[0][..],
                Some(1),
                "level 0 and a new level 1, with the 2 passphrases that you give; if there is a level 1 or ",
            ),
            (
                &[0, 1][..],
                Some(2),
                "level 0, level 1 and a new level 2, with the 3 passphrases that you give; if there is a level 2 ",
            ),
            (
                &[0, 1, 2][..],
                Some(3),
                "levels 0 to 2 and a new level 3, with the 4 passphrases that you give; if there is a level 3 ",
            ),
        ] {
            let said = outcome_text(levels, more, true);
            assert!(said.starts_with(&format!("you will have {words}")), "{said}");
            assert!(!said.contains("opens level 0 alone"), "{said}");
        }
        assert!(
            outcome_text(&[1][..], Some(2), true).ends_with("none of these passphrases opens level 0 alone")
        );
        assert_eq!(outcome_text(&[0][..], None, false), "only the passphrase that you give will work");
    }
}
