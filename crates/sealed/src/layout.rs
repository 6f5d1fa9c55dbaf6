//! The three layouts of paper 004 (Figure 2): where the metadata of a block is kept.

use lacuna_core::{Advice, Error, Kind, Result, Setting};

/// Where the metadata of a block is kept (paper 004, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All metadata of a segment after its data: the paper's *object end*. The default.
    SegmentEnd,
    /// Each block followed by its metadata: the paper's *unaligned*.
    Interleaved,
    /// In an embedded key-value store: the paper's *OMAP*. Builds without the feature `kv-layout` refuse it.
    Kv,
}

impl Layout {
    /// All of them.
    pub const ALL: [Layout; 3] = [Layout::SegmentEnd, Layout::Interleaved, Layout::Kv];

    /// The name by which people ask for it.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::SegmentEnd => "segment-end",
            Layout::Interleaved => "interleaved",
            Layout::Kv => "kv",
        }
    }

    /// Refuses a layout that this build lacks. Creating and opening do so themselves, but when it is late: after what was there
    /// has been overwritten, or a passphrase asked for.
    ///
    /// Errors: [`Kind::Usage`].
    pub fn check_available(self) -> Result<()> {
        if self != Layout::Kv || cfg!(feature = "kv-layout") {
            return Ok(());
        }
        let other = Advice::from("use such a build, or for a new disk another ").setting(Setting::Layout);
        Err(Error::new(Kind::Usage, "this build of lacuna lacks the layout kv")
            .expected("a build with the feature `kv-layout`")
            .remedy(other))
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Layout::SegmentEnd => 0,
            Layout::Interleaved => 1,
            Layout::Kv => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Layout> {
        Layout::ALL.into_iter().find(|l| l.code() == code)
    }
}
