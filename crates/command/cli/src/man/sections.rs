//! The sections of a manual page that depend on the options and arguments of its command: signals,
//! exit codes, environment and files. A new command gets these sections automatically.

use crate::man::text::{ManEntry, entries, shared};
use clap::Command;

/// The property of a command that an entry of its manual page depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommandProperty {
    /// None: the entry is for every command.
    Any,
    /// It takes a disk, a vault, a mount point or a file.
    Location,
    /// It takes a place, or looks at the disks of other users.
    Permission,
    /// It looks for servers, or is one.
    Servers,
    /// It takes a passphrase.
    Passphrase,
    /// It reads the data or the header of a disk or vault.
    DiskReads,
    /// It uses the anchors of vaults.
    Anchor,
    /// It detects older states.
    Rollback,
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

impl CommandProperty {
    /// Whether the command has this property. The page of `lacuna` itself has all entries.
    fn holds_for(self, command: &Command) -> bool {
        let has = |name: &str| command.get_arguments().any(|arg| arg.get_id() == name);
        let takes = |names: &[&str]| names.iter().any(|name| has(name));
        let place = ["location", "mountpoints", "targets", "target", "file", "passphrase", "key_file"];
        let mounting = takes(&["mountpoints", "targets"]);
        command.get_name() == "lacuna"
            || match self {
                CommandProperty::Any => true,
                CommandProperty::Location => takes(&place),
                CommandProperty::Permission => takes(&place) || has("all_users"),
                CommandProperty::Servers => {
                    takes(&["location", "mountpoints", "targets", "target", "all_users"])
                }
                CommandProperty::Passphrase => has("key_file"),
                CommandProperty::DiskReads => {
                    has("key_file") || ["doctor", "info", "backup"].contains(&command.get_name())
                }
                CommandProperty::Anchor => has("anchor"),
                CommandProperty::Rollback => takes(&["anchor", "older"]),
                CommandProperty::Cluster => has("ceph_conf"),
                CommandProperty::Mounting => mounting,
                CommandProperty::Listening => takes(&["listen"]),
                CommandProperty::Purging => {
                    has("purge_period") || ["purge", "erase"].contains(&command.get_name())
                }
                CommandProperty::Cover => takes(&["cover_timeout"]) || mounting,
            }
    }
}

/// The property that makes a command return an exit code.
fn property_of_code(code: &str) -> CommandProperty {
    match code {
        "2" => CommandProperty::Permission,
        "4" | "5" => CommandProperty::Location,
        "3" => CommandProperty::Passphrase,
        "10" => CommandProperty::DiskReads,
        "11" => CommandProperty::Rollback,
        "12" => CommandProperty::Purging,
        "14" => CommandProperty::Cover,
        _ => CommandProperty::Any,
    }
}

/// The property that makes a command read a variable.
fn property_of_variable(name: &str) -> CommandProperty {
    match name {
        "XDG_RUNTIME_DIR" => CommandProperty::Servers,
        "XDG_STATE_HOME" | "HOME" => CommandProperty::Anchor,
        "CEPH_CONF" => CommandProperty::Cluster,
        "PATH" => CommandProperty::Mounting,
        "LISTEN_FDS, LISTEN_PID" => CommandProperty::Listening,
        _ => CommandProperty::Any,
    }
}

/// The exit codes of a command.
pub(crate) fn exit_codes(command: &Command) -> Vec<ManEntry> {
    let mut codes = entries("exit-status", "EXIT STATUS");
    codes.retain(|(code, _)| property_of_code(code).holds_for(command));
    codes
}

/// The variables that a command reads.
pub(crate) fn environment(command: &Command) -> Vec<ManEntry> {
    let mut variables = entries("environment", "ENVIRONMENT");
    variables.retain(|(name, _)| property_of_variable(name).holds_for(command));
    variables
}

/// The files of a command: its own, then the files of its options.
pub(crate) fn files(command: &Command, own: Vec<ManEntry>) -> Vec<ManEntry> {
    let mut files = own;
    for (need, name) in [
        (CommandProperty::Servers, "run"),
        (CommandProperty::Anchor, "anchors"),
        (CommandProperty::Cluster, "ceph-conf"),
    ] {
        let entry = shared(name);
        if need.holds_for(command) && !files.contains(&entry) {
            files.push(entry);
        }
    }
    files
}

/// The signals of a command: its own if it handles any, otherwise the effect of an early end on a
/// disk.
pub(crate) fn signals(command: &Command, own: Vec<ManEntry>) -> Vec<ManEntry> {
    if !own.is_empty() || command.get_name() == "lacuna" || !CommandProperty::Passphrase.holds_for(command) {
        return own;
    }
    vec![shared(if command.get_name() == "create" { "creation-interrupted" } else { "interrupted" })]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_depends_on_a_property() {
        for (name, _) in entries("environment", "ENVIRONMENT") {
            assert!(property_of_variable(name) != CommandProperty::Any, "{name}");
        }
    }
}
