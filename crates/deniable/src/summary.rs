//! The summary: the first block of every stripe. The key of a level shows what its slots hold.
//!
//! ```text
//!    0  salt            32  random
//!   32  tag             16  of the public part, over everything after it as well
//!   48  digest          16  keyed hash of the starts of the hidden sectors as they lie
//!   64  roots      7 x  48  the state of the maps of levels 1 to 7, or random
//!  400  entries    h x  32  what the hidden slots hold, or random
//!       echo       h x  16  what the hidden slots of the stripe before hold, or random
//!       public part         encrypted under the key of level 0, up to the end of the block
//! ```
//!
//! Without a key it is 4096 random bytes. With that of level 0 it is the public part, and random bytes.

use crate::keys::{domain, stripe_key};
use crate::params::{Geometry, Params};
use lacuna_core::{BLOCK_SIZE, Record, Result, Secret};
use lacuna_levels::{Entry, MapState, SALT_LEN, STATE_LEN, TAG_LEN, WriteKey};
use std::ops::Range;

/// Hidden levels that a summary has room for.
pub(crate) const HIDDEN_LEVELS: usize = 7;
/// The last stripe that a place in a map can name.
pub(crate) const MOST_SEQ: u64 = (1 << 55) - 1;
/// Bytes of a hidden root record.
pub(crate) const ROOT_LEN: usize = STATE_LEN + TAG_LEN;
/// Bytes of a hidden entry: its cover and the tag of its slot.
pub(crate) const HIDDEN_ENTRY: usize = 32;
/// Bytes of the echo of a hidden entry.
pub(crate) const HIDDEN_ECHO: usize = 16;
/// Bytes of a public entry, its tag with it, and of its echo.
pub(crate) const PUBLIC_ENTRY: usize = 24;
pub(crate) const PUBLIC_ECHO: usize = 8;
/// Bytes of the public part before its entries.
pub(crate) const PUBLIC_FIXED: usize = 8 + 16 + 8 + STATE_LEN;

pub(crate) const TAG_AT: usize = SALT_LEN;
pub(crate) const DIGEST_AT: usize = TAG_AT + TAG_LEN;
pub(crate) const ROOTS_AT: usize = DIGEST_AT + TAG_LEN;
pub(crate) const ENTRIES_AT: usize = ROOTS_AT + HIDDEN_LEVELS * ROOT_LEN;

/// Where the public part begins.
pub(crate) const fn public_at(hidden_slots: usize) -> usize {
    ENTRIES_AT + hidden_slots * (HIDDEN_ENTRY + HIDDEN_ECHO)
}

/// Whether one block can list the slots of such a stripe.
pub(crate) const fn fits(geometry: Geometry) -> bool {
    let (public, hidden) = (geometry.public as usize, geometry.hidden as usize);
    let needed = public_at(hidden) + PUBLIC_FIXED + public * (PUBLIC_ENTRY + PUBLIC_ECHO);
    public > 0 && hidden > 0 && needed <= BLOCK_SIZE
}

const _: () = assert!(fits(Geometry::DEFAULT) && fits(Geometry::PAPER));

/// Encrypts the root record of a hidden level: the state of its map.
pub(crate) fn seal_root(state: &MapState, key: &WriteKey, level: usize, out: &mut [u8]) {
    let (body, tag) = out.split_at_mut(STATE_LEN);
    tag.copy_from_slice(&key.seal(domain::ROOT, level as u8, &[], &state.encode(), body));
}

fn open_root(key: &WriteKey, level: usize, bytes: &[u8]) -> Option<MapState> {
    let (body, tag) = bytes.split_at(STATE_LEN);
    let (mut body, tag): ([u8; STATE_LEN], [u8; TAG_LEN]) = (body.try_into().ok()?, tag.try_into().ok()?);
    key.open(domain::ROOT, level as u8, &[], &mut body, &tag).ok()?;
    Some(MapState::decode(&body))
}

/// What a slot holds, and its tag.
pub(crate) type Listed = (Entry, [u8; TAG_LEN]);

