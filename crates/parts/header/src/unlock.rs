//! Opens a header with passphrases, or with the master key of level 0.

use crate::copies::{CopySurvey, HeaderCopy, SoundCopy};
use crate::header_image::{HeaderImage, mac_verifies};
use crate::keyslot::{self, MasterKeys};
use crate::layout::{self, HEADER_LEN, KEY_LEN, MAX_LEVELS};
use crate::public::{PublicHeader, Uuid};
use crate::slot_map::SlotMap;
use lacuna_contracts::{Error, Kind, Result, Secret, SecretVec};
use lacuna_crypto::{RandomSource, random_secret, stretch};
use lacuna_medium::Medium;

/// An open header.
pub struct OpenHeader {
    /// The public part, now authenticated.
    pub header: PublicHeader,
    /// The deepest level that the passphrases opened.
    pub level: u8,
    /// The master keys of levels 0 up to [`OpenHeader::level`].
    pub master_keys: Vec<Secret<KEY_LEN>>,
    /// Notes for the user about the state of the header.
    pub notes: Vec<String>,
    /// The level that each passphrase opened, in the order given.
    pub(crate) opened_levels: Vec<u8>,
    /// The slot that each passphrase opened, in the same order.
    pub(crate) opened_slots: Vec<u8>,
    /// The header as it is on the medium. A rewrite of other fields copies the slots from it.
    pub(crate) bytes: Box<[u8; HEADER_LEN]>,
    /// The order of the copies in the next rewrite.
    pub(crate) write_order: Vec<HeaderCopy>,
    /// Set if a rewrite failed halfway: it is then unknown which copies are whole.
    pub(crate) write_failed: bool,
}

impl OpenHeader {
    /// The level that each passphrase opened, in the order given.
    pub fn opened_levels(&self) -> &[u8] {
        &self.opened_levels
    }

    /// Adds a level deeper than the deepest, with a new master key, and returns its number. The
    /// level is lost unless the [`crate::Keyring`] of the next key operation has a passphrase for
    /// it.
    ///
    /// Errors: [`Kind::Usage`] if the disk has [`MAX_LEVELS`] levels already.
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

    /// Refuses to write after a failed rewrite.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.write_failed {
            return Err(Error::new(Kind::FailStop, "cannot rewrite the header")
                .found("an earlier rewrite that failed")
                .hint("close it and open it again"));
        }
        Ok(())
    }

    /// Stores `image` and makes it the present state.
    pub(crate) fn store(&mut self, medium: &dyn Medium, image: HeaderImage) -> Result<()> {
        self.check_writable()?;
        self.write_failed = true;
        crate::copies::store(medium, &image)?;
        self.write_failed = false;
        (self.bytes, self.header) = image.into_parts();
        self.note_rewritten();
        Ok(())
    }

    /// Resets notes and order, since all copies have just been written.
    pub(crate) fn note_rewritten(&mut self) {
        self.write_order = HeaderCopy::ALL.to_vec();
        self.notes.clear();
    }

    /// Copies the key slots, and the slot map if there is one, into another header of this disk.
    pub(crate) fn copy_slots(&self, header: &mut [u8; HEADER_LEN]) {
        let end = self.header.slot_map().map_or(layout::SLOTS.end(), super::layout::Field::end);
        header[layout::SLOTS.offset..end].copy_from_slice(&self.bytes[layout::SLOTS.offset..end]);
    }

    /// The map of used slots.
    ///
    /// Errors: [`Kind::Usage`] if the header has no such map.
    pub(crate) fn slot_map(&self) -> Result<SlotMap> {
        let field = self.header.slot_map().ok_or_else(|| {
            Error::new(Kind::Usage, "cannot keep passphrases that are not given")
                .found(format!("a header of the format {}", self.header.format))
                .expected("one that records which slots are used")
        })?;
        SlotMap::get(field, &self.bytes, &self.header, &self.master_keys[0])
    }

    /// Adds the levels of further passphrases that were opened separately.
    ///
    /// Errors: [`Kind::Changed`] if the header was rewritten between the two.
    pub fn merge(&mut self, other: OpenHeader) -> Result<()> {
        if self.bytes != other.bytes {
            return Err(Error::new(Kind::Changed, "cannot open the header")
                .found("a header that was rewritten meanwhile")
                .hint("try again"));
        }
        self.opened_levels.extend(other.opened_levels);
        self.opened_slots.extend(other.opened_slots);
        if other.level > self.level {
            (self.level, self.master_keys) = (other.level, other.master_keys);
        }
        Ok(())
    }
}

