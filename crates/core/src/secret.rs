//! Where key bytes live: on the heap, locked in memory where the system allows it, zeroed on drop, and without
//! `Debug`, so that they reach neither swap nor a log by accident.

use zeroize::Zeroize;

/// A key of `N` bytes.
pub struct Secret<const N: usize>(Box<[u8; N]>);

impl<const N: usize> Secret<N> {
    /// A secret that `fill` writes in place, so that no copy is left on the stack.
    pub fn fill_with<E>(fill: impl FnOnce(&mut [u8; N]) -> Result<(), E>) -> Result<Self, E> {
        let mut bytes = Box::new([0u8; N]);
        lock(&bytes[..]);
        let secret_result = fill(&mut bytes);
        let secret = Secret(bytes);
        secret_result.map(|()| secret)
    }

    /// Copies `bytes` into locked memory. The caller zeroes its own copy.
    pub fn copy_from(bytes: &[u8; N]) -> Self {
        match Self::fill_with::<std::convert::Infallible>(|b| {
            b.copy_from_slice(bytes);
            Ok(())
        }) {
            Ok(secret) => secret,
            Err(never) => match never {},
        }
    }

    /// The bytes, for handing to a cipher.
    pub fn expose(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> Clone for Secret<N> {
    fn clone(&self) -> Self {
        Self::copy_from(self.expose())
    }
}

impl<const N: usize> Drop for Secret<N> {
    fn drop(&mut self) {
        self.0.zeroize();
        unlock(&self.0[..]);
    }
}

/// Secret bytes of any length: a passphrase, or a buffer that held one.
pub struct SecretVec(Vec<u8>);

impl SecretVec {
    /// Takes `bytes` over; they are zeroed when this is dropped.
    pub fn new(bytes: Vec<u8>) -> Self {
        lock(&bytes);
        SecretVec(bytes)
    }

    /// The bytes, for handing to a key derivation.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for SecretVec {
    fn drop(&mut self) {
        unlock_after_zero(&mut self.0);
    }
}

fn unlock_after_zero(bytes: &mut Vec<u8>) {
    // Zeroize clears the spare capacity as well; the length is 0 afterwards, so keep the extent to unlock.
    let (start, len) = (bytes.as_ptr(), bytes.len());
    bytes.zeroize();
    memory::unlock(start, len);
}

fn lock(bytes: &[u8]) {
    memory::lock(bytes.as_ptr(), bytes.len());
}

fn unlock(bytes: &[u8]) {
    memory::unlock(bytes.as_ptr(), bytes.len());
}

/// The two system calls. Failure is ignored: locking is a courtesy of the system (RLIMIT_MEMLOCK), and pages
/// shared by two secrets are unlocked by the first drop, which leaves the second as safe as an unlocked one.
mod memory {
    pub(super) fn lock(start: *const u8, len: usize) {
        // SAFETY: mlock neither reads nor writes the memory; a bad range only returns an error.
        unsafe {
            libc::mlock(start.cast(), len);
        }
    }

    pub(super) fn unlock(start: *const u8, len: usize) {
        // SAFETY: as for `lock`.
        unsafe {
            libc::munlock(start.cast(), len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_it_was_given() {
        let s = Secret::copy_from(&[7u8; 32]);
        assert_eq!(s.clone().expose(), &[7u8; 32]);
        assert_eq!(SecretVec::new(b"pass".to_vec()).expose(), b"pass");
    }
}
