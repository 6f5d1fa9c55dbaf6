//! A medium that fails: the disk says so, takes no more writes, and after mending holds what it
//! promised.

mod destage;
#[path = "../fixture/mod.rs"]
mod fixture;
mod full;
mod model;
mod once;
mod reads;
mod silent;
