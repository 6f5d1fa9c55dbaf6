//! The architecture is as `docs/architecture.md` shows it: the dependencies of each crate, the
//! folders of `crates/` as layers with arrows that only point down, and the cycles of files inside
//! a crate. Each crate has one name, a format is named in its own files only, files and functions
//! are short, and documents name only existing files, types and functions, with links that lead
//! somewhere. A plain `cargo build` builds the command. Each check is a function of its input; a
//! test beside it shows that it finds violations.

mod cycles;
mod documents;
mod formats;
mod graph;
mod language;
mod layers;
mod links;
mod names;
mod page;
mod sizes;
mod sources;
mod workspace;
