//! The schemes as bodies, and each of them alone in the random-access model.

use crate::body::{Body, at, check_end, check_run, zero_from};
use crate::counter::{Counter, Pass, Session};
use crate::integrity::{Checked, Integrity};
use crate::keys::FileKeys;
use crate::low::{CompLow, PlainLow, RandLow};
use crate::mt::Mt;
use crate::scheme::Scheme;
use crate::section::Section;
use crate::selective::Selective;
use crate::untrusted::Untrusted;
use lacuna_core::{Budget, Error, Kind, Result};
use std::sync::Arc;

/// A body without blocks.
pub(crate) fn new_body(scheme: Scheme, keys: Arc<FileKeys>, block_size: usize) -> Box<dyn Body> {
    match scheme {
        Scheme::Mt => Box::new(Mt::new(keys, block_size)),
        Scheme::Rand => Box::new(Selective::<RandLow>::new(keys, block_size)),
        Scheme::Comp => Box::new(Selective::<CompLow>::new(keys, block_size)),
        Scheme::None => Box::new(Selective::<PlainLow>::new(keys, block_size)),
    }
}

/// The body of `blocks` blocks that a section of TS describes.
pub(crate) fn open_body(
    scheme: Scheme,
    keys: Arc<FileKeys>,
    block_size: usize,
    blocks: u64,
    section: &mut Section<'_>,
) -> Result<Box<dyn Body>> {
    Ok(match scheme {
        Scheme::Mt => Box::new(Mt::open(keys, block_size, blocks, section)?),
        Scheme::Rand => Box::new(Selective::<RandLow>::open(keys, block_size, blocks, section)?),
        Scheme::Comp => Box::new(Selective::<CompLow>::open(keys, block_size, blocks, section)?),
        Scheme::None => Box::new(Selective::<PlainLow>::open(keys, block_size, blocks, section)?),
    })
}

/// One scheme, whose state stays in memory: for measurements and comparisons. [`crate::ProtectedFile`] is what stores files.
pub struct Alone<const CODE: u8> {
    block_size: usize,
    pass: Pass,
    body: Box<dyn Body>,
}

/// MT-EINT with a wide tree of keyed tags.
pub type MtEint = Alone<{ Scheme::Mt.code() }>;
/// RAND-EINT.
pub type RandEint = Alone<{ Scheme::Rand.code() }>;
/// COMP-EINT.
pub type CompEint = Alone<{ Scheme::Comp.code() }>;

impl<const CODE: u8> Alone<CODE> {
    /// Bounds its caches.
    pub fn set_budget(&mut self, budget: Budget) {
        self.body.set_budget(budget);
    }
}

impl<const CODE: u8> Integrity for Alone<CODE> {
    fn init(keys: Arc<FileKeys>, block_size: usize, session: Session) -> Self {
        let scheme = Scheme::from_code(CODE).expect("the types above name schemes");
        Alone {
            block_size,
            pass: Pass::after(Counter::HOLE, session),
            body: new_body(scheme, keys, block_size),
        }
    }

    fn blocks(&self) -> u64 {
        self.body.blocks()
    }

    fn update(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()> {
        let count = check_run(self.block_size, first, plain.len())?;
        check_end(self.blocks(), first, count)?;
        self.body.write(us, &mut self.pass, first, plain)
    }

    fn check(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> Checked {
        let checked = check_run(self.block_size, first, plain.len())
            .and_then(|count| check_end(self.blocks(), first, count))
            .map_err(at(first))
            .and_then(|()| self.body.read(us, first, plain));
        zero_from(checked, first, self.block_size, plain)
    }

    fn append(&mut self, us: &dyn Untrusted, plain: &[u8]) -> Result<()> {
        let first = self.blocks();
        check_run(self.block_size, first, plain.len())?;
        self.body.write(us, &mut self.pass, first, plain)
    }

    fn delete(&mut self, us: &dyn Untrusted) -> Result<()> {
        let left = self.blocks().checked_sub(1);
        let left =
            left.ok_or_else(|| Error::new(Kind::Usage, "cannot delete a block of a file without blocks"))?;
        self.body.relieve(us)?;
        self.body.resize(us, left)
    }
}
