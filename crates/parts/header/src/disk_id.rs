//! The ID of a disk or vault: its owner recognizes the disk by it.
//!
//! A UUID can be read without a key and copied onto another disk. The ID is derived from the master
//! key of level 0: making a disk with a given ID takes that key, and reading the ID of a disk takes
//! a passphrase.

use crate::layout::KEY_LEN;
use crate::public::{FormatId, Uuid};
use crate::unlock::OpenHeader;
use lacuna_contracts::{Error, Kind, Result, Secret};
use lacuna_crypto::derive;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Bytes of an ID.
const LEN: usize = 16;

/// The ID of a disk or vault: 16 bytes, shown as 32 hexadecimal digits. It never changes, whatever
/// happens to passphrases and size, and reveals nothing about the key. Copies of a disk have the
/// same ID.
///
/// Deniability contract: it comes from the key of level 0 alone, which every deeper level opens
/// too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskId([u8; LEN]);

impl DiskId {
    /// The ID of the disk with this UUID and this master key of level 0.
    pub fn of(level0: &Secret<KEY_LEN>, uuid: Uuid) -> DiskId {
        let id: Secret<LEN> = derive(level0, "disk id", &uuid.0);
        DiskId(*id.expose())
    }

    /// Refuses a disk that differs from the expected one, if one is expected.
    ///
    /// Errors: [`Kind::Corrupt`].
    pub fn check(self, expected: Option<DiskId>) -> Result<()> {
        self.check_as("disk", expected)
    }

    /// [`DiskId::check`] for a vault.
    pub fn check_vault(self, expected: Option<DiskId>) -> Result<()> {
        self.check_as("vault", expected)
    }

    fn check_as(self, what: &str, expected: Option<DiskId>) -> Result<()> {
        match expected {
            Some(expected) if expected != self => {
                Err(Error::new(Kind::Corrupt, format!("this is another {what} than the expected one"))
                    .found(format!("the ID {self}, and a passphrase that opens it"))
                    .expected(format!("the ID {expected}"))
                    .hint(format!(
                        "write nothing to it and trust no data of it: the {what} may have been exchanged; if you did that, \
                         give the ID that was found"
                    )))
            }
            _ => Ok(()),
        }
    }
}

impl OpenHeader {
    /// The ID of the disk or vault.
    pub fn id(&self) -> DiskId {
        DiskId::of(&self.master_keys[0], self.header.uuid)
    }

    /// Refuses a disk or vault that differs from the expected one, if one is expected.
    ///
    /// Errors: [`Kind::Corrupt`].
    pub fn check_id(&self, expected: Option<DiskId>) -> Result<()> {
        if self.header.format == FormatId::VAULT {
            self.id().check_vault(expected)
        } else {
            self.id().check(expected)
        }
    }
}

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for DiskId {
    type Err = Error;

    /// Reads the 32 hexadecimal digits that [`DiskId`] shows. Errors: [`Kind::Usage`].
    fn from_str(text: &str) -> Result<DiskId> {
        let refused = || {
            Error::new(Kind::Usage, "cannot read the ID of a disk or vault")
                .found(format!("{text:?}"))
                .expected(format!("{} hexadecimal digits, as `create` and `info` print them", 2 * LEN))
        };
        if text.len() != 2 * LEN {
            return Err(refused());
        }
        let mut id = [0; LEN];
        for (byte, digits) in id.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |at: usize| char::from(digits[at]).to_digit(16).ok_or_else(refused);
            *byte = (digit(0)? * 16 + digit(1)?) as u8;
        }
        Ok(DiskId(id))
    }
}

impl Serialize for DiskId {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values come from an HKDF written from RFC 5869 (Python's `hmac`).
    #[test]
    fn derivations_are_fixed() {
        let counting: [u8; 32] = std::array::from_fn(|i| i as u8);
        let vectors = [
            (counting, std::array::from_fn(|i| i as u8), "9564c49adcf33557307745630aa5f7ce"),
            ([7; 32], [9; 16], "637e2584c6024aea20281b8750069b68"),
        ];
        for (key, uuid, expected) in vectors {
            let id = DiskId::of(&Secret::copy_from(&key), Uuid(uuid));
            assert_eq!(id.to_string(), expected);
            assert_eq!(expected.parse::<DiskId>().unwrap(), id);
            assert_eq!(expected.to_uppercase().parse::<DiskId>().unwrap(), id);
        }
    }

    #[test]
    fn key_and_uuid_both_count() {
        let id = |key: u8, uuid: u8| DiskId::of(&Secret::copy_from(&[key; 32]), Uuid([uuid; 16]));
        assert_ne!(id(1, 1), id(2, 1));
        assert_ne!(id(1, 1), id(1, 2));
        assert!(id(1, 1).check(None).is_ok() && id(1, 1).check(Some(id(1, 1))).is_ok());
        let refused = id(1, 1).check(Some(id(2, 1))).unwrap_err();
        assert_eq!(refused.kind(), Kind::Corrupt);
        let words = refused.to_string();
        assert!(words.contains(&id(1, 1).to_string()) && words.contains(&id(2, 1).to_string()), "{words}");
        assert!(words.contains("another disk") && !words.contains("vault"), "{words}");
        let words = id(1, 1).check_vault(Some(id(2, 1))).unwrap_err().to_string();
        assert!(words.contains("another vault") && !words.contains("disk"), "{words}");
    }

    #[test]
    fn invalid_ids_are_refused() {
        let whole = "9564c49adcf33557307745630aa5f7ce";
        let others = ["", "9564", "+564c49adcf33557307745630aa5f7ce", "9564c49adcf33557307745630aa5f7cé"];
        for text in others.into_iter().map(str::to_owned).chain([format!("{whole}0"), format!(" {whole}")]) {
            assert_eq!(text.parse::<DiskId>().unwrap_err().kind(), Kind::Usage, "{text:?}");
        }
    }
}
