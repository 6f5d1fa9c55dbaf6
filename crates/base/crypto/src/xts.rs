//! AES-256-XTS (IEEE 1619), for whole blocks: the ciphertext is as long as the plaintext.

use crate::ffi::{CipherDirection, XtsContext};
use lacuna_contracts::{Error, Kind, Result, Secret};
use parking_lot::Mutex;

/// Idle pairs of contexts kept for later sessions.
const POOL: usize = 64;

/// An XTS key: 64 bytes with two different halves. Shared by all threads; each takes an
/// [`XtsSession`].
pub struct XtsKey {
    key: Secret<64>,
    idle: Mutex<Vec<ContextPair>>,
}

struct ContextPair {
    encrypt: XtsContext,
    decrypt: XtsContext,
}

impl ContextPair {
    fn new(key: &Secret<64>) -> Option<Self> {
        Some(ContextPair {
            encrypt: XtsContext::new(key.expose(), CipherDirection::Encrypt)?,
            decrypt: XtsContext::new(key.expose(), CipherDirection::Decrypt)?,
        })
    }
}

impl XtsKey {
    /// Sets up `key`. Errors: [`Kind::Usage`] if its halves are equal (XTS is not secure then),
    /// [`Kind::Memory`] if the cipher could not be set up.
    pub fn new(key: &Secret<64>) -> Result<XtsKey> {
        let (data, tweak) = key.expose().split_at(32);
        if crate::constant_time_eq(data, tweak) {
            return Err(Error::new(Kind::Usage, "cannot use an XTS key")
                .found("two equal halves")
                .expected("halves that differ")
                .hint("make a new random key"));
        }
        let first =
            ContextPair::new(key).ok_or_else(|| Error::new(Kind::Memory, "cannot set up AES-256-XTS"))?;
        Ok(XtsKey { key: key.clone(), idle: Mutex::new(vec![first]) })
    }

    /// Takes a pair of contexts from the pool, or makes one. The pair returns to the pool when the
    /// session is dropped.
    pub fn session(&self) -> XtsSession<'_> {
        let idle = self.idle.lock().pop();
        let pair = idle.or_else(|| ContextPair::new(&self.key)).expect("memory for an XTS context");
        XtsSession { key: self, pair: Some(pair) }
    }
}

/// One thread's use of an [`XtsKey`].
///
/// A unit is a multiple of 16 bytes, at least 16 and at most 16 MiB. Other lengths are an error of
/// the caller and panic, because continuing would leave a unit unencrypted.
pub struct XtsSession<'a> {
    key: &'a XtsKey,
    pair: Option<ContextPair>,
}

impl XtsSession<'_> {
    fn pair(&mut self) -> &mut ContextPair {
        self.pair.as_mut().expect("a session has its contexts until it is dropped")
    }

    /// Encrypts one unit.
    pub fn encrypt(&mut self, tweak: &[u8; 16], src: &[u8], dst: &mut [u8]) {
        debug_assert_eq!(src.len() % 16, 0);
        #[cfg(feature = "witness")]
        self.log_use(tweak, src);
        self.pair().encrypt.run(tweak, src, dst);
    }

    /// Records the use, for tests that look for repeated tweaks.
    #[cfg(feature = "witness")]
    fn log_use(&mut self, tweak: &[u8; 16], src: &[u8]) {
        let mut key = [0; 16];
        self.pair().encrypt.run(&[0xff; 16], b"which key is it?", &mut key);
        crate::nonce_log::record(crate::nonce_log::NonceKind::Given, || key, tweak, &[], src);
    }

    /// Decrypts one unit.
    pub fn decrypt(&mut self, tweak: &[u8; 16], src: &[u8], dst: &mut [u8]) {
        debug_assert_eq!(src.len() % 16, 0);
        self.pair().decrypt.run(tweak, src, dst);
    }

    /// Decrypts one unit in place.
    pub fn decrypt_in_place(&mut self, tweak: &[u8; 16], buf: &mut [u8]) {
        debug_assert_eq!(buf.len() % 16, 0);
        self.pair().decrypt.run_in_place(tweak, buf);
    }
}

impl Drop for XtsSession<'_> {
    fn drop(&mut self) {
        if let Some(pair) = self.pair.take() {
            let mut idle = self.key.idle.lock();
            if idle.len() < POOL {
                idle.push(pair);
            }
        }
    }
}
