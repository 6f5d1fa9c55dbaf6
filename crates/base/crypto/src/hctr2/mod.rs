//! HCTR2-256 (Crowley, Huckleberry and Biggers, 2021): a wide-block cipher over AES-256 and
//! POLYVAL.
//!
//! Every bit of the output depends on every bit of input, tweak and key. Two versions of a block
//! therefore show only whether they are equal, and an adversary cannot splice parts of them.
//!
//! Encryption of a message: hash the tail into the first block; encrypt that block; expand its
//! input and output into a key stream (XCTR) over the tail; hash the new tail into the encrypted
//! block. Decryption differs only in the direction of the one block.

mod portable;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86_aes;

use crate::ffi::CipherDirection;
use lacuna_contracts::{Result, Secret};
use portable::{PortableHash, PortableKey};

/// An HCTR2-256 key, used by any number of threads at once.
///
/// A message has at least 16 bytes; a shorter one is an error of the caller and panics. Tweaks may
/// have any length.
pub struct Hctr2Key(Hctr2Engine);

enum Hctr2Engine {
    #[cfg(target_arch = "x86_64")]
    Vector(x86::VectorKey),
    Portable(Box<PortableKey>),
}

impl Hctr2Key {
    /// Sets up `key`, on the machine's vector instructions if it has them.
    pub fn new(key: &Secret<32>) -> Result<Hctr2Key> {
        #[cfg(target_arch = "x86_64")]
        if let Some(vector) = x86::VectorKey::new(key.expose()) {
            return Ok(Hctr2Key(Hctr2Engine::Vector(vector)));
        }
        Ok(Hctr2Key(Hctr2Engine::Portable(Box::new(PortableKey::new(key.expose())))))
    }

    /// Encrypts `src` into `dst`, which has the same length.
    pub fn encrypt(&self, tweak: &[u8], src: &[u8], dst: &mut [u8]) {
        #[cfg(feature = "witness")]
        self.log_use(tweak, src);
        self.run(CipherDirection::Encrypt, tweak, src, dst);
    }

    /// Records the use, for tests that look for repeated tweaks.
    #[cfg(feature = "witness")]
    fn log_use(&self, tweak: &[u8], src: &[u8]) {
        let key = || {
            let mut key = [0; 16];
            self.run(CipherDirection::Encrypt, &[0xff; 32], b"which key is it?", &mut key);
            key
        };
        crate::nonce_log::record(crate::nonce_log::NonceKind::Wide, key, tweak, &[], src);
    }

    /// Decrypts `src` into `dst`, which has the same length.
    pub fn decrypt(&self, tweak: &[u8], src: &[u8], dst: &mut [u8]) {
        self.run(CipherDirection::Decrypt, tweak, src, dst);
    }

    /// Decrypts `buf` in place.
    pub fn decrypt_in_place(&self, tweak: &[u8], buf: &mut [u8]) {
        self.run_in_place(CipherDirection::Decrypt, tweak, buf);
    }

    fn run(&self, direction: CipherDirection, tweak: &[u8], src: &[u8], dst: &mut [u8]) {
        assert!(src.len() >= 16, "HCTR2 message of {} bytes", src.len());
        assert_eq!(src.len(), dst.len(), "HCTR2 source and destination differ in length");
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            Hctr2Engine::Vector(key) => key.run(direction, tweak, src, dst),
            Hctr2Engine::Portable(key) => {
                dst.copy_from_slice(src);
                key.run_in_place(direction, tweak, dst);
            }
        }
    }

    fn run_in_place(&self, direction: CipherDirection, tweak: &[u8], buf: &mut [u8]) {
        assert!(buf.len() >= 16, "HCTR2 message of {} bytes", buf.len());
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            Hctr2Engine::Vector(key) => key.run_in_place(direction, tweak, buf),
            Hctr2Engine::Portable(key) => key.run_in_place(direction, tweak, buf),
        }
    }
}

/// The hash of HCTR2 under its own key: POLYVAL over a block of lengths, a tweak and a message,
/// each padded to whole blocks. Under a random key, the hashes of two different inputs of at most
/// *n* blocks have any given difference with probability at most *n* / 2^128 (Crowley, Huckleberry
/// and Biggers, section 3).
pub(crate) struct HashKey(HashEngine);

enum HashEngine {
    #[cfg(target_arch = "x86_64")]
    Vector(x86::VectorHash),
    Portable(PortableHash),
}

impl HashKey {
    /// Sets up `key`, on the machine's vector instructions if it has them.
    pub(crate) fn new(key: &[u8; 16]) -> HashKey {
        #[cfg(target_arch = "x86_64")]
        if let Some(vector) = x86::VectorHash::new(key) {
            return HashKey(HashEngine::Vector(vector));
        }
        HashKey(HashEngine::Portable(PortableHash::new(key)))
    }

    /// Sets up `key` on the portable engine.
    #[cfg(test)]
    pub(crate) fn portable(key: &[u8; 16]) -> HashKey {
        HashKey(HashEngine::Portable(PortableHash::new(key)))
    }

    /// The hash over `tweak` and `message`, each of any length.
    pub(crate) fn hash(&self, tweak: &[u8], message: &[u8]) -> [u8; 16] {
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            HashEngine::Vector(key) => key.hash(tweak, message),
            HashEngine::Portable(key) => key.hash(tweak, message),
        }
    }
}

#[cfg(test)]
mod tests;
