//! The four block ciphers of the format: what a block becomes on the medium, and what metadata it carries.
//!
//! All bind the block address, none binds the place on the medium. Metadata that is all zeros means
//! "never written"; in the two ciphers without metadata, ciphertext that is all zeros means it (a real block
//! has that ciphertext with probability 2^-32768).

use lacuna_core::Secret;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_crypto::{AesBlock, GcmKey, Hctr2Key, RandomSource, XtsKey, derive};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// How blocks are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256-XTS, tweak = block address, no metadata. What everyone ships; the baseline.
    Xts,
    /// AES-256-XTS under a fresh random IV per write, bound to the block address. The default.
    XtsRandom,
    /// AES-256-GCM under a key per segment, random nonce, address as associated data.
    Gcm,
    /// HCTR2-256 over the whole block, tweak = block address, no metadata.
    Hctr2,
}

impl Cipher {
    /// All of them.
    pub const ALL: [Cipher; 4] = [Cipher::Xts, Cipher::XtsRandom, Cipher::Gcm, Cipher::Hctr2];

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

    pub(crate) const fn code(self) -> u8 {
        match self {
            Cipher::Xts => 0,
            Cipher::XtsRandom => 1,
            Cipher::Gcm => 2,
            Cipher::Hctr2 => 3,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Cipher> {
        Cipher::ALL.into_iter().find(|c| c.code() == code)
    }
}

/// Segment keys kept ready: at most about 2 MiB of them.
const GCM_KEYS: usize = 2048;
/// What a GCM entry holds after nonce and tag.
const GCM_RESERVED: [u8; 4] = [1, 0, 0, 0];

/// A cipher with its keys.
pub(crate) struct BlockCipher {
    cipher: Cipher,
    keys: Keys,
}

// One of these per disk: the size of the largest variant costs nothing.
enum Keys {
    Xts(XtsKey),
    XtsRandom { data: XtsKey, binder: AesBlock },
    Gcm { master: Secret<32>, segments: RwLock<HashMap<u64, Arc<GcmKey>>> },
    Hctr2(Hctr2Key),
}

impl BlockCipher {
    pub(crate) fn new(cipher: Cipher, master: &Secret<32>, uuid: &[u8; 16]) -> Result<Self> {
        let keys = match cipher {
            Cipher::Xts => Keys::Xts(XtsKey::new(&derive(master, "sealed xts", uuid))?),
            Cipher::XtsRandom => Keys::XtsRandom {
                data: XtsKey::new(&derive(master, "sealed xts-random", uuid))?,
                binder: AesBlock::new(&derive(master, "sealed xts-random tweak", uuid)),
            },
            Cipher::Gcm => Keys::Gcm {
                master: derive(master, "sealed gcm", uuid),
                segments: RwLock::new(HashMap::new()),
            },
            Cipher::Hctr2 => Keys::Hctr2(Hctr2Key::new(&derive(master, "sealed hctr2", uuid))?),
        };
        Ok(BlockCipher { cipher, keys })
    }

    pub(crate) fn meta_size(&self) -> usize {
        self.cipher.meta_size()
    }

    /// Encrypts whole blocks from `plain` into `sealed` and writes their metadata (`meta_size` bytes each).
    pub(crate) fn seal(
        &self,
        first: u64,
        plain: &[u8],
        sealed: &mut [u8],
        meta: &mut [u8],
        random: &dyn RandomSource,
    ) {
        let blocks = plain.chunks_exact(BLOCK_SIZE).zip(sealed.chunks_exact_mut(BLOCK_SIZE));
        match &self.keys {
            Keys::Xts(key) => {
                let mut session = key.session();
                for (addr, (from, to)) in (first..).zip(blocks) {
                    session.encrypt(&address(addr), from, to);
                }
            }
            Keys::XtsRandom { data, binder } => {
                random.fill(meta);
                let mut session = data.session();
                for ((addr, (from, to)), iv) in (first..).zip(blocks).zip(meta.chunks_exact_mut(16)) {
                    // An IV of zeros would read as "never written".
                    while iv.iter().all(|&b| b == 0) {
                        random.fill(iv);
                    }
                    session.encrypt(&bound_tweak(binder, iv, addr), from, to);
                }
            }
            Keys::Gcm { .. } => {
                random.fill(meta);
                let mut key = None;
                for ((addr, (from, to)), entry) in (first..).zip(blocks).zip(meta.chunks_exact_mut(32)) {
                    let key = self.segment_key(addr, &mut key);
                    let nonce = entry.first_chunk().expect("an entry begins with its nonce");
                    let tag = key.seal(nonce, &addr.to_le_bytes(), from, to);
                    entry[12..28].copy_from_slice(&tag);
                    entry[28..].copy_from_slice(&GCM_RESERVED);
                }
            }
            Keys::Hctr2(key) => {
                for (addr, (from, to)) in (first..).zip(blocks) {
                    key.encrypt(&address(addr), from, to);
                }
            }
        }
    }

    /// Decrypts whole blocks from `sealed` into `plain`. Blocks never written become zeros.
    /// Errors: [`Kind::Corrupt`] for the first block that does not verify; `plain` is then of no use.
    pub(crate) fn open(&self, first: u64, sealed: &[u8], meta: &[u8], plain: &mut [u8]) -> Result<()> {
        let blocks = sealed.chunks_exact(BLOCK_SIZE).zip(plain.chunks_exact_mut(BLOCK_SIZE));
        match &self.keys {
            Keys::Xts(key) => {
                let mut session = key.session();
                for (addr, (from, to)) in (first..).zip(blocks) {
                    if is_zero(from) { to.fill(0) } else { session.decrypt(&address(addr), from, to) }
                }
            }
            Keys::XtsRandom { data, binder } => {
                let mut session = data.session();
                for ((addr, (from, to)), iv) in (first..).zip(blocks).zip(meta.chunks_exact(16)) {
                    if is_zero(iv) {
                        to.fill(0)
                    } else {
                        session.decrypt(&bound_tweak(binder, iv, addr), from, to)
                    }
                }
            }
            Keys::Gcm { .. } => {
                let mut key = None;
                for ((addr, (from, to)), entry) in (first..).zip(blocks).zip(meta.chunks_exact(32)) {
                    if is_zero(entry) {
                        to.fill(0);
                    } else {
                        let key = self.segment_key(addr, &mut key);
                        open_gcm(key, addr, from, entry, to)?;
                    }
                }
            }
            Keys::Hctr2(key) => {
                for (addr, (from, to)) in (first..).zip(blocks) {
                    if is_zero(from) { to.fill(0) } else { key.decrypt(&address(addr), from, to) }
                }
            }
        }
        Ok(())
    }

    /// The key of the segment of `addr`; `held` keeps the last one between the blocks of a run.
    fn segment_key<'a>(&self, addr: u64, held: &'a mut Option<(u64, Arc<GcmKey>)>) -> &'a GcmKey {
        let segment = addr / crate::SEGMENT_BLOCKS;
        if held.as_ref().is_none_or(|(s, _)| *s != segment) {
            *held = Some((segment, self.find_segment_key(segment)));
        }
        match held {
            Some((_, key)) => key,
            None => unreachable!("set just above"),
        }
    }

