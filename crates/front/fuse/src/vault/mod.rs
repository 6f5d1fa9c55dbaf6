//! A vault as a mounted file system.

mod attributes;
mod copy;
mod filesystem;
mod front;
mod listing;
mod nodes;
mod request;
mod seek;
mod served;
mod status;

pub use request::VaultRequest;
pub use served::MountedVault;
