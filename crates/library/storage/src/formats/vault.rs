//! The parameters in the header of a vault: the version of its format, and the default integrity
//! scheme of files.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | version, 1 |
//! | 2 | 1 | integrity: 0 = auto, 1 = mt, 2 = rand, 3 = comp |
//! | 3 | 1 | zero |

use crate::backing::BackingKind;
use crate::format::{Description, Format, FormatInfo, Params};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::FormatId;
use lacuna_integrity::{Choice, Scheme};

/// The version of vaults that this build creates and opens.
const VAULT_VERSION: u16 = 1;

/// Bytes of the parameters in the header.
const PARAMS_LEN: usize = 4;

/// The possible integrity schemes of files in a vault, in the order of their codes.
const CHOICES: [Choice; 4] =
    [Choice::Auto, Choice::Fixed(Scheme::Mt), Choice::Fixed(Scheme::Rand), Choice::Fixed(Scheme::Comp)];

/// The parameters of a vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VaultParams {
    /// The integrity scheme of files without one of their own or of their directory.
    pub integrity: Choice,
}

impl VaultParams {
    /// Parses the parameters from a header. Errors: [`Kind::NotFound`] for another version,
    /// [`Kind::Corrupt`] for malformed parameters.
    pub fn parse(bytes: &[u8]) -> Result<VaultParams> {
        let refused = |kind: Kind, found: String| {
            Error::new(kind, "cannot read the parameters of the vault").found(found)
        };
        let version = bytes.first_chunk().map(|version| u16::from_le_bytes(*version));
        if let Some(version) = version.filter(|version| *version != VAULT_VERSION) {
            return Err(refused(Kind::NotFound, format!("version {version} of the format"))
                .expected(format!("version {VAULT_VERSION}, which this build knows"))
                .hint("use a version of lacuna that knows it"));
        }
        let wrong =
            || refused(Kind::Corrupt, format!("the bytes {bytes:02x?}")).expected("parameters of a vault");
        let bytes: &[u8; PARAMS_LEN] = bytes.try_into().map_err(|_| wrong())?;
        let integrity = CHOICES.get(usize::from(bytes[2])).filter(|_| bytes[3] == 0);
        Ok(VaultParams { integrity: *integrity.ok_or_else(wrong)? })
    }

    /// Encodes the parameters for the header.
    pub fn encode(&self) -> [u8; PARAMS_LEN] {
        let code = CHOICES.iter().position(|choice| *choice == self.integrity);
        let code = code.expect("a vault has one of the offered choices") as u8;
        let [low, high] = VAULT_VERSION.to_le_bytes();
        [low, high, code, 0]
    }
}

/// The format in the headers of vaults. Vaults are not disks.
#[derive(Debug)]
pub(crate) struct VaultFormat;

impl Format for VaultFormat {
    fn info(&self) -> FormatInfo {
        FormatInfo { creatable_on: &[], ..FormatInfo::of(FormatId::VAULT, "vault", BackingKind::Directory) }
    }

    fn parse(&self, params: &[u8]) -> Result<Box<dyn Params>> {
        Ok(Box::new(VaultParams::parse(params)?))
    }
}

impl Params for VaultParams {
    fn format(&self) -> &'static dyn Format {
        &VaultFormat
    }

    fn describe(&self) -> Description {
        Description {
            version: Some(VAULT_VERSION.into()),
            cipher: self.integrity.name(),
            layout: Some("one backing file for each file".to_owned()),
            ..Description::of(0, 0)
        }
    }

    fn encode(&self) -> Vec<u8> {
        VaultParams::encode(self).to_vec()
    }

    fn resized_to(&self, _blocks: u64) -> Box<dyn Params> {
        Box::new(*self)
    }
}

/// The possible integrity schemes of files in a vault.
pub fn integrity_choices() -> [Choice; 4] {
    CHOICES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_survives_encoding_and_garbage_is_refused() {
        for integrity in CHOICES {
            let params = VaultParams { integrity };
            assert_eq!(VaultParams::parse(&params.encode()).unwrap(), params);
        }
        assert_eq!(VaultParams::parse(&[2, 0, 0, 0]).unwrap_err().kind(), Kind::NotFound);
        for bad in [&[1, 0][..], &[1, 0, 4, 0], &[1, 0, 0, 1], &[1, 0, 0, 0, 0], &[]] {
            assert_eq!(VaultParams::parse(bad).unwrap_err().kind(), Kind::Corrupt, "{bad:?}");
        }
    }
}
