//! The end of the use of a simulated chip: a power cut, or the death of the process that uses it.

use crate::chip::ChipFault;
use lacuna_contracts::{Error, Kind};

/// The time and the outcome of a power cut, or of the death of the process that uses the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerCut {
    /// Operations that change the chip and still succeed.
    pub after: u64,
    /// Determines the state that the cut operation leaves.
    pub seed: u64,
}

/// The state of the operation in progress at the end of the use.
#[derive(Clone, Copy)]
pub(crate) enum CutOperation {
    /// It is torn, as this seed determines.
    Torn(u64),
    /// It is complete, and its caller does not learn that.
    Complete,
}

impl CutOperation {
    /// The seed of a torn operation.
    pub(crate) fn tear_seed(self) -> Option<u64> {
        match self {
            CutOperation::Torn(seed) => Some(seed),
            CutOperation::Complete => None,
        }
    }
}

/// Whether a chip can be used.
#[derive(Default)]
pub(crate) struct ChipPower {
    cut: Option<PowerCut>,
    /// Whether the process dies at the cut, and the chip keeps its power.
    process_dies: bool,
    is_off: bool,
    operations: u64,
}

impl ChipPower {
    /// Cuts the power at a later operation.
    pub(crate) fn cut_at(&mut self, cut: PowerCut) {
        (self.cut, self.process_dies) = (Some(cut), false);
    }

    /// Ends the process at a later operation.
    pub(crate) fn end_process_at(&mut self, cut: PowerCut) {
        (self.cut, self.process_dies) = (Some(cut), true);
    }

    /// Ends the use now.
    pub(crate) fn switch_off(&mut self) {
        self.is_off = true;
    }

    /// Whether the use has ended.
    pub(crate) fn is_off(&self) -> bool {
        self.is_off
    }

    /// Operations that began.
    pub(crate) fn operations(&self) -> u64 {
        self.operations
    }

    /// Fails if the use has ended.
    pub(crate) fn check_on(&self) -> Result<(), ChipFault> {
        if self.is_off { Err(power_is_off().into()) } else { Ok(()) }
    }

    /// Counts an operation. Returns what becomes of it if it is cut.
    pub(crate) fn begin(&mut self) -> Result<Option<CutOperation>, ChipFault> {
        self.check_on()?;
        self.operations += 1;
        let Some(cut) = &mut self.cut else { return Ok(None) };
        if cut.after > 0 {
            cut.after -= 1;
            return Ok(None);
        }
        self.is_off = true;
        match (self.process_dies, cut.seed % 3) {
            (true, 0) => Err(power_is_off().into()),
            (true, 1) => Ok(Some(CutOperation::Complete)),
            _ => Ok(Some(CutOperation::Torn(cut.seed))),
        }
    }
}

/// The error of every call after the end.
pub(crate) fn power_is_off() -> Error {
    Error::new(Kind::Io, "the power of the simulated chip is off")
}