/// Opens the header of `medium` with one or more passphrases, down to the deepest level that one of
/// them opens. Writes nothing.
///
/// Each passphrase costs one run of Argon2id. A passphrase that opens nothing is an error even if
/// the rest open: continuing at a shallower level than intended could overwrite deeper levels.
pub fn open(medium: &dyn Medium, passphrases: &[SecretVec]) -> Result<OpenHeader> {
    if passphrases.is_empty() {
        return Err(Error::new(Kind::Usage, "cannot open the header")
            .found("no passphrase")
            .expected("at least one"));
    }
    let survey = CopySurvey::read(medium)?;
    let mut altered = Vec::new();
    let mut refused: Option<&SoundCopy> = None;
    let mut failure: Option<Error> = None;
    for sound in &survey.sound {
        // Try another copy if the earlier one was altered, or if it has the same generation as the
        // copy that refused a passphrase and differs from it. Do not try an older copy merely
        // because a passphrase failed: that passphrase may have been removed since.
        if refused.is_some_and(|refused| !are_conflicting(refused, sound)) {
            continue;
        }
        match try_copy(sound, passphrases) {
            Ok(opened) => return Ok(unlocked(&survey, sound, &altered, opened)),
            Err(e) => {
                match e.kind() {
                    Kind::Corrupt => {}
                    Kind::Passphrase => refused = Some(sound),
                    _ => return Err(e),
                }
                altered.push(sound.copy);
                // Report damage rather than a wrong passphrase, and the first damage rather than
                // that of older copies.
                if failure.as_ref().is_none_or(|first| first.kind() != Kind::Corrupt) {
                    failure = Some(e);
                }
            }
        }
    }
    Err(failure.expect("a survey has a sound copy"))
}

/// Opens the header of `medium` with the master key of level 0, which a process with an open disk
/// holds. This allows changes outside the key slots without a passphrase. Opens no slot, and no
/// level except level 0. Writes nothing.
///
/// Errors: [`Kind::Corrupt`] if no copy belongs to the disk `uuid` and was written by a holder of
/// that key.
pub fn open_by_key(medium: &dyn Medium, uuid: Uuid, level0: &Secret<KEY_LEN>) -> Result<OpenHeader> {
    let survey = CopySurvey::read(medium)?;
    let mut altered = Vec::new();
    for sound in &survey.sound {
        if sound.public.uuid == uuid && mac_verifies(&sound.bytes, &uuid, level0) {
            let opened = OpenedLevels { keys: vec![level0.clone()], levels: Vec::new(), slots: Vec::new() };
            return Ok(unlocked(&survey, sound, &altered, opened));
        }
        altered.push(sound.copy);
    }
    Err(Error::new(Kind::Corrupt, "cannot open the header of the disk that is open")
        .found("copies that are not of this disk, or were altered")
        .expected("a header that only a holder of a passphrase has written")
        .hint("restore it from a backup of the header"))
}

/// Whether two copies have the same generation and yet differ.
fn are_conflicting(a: &SoundCopy, b: &SoundCopy) -> bool {
    a.public.generation == b.public.generation && a.bytes != b.bytes
}

struct OpenedLevels {
    keys: MasterKeys,
    levels: Vec<u8>,
    slots: Vec<u8>,
}

fn try_copy(sound: &SoundCopy, passphrases: &[SecretVec]) -> Result<OpenedLevels> {
    let (public, slots) = (&sound.public, &sound.bytes[layout::SLOTS.range()]);
    let mut deepest: MasterKeys = Vec::new();
    let mut levels = Vec::with_capacity(passphrases.len());
    let mut opened = Vec::with_capacity(passphrases.len());
    let mut refused = Vec::new();
    for (i, passphrase) in passphrases.iter().enumerate() {
        let stretched = stretch(passphrase, &public.salt, &public.cost)?;
        match keyslot::open_deepest(slots, public, &stretched)? {
            Some(slot) => {
                levels.push((slot.keys.len() - 1) as u8);
                opened.push(slot.position);
                if slot.keys.len() > deepest.len() {
                    deepest = slot.keys;
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
            .found(format!(
                "{} with a MAC that does not match: it was altered after lacuna wrote it",
                sound.copy
            ))
            .expected("a header that only a holder of a passphrase has written")
            .hint("restore it from a backup of the header"));
    }
    Ok(OpenedLevels { keys: deepest, levels, slots: opened })
}

/// The message is the same whichever slots exist (deniability contract).
fn wrong_passphrase(refused: &[usize], given: usize) -> Error {
    let error = Error::new(Kind::Passphrase, "wrong passphrase");
    if given == 1 {
        return error;
    }
    let numbers: Vec<String> = refused.iter().map(usize::to_string).collect();
    let (numbers, open) = (numbers.join(", "), if refused.len() == 1 { "opens" } else { "open" });
    error
        .found(format!("of the {given} passphrases given, number {numbers} {open} nothing"))
        .expected("passphrases that all open something")
}

fn unlocked(
    survey: &CopySurvey,
    sound: &SoundCopy,
    altered: &[HeaderCopy],
    opened: OpenedLevels,
) -> OpenHeader {
    let findings = survey.findings(sound, altered);
    OpenHeader {
        header: sound.public.clone(),
        level: (opened.keys.len() - 1) as u8,
        master_keys: opened.keys,
        notes: findings.notes,
        opened_levels: opened.levels,
        opened_slots: opened.slots,
        bytes: sound.bytes.clone(),
        write_order: findings.order,
        write_failed: false,
    }
}
