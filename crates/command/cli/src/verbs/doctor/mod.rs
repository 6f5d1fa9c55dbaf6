//! `doctor`: runs all checks that need no passphrase, and prints problems and advice.
//!
//! Deniability contract: its sources are readable without a passphrase, so its output does not
//! depend on hidden levels.

mod findings;
mod host;
mod medium;

use crate::args::DoctorArgs;
use crate::terminal::console::{self, Console};
use crate::verbs::doctor::findings::Findings;
use lacuna_storage::{Error, Result};

/// `lacuna doctor`.
pub(crate) fn run(args: &DoctorArgs, console: Console) -> Result<()> {
    let location = &args.location;
    let cluster = args.cluster.of(location)?;
    let mut findings = Findings::default();
    let header = medium::look(location, &cluster, &mut findings);
    host::look(location, &cluster, header.as_ref(), console, &mut findings);
    if args.json {
        console::json(&findings.to_json(&location.to_string()))?;
    } else {
        console::bytes(findings.words().as_bytes())?;
    }
    match findings.worst() {
        None => Ok(()),
        Some(kind) => {
            let wrong = findings.count_wrong();
            let found = if wrong == 1 {
                "one thing that is wrong".to_owned()
            } else {
                format!("{wrong} things that are wrong")
            };
            Err(Error::new(kind, format!("{location} is not as it should be"))
                .found(found)
                .remedy("what to do stands with each"))
        }
    }
}
