//! The four ciphers for blocks with metadata, under the labels of the `sealed` formats: the
//! ciphertext and the metadata of a block.
//!
//! All four bind the block address; none binds the position on the medium. All-zero metadata means
//! "never written". In the two ciphers without metadata, all-zero ciphertext means it (a real block
//! has that ciphertext with probability 2^-32768).

use crate::{AesBlock, GcmKey, Hctr2Key, HedgedNonce, RandomSource, TagMismatch, XtsKey, derive};
use lacuna_contracts::{BLOCK_SIZE, BoundedCache, Error, Kind, Result, SEGMENT_BLOCKS, Secret};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How blocks are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// AES-256-XTS, tweak = block address, no metadata. The usual disk encryption; the baseline.
    Xts,
    /// AES-256-XTS under a fresh random IV per write, hedged, bound to the block address.
    XtsRandom,
    /// AES-256-GCM under a key per segment, random nonce, hedged, address as associated data. The
    /// default.
    Gcm,
    /// HCTR2-256 over the whole block, tweak = block address, no metadata.
    Hctr2,
}

impl Cipher {
    /// All ciphers.
    pub const ALL: [Cipher; 4] = [Cipher::Xts, Cipher::XtsRandom, Cipher::Gcm, Cipher::Hctr2];

    /// Whether altered blocks are refused.
    pub fn authenticates(self) -> bool {
        match self {
            Cipher::Gcm => true,
            Cipher::Xts | Cipher::XtsRandom | Cipher::Hctr2 => false,
        }
    }

    /// Bytes of metadata per block.
    pub const fn meta_size(self) -> usize {
        match self {
            Cipher::Xts | Cipher::Hctr2 => 0,
            Cipher::XtsRandom => 16,
            Cipher::Gcm => 32,
        }
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Cipher::Xts => "xts",
            Cipher::XtsRandom => "xts-random",
            Cipher::Gcm => "gcm",
            Cipher::Hctr2 => "hctr2",
        }
    }

    /// The cipher's number in format parameters.
    pub const fn code(self) -> u8 {
        match self {
            Cipher::Xts => 0,
            Cipher::XtsRandom => 1,
            Cipher::Gcm => 2,
            Cipher::Hctr2 => 3,
        }
    }

    /// The cipher with this number in format parameters.
    pub fn from_code(code: u8) -> Option<Cipher> {
        Cipher::ALL.into_iter().find(|c| c.code() == code)
    }

    /// The valid numbers, for messages: "0 to 3".
    pub fn codes() -> String {
        format!("0 to {}", Cipher::ALL.len() - 1)
    }
}

/// The most segment keys that are cached: about 2 MiB.
const GCM_KEYS: usize = 2048;
/// The last four bytes of a GCM entry, after nonce and tag, if it binds no snapshot number.
const GCM_RESERVED: [u8; 4] = [1, 0, 0, 0];

/// A cipher with its keys.
pub struct BlockCipher {
    cipher: Cipher,
    keys: CipherKeys,
}

// A disk has one of these, so the size of the largest variant does not matter.
enum CipherKeys {
    Xts(XtsKey),
    XtsRandom {
        data: XtsKey,
        binder: AesBlock,
        ivs: HedgedNonce,
    },
    Gcm {
        master: Secret<32>,
        nonces: HedgedNonce,
        segments: RwLock<BoundedCache<u64, Arc<GcmKey>>>,
        bound: AadBinding,
    },
    Hctr2(Hctr2Key),
}

/// The associated data of a GCM block.
enum AadBinding {
    /// The block address.
    Address,
    /// The block address, and the number of the newest snapshot at the time of the write, which is
    /// also the end of the entry. Holds the current number; entries with a higher one are forged.
    AddressAndSnapshot(AtomicU32),
}

impl BlockCipher {
    /// For a flat medium. Errors: [`Kind::Memory`].
    pub fn new(cipher: Cipher, master: &Secret<32>, uuid: &[u8; 16]) -> Result<Self> {
        Self::with(cipher, master, uuid, AadBinding::Address)
    }

