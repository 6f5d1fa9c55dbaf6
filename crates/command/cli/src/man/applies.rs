//! The sections of a manual page that depend on the options and arguments of its command: signals,
//! exit codes, environment and files. A new command gets these sections automatically.

use crate::man::text::{Entry, entries, shared};
use clap::Command;

/// The property of a command that an entry of its manual page depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// None: the entry is for every command.
    Nothing,
    /// It takes a disk, a vault, a mount point or a file.
    Place,
    /// It takes a place, or looks at the disks of other users.
    Permission,
    /// It looks for servers, or is one.
    Servers,
    /// It takes a passphrase.
    Passphrase,
    /// It reads the data or the header of a disk or vault.
    Looking,
    /// It uses the anchors of vaults.
    Anchor,
    /// It detects older states.
    Older,
    /// It uses a Ceph cluster.
    Cluster,
    /// It mounts or unmounts.
    Mounting,
    /// It listens for clients.
    Listening,
    /// It purges flash.
    Purging,
    /// It writes hidden data, or waits for hidden writes.
    Cover,
}

impl Need {
    /// Whether the command has this property. The page of `lacuna` itself has all entries.
    fn of(self, command: &Command) -> bool {
        let has = |name: &str| command.get_arguments().any(|arg| arg.get_id() == name);
        let takes = |names: &[&str]| names.iter().any(|name| has(name));
        let place = ["location", "mountpoints", "targets", "target", "file", "passphrase", "key_file"];
        let mounting = takes(&["mountpoints", "targets"]);
        command.get_name() == "lacuna"
            || match self {
                Need::Nothing => true,
                Need::Place => takes(&place),
                Need::Permission => takes(&place) || has("all_users"),
                Need::Servers => takes(&["location", "mountpoints", "targets", "target", "all_users"]),
                Need::Passphrase => has("key_file"),
                Need::Looking => {
                    has("key_file") || ["doctor", "info", "backup"].contains(&command.get_name())
                }
                Need::Anchor => has("anchor"),
                Need::Older => takes(&["anchor", "older"]),
                Need::Cluster => has("ceph_conf"),
                Need::Mounting => mounting,
                Need::Listening => takes(&["listen"]),
                Need::Purging => has("purge_period") || ["purge", "erase"].contains(&command.get_name()),
                Need::Cover => takes(&["cover_timeout"]) || mounting,
            }
    }
}

/// The property that makes a command return an exit code.
fn need_of_code(code: &str) -> Need {
    match code {
        "2" => Need::Permission,
        "4" | "5" => Need::Place,
        "3" => Need::Passphrase,
        "10" => Need::Looking,
        "11" => Need::Older,
        "12" => Need::Purging,
        "14" => Need::Cover,
        _ => Need::Nothing,
    }
}

/// The property that makes a command read a variable.
fn need_of_variable(name: &str) -> Need {
    match name {
        "XDG_RUNTIME_DIR" => Need::Servers,
        "XDG_STATE_HOME" | "HOME" => Need::Anchor,
        "CEPH_CONF" => Need::Cluster,
        "PATH" => Need::Mounting,
        "LISTEN_FDS, LISTEN_PID" => Need::Listening,
        _ => Need::Nothing,
    }
}

/// The exit codes of a command.
pub(crate) fn exit_codes(command: &Command) -> Vec<Entry> {
    let mut codes = entries("exit-status", "EXIT STATUS");
    codes.retain(|(code, _)| need_of_code(code).of(command));
    codes
}

/// The variables that a command reads.
pub(crate) fn environment(command: &Command) -> Vec<Entry> {
    let mut variables = entries("environment", "ENVIRONMENT");
    variables.retain(|(name, _)| need_of_variable(name).of(command));
    variables
}

/// The files of a command: its own, then the files of its options.
pub(crate) fn files(command: &Command, own: Vec<Entry>) -> Vec<Entry> {
    let mut files = own;
    for (need, name) in [(Need::Servers, "run"), (Need::Anchor, "anchors"), (Need::Cluster, "ceph-conf")] {
        let entry = shared(name);
        if need.of(command) && !files.contains(&entry) {
            files.push(entry);
        }
    }
    files
}

/// The signals of a command: its own if it handles any, otherwise the effect of an early end on a
/// disk.
pub(crate) fn signals(command: &Command, own: Vec<Entry>) -> Vec<Entry> {
    if !own.is_empty() || command.get_name() == "lacuna" || !Need::Passphrase.of(command) {
        return own;
    }
    vec![shared(if command.get_name() == "create" { "creation-interrupted" } else { "interrupted" })]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_read_for_a_reason() {
        for (name, _) in entries("environment", "ENVIRONMENT") {
            assert!(need_of_variable(name) != Need::Nothing, "{name}");
        }
    }
}
