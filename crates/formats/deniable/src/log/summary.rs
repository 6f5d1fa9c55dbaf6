//! The summary: the first block of every stripe. The key of a level opens the entries of its slots.
//!
//! ```text
//!    0  salt            32  random
//!   32  tag             16  of the public part; also binds all bytes between tag and public part
//!   48  digest          16  keyed hash of the first bytes of the hidden sectors, as ciphertext
//!   64  roots      7 x  48  the state of the maps of levels 1 to 7, or random
//!  400  entries    h x  32  the entries of the hidden slots, or random
//!       echo       h x  16  the entries of the hidden slots of the stripe before, or random
//!       public part         encrypted under the key of level 0, up to the end of the block
//! ```
//!
//! Without a key it is 4096 random bytes. With the key of level 0 it is the public part, and random
//! bytes.

use crate::geometry::{
    DIGEST_AT, ENTRIES_AT, HIDDEN_ECHO, HIDDEN_ENTRY, PUBLIC_ECHO, PUBLIC_ENTRY, PUBLIC_FIXED, ROOT_LEN,
    ROOTS_AT, TAG_AT,
};
use crate::keys::{Salt, domain, stripe_key};
use crate::params::Params;
use crate::place::{Slot, StripeSeq};
use lacuna_contracts::{BLOCK_SIZE, LeReader, LeWriter, Result, Secret};
use lacuna_crypto::constant_time_eq;
use lacuna_levels::{MapState, SALT_LEN, STATE_LEN, SlotEntry, TAG_LEN, WriteKey};
use std::ops::Range;

/// Encrypts the root record of a hidden level: the state of its map.
pub(crate) fn seal_root(state: &MapState, key: &WriteKey, level: u8, out: &mut [u8]) {
    let (body, tag) = out.split_at_mut(STATE_LEN);
    tag.copy_from_slice(&key.seal(domain::ROOT, level, &[], &state.encode(), body));
}

fn open_root(key: &WriteKey, level: u8, bytes: &[u8]) -> Option<MapState> {
    let (body, tag) = bytes.split_at(STATE_LEN);
    let (mut body, tag): ([u8; STATE_LEN], [u8; TAG_LEN]) = (body.try_into().ok()?, tag.try_into().ok()?);
    key.open(domain::ROOT, level, &[], &mut body, &tag).ok()?;
    Some(MapState::decode(&body))
}

/// The half of a stripe's salt that names it in the next stripe.
pub(crate) type StripeName = [u8; 16];

/// The name of the stripe with this salt.
pub(crate) fn stripe_name(salt: &Salt) -> StripeName {
    LeReader(salt).array(0)
}

/// The end of the log: the facts about the last stripe that the next stripe repeats.
pub(crate) struct LogEnd {
    pub(crate) head: StripeSeq,
    pub(crate) name: StripeName,
    /// The entries of its public slots.
    pub(crate) echo: Vec<SlotEntry>,
}

/// The entry of a slot, and its tag.
pub(crate) type TaggedEntry = (SlotEntry, [u8; TAG_LEN]);

/// The public part of a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicSummary {
    pub(crate) seq: StripeSeq,
    /// The first half of the salt of the stripe before.
    pub(crate) previous: StripeName,
    /// A stripe that was durable, with all before it, when this one was closed.
    pub(crate) synced: StripeSeq,
    /// The state of the map of level 0.
    pub(crate) root: MapState,
    /// The entries of the public slots, with tags.
    pub(crate) entries: Vec<TaggedEntry>,
    /// The entries of the public slots of the stripe before.
    pub(crate) echo: Vec<SlotEntry>,
}

impl PublicSummary {
    fn encode(&self, out: &mut [u8]) {
        let mut record = LeWriter(out);
        record.u64(0, self.seq.0).put(8, &self.previous).u64(24, self.synced.0).put(32, &self.root.encode());
        let (entries, echoes) = out[PUBLIC_FIXED..].split_at_mut(self.entries.len() * PUBLIC_ENTRY);
        for (out, (entry, tag)) in entries.chunks_exact_mut(PUBLIC_ENTRY).zip(&self.entries) {
            LeWriter(out).u64(0, entry.pack()).put(8, tag);
        }
        for (out, entry) in echoes.chunks_exact_mut(PUBLIC_ECHO).zip(&self.echo) {
            LeWriter(out).u64(0, entry.pack());
        }
    }

