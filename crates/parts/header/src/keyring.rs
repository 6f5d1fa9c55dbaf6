//! Key operations that rewrite all slots, and so set which passphrases open which level.

use crate::header_image::HeaderImage;
use crate::keyslot;
use crate::layout::{self, KEY_SLOTS};
use crate::public::{FormatId, PublicHeader};
use crate::slot_map::SlotMap;
use crate::unlock::OpenHeader;
use lacuna_contracts::{Error, Kind, Result, SecretVec};
use lacuna_crypto::{Argon2Cost, RandomSource, constant_time_eq};
use lacuna_medium::Medium;

/// The warning before a key operation that rewrites all slots. It depends on the format alone, and
/// not on which levels exist (deniability contract).
pub fn lost_slots_warning(format: FormatId) -> &'static str {
    if format.has_levels() {
        "This rewrites all key slots. Every passphrase that you do not give now stops working, and a level that only such \
         passphrases open is lost for ever. Give all passphrases that are to keep working."
    } else {
        "This rewrites all key slots. Every passphrase that you do not give now stops working. Give all passphrases that \
         are to keep working."
    }
}

/// The passphrases that exist after a key operation, each with the level that it opens.
///
/// Start with the passphrases that opened the disk ([`Keyring::from_opened`]), change the list,
/// then call [`change_keys`]. An unchanged list refreshes the slots.
pub struct Keyring {
    entries: Vec<(u8, SecretVec)>,
}

impl Keyring {
    /// The passphrases that opened a disk, in the order given to [`crate::open`].
    pub fn from_opened(unlocked: &OpenHeader, passphrases: Vec<SecretVec>) -> Result<Keyring> {
        let levels = unlocked.opened_levels();
        if levels.len() != passphrases.len() {
            return Err(Error::new(Kind::Usage, "cannot list the passphrases to keep")
                .found(format!("{} passphrases", passphrases.len()))
                .expected(format!("the {} that opened the header", levels.len())));
        }
        let mut ring = Keyring { entries: Vec::new() };
        for (level, passphrase) in levels.iter().zip(passphrases) {
            // A passphrase given twice is kept once.
            if ring.position(&passphrase).is_none() {
                ring.entries.push((*level, passphrase));
            }
        }
        Ok(ring)
    }

    /// The levels of the list, in its order.
    pub fn levels(&self) -> impl Iterator<Item = u8> + '_ {
        self.entries.iter().map(|(level, _)| *level)
    }

    /// Refuses one more passphrase if the slots are full. Callers check this before they make the
    /// passphrase. Errors: [`Kind::Usage`].
    pub fn check_free_slot(&self) -> Result<()> {
        check_count(self.entries.len() + 1)
    }

    /// Adds a passphrase for `level`. Errors: [`Kind::Exists`] if it is in the list.
    pub fn add(&mut self, level: u8, passphrase: SecretVec) -> Result<()> {
        if self.position(&passphrase).is_some() {
            return Err(passphrase_in_use());
        }
        self.entries.push((level, passphrase));
        Ok(())
    }

    /// Replaces `old` with `new`, for the same level. Errors: [`Kind::Exists`] if `new` is in the
    /// list already.
    pub fn change(&mut self, old: &SecretVec, new: SecretVec) -> Result<()> {
        let at = self.find(old)?;
        if self.position(&new).is_some_and(|other| other != at) {
            return Err(passphrase_in_use());
        }
        self.entries[at].1 = new;
        Ok(())
    }

    /// Removes a passphrase from the list, so that it stops working.
    pub fn remove(&mut self, passphrase: &SecretVec) -> Result<()> {
        let at = self.find(passphrase)?;
        if self.entries.len() == 1 {
            return Err(Error::new(Kind::Usage, "cannot remove the passphrase")
                .found("no other passphrase given")
                .expected("at least one that keeps working")
                .hint("give another passphrase as well, or change it"));
        }
        self.entries.remove(at);
        Ok(())
    }

    fn find(&self, passphrase: &SecretVec) -> Result<usize> {
        self.position(passphrase).ok_or_else(|| {
            Error::new(Kind::Usage, "no such passphrase among those given")
                .expected("one of the passphrases that opened the header")
        })
    }

    fn position(&self, passphrase: &SecretVec) -> Option<usize> {
        self.entries.iter().position(|(_, known)| constant_time_eq(known.expose(), passphrase.expose()))
    }

    pub(crate) fn entries_by_ref(&self) -> Vec<(u8, &SecretVec)> {
        self.entries.iter().map(|(level, passphrase)| (*level, passphrase)).collect()
    }
}

pub(crate) fn passphrase_in_use() -> Error {
    Error::new(Kind::Exists, "cannot use the same passphrase twice")
        .found("a passphrase that is already in the list")
        .expected("passphrases that all differ")
}

/// Refuses lists that do not fit the slots.
pub(crate) fn check_count(count: usize) -> Result<()> {
    if (1..=KEY_SLOTS).contains(&count) {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "cannot write the key slots")
        .found(format!("{count} passphrases"))
        .expected(format!("1 to {KEY_SLOTS}")))
}

/// Builds the header that exactly the passphrases of `keyring` open: next generation, new salt,
/// every slot written anew. Nothing reaches the medium before [`crate::store`].
pub fn rekey(
    unlocked: &OpenHeader,
    keyring: &Keyring,
    cost: Argon2Cost,
    random: &dyn RandomSource,
) -> Result<HeaderImage> {
    build_rekeyed(unlocked, keyring, cost, random).map(|(image, _)| image)
}

/// Does [`rekey`], and returns the slot of each passphrase too.
fn build_rekeyed(
    unlocked: &OpenHeader,
    keyring: &Keyring,
    cost: Argon2Cost,
    random: &dyn RandomSource,
) -> Result<(HeaderImage, Vec<u8>)> {
    check_count(keyring.entries.len())?;
    let mut public = PublicHeader { cost, ..unlocked.header.clone() };
    public.generation = public.next_generation()?;
    random.fill(&mut public.salt);
    let slots_of = public.clone();
    let level0 = &unlocked.master_keys[0];
    let mut used = Vec::new();
    let image = HeaderImage::build(public, level0, unlocked.write_order.clone(), |header| {
        let area = &mut header[layout::SLOTS.range()];
        used = keyslot::seal_all(area, &slots_of, &keyring.entries_by_ref(), &unlocked.master_keys, random)?;
        SlotMap::of(&used).put(header, &slots_of, level0, random);
        Ok(())
    })?;
    Ok((image, used))
}

/// Does [`rekey`] and [`crate::store`] in one step, and updates `unlocked`.
pub fn change_keys(
    medium: &dyn Medium,
    unlocked: &mut OpenHeader,
    keyring: &Keyring,
    cost: Argon2Cost,
    random: &dyn RandomSource,
) -> Result<()> {
    unlocked.check_writable()?;
    let (image, slots) = build_rekeyed(unlocked, keyring, cost, random)?;
    unlocked.store(medium, image)?;
    unlocked.opened_slots = slots;
    unlocked.opened_levels = keyring.levels().collect();
    Ok(())
}
