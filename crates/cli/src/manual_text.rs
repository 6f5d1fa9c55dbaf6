//! What manual pages say beyond the options: examples, files and signals.

/// The sections of a page that the words of the command line do not give.
#[derive(Default)]
pub(crate) struct Sections {
    /// Commands, each with what it does.
    pub examples: &'static [(&'static str, &'static str)],
    /// Paths, each with what is there.
    pub files: &'static [(&'static str, &'static str)],
    /// Signals, each with what it does.
    pub signals: &'static [(&'static str, &'static str)],
}

pub(crate) const RUN: (&str, &str) = (
    "/run/lacuna, $XDG_RUNTIME_DIR/lacuna, /run/user/UID/lacuna, /dev/shm/lacuna-UID, /tmp/lacuna-UID",
    "What is open, of root (the first) and of other users (the first of the others that there is a directory for): locks, and the sockets by which close and status reach a server. Nothing in \
     it outlives the servers.",
);
pub(crate) const ANCHORS: (&str, &str) = (
    "/var/lib/lacuna/anchors, ~/.local/state/lacuna/anchors",
    "What this machine remembers of vaults, by UUID, of root and of other users: the last state of each. Not to be copied with a \
     vault. $XDG_STATE_HOME, if set, takes the place of /var/lib and ~/.local/state.",
);
const ENDS: (&str, &str) = (
    "INT, TERM, and HUP unless it is ignored at the start",
    "Everything acknowledged goes to the medium, then the server ends with code 0. On a disk with levels the cover of the \
     closing is written first, and what is hidden goes with it as far as that carries it. A second signal changes nothing, \
     except where the server waits at a terminal for more of that.",
);
const KILL: (&str, &str) = (
    "KILL",
    "What was flushed is on the medium; what was not may be lost. The next opening repairs the rest by itself.",
);

/// The sections of the page of this name.
pub(crate) fn of(page: &str) -> Sections {
    match page {
        "lacuna" => Sections {
            examples: &[
                ("lacuna create disk.img --size 20G", "Make an encrypted disk in a file."),
                (
                    "lacuna open disk.img /mnt --mkfs ext4",
                    "Open it for the first time, and make a file system on it.",
                ),
                ("lacuna close /mnt", "Unmount it, and wait until everything is on the medium."),
            ],
            files: &[RUN],
            signals: &[],
        },
        "lacuna-create" => Sections { examples: CREATE, ..Sections::default() },
        "lacuna-open" => Sections {
            examples: OPEN,
            files: &[
                RUN,
                ANCHORS,
                (
                    "MOUNTPOINT/disk, MOUNTPOINT/status",
                    "With --raw: the disk as a file, and its counters as text.",
                ),
                ("/dev/fuse", "Needed."),
                ("/dev/loop-control", "Needed with --via loop, which is what root gets."),
            ],
            signals: &[
                (
                    ENDS.0,
                    "As close: it unmounts, and ends when everything is on the medium. While something uses the \
                    file system, what was written is made durable, and it ends as soon as nothing does.",
                ),
                KILL,
            ],
        },
        "lacuna-close" => Sections {
            examples: &[
                ("lacuna close /mnt", "Unmount what is open there."),
                ("lacuna close disk.img", "Unmount the disk wherever it is open, the deepest level first."),
                ("lacuna close /mnt/a '/mnt/b c'", "Several at once."),
                ("lacuna close --all", "Everything that this user has open, mounted or served."),
            ],
            files: &[RUN],
            signals: &[],
        },
        "lacuna-serve" => Sections {
            examples: SERVE,
            files: &[
                RUN,
                (
                    "server-cert.pem, server-key.pem, ca-cert.pem",
                    "In the directory of --tls-dir: what the server shows, and whose certificates clients must show.",
                ),
            ],
            signals: &[ENDS, KILL],
        },
        "lacuna-rescue" => Sections {
            examples: &[
                (
                    "lacuna rescue disk.img files.raw",
                    "What can be read of it; files.raw.map says what that is.",
                ),
                (
                    "lacuna rescue disk.img files.raw",
                    "Given again: what is missing in files.raw is read once more, and nothing else.",
                ),
                ("lacuna rescue /dev/sdb1 hidden.raw --level 1", "Of a disk with levels, level 1."),
            ],
            files: &[
                (
                    "TARGET",
                    "The image: the blocks of the disk as they are when it is open. Mount it read-only, or copy it first.",
                ),
                (
                    "TARGET.map",
                    "Lines of position, size and status in the form of GNU ddrescue: `+` was read or never written, `-` is lost.",
                ),
                ("TARGET.map.new", "The same, of a run that goes on with an earlier one, until it ends."),
            ],
            signals: &[(
                "INT, TERM, HUP, KILL",
                "The command ends at once. The image holds what the map says; of the rest nothing is known. The disk was only read.",
            )],
        },
        "lacuna-vault-init" | "lacuna-vault-accept" => {
            Sections { examples: short(page), files: &[ANCHORS], ..Sections::default() }
        }
        other => Sections { examples: short(other), ..Sections::default() },
    }
}

