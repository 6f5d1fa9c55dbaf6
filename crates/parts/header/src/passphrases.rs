//! Key operations on one slot: a passphrase is added, changed or removed, and all other passphrases
//! keep working without being given.
//!
//! The salt, the cost and all other slots stay byte for byte. Only headers of formats without
//! levels record which slots are used ([`PublicHeader::can_change_one_slot`]). In formats with
//! levels the slots are rewritten as a whole ([`crate::change_keys`]).

use crate::header_image::HeaderImage;
use crate::keyring::passphrase_in_use;
use crate::keyslot::{self, OpenSlot};
use crate::layout::{self, KEY_SLOTS};
use crate::public::PublicHeader;
use crate::slot_map::SlotMap;
use crate::unlock::OpenHeader;
use lacuna_contracts::{Error, Kind, Result, SecretVec};
use lacuna_crypto::{RandomSource, stretch};
use lacuna_medium::Medium;

impl PublicHeader {
    /// Whether one passphrase can be added, changed or removed without giving the rest.
    pub fn can_change_one_slot(&self) -> bool {
        self.slot_map().is_some()
    }
}

impl OpenHeader {
    /// The number of passphrases that work. `None` in formats with levels, where no holder of a
    /// passphrase may learn it (deniability contract).
    ///
    /// Errors: [`Kind::Corrupt`] if the map of used slots does not verify.
    pub fn passphrase_count(&self) -> Result<Option<usize>> {
        if !self.header.can_change_one_slot() {
            return Ok(None);
        }
        self.slot_map().map(|map| Some(map.used()))
    }
}

/// The change to a slot.
enum KeySlotChange<'a> {
    Fill(&'a SecretVec),
    Clear,
}

/// Adds a passphrase. Returns how many work now.
///
/// Errors: [`Kind::Exists`] if it works already, [`Kind::Usage`] if all slots are used.
pub fn add_passphrase(
    medium: &dyn Medium,
    unlocked: &mut OpenHeader,
    new: &SecretVec,
    random: &dyn RandomSource,
) -> Result<usize> {
    let map = unlocked.slot_map()?;
    if find(unlocked, new)?.is_some() {
        return Err(passphrase_in_use());
    }
    let free = free_slots(map)?;
    let mut choice = [0; 8];
    random.fill(&mut choice);
    let position = free[(u64::from_le_bytes(choice) % free.len() as u64) as usize];
    apply(medium, unlocked, map, position, &KeySlotChange::Fill(new), random)
}

/// Refuses one more passphrase if the slots are full. Callers check this before they make the
/// passphrase, since a token keeps the data of a passphrase that is made with it.
///
/// Errors: [`Kind::Usage`] if all slots are used.
pub fn check_free_slot(unlocked: &OpenHeader) -> Result<()> {
    free_slots(unlocked.slot_map()?).map(drop)
}

/// The unused slots: at least one.
fn free_slots(map: SlotMap) -> Result<Vec<u8>> {
    let free: Vec<u8> = (0u8..).zip(map.0).filter(|(_, used)| !used).map(|(slot, _)| slot).collect();
    if free.is_empty() {
        return Err(Error::new(Kind::Usage, "cannot add a passphrase")
            .found(format!("{KEY_SLOTS} passphrases that work"))
            .expected(format!("fewer than the {KEY_SLOTS} that there can be"))
            .hint("remove one first, or refresh the key slots with only the passphrases you know"));
    }
    Ok(free)
}

/// Replaces the first passphrase that opened the disk with `new`. Returns how many work now.
///
/// Errors: [`Kind::Exists`] if `new` works already.
pub fn change_passphrase(
    medium: &dyn Medium,
    unlocked: &mut OpenHeader,
    new: &SecretVec,
    random: &dyn RandomSource,
) -> Result<usize> {
    let map = unlocked.slot_map()?;
    let position = unlocked.opened_slots[0];
    if find(unlocked, new)?.is_some_and(|slot| slot.position != position) {
        return Err(passphrase_in_use());
    }
    apply(medium, unlocked, map, position, &KeySlotChange::Fill(new), random)
}

/// Removes a passphrase. Returns how many work now.
///
/// Errors: [`Kind::Passphrase`] if it opens nothing; [`Kind::Usage`] if it is the only one.
pub fn remove_passphrase(
    medium: &dyn Medium,
    unlocked: &mut OpenHeader,
    gone: &SecretVec,
    random: &dyn RandomSource,
) -> Result<usize> {
    let map = unlocked.slot_map()?;
    let slot = find(unlocked, gone)?
        .ok_or_else(|| Error::new(Kind::Passphrase, "the passphrase to remove opens nothing here"))?;
    if map.used() < 2 {
        return Err(Error::new(Kind::Usage, "cannot remove the passphrase")
            .found("no other passphrase that works")
            .expected("at least one that keeps working")
            .hint("add another one first, or change it"));
    }
    apply(medium, unlocked, map, slot.position, &KeySlotChange::Clear, random)
}

/// The slot that a passphrase opens.
fn find(unlocked: &OpenHeader, passphrase: &SecretVec) -> Result<Option<OpenSlot>> {
    let public = &unlocked.header;
    let stretched = stretch(passphrase, &public.salt, &public.cost)?;
    keyslot::open_deepest(&unlocked.bytes[layout::SLOTS.range()], public, &stretched)
}

fn apply(
    medium: &dyn Medium,
    unlocked: &mut OpenHeader,
    mut map: SlotMap,
    position: u8,
    change: &KeySlotChange<'_>,
    random: &dyn RandomSource,
) -> Result<usize> {
    let mut public = unlocked.header.clone();
    public.generation = public.next_generation()?;
    map.0[usize::from(position)] = matches!(change, KeySlotChange::Fill(_));
    let level0 = &unlocked.master_keys[0];
    let image = HeaderImage::build(public.clone(), level0, unlocked.write_order.clone(), |header| {
        unlocked.copy_slots(header);
        let area = &mut header[layout::SLOTS.range()];
        match change {
            KeySlotChange::Fill(new) => {
                let stretched = stretch(new, &public.salt, &public.cost)?;
                keyslot::seal(area, position, &public, &stretched, &unlocked.master_keys, random);
            }
            KeySlotChange::Clear => {
                keyslot::clear(area, position, random);
            }
        }
        map.put(header, &public, level0, random);
        Ok(())
    })?;
    unlocked.store(medium, image)?;
    Ok(map.used())
}
