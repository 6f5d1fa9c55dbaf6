//! The keys of one write to the medium, a stripe or a batch: one pair for each level, derived from
//! the level's key and the random salt of the write. A salt is drawn for every write and hedged
//! with its content, so no key is used for two different writes, not even after a power cut, on a
//! restored copy or in two copies of a running machine. Within a write each nonce is a domain and
//! an index.

use crate::entry::SlotEntry;
use lacuna_contracts::{Error, Kind, Result, Secret};
use lacuna_crypto::{AesBlock, GcmKey, derive_ciphers};

/// Bytes of the salt of a write.
pub const SALT_LEN: usize = 32;
/// A power cut may tear a write at multiples of this.
const SECTOR: usize = 512;
/// Bytes of a tag.
pub const TAG_LEN: usize = 16;

fn nonce(domain: u8, index: u8) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[0] = domain;
    nonce[1] = index;
    nonce
}

/// One level's keys for one write to the medium.
pub struct WriteKey {
    data: GcmKey,
    entries: AesBlock,
}

/// The error for bytes that do not verify; the caller adds the place.
#[derive(Debug)]
pub struct Unverified;

impl WriteKey {
    /// Derives the keys for the write with this salt. `label` names the format.
    pub fn derive(level: &Secret<32>, label: &str, salt: &[u8; SALT_LEN]) -> Result<WriteKey> {
        let (data, entries) = derive_ciphers(level, label, salt)?;
        Ok(WriteKey { data, entries })
    }

    /// Encrypts data. A write uses each domain and index once. The tag binds `aad` too.
    pub fn seal(&self, domain: u8, index: u8, aad: &[u8], src: &[u8], dst: &mut [u8]) -> [u8; TAG_LEN] {
        self.data.seal(&nonce(domain, index), aad, src, dst)
    }

    /// Decrypts the output of [`WriteKey::seal`] in place; zeroes it if it does not verify.
    pub fn open(
        &self,
        domain: u8,
        index: u8,
        aad: &[u8],
        buf: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> std::result::Result<(), Unverified> {
        self.data.open_in_place(&nonce(domain, index), aad, buf, tag).map_err(|_| Unverified)
    }

    /// A tag that shows whether all of these sectors were written, or some still have their old
    /// contents. It covers their first bytes, which are random in every write. It does not notice
    /// later damage; the tags of the contents do.
    pub fn digest(&self, domain: u8, sectors: &[u8]) -> [u8; TAG_LEN] {
        let mut heads = Vec::with_capacity(sectors.len() / SECTOR * 16);
        sectors.chunks_exact(SECTOR).for_each(|sector| heads.extend_from_slice(&sector[..16]));
        self.data.seal(&nonce(domain, 0), &heads, &[], &mut [])
    }

    /// Encrypts the entry of a slot: 8 bytes of entry, and 8 zeros for verification.
    pub fn encrypt_entry(&self, domain: u8, slot: u8, entry: SlotEntry) -> [u8; 16] {
        let mut covered = self.pad(domain, slot);
        for (byte, plain) in covered.iter_mut().zip(entry.pack().to_le_bytes()) {
            *byte ^= plain;
        }
        covered
    }

    /// Decrypts an entry that [`WriteKey::encrypt_entry`] encrypted; none if this key did not
    /// encrypt it, or for [`SlotEntry::Empty`].
    pub fn decrypt_entry(&self, domain: u8, slot: u8, covered: &[u8]) -> Option<SlotEntry> {
        let mut plain = self.pad(domain, slot);
        plain.iter_mut().zip(covered).for_each(|(pad, byte)| *pad ^= byte);
        let (entry, check) = plain.split_first_chunk::<8>()?;
        let entry = SlotEntry::unpack(u64::from_le_bytes(*entry))?;
        (check.iter().all(|&b| b == 0) && entry != SlotEntry::Empty).then_some(entry)
    }

    fn pad(&self, domain: u8, slot: u8) -> [u8; 16] {
        let mut block = [0; 16];
        block[..12].copy_from_slice(&nonce(domain, slot));
        self.entries.encrypt(block)
    }
}

/// The error for data that does not verify.
pub fn corrupt(what: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, what.into())
        .found("bytes that do not verify")
        .expected("the data that was written last")
        .hint("the medium was damaged or altered: restore the block from a backup")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(salt: u8) -> WriteKey {
        WriteKey::derive(&Secret::copy_from(&[1; 32]), "a test", &[salt; SALT_LEN]).unwrap()
    }

    #[test]
    fn data_opens_only_with_the_same_key_domain_and_index() {
        let mut sealed = [0; 32];
        let tag = key(1).seal(2, 3, b"of this", &[7; 32], &mut sealed);
        let opens = |key: WriteKey, domain, index, aad: &[u8]| {
            let mut buf = sealed;
            key.open(domain, index, aad, &mut buf, &tag).is_ok() && buf == [7; 32]
        };
        assert!(opens(key(1), 2, 3, b"of this"));
        assert!(!opens(key(2), 2, 3, b"of this") && !opens(key(1), 1, 3, b"of this"));
        assert!(!opens(key(1), 2, 4, b"of this") && !opens(key(1), 2, 3, b"of that"));
    }

    #[test]
    fn entries_decrypt_only_under_their_own_key() {
        let covered = key(1).encrypt_entry(6, 9, SlotEntry::Data(5));
        assert_eq!(key(1).decrypt_entry(6, 9, &covered), Some(SlotEntry::Data(5)));
        assert_eq!(key(1).decrypt_entry(6, 9, &key(1).encrypt_entry(6, 9, SlotEntry::Empty)), None);
        for (key, domain, slot) in [(key(2), 6, 9), (key(1), 7, 9), (key(1), 6, 8)] {
            assert_eq!(key.decrypt_entry(domain, slot, &covered), None);
        }
    }

    #[test]
    fn a_digest_shows_whether_every_sector_was_written() {
        let sectors = [5; 4 * SECTOR];
        let digest = key(1).digest(3, &sectors);
        let mut torn = sectors;
        torn[3 * SECTOR] = 6;
        assert!(key(1).digest(3, &sectors) == digest && key(1).digest(3, &torn) != digest);
    }
}