    fn decode(bytes: &[u8], slots: usize) -> Option<PublicSummary> {
        let record = LeReader(bytes);
        let echo_at = PUBLIC_FIXED + slots * PUBLIC_ENTRY;
        let listed = |slot: usize| -> Option<TaggedEntry> {
            let at = PUBLIC_FIXED + slot * PUBLIC_ENTRY;
            Some((SlotEntry::unpack(record.u64(at))?, record.array(at + 8)))
        };
        let echoed = |slot: usize| SlotEntry::unpack(record.u64(echo_at + slot * PUBLIC_ECHO));
        let part = PublicSummary {
            seq: StripeSeq::checked(record.u64(0))?,
            previous: record.array(8),
            synced: StripeSeq(record.u64(24)),
            root: MapState::decode(&bytes[32..PUBLIC_FIXED]),
            entries: (0..slots).map(listed).collect::<Option<_>>()?,
            echo: (0..slots).map(echoed).collect::<Option<_>>()?,
        };
        // A stripe refers only to stripes before it.
        (part.synced < part.seq && part.root.covered < part.seq.0).then_some(part)
    }
}

/// A summary that verified under the key of level 0.
pub(crate) struct Summary {
    pub(crate) salt: Salt,
    pub(crate) key: WriteKey,
    pub(crate) public: PublicSummary,
    digest: [u8; TAG_LEN],
    /// Roots, entries and echo of the hidden levels, still encrypted.
    hidden: Vec<u8>,
}

/// Writes a summary. `hidden` has roots, entries and echo, `digest` is that of the hidden slots,
/// and `public` has all entries.
pub(crate) fn seal(
    key: &WriteKey,
    salt: &Salt,
    digest: &[u8; TAG_LEN],
    hidden: &[u8],
    public: &PublicSummary,
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
    /// Opens a summary block. None if it was not written with this key of level 0.
    pub(crate) fn open(
        params: &Params,
        level0: &Secret<32>,
        block: &[u8; BLOCK_SIZE],
    ) -> Result<Option<Summary>> {
        let record = LeReader(block);
        let salt = record.array(0);
        let key = stripe_key(level0, &salt)?;
        let public_at = params.geometry.public_at();
        let mut plain = *block;
        let tag = record.array(TAG_AT);
        let opened =
            key.open(domain::SUMMARY, 0, &block[DIGEST_AT..public_at], &mut plain[public_at..], &tag);
        if opened.is_err() {
            return Ok(None);
        }
        let Some(public) = PublicSummary::decode(&plain[public_at..], params.public_slots()) else {
            return Ok(None);
        };
        let (digest, hidden) = (record.array(DIGEST_AT), block[ROOTS_AT..public_at].to_vec());
        Ok(Some(Summary { salt, key, public, digest, hidden }))
    }

    /// The end of a log that ends with this stripe.
    pub(crate) fn end(&self) -> LogEnd {
        let echo = self.public.entries.iter().map(|(entry, _)| *entry).collect();
        LogEnd { head: self.public.seq, name: stripe_name(&self.salt), echo }
    }

    /// Whether `slots` are the hidden slots that were written with this summary.
    pub(crate) fn has_hidden_slots(&self, slots: &[u8]) -> bool {
        constant_time_eq(&self.key.digest(domain::DIGEST, slots), &self.digest)
    }

    /// The root record of a hidden level, if the level was open when the stripe was written.
    pub(crate) fn hidden_root(&self, key: &WriteKey, level: u8) -> Option<MapState> {
        let at = usize::from(level - 1) * ROOT_LEN;
        open_root(key, level, &self.hidden[at..at + ROOT_LEN]).filter(|root| root.covered < self.public.seq.0)
    }

    /// The entries and tags of these hidden slots; empty for slots that the key does not open.
    pub(crate) fn hidden_entries(&self, key: &WriteKey, slots: Range<usize>) -> Vec<TaggedEntry> {
        let listed = self.hidden[ENTRIES_AT - ROOTS_AT..].chunks_exact(HIDDEN_ENTRY);
        let uncovered =
            |(slot, bytes): (Slot, &[u8])| match key.decrypt_entry(domain::ENTRY, slot.0, &bytes[..16]) {
                Some(entry) => (entry, LeReader(bytes).array(16)),
                None => (SlotEntry::Empty, [0; TAG_LEN]),
            };
        Slot::all(slots.end).zip(listed).skip(slots.start).map(uncovered).collect()
    }

    /// The entries of these hidden slots in the stripe before; empty for slots that the key does
    /// not open.
    pub(crate) fn hidden_echo(&self, key: &WriteKey, slots: Range<usize>) -> Vec<SlotEntry> {
        let all = (self.hidden.len() - (ENTRIES_AT - ROOTS_AT)) / (HIDDEN_ENTRY + HIDDEN_ECHO);
        let echo = self.hidden[ENTRIES_AT - ROOTS_AT + all * HIDDEN_ENTRY..].chunks_exact(HIDDEN_ECHO);
        let uncovered = |(slot, bytes): (Slot, &[u8])| key.decrypt_entry(domain::ECHO, slot.0, bytes);
        let slots = Slot::all(slots.end).zip(echo).skip(slots.start);
        slots.map(|echo| uncovered(echo).unwrap_or(SlotEntry::Empty)).collect()
    }
}
