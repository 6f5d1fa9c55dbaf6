//! The manual page of `mount.lacuna` and `umount.lacuna`, which are no verbs of the command line.

use clap_mangen::roff::{Roff, bold, italic, roman};

/// The name of the file of the page.
pub(crate) const FILE: &str = "mount.lacuna.8";

/// An entry of a list: what stands out, and what is said of it.
type Entry = (&'static str, &'static str);

const DESCRIPTION: &[&str] = &[
    "mount.lacuna is what mount(8) runs for the type lacuna, and so what fstab(5) and systemd.mount(5) run. It opens the disk or vault at \
     LOCATION, mounts its file system at DIRECTORY, and returns; a server stays in the background. LOCATION is as in \
     lacuna(1). The file system must be there: lacuna-open(1) makes one with --mkfs.",
    "umount.lacuna is what umount(8) runs to unmount it. It returns when everything is on the medium. Both are the program lacuna \
     under another name.",
    "Without keyfile, credential or askpass the passphrase is that of the credential lacuna.passphrase, if a unit of systemd was \
     given one. Otherwise it is asked for on the terminal, or where there is none through systemd-ask-password(1).",
];

const OPTIONS: &[Entry] = &[
    ("keyfile=PATH", "Read the passphrase from this file."),
    (
        "credential=NAME",
        "Read the passphrase from this credential of the unit of systemd that mounts (see LoadCredentialEncrypted= in \
         systemd.exec(5)).",
    ),
    ("askpass=CMD", "Run this program to ask for the passphrase."),
    (
        "expect=ID",
        "Refuse every disk or vault but the one with this ID, which lacuna-create(1) prints, and lacuna-info(1) with a passphrase.",
    ),
    ("ro, rw", "Refuse writes, or not."),
    ("cache=SIZE", "Memory for all caches."),
    ("raw", "Mount a file that is the disk, instead of the file system on it."),
    ("idle_timeout=TIME", "Close it when nobody used it for so long."),
    (
        "level1=DIR, level2=DIR, level3=DIR",
        "Where hidden levels are mounted; DIRECTORY is level 0. Never in fstab(5) or in a unit, which would show that they exist.",
    ),
    ("foreground", "Do not return, but serve until INT or TERM: for units of the type notify."),
    ("allow_other", "Of a vault: let other users in."),
    (
        "ceph_conf=PATH, ceph_id=ID, namespace=NAME, timeout=SECONDS, write_through, cover_timeout=SECONDS, anchor=PATH",
        "And all other options of lacuna-open(1), without the dashes in front and with _ or - within, but for mkfs, force, key_fd and json.",
    ),
    (
        "auto, noauto, nofail, user, users, owner, group, _netdev, comment=, x-*",
        "Mean something to mount(8) and systemd, and nothing here.",
    ),
    (
        "remount",
        "Is refused: unmount it and mount it again. `mount -i -o remount,ro DIRECTORY` changes options of the mounted file system alone.",
    ),
    (
        "any other",
        "Is passed on to the mounted file system, such as noatime, discard or commit=30. Of these a vault takes noexec alone.",
    ),
];

const FLAGS: &[Entry] = &[
    ("-r, -w", "As ro and rw. -w counts more than -r and ro."),
    ("-v", "Say more."),
    ("-f", "Of mount.lacuna: check the options and do nothing."),
    (
        "-l",
        "Of umount.lacuna: detach it from the directory now; the server ends when nobody uses it any more.",
    ),
    ("-n, -s, -t TYPE", "Are taken and change nothing."),
];

const CODES: &[Entry] = &[
    ("0", "Mounted, or unmounted and everything is on the medium."),
    ("1", "Wrong use, or no permission."),
    ("2", "Out of memory."),
    ("32", "It could not be mounted or unmounted; the message says why."),
];

const FILES: &[Entry] = &[
    ("/etc/fstab", "What is mounted at boot."),
    (
        "/etc/lacuna/NAME.conf",
        "What lacuna@NAME.service opens: LOCATION=, MOUNTPOINT= and OPTIONS=, which are those here.",
    ),
];

const EXAMPLES: &[Entry] = &[
    ("mount -t lacuna files.img /mnt", "Open it, and ask for the passphrase."),
    (
        "/dev/vg/files /srv/files lacuna keyfile=/etc/lacuna/files.key 0 0",
        "A line of fstab: mounted at boot.",
    ),
    (
        "/srv/big.img /srv/big lacuna noauto,x-systemd.automount,keyfile=/etc/lacuna/big.key 0 0",
        "Mounted when somebody enters it.",
    ),
];

/// The page.
pub(crate) fn page() -> String {
    let mut roff = Roff::new();
    roff.control("TH", ["mount.lacuna", "8", "", &format!("lacuna {}", env!("CARGO_PKG_VERSION")), ""]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("mount.lacuna, umount.lacuna - mount and unmount encrypted disks and vaults")]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([
        bold("mount.lacuna"),
        italic(" LOCATION DIRECTORY"),
        roman(" [-sfnvrw] [-o "),
        italic("OPTIONS"),
        roman("]"),
    ]);
    roff.control("br", []);
    roff.text([bold("umount.lacuna"), italic(" DIRECTORY"), roman(" [-flnrv]")]);
    roff.control("SH", ["DESCRIPTION"]);
    for (at, paragraph) in DESCRIPTION.iter().enumerate() {
        if at > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(*paragraph)]);
    }
    let lists = [
        ("OPTIONS", OPTIONS),
        ("FLAGS", FLAGS),
        ("EXIT STATUS", CODES),
        ("FILES", FILES),
        ("EXAMPLES", EXAMPLES),
    ];
    for (title, entries) in lists {
        roff.control("SH", [title]);
        for (what, words) in entries {
            roff.control("TP", []);
            roff.text([bold(*what)]);
            roff.text([roman(*words)]);
        }
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("lacuna(1), lacuna-open(1), lacuna-close(1), mount(8), fstab(5), systemd.mount(5)")]);
    roff.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_options::Options;

    #[test]
    fn options_of_the_page_are_taken() {
        // What needs a unit, and what is refused.
        let apart = ["credential=NAME", "remount", "any other"];
        for (names, _) in OPTIONS.iter().filter(|(names, _)| !apart.contains(names)) {
            let options = Options::parse([names.replace(", ", ",").as_str()].into_iter()).unwrap();
            assert!(options.passed.is_empty(), "{names}: {:?}", options.passed);
        }
        assert!(page().contains(".SH EXAMPLES"));
    }
}
