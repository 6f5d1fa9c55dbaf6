//! A failing medium: the disk reports errors, takes no more writes, and after repair holds
//! everything that it promised.

mod destage;
#[path = "../fixture/mod.rs"]
mod fixture;
mod full;
mod model;
mod reads;
mod silent;
mod single_faults;
