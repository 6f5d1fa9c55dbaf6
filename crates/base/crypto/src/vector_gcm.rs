//! AES-256-GCM by ring, for processors with 256-bit AES and carry-less multiplication (VAES,
//! VPCLMULQDQ) but no AVX-512. On those, aws-lc uses its 128-bit code at about half the speed; with
//! AVX-512, aws-lc is faster than ring.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use std::mem::MaybeUninit;
use zeroize::Zeroize;

/// Whether ring is faster than aws-lc on this machine.
pub(crate) fn is_preferred() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx2")
        && !is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// A key of ring's, wiped on drop (ring does not wipe keys). Copies that ring leaves on the stack
/// while it makes a key are not wiped.
pub(crate) struct VectorGcm(Box<MaybeUninit<LessSafeKey>>);

// Wiping instead of dropping leaks nothing.
const _: () = assert!(!std::mem::needs_drop::<LessSafeKey>());

impl VectorGcm {
    /// `None` if ring refuses the key.
    pub(crate) fn new(key: &[u8; 32]) -> Option<VectorGcm> {
        let key = UnboundKey::new(&AES_256_GCM, key).ok()?;
        Some(VectorGcm(Box::new(MaybeUninit::new(LessSafeKey::new(key)))))
    }

    fn key(&self) -> &LessSafeKey {
        // SAFETY: `new` put a key there, and only `drop` takes it away.
        unsafe { self.0.assume_init_ref() }
    }

    /// Encrypts `buf` in place and returns the tag.
    pub(crate) fn seal(&self, nonce: &[u8; 12], aad: &[u8], buf: &mut [u8]) -> [u8; 16] {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let sealed = self.key().seal_in_place_separate_tag(nonce, Aad::from(aad), buf);
        let tag = sealed.expect("messages are far shorter than GCM allows");
        tag.as_ref().try_into().expect("a tag has 16 bytes")
    }

    /// Whether the tag verified. If not, `buf` is zeroed.
    pub(crate) fn open(&self, nonce: &[u8; 12], aad: &[u8], buf: &mut [u8], tag: &[u8; 16]) -> bool {
        let (nonce, tag) = (Nonce::assume_unique_for_key(*nonce), Tag::from(*tag));
        let good = self.key().open_in_place_separate_tag(nonce, Aad::from(aad), tag, buf, 0..).is_ok();
        if !good {
            buf.fill(0);
        }
        good
    }
}

impl Drop for VectorGcm {
    fn drop(&mut self) {
        let key = self.0.as_mut_ptr().cast::<MaybeUninit<u8>>();
        // SAFETY: the box owns exactly the bytes of a key, and they are never used again.
        let bytes = unsafe { std::slice::from_raw_parts_mut(key, size_of::<LessSafeKey>()) };
        bytes.zeroize();
    }
}
