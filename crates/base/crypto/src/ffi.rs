//! Safe, narrow wrappers over aws-lc: the contexts for XTS, GCM and the random source.
//!
//! Every context owns its memory and is wiped and freed on drop (aws-lc wipes all memory that it
//! frees).

use aws_lc_sys as lc;
use lacuna_contracts::Secret;
use std::ptr::{self, NonNull};
use zeroize::{Zeroize, optimization_barrier};

/// Which way a block cipher mode runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CipherDirection {
    Encrypt,
    Decrypt,
}

/// AES-256-XTS in one direction, with its key schedule set up once.
pub(crate) struct XtsContext(NonNull<lc::EVP_CIPHER_CTX>);

// SAFETY: the context is plain heap memory that no other thread refers to; all use takes `&mut
// self`.
unsafe impl Send for XtsContext {}

impl XtsContext {
    /// The longest data unit that IEEE 1619 allows: 2^20 blocks of 16 bytes.
    pub(crate) const MAX_UNIT: usize = 16 << 20;

    /// `None` if aws-lc has no memory or refuses the key.
    pub(crate) fn new(key: &[u8; 64], direction: CipherDirection) -> Option<Self> {
        // SAFETY: takes no arguments; null means that memory ran out.
        let ctx = NonNull::new(unsafe { lc::EVP_CIPHER_CTX_new() })?;
        let this = XtsContext(ctx);
        let encrypt = i32::from(direction == CipherDirection::Encrypt);
        // SAFETY: the context is live, `key` has the 64 bytes that EVP_aes_256_xts reads, and a
        // null iv is allowed (the tweak is set before each unit).
        let set = unsafe {
            lc::EVP_CipherInit_ex(
                ctx.as_ptr(),
                lc::EVP_aes_256_xts(),
                ptr::null_mut(),
                key.as_ptr(),
                ptr::null(),
                encrypt,
            )
        };
        (set == 1).then_some(this)
    }

    /// Runs one data unit from `src` to `dst`, which have the same length.
    pub(crate) fn run(&mut self, tweak: &[u8; 16], src: &[u8], dst: &mut [u8]) {
        assert_eq!(src.len(), dst.len(), "XTS source and destination differ in length");
        // SAFETY: both slices are valid for `src.len()` bytes and, being borrowed apart, do not
        // overlap.
        unsafe { self.run_raw(tweak, src.as_ptr(), dst.as_mut_ptr(), src.len()) }
    }

    /// Runs one data unit in place.
    pub(crate) fn run_in_place(&mut self, tweak: &[u8; 16], buf: &mut [u8]) {
        let unit = buf.as_mut_ptr();
        // SAFETY: `unit` is valid for `buf.len()` bytes; aws-lc allows source and destination to be
        // equal.
        unsafe { self.run_raw(tweak, unit, unit, buf.len()) }
    }

    /// # Safety
    /// `src` and `dst` are valid for `len` bytes, and either equal or disjoint.
    unsafe fn run_raw(&mut self, tweak: &[u8; 16], src: *const u8, dst: *mut u8, len: usize) {
        assert!((16..=Self::MAX_UNIT).contains(&len), "XTS unit of {len} bytes");
        let ctx = self.0.as_ptr();
        // SAFETY: the context is live and keyed; a null cipher and key keep both, `tweak` has the
        // 16 bytes that are read, and -1 keeps the direction.
        let set = unsafe {
            lc::EVP_CipherInit_ex(ctx, ptr::null(), ptr::null_mut(), ptr::null(), tweak.as_ptr(), -1)
        };
        // SAFETY: the context is live, and the caller vouches for both pointers.
        let done = unsafe { lc::EVP_Cipher(ctx, dst, src, len) };
        assert!(set == 1 && done == 1, "AES-XTS refused a unit of {len} bytes");
    }
}

impl Drop for XtsContext {
    fn drop(&mut self) {
        // SAFETY: the context is live and owned, and never used again.
        unsafe { lc::EVP_CIPHER_CTX_free(self.0.as_ptr()) }
    }
}

/// AES-256-GCM with 96-bit nonces and 128-bit tags.
pub(crate) struct GcmContext(NonNull<lc::EVP_AEAD_CTX>);

// SAFETY: the context is plain heap memory, not bound to a thread.
unsafe impl Send for GcmContext {}
// SAFETY: sealing and opening take the context by const pointer and leave it unchanged; aws-lc
// documents that one context may be used by many threads at once.
unsafe impl Sync for GcmContext {}

