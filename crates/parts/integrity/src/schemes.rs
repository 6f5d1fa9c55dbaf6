//! Constructors for the layer of every scheme.

pub(crate) mod block_ciphers;
pub(crate) mod compress;
pub(crate) mod entropy;
pub(crate) mod mt;
pub(crate) mod scheme_layer;
pub(crate) mod selective;

use crate::keys::FileKeys;
use crate::scheme::Scheme;
use crate::schemes::block_ciphers::{CompCipher, RandCipher, XtsCipher};
use crate::schemes::mt::Mt;
use crate::schemes::scheme_layer::SchemeLayer;
use crate::schemes::selective::Selective;
use crate::section::Section;
use lacuna_contracts::Result;
use std::sync::Arc;

/// A layer without blocks.
pub(crate) fn new_layer(scheme: Scheme, keys: Arc<FileKeys>, block_size: usize) -> Box<dyn SchemeLayer> {
    match scheme {
        Scheme::Mt => Box::new(Mt::new(keys, block_size)),
        Scheme::Rand => Box::new(Selective::<RandCipher>::new(keys, block_size)),
        Scheme::Comp => Box::new(Selective::<CompCipher>::new(keys, block_size)),
        Scheme::None => Box::new(Selective::<XtsCipher>::new(keys, block_size)),
    }
}

/// The layer of `blocks` blocks that a section of TS describes.
pub(crate) fn open_layer(
    scheme: Scheme,
    keys: Arc<FileKeys>,
    block_size: usize,
    blocks: u64,
    section: &mut Section<'_>,
) -> Result<Box<dyn SchemeLayer>> {
    Ok(match scheme {
        Scheme::Mt => Box::new(Mt::open(keys, block_size, blocks, section)?),
        Scheme::Rand => Box::new(Selective::<RandCipher>::open(keys, block_size, blocks, section)?),
        Scheme::Comp => Box::new(Selective::<CompCipher>::open(keys, block_size, blocks, section)?),
        Scheme::None => Box::new(Selective::<XtsCipher>::open(keys, block_size, blocks, section)?),
    })
}
