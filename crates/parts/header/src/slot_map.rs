//! The slot map: which key slots are used, encrypted under the master key of level 0. It lets one
//! passphrase be added, changed or removed without giving the rest. Only headers of formats without
//! levels have it.

use crate::layout::{self, Field, HEADER_LEN, KEY_LEN, KEY_SLOTS};
use crate::public::PublicHeader;
use lacuna_contracts::{Error, Kind, Result, Secret};
use lacuna_crypto::{HEDGED, HedgedNonce, RandomSource, derive, unwrap, wrap};

/// For each slot, whether it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotMap(pub(crate) [bool; KEY_SLOTS]);

impl SlotMap {
    /// The map with the slots at these positions used.
    pub(crate) fn of(positions: &[u8]) -> SlotMap {
        SlotMap(std::array::from_fn(|slot| positions.iter().any(|at| usize::from(*at) == slot)))
    }

    /// The number of used slots.
    pub(crate) fn used(&self) -> usize {
        self.0.iter().filter(|used| **used).count()
    }

    /// Writes the map into a header, if it has a place for one.
    pub(crate) fn put(
        &self,
        header: &mut [u8; HEADER_LEN],
        public: &PublicHeader,
        level0: &Secret<KEY_LEN>,
        random: &dyn RandomSource,
    ) {
        let Some(field) = public.slot_map() else { return };
        let (key, map, associated) = (map_key(public, level0), self.0.map(u8::from), associated(public));
        let mut drawn = [0u8; HEDGED];
        random.fill(&mut drawn[..12]);
        let nonce = HedgedNonce::derive(&key, "slot map nonce", &[]).nonce(&drawn, &associated, &map);
        let sealed = wrap(&key, &nonce, &associated, &map);
        let place = &mut header[field.range()];
        place[..12].copy_from_slice(&nonce);
        place[12..].copy_from_slice(&sealed);
    }

    /// Reads the map of a header that has one.
    pub(crate) fn get(
        field: Field,
        header: &[u8; HEADER_LEN],
        public: &PublicHeader,
        level0: &Secret<KEY_LEN>,
    ) -> Result<SlotMap> {
        let wrong = || {
            Error::new(Kind::Corrupt, "cannot tell which key slots are used")
                .found("a slot map that does not verify")
                .hint("refresh the key slots with all passphrases that are to keep working")
        };
        let bytes = &header[field.range()];
        let (nonce, sealed) = bytes.split_first_chunk().ok_or_else(wrong)?;
        let map =
            unwrap(&map_key(public, level0), nonce, &associated(public), sealed).map_err(|_| wrong())?;
        let map: &[u8; KEY_SLOTS] = map.expose().try_into().map_err(|_| wrong())?;
        if map.iter().any(|used| *used > 1) {
            return Err(wrong());
        }
        Ok(SlotMap(map.map(|used| used == 1)))
    }
}

fn map_key(public: &PublicHeader, level0: &Secret<KEY_LEN>) -> Secret<32> {
    derive(level0, "slot map", &public.uuid.0)
}

/// The associated data of the map.
fn associated(public: &PublicHeader) -> [u8; 28] {
    let mut out = [0u8; 28];
    out[..8].copy_from_slice(&layout::MAGIC);
    out[8..12].copy_from_slice(&public.version.to_le_bytes());
    out[12..].copy_from_slice(&public.uuid.0);
    out
}
