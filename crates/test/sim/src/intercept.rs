//! A base for test doubles that intercept some operations of a medium and pass on the remaining
//! ones.

use lacuna_contracts::Result;
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use std::sync::Arc;

/// Passes these operations on unchanged to the medium in the field of the given name. Discreet
/// reads become reads of the wrapper, so it misses none.
#[macro_export]
macro_rules! delegate_rest {
    ($inner:ident) => {
        fn len(&self) -> u64 {
            self.$inner.len()
        }

        fn read_discreetly(
            &self,
            batch: &mut [lacuna_medium::ReadExtent<'_>],
        ) -> lacuna_contracts::Result<()> {
            self.read(batch)
        }

        fn forget_cached(&self) -> lacuna_contracts::Result<()> {
            self.$inner.forget_cached()
        }

        fn expect_random_reads(&self) {
            self.$inner.expect_random_reads();
        }

        fn will_read(&self, offset: u64, len: u64) {
            self.$inner.will_read(offset, len);
        }

        fn will_sync(&self, offset: u64, len: u64) {
            self.$inner.will_sync(offset, len);
        }

        fn allocate(&self, offset: u64, len: u64) -> lacuna_contracts::Result<bool> {
            self.$inner.allocate(offset, len)
        }
    };
}
pub(crate) use delegate_rest;

/// Intercepts operations of the medium below. Each default passes the operation on.
pub trait MediumInterceptor: Send + Sync + 'static {
    /// The medium below.
    fn inner(&self) -> &dyn Medium;

    /// Intercepts a read.
    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.inner().read(batch)
    }

    /// Intercepts a write.
    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.inner().write(batch)
    }

    /// Intercepts a durable write, which does not go through [`MediumInterceptor::write`]
    /// and [`MediumInterceptor::sync`].
    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.inner().write_durable(batch)
    }

    /// Intercepts a sync.
    fn sync(&self) -> Result<()> {
        self.inner().sync()
    }

    /// Intercepts the notice that a range is read soon.
    fn will_read(&self, offset: u64, len: u64) {
        self.inner().will_read(offset, len);
    }

    /// Intercepts the notice that a range is synced soon.
    fn will_sync(&self, offset: u64, len: u64) {
        self.inner().will_sync(offset, len);
    }

    /// Intercepts a discard.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner().discard(offset, len)
    }

    /// Intercepts the request for another handle. The default has none, since its operations would
    /// not be intercepted.
    fn reopened(&self) -> Result<Option<Arc<dyn Medium>>> {
        Ok(None)
    }
}

/// The medium with its operations intercepted.
pub struct InterceptedMedium<A>(pub A);

impl<A: MediumInterceptor> Medium for InterceptedMedium<A> {
    fn len(&self) -> u64 {
        self.0.inner().len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.0.read(batch)
    }

    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.0.write(batch)
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.0.write_durable(batch)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn forget_cached(&self) -> Result<()> {
        self.0.inner().forget_cached()
    }

    fn expect_random_reads(&self) {
        self.0.inner().expect_random_reads();
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.0.will_read(offset, len);
    }

    fn will_sync(&self, offset: u64, len: u64) {
        self.0.will_sync(offset, len);
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<bool> {
        self.0.inner().allocate(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.discard(offset, len)
    }

    fn reopened(&self) -> Result<Option<Arc<dyn Medium>>> {
        self.0.reopened()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.inner().set_len(len)
    }
}
