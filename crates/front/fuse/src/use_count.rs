//! The count of requests that use a mount. A server with an idle timeout ends when the count stays
//! the same for that time.

use lacuna_mount::Watch;
use std::sync::Arc;

/// A value that answers requests. The two access methods are the only way to it, so that each
/// request states whether it counts as use.
pub(crate) struct UseCounted<T> {
    served: T,
    watch: Arc<Watch>,
}

impl<T> UseCounted<T> {
    /// Counts the use of `served` in `watch`.
    pub(crate) fn new(served: T, watch: Arc<Watch>) -> Self {
        UseCounted { served, watch }
    }

    /// For a request that reads or changes something: it counts as use.
    pub(crate) fn by_use(&self) -> &T {
        self.watch.asked();
        &self.served
    }

    /// For all other requests, such as the kernel's own, and queries that monitors send to every
    /// file system repeatedly: if they counted, no server would ever end.
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
