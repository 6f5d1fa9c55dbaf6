//! Parses locations on the command line.

use crate::terminal::settings;
use clap::builder::{OsStringValueParser, TypedValueParser};
use lacuna_storage::Location;

/// A parser of locations.
pub(super) fn location() -> impl TypedValueParser<Value = Location> {
    OsStringValueParser::new().try_map(|word| Location::of_word(&word).map_err(|e| settings::words(&e)))
}
