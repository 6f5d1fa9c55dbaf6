//! Test doubles that do something around some operations of a medium: what they do not name is
//! passed on.

use lacuna_contracts::Result;
use lacuna_medium::{Medium, ReadExtent, WriteExtent};

/// The operations that a double passes on as they are to the medium in its field of this name.
#[macro_export]
macro_rules! pass_on {
    ($inner:ident) => {
        fn len(&self) -> u64 {
            self.$inner.len()
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

        fn allocate(&self, offset: u64, len: u64) -> lacuna_contracts::Result<bool> {
            self.$inner.allocate(offset, len)
        }
    };
}
pub(crate) use pass_on;

/// What is done around the operations of the medium below.
pub trait Around: Send + Sync + 'static {
    /// The medium below.
    fn below(&self) -> &dyn Medium;

    /// A read.
    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.below().read(batch)
    }

    /// A write.
    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.below().write(batch)
    }

    /// A durable write. It does not go through [`Around::write`] and [`Around::sync`].
    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.below().write_durable(batch)
    }

    /// A sync.
    fn sync(&self) -> Result<()> {
        self.below().sync()
    }

    /// A discard.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.below().discard(offset, len)
    }
}

/// The medium that it makes of the one below.
pub struct Surrounded<A>(pub A);

impl<A: Around> Medium for Surrounded<A> {
    fn len(&self) -> u64 {
        self.0.below().len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.0.read(batch)
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
        self.0.below().forget_cached()
    }

    fn expect_random_reads(&self) {
        self.0.below().expect_random_reads();
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.0.below().will_read(offset, len);
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<bool> {
        self.0.below().allocate(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.below().set_len(len)
    }
}
