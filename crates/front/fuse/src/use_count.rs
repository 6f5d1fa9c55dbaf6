//! The count of requests that use what is mounted. A server with a time limit without use ends when
//! it stands still for so long.

use lacuna_mount::Watch;
use std::sync::Arc;

/// What requests are answered from. There is no way to it but these two, so that each request says
/// whether it is use.
pub(crate) struct UseCounted<T> {
    served: T,
    watch: Arc<Watch>,
}

impl<T> UseCounted<T> {
    /// The use of `served` is counted in `watch`.
    pub(crate) fn new(served: T, watch: Arc<Watch>) -> Self {
        UseCounted { served, watch }
    }

    /// For a request that reads or changes something: it counts as use.
    pub(crate) fn by_use(&self) -> &T {
        self.watch.asked();
        &self.served
    }

    /// For all else, such as what the kernel does by itself, and what monitors ask of every file
    /// system again and again: that would keep each open for ever.
    pub(crate) fn without_use(&self) -> &T {
        &self.served
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_alone_is_counted() {
        let watch = Arc::new(Watch::default());
        let counted = UseCounted::new(7, Arc::clone(&watch));
        assert_eq!((*counted.without_use(), watch.requests()), (7, 0));
        assert_eq!((*counted.by_use(), watch.requests()), (7, 1));
    }
}
