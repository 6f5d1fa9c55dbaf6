//! Root sees the open disks of all users and closes them. A hostile user misleads root about
//! nothing of other users.

use crate::harness::{RunOutput, is_program_available, skip_unless};
use crate::unprivileged::{FIRST, OPEN, SECOND, TwoUsers};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// The disk of a user in the output of `list --json`.
fn disk_of(list: &Value, user: u32) -> Value {
    let open = list["open"].as_array().unwrap();
    open.iter().find(|one| one["user"] == user).unwrap_or_else(|| panic!("{list}")).clone()
}

/// A path in the home of a user.
fn path(town: &TwoUsers, user: u32, name: &str) -> String {
    town.home(user).canonicalize().unwrap().join(name).display().to_string()
}

/// A program that a user runs in the background.
struct Running(Child);

impl Running {
    /// Starts it, and waits for its first line.
    fn start(town: &TwoUsers, user: u32, words: &[&str]) -> Running {
        let mut child = town.command(user, words).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Running(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn root_sees_and_closes_the_disks_of_all_users() {
    let Some(town) = TwoUsers::new() else { return };
    [FIRST, SECOND].iter().for_each(|user| town.create(*user));
    town.lacuna(FIRST, &[&OPEN[..], &["--mkfs", "ext2"]].concat()).code(0);
    let serve = ["serve", "disk.img", "--socket", "nbd.sock", "--fork", "--key-file", "key"];
    town.lacuna(SECOND, &serve).code(0);
    let (mnt, served) = (path(&town, FIRST, "mnt"), path(&town, SECOND, "disk.img"));

    assert_eq!(town.root(&["list"]).code(0).stdout, "nothing is open\n");
    assert_eq!(town.root(&["close", "--all"]).code(0).stdout, "nothing is open\n");
    let list = town.root(&["list", "--all-users", "--json"]).code(0).json();
    assert_eq!(list["open"].as_array().unwrap().len(), 2, "{list}");
    let (one, other) = (disk_of(&list, FIRST), disk_of(&list, SECOND));
    assert!(one["at"] == mnt.as_str() && one["pid"] == town.server(FIRST)["pid"], "{one}");
    assert!(other["location"] == served.as_str() && other["pid"] == town.server(SECOND)["pid"], "{other}");
    assert!(one["elsewhere"] == false && other["elsewhere"] == false, "{list}");
    for verb in ["list", "status"] {
        let text = town.root(&[verb, "--all-users"]).code(0).stdout;
        assert!(text.contains("user 64001") && text.contains("user 64002"), "{text}");
        let refused = town.lacuna(FIRST, &[verb, "--all-users"]).code(2).stderr;
        assert!(refused.contains("expected: root"), "{refused}");
    }
    for (target, user) in [(&mnt, "user 64001"), (&served, "user 64002")] {
        let text = town.root(&["status", target]).code(0).stdout;
        assert!(text.contains(user), "{text}");
    }
    town.lacuna(FIRST, &["close", "--all", "--all-users"]).code(2);
    assert!(town.server(FIRST)["pid"].is_u64());
    // Root is told how to find the user that has a disk open.
    let key = path(&town, SECOND, "key");
    let refused = town.root(&["check", &served, "--key-file", &key]).code(5).stderr;
    assert!(refused.contains("`lacuna list --all-users` shows"), "{refused}");

    // A disk in use stays open.
    let user = Running::start(&town, FIRST, &["sh", "-c", "cd mnt && echo ready && exec sleep 1000"]);
    for close in [&["close", mnt.as_str()][..], &["close", "--all", "--all-users"]] {
        let refused = town.root(close).code(5).stderr;
        for words in ["of user 64001", "its server says", "sleep (process "] {
            assert!(refused.contains(words), "{words}: {refused}");
        }
    }
    // Everything else was closed.
    assert!(town.server(SECOND).is_null());
    drop(user);
    town.root(&["close", &mnt]).code(0);
    assert!(town.server(FIRST).is_null());
    town.root(&["close", &mnt]).code(4);

    town.lacuna(FIRST, &OPEN).code(0);
    town.lacuna(SECOND, &serve).code(0);
    town.root(&["close", &served]).code(0);
    assert!(town.server(SECOND).is_null() && town.server(FIRST)["pid"].is_u64());
    town.root(&["close", "--all", "--all-users"]).code(0);
    assert!(town.server(FIRST).is_null());
    assert_eq!(town.root(&["close", "--all", "--all-users"]).code(0).stdout, "nothing is open\n");
}

/// A server that answers every request for its status with its second argument, and refuses
/// everything else. Its first argument is the directory of run directories.
const LIAR: &str = r#"
import json, os, socket, sys
path = sys.argv[1] + "/fedcba9876543210"
os.mkdir(path, 0o700)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path + "/control")
listener.listen(8)
refused = {"kind": "busy", "message": "\x1b[2Jleave", "private": False, "server": "stays"}
print("ready", flush=True)
while True:
    client, _ = listener.accept()
    asked = json.loads(client.makefile().readline())
    answer = {"ok": json.loads(sys.argv[2])} if asked["op"] == "status" else {"error": refused}
    client.sendall((json.dumps(answer) + "\n").encode())
    client.close()
"#;

/// Fills a directory of run directories: the first argument. The second is the run directory of
/// another user, and the third is a record.
const PLANT: &str = r#"
set -e
umask 077
mkdir "$0"
cd "$0"
mkdir 0000000000000001 0000000000000002 0000000000000003 0000000000000004
mkfifo 0000000000000001/control 0000000000000001/record.json 0000000000000001/lock
ln -s "$1"/control 0000000000000002/control
echo "$2" >0000000000000003/record.json
: >0000000000000003/lock
: >0000000000000004/control
ln -s "$1" 00000000000000ff
mkfifo 00000000000000fe
"#;

#[test]
fn a_hostile_user_misleads_root_about_nothing_of_other_users() {
    let Some(town) = TwoUsers::new() else { return };
    skip_unless!(is_program_available("python3"), "this machine has no python3");
    town.create(FIRST);
    town.lacuna(FIRST, &[&OPEN[..], &["--mkfs", "ext2"]].concat()).code(0);
    let (mnt, disk) = (path(&town, FIRST, "mnt"), path(&town, FIRST, "disk.img"));
    // The other user's server claims to be the mount of the first, and has escapes in its name.
    let front = json!({ "fuse": { "mountpoint": mnt, "kind": "raw" } });
    let record = json!({
        "front": front, "location": "/disk\u{1b}[2J\u{9b}2J", "format": "sealed\u{202e}", "uuid": null,
        "file": "", "in_pool": null, "read_only": false, "since": 1, "pid": 1, "private": false,
    });
    let status = json!({
        "record": record, "id": null, "file": null, "items": [], "size": null, "clients": null,
        "refused_clients": null, "last_error": "\u{1b}[2J", "condition": "serving",
    });
    let run_dir = town.run(FIRST, &["sh", "-c", "echo /dev/shm/lacuna-64001/*"]).code(0).stdout;
    let (base, run_dir) = ("/dev/shm/lacuna-64002", run_dir.trim());
    town.run(SECOND, &["sh", "-c", PLANT, base, run_dir, &record.to_string()]).code(0);
    town.run(SECOND, &["mkdir", "-m", "700", "/dev/shm/lacuna-64001-2"]).code(0);
    let liar = Running::start(&town, SECOND, &["python3", "-c", LIAR, base, &status.to_string()]);

    let ran = town.root(&["list", "--all-users", "--json"]).code(0);
    assert!(ran.stderr.contains("cannot see everything that user 64002 has open"), "{}", ran.stderr);
    let list = ran.json();
    assert_eq!(list["open"].as_array().unwrap().len(), 2, "{list}");
    let (true_one, false_one) = (disk_of(&list, FIRST), disk_of(&list, SECOND));
    assert!(true_one["elsewhere"] == false && true_one["location"] == disk.as_str(), "{true_one}");
    assert!(false_one["elsewhere"] == true && false_one["pid"] == liar.0.id(), "{false_one}");
    for verb in ["list", "status"] {
        for options in [&["--all-users"][..], &["--all-users", "--json"]] {
            let RunOutput { stdout, stderr, .. } = town.root(&[&[verb][..], options].concat()).code(0);
            for deceives in ['\u{1b}', '\u{9b}', '\u{202e}'] {
                assert!(!stdout.contains(deceives) && !stderr.contains(deceives), "{stdout:?} {stderr:?}");
            }
        }
    }

    // The mount point is that of the first user, whatever the other user's server says.
    let status = town.root(&["status", &mnt]).code(0).stdout;
    assert!(status.contains("user 64001") && !status.contains("user 64002"), "{status}");
    town.root(&["close", &mnt]).code(0);
    assert!(town.server(FIRST).is_null());
    town.root(&["close", &mnt]).code(4);

    // Everything is closed except the liar.
    town.lacuna(FIRST, &OPEN).code(0);
    let said = town.root(&["close", "--all", "--all-users"]).code(20).stderr;
    assert!(said.contains("its server says: \\u{1b}[2Jleave") && !said.contains('\u{1b}'), "{said:?}");
    assert!(town.server(FIRST).is_null());
    // Nothing of the user was changed.
    let kept = town.run(SECOND, &["sh", "-c", "ls -R /dev/shm/lacuna-64002 | wc -l"]).code(0).stdout;
    drop(liar);
    town.root(&["list", "--all-users"]).code(0);
    let left = town.run(SECOND, &["sh", "-c", "ls -R /dev/shm/lacuna-64002 | wc -l"]).code(0).stdout;
    assert_eq!(kept, left);
}
