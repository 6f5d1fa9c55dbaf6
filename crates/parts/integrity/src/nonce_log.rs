//! A record of every (key, nonce) and (key, tweak) of a block encryption. Tests of this crate use
//! it to see that none is used twice for different content; without `cfg(test)` nothing is
//! recorded.

#[cfg(not(test))]
#[inline]
pub(crate) fn gcm(_: crate::counters::counter::Session, _: &[u8; 16], _: u64, _: &[u8]) {}

#[cfg(not(test))]
#[inline]
pub(crate) fn wide(_: &[u8; 20], _: u64, _: &[u8]) {}

#[cfg(test)]
pub(crate) use record::{gcm, start, take, wide};

#[cfg(test)]
mod record {
    use crate::counters::counter::Session;
    use std::cell::RefCell;

    /// The input of a cipher: the kind and session of the key with the nonce, or the tweak; then
    /// the block and the content.
    pub(crate) type CipherInput = (Vec<u8>, u64, Vec<u8>);

    thread_local! {
        static USES: RefCell<Option<Vec<CipherInput>>> = const { RefCell::new(None) };
    }

    fn record(vector: &[u8], block: u64, content: &[u8]) {
        USES.with_borrow_mut(|uses| {
            if let Some(uses) = uses {
                uses.push((vector.to_vec(), block, content.to_vec()));
            }
        });
    }

    pub(crate) fn gcm(session: Session, tag: &[u8; 16], block: u64, content: &[u8]) {
        record(&[&[0], &session.0.to_le_bytes()[..], &tag[..12]].concat(), block, content);
    }

    pub(crate) fn wide(tweak: &[u8; 20], block: u64, content: &[u8]) {
        record(&[&[1], &tweak[..]].concat(), block, content);
    }

    /// Starts recording on this thread.
    pub(crate) fn start() {
        USES.set(Some(vec![]));
    }

    /// Ends recording and returns the record.
    pub(crate) fn take() -> Vec<CipherInput> {
        USES.take().unwrap_or_default()
    }
}
