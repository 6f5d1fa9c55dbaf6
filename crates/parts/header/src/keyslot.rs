//! Key slots: a passphrase wraps the master keys of its level and of the levels below.

use crate::layout::{self, KEY_LEN, KEY_SLOTS, MAX_LEVELS, PAYLOAD_LEN, SLOT_LEN};
use crate::public::{PublicHeader, Uuid};
use lacuna_contracts::{Error, Kind, Result, Secret, SecretVec};
use lacuna_crypto::{HEDGED, HedgedNonce, RandomSource, derive, stretch, unwrap, wrap};
use zeroize::Zeroizing;

/// The master keys that a slot holds: those of levels 0 up to the slot's level, so never empty.
pub(crate) type MasterKeys = Vec<Secret<KEY_LEN>>;

/// Fills the whole slot area with random bytes and, in random positions, one slot for each of
/// `entries`. Returns these positions.
pub(crate) fn seal_all(
    area: &mut [u8],
    public: &PublicHeader,
    entries: &[(u8, &SecretVec)],
    keys: &[Secret<KEY_LEN>],
    random: &dyn RandomSource,
) -> Result<Vec<u8>> {
    random.fill(area);
    // Deniability contract: the position of a slot tells nothing about its level or its age.
    let positions = &random_order(random)[..entries.len()];
    for ((level, passphrase), position) in entries.iter().zip(positions) {
        let level_keys = keys.get(..=usize::from(*level)).ok_or_else(|| {
            Error::new(Kind::Usage, format!("cannot write a key slot for level {level}"))
                .found(format!("keys of {} levels", keys.len()))
                .hint("give a passphrase that opens this level")
        })?;
        let stretched = stretch(passphrase, &public.salt, &public.cost)?;
        seal(area, *position, public, &stretched, level_keys, random);
    }
    Ok(positions.to_vec())
}

/// Wraps `keys` under a stretched passphrase and writes them to the slot at `position`.
pub(crate) fn seal(
    area: &mut [u8],
    position: u8,
    public: &PublicHeader,
    stretched: &Secret<32>,
    keys: &[Secret<KEY_LEN>],
    random: &dyn RandomSource,
) {
    let slot = clear(area, position, random);
    let mut payload = Zeroizing::new([0u8; PAYLOAD_LEN]);
    payload[0] = (keys.len() - 1) as u8;
    for (place, key) in payload[1..].chunks_exact_mut(KEY_LEN).zip(keys) {
        place.copy_from_slice(key.expose());
    }
    let (key, associated) = (slot_key(stretched, position, &public.uuid), associated(position, public));
    let mut drawn = [0u8; HEDGED];
    random.fill(&mut drawn[..12]);
    let nonce = HedgedNonce::derive(&key, "key slot nonce", &[]).nonce(&drawn, &associated, &payload[..]);
    let sealed = wrap(&key, &nonce, &associated, &payload[..]);
    slot[layout::SLOT_NONCE.range()].copy_from_slice(&nonce);
    slot[layout::SLOT_SEALED.offset..layout::SLOT_TAG.end()].copy_from_slice(&sealed);
}

/// Makes the slot at `position` an unused one (random bytes), and returns it.
pub(crate) fn clear<'a>(area: &'a mut [u8], position: u8, random: &dyn RandomSource) -> &'a mut [u8] {
    let slot = &mut area[usize::from(position) * SLOT_LEN..][..SLOT_LEN];
    random.fill(slot);
    slot
}

/// A slot that a passphrase opened.
pub(crate) struct OpenSlot {
    pub(crate) position: u8,
    pub(crate) keys: MasterKeys,
}