    /// For objects: the entries of AES-256-GCM carry the number of the newest snapshot.
    pub fn for_objects(cipher: Cipher, master: &Secret<32>, uuid: &[u8; 16]) -> Result<Self> {
        Self::with(cipher, master, uuid, AadBinding::AddressAndSnapshot(AtomicU32::new(0)))
    }

    fn with(cipher: Cipher, master: &Secret<32>, uuid: &[u8; 16], bound: AadBinding) -> Result<Self> {
        let keys = match cipher {
            Cipher::Xts => CipherKeys::Xts(XtsKey::new(&derive(master, "sealed xts", uuid))?),
            Cipher::XtsRandom => CipherKeys::XtsRandom {
                data: XtsKey::new(&derive(master, "sealed xts-random", uuid))?,
                binder: AesBlock::new(&derive(master, "sealed xts-random tweak", uuid)),
                ivs: HedgedNonce::derive(master, "sealed xts-random iv", uuid),
            },
            Cipher::Gcm => CipherKeys::Gcm {
                master: derive(master, "sealed gcm", uuid),
                nonces: HedgedNonce::derive(master, "sealed gcm nonce", uuid),
                segments: RwLock::new(BoundedCache::new(GCM_KEYS)),
                bound,
            },
            Cipher::Hctr2 => CipherKeys::Hctr2(Hctr2Key::new(&derive(master, "sealed hctr2", uuid))?),
        };
        Ok(BlockCipher { cipher, keys })
    }

    /// Bytes of metadata per block.
    pub fn meta_size(&self) -> usize {
        self.cipher.meta_size()
    }

    /// Sets the number that new entries carry. Entries with a higher number are refused.
    pub fn set_snapshot_number(&self, number: u32) {
        if let CipherKeys::Gcm { bound: AadBinding::AddressAndSnapshot(newest), .. } = &self.keys {
            newest.store(number, Ordering::Release);
        }
    }

    /// Encrypts whole blocks from `plain` into `sealed` and writes their metadata (`meta_size`
    /// bytes each).
    pub fn seal(
        &self,
        first: u64,
        plain: &[u8],
        sealed: &mut [u8],
        meta: &mut [u8],
        random: &dyn RandomSource,
    ) {
        let blocks = plain.chunks_exact(BLOCK_SIZE).zip(sealed.chunks_exact_mut(BLOCK_SIZE));
        match &self.keys {
            CipherKeys::Xts(key) => {
                let mut session = key.session();
                for (addr, (from, to)) in (first..).zip(blocks) {
                    session.encrypt(&address(addr), from, to);
                }
            }
            CipherKeys::XtsRandom { data, binder, ivs } => {
                random.fill(meta);
                let mut session = data.session();
                for ((addr, (from, to)), iv) in (first..).zip(blocks).zip(meta.as_chunks_mut::<16>().0) {
                    let hedged = |iv: &[u8; 16]| ivs.nonce(iv, &address(addr), from);
                    *iv = hedged(iv);
                    // An all-zero IV would mean "never written".
                    while *iv == [0; 16] {
                        random.fill(iv);
                        *iv = hedged(iv);
                    }
                    session.encrypt(&bound_tweak(binder, iv, addr), from, to);
                }
            }
            CipherKeys::Gcm { nonces, bound, .. } => {
                random.fill(meta);
                let mut key = None;
                let last = bound.entry_suffix();
                for ((addr, (from, to)), entry) in (first..).zip(blocks).zip(meta.as_chunks_mut::<32>().0) {
                    let key = self.segment_key(addr, &mut key);
                    let data = bound.associated_data(addr, &last);
                    let random = entry.first_chunk().expect("an entry is longer");
                    // The address also determines the key of the segment, so the key need not be
                    // bound separately.
                    let nonce = nonces.nonce(random, data.bytes(), from);
                    let tag = key.seal(&nonce, data.bytes(), from, to);
                    entry[..12].copy_from_slice(&nonce);
                    entry[12..28].copy_from_slice(&tag);
                    entry[28..].copy_from_slice(&last);
                }
            }
            CipherKeys::Hctr2(key) => {
                for (addr, (from, to)) in (first..).zip(blocks) {
                    key.encrypt(&address(addr), from, to);
                }
            }
        }
    }

