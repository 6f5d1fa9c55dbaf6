//! The architecture is as `docs/architecture.md` shows it: what each crate depends on, the folders
//! of `crates/` as layers from which all arrows point down, and the circles of files inside a
//! crate. Each crate has one name, a format is named in its own files, files and functions stay
//! short, and documents name files, types and functions that are there. A plain `cargo build`
//! builds the command. Each check is a function of what it is given; a test beside it shows that it
//! finds what is wrong.

mod circles;
mod documents;
mod formats;
mod graph;
mod layers;
mod names;
mod page;
mod sizes;
mod sources;
mod workspace;
