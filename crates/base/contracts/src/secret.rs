//! Key bytes: in separate pages, locked in memory where the system permits it, zeroed on drop, and
//! without `Debug`, so that they do not reach swap, a core dump or a log by accident.

use crate::locked_memory::LockedMemory;
use zeroize::Zeroize;

/// A key of `N` bytes.
pub struct Secret<const N: usize>(LockedMemory);

impl<const N: usize> Secret<N> {
    /// A secret that `fill` writes in place, so that no copy is left on the stack.
    pub fn fill_with<E>(fill: impl FnOnce(&mut [u8; N]) -> Result<(), E>) -> Result<Self, E> {
        let mut bytes = LockedMemory::zeroed(N);
        let array = bytes.first_chunk_mut().expect("N bytes were asked for");
        fill(array).map(|()| Secret(bytes))
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

    /// The bytes, for a cipher.
    pub fn expose(&self) -> &[u8; N] {
        self.0.first_chunk().expect("N bytes were asked for")
    }
}

impl<const N: usize> Clone for Secret<N> {
    fn clone(&self) -> Self {
        Self::copy_from(self.expose())
    }
}

/// Secret bytes of any length: a passphrase, or a buffer that holds one.
pub struct SecretVec(LockedMemory);

impl SecretVec {
    /// Copies `bytes` into locked memory and zeroes them.
    pub fn new(mut bytes: Vec<u8>) -> Self {
        let mut locked = LockedMemory::zeroed(bytes.len());
        locked.copy_from_slice(&bytes);
        bytes.zeroize();
        SecretVec(locked)
    }

    /// `len` zero bytes, to be filled in place.
    pub fn zeroed(len: usize) -> Self {
        SecretVec(LockedMemory::zeroed(len))
    }

    /// The bytes, for a key derivation.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, to be overwritten.
    pub fn expose_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_holds_the_given_bytes() {
        let s = Secret::copy_from(&[7u8; 32]);
        assert_eq!(s.clone().expose(), &[7u8; 32]);
        assert_eq!(SecretVec::new(b"pass".to_vec()).expose(), b"pass");
    }
}
