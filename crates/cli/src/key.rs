//! `key add|change|remove|refresh`. Where the header tells which slots are used, `add`, `change` and `remove` rewrite one
//! and all other passphrases keep working. On formats with levels, and with `refresh`, all slots are rewritten for exactly
//! the passphrases that are given, so that what happens on the medium is the same whatever there was (deniability
//! contract).

use crate::args::{KeyArgs, KeyNewArgs, KeyRefreshArgs, KeyRemoveArgs};
use crate::console::{self, Console};
use crate::cost;
use crate::passphrase;
use lacuna::{Access, Cost, Medium, Opener, Volume};
use lacuna_core::{Error, Kind, Result, SecretVec};
use lacuna_crypto::{SystemRandom, constant_time_eq};
use lacuna_header::{
    Keyring, PublicHeader, Unlocked, add_passphrase, change_passphrase, lost_slots_warning, remove_passphrase,
};

/// `lacuna key add`.
pub(crate) fn add(args: &KeyNewArgs, console: Console) -> Result<()> {
    let mut session = Session::start(&args.key, "Passphrase for", false, console)?;
    let new = passphrase::another(&args.new, &args.key.passphrase, &args.key.location.to_string())?;
    let done = "added the passphrase";
    match &mut session.keyring {
        Some(keyring) => keyring.add(session.volume.unlocked.level, new)?,
        None => {
            return session
                .one_slot(console, done, |at| add_passphrase(at.header, at.unlocked, &new, at.random));
        }
    }
    session.finish(&args.key, console, done)
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
    let mut session = Session::start(&args.key, "Passphrase to replace for", false, console)?;
    let new = passphrase::another(&args.new, &args.key.passphrase, &args.key.location.to_string())?;
    let done = "changed the passphrase";
    match &mut session.keyring {
        Some(keyring) => keyring.change(&session.kept[0], new)?,
        None => {
            return session
                .one_slot(console, done, |at| change_passphrase(at.header, at.unlocked, &new, at.random));
        }
    }
    session.finish(&args.key, console, done)
}

/// `lacuna key remove`.
pub(crate) fn remove(args: &KeyRemoveArgs, console: Console) -> Result<()> {
    let session = Session::start(&args.key, "Passphrase that keeps working for", false, console)?;
    let prompt = format!("Passphrase to remove from {}: ", args.key.location);
    let file = args.remove_key_file.as_deref();
    let gone = passphrase::one(file, args.remove_key_fd, &args.key.passphrase, &prompt)
        .map_err(|e| e.remedy("give the passphrase to remove with --remove-key-file or --remove-key-fd"))?;
    if session.kept.iter().any(|kept| constant_time_eq(kept.expose(), gone.expose())) {
        return Err(Error::new(Kind::Usage, "cannot remove the passphrase")
            .found("the same passphrase among those to keep")
            .remedy("give another one to keep, or use `lacuna key change`"));
    }
    let done = "removed the passphrase";
    if session.keyring.is_none() {
        return session
            .one_slot(console, done, |at| remove_passphrase(at.header, at.unlocked, &gone, at.random));
    }
    // With a typing error here, a person would believe that a passphrase is gone which still works.
    lacuna_header::open(&*session.volume.header, &[gone]).map_err(|e| match e.kind() {
        Kind::Passphrase => Error::new(Kind::Passphrase, "the passphrase to remove does not open this disk")
            .remedy("to be rid of all but those you know, use `lacuna key refresh`"),
        _ => e,
    })?;
    session.finish(&args.key, console, done)
}

/// `lacuna key refresh`.
pub(crate) fn refresh(args: &KeyRefreshArgs, console: Console) -> Result<()> {
    let KeyRefreshArgs { key, add_level, new } = args;
    if !add_level && (new.new_key_file.is_some() || new.new_key_fd.is_some()) {
        return Err(Error::new(Kind::Usage, "cannot use a new passphrase")
            .found("one for `key refresh` without --add-level")
            .remedy("use `lacuna key add` for a passphrase more, or give --add-level for a level more"));
    }
    let mut session = Session::start(key, "Passphrase for", true, console)?;
    if *add_level {
        session.add_level(passphrase::another(new, &key.passphrase, &key.location.to_string())?)?;
    }
    let done = if *add_level { "added a level and rewrote the key slots" } else { "rewrote the key slots" };
    session.finish(key, console, done)
}

fn copy(passphrase: &SecretVec) -> SecretVec {
    SecretVec::new(passphrase.expose().to_vec())
}

/// An unlocked volume and the passphrases that keep working.
struct Session {
    volume: Volume,
    /// Those that were given.
    kept: Vec<SecretVec>,
    /// What will work when all slots are rewritten. None if one slot is.
    keyring: Option<Keyring>,
    cost: Option<Cost>,
}

/// What an operation on one slot works with.
struct OneSlot<'a> {
    header: &'a dyn Medium,
    unlocked: &'a mut Unlocked,
    random: &'a SystemRandom,
}

