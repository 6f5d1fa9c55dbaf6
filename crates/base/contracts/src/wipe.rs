//! Memory that holds plaintext and is wiped on drop.

use std::ops::{Deref, DerefMut};
use zeroize::optimization_barrier;

/// Overwrites bytes with zeros, at the speed of memory. The compiler does not optimise it away.
pub fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    optimization_barrier(&*bytes);
}

/// Bytes that hold plaintext, wiped on drop. The inner value must not reallocate: its earlier
/// memory would not be wiped.
#[derive(Clone, Default)]
pub struct WipeOnDrop<T: AsMut<[u8]>>(T);

impl<T: AsMut<[u8]>> WipeOnDrop<T> {
    /// Takes ownership of bytes.
    pub const fn new(bytes: T) -> Self {
        WipeOnDrop(bytes)
    }
}

impl<T: AsMut<[u8]>> Deref for WipeOnDrop<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsMut<[u8]>> DerefMut for WipeOnDrop<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: AsMut<[u8]>> Drop for WipeOnDrop<T> {
    fn drop(&mut self) {
        wipe(self.0.as_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Bytes that a test can inspect after they were dropped.
    struct DropRecorder<'a>(Vec<u8>, &'a RefCell<Vec<u8>>);

    impl AsMut<[u8]> for DropRecorder<'_> {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    impl Drop for DropRecorder<'_> {
        fn drop(&mut self) {
            self.1.borrow_mut().clone_from(&self.0);
        }
    }

    #[test]
    fn a_dropped_buffer_is_zeroed() {
        let seen = RefCell::new(vec![]);
        drop(WipeOnDrop::new(DropRecorder(vec![7; 5000], &seen)));
        assert_eq!(*seen.borrow(), vec![0; 5000]);
        let mut block = WipeOnDrop::new([7_u8; 16]);
        block[3] = 9;
        assert_eq!((block.clone()[3], block.len()), (9, 16));
    }
}
