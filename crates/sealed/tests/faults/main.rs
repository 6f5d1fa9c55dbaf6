//! A medium that fails: the disk says so, takes no more writes, and after mending holds what it promised.

#[path = "../fixture/mod.rs"]
mod fixture;
mod full;
mod homeward;
mod model;
mod once;
mod reads;
mod silent;