const CREATE: &[(&str, &str)] = &[
    ("lacuna create disk.img --size 20G", "An encrypted disk that notices altered data."),
    ("lacuna create /dev/sdb1", "On a block device, as large as fits."),
    (
        "lacuna create fast.img --size 20G --cipher xts-random",
        "The fastest small random writes; altered data is not noticed.",
    ),
    (
        "lacuna create d.img --size 20G --format deniable --levels 2",
        "A public level and a hidden one, a passphrase for each.",
    ),
    ("lacuna create rados:pool/vm1 --size 20G --ceph-id lacuna", "In a pool of Ceph RADOS."),
    ("lacuna create ubi:/dev/ubi0_0", "A disk on raw flash that forgets what was deleted."),
];

const OPEN: &[(&str, &str)] = &[
    ("lacuna open disk.img /mnt --mkfs ext4", "For the first time: make a file system, and mount it."),
    ("lacuna open disk.img /mnt", "Afterwards."),
    (
        "lacuna open /dev/sdb1 /mnt --expect 9564c49adcf33557307745630aa5f7ce",
        "No other disk, as somebody may have put in its place.",
    ),
    ("lacuna open d.img /mnt/files /mnt/data", "A disk with levels, with the passphrase of level 1."),
    ("lacuna open ~/synced/photos /mnt/photos", "A vault, which is a directory."),
    (
        "lacuna open disk.img ~/files --mkfs ext4 --via fuse2fs",
        "Through fuse2fs, as users other than root do anyway.",
    ),
    ("lacuna open disk.img /mnt --raw", "The disk as the file /mnt/disk."),
    ("lacuna open disk.img /mnt --read-only --mount-options noload", "Read an ext4 that was not unmounted."),
];

const SERVE: &[(&str, &str)] = &[
    ("lacuna serve disk.img --socket disk.sock", "For clients of this user on this machine."),
    ("lacuna serve disk.img --socket disk.sock --listen 127.0.0.1:10809", "In two places at once."),
    ("lacuna serve disk.img --listen 0.0.0.0:10809 --tls-dir pki", "For clients that show a certificate."),
    ("lacuna serve disk.img --socket disk.sock --fork --pid-file disk.pid", "In the background."),
];

