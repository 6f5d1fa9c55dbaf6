//! The schemes, and how a file's scheme is chosen.

/// The integrity scheme of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// MT-EINT (section 5.1): a tag for each block, in a tree of tags.
    Mt,
    /// RAND-EINT (section 5.2): a wide-block cipher under authentic counters; tags only for
    /// random-looking blocks.
    Rand,
    /// COMP-EINT (section 5.3): compressible blocks hold their tag inside; the tags of all other
    /// blocks are in a tree.
    Comp,
    /// Encryption only (AES-256-XTS), the baseline of benchmarks. Detects nothing, and is never
    /// offered to users.
    None,
}

impl Scheme {
    /// The schemes that users can choose.
    pub const OFFERED: [Scheme; 3] = [Scheme::Mt, Scheme::Rand, Scheme::Comp];

    /// The name on the command line and in the extended attribute.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Mt => "mt",
            Scheme::Rand => "rand",
            Scheme::Comp => "comp",
            Scheme::None => "none",
        }
    }

    /// The scheme's number in trusted storage.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Scheme::Mt => 0,
            Scheme::Rand => 1,
            Scheme::Comp => 2,
            Scheme::None => 3,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Scheme> {
        [Scheme::Mt, Scheme::Rand, Scheme::Comp, Scheme::None].into_iter().find(|s| s.code() == code)
    }
}

/// How a file gets its scheme.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Always this scheme.
    Fixed(Scheme),
    /// The scheme that suits the file's content and use (Table 7); it may change with them.
    #[default]
    Auto,
}

impl Choice {
    /// The name on the command line and in the extended attribute.
    pub const fn name(self) -> &'static str {
        match self {
            Choice::Fixed(scheme) => scheme.name(),
            Choice::Auto => "auto",
        }
    }

    /// Parses a choice by name: `mt`, `rand`, `comp` or `auto`.
    pub fn from_name(name: &[u8]) -> Option<Choice> {
        let fixed = Scheme::OFFERED.into_iter().map(Choice::Fixed);
        fixed.chain([Choice::Auto]).find(|choice| choice.name().as_bytes() == name)
    }
}
