//! Tests of the begin and the end of a server: while in use, by a plain umount, killed, without
//! root, read-only, and with jumping clocks.

use crate::fixture::{VaultFixture, skip_if};
use crate::machine::{lacking, run, skipped, wait_until};
use crate::serving::{IDLE_LIMIT, MountMode};
use lacuna_contracts::Kind;
use lacuna_daemon::{CloseOutcome, MountRecord, Registry, close};
use lacuna_fuse::{MountedVault, VaultRequest};
use lacuna_vault::Vault;
use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::{self, File};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A user other than root, with a name: `nobody`.
const USER: u32 = 65534;

#[test]
fn a_busy_vault_stays_mounted_and_the_error_names_its_user() {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    let mut user = Command::new("cat").current_dir(place.mountpoint()).stdin(Stdio::piped()).spawn().unwrap();
    let error = close(&place.mountpoint(), Some(&place.run_base())).unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().contains(&format!("in use by cat (process {})", user.id())), "{error}");
    fs::write(place.mountpoint().join("still"), b"served").unwrap();
    user.kill().unwrap();
    user.wait().unwrap();
    place.unmount_and_verify(server);
}

/// Sends a descriptor of the directory through a socket, where no process has it, so that the
/// kernel shows no user of the mount: as of `df`, which waits for the free space of a mount. The
/// use ends with the returned sockets.
fn use_invisibly(dir: &Path) -> (UnixStream, UnixStream) {
    let (from, to) = UnixStream::pair().unwrap();
    let dir = File::open(dir).unwrap();
    let sent = [dir.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    assert!(message.push(SendAncillaryMessage::ScmRights(&sent)));
    sendmsg(&from, &[IoSlice::new(b"d")], &mut message, SendFlags::empty()).unwrap();
    (from, to)
}

#[test]
fn a_close_waits_for_the_end_of_a_passing_use() {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    let passing = use_invisibly(&place.mountpoint());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            drop(passing);
        });
        close(&place.mountpoint(), Some(&place.run_base())).unwrap();
    });
    server.wait(&place);

    let server = place.mount(MountMode::Open);
    let lasting = use_invisibly(&place.mountpoint());
    let refused = close(&place.mountpoint(), Some(&place.run_base())).unwrap_err();
    assert!(refused.to_string().contains("not visible here"), "{refused}");
    drop(lasting);
    place.unmount(server);
    place.assert_nothing_left();
}

#[test]
fn umount_ends_the_vault_server() {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    fs::write(place.mountpoint().join("file"), b"kept").unwrap();
    wait_until("the end of the use", || {
        Command::new("umount").arg(place.mountpoint()).stderr(Stdio::null()).status().unwrap().success()
    });
    server.wait(&place);
    place.assert_nothing_left();
    let server = place.mount(MountMode::Open);
    assert_eq!(fs::read(place.mountpoint().join("file")).unwrap(), b"kept");
    place.unmount(server);
    place.verify();
}

/// A value held with a vault; on drop it records whether the vault was closed before.
struct DropOrderProbe {
    vault: Arc<Vault>,
    outlived: Arc<AtomicBool>,
}

impl Drop for DropOrderProbe {
    fn drop(&mut self) {
        self.outlived.store(self.vault.sync().is_err(), Ordering::SeqCst);
    }
}

#[test]
fn a_vault_that_cannot_be_mounted_is_closed_before_the_held_value_is_dropped() {
    let place = VaultFixture::new();
    let (vault, outlived) = (Arc::new(place.create_vault()), Arc::new(AtomicBool::new(false)));
    let nowhere = place.mountpoint().join("none");
    let mut request = VaultRequest::new(Arc::clone(&vault), "vault", nowhere);
    request.run_base = Some(place.run_base());
    request.held = Some(Box::new(DropOrderProbe { vault, outlived: Arc::clone(&outlived) }));
    assert_eq!(MountedVault::start(request).err().unwrap().kind(), Kind::NotFound);
    assert!(outlived.load(Ordering::SeqCst));
    place.verify();
}

