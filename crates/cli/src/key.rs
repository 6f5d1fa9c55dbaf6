//! `key add|change|remove|refresh`. Every one rewrites all key slots for exactly the passphrases that are known
//! afterwards, so that what happens on the medium is the same whatever there was (deniability contract).

use crate::args::{KeyArgs, KeyNewArgs, KeyRefreshArgs, KeyRemoveArgs};
use crate::cluster;
use crate::console::{self, Console};
use crate::cost::Wanted;
use crate::passphrase;
use crate::unlock::{self, Volume};
use lacuna_core::{Error, Kind, Result, SecretVec};
use lacuna_crypto::{SystemRandom, constant_time_eq};
use lacuna_medium::Access;
use lacuna_volume::{Keyring, LOST_SLOTS_WARNING};

/// `lacuna key add`.
pub fn add(args: &KeyNewArgs, console: Console) -> Result<()> {
    let mut session = Session::start(&args.key, console)?;
    let new = passphrase::another(&args.new, &args.key.passphrase, &args.key.location.to_string())?;
    session.keyring.add(session.volume.unlocked.level, new)?;
    session.finish(&args.key, console, "added the passphrase")
}

/// `lacuna key change`.
pub fn change(args: &KeyNewArgs, console: Console) -> Result<()> {
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
    let mut session = Session::start(&args.key, console)?;
    let new = passphrase::another(&args.new, &args.key.passphrase, &args.key.location.to_string())?;
    session.keyring.change(&session.first, new)?;
    session.finish(&args.key, console, "changed the passphrase")
}

/// `lacuna key remove`.
pub fn remove(args: &KeyRemoveArgs, console: Console) -> Result<()> {
    let session = Session::start(&args.key, console)?;
    let prompt = format!("Passphrase to remove from {}: ", args.key.location);
    let file = args.remove_key_file.as_deref();
    let gone = passphrase::one(file, args.remove_key_fd, &args.key.passphrase, &prompt)
        .map_err(|e| e.remedy("give the passphrase to remove with --remove-key-file or --remove-key-fd"))?;
    if session.kept.iter().any(|kept| constant_time_eq(kept.expose(), gone.expose())) {
        return Err(Error::new(Kind::Usage, "cannot remove the passphrase")
            .found("the same passphrase among those to keep")
            .remedy("give another one to keep, or use `lacuna key change`"));
    }
    // With a typing error here, a person would believe that a passphrase is gone which still works.
    lacuna_volume::open(&*session.volume.header, &[gone]).map_err(|e| match e.kind() {
        Kind::Passphrase => Error::new(Kind::Passphrase, "the passphrase to remove does not open this disk")
            .remedy("to be rid of all but those you know, use `lacuna key refresh`"),
        _ => e,
    })?;
    session.finish(&args.key, console, "removed the passphrase")
}

/// `lacuna key refresh`.
pub fn refresh(args: &KeyRefreshArgs, console: Console) -> Result<()> {
    let KeyRefreshArgs { key, add_level, new } = args;
    if !add_level && (new.new_key_file.is_some() || new.new_key_fd.is_some()) {
        return Err(Error::new(Kind::Usage, "cannot use a new passphrase")
            .found("one for `key refresh` without --add-level")
            .remedy("use `lacuna key add` for a passphrase more, or give --add-level for a level more"));
    }
    let mut session = Session::start(key, console)?;
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
    keyring: Keyring,
    first: SecretVec,
    kept: Vec<SecretVec>,
    cost: Option<Wanted>,
}

impl Session {
    fn start(args: &KeyArgs, console: Console) -> Result<Session> {
        if !args.yes && !console::can_ask() {
            return Err(Error::new(Kind::Usage, "cannot ask whether to go on")
                .found("no terminal")
                .remedy(format!("read this, then give --yes --keep N. {LOST_SLOTS_WARNING}")));
        }
        if args.yes && args.keep.is_none() {
            // A script that was written for one passphrase would be the end of a second.
            return Err(Error::new(Kind::Usage, "cannot go on without asking")
                .found("--yes without --keep")
                .expected("--keep N: the number of existing passphrases that keep working")
                .remedy(format!("count the passphrases you give without the new one, for example --keep 1. {LOST_SLOTS_WARNING}")));
        }
        cluster::refuse_snapshot(&args.location, "change the passphrases of")?;
        let cost = Wanted::from_args(&args.cost)?;
        // Said before anything is asked for, so that the answers are given knowingly.
        console.note(LOST_SLOTS_WARNING);
        let ask = |shown: &str| passphrase::to_keep(&args.passphrase, shown);
        let mut volume = unlock::unlock_with(&args.location, &args.holder, Access::Write, console, ask)?;
        let passphrases = std::mem::take(&mut volume.passphrases);
        let kept: Vec<SecretVec> = passphrases.iter().map(copy).collect();
        if let Some(keep) = args.keep.filter(|keep| usize::from(*keep) != kept.len()) {
            return Err(Error::new(Kind::Usage, "nothing was changed")
                .found(format!("{} passphrases that open the disk", kept.len()))
                .expected(format!("{keep}, as --keep says"))
                .remedy("give every passphrase that is to keep working, each with its own --key-file"));
        }
        let first = copy(&kept[0]);
        let keyring = Keyring::from_opened(&volume.unlocked, passphrases)?;
        Ok(Session { volume, keyring, first, kept, cost })
    }

    /// One level more, with this passphrase.
    fn add_level(&mut self, passphrase: SecretVec) -> Result<()> {
        if !self.volume.parameters.has_levels() {
            return Err(Error::new(Kind::Usage, "cannot add a level")
                .found(format!("the format {}", self.volume.unlocked.header.format))
                .expected("a disk made with `--format deniable` or `oblivious`"));
        }
        let levels = self.volume.unlocked.master_keys.len() + 1;
        // Deniability contract: it says how many levels there are.
        self.volume.parameters.check_levels(levels).map_err(Error::private)?;
        let level = self.volume.unlocked.add_level(&SystemRandom::new()?)?;
        self.keyring.add(level, passphrase)
    }

    fn finish(self, args: &KeyArgs, console: Console, done: &str) -> Result<()> {
        let Session { mut volume, keyring, cost, .. } = self;
        if !args.yes {
            console::confirm()?;
        }
        let cost = cost.map_or(volume.unlocked.header.cost, |wanted| wanted.settle(console));
        let random = SystemRandom::new()?;
        lacuna_volume::change_keys(&*volume.header, &mut volume.unlocked, &keyring, cost, &random)?;
        let left = keyring.levels().count();
        let work = if left == 1 { "passphrase works" } else { "passphrases work" };
        console.done(&format!("{done}; from now on {left} {work}, of those given now"))
    }
}
