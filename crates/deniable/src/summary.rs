//! The summary: the first block of every stripe. It says what the slots hold, to whoever has the key of their level.
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
//! Whoever has no key sees 4096 random bytes. Whoever has that of level 0 sees the public part, and random bytes.

use crate::entry::Entry;
use crate::keys::{Domain, SALT_LEN, StripeKey, TAG_LEN};
use crate::params::{Geometry, Params};
use lacuna_core::{BLOCK_SIZE, Result, Secret};

/// Hidden levels that a summary has room for.
pub(crate) const HIDDEN_LEVELS: usize = 7;
/// The last stripe that a place in a map can name.
pub(crate) const MOST_SEQ: u64 = (1 << 55) - 1;
/// Bytes of a root record in the clear.
pub(crate) const ROOT_PLAIN: usize = 32;
/// Bytes of a hidden root record.
pub(crate) const ROOT_LEN: usize = ROOT_PLAIN + TAG_LEN;
/// Bytes of a hidden entry: its cover and the tag of its slot.
pub(crate) const HIDDEN_ENTRY: usize = 32;
/// Bytes of the echo of a hidden entry.
pub(crate) const HIDDEN_ECHO: usize = 16;
/// Bytes of a public entry, its tag with it, and of its echo.
pub(crate) const PUBLIC_ENTRY: usize = 24;
pub(crate) const PUBLIC_ECHO: usize = 8;
/// Bytes of the public part before its entries.
pub(crate) const PUBLIC_FIXED: usize = 8 + 16 + 8 + ROOT_PLAIN;

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

/// The state of a level's map as of one stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RootRecord {
    /// Place of the page at the top of the map, packed; 0 for none.
    pub(crate) root: u64,
    /// The last stripe whose changes the pages hold. Later ones are in the summaries.
    pub(crate) covered: u64,
    /// Blocks of the level that are written.
    pub(crate) data: u64,
    /// Pages of its map that are.
    pub(crate) pages: u64,
}

impl RootRecord {
    fn encode(&self) -> [u8; ROOT_PLAIN] {
        let mut out = [0; ROOT_PLAIN];
        let words = [self.root, self.covered, self.data, self.pages];
        for (out, word) in out.chunks_exact_mut(8).zip(words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8]) -> RootRecord {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        RootRecord { root: word(0), covered: word(8), data: word(16), pages: word(24) }
    }

    /// Encrypted for level `level` (1 to 7).
    pub(crate) fn seal(&self, key: &StripeKey, level: usize, out: &mut [u8]) {
        let (body, tag) = out.split_at_mut(ROOT_PLAIN);
        tag.copy_from_slice(&key.seal(Domain::Root, level, &[], &self.encode(), body));
    }