/// Tries every slot, and returns the deepest one that opens.
///
/// There is no early exit: the time taken tells neither which slot opened nor how many.
pub(crate) fn open_deepest(
    area: &[u8],
    public: &PublicHeader,
    stretched: &Secret<32>,
) -> Result<Option<OpenSlot>> {
    let mut deepest: Option<OpenSlot> = None;
    let mut malformed = false;
    for (position, slot) in (0u8..).zip(area.chunks_exact(SLOT_LEN)) {
        let nonce = slot.first_chunk().expect("a slot is longer than a nonce");
        let sealed = &slot[layout::SLOT_SEALED.offset..layout::SLOT_TAG.end()];
        let key = slot_key(stretched, position, &public.uuid);
        if let Ok(payload) = unwrap(&key, nonce, &associated(position, public), sealed) {
            match parse_payload(payload.expose()) {
                Some(keys) if deepest.as_ref().is_none_or(|d| d.keys.len() < keys.len()) => {
                    deepest = Some(OpenSlot { position, keys });
                }
                Some(_) => {}
                None => malformed = true,
            }
        }
    }
    if malformed {
        return Err(Error::new(Kind::Corrupt, "cannot open the key slots")
            .found("a key slot that verifies but holds no keys")
            .expected("a level and its keys"));
    }
    Ok(deepest)
}

fn parse_payload(payload: &[u8]) -> Option<MasterKeys> {
    let (level, fields) = payload.split_first()?;
    if payload.len() != PAYLOAD_LEN || usize::from(*level) >= MAX_LEVELS {
        return None;
    }
    let (used, unused) = fields.split_at((usize::from(*level) + 1) * KEY_LEN);
    if unused.iter().any(|b| *b != 0) {
        return None;
    }
    used.chunks_exact(KEY_LEN).map(|key| key.first_chunk().map(Secret::copy_from)).collect()
}

fn slot_key(stretched: &Secret<32>, position: u8, uuid: &Uuid) -> Secret<32> {
    let mut context = [0u8; 17];
    context[0] = position;
    context[1..].copy_from_slice(&uuid.0);
    derive(stretched, "key slot", &context)
}

/// The associated data of a slot. It excludes the format's parameters, which change without a
/// passphrase; the header's MAC covers those.
fn associated(position: u8, public: &PublicHeader) -> [u8; 29] {
    let mut out = [0u8; 29];
    out[..8].copy_from_slice(&layout::MAGIC);
    out[8..12].copy_from_slice(&public.version.to_le_bytes());
    out[12..28].copy_from_slice(&public.uuid.0);
    out[28] = position;
    out
}

/// The slot numbers in a uniformly random order.
fn random_order(random: &dyn RandomSource) -> [u8; KEY_SLOTS] {
    let mut order: [u8; KEY_SLOTS] = std::array::from_fn(|i| i as u8);
    for last in (1..KEY_SLOTS).rev() {
        let choices = last as u8 + 1;
        let fair = u8::MAX - u8::MAX % choices;
        let mut byte = [u8::MAX];
        while byte[0] >= fair {
            random.fill(&mut byte);
        }
        order.swap(last, usize::from(byte[0] % choices));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_crypto::SeededRandom;

    #[test]
    fn shuffle_is_a_permutation_and_reaches_every_place() {
        let random = SeededRandom::new(1);
        let mut seen = [[0u32; KEY_SLOTS]; KEY_SLOTS];
        for _ in 0..800 {
            let order = random_order(&random);
            let mut sorted = order;
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6, 7]);
            for (place, number) in order.iter().enumerate() {
                seen[place][usize::from(*number)] += 1;
            }
        }
        assert!(seen.iter().flatten().all(|n| (50..160).contains(n)), "{seen:?}");
    }

    #[test]
    fn payloads_with_wrong_level_or_leftovers_are_refused() {
        let mut payload = vec![0u8; PAYLOAD_LEN];
        payload[0] = 1;
        payload[1..65].fill(7);
        assert_eq!(parse_payload(&payload).map(|k| k.len()), Some(2));
        payload[65] = 1;
        assert!(parse_payload(&payload).is_none());
        payload[65] = 0;
        payload[0] = 8;
        assert!(parse_payload(&payload).is_none());
        assert!(parse_payload(&payload[..200]).is_none());
        assert!(parse_payload(&[]).is_none());
    }
}
