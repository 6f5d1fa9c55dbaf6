//! The count of requests that use a mount. A server with an idle timeout ends when the count stays
//! the same for that time.

use lacuna_mount::SessionMonitor;
use std::sync::Arc;

/// A value that answers requests. The two access methods are the only way to it, so that each
/// request states whether it counts as use.
pub(crate) struct UseCounted<T> {
    value: T,
    watch: Arc<SessionMonitor>,
}

impl<T> UseCounted<T> {
    /// Counts the use of `served` in `watch`.
    pub(crate) fn new(served: T, watch: Arc<SessionMonitor>) -> Self {
        UseCounted { value: served, watch }
    }

    /// For a request that reads or changes something: it counts as use.
    pub(crate) fn counted(&self) -> &T {
        self.watch.count_request();
        &self.value
    }

    /// For all other requests, such as the kernel's own, and queries that monitors send to every
    /// file system repeatedly: if they counted, no server would ever end.
    pub(crate) fn uncounted(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counted_access_counts_as_use() {
        let watch = Arc::new(SessionMonitor::default());
        let counted = UseCounted::new(7, Arc::clone(&watch));
        assert_eq!((*counted.uncounted(), watch.requests()), (7, 0));
        assert_eq!((*counted.counted(), watch.requests()), (7, 1));
    }
}
