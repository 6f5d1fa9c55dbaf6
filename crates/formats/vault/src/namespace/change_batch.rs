//! The encoding of namespace changes in commits: keys with their new values or removals.
//!
//! A batch begins with the version, one byte. Each change is the length of its key (u16,
//! little-endian), the key, the length of its value (u32, all ones for a removal) and the value.
//! Changes are idempotent, so recovery may apply changes that the database holds already.

use lacuna_contracts::{Error, Kind, Result};

const VERSION: u8 = 1;
const GONE: u32 = u32::MAX;

/// A batch under construction.
pub(crate) struct ChangeBatch(Vec<u8>);

impl Default for ChangeBatch {
    fn default() -> Self {
        ChangeBatch(vec![VERSION])
    }
}

impl ChangeBatch {
    pub(crate) fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.0.extend((key.len() as u16).to_le_bytes());
        self.0.extend(key);
        self.0.extend(value.map_or(GONE, |value| value.len() as u32).to_le_bytes());
        self.0.extend(value.unwrap_or(&[]));
    }

    /// Puts the changes of an earlier batch before these.
    pub(crate) fn put_before(&mut self, mut earlier: ChangeBatch) {
        earlier.0.extend_from_slice(&self.0[1..]);
        *self = earlier;
    }

    /// Bytes of the changes.
    pub(crate) fn len(&self) -> usize {
        self.0.len() - 1
    }

    /// The batch; empty if it has no change.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.len() == 0 { &[] } else { &self.0 }
    }

    /// Calls `each` with every change of a batch, in order.
    ///
    /// Errors: [`Kind::Corrupt`] for a malformed batch.
    pub(crate) fn read(batch: &[u8], mut each: impl FnMut(&[u8], Option<&[u8]>)) -> Result<()> {
        let bad = || Error::new(Kind::Corrupt, "cannot read changes of the namespace");
        let Some((&version, mut rest)) = batch.split_first() else { return Ok(()) };
        if version != VERSION {
            return Err(bad().found(format!("version {version}")).expected(format!("version {VERSION}")));
        }
        while !rest.is_empty() {
            let (key, value, behind) = next(rest).ok_or_else(|| bad().found("a change that is cut short"))?;
            each(key, value);
            rest = behind;
        }
        Ok(())
    }
}

type ParsedChange<'a> = (&'a [u8], Option<&'a [u8]>, &'a [u8]);

fn next(bytes: &[u8]) -> Option<ParsedChange<'_>> {
    let (len, bytes) = bytes.split_first_chunk::<2>()?;
    let (key, bytes) = bytes.split_at_checked(u16::from_le_bytes(*len).into())?;
    let (len, bytes) = bytes.split_first_chunk::<4>()?;
    match u32::from_le_bytes(*len) {
        GONE => Some((key, None, bytes)),
        len => bytes.split_at_checked(len as usize).map(|(value, rest)| (key, Some(value), rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_read_in_order_and_malformed_ones_are_refused() {
        let mut puts = ChangeBatch::default();
        assert!(puts.bytes().is_empty());
        puts.add(b"key", Some(b"value"));
        puts.add(b"", Some(b""));
        puts.add(b"gone", None);
        let read = |batch: &[u8]| {
            let mut all = vec![];
            ChangeBatch::read(batch, |k, v| all.push((k.to_vec(), v.map(<[u8]>::to_vec)))).map(|()| all)
        };
        let all = read(puts.bytes()).unwrap();
        assert_eq!(all.len(), 3);
        assert_eq!(all[0], (b"key".to_vec(), Some(b"value".to_vec())));
        assert_eq!(all[2], (b"gone".to_vec(), None));
        let whole = [0, 14, 20].map(|n| n + 1);
        for cut in 1..puts.bytes().len() {
            assert_eq!(read(&puts.bytes()[..cut]).is_ok(), whole.contains(&cut), "{cut}");
        }
        assert!(read(&[9, 1, 2]).is_err());
        assert!(read(&[]).unwrap().is_empty());
    }
}