    fn find_segment_key(&self, segment: u64) -> Arc<GcmKey> {
        let Keys::Gcm { master, segments } = &self.keys else { unreachable!("only GCM has segment keys") };
        if let Some(key) = segments.read().unwrap_or_else(PoisonError::into_inner).get(&segment) {
            return key.clone();
        }
        let secret = derive(master, "segment", &segment.to_le_bytes());
        let key = Arc::new(GcmKey::new(&secret).expect("an AES-256 key has the right length"));
        let mut segments = segments.write().unwrap_or_else(PoisonError::into_inner);
        if segments.len() >= GCM_KEYS {
            segments.clear();
        }
        segments.entry(segment).or_insert(key).clone()
    }
}

fn open_gcm(key: &GcmKey, addr: u64, from: &[u8], entry: &[u8], to: &mut [u8]) -> Result<()> {
    let nonce: &[u8; 12] = entry[..12].try_into().expect("12 bytes");
    let tag: &[u8; 16] = entry[12..28].try_into().expect("16 bytes");
    if entry[28..] == GCM_RESERVED && key.open(nonce, &addr.to_le_bytes(), from, tag, to).is_ok() {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, format!("block {addr} does not verify"))
        .found("data or metadata that was altered, moved or spliced")
        .expected("what this disk wrote there")
        .remedy("restore this block from a backup; `lacuna check` lists all such blocks"))
}

fn address(addr: u64) -> [u8; 16] {
    u128::from(addr).to_le_bytes()
}

/// The tweak of a random IV: CBC-MAC of the IV and the block address (always two AES blocks), so that nobody
/// can find an IV that makes a block decrypt at another address.
fn bound_tweak(binder: &AesBlock, iv: &[u8], addr: u64) -> [u8; 16] {
    let mut tweak = binder.encrypt(iv.try_into().expect("an IV is 16 bytes"));
    for (t, a) in tweak.iter_mut().zip(address(addr)) {
        *t ^= a;
    }
    binder.encrypt(tweak)
}

/// Whether every byte is zero; ciphertext almost always answers at the first word.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().all(|w| *w == [0; 8]) && rest.iter().all(|&b| b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_crypto::SeededRandom;

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
    fn what_is_sealed_opens_and_zeros_are_unwritten() {
        let plain: Vec<u8> = (0..3 * BLOCK_SIZE).map(|i| (i * 7 / 3) as u8).collect();
        for cipher in ciphers() {
            let (data, meta) = sealed(&cipher, 1022, &plain, 1);
            let mut back = vec![0; plain.len()];
            cipher.open(1022, &data, &meta, &mut back).unwrap();
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
}
