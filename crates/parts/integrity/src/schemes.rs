//! Constructors for the body of every scheme.

use crate::body::Body;
use crate::keys::FileKeys;
use crate::low::{CompLow, PlainLow, RandLow};
use crate::mt::Mt;
use crate::scheme::Scheme;
use crate::section::Section;
use crate::selective::Selective;
use lacuna_contracts::Result;
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