impl GcmContext {
    /// `None` if aws-lc has no memory.
    pub(crate) fn new(key: &[u8; 32]) -> Option<Self> {
        // SAFETY: `key` has the 32 bytes that are read; null means that memory ran out.
        let ctx = unsafe { lc::EVP_AEAD_CTX_new(lc::EVP_aead_aes_256_gcm(), key.as_ptr(), key.len(), 16) };
        NonNull::new(ctx).map(GcmContext)
    }

    pub(crate) fn seal(&self, nonce: &[u8; 12], aad: &[u8], src: &[u8], dst: &mut [u8]) -> [u8; 16] {
        assert_eq!(src.len(), dst.len(), "GCM source and destination differ in length");
        let mut tag = [0u8; 16];
        let mut tag_len = 0usize;
        // SAFETY: the context is live; nonce, tag, aad, source and destination are valid for the
        // given lengths and, being borrowed apart, do not overlap where they are written.
        let done = unsafe {
            lc::EVP_AEAD_CTX_seal_scatter(
                self.0.as_ptr(),
                dst.as_mut_ptr(),
                tag.as_mut_ptr(),
                &raw mut tag_len,
                tag.len(),
                nonce.as_ptr(),
                nonce.len(),
                src.as_ptr(),
                src.len(),
                ptr::null(),
                0,
                aad.as_ptr(),
                aad.len(),
            )
        };
        assert!(done == 1 && tag_len == 16, "AES-GCM refused a message of {} bytes", src.len());
        tag
    }

    /// Whether the tag verified. If not, `dst` is zeroed.
    pub(crate) fn open(
        &self,
        nonce: &[u8; 12],
        aad: &[u8],
        src: &[u8],
        tag: &[u8; 16],
        dst: &mut [u8],
    ) -> bool {
        assert_eq!(src.len(), dst.len(), "GCM source and destination differ in length");
        // SAFETY: `src` and `dst` are valid for `src.len()` bytes and, being borrowed apart, do not
        // overlap.
        let good = unsafe { self.open_raw(nonce, aad, src.as_ptr(), dst.as_mut_ptr(), src.len(), tag) };
        if !good {
            dst.fill(0);
        }
        good
    }

    /// Whether the tag verified. If not, `buf` is zeroed.
    pub(crate) fn open_in_place(&self, nonce: &[u8; 12], aad: &[u8], buf: &mut [u8], tag: &[u8; 16]) -> bool {
        let text = buf.as_mut_ptr();
        // SAFETY: `text` is valid for `buf.len()` bytes; aws-lc allows source and destination to be
        // equal.
        let good = unsafe { self.open_raw(nonce, aad, text, text, buf.len(), tag) };
        if !good {
            buf.fill(0);
        }
        good
    }

    /// # Safety
    /// `src` and `dst` are valid for `len` bytes, and either equal or disjoint.
    unsafe fn open_raw(
        &self,
        nonce: &[u8; 12],
        aad: &[u8],
        src: *const u8,
        dst: *mut u8,
        len: usize,
        tag: &[u8; 16],
    ) -> bool {
        // SAFETY: the context is live; nonce, tag and aad are valid for the given lengths; the
        // caller vouches for `src` and `dst`.
        let opened = unsafe {
            lc::EVP_AEAD_CTX_open_gather(
                self.0.as_ptr(),
                dst,
                nonce.as_ptr(),
                nonce.len(),
                src,
                len,
                tag.as_ptr(),
                tag.len(),
                aad.as_ptr(),
                aad.len(),
            )
        };
        if opened != 1 {
            // SAFETY: takes no arguments. A failed open leaves an entry in this thread's error
            // queue, which the next user of the library on this thread would otherwise read.
            unsafe { lc::ERR_clear_error() }
        }
        opened == 1
    }
}

impl Drop for GcmContext {
    fn drop(&mut self) {
        // SAFETY: the context is live and owned, and never used again.
        unsafe { lc::EVP_AEAD_CTX_free(self.0.as_ptr()) }
    }
}

/// AES-256 with its key schedule: on single blocks, for turning addresses into tweaks, and as a key
/// stream of messages with synthetic tags ([`crate::SivKey`]).
pub struct AesBlock(Box<lc::AES_KEY>);

impl AesBlock {
    /// Sets up `key`.
    pub fn new(key: &Secret<32>) -> Self {
        Self::from_bytes(key.expose())
    }

    /// [`AesBlock::new`] for bytes that the caller wipes.
    pub fn from_bytes(key: &[u8; 32]) -> Self {
        let mut block = AesBlock(Box::new(lc::AES_KEY { rd_key: [0; 60], rounds: 0 }));
        block.set_key(key);
        block
    }

