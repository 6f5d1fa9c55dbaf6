//! A vault as a mounted file system.

mod attributes;
mod caller;
mod capabilities;
mod copy;
mod filesystem;
mod listing;
mod mounted_vault;
mod nodes;
mod ops;
mod request;
mod seek;
mod status;
mod xattrs;

pub use mounted_vault::MountedVault;
pub use request::VaultRequest;
