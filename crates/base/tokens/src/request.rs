//! A request to a token: the disk and the name of the secret, and the user.

use lacuna_contracts::{Result, SecretVec};
use sha2::{Digest, Sha256};

/// The user of a token.
pub trait TokenUser {
    /// Asks for a PIN.
    fn ask_pin(&self, prompt: &str) -> Result<SecretVec>;

    /// Tells the user the action that the token needs now.
    fn show_action(&self, what: &str);

    /// Tells the user that the token now stores something, even if enrolment fails later.
    fn report_stored(&self, what: &str);
}

/// The disk and the name of a secret.
pub(crate) struct SecretRequest<'a> {
    /// The UUID of the disk.
    pub(crate) uuid: &'a [u8; 16],
    /// The name that the user chose for the secret; empty if none.
    pub(crate) name: &'a str,
    /// The user of the token.
    pub(crate) user: &'a dyn TokenUser,
}

impl SecretRequest<'_> {
    /// The label of this secret among all secrets of the token: the input of the token's
    /// computation.
    pub(crate) fn salt(&self) -> [u8; 32] {
        // The UUID has a fixed length and the name comes last, so different requests have different
        // inputs.
        Sha256::new()
            .chain_update(b"lacuna token v1")
            .chain_update(self.uuid)
            .chain_update(self.name)
            .finalize()
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user that must not be asked.
    struct UnaskedUser;

    impl TokenUser for UnaskedUser {
        fn ask_pin(&self, prompt: &str) -> Result<SecretVec> {
            panic!("asked for {prompt}")
        }

        fn show_action(&self, what: &str) {
            panic!("told to {what}")
        }

        fn report_stored(&self, what: &str) {
            panic!("told of {what}")
        }
    }

    #[test]
    fn the_salt_is_pinned_and_differs_by_disk_and_name() {
        let salt = |uuid: u8, name| SecretRequest { uuid: &[uuid; 16], name, user: &UnaskedUser }.salt();
        // From `printf 'lacuna token v1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1home' | sha256sum`. A change
        // makes enrolled tokens useless.
        let (high, low) =
            (0x0f3e_2b9a_73bb_a7dc_2164_30bd_f3ca_3d0f_u128, 0xb4d9_6b77_64c9_03f0_be9d_c0d4_87e4_8851_u128);
        assert_eq!(salt(1, "home")[..], [high.to_be_bytes(), low.to_be_bytes()].concat());
        assert_ne!(salt(1, ""), salt(2, ""));
        assert_ne!(salt(1, ""), salt(1, "home"));
    }
}
