//! How a server tells its program of failures.

use lacuna_contracts::Error;
use std::sync::Arc;

/// Hears of failures of the disk that a client has met, and of clients that the system could not
/// let in. Called from any thread; must not wait.
pub type Reporter = Arc<dyn Fn(&Error) + Send + Sync>;
