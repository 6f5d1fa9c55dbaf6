//! The anchor: what this machine remembers of a vault where the adversary cannot reach, a few
//! hundred bytes.

use lacuna_contracts::{Error, Kind, Result};
use parking_lot::Mutex;

/// The last commit that this machine made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorState {
    /// The vault.
    pub uuid: [u8; 16],
    /// This machine, by a random number that it drew for this vault.
    pub machine: [u8; 16],
    /// Number of the commit.
    pub number: u64,
    /// Digest of the commit, which stands for the whole history before it.
    pub digest: [u8; 32],
    /// When it was made, in seconds since 1970: for people.
    pub time: u64,
}

/// A place for one [`AnchorState`] that the adversary cannot roll back. It never goes back itself.
pub trait Anchor: Send + Sync {
    /// What it remembers; nothing before the first advance.
    fn load(&self) -> Result<Option<AnchorState>>;
    /// Remembers `next` instead of `expected`, durably: whole or not at all.
    ///
    /// Errors: [`Kind::Changed`] if it remembers something else than `expected`, [`Kind::Usage`] if
    /// `next` is of another vault or not newer. A refusal ([`Kind::is_refusal`]), which a sync
    /// never is, leaves it as it was: the same may be asked again.
    fn advance(&self, expected: Option<&AnchorState>, next: &AnchorState) -> Result<()>;
}

/// Refuses an advance that is none.
pub(crate) fn check_advance(
    found: Option<&AnchorState>,
    expected: Option<&AnchorState>,
    next: &AnchorState,
) -> Result<()> {
    if found != expected {
        return Err(Error::new(Kind::Changed, "the anchor cannot advance")
            .found(found.map_or("no state".into(), |at| format!("state {}", at.number)))
            .expected(expected.map_or("no state".into(), |at| format!("state {}", at.number)))
            .remedy("another program has used this vault meanwhile; close the vault and open it again"));
    }
    match found {
        Some(found) if found.uuid != next.uuid || found.number >= next.number => {
            Err(Error::new(Kind::Usage, "the anchor does not go back")
                .found(format!("state {} after state {}", next.number, found.number))
                .expected("a newer state of the same vault"))
        }
        _ => Ok(()),
    }
}

/// An anchor in memory: for tests, and for vaults that live no longer than the process.
#[derive(Default)]
pub struct MemoryAnchor(Mutex<Option<AnchorState>>);

impl MemoryAnchor {
    /// One that remembers this.
    pub fn new(state: Option<AnchorState>) -> MemoryAnchor {
        MemoryAnchor(Mutex::new(state))
    }
}

impl Anchor for MemoryAnchor {
    fn load(&self) -> Result<Option<AnchorState>> {
        Ok(self.0.lock().clone())
    }

    fn advance(&self, expected: Option<&AnchorState>, next: &AnchorState) -> Result<()> {
        let mut state = self.0.lock();
        check_advance(state.as_ref(), expected, next)?;
        *state = Some(next.clone());
        Ok(())
    }
}
