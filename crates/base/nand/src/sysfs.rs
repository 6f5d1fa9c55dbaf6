//! Reads one-line files of sysfs.

use lacuna_contracts::{Error, Kind, Result};
use std::path::Path;

pub(crate) fn text(path: &Path) -> Result<String> {
    let read =
        std::fs::read_to_string(path).map_err(|e| Error::io(format!("cannot read {}", path.display()), &e));
    Ok(read?.trim().to_owned())
}

pub(crate) fn number(path: &Path) -> Result<u32> {
    let text = text(path)?;
    text.parse().map_err(|_| {
        Error::new(Kind::Other, format!("cannot read {}", path.display())).found(text).expected("a number")
    })
}
