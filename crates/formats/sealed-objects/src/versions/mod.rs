//! The version table, which counts the transactions on each object, and the seals that are compared
//! with it.

pub(crate) mod page;
pub(crate) mod page_age;
pub(crate) mod pages;
pub(crate) mod seal;
pub(crate) mod seals;
pub(crate) mod store;
pub(crate) mod table;
pub(crate) mod ticket;