impl Session {
    /// Unlocks the disk. `first`: what the first passphrase is, for a prompt. `all`: the operation rewrites all slots,
    /// whatever the format.
    fn start(args: &KeyArgs, first: &str, all: bool, console: Console) -> Result<Session> {
        lacuna::refuse_snapshot(&args.location, "change the passphrases of")?;
        let cost = cost::from_args(&args.cost)?;
        let shown = std::cell::Cell::new(None);
        let ask = |public: &PublicHeader, open: Opener<'_>| {
            shown.set(Some(public.format));
            let prompt = format!("{first} {}: ", args.location);
            if !all && public.keeps_others() {
                check_no_cost(&cost)?;
                return passphrase::opened_by(&args.passphrase, &prompt, open);
            }
            let warning = lost_slots_warning(public.format);
            check_agreement(args, warning)?;
            // Said before anything is asked for, so that the answers are given knowingly.
            console.note(warning);
            passphrase::to_keep(&args.passphrase, &prompt, open)
        };
        let mut volume =
            lacuna::unlock(&args.location, &args.holder.of(&args.location)?, Access::Write, &console, ask)?;
        let passphrases = std::mem::take(&mut volume.passphrases);
        let mut kept: Vec<SecretVec> = Vec::new();
        for passphrase in &passphrases {
            // One that is given twice is one.
            if kept.iter().all(|known| !constant_time_eq(known.expose(), passphrase.expose())) {
                kept.push(copy(passphrase));
            }
        }
        if shown.get() != Some(volume.unlocked.header.format) {
            // What was asked and said went by a header that nobody had authenticated.
            return Err(Error::new(Kind::Corrupt, "nothing was changed")
                .found("header copies of which one names another format: it was altered")
                .remedy("mend them first with `lacuna header repair`"));
        }
        if !all && volume.unlocked.header.keeps_others() {
            check_no_cost(&cost)?;
            return Ok(Session { volume, kept, keyring: None, cost: None });
        }
        if let Some(keep) = args.keep.filter(|keep| usize::from(*keep) != kept.len()) {
            return Err(Error::new(Kind::Usage, "nothing was changed")
                .found(match kept.len() {
                    1 => "one passphrase that opens the disk".to_owned(),
                    several => format!("{several} passphrases that differ and open the disk"),
                })
                .expected(format!("{keep}, as --keep says"))
                .remedy("give every passphrase that is to keep working, each with its own --key-file"));
        }
        let keyring = Keyring::from_opened(&volume.unlocked, passphrases)?;
        Ok(Session { volume, kept, keyring: Some(keyring), cost })
    }

    /// One level more, with this passphrase.
    fn add_level(&mut self, passphrase: SecretVec) -> Result<()> {
        let Some(keyring) = self.keyring.as_mut().filter(|_| self.volume.parameters.has_levels()) else {
            return Err(Error::new(Kind::Usage, "cannot add a level")
                .found(format!("the format {}", self.volume.unlocked.header.format))
                .expected("a disk made with `--format deniable` or `oblivious`"));
        };
        let levels = self.volume.unlocked.master_keys.len() + 1;
        // Deniability contract: it says how many levels there are.
        self.volume.parameters.check_levels(levels).map_err(Error::private)?;
        let level = self.volume.unlocked.add_level(&SystemRandom::new()?)?;
        keyring.add(level, passphrase)
    }

    /// Changes one slot by `change`, which gives how many passphrases work then.
    fn one_slot(
        mut self,
        console: Console,
        done: &str,
        change: impl FnOnce(OneSlot<'_>) -> Result<usize>,
    ) -> Result<()> {
        let random = SystemRandom::new()?;
        let left = change(OneSlot {
            header: &*self.volume.header,
            unlocked: &mut self.volume.unlocked,
            random: &random,
        })?;
        console.done(&format!("{done}; {left} {} now", work(left)))
    }

    /// Rewrites all slots.
    fn finish(self, args: &KeyArgs, console: Console, done: &str) -> Result<()> {
        let Session { mut volume, keyring, cost, .. } = self;
        let keyring =
            keyring.ok_or_else(|| Error::new(Kind::Other, "no passphrases to rewrite the slots for"))?;
        if !args.yes {
            console.note(&afterwards(&keyring, volume.parameters.has_levels()));
            console::confirm()?;
        }
        let cost = cost.map_or(volume.unlocked.header.cost, |wanted| wanted.settle(&console));
        let random = SystemRandom::new()?;
        lacuna_header::change_keys(&*volume.header, &mut volume.unlocked, &keyring, cost, &random)?;
        let left = keyring.levels().count();
        console.done(&format!("{done}; from now on {left} {}, of those given now", work(left)))
    }
}

/// What will work and what will not, in the last words before the answer.
fn afterwards(keyring: &Keyring, has_levels: bool) -> String {
    let left = keyring.levels().count();
    let mut words = format!("{left} {} afterwards, and no other", work(left));
    if let Some(deepest) = keyring.levels().max().filter(|_| has_levels) {
        words.push_str(&format!("; every level deeper than {deepest} is lost for ever"));
        if deepest > 0 && keyring.levels().all(|level| level > 0) {
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

/// All slots have one cost: it cannot change while some stay.
fn check_no_cost(cost: &Option<Cost>) -> Result<()> {
    if cost.is_none() {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "cannot change the cost of one passphrase")
        .found("--kdf-memory")
        .expected("one cost for all passphrases of a disk")
        .remedy("give --kdf-memory to `lacuna key refresh`, with all passphrases that are to keep working"))
}