    fn open(key: &StripeKey, level: usize, bytes: &[u8]) -> Option<RootRecord> {
        let (body, tag) = bytes.split_at(ROOT_PLAIN);
        let (mut body, tag): ([u8; ROOT_PLAIN], [u8; TAG_LEN]) =
            (body.try_into().ok()?, tag.try_into().ok()?);
        key.open(Domain::Root, level, &[], &mut body, &tag).ok()?;
        Some(RootRecord::decode(&body))
    }
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
    pub(crate) root: RootRecord,
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
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
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
            root: RootRecord::decode(&bytes[32..PUBLIC_FIXED]),
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

/// Covers a hidden entry, or its echo: 8 bytes of entry and 8 that must come out as zeros.
pub(crate) fn cover(key: &StripeKey, domain: Domain, slot: usize, entry: Entry) -> [u8; 16] {
    let mut covered = key.pad(domain, slot);
    for (byte, plain) in covered.iter_mut().zip(entry.pack().to_le_bytes()) {
        *byte ^= plain;
    }
    covered
}

/// What [`cover`] covered, if this key did.
fn uncover(key: &StripeKey, domain: Domain, slot: usize, covered: &[u8]) -> Option<Entry> {
    let mut plain = key.pad(domain, slot);
    plain.iter_mut().zip(covered).for_each(|(pad, byte)| *pad ^= byte);
    let (entry, check) = plain.split_first_chunk::<8>()?;
    let entry = Entry::unpack(u64::from_le_bytes(*entry))?;
    (check.iter().all(|&b| b == 0) && entry != Entry::Empty).then_some(entry)
}

/// A summary that verified under the key of level 0.
pub(crate) struct Summary {
    pub(crate) salt: [u8; SALT_LEN],
    pub(crate) key: StripeKey,
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
    key: &StripeKey,
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
    let tag = key.seal(Domain::Summary, 0, &clear[DIGEST_AT..], plain, body);
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
        let key = StripeKey::derive(level0, &salt)?;
        let public_at = public_at(params.hidden_slots());
        let mut plain = *block;
        let tag = block[TAG_AT..DIGEST_AT].try_into().expect("the tag");
        let opened =
            key.open(Domain::Summary, 0, &block[DIGEST_AT..public_at], &mut plain[public_at..], &tag);
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
        lacuna_crypto::constant_time_eq(&self.key.digest(slots), &self.digest)
    }

    /// The root record of a hidden level, if the level was open when this was written.
    pub(crate) fn hidden_root(&self, key: &StripeKey, level: usize) -> Option<RootRecord> {
        let at = (level - 1) * ROOT_LEN;
        RootRecord::open(key, level, &self.hidden[at..at + ROOT_LEN])
            .filter(|root| root.covered < self.public.seq)
    }

    /// What the hidden slots hold, as far as they are this level's.
    pub(crate) fn hidden_entries(&self, key: &StripeKey, slots: usize) -> Vec<Listed> {
        let at = ENTRIES_AT - ROOTS_AT;
        let listed = self.hidden[at..at + slots * HIDDEN_ENTRY].chunks_exact(HIDDEN_ENTRY).enumerate();
        listed
            .map(|(slot, bytes)| match uncover(key, Domain::Entry, slot, &bytes[..16]) {
                Some(entry) => (entry, bytes[16..].try_into().expect("a tag")),
                None => (Entry::Empty, [0; TAG_LEN]),
            })
            .collect()
    }

    /// What the hidden slots of the stripe before held, as far as they were this level's.
    pub(crate) fn hidden_echo(&self, key: &StripeKey, slots: usize) -> Vec<Entry> {
        let at = ENTRIES_AT - ROOTS_AT + slots * HIDDEN_ENTRY;
        let echo = self.hidden[at..at + slots * HIDDEN_ECHO].chunks_exact(HIDDEN_ECHO).enumerate();
        echo.map(|(slot, bytes)| uncover(key, Domain::Echo, slot, bytes).unwrap_or(Entry::Empty)).collect()
    }
}

/// Fuzzing alone: a summary of stripe `seq` with a public part that whoever has the key of level 0 made up.
pub(crate) fn forge(
    params: &Params,
    level0: &Secret<32>,
    seq: u64,
    made_up: &[u8],
    out: &mut [u8; BLOCK_SIZE],
) {
    let salt = [seq as u8; SALT_LEN];
    let Ok(key) = StripeKey::derive(level0, &salt) else { return };
    let at = public_at(params.hidden_slots());
    let mut plain = vec![0; BLOCK_SIZE - at];
    let part = made_up.len().min(plain.len() - 8);
    plain[..8].copy_from_slice(&seq.to_le_bytes());
    plain[8..8 + part].copy_from_slice(&made_up[..part]);
    out[..SALT_LEN].copy_from_slice(&salt);
    let (clear, body) = out.split_at_mut(at);
    let tag = key.seal(Domain::Summary, 0, &clear[DIGEST_AT..], &plain, body);
    clear[TAG_AT..DIGEST_AT].copy_from_slice(&tag);
}