    /// Decrypts whole blocks from `sealed` into `plain`. Blocks never written become zeros. Errors:
    /// [`Kind::Corrupt`] for the first block that does not verify; `plain` is unusable then.
    pub fn open(&self, first: u64, sealed: &[u8], meta: &[u8], plain: &mut [u8]) -> Result<()> {
        let blocks = sealed.chunks_exact(BLOCK_SIZE).zip(plain.chunks_exact_mut(BLOCK_SIZE));
        match &self.keys {
            CipherKeys::Xts(key) => {
                let mut session = key.session();
                for (addr, (from, to)) in (first..).zip(blocks) {
                    if is_zero(from) { to.fill(0) } else { session.decrypt(&address(addr), from, to) }
                }
            }
            CipherKeys::XtsRandom { data, binder, .. } => {
                let mut session = data.session();
                for ((addr, (from, to)), iv) in (first..).zip(blocks).zip(meta.chunks_exact(16)) {
                    if is_zero(iv) {
                        to.fill(0);
                    } else {
                        session.decrypt(&bound_tweak(binder, iv, addr), from, to);
                    }
                }
            }
            CipherKeys::Gcm { bound, .. } => {
                let mut key = None;
                for ((addr, (from, to)), entry) in (first..).zip(blocks).zip(meta.chunks_exact(32)) {
                    if is_zero(entry) {
                        to.fill(0);
                    } else {
                        let key = self.segment_key(addr, &mut key);
                        let opened = bound
                            .parse(addr, entry)
                            .map(|(nonce, data, tag)| key.open(nonce, data.bytes(), from, tag, to));
                        check_opened(addr, opened)?;
                    }
                }
            }
            CipherKeys::Hctr2(key) => {
                for (addr, (from, to)) in (first..).zip(blocks) {
                    if is_zero(from) { to.fill(0) } else { key.decrypt(&address(addr), from, to) }
                }
            }
        }
        Ok(())
    }

    /// As [`BlockCipher::open`], in place.
    pub fn open_in_place(&self, first: u64, blocks: &mut [u8], meta: &[u8]) -> Result<()> {
        let blocks = (first..).zip(blocks.chunks_exact_mut(BLOCK_SIZE));
        match &self.keys {
            CipherKeys::Xts(key) => {
                let mut session = key.session();
                for (addr, block) in blocks.filter(|(_, block)| !is_zero(block)) {
                    session.decrypt_in_place(&address(addr), block);
                }
            }
            CipherKeys::XtsRandom { data, binder, .. } => {
                let mut session = data.session();
                for ((addr, block), iv) in blocks.zip(meta.chunks_exact(16)) {
                    if is_zero(iv) {
                        block.fill(0);
                    } else {
                        session.decrypt_in_place(&bound_tweak(binder, iv, addr), block);
                    }
                }
            }
            CipherKeys::Gcm { bound, .. } => {
                let mut key = None;
                for ((addr, block), entry) in blocks.zip(meta.chunks_exact(32)) {
                    if is_zero(entry) {
                        block.fill(0);
                    } else {
                        let key = self.segment_key(addr, &mut key);
                        let opened = bound
                            .parse(addr, entry)
                            .map(|(nonce, data, tag)| key.open_in_place(nonce, data.bytes(), block, tag));
                        check_opened(addr, opened)
                            .map_err(|e| if is_lost(entry) { lost(addr) } else { e })?;
                    }
                }
            }
            CipherKeys::Hctr2(key) => {
                for (addr, block) in blocks.filter(|(_, block)| !is_zero(block)) {
                    key.decrypt_in_place(&address(addr), block);
                }
            }
        }
        Ok(())
    }