/// The public part of a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicPart {
    /// The number of the stripe, counted from 1.
    pub(crate) seq: u64,
    /// The first half of the salt of the stripe before.
    pub(crate) previous: [u8; 16],
    /// A stripe that was durable, with all before it, when this one was closed.
    pub(crate) synced: u64,
    /// The state of the map of level 0.
    pub(crate) root: MapState,
    /// What the public slots hold.
    pub(crate) entries: Vec<Listed>,
    /// What the public slots of the stripe before hold.
    pub(crate) echo: Vec<Entry>,
}

impl PublicPart {
    fn encode(&self, out: &mut [u8]) {
        out[0..8].copy_from_slice(&self.seq.to_le_bytes());
        out[8..24].copy_from_slice(&self.previous);
        out[24..32].copy_from_slice(&self.synced.to_le_bytes());
        out[32..PUBLIC_FIXED].copy_from_slice(&self.root.encode());
        let (entries, echoes) = out[PUBLIC_FIXED..].split_at_mut(self.entries.len() * PUBLIC_ENTRY);
        for (out, (entry, tag)) in entries.chunks_exact_mut(PUBLIC_ENTRY).zip(&self.entries) {
            out[..8].copy_from_slice(&entry.pack().to_le_bytes());
            out[8..].copy_from_slice(tag);
        }
        for (out, entry) in echoes.chunks_exact_mut(PUBLIC_ECHO).zip(&self.echo) {
            out.copy_from_slice(&entry.pack().to_le_bytes());
        }
    }

    fn decode(bytes: &[u8], slots: usize) -> Option<PublicPart> {
        let word = |at| Record(bytes).u64(at);
        let entry_at = PUBLIC_FIXED;
        let echo_at = entry_at + slots * PUBLIC_ENTRY;
        let listed = |slot: usize| -> Option<Listed> {
            let at = entry_at + slot * PUBLIC_ENTRY;
            Some((Entry::unpack(word(at))?, bytes[at + 8..at + PUBLIC_ENTRY].try_into().ok()?))
        };
        let part = PublicPart {
            seq: word(0),
            previous: bytes[8..24].try_into().ok()?,
            synced: word(24),
            root: MapState::decode(&bytes[32..PUBLIC_FIXED]),
            entries: (0..slots).map(listed).collect::<Option<_>>()?,
            echo: (0..slots)
                .map(|s| Entry::unpack(word(echo_at + s * PUBLIC_ECHO)))
                .collect::<Option<_>>()?,
        };
        // A stripe speaks of those before it.
        let sane =
            (1..=MOST_SEQ).contains(&part.seq) && part.synced < part.seq && part.root.covered < part.seq;
        sane.then_some(part)
    }
}

/// A summary that verified under the key of level 0.
pub(crate) struct Summary {
    pub(crate) salt: [u8; SALT_LEN],
    pub(crate) key: WriteKey,
    pub(crate) public: PublicPart,
    digest: [u8; TAG_LEN],
    /// Roots, entries and echo of the hidden levels, as they lie.
    hidden: Vec<u8>,
}

/// The half of a salt by which the next stripe names this one.
pub(crate) fn name_of(salt: &[u8; SALT_LEN]) -> [u8; 16] {
    salt[..16].try_into().expect("16 of 32 bytes")
}

/// Writes a summary. `hidden` is roots, entries and echo, `digest` that of the hidden slots, `public` has all entries.
pub(crate) fn seal(
    key: &WriteKey,
    salt: &[u8; SALT_LEN],
    digest: &[u8; TAG_LEN],
    hidden: &[u8],
    public: &PublicPart,
    out: &mut [u8],
) {
    let public_at = ROOTS_AT + hidden.len();
    out[..SALT_LEN].copy_from_slice(salt);
    out[DIGEST_AT..ROOTS_AT].copy_from_slice(digest);
    out[ROOTS_AT..public_at].copy_from_slice(hidden);
    let mut plain = [0; BLOCK_SIZE];
    let plain = &mut plain[public_at..];
    public.encode(plain);
    let (clear, body) = out.split_at_mut(public_at);
    let tag = key.seal(domain::SUMMARY, 0, &clear[DIGEST_AT..], plain, body);
    clear[TAG_AT..DIGEST_AT].copy_from_slice(&tag);
}