    /// Sets up another key, which takes the memory of the one before it. The caller wipes `key`.
    pub fn set_key(&mut self, key: &[u8; 32]) {
        // SAFETY: `key` has the 256 bits that are read, and the schedule is a live AES_KEY.
        let set = unsafe { lc::AES_set_encrypt_key(key.as_ptr(), 256, &raw mut *self.0) };
        assert_eq!(set, 0, "AES refused a 256-bit key");
    }

    /// Encrypts one block.
    pub fn encrypt(&self, block: [u8; 16]) -> [u8; 16] {
        let mut out = [0u8; 16];
        // SAFETY: both blocks have 16 bytes, and the schedule was set by `set_key`.
        unsafe { lc::AES_encrypt(block.as_ptr(), out.as_mut_ptr(), &raw const *self.0) }
        out
    }

    /// The keys of all rounds, in the order of FIPS 197. The library stores them so wherever it
    /// uses AES instructions.
    pub(crate) fn round_keys(&self) -> &[[u8; 16]; 15] {
        // SAFETY: the schedule has 60 words, which are 15 times 16 bytes, of a type that any bytes
        // are valid for.
        unsafe { &*self.0.rd_key.as_ptr().cast() }
    }

    /// XORs the CTR key stream into `buf`. The stream starts with the first byte of block `counter`
    /// (big-endian).
    pub(crate) fn xor_stream(&self, counter: &[u8; 16], buf: &mut [u8]) {
        let mut counter = *counter;
        let mut spare = [0u8; 16];
        let mut used = 0u32;
        let text = buf.as_mut_ptr();
        // SAFETY: `text` is valid for `buf.len()` bytes and may be both source and destination; the
        // counter and the spare block have 16 bytes each; the schedule was set by `set_key`.
        unsafe {
            lc::AES_ctr128_encrypt(
                text,
                text,
                buf.len(),
                &raw const *self.0,
                counter.as_mut_ptr(),
                spare.as_mut_ptr(),
                &raw mut used,
            );
        }
        spare.zeroize();
    }
}

impl Drop for AesBlock {
    fn drop(&mut self) {
        self.0.rd_key.fill(0);
        optimization_barrier(&self.0.rd_key);
    }
}

/// Whether `a` and `b` are equal, in time that depends only on their lengths.
pub fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    // SAFETY: both slices are valid for the common length.
    a.len() == b.len() && unsafe { lc::CRYPTO_memcmp(a.as_ptr().cast(), b.as_ptr().cast(), a.len()) } == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [
        0x60, 0x3d, 0xeb, 0x10, 0x15, 0xca, 0x71, 0xbe, 0x2b, 0x73, 0xae, 0xf0, 0x85, 0x7d, 0x77, 0x81, 0x1f,
        0x35, 0x2c, 0x07, 0x3b, 0x61, 0x08, 0xd7, 0x2d, 0x98, 0x10, 0xa3, 0x09, 0x14, 0xdf, 0xf4,
    ];

    /// NIST SP 800-38A, F.5.5.
    #[test]
    fn counter_mode_gives_the_published_block() {
        let counter = std::array::from_fn(|i| 0xf0 + i as u8);
        let mut text = 0x6bc1_bee2_2e40_9f96_e93d_7e11_7393_172a_u128.to_be_bytes();
        AesBlock::from_bytes(&KEY).xor_stream(&counter, &mut text);
        assert_eq!(u128::from_be_bytes(text), 0x601e_c313_7757_89a5_b7a7_f504_bbf3_d228);
    }

    /// Shows that the counter carries through all 128 bits, and that a partial block takes the
    /// start of its key stream block.
    #[test]
    fn counter_mode_is_aes_of_counters() {
        let schedule = AesBlock::from_bytes(&KEY);
        let start = u128::MAX >> 1;
        let mut stream = [0u8; 5 * 16 + 3];
        schedule.xor_stream(&start.to_be_bytes(), &mut stream);
        for (i, part) in stream.chunks(16).enumerate() {
            let block = schedule.encrypt((start + i as u128).to_be_bytes());
            assert_eq!(part, &block[..part.len()]);
        }
    }

    #[test]
    fn a_schedule_takes_another_key() {
        let mut schedule = AesBlock::from_bytes(&[9; 32]);
        schedule.set_key(&KEY);
        assert_eq!(schedule.encrypt([1; 16]), AesBlock::from_bytes(&KEY).encrypt([1; 16]));
    }
}
