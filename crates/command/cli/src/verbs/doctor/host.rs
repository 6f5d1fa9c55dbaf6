//! The part of `doctor` that checks this machine: which server has the disk open, and whether it
//! can be mounted here.

use crate::terminal::console::Console;
use crate::verbs::doctor::report::DoctorReport;
use crate::verbs::rados_target;
use crate::verbs::status;
use crate::verbs::status::server_text::{
    address, changed_file, file_noun, is_deleted, no_answer, restart, resume_hint,
};
use lacuna_storage::{ClusterOptions, Kind, Location, PublicHeader, shell_word};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::geteuid;
use serde_json::Value;
use std::path::Path;

/// Checks open servers and the requirements of mounting.
pub(crate) fn check(
    location: &Location,
    cluster: &ClusterOptions,
    header: Option<&PublicHeader>,
    console: Console,
    findings: &mut DoctorReport,
) {
    check_servers(location, cluster, header, console, findings);
    if cfg!(feature = "fuse") {
        check_mounting(findings);
    }
}

fn check_servers(
    location: &Location,
    cluster: &ClusterOptions,
    header: Option<&PublicHeader>,
    console: Console,
    findings: &mut DoctorReport,
) {
    let mut servers = match status::find_servers_json(location, cluster, console) {
        Ok(servers) => servers,
        Err(e) => return findings.failed("open", &e),
    };
    // An unreadable header may belong to a format with levels.
    let redact = header.is_none_or(|header| header.format.has_levels());
    if redact {
        // Deniability contract: print neither the number of mounted levels, nor their mount points,
        // nor the failures of one of them.
        servers.sort_by_key(|server| (server["died"] != true, server["silent"] != true));
        servers.truncate(1);
    }
    servers.iter().for_each(|server| {
        let shown = if redact { String::new() } else { format!(" at {}", address(server)) };
        add_server(server, &shown, &rados_target::as_argument(location, cluster), redact, findings);
    });
    if !servers.is_empty() {
        return;
    }
    // Other processes with the disk open can only be found by the UUID in its header.
    let Some(header) = header else { return };
    match lacuna_storage::claiming_process(header.uuid) {
        Some(pid) => match status::location_of_process(pid, console) {
            Ok(Some(open)) => findings.note(
                "open",
                format!("this user has the same disk open as {open}"),
                format!(
                    "one of the two is a copy: `lacuna close {}` before you open this one",
                    shell_word(&open)
                ),
            ),
            Ok(None) => findings.note(
                "open",
                format!("open for writing in process {pid}, which is no server of this user"),
                format!("`ps -p {pid}` shows its name; wait for its end, or end it"),
            ),
            Err(e) => findings.failed("open", &e),
        },
        None => findings.fine("open", "open nowhere on this machine"),
    }
}

/// Adds the state of a server. `at`: where clients find it, or empty. `named`: the disk as an
/// argument of a command.
fn add_server(server: &Value, at: &str, named: &str, redact: bool, findings: &mut DoctorReport) {
    let pid = &server["pid"];
    if let Some(restart) = restart(server) {
        let found = format!("its server died{at}, and {restart}");
        findings.note("open", found, "try again in a moment");
    } else if server["died"] == true {
        let close = format!("`lacuna close {named}` clears that away; then open it again");
        findings.problem("open", Kind::Busy, format!("its server died and left it mounted{at}"), close);
    } else if server["silent"] == true {
        findings.problem(
            "open",
            Kind::TimedOut,
            format!("open{at}, and its server {}", no_answer(server)),
            resume_hint(server),
        );
    } else if is_deleted(server) {
        let remedy = if server["vault"] == true {
            "close it, and restore the directory from a backup"
        } else {
            "copy your data before you close it: closing it deletes its data"
        };
        findings.problem(
            "open",
            Kind::NotFound,
            format!("open{at} (process {pid}), and its {} was deleted", file_noun(server)),
            remedy,
        );
    } else {
        let open = format!("open{at} (process {pid})");
        let error = server["last_error"].as_str().filter(|_| !redact);
        let changed = changed_file(server);
        if let Some(error) = error {
            findings.problem(
                "open",
                Kind::Io,
                format!("{open}; the last request that failed: {error}"),
                "`lacuna check` of a disk, or `lacuna vault check` of a closed vault, lists the damage; if \
                 the medium failed, see to it, close it, and open it again",
            );
        }
        match changed {
            Some(changed) => findings.note("open", format!("{open}; {changed}"), ""),
            None if error.is_none() => findings.fine("open", open),
            None => {}
        }
    }
}

/// Checks the requirements of `open`. A missing one is not a problem of the disk.
fn check_mounting(findings: &mut DoctorReport) {
    let may = |path: &str| accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    let there = |path: &str| Path::new(path).exists();
    match (there("/dev/fuse"), may("/dev/fuse")) {
        (true, true) => findings.fine("fuse", "/dev/fuse can be used"),
        (true, false) => findings.note(
            "fuse",
            "this user may not use /dev/fuse",
            "`chmod 666 /dev/fuse`, as root; `serve` does not need it",
        ),
        (false, _) => {
            findings.note(
                "fuse",
                "there is no /dev/fuse",
                "`modprobe fuse`, as root; `serve` does not need it",
            );
        }
    }
    if geteuid().is_root() {
        if there("/dev/loop-control") {
            findings.fine("loop", "loop devices can be made");
        } else {
            findings.note(
                "loop",
                "there is no /dev/loop-control",
                "`modprobe loop`; `open --raw` and `serve` do not need it",
            );
        }
    } else if tool("fusermount3") {
        findings.fine("fusermount3", "there, so users other than root can mount");
    } else {
        findings.note(
            "fusermount3",
            "not found, so users other than root cannot mount",
            "install the package fuse3",
        );
    }
}

/// Whether a program is in a directory of `$PATH`.
fn tool(name: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|dir| dir.join(name).is_file())
}
