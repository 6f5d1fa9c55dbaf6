//! The keys of a store, and sealing, digests, tags and names.

use lacuna_contracts::{Error, Kind, Result, Secret};
use lacuna_crypto::{AesBlock, HEDGED, HedgedNonce, SivKey, XaesKey, constant_time_eq, derive, keyed_hash};

/// Bytes of a nonce of a sealed structure.
pub(crate) const NONCE: usize = lacuna_crypto::XAES_NONCE;

/// Bytes of a tag.
pub(crate) const TAG: usize = 16;

/// Bytes of a record's nonce that depend on the sealed text.
pub(crate) const HEDGE: usize = 12;

/// The keys of a store, all derived from the vault's master key and UUID.
pub struct StoreKeys {
    /// For names of objects: a permutation of their numbers, so names are unique.
    names: AesBlock,
    /// For records and superblocks.
    seal: XaesKey,
    /// For the nonces of records and superblocks.
    nonces: HedgedNonce,
    /// For the tags of record headers.
    headers: Secret<32>,
    /// For the digests that chain records.
    chain: Secret<32>,
    /// For the tags of journaled pages.
    pages: SivKey,
    /// For the tags that detect damaged pages of the namespace's parts.
    parts: Secret<32>,
}

/// Added to an object's number for the name of its second file, and twice for its third.
const EXTRA_FILE_STEP: u128 = 1 << 64;

impl StoreKeys {
    /// Derives the keys from the vault's master key.
    pub fn derive(master: &Secret<32>, uuid: &[u8; 16]) -> StoreKeys {
        StoreKeys {
            names: AesBlock::new(&derive(master, "vault object names", uuid)),
            seal: XaesKey::new(&derive(master, "vault commits", uuid)),
            nonces: HedgedNonce::derive(master, "vault nonces", uuid),
            headers: derive(master, "vault record headers", uuid),
            chain: derive(master, "vault commit chain", uuid),
            pages: SivKey::derive(master, "vault journaled pages", uuid),
            parts: derive(master, "vault namespace parts", uuid),
        }
    }

    /// The name of an object's file: a subfolder of two hexadecimal digits, and thirty more digits.
    pub(crate) fn object_name(&self, object: u64) -> String {
        self.name_of(u128::from(object))
    }

    /// The name of a further file of a doubled object: 1 for the second, 2 for the third.
    pub(crate) fn extra_file_name(&self, object: u64, nth: u8) -> String {
        self.name_of(u128::from(nth) * EXTRA_FILE_STEP + u128::from(object))
    }

    fn name_of(&self, number: u128) -> String {
        let number = u128::from_be_bytes(self.names.encrypt(number.to_le_bytes()));
        let digits = format!("{number:032x}");
        let (folder, file) = digits.split_at(2);
        format!("{folder}/{file}")
    }

    /// Encrypts the text of a commit; the tag follows it.
    pub(crate) fn seal(&self, nonce: &[u8; NONCE], bound: &[u8], plain: &[u8]) -> Result<Vec<u8>> {
        let mut sealed = vec![0; plain.len() + TAG];
        let (text, tag) = sealed.split_at_mut(plain.len());
        tag.copy_from_slice(&self.seal.seal(nonce, bound, plain, text)?);
        Ok(sealed)
    }

    /// Decrypts the output of [`StoreKeys::seal`]; `None` if it does not verify.
    pub(crate) fn open(&self, nonce: &[u8; NONCE], bound: &[u8], sealed: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some((text, tag)) = sealed.split_last_chunk::<TAG>() else { return Ok(None) };
        let mut plain = text.to_vec();
        let verified = self.seal.open_in_place(nonce, bound, &mut plain, tag)?;
        Ok(verified.is_ok().then_some(plain))
    }

    /// The tag of a record's header.
    pub(crate) fn header_tag(&self, header: &[u8]) -> [u8; TAG] {
        *keyed_hash(&self.headers, &[header]).first_chunk().expect("a hash is longer")
    }

    /// Whether a record's header has the right tag.
    pub(crate) fn verify_header(&self, header: &[u8], tag: &[u8]) -> bool {
        constant_time_eq(&self.header_tag(header), tag)
    }

    /// The digest of a sealed record, which the next record names.
    pub(crate) fn digest(&self, header: &[u8], sealed: &[u8]) -> [u8; 32] {
        keyed_hash(&self.chain, &[header, sealed])
    }

    /// The tag of a page of an object of the namespace's parts.
    pub(crate) fn part_tag(&self, object: u64, page: u64, bytes: &[u8]) -> [u8; TAG] {
        let place = [object.to_le_bytes(), page.to_le_bytes()];
        *keyed_hash(&self.parts, &[place.as_flattened(), bytes]).first_chunk().expect("a hash is longer")
    }

    /// The tag of a journaled page: a pseudorandom function of its sequence number and its content.
    /// A resumed copy of the machine may use a number twice.
    pub(crate) fn page_tag(&self, sequence: u64, page: &[u8]) -> [u8; TAG] {
        let mut counter = [0; HEDGED];
        counter[..8].copy_from_slice(&sequence.to_le_bytes());
        self.pages.tag(&counter, &[], page)
    }

    /// Whether a page matches the tag of the journaled one.
    pub(crate) fn verify_page(&self, sequence: u64, page: &[u8], tag: &[u8; TAG]) -> bool {
        constant_time_eq(&self.page_tag(sequence, page), tag)
    }

    /// The part of a record's nonce that lies in its header: a pseudorandom function of the
    /// header's other fields and of the text.
    pub(crate) fn hedge_of_record(&self, fields: &[u8], plain: &[u8]) -> [u8; HEDGE] {
        self.nonces.nonce(b"record\0\0\0\0\0\0\0\0\0\0", fields, plain)
    }

    /// The nonce of a superblock, derived from a random one.
    pub(crate) fn nonce_of_superblock(
        &self,
        random: [u8; NONCE],
        sequence: u64,
        plain: &[u8],
    ) -> [u8; NONCE] {
        self.nonces.hedge(random, &sequence.to_le_bytes(), plain)
    }
}

/// The error for content that no version of lacuna wrote.
pub(crate) fn malformed(what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("{what} of the vault cannot be used"))
        .found("content that verifies but cannot be parsed")
        .expected("the format of this version of lacuna")
        .hint("use the version of lacuna that wrote it")
}

/// The nonce of a record. A session seals each number once; if a resumed copy seals it again, the
/// hedge differs with the text.
pub(crate) fn nonce_of_record(session: u64, number: u64, hedge: &[u8; HEDGE]) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    nonce[..8].copy_from_slice(&session.to_le_bytes());
    nonce[8..12].copy_from_slice(&number.to_le_bytes()[..4]);
    nonce[12..].copy_from_slice(hedge);
    nonce
}