    /// The key of the segment of `addr`; `held` keeps the last key for the next block of a run.
    fn segment_key<'a>(&self, addr: u64, held: &'a mut Option<(u64, Arc<GcmKey>)>) -> &'a GcmKey {
        let segment = addr / SEGMENT_BLOCKS;
        if held.as_ref().is_none_or(|(s, _)| *s != segment) {
            *held = Some((segment, self.find_segment_key(segment)));
        }
        match held {
            Some((_, key)) => key,
            None => unreachable!("set just above"),
        }
    }

    fn find_segment_key(&self, segment: u64) -> Arc<GcmKey> {
        let CipherKeys::Gcm { master, segments, .. } = &self.keys else {
            unreachable!("only GCM has segment keys")
        };
        // Readers share the lock, so a lookup does not count as use: the oldest key is evicted
        // first.
        if let Some(key) = segments.read().peek(segment) {
            return key.clone();
        }
        let secret = derive(master, "segment", &segment.to_le_bytes());
        let key = Arc::new(GcmKey::new(&secret).expect("an AES-256 key has the right length"));
        let mut segments = segments.write();
        segments.insert(segment, key.clone());
        key
    }
}

impl AadBinding {
    /// The last bytes of an entry that is written now.
    fn entry_suffix(&self) -> [u8; 4] {
        match self {
            AadBinding::Address => GCM_RESERVED,
            AadBinding::AddressAndSnapshot(newest) => newest.load(Ordering::Acquire).to_le_bytes(),
        }
    }

    /// The associated data of a block with an entry that ends in `last`.
    fn associated_data(&self, addr: u64, last: &[u8; 4]) -> AssociatedData {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..].copy_from_slice(last);
        AssociatedData { bytes, len: if matches!(self, AadBinding::Address) { 8 } else { 12 } }
    }

    /// Nonce, associated data and tag of an entry; `None` if this disk cannot have written it.
    fn parse<'a>(&self, addr: u64, entry: &'a [u8]) -> Option<(&'a [u8; 12], AssociatedData, &'a [u8; 16])> {
        let (nonce, rest) = entry.split_first_chunk::<12>()?;
        let (tag, last) = rest.split_first_chunk::<16>()?;
        let last: &[u8; 4] = last.try_into().ok()?;
        let possible = match self {
            AadBinding::Address => *last == GCM_RESERVED,
            AadBinding::AddressAndSnapshot(newest) => {
                u32::from_le_bytes(*last) <= newest.load(Ordering::Acquire)
            }
        };
        possible.then(|| (nonce, self.associated_data(addr, last), tag))
    }
}

struct AssociatedData {
    bytes: [u8; 12],
    len: usize,
}

impl AssociatedData {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The result for a block, given the check of its tag; `None` if its entry is impossible.
fn check_opened(addr: u64, opened: Option<std::result::Result<(), TagMismatch>>) -> Result<()> {
    if let Some(Ok(())) = opened {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, format!("block {addr} does not verify"))
        .found("it is damaged or was tampered with")
        .expected("data that this disk wrote there")
        .hint("restore this block from a backup; a check lists all such blocks"))
}

/// Whether the entry marks a lost block.
fn is_lost(entry: &[u8]) -> bool {
    entry.iter().all(|byte| *byte == u8::MAX)
}

/// The error for a block that is marked as lost, or that has an entry other than the one bound by
/// the seal of its object.
fn lost(addr: u64) -> Error {
    Error::new(Kind::Corrupt, format!("block {addr} is lost"))
        .found("metadata other than its object's seal says, or the mark that this was found earlier")
        .expected("data that this disk wrote there")
        .hint("restore this block from a backup: it is good again once it is written or discarded")
}

fn address(addr: u64) -> [u8; 16] {
    u128::from(addr).to_le_bytes()
}

