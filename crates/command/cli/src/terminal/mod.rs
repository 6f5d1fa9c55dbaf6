//! Input from the user and output for them: console, passphrases and tokens, signals, progress,
//! names of settings, exit codes.

pub(crate) mod bad_runs;
pub(crate) mod caught_signals;
pub(crate) mod console;
pub(crate) mod descriptor;
pub(crate) mod exit_code;
mod hidden_input;
pub(crate) mod mount_names;
pub(crate) mod observer;
pub(crate) mod option_names;
pub(crate) mod passphrase;
mod permission_advice;
pub(crate) mod progress;
pub(crate) mod recovery;
pub(crate) mod terminal_size;
pub(crate) mod token;
pub(crate) mod usage_error;
pub(crate) mod utc;
mod weak_passphrase;
