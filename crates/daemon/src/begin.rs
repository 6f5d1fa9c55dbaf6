//! Asking a running server for longer work on what it has open.

use crate::close;
use crate::exchange::Conversation;
use lacuna_core::Result;
use std::path::Path;

/// Asks the server of what is mounted at `mountpoint`.
///
/// Errors: [`Kind::NotFound`](lacuna_core::Kind::NotFound) if nothing is open there,
/// [`Kind::TimedOut`](lacuna_core::Kind::TimedOut) if the server does not answer, and its refusal.
pub fn begin_mounted(mountpoint: &Path, request: &str, run_base: Option<&Path>) -> Result<Conversation> {
    let socket = close::control_socket(mountpoint, run_base)?;
    Conversation::begin(&socket, request, format!("the server of {}", mountpoint.display()))
}

/// Asks the server of a disk that is served without being mounted, at its [`StatusSocket`](crate::StatusSocket). Errors: the same.
pub fn begin_served(socket: &Path, request: &str) -> Result<Conversation> {
    Conversation::begin(socket, request, "the server of the disk".to_owned())
}
