//! In place of `kv.rs` in a build without the feature `kv-layout`: a store that there is none of.

use crate::layout::Layout;
use lacuna_core::{Budget, Result};
use lacuna_medium::Medium;
use std::sync::Arc;

/// No value of this type exists.
pub(crate) enum KvStore {}

impl KvStore {
    pub(crate) fn open(_: Arc<dyn Medium>, _: (u64, u64), _: usize, _: Budget) -> Result<Self> {
        Layout::Kv.check_available().map(|()| unreachable!("this build has no such layout"))
    }

    pub(crate) fn read(&self, _: u64, _: &mut [u8]) -> Result<()> {
        match *self {}
    }

    pub(crate) fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        match *self {}
    }

    pub(crate) fn prepare_growth(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn commit(&self) -> Result<()> {
        match *self {}
    }
}
