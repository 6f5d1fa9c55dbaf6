//! Hedged nonces: they stay unique if the random generator repeats its output, as in a virtual
//! machine that is resumed twice from one snapshot.
//!
//! A nonce is a pseudorandom function, under its own keys, of three inputs: the random value that
//! would otherwise be the nonce; the bytes that name the place (address, key) and that the tag
//! covers; and the content. The function is AES-256 of HCTR2's hash (POLYVAL, under another key)
//! over all three. Hence:
//! - While random values are fresh, the hash is uniform, and so is the nonce: it is as good as the
//!   random value, and reveals nothing about the content, even to a holder of these keys.
//! - If a random value repeats, two 16-byte nonces are equal only if place and content are equal
//!   (the ciphertexts may then be equal too), or if two of *q* hashes of at most *n* blocks
//!   collide, with probability at most q² n / 2^129. 12-byte nonces collide in addition with
//!   probability q² / 2^97, as random ones do.
//!
//! With a fixed random value, the nonce is a synthetic one (SIV: Rogaway and Shrimpton, 2006), and
//! serves as the tag as well ([`SivKey`]).

use crate::constant_time_eq;
use crate::ffi::AesBlock;
use crate::gcm::TagMismatch;
use crate::hctr2::HashKey;
use crate::kdf::derive;
use lacuna_contracts::Secret;

/// Bytes of the random value of a nonce.
pub const HEDGED: usize = 16;
/// The most bytes that may name a place.
const MOST_BOUND: usize = 64;

/// Makes nonces for one purpose, for any number of threads at once.
pub struct HedgedNonce {
    hash: HashKey,
    prf: AesBlock,
}

impl HedgedNonce {
    /// Derives the keys for the purpose named by `label`, which must be unique to it; see
    /// [`derive()`].
    pub fn derive(key: &Secret<32>, label: &str, context: &[u8]) -> HedgedNonce {
        let both: Secret<48> = derive(key, label, context);
        let (prf, hash) = both.expose().split_first_chunk::<32>().expect("48 bytes");
        HedgedNonce {
            hash: HashKey::new(hash.first_chunk().expect("16 of 48 bytes")),
            prf: AesBlock::from_bytes(prf),
        }
    }

    /// The nonce of `content` at the place named by `bound` (at most 64 bytes).
    pub fn nonce<const N: usize>(&self, random: &[u8; HEDGED], bound: &[u8], content: &[u8]) -> [u8; N] {
        const { assert!(N <= 16, "a nonce is a part of an AES block") };
        #[cfg(feature = "witness")]
        if crate::nonce_log::is_unhedged() {
            return *random.first_chunk().expect("a part of a block");
        }
        let whole = full_nonce(&self.hash, &self.prf, random, bound, content);
        *whole.first_chunk().expect("a part of a block")
    }

    /// Hedges the first 16 bytes of a longer nonce or salt. The remaining bytes are bound
    /// unchanged.
    pub fn hedge<const N: usize>(&self, mut nonce: [u8; N], bound: &[u8], content: &[u8]) -> [u8; N] {
        const { assert!(N > HEDGED && N <= HEDGED + 16, "at most 16 bytes more") };
        let (random, rest) = nonce.split_first_chunk_mut::<HEDGED>().expect("it is longer");
        let mut all = [0; MOST_BOUND];
        all[..rest.len()].copy_from_slice(rest);
        all[rest.len()..rest.len() + bound.len()].copy_from_slice(bound);
        *random = self.nonce(random, &all[..rest.len() + bound.len()], content);
        nonce
    }
}

fn full_nonce(
    hash: &HashKey,
    prf: &AesBlock,
    random: &[u8; HEDGED],
    bound: &[u8],
    content: &[u8],
) -> [u8; 16] {
    assert!(bound.len() <= MOST_BOUND, "a place of {} bytes", bound.len());
    let mut tweak = [0; HEDGED + MOST_BOUND];
    tweak[..HEDGED].copy_from_slice(random);
    tweak[HEDGED..HEDGED + bound.len()].copy_from_slice(bound);
    prf.encrypt(hash.hash(&tweak[..HEDGED + bound.len()], content))
}

/// [`SivKey`] for many keys that encrypt one message each, and share a hash: setting up a hash
/// takes longer than encrypting a message. Each key makes the tag and the key stream. AES-256 of a
/// secret hash equals a block of the key stream only with the probability of a guess.
pub struct SivHash(HashKey);