/// The kernel knows the names, and so sends only the change itself.
#[test]
fn renames_count_as_use_and_statfs_does_not() {
    skip_if!(lacking());
    let place = VaultFixture::new();
    let mut server = place.mount(MountMode::WhileUsed);
    let [a, b] = ["a", "b"].map(|name| place.mountpoint().join(name));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    let begun = Instant::now();
    while begun.elapsed() < 2 * IDLE_LIMIT {
        renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
        assert!(server.is_running());
        std::thread::sleep(Duration::from_millis(20));
    }
    wait_until("the end of the idle server", || {
        // While the server ends, the mount may be removed or dead.
        let _ = statvfs(place.mountpoint());
        !server.is_running()
    });
    server.wait(&place);
    place.verify();
    place.assert_nothing_left();
}

#[test]
fn a_running_server_is_in_the_registry() {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    let peers = || Registry::open(Some(&place.run_base())).unwrap().all().unwrap();
    let found = peers();
    assert_eq!(found.len(), 1);
    assert!(found[0].mount().is_some_and(MountRecord::is_vault) && found[0].record.location == "vault");
    fs::write(place.mountpoint().join("file"), b"content").unwrap();
    assert!(!found[0].status().unwrap_or_else(|e| panic!("{e}")).items.is_empty());
    place.unmount(server);
    assert_eq!(peers().len(), 0);
}

#[test]
fn the_source_of_a_mount_is_its_vault() {
    skip_if!(lacking());
    let places = [VaultFixture::new(), VaultFixture::new()];
    let servers = places.each_ref().map(|place| place.mount(MountMode::Create));
    places.iter().for_each(assert_found_by_source);
    for (place, server) in places.iter().zip(servers) {
        place.unmount(server);
    }
}

/// Requires that the directory of the vault names its mount, and no other.
fn assert_found_by_source(place: &VaultFixture) {
    let mut findmnt = Command::new("findmnt");
    let mount = run(findmnt.args(["-rno", "TARGET,FSTYPE", "--source"]).arg(place.backing()));
    assert_eq!(mount.trim_end(), format!("{} fuse.lacuna", place.mountpoint().display()));
}

#[test]
fn synced_content_outlives_a_killed_server() {
    let Some((place, mut server)) = VaultFixture::mounted() else { return };
    for round in 0..5u8 {
        let at = |name: &str| place.mountpoint().join(name);
        let mut file = File::create(at(&format!("synced {round}"))).unwrap();
        file.write_all(&[round; 50_000]).unwrap();
        file.sync_all().unwrap();
        fs::write(at("not synced"), [round; 50_000]).unwrap();
        // A file that is deleted, open, and stored.
        let gone =
            File::options().read(true).write(true).create(true).truncate(true).open(at("gone")).unwrap();
        gone.write_all_at(&[1; 200_000], 0).unwrap();
        gone.sync_all().unwrap();
        fs::remove_file(at("gone")).unwrap();
        File::open(place.mountpoint()).unwrap().sync_all().unwrap();
        server.kill();
        assert_eq!(fs::metadata(at("another")).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
        drop((file, gone));
        close_dead(&place);
        server = place.mount(MountMode::Open);
        for earlier in 0..=round {
            assert!(fs::read(at(&format!("synced {earlier}"))).unwrap() == [earlier; 50_000]);
        }
        assert!(!at("gone").exists());
        let kept = fs::read(at("not synced")).unwrap_or_default();
        assert!(kept.iter().all(|byte| *byte <= round));
    }
    place.unmount(server);
    place.take_log();
    place.verify();
    place.assert_nothing_left();
}

/// Removes the mount of a killed server.
pub(crate) fn close_dead(place: &VaultFixture) {
    wait_until("the end of the dead server", || match close(&place.mountpoint(), Some(&place.run_base())) {
        Ok(how) => how == CloseOutcome::AfterCrash,
        Err(e) if e.kind() == Kind::Busy => false,
        Err(e) => panic!("{e}"),
    });
}

#[test]
fn dead_mount_is_closed_by_name() {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    server.kill();
    close_dead(&place);
    place.assert_nothing_left();
    place.take_log();
    place.verify();
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    let at = |name: &str| place.mountpoint().join(name);
    fs::write(at("file"), b"content").unwrap();
    fs::create_dir(at("dir")).unwrap();
    place.unmount(server);

    let server = place.mount(MountMode::ReadOnly);
    takes_no_changes(&place);
    place.unmount_and_verify(server);
}

/// Asserts that the content of `file` can be read, and that neither it nor the directory `dir`
/// beside it can be changed.
pub(crate) fn takes_no_changes(place: &VaultFixture) {
    let at = |name: &str| place.mountpoint().join(name);
    let refused = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EROFS));
    };
    assert_eq!(fs::read(at("file")).unwrap(), b"content");
    refused(File::create(at("new")).map(drop));
    refused(File::options().write(true).open(at("file")).map(drop));
    refused(fs::create_dir(at("new")));
    refused(fs::remove_file(at("file")));
    refused(fs::remove_dir(at("dir")));
    refused(fs::rename(at("file"), at("new")));
    refused(fs::hard_link(at("file"), at("new")));
    refused(fs::set_permissions(at("file"), fs::Permissions::from_mode(0o600)));
    let any = rustix::fs::XattrFlags::empty();
    refused(rustix::fs::setxattr(at("file"), "user.a", b"x", any).map_err(Into::into));
    let listed = run(Command::new("ls").arg(place.mountpoint()));
    assert_eq!(listed, "dir\nfile\n");
    run(Command::new("sync").arg("-f").arg(at("file")));
}