impl Summary {
    /// Reads a summary block. None if it is not one that this level-0 key wrote.
    pub(crate) fn open(
        params: &Params,
        level0: &Secret<32>,
        block: &[u8; BLOCK_SIZE],
    ) -> Result<Option<Summary>> {
        let salt: [u8; SALT_LEN] = block[..SALT_LEN].try_into().expect("the salt");
        let key = stripe_key(level0, &salt)?;
        let public_at = public_at(params.hidden_slots());
        let mut plain = *block;
        let tag = block[TAG_AT..DIGEST_AT].try_into().expect("the tag");
        let opened =
            key.open(domain::SUMMARY, 0, &block[DIGEST_AT..public_at], &mut plain[public_at..], &tag);
        if opened.is_err() {
            return Ok(None);
        }
        let Some(public) = PublicPart::decode(&plain[public_at..], params.public_slots()) else {
            return Ok(None);
        };
        let digest = block[DIGEST_AT..ROOTS_AT].try_into().expect("the digest");
        Ok(Some(Summary { salt, key, public, digest, hidden: block[ROOTS_AT..public_at].to_vec() }))
    }

    /// Whether these are the hidden slots that it was written with.
    pub(crate) fn has_hidden_slots(&self, slots: &[u8]) -> bool {
        lacuna_crypto::constant_time_eq(&self.key.digest(domain::DIGEST, slots), &self.digest)
    }

    /// The root record of a hidden level, if the level was open when this was written.
    pub(crate) fn hidden_root(&self, key: &WriteKey, level: usize) -> Option<MapState> {
        let at = (level - 1) * ROOT_LEN;
        open_root(key, level, &self.hidden[at..at + ROOT_LEN]).filter(|root| root.covered < self.public.seq)
    }

    /// What these hidden slots hold, as far as they are this level's.
    pub(crate) fn hidden_entries(&self, key: &WriteKey, slots: Range<usize>) -> Vec<Listed> {
        let at = |slot: usize| ENTRIES_AT - ROOTS_AT + slot * HIDDEN_ENTRY;
        let listed = self.hidden[at(slots.start)..at(slots.end)].chunks_exact(HIDDEN_ENTRY);
        slots
            .zip(listed)
            .map(|(slot, bytes)| match key.uncover(domain::ENTRY, slot as u8, &bytes[..16]) {
                Some(entry) => (entry, bytes[16..].try_into().expect("a tag")),
                None => (Entry::Empty, [0; TAG_LEN]),
            })
            .collect()
    }

    /// What these hidden slots of the stripe before held, as far as they were this level's.
    pub(crate) fn hidden_echo(&self, key: &WriteKey, slots: Range<usize>) -> Vec<Entry> {
        let all = (self.hidden.len() - (ENTRIES_AT - ROOTS_AT)) / (HIDDEN_ENTRY + HIDDEN_ECHO);
        let at = |slot: usize| ENTRIES_AT - ROOTS_AT + all * HIDDEN_ENTRY + slot * HIDDEN_ECHO;
        let echo = self.hidden[at(slots.start)..at(slots.end)].chunks_exact(HIDDEN_ECHO);
        slots
            .zip(echo)
            .map(|(slot, bytes)| key.uncover(domain::ECHO, slot as u8, bytes).unwrap_or(Entry::Empty))
            .collect()
    }
}

/// Fuzzing alone: a summary of stripe `seq` with a public part that an adversary with the key of level 0 made up.
pub(crate) fn forge(
    params: &Params,
    level0: &Secret<32>,
    seq: u64,
    made_up: &[u8],
    out: &mut [u8; BLOCK_SIZE],
) {
    let salt = [seq as u8; SALT_LEN];
    let Ok(key) = stripe_key(level0, &salt) else { return };
    let at = public_at(params.hidden_slots());
    let mut plain = vec![0; BLOCK_SIZE - at];
    let part = made_up.len().min(plain.len() - 8);
    plain[..8].copy_from_slice(&seq.to_le_bytes());
    plain[8..8 + part].copy_from_slice(&made_up[..part]);
    out[..SALT_LEN].copy_from_slice(&salt);
    let (clear, body) = out.split_at_mut(at);
    let tag = key.seal(domain::SUMMARY, 0, &clear[DIGEST_AT..], &plain, body);
    clear[TAG_AT..DIGEST_AT].copy_from_slice(&tag);
}