impl SivHash {
    /// Derives the key for the purpose named by `label`; see [`derive()`].
    pub fn derive(key: &Secret<32>, label: &str, context: &[u8]) -> SivHash {
        SivHash(HashKey::new(derive::<16>(key, label, context).expose()))
    }

    /// [`SivKey::seal`] with `key` for both.
    pub fn seal(
        &self,
        key: &AesBlock,
        counter: &[u8; HEDGED],
        bound: &[u8],
        src: &[u8],
        dst: &mut [u8],
    ) -> [u8; 16] {
        encrypt(key, synthetic_tag(&self.0, key, counter, bound, src), src, dst)
    }

    /// [`SivKey::open_in_place`] with `key` for both.
    pub fn open_in_place(
        &self,
        key: &AesBlock,
        counter: &[u8; HEDGED],
        bound: &[u8],
        buf: &mut [u8],
        tag: &[u8; 16],
    ) -> Result<(), TagMismatch> {
        key.xor_message_in_place(nonce_of(tag), buf);
        verify(&synthetic_tag(&self.0, key, counter, bound, buf), tag, buf)
    }
}

/// Deterministic authenticated encryption. The tag is a pseudorandom function of place and content;
/// its first 12 bytes are the nonce for the key stream of AES-256-GCM. No nonce can repeat by
/// mistake: the same content at the same place gives the same bytes, and an adversary learns only
/// that.
pub struct SivKey(HedgedNonce);

impl SivKey {
    /// Derives the keys for the purpose named by `label`; see [`derive()`].
    pub fn derive(key: &Secret<32>, label: &str, context: &[u8]) -> SivKey {
        SivKey(HedgedNonce::derive(key, label, context))
    }

    /// The tag of `content` at the place named by `counter` and `bound`: [`HedgedNonce::nonce`].
    pub fn tag(&self, counter: &[u8; HEDGED], bound: &[u8], content: &[u8]) -> [u8; 16] {
        synthetic_tag(&self.0.hash, &self.0.prf, counter, bound, content)
    }

    /// Encrypts `src` into `dst` (of the same length) under `cipher`, and returns the tag. One
    /// `cipher` encrypts at most 2^32 messages.
    pub fn seal(
        &self,
        cipher: &AesBlock,
        counter: &[u8; HEDGED],
        bound: &[u8],
        src: &[u8],
        dst: &mut [u8],
    ) -> [u8; 16] {
        encrypt(cipher, self.tag(counter, bound, src), src, dst)
    }

    /// Decrypts `src` into `dst` (of the same length) if `tag` verifies; otherwise `dst` is zeroed.
    pub fn open(
        &self,
        cipher: &AesBlock,
        counter: &[u8; HEDGED],
        bound: &[u8],
        src: &[u8],
        tag: &[u8; 16],
        dst: &mut [u8],
    ) -> Result<(), TagMismatch> {
        cipher.xor_message(nonce_of(tag), src, dst);
        verify(&self.tag(counter, bound, dst), tag, dst)
    }

    /// Decrypts `buf` in place if `tag` verifies; otherwise `buf` is zeroed.
    pub fn open_in_place(
        &self,
        cipher: &AesBlock,
        counter: &[u8; HEDGED],
        bound: &[u8],
        buf: &mut [u8],
        tag: &[u8; 16],
    ) -> Result<(), TagMismatch> {
        cipher.xor_message_in_place(nonce_of(tag), buf);
        verify(&self.tag(counter, bound, buf), tag, buf)
    }
}

fn synthetic_tag(
    hash: &HashKey,
    prf: &AesBlock,
    counter: &[u8; HEDGED],
    bound: &[u8],
    content: &[u8],
) -> [u8; 16] {
    #[cfg(feature = "witness")]
    if crate::nonce_log::is_unhedged() {
        // The tag then depends on counter and place alone, like a nonce that is a counter.
        return full_nonce(hash, prf, counter, bound, &[]);
    }
    full_nonce(hash, prf, counter, bound, content)
}

/// Encrypts a message under the nonce in its tag, and returns the tag.
fn encrypt(cipher: &AesBlock, tag: [u8; 16], src: &[u8], dst: &mut [u8]) -> [u8; 16] {
    #[cfg(feature = "witness")]
    cipher.log_use(nonce_of(&tag), src);
    cipher.xor_message(nonce_of(&tag), src, dst);
    tag
}

