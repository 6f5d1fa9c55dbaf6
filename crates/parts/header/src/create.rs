//! Creates a header, and changes its parameters.

use crate::copies::{HeaderCopy, store, too_short};
use crate::header_image::HeaderImage;
use crate::keyring::{check_count, passphrase_in_use};
use crate::keyslot;
use crate::layout::{self, HEADER_AREA, MAX_LEVELS, TAIL_AREA, VERSION, copy_c};
use crate::public::{FormatId, PublicHeader, Uuid};
use crate::slot_map::SlotMap;
use crate::unlock::OpenHeader;
use lacuna_contracts::{Error, Kind, Result, SecretVec};
use lacuna_crypto::{Argon2Cost, RandomSource, constant_time_eq, random_secret};
use lacuna_medium::Medium;

/// The contents of a new header.
pub struct NewHeaderSpec<'a> {
    /// The format behind the header.
    pub format: FormatId,
    /// The format's parameters, in its own encoding.
    pub params: Vec<u8>,
    /// Where the format's data ends: the byte offset behind its last byte on the medium.
    pub end: u64,
    /// The cost of stretching a passphrase.
    pub cost: Argon2Cost,
    /// For each level, starting at 0, the passphrases that open it: at least one each, 8 in all.
    pub levels: &'a [Vec<SecretVec>],
    /// The UUID of the disk; a random one if absent.
    pub uuid: Option<Uuid>,
}

/// A header that is not on a medium yet. Building it stretches the passphrases, which takes time.
pub struct NewHeader {
    unlocked: OpenHeader,
    image: HeaderImage,
}

impl NewHeader {
    /// Makes a header with new master keys.
    pub fn build(new: NewHeaderSpec<'_>, random: &dyn RandomSource) -> Result<NewHeader> {
        let entries = check_levels(new.levels)?;
        let mut public = PublicHeader {
            version: VERSION,
            generation: 1,
            uuid: new.uuid.unwrap_or_else(|| Uuid::random(random)),
            format: new.format,
            cost: new.cost,
            salt: [0; 32],
            params: new.params,
            end: new.end,
        };
        random.fill(&mut public.salt);
        let master_keys: Vec<_> = new.levels.iter().map(|_| random_secret(random)).collect();
        let mut positions = Vec::new();
        let order = HeaderCopy::ALL.to_vec();
        let image = HeaderImage::build(public.clone(), &master_keys[0], order.clone(), |header| {
            let slots = &mut header[layout::SLOTS.range()];
            positions = keyslot::seal_all(slots, &public, &entries, &master_keys, random)?;
            SlotMap::of(&positions).put(header, &public, &master_keys[0], random);
            Ok(())
        })?;
        let unlocked = OpenHeader {
            header: public,
            level: (master_keys.len() - 1) as u8,
            master_keys,
            notes: Vec::new(),
            opened_levels: entries.iter().map(|(level, _)| *level).collect(),
            opened_slots: positions,
            bytes: Box::new(*image.bytes()),
            write_order: order,
            write_failed: false,
        };
        Ok(NewHeader { unlocked, image })
    }

    /// The unlocked header, as a passphrase of the deepest level opens it.
    pub fn unlocked(&self) -> &OpenHeader {
        &self.unlocked
    }

    /// Lays a disk on `medium`. Zeroes the first [`HEADER_AREA`] bytes and the place of copy C, has
    /// `contents` write the rest, and once all this is durable writes the copies of the header
    /// durably. A power cut leaves no disk or a whole one.
    pub fn write(
        self,
        medium: &dyn Medium,
        contents: impl FnOnce(&OpenHeader) -> Result<()>,
    ) -> Result<OpenHeader> {
        clear(medium, self.unlocked.header.end)?;
        contents(&self.unlocked)?;
        medium.sync()?;
        store(medium, &self.image)?;
        Ok(self.unlocked)
    }
}

fn check_levels(levels: &[Vec<SecretVec>]) -> Result<Vec<(u8, &SecretVec)>> {
    if !(1..=MAX_LEVELS).contains(&levels.len()) || levels.iter().any(Vec::is_empty) {
        return Err(Error::new(Kind::Usage, "cannot create the levels")
            .found(format!("passphrases for {} levels", levels.iter().filter(|l| !l.is_empty()).count()))
            .expected(format!("1 to {MAX_LEVELS} levels, each with at least one passphrase")));
    }
    let entries: Vec<(u8, &SecretVec)> =
        (0u8..).zip(levels).flat_map(|(level, list)| list.iter().map(move |p| (level, p))).collect();
    check_count(entries.len())?;
    for (i, (_, passphrase)) in entries.iter().enumerate() {
        if entries[..i].iter().any(|(_, earlier)| constant_time_eq(earlier.expose(), passphrase.expose())) {
            return Err(passphrase_in_use().with_kind(Kind::Usage));
        }
    }
    Ok(entries)
}

/// Zeroes the places of the header durably, so that no older header outlives a power cut during
/// creation.
fn clear(medium: &dyn Medium, end: u64) -> Result<()> {
    let tail = copy_c(medium.len()).filter(|at| *at >= end).ok_or_else(|| too_short(medium.len(), end))?;
    let zeros = vec![0u8; HEADER_AREA as usize];
    medium
        .write_at(0, &zeros)
        .and_then(|()| medium.write_at(tail, &zeros[..TAIL_AREA as usize]))
        .and_then(|()| medium.sync())
        .map_err(|e| e.context("cannot clear the header area"))
}

/// Rewrites the format parameters durably, without a passphrase: the slots and their map stay byte
/// for byte. `end` is where the format's data ends on the medium now.
pub fn update_params(
    unlocked: &mut OpenHeader,
    medium: &dyn Medium,
    params: Vec<u8>,
    end: u64,
) -> Result<()> {
    unlocked.check_writable()?;
    let mut public = PublicHeader { params, end, ..unlocked.header.clone() };
    public.generation = public.next_generation()?;
    let image =
        HeaderImage::build(public, &unlocked.master_keys[0], unlocked.write_order.clone(), |header| {
            unlocked.copy_slots(header);
            Ok(())
        })?;
    unlocked.store(medium, image)
}
