//! A vault as a mounted file system.

mod attributes;
mod caller;
mod copy;
mod filesystem;
mod front;
mod listing;
mod nodes;
mod request;
mod seek;
mod served;
mod status;
mod xattrs;

pub use request::VaultRequest;
pub use served::MountedVault;
