//! Servers of other users, which root sees.

pub(crate) mod all_users;
pub(crate) mod other_users;
pub(crate) mod user_base;
pub(crate) mod user_server;
