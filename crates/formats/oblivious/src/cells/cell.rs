//! A cell: one block of some level, or random bytes. It is self-contained: the key of its level
//! finds its entry without a map.
//!
//! ```text
//!    0  block   4096  encrypted (XAES-256-GCM)
//! 4096  nonce     24  random, hedged
//! 4120  cover     16  the entry and the place, under a pad made of the level's key and the nonce
//! 4136  tag       16  of the block; also binds place and entry
//! 4152  filler     8  random
//! ```
//!
//! In memory and in the ring a cell is one piece. In place the block has a page to itself, and the
//! rest, its metadata, lies in a page with the metadata of its group. Without a key all of it is
//! random. Trying a key costs one AES block (the paper pads the plaintext with zeros and decrypts).

use crate::cells::place::CellPlace;
use lacuna_contracts::{BLOCK_SIZE, LeReader, Result, Secret};
use lacuna_crypto::{AesBlock, HedgedNonce, RandomSource, XAES_NONCE, XaesKey, derive, random_secret};
use lacuna_levels::SlotEntry;

pub(crate) const NONCE_AT: usize = BLOCK_SIZE;
pub(crate) const COVER_AT: usize = NONCE_AT + XAES_NONCE;
pub(crate) const TAG_AT: usize = COVER_AT + 16;
pub(crate) const FILLER_AT: usize = TAG_AT + 16;

/// The result of decrypting a cell.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verification {
    /// The block belongs to this place.
    Verified,
    /// The cell holds something else; the block is zeroed.
    Unverified,
}

/// The keys of one level for cells.
pub(crate) struct CellKey {
    blocks: XaesKey,
    nonces: HedgedNonce,
    entries: AesBlock,
}

impl CellKey {
    /// A key that is not kept: cells sealed with it are filler.
    pub(crate) fn throwaway(filler: &dyn RandomSource) -> CellKey {
        CellKey::new(&random_secret(filler))
    }

    /// `level` is the key of one level of one disk.
    pub(crate) fn new(level: &Secret<32>) -> CellKey {
        CellKey {
            blocks: XaesKey::new(&derive(level, "oblivious cell", &[])),
            nonces: HedgedNonce::derive(level, "oblivious cell nonce", &[]),
            entries: AesBlock::new(&derive(level, "oblivious entry", &[])),
        }
    }

    /// Seals a block into a cell, or into a slot of the stash; it verifies at this place alone. All
    /// random bytes in it come from `filler`; the nonce is hedged with place, entry and block.
    pub(crate) fn seal(
        &self,
        place: CellPlace,
        entry: SlotEntry,
        block: &[u8],
        filler: &dyn RandomSource,
        cell: &mut [u8],
    ) -> Result<()> {
        let (body, trailer) = cell.split_at_mut(BLOCK_SIZE);
        filler.fill(trailer);
        let (nonce, _) = trailer.split_first_chunk_mut::<XAES_NONCE>().expect("a nonce");
        let associated = associated(place, entry);
        *nonce = self.nonces.hedge(*nonce, &associated, block);
        let nonce = *nonce;
        let tag = self.blocks.seal(&nonce, &associated, block, body)?;
        let mut cover = self.pad(&nonce);
        let plain = [entry.pack().to_le_bytes(), place.word().to_le_bytes()];
        cover.iter_mut().zip(plain.as_flattened()).for_each(|(byte, plain)| *byte ^= plain);
        trailer[COVER_AT - BLOCK_SIZE..TAG_AT - BLOCK_SIZE].copy_from_slice(&cover);
        trailer[TAG_AT - BLOCK_SIZE..FILLER_AT - BLOCK_SIZE].copy_from_slice(&tag);
        Ok(())
    }

    /// The entry and the place that a cell of this level claims in its metadata; random values for
    /// any other cell.
    pub(crate) fn decrypt_entry(&self, metadata: &[u8]) -> (Option<SlotEntry>, CellPlace) {
        let nonce = metadata[NONCE_AT - BLOCK_SIZE..COVER_AT - BLOCK_SIZE].try_into().expect("a nonce");
        let mut plain = self.pad(&nonce);
        let cover = &metadata[COVER_AT - BLOCK_SIZE..TAG_AT - BLOCK_SIZE];
        plain.iter_mut().zip(cover).for_each(|(pad, byte)| *pad ^= byte);
        let word = |at| LeReader(&plain).u64(at);
        (SlotEntry::unpack(word(0)).filter(|entry| *entry != SlotEntry::Empty), CellPlace::from_word(word(8)))
    }

    /// Decrypts the block of a cell in place; zeroes it if it does not verify.
    pub(crate) fn open(
        &self,
        place: CellPlace,
        entry: SlotEntry,
        block: &mut [u8],
        metadata: &[u8],
    ) -> Result<Verification> {
        let nonce = metadata[NONCE_AT - BLOCK_SIZE..COVER_AT - BLOCK_SIZE].try_into().expect("a nonce");
        let tag = metadata[TAG_AT - BLOCK_SIZE..FILLER_AT - BLOCK_SIZE].try_into().expect("a tag");
        let opened = self.blocks.open_in_place(&nonce, &associated(place, entry), block, &tag)?;
        Ok(if opened.is_ok() { Verification::Verified } else { Verification::Unverified })
    }

    fn pad(&self, nonce: &[u8; XAES_NONCE]) -> [u8; 16] {
        self.entries.encrypt(nonce[..16].try_into().expect("16 of 24 bytes"))
    }
}

fn associated(place: CellPlace, entry: SlotEntry) -> [u8; 16] {
    let mut aad = [0; 16];
    aad[..8].copy_from_slice(&place.word().to_le_bytes());
    aad[8..].copy_from_slice(&entry.pack().to_le_bytes());
    aad
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::place::{BatchSeq, CellNo, StashSlot};
    use crate::limits::CELL_LEN;
    use lacuna_crypto::SeededRandom;

    #[test]
    fn a_cell_opens_only_at_its_place_and_for_its_level() {
        let (filler, block) = (SeededRandom::new(1), [7; BLOCK_SIZE]);
        let [key, other] = [[1; 32], [2; 32]].map(|bytes| CellKey::new(&Secret::copy_from(&bytes)));
        let at = |seq, cell| CellPlace::new(BatchSeq(seq), CellNo(cell));
        let (mut cell, entry) = ([0; CELL_LEN], SlotEntry::Data(77));
        key.seal(at(9, 5), entry, &block, &filler, &mut cell).unwrap();
        let (sealed, metadata) = cell.split_at_mut(BLOCK_SIZE);
        assert_eq!(
            (key.decrypt_entry(metadata), other.decrypt_entry(metadata).0),
            ((Some(entry), at(9, 5)), None)
        );
        let stashed = CellPlace::in_stash(BatchSeq(9), StashSlot(6));
        for (place, entry) in
            [(at(9, 6), entry), (at(8, 5), entry), (stashed, entry), (at(9, 5), SlotEntry::Data(78))]
        {
            let mut sealed = sealed.to_vec();
            assert_eq!(key.open(place, entry, &mut sealed, metadata).unwrap(), Verification::Unverified);
        }
        assert_eq!(key.open(at(9, 5), entry, sealed, metadata).unwrap(), Verification::Verified);
        assert!(sealed[..] == block);
    }
}