/// Compares the tag of a decrypted message with the expected one. The message is zeroed if they
/// differ.
fn verify(found: &[u8; 16], tag: &[u8; 16], content: &mut [u8]) -> Result<(), TagMismatch> {
    if constant_time_eq(found, tag) {
        return Ok(());
    }
    content.fill(0);
    Err(TagMismatch)
}

fn nonce_of(tag: &[u8; 16]) -> &[u8; 12] {
    tag.first_chunk().expect("12 of 16 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GcmKey, RandomSource, SeededRandom};
    use aes::Aes256;
    use aes::cipher::{BlockCipherEncrypt, KeyInit};
    use std::collections::HashSet;

    fn master() -> Secret<32> {
        Secret::copy_from(&[7; 32])
    }

    /// The product in the field of POLYVAL (RFC 8452, section 3), bit by bit: a, b and x^-128.
    fn dot(a: u128, b: u128) -> u128 {
        const POLYNOMIAL: u128 = 1 << 127 | 1 << 126 | 1 << 121 | 1;
        let times_x = |v: u128| v << 1 ^ if v >> 127 == 1 { POLYNOMIAL } else { 0 };
        let by_x = |v: u128| if v & 1 == 1 { (v ^ POLYNOMIAL) >> 1 | 1 << 127 } else { v >> 1 };
        let mut product = 0;
        for bit in (0..128).rev() {
            product = times_x(product);
            if b >> bit & 1 == 1 {
                product ^= a;
            }
        }
        (0..128).fold(product, |v, _| by_x(v))
    }

    /// A nonce computed from the description of this module alone.
    fn slowly(keys: &[u8; 48], random: &[u8; 16], bound: &[u8], content: &[u8]) -> [u8; 16] {
        let tweak = [&random[..], bound].concat();
        let whole = content.len().is_multiple_of(16);
        let mut blocks = vec![(tweak.len() as u128 * 16 + 2 + u128::from(!whole)).to_le_bytes().to_vec()];
        blocks.extend(tweak.chunks(16).map(<[u8]>::to_vec));
        blocks.extend(content.chunks(16).map(<[u8]>::to_vec));
        if !whole {
            blocks.last_mut().unwrap().push(1);
        }
        let key = u128::from_le_bytes(keys[32..].try_into().unwrap());
        let hash = blocks.iter().fold(0, |sum, part| {
            let mut block = [0; 16];
            block[..part.len()].copy_from_slice(part);
            dot(sum ^ u128::from_le_bytes(block), key)
        });
        let mut block = hash.to_le_bytes().into();
        Aes256::new(keys[..32].try_into().unwrap()).encrypt_block(&mut block);
        block.into()
    }

    /// RFC 8452, appendix A.
    #[test]
    fn the_bitwise_product_matches_rfc_8452() {
        let block = |hex: &str| u128::from_str_radix(hex, 16).unwrap().swap_bytes();
        let key = block("25629347589242761d31f826ba4b757b");
        let blocks = ["4f4f95668c83dfb6401762bb2d01a262", "d1a24ddd2721d006bbe45f20d3c9f362"];
        let hash = blocks.into_iter().fold(0, |sum, hex| dot(sum ^ block(hex), key));
        assert_eq!(hash, block("f7a3b47b846119fae5b7866cf5e5b77e"));
    }

    #[test]
    fn nonces_match_a_bitwise_implementation() {
        let hedge = HedgedNonce::derive(&master(), "a test", b"context");
        let keys: Secret<48> = derive(&master(), "a test", b"context");
        let portable = HedgedNonce {
            hash: HashKey::portable(keys.expose()[32..].try_into().unwrap()),
            prf: AesBlock::from_bytes(keys.expose().first_chunk().unwrap()),
        };
        let random = SeededRandom::new(1);
        let lengths =
            (0..70).chain([127, 128, 129, 255, 256, 257, 511, 512, 513, 4080, 4095, 4096, 4097, 8192, 8200]);
        for (nth, len) in lengths.enumerate() {
            let (mut value, mut bound, mut content) =
                ([0; 16], vec![0; [8, 0, 12, 16, 20][nth % 5]], vec![0; len]);
            random.fill(&mut value);
            random.fill(&mut bound);
            random.fill(&mut content);
            let expected = slowly(keys.expose(), &value, &bound, &content);
            assert_eq!(hedge.nonce::<16>(&value, &bound, &content), expected, "{len} bytes");
            assert_eq!(portable.nonce::<16>(&value, &bound, &content), expected, "{len} bytes, portable");
            assert_eq!(hedge.nonce::<12>(&value, &bound, &content), expected[..12]);
        }
    }

    #[test]
    fn any_different_input_gives_another_nonce() {
        let hedge = HedgedNonce::derive(&master(), "a test", b"");
        let content = [5; 4096];
        let first: [u8; 12] = hedge.nonce(&[1; 16], &[2; 8], &content);
        assert_eq!(first, hedge.nonce(&[1; 16], &[2; 8], &content));
        let mut seen = HashSet::from([first]);
        for bit in 0..4096 * 8 {
            let mut other = content;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(hedge.nonce(&[1; 16], &[2; 8], &other)));
        }
        assert!(seen.insert(hedge.nonce(&[9; 16], &[2; 8], &content)));
        assert!(seen.insert(hedge.nonce(&[1; 16], &[9; 8], &content)));
        assert!(seen.insert(hedge.nonce(&[1; 16], &[2; 8], &content[..4095])));
        assert!(
            seen.insert(HedgedNonce::derive(&master(), "another", b"").nonce(&[1; 16], &[2; 8], &content))
        );
        let long = hedge.hedge([1; 24], b"place", &content);
        assert_eq!(long[16..], [1; 8]);
        let mut other = [1; 24];
        other[23] = 2;
        assert_ne!(long[..16], hedge.hedge(other, b"place", &content)[..16]);
    }

    /// A key of a shared hash gives the same bytes as tags and a key stream under that key.
    #[test]
    fn one_key_makes_tag_and_key_stream() {
        let (key, plain) = (AesBlock::new(&master()), [3; 4096]);
        let hash = HashKey::new(derive::<16>(&master(), "siv", b"").expose());
        let siv = SivKey(HedgedNonce { hash, prf: AesBlock::new(&master()) });
        let (mut expected, mut sealed) = ([0; 4096], [0; 4096]);
        let tag = siv.tag(&[1; 16], b"here", &plain);
        GcmKey::new(&master()).unwrap().seal(nonce_of(&tag), &[], &plain, &mut expected);
        let shared = SivHash::derive(&master(), "siv", b"");
        assert_eq!(shared.seal(&key, &[1; 16], b"here", &plain, &mut sealed), tag);
        assert_eq!(sealed, expected);
        assert_eq!(shared.open_in_place(&key, &[1; 16], b"here", &mut sealed, &tag), Ok(()));
        assert_eq!(sealed, plain);
        assert_eq!(shared.open_in_place(&key, &[1; 16], b"hers", &mut expected, &tag), Err(TagMismatch));
        assert_eq!(expected, [0; 4096]);
    }

    #[test]
    fn a_siv_ciphertext_opens_only_at_its_place() {
        let (siv, cipher) = (SivKey::derive(&master(), "siv", b""), AesBlock::new(&master()));
        for len in [0, 1, 15, 16, 17, 112, 4096] {
            let plain: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let (mut sealed, mut out) = (vec![0; len], vec![0; len]);
            let tag = siv.seal(&cipher, &[1; 16], b"here", &plain, &mut sealed);
            siv.open(&cipher, &[1; 16], b"here", &sealed, &tag, &mut out).unwrap();
            assert_eq!(out, plain);
            let mut buf = sealed.clone();
            siv.open_in_place(&cipher, &[1; 16], b"here", &mut buf, &tag).unwrap();
            assert_eq!(buf, plain);
            let mut bad = tag;
            bad[15] ^= 1;
            for (counter, bound, tag) in [(2, b"here", tag), (1, b"hers", tag), (1, b"here", bad)] {
                let mut buf = sealed.clone();
                assert_eq!(
                    siv.open_in_place(&cipher, &[counter; 16], bound, &mut buf, &tag),
                    Err(TagMismatch)
                );
                assert!(buf.iter().all(|byte| *byte == 0));
            }
            for byte in 0..len {
                let mut bad = sealed.clone();
                bad[byte] ^= 0x10;
                assert!(siv.open(&cipher, &[1; 16], b"here", &bad, &tag, &mut out).is_err());
                assert!(out.iter().all(|byte| *byte == 0));
            }
        }
    }
}