/// The tweak of a random IV: CBC-MAC of the IV and the block address (always two AES blocks). An
/// adversary cannot find an IV that makes a block decrypt at another address.
fn bound_tweak(binder: &AesBlock, iv: &[u8], addr: u64) -> [u8; 16] {
    let mut tweak = binder.encrypt(iv.try_into().expect("an IV is 16 bytes"));
    for (t, a) in tweak.iter_mut().zip(address(addr)) {
        *t ^= a;
    }
    binder.encrypt(tweak)
}

/// Whether every byte is zero. For ciphertext, the first word almost always decides.
pub fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().all(|w| *w == [0; 8]) && rest.iter().all(|&b| b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRandom;

    fn ciphers() -> impl Iterator<Item = BlockCipher> {
        Cipher::ALL.into_iter().map(|c| BlockCipher::new(c, &Secret::copy_from(&[9; 32]), &[1; 16]).unwrap())
    }

    fn sealed(cipher: &BlockCipher, first: u64, plain: &[u8], seed: u64) -> (Vec<u8>, Vec<u8>) {
        let mut out = vec![0; plain.len()];
        let mut meta = vec![0; plain.len() / BLOCK_SIZE * cipher.meta_size()];
        cipher.seal(first, plain, &mut out, &mut meta, &SeededRandom::new(seed));
        (out, meta)
    }

    #[test]
    fn sealed_blocks_open_and_all_zero_metadata_reads_as_zeros() {
        let plain: Vec<u8> = (0..3 * BLOCK_SIZE).map(|i| (i * 7 / 3) as u8).collect();
        for cipher in ciphers() {
            let (data, meta) = sealed(&cipher, 1022, &plain, 1);
            let mut back = vec![0; plain.len()];
            cipher.open(1022, &data, &meta, &mut back).unwrap();
            assert!(back == plain);
            back.copy_from_slice(&data);
            cipher.open_in_place(1022, &mut back, &meta).unwrap();
            assert!(back == plain);
            cipher.open(5, &vec![0; data.len()], &vec![0; meta.len()], &mut back).unwrap();
            assert!(is_zero(&back));
        }
    }

    #[test]
    fn a_block_opens_at_its_own_address_only() {
        let plain = vec![3; BLOCK_SIZE];
        for cipher in ciphers() {
            let (data, meta) = sealed(&cipher, 7, &plain, 1);
            let mut back = vec![0; BLOCK_SIZE];
            match cipher.open(8, &data, &meta, &mut back) {
                Ok(()) => assert!(back != plain),
                Err(e) => assert_eq!(e.kind(), Kind::Corrupt),
            }
        }
    }

    #[test]
    fn gcm_notices_every_flipped_bit_of_its_metadata() {
        let cipher = BlockCipher::new(Cipher::Gcm, &Secret::copy_from(&[9; 32]), &[1; 16]).unwrap();
        let (data, meta) = sealed(&cipher, 0, &[3; BLOCK_SIZE], 1);
        for bit in 0..256 {
            let mut bad = meta.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(cipher.open(0, &data, &bad, &mut [0; BLOCK_SIZE]).is_err());
        }
    }

    #[test]
    fn an_entry_is_bound_to_its_snapshot_number_and_later_ones_are_refused() {
        let key = Secret::copy_from(&[9; 32]);
        let cipher = BlockCipher::for_objects(Cipher::Gcm, &key, &[1; 16]).unwrap();
        cipher.set_snapshot_number(4);
        let (data, meta) = sealed(&cipher, 7, &[3; BLOCK_SIZE], 1);
        assert_eq!(meta[28..], 4u32.to_le_bytes());
        let opens = |meta: &[u8]| cipher.open(7, &data, meta, &mut [0; BLOCK_SIZE]).is_ok();
        assert!(opens(&meta));
        for bit in 0..256 {
            let mut bad = meta.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(&bad));
            assert!(cipher.open_in_place(7, &mut data.clone(), &bad).is_err());
        }
        cipher.set_snapshot_number(5);
        assert!(opens(&meta));
        cipher.set_snapshot_number(3);
        assert!(!opens(&meta));
    }
}
