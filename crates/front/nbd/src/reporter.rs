//! The callback through which a server reports failures to its program.

use lacuna_contracts::Error;
use std::sync::Arc;

/// Receives failures of the disk on requests of clients, and failures of the system to let a client
/// in. Called from any thread; must not wait.
pub type Reporter = Arc<dyn Fn(&Error) + Send + Sync>;