/// Works through other programs only: a starting program of another test inherits the handles of
/// this process for a moment, and a mount with open files is not removed.
#[test]
fn the_next_mount_removes_the_mount_of_a_killed_server() {
    skip_if!(lacking());
    let place = VaultFixture::new();
    let sh = |script: &str| run(Command::new("sh").args(["-ec", script]).current_dir(place.dir()));
    let mut server = place.mount(MountMode::Create);
    for round in 0..3 {
        sh(&format!("echo {round} > mnt/{round}; sync mnt/{round} mnt; echo lost > mnt/perhaps"));
        server.kill();
        server = place.mount(MountMode::Open);
        for earlier in 0..=round {
            assert_eq!(sh(&format!("cat mnt/{earlier}")), format!("{earlier}\n"));
        }
    }
    place.unmount(server);
    place.take_log();
    place.verify();
    place.assert_nothing_left();
}

/// A supervisor starts the next server while the last one is still dying.
#[test]
fn the_next_mount_waits_for_a_dying_server() {
    let Some((place, mut server)) = VaultFixture::mounted() else { return };
    for _ in 0..8 {
        server = server.replace(&place);
    }
    place.unmount(server);
    place.take_log();
    place.verify();
}

/// Files that are written twice within one tick of the kernel's clock, and while they stay open.
#[test]
fn reported_times_equal_stored_times() {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    let at = |n: usize| place.mountpoint().join(n.to_string());
    let times = || -> Vec<(i64, i64)> {
        let about = (0..40).map(|n| fs::metadata(at(n)).unwrap());
        about.map(|about| (about.mtime(), about.mtime_nsec())).collect()
    };
    let mut open = Vec::new();
    for n in 0..40 {
        let mut file = File::create(at(n)).unwrap();
        file.write_all(b"one\n").unwrap();
        if n % 2 == 0 {
            drop(file);
            file = File::options().append(true).open(at(n)).unwrap();
        } else {
            file.sync_all().unwrap();
        }
        file.write_all(b"two\n").unwrap();
        open.push(file);
    }
    // The server's clock advances before the pages arrive.
    std::thread::sleep(Duration::from_millis(50));
    drop(open);
    let shown = times();
    place.unmount(server);
    let server = place.mount(MountMode::Open);
    assert_eq!(times(), shown);
    place.unmount(server);
}

