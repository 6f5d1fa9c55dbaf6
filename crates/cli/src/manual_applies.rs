//! What a manual page says because of the options and places that its command takes: signals, exit codes, environment and
//! files. A new command gets these sections by itself.

use crate::manual_text::{ANCHORS, RUN};
use clap::Command;

/// A word in bold, and what is said of it.
type Entry = (&'static str, &'static str);

const CEPH_CONF: Entry = (
    "/etc/ceph/ceph.conf, ~/.ceph/config, ./ceph.conf",
    "Where the monitors of the Ceph cluster and the keyring of the client are, for disks in RADOS, unless --ceph-conf or \
     $CEPH_CONF names another file.",
);
const INTERRUPTED: Entry = (
    "INT, TERM, HUP, KILL",
    "The command ends at once. A disk that is already there is afterwards as after a power cut: what the command had not \
     finished is undone or finished when it is opened again, and nothing acknowledged is lost.",
);
const CREATION_INTERRUPTED: Entry = (
    "INT, TERM, HUP, KILL",
    "The command ends at once. What it made so far may be no disk; --force makes it again.",
);

/// Every variable that some command reads, by what makes a command read it.
const VARIABLES: &[(Need, &str, &str)] = &[
    (
        Need::Servers,
        "XDG_RUNTIME_DIR",
        "For users other than root: the directory below which servers keep their sockets and locks.",
    ),
    (Need::Anchor, "XDG_STATE_HOME", "Below it is remembered what this machine saw of vaults; see FILES."),
    (
        Need::Anchor,
        "HOME",
        "Stands in for XDG_STATE_HOME where that is not set, with .local/state; otherwise the home directory that the system knows.",
    ),
    (Need::Cluster, "CEPH_CONF", "The configuration file of the Ceph cluster, unless --ceph-conf is given."),
    (
        Need::Mounting,
        "PATH",
        "Where programs such as mkfs.ext4 and fusermount3 are looked for. For root the system's directories come first.",
    ),
    (
        Need::Listening,
        "LISTEN_FDS, LISTEN_PID",
        "Sockets that the service manager opened and passes on (socket activation). They take the place of --socket and \
         --listen.",
    ),
];

/// Every exit code, by what makes a command end with it.
const CODES: &[(Need, &str, &str)] = &[
    (Need::Nothing, "0", "Fine."),
    (
        Need::Nothing,
        "1",
        "The command line cannot be understood, or asks for what cannot be, such as to make what is there already.",
    ),
    (Need::Place, "2", "A wrong passphrase, or no permission."),
    (Need::Passphrase, "3", "Not enough memory: for the cost of the passphrase, or for a cache."),
    (Need::Place, "4", "There is no such location, or it is not a lacuna disk."),
    (Need::Place, "5", "Something else has it open."),
    (Need::Looking, "10", "Corrupt, or tampered with."),
    (Need::Older, "11", "Rolled back: what is there is older than what was seen before."),
    (Need::Purging, "12", "Flash could not be purged: what was deleted or erased may still be recovered."),
    (Need::Nothing, "13", "No space: on the medium, or where the output goes."),
    (Need::Cover, "14", "Waiting for cover ran out: something hidden is not on the medium yet."),
    (Need::Nothing, "20", "Any other failure."),
];

/// What a command has or does that a line of its manual page depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Every command.
    Nothing,
    /// It is about a place: a disk, a vault, a mount point or a file.
    Place,
    /// It finds servers, or is one.
    Servers,
    /// It takes a passphrase.
    Passphrase,
    /// It looks at what a disk or vault holds.
    Looking,
    /// It remembers vaults.
    Anchor,
    /// It notices older states.
    Older,
    /// It speaks to a Ceph cluster.
    Cluster,
    /// It mounts or unmounts.
    Mounting,
    /// It listens for clients.
    Listening,
    /// It purges flash.
    Purging,
    /// It writes hidden data, or waits for that.
    Cover,
}

impl Need {
    /// Whether the command has what this asks for. The page of `lacuna` itself tells everything.
    fn of(self, command: &Command) -> bool {
        let has = |name: &str| command.get_arguments().any(|arg| arg.get_id() == name);
        let takes = |names: &[&str]| names.iter().any(|name| has(name));
        let place = ["location", "mountpoints", "targets", "target", "file", "passphrase", "key_file"];
        let mounting = takes(&["mountpoints", "targets"]);
        command.get_name() == "lacuna"
            || match self {
                Need::Nothing => true,
                Need::Place => takes(&place),
                Need::Servers => takes(&["location", "mountpoints", "targets", "target"]),
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

/// The lines of a table that apply to a command.
fn applying(table: &[(Need, &'static str, &'static str)], command: &Command) -> Vec<Entry> {
    let lines = table.iter().filter(|(need, ..)| need.of(command));
    lines.map(|(_, what, words)| (*what, *words)).collect()
}

/// The exit codes of a command.
pub(crate) fn exit_codes(command: &Command) -> Vec<Entry> {
    applying(CODES, command)
}

/// The variables that a command reads.
pub(crate) fn environment(command: &Command) -> Vec<Entry> {
    applying(VARIABLES, command)
}

/// The files of a command: its own, then those that come with its options.
pub(crate) fn files(command: &Command, own: &[Entry]) -> Vec<Entry> {
    let shared = [(Need::Servers, RUN), (Need::Anchor, ANCHORS), (Need::Cluster, CEPH_CONF)];
    let shared = shared
        .into_iter()
        .filter(|(need, (path, _))| need.of(command) && !own.iter().any(|(named, _)| named == path));
    own.iter().copied().chain(shared.map(|(_, entry)| entry)).collect()
}

/// The signals of a command: its own if it handles any, otherwise what becomes of a disk when the command is ended early.
pub(crate) fn signals(command: &Command, own: &[Entry]) -> Vec<Entry> {
    if !own.is_empty() || command.get_name() == "lacuna" || !Need::Passphrase.of(command) {
        return own.to_vec();
    }
    vec![if command.get_name() == "create" { CREATION_INTERRUPTED } else { INTERRUPTED }]
}
