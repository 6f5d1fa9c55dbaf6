//! The anchor: a few hundred bytes of trusted storage with this machine's memory of a vault.

pub(crate) mod file;

use crate::commits::codec::Commit;
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// The last commit that this machine made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorState {
    /// The vault's UUID.
    pub uuid: [u8; 16],
    /// This machine's random number for this vault.
    pub machine: [u8; 16],
    /// The number of the commit.
    pub number: u64,
    /// The digest of the commit, which covers the whole history before it.
    pub digest: [u8; 32],
    /// The time of the commit, in seconds since 1970, for messages.
    pub time: u64,
}

/// Storage for one [`AnchorState`] that the adversary cannot roll back. It only advances.
pub trait Anchor: Send + Sync {
    /// The anchored state; `None` before the first advance.
    fn load(&self) -> Result<Option<AnchorState>>;
    /// Replaces `expected` by `next`, durably and atomically.
    ///
    /// Errors: [`Kind::Changed`] if the anchored state is not `expected`, [`Kind::Usage`] if `next`
    /// is of another vault or not newer. A refusal ([`Kind::is_refusal`]), which a sync never is,
    /// leaves it unchanged: the call may be repeated.
    fn advance(&self, expected: Option<&AnchorState>, next: &AnchorState) -> Result<()>;
}

/// Checks that an advance is valid.
pub(crate) fn check_advance(
    found: Option<&AnchorState>,
    expected: Option<&AnchorState>,
    next: &AnchorState,
) -> Result<()> {
    if found != expected {
        return Err(Error::new(Kind::Changed, "the anchor cannot advance")
            .found(found.map_or("no state".into(), |at| format!("state {}", at.number)))
            .expected(expected.map_or("no state".into(), |at| format!("state {}", at.number)))
            .hint("another program has used this vault meanwhile; close the vault and open it again"));
    }
    match found {
        Some(found) if found.uuid != next.uuid || found.number >= next.number => {
            Err(Error::new(Kind::Usage, "the anchor cannot move back")
                .found(format!("state {} after state {}", next.number, found.number))
                .expected("a newer state of the same vault"))
        }
        _ => Ok(()),
    }
}

/// The anchor of one vault.
pub(crate) struct MachineAnchor {
    anchor: Arc<dyn Anchor>,
    /// The vault's UUID.
    uuid: [u8; 16],
}

impl MachineAnchor {
    /// The anchor of the vault with this UUID.
    pub(crate) fn new(anchor: Arc<dyn Anchor>, uuid: [u8; 16]) -> MachineAnchor {
        MachineAnchor { anchor, uuid }
    }

    /// Advances the anchor from the state `from` to a durable commit of this machine, made at
    /// `time`. Returns the new state.
    ///
    /// Errors: as [`Anchor::advance`].
    pub(crate) fn advance(
        &self,
        from: Option<&AnchorState>,
        commit: &Commit,
        time: u64,
    ) -> Result<AnchorState> {
        let Commit { machine, number, digest, .. } = *commit;
        let next = AnchorState { uuid: self.uuid, machine, number, digest, time };
        self.anchor.advance(from, &next)?;
        Ok(next)
    }
}

/// An anchor in memory, for tests and for vaults that live no longer than the process.
#[derive(Default)]
pub struct MemoryAnchor(Mutex<Option<AnchorState>>);

impl MemoryAnchor {
    /// An anchor with this state.
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
