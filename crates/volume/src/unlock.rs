//! Opening a header with passphrases.

use crate::copies::{HeaderCopy, SoundCopy, Survey, note};
use crate::keyslot::{self, LevelKeys};
use crate::layout::{self, KEY_LEN, MAX_LEVELS};
use crate::public::PublicHeader;
use crate::seal::{HeaderImage, mac_verifies};
use lacuna_core::{Error, Kind, Result, Secret, SecretVec};
use lacuna_crypto::{RandomSource, random_secret, stretch};
use lacuna_medium::Medium;

/// An open header.
pub struct Unlocked {
    /// The public part, now authenticated.
    pub header: PublicHeader,
    /// The deepest level that the passphrases opened.
    pub level: u8,
    /// The master keys of levels 0 up to [`Unlocked::level`].
    pub master_keys: Vec<Secret<KEY_LEN>>,
    /// What a person should know about the state of the header, in words.
    pub notes: Vec<String>,
    /// The level that each passphrase opened, in the order in which they were given.
    pub(crate) opened_levels: Vec<u8>,
    /// The slots on the medium, kept so that parameters can change without passphrases.
    pub(crate) slots: Vec<u8>,
    /// The copy that the next rewrite starts with.
    pub(crate) first: HeaderCopy,
    /// Set when a rewrite failed part of the way: which copy is whole is then unknown.
    pub(crate) write_failed: bool,
}

impl Unlocked {
    /// The level that each passphrase opened, in the order in which they were given.
    pub fn opened_levels(&self) -> &[u8] {
        &self.opened_levels
    }

    /// Adds a level below the deepest, with a new master key, and returns its number. It is lost unless a passphrase of
    /// it is put into the next key operation's [`crate::Keyring`].
    ///
    /// Errors: [`Kind::Usage`] if the disk has as many levels as fit.
    pub fn add_level(&mut self, random: &dyn RandomSource) -> Result<u8> {
        if self.master_keys.len() >= MAX_LEVELS {
            return Err(Error::new(Kind::Usage, "cannot add a level")
                .found(format!("{MAX_LEVELS} levels opened"))
                .expected(format!("fewer than the {MAX_LEVELS} that a disk can have")));
        }
        self.master_keys.push(random_secret(random));
        self.level += 1;
        Ok(self.level)
    }

    /// Refuses to go on after a failed rewrite.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.write_failed {
            return Err(Error::new(Kind::FailStop, "cannot rewrite the header")
                .found("an earlier rewrite that failed")
                .remedy("close the disk and open it again"));
        }
        Ok(())
    }

    /// Stores `image` and takes it over as the present state.
    pub(crate) fn store(&mut self, medium: &dyn Medium, image: HeaderImage) -> Result<()> {
        self.check_writable()?;
        self.write_failed = true;
        crate::copies::store(medium, &image)?;
        self.write_failed = false;
        self.slots.copy_from_slice(&image.bytes()[layout::SLOTS.range()]);
        self.header = image.public;
        self.first = HeaderCopy::A;
        self.notes.clear();
        Ok(())
    }
}

/// Opens the header of `medium` with one or more passphrases; the deepest level that one of them opens decides.
/// Writes nothing.
///
/// Each passphrase costs one run of Argon2id. A passphrase that opens nothing is an error even if others open:
/// going on at a shallower level than was meant could overwrite what lies deeper.
pub fn open(medium: &dyn Medium, passphrases: &[SecretVec]) -> Result<Unlocked> {
    if passphrases.is_empty() {
        return Err(Error::new(Kind::Usage, "cannot open the disk")
            .found("no passphrase")
            .expected("at least one"));
    }
    let survey = Survey::read(medium)?;
    let first = &survey.sound[0];
    let failure = match try_copy(first, passphrases) {
        Ok(opened) => return Ok(unlocked(&survey, first, opened)),
        Err(failure) => failure,
    };
    // The other copy gets its turn if the first was altered, or if one of two that should be alike was. An older
    // copy gets none merely because a passphrase failed: that passphrase may have been removed since.
    match survey.sound.get(1) {
        Some(second) if failure.kind() == Kind::Corrupt || rivals(first, second) => {
            match try_copy(second, passphrases) {
                Ok(opened) => {
                    let mut unlocked = unlocked(&survey, second, opened);
                    unlocked.notes = vec![note(first.copy, "was altered", second.copy)];
                    Ok(unlocked)
                }
                Err(_) if failure.kind() == Kind::Corrupt => Err(failure),
                Err(second_failure) => Err(second_failure),
            }
        }
        _ => Err(failure),
    }
}

/// Whether two copies claim the same place in history and yet differ.
fn rivals(a: &SoundCopy, b: &SoundCopy) -> bool {
    a.public.generation == b.public.generation && a.bytes != b.bytes
}

struct Opened {
    keys: LevelKeys,
    levels: Vec<u8>,
}

fn try_copy(sound: &SoundCopy, passphrases: &[SecretVec]) -> Result<Opened> {
    let (public, slots) = (&sound.public, &sound.bytes[layout::SLOTS.range()]);
    let mut deepest: LevelKeys = Vec::new();
    let mut levels = Vec::with_capacity(passphrases.len());
    let mut refused = Vec::new();
    for (i, passphrase) in passphrases.iter().enumerate() {
        let stretched = stretch(passphrase, &public.salt, &public.cost)?;
        match keyslot::open_deepest(slots, &public.uuid, &stretched)? {
            Some(keys) => {
                levels.push((keys.len() - 1) as u8);
                if keys.len() > deepest.len() {
                    deepest = keys;
                }
            }
            None => refused.push(i + 1),
        }
    }
    if !refused.is_empty() {
        return Err(wrong_passphrase(&refused, passphrases.len()));
    }
    if !mac_verifies(&sound.bytes, &public.uuid, &deepest[0]) {
        return Err(Error::new(Kind::Corrupt, "cannot open the header")
            .found(format!("{} whose MAC does not match: it was altered after lacuna wrote it", sound.copy))
            .expected("a header that only a holder of a passphrase has written")
            .remedy("restore the first MiB of the medium from a backup"));
    }
    Ok(Opened { keys: deepest, levels })
}

/// The same words whichever slots exist (deniability contract).
fn wrong_passphrase(refused: &[usize], given: usize) -> Error {
    let error = Error::new(Kind::Passphrase, "wrong passphrase");
    if given == 1 {
        return error;
    }
    let numbers: Vec<String> = refused.iter().map(usize::to_string).collect();
    error
        .found(format!("of {given} passphrases, these open nothing: {}", numbers.join(", ")))
        .expected("passphrases that all open this disk")
}

fn unlocked(survey: &Survey, sound: &SoundCopy, opened: Opened) -> Unlocked {
    Unlocked {
        header: sound.public.clone(),
        level: (opened.keys.len() - 1) as u8,
        master_keys: opened.keys,
        notes: survey.notes.clone(),
        opened_levels: opened.levels,
        slots: sound.bytes[layout::SLOTS.range()].to_vec(),
        first: survey.first_to_write(sound.copy),
        write_failed: false,
    }
}