/// The examples of verbs whose pages say nothing else.
fn short(page: &str) -> &'static [(&'static str, &'static str)] {
    match page {
        "lacuna-info" => &[
            ("lacuna info disk.img --json", "What anybody can see of a disk, for a program."),
            ("lacuna info disk.img --key-file disk.key", "And its ID, for --expect."),
        ],
        "lacuna-status" => &[
            ("lacuna status", "Everything that is open."),
            ("lacuna -v status disk.img", "All counters of one disk."),
            ("lacuna status --watch --interval 2", "What goes on, every two seconds, until Ctrl-C."),
            ("lacuna status /mnt --json", "The counters of one disk, for a program."),
        ],
        "lacuna-check" => &[
            ("lacuna check disk.img", "Read and verify every block, of an open disk through its server."),
            ("lacuna check snapshot.img --read-only", "The same of a snapshot, which stays as it is."),
        ],
        "lacuna-key-add" => &[
            (
                "lacuna key add disk.img",
                "One more passphrase; all others keep working. On a disk with levels they are asked for first.",
            ),
            ("lacuna key add disk.img --token fido2", "A security key opens the disk as well."),
            (
                "lacuna key add disk.img --token tpm2:pcrs=7,pin",
                "The TPM of this machine does, with a PIN and while Secure Boot is as it is now.",
            ),
        ],
        "lacuna-key-change" => {
            &[("lacuna key change disk.img", "Another passphrase in place of the first one given.")]
        }
        "lacuna-key-remove" => &[(
            "lacuna key remove disk.img --remove-key-file old.key",
            "The passphrase in old.key opens the disk no more.",
        )],
        "lacuna-key-refresh" => &[(
            "lacuna key refresh disk.img",
            "New salts for the passphrases that are given, and for none else.",
        )],
        "lacuna-resize" => &[(
            "lacuna resize disk.img --size 40G",
            "A larger disk, open or closed; --grow-fs makes the file system larger that is mounted from it.",
        )],
        "lacuna-purge" => &[
            (
                "lacuna purge ubi:/dev/ubi0_0",
                "What was deleted on it is gone for good; the disk may be open or not.",
            ),
            (
                "lacuna purge /mnt",
                "The same of one that is mounted there; what its file system freed is discarded first.",
            ),
            ("lacuna purge --all", "Every disk on flash that is open, as before the machine sleeps."),
        ],
        "lacuna-snapshot-create" => {
            &[("lacuna snapshot create rados:pool/vm1 monday", "Keep the present state.")]
        }
        "lacuna-snapshot-list" => &[("lacuna snapshot list rados:pool/vm1", "What is kept.")],
        "lacuna-snapshot-remove" => &[("lacuna snapshot remove rados:pool/vm1 monday", "Keep it no longer.")],
        "lacuna-snapshot-rollback" => &[("lacuna snapshot rollback rados:pool/vm1 monday", "Go back to it.")],
        "lacuna-delete" => {
            &[("lacuna delete rados:pool/vm1", "Remove the disk, its snapshots and all its data.")]
        }
        "lacuna-bench" => {
            &[("lacuna bench", "How fast the ciphers are here, and what a guess at a passphrase costs.")]
        }
        "lacuna-completions" => {
            &[("lacuna completions bash >~/.local/share/bash-completion/completions/lacuna", "For bash.")]
        }
        "lacuna-man" => &[(
            "lacuna man pages",
            "Write the pages to a directory; `make install` puts them where man looks.",
        )],
        _ if page.starts_with("lacuna-vault-") => of_vaults(page),
        _ => daily(page),
    }
}

/// The examples of verbs for vaults.
fn of_vaults(page: &str) -> &'static [(&'static str, &'static str)] {
    match page {
        "lacuna-vault-init" => &[
            (
                "lacuna vault init ~/synced/photos",
                "Make a vault; `lacuna open ~/synced/photos DIR` mounts it.",
            ),
            ("lacuna vault init /srv/v --integrity mt", "With a tree of tags for each file."),
        ],
        "lacuna-vault-check" => &[
            ("lacuna vault check ~/synced/photos", "Read and verify everything in it."),
            ("lacuna vault check ~/synced/photos --repair", "Write anew what one of two copies lost."),
        ],
        "lacuna-vault-accept" => &[(
            "lacuna vault accept ~/synced/photos",
            "After a backup was restored: take the state that is there as the newest.",
        )],
        "lacuna-vault-rescue" => &[(
            "lacuna vault rescue ~/synced/photos ~/rescued",
            "Bring out all that verifies, and list what is missing.",
        )],
        "lacuna-vault-stat" => &[("lacuna vault stat /mnt/photos/a.jpg", "How one file is protected.")],
        _ => &[],
    }
}

/// The examples of verbs that look at disks, keep their headers, and end them.
fn daily(page: &str) -> &'static [(&'static str, &'static str)] {
    match page {
        "lacuna-list" => &[
            ("lacuna list", "Everything that is open, a line for each."),
            ("lacuna list --json", "The same for a program."),
        ],
        "lacuna-header-backup" => &[
            ("lacuna header backup files.img files.hdr", "Keep the header elsewhere."),
            ("lacuna header backup /dev/sdb1 sdb1.hdr", "Of a block device; also while it is open."),
        ],
        "lacuna-header-restore" => &[
            ("lacuna header restore files.img files.hdr", "Bring it back."),
            (
                "lacuna header restore files.img old.hdr --older",
                "Bring back one that is older: removed passphrases work again.",
            ),
        ],
        "lacuna-header-repair" => {
            &[("lacuna header repair files.img", "Write all copies anew from the one that is whole.")]
        }
        "lacuna-doctor" => &[
            ("lacuna doctor disk.img", "What is wrong with it, and what to do."),
            ("lacuna doctor /dev/sdb1 --json", "The same for a program; exit code 0 if nothing is wrong."),
        ],
        "lacuna-erase" => &[
            ("lacuna erase disk.img", "Make it unreadable for good, after a question."),
            ("lacuna erase /dev/sdb1 --yes", "The same without a question."),
        ],
        _ => &[],
    }
}
