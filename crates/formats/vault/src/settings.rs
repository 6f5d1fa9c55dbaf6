//! The settings of the whole vault in the namespace.

use crate::ROOT;
use crate::namespace::{Namespace, tables};
use crate::nodes::inode_record::{choice_code, choice_from_code};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_integrity::Choice;

/// The version of the namespace's layout.
const VERSION: u8 = 1;

/// The settings of a vault.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// The scheme of files without a choice of their directory.
    pub(crate) choice: Choice,
    /// The first unused inode number.
    pub(crate) next_inode: u64,
}

impl Settings {
    /// Writes and returns the settings of a new vault.
    pub(crate) fn create(namespace: &Namespace, choice: Choice) -> Settings {
        namespace.put(&tables::meta("version"), Some(&[VERSION]));
        namespace.put(&tables::meta("choice"), Some(&[choice_code(choice)]));
        Settings { choice, next_inode: ROOT }
    }

    /// Reads the settings of a vault. Errors: [`Kind::Corrupt`] if they cannot be read, or another
    /// version wrote them.
    pub(crate) fn read(namespace: &Namespace) -> Result<Settings> {
        let bad = |found: &str, expected: String| {
            Error::new(Kind::Corrupt, "cannot open the vault")
                .found(found)
                .expected(expected)
                .hint("open it with a newer lacuna")
        };
        let byte = |name: &str| -> Result<Option<u8>> {
            Ok(namespace.get(&tables::meta(name))?.and_then(|bytes| bytes.first().copied()))
        };
        if byte("version")? != Some(VERSION) {
            return Err(bad("a namespace of another version", format!("version {VERSION}")));
        }
        let choice = byte("choice")?.and_then(choice_from_code).ok_or_else(|| {
            bad("an unknown integrity scheme", "the scheme that the vault was created with".into())
        })?;
        let next = namespace.get(&tables::meta("next inode"))?.filter(|bytes| bytes.len() == 8);
        let next = next.and_then(|bytes| bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)));
        let next_inode =
            next.ok_or_else(|| bad("no number of the next inode", "8 bytes in the namespace".into()))?;
        Ok(Settings { choice, next_inode })
    }

    /// Substitute settings for rescuing a vault with unreadable ones.
    pub(crate) fn unknown() -> Settings {
        Settings { choice: Choice::Auto, next_inode: ROOT + 1 }
    }
}
