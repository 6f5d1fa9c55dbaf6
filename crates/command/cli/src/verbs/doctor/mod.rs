//! `doctor`: runs all checks that need no passphrase, and prints problems and advice.
//!
//! Deniability contract: its sources are readable without a passphrase, so its output does not
//! depend on hidden levels.

mod host;
mod medium;
mod report;

use crate::args::DoctorArgs;
use crate::terminal::console::{self, Console};
use crate::verbs::doctor::report::DoctorReport;
use lacuna_storage::{Error, Result};

/// `lacuna doctor`.
pub(crate) fn run(args: &DoctorArgs, console: Console) -> Result<()> {
    let location = &args.location;
    let cluster = args.cluster.options_for(location)?;
    let mut findings = DoctorReport::default();
    let header = medium::check(location, &cluster, &mut findings);
    host::check(location, &cluster, header.as_ref(), console, &mut findings);
    if args.json {
        console::json(&findings.to_json(location))?;
    } else {
        console::bytes(findings.to_text().as_bytes())?;
    }
    match findings.worst() {
        None => Ok(()),
        Some(kind) => {
            let wrong = findings.count_problems();
            let found = if wrong == 1 { "1 problem".to_owned() } else { format!("{wrong} problems") };
            Err(Error::new(kind, format!("{location} has problems"))
                .found(found)
                .hint("follow the advice after each problem"))
        }
    }
}
