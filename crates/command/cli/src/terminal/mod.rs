//! The terminal: console, passphrases and tokens, progress, names of settings, exit codes.

pub(crate) mod bad_runs;
pub(crate) mod console;
mod descriptor;
pub(crate) mod exit_code;
pub(crate) mod observer;
pub(crate) mod passphrase;
pub(crate) mod recovery;
pub(crate) mod settings;
pub(crate) mod token;
pub(crate) mod utc;
pub(crate) mod working;