/// In seconds.
const YEAR: i64 = 365 * 24 * 3600;

#[test]
fn clock_jumps_change_only_times() {
    skip_if!(lacking());
    let place = VaultFixture::new();
    place.move_clock(0);
    let at = |name: String| place.mountpoint().join(name);
    let mut server = place.mount(MountMode::Create);
    for (round, years) in [-50, 300, -1, 0].into_iter().enumerate() {
        place.move_clock(years * YEAR);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        fs::create_dir(at(format!("dir {round}"))).unwrap();
        let made = fs::metadata(at(format!("dir {round}"))).unwrap().mtime();
        assert!((made - now - years * YEAR).abs() < YEAR / 2, "{made} is not {years} years ahead");
        let file = File::create(at(format!("dir {round}/file"))).unwrap();
        file.write_all_at(&[round as u8; 50_000], 0).unwrap();
        // Within a round: one hour back.
        place.move_clock(years * YEAR - 3600);
        file.write_all_at(&[round as u8; 50_000], 50_000).unwrap();
        file.sync_all().unwrap();
        fs::rename(at(format!("dir {round}/file")), at(format!("file {round}"))).unwrap();
        File::open(place.mountpoint()).unwrap().sync_all().unwrap();
        drop(file);
        if round % 2 == 0 {
            server.kill();
            close_dead(&place);
        } else {
            place.unmount(server);
        }
        server = place.mount(MountMode::Open);
        for earlier in 0..=round {
            let content = fs::read(at(format!("file {earlier}"))).unwrap();
            assert!(content == [earlier as u8; 100_000], "file {earlier} after round {round}");
            assert!(fs::read_dir(at(format!("dir {earlier}"))).unwrap().next().is_none());
        }
    }
    place.unmount(server);
    place.take_log();
    place.verify();
    place.assert_nothing_left();
}

/// Runs a program as a user other than root.
fn as_user(program: &str) -> Command {
    let mut command = Command::new(program);
    command.uid(USER).gid(USER);
    command
}

/// The reason why that user cannot mount, if there is one.
fn user_mounts() -> Option<&'static str> {
    if Command::new("fusermount3").arg("--version").stdout(Stdio::null()).status().is_err() {
        return Some("there is no fusermount3");
    }
    let mode = fs::metadata("/dev/fuse").map_or(0, |device| device.permissions().mode());
    if mode & 0o006 != 0o006 {
        return Some("/dev/fuse is for root alone here");
    }
    let program = std::env::current_exe().unwrap();
    let runs =
        as_user(program.to_str().unwrap()).arg("--list").stdout(Stdio::null()).stderr(Stdio::null()).status();
    (!runs.is_ok_and(|status| status.success())).then_some("another user cannot run this test")
}

#[test]
fn user_without_root_mounts() {
    skip_if!(lacking());
    if let Some(why) = user_mounts() {
        return skipped(why);
    }
    let place = VaultFixture::new();
    for path in [place.dir(), &place.backing(), &place.mountpoint()] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
    let server = place.mount(MountMode::AsUser(USER));
    assert_found_by_source(&place);
    let sh = |script: &str| run(as_user("sh").args(["-ec", script]).current_dir(place.mountpoint()));
    sh("echo content > file; mkdir dir; ln file dir/link; sync file");
    assert_eq!(sh("cat dir/link; stat -c '%u %h' file"), format!("content\n{USER} 2\n"));
    assert_eq!(
        fs::metadata(place.mountpoint()).unwrap_err().raw_os_error(),
        Some(libc::EACCES),
        "not even root"
    );
    // The user unmounts it as well.
    let umount = |at: &Path| as_user("fusermount3").arg("-u").arg(at).stderr(Stdio::null()).status().unwrap();
    wait_until("the end of the use", || umount(&place.mountpoint()).success());
    server.wait(&place);
    place.verify();
    place.assert_nothing_left();
}
