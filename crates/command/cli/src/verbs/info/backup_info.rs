//! `info` of a file with a backup of a header: the disk or vault that it belongs to, and the
//! commands that take it.

use crate::args::InfoArgs;
use crate::terminal::console;
use crate::terminal::utc::utc;
use crate::verbs::header::TestedBackup;
use lacuna_daemon::set_path;
use lacuna_storage::header::HeaderBackup;
use lacuna_storage::{Error, Result, shell_word};
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// `lacuna info` of a file with this backup.
pub(crate) fn run(backup: &HeaderBackup, args: &InfoArgs) -> Result<()> {
    // Refuses options that do not apply to a path.
    args.cluster.options_for(&args.location)?;
    let shown = args.location.to_string();
    let tested = TestedBackup::of(backup, &args.passphrase, &shown)?;
    // The header has no date. The file has that of its last change, as do most copies of it.
    let about = args.location.path().map(fs::metadata).transpose();
    let about = about.map_err(|e| Error::io(format!("cannot look at {shown}"), &e))?;
    let changed = about.map(|about| about.mtime().unsigned_abs());
    if args.json {
        let mut out = tested.to_json();
        set_path(&mut out, "location", args.location.to_os_string());
        out["backup"] = json!(true);
        out["changed"] = json!(changed);
        return console::json(&out);
    }
    let named = shell_word(&shown);
    let mut rows = vec![("location", shown), ("content", tested.description())];
    rows.extend(changed.map(|changed| ("file changed", utc(changed))));
    rows.extend(tested.rows());
    rows.push(("to test it", format!("`lacuna header check {named}`")));
    rows.push(("to use it", format!("`lacuna header restore LOCATION {named}`")));
    console::table(rows)
}
