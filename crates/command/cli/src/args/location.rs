//! Parses locations on the command line.

use clap::builder::{OsStringValueParser, TypedValueParser};
use lacuna_storage::Location;

/// A parser of locations.
pub(super) fn location() -> impl TypedValueParser<Value = Location> {
    OsStringValueParser::new().try_map(|word| Location::from_os_str(&word))
}
