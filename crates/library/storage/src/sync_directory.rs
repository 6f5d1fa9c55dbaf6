//! Makes file names durable.

use lacuna_contracts::{Error, Result};
use std::fs::File;
use std::path::Path;

/// Makes the name of a new file durable by syncing its directory.
pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(parent).and_then(|dir| dir.sync_all());
    synced.map_err(|e| Error::io(format!("cannot sync the directory {}", parent.display()), &e))
}
