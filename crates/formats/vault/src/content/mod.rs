//! The content of files.

pub(crate) mod file_contents;
pub(crate) mod length;
pub(crate) mod open_file;
pub(crate) mod open_files;
pub(crate) mod part_codes;
