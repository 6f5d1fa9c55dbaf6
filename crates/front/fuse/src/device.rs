//! The FUSE device and the mount: by the system call where the kernel allows it, otherwise by
//! `fusermount3`.
//!
//! `fuser` can mount as well, but then admits requests of one user only, while the kernel sends the
//! times of files as root when it writes its cache back. Here the kernel alone checks access.

use lacuna_contracts::{Error, Kind, Result};
use lacuna_mount::{FUSE_SOURCE, FUSE_SUBTYPE};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{getegid, geteuid};
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// The FUSE device.
const DEVICE: &str = "/dev/fuse";
/// The mount tool for users other than root.
const TOOL: &str = "fusermount3";
/// The environment variable that tells the tool its socket. The socket is the tool's standard
/// input.
const SOCKET: &str = "_FUSE_COMMFD";
/// The file that may allow users other than root to admit other users.
const TOOL_SETTINGS: &str = "/etc/fuse.conf";
/// The line that allows it.
const ALLOW: &str = "user_allow_other";
/// The longest source: the kernel takes longer ones from some mount calls only (fsconfig(2)).
const SOURCE_MAX: usize = 255;

/// How to mount.
#[derive(Clone, Copy)]
pub(crate) struct FuseOptions<'s> {
    /// The source in mount tables; [`FUSE_SOURCE`] stands for a longer one than they take.
    pub source: &'s OsStr,
    /// Whether users other than the mounting user have access.
    pub allow_other: bool,
    /// Whether the kernel refuses changes.
    pub read_only: bool,
    /// Whether the kernel refuses to execute its programs.
    pub no_exec: bool,
}

/// Opens the device; this is not a mount yet.
fn open_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether each serving thread can have a device of its own.
pub(crate) fn can_open_device() -> bool {
    open_device().is_ok()
}

/// Mounts at the directory `mountpoint` and returns the device that serves it.
///
/// Errors: [`Kind::Permission`] where mounting, or access for other users, is not allowed;
/// [`Kind::NotFound`] without FUSE.
pub(crate) fn mount(mountpoint: &Path, access: FuseOptions<'_>) -> Result<OwnedFd> {
    let source = Some(access.source).filter(|source| source.len() <= SOURCE_MAX);
    let access = FuseOptions { source: source.unwrap_or(OsStr::new(FUSE_SOURCE)), ..access };
    let what = format!("cannot mount FUSE at {}", mountpoint.display());
    let failed = |e: &io::Error| Error::io(&what, e);
    if !geteuid().is_root() && access.allow_other && !is_allow_other_permitted() {
        return Err(Error::new(Kind::Permission, what)
            .found(format!("no line `{ALLOW}` in {TOOL_SETTINGS}"))
            .expected("the permission to let other users in")
            .hint("add that line as root, or mount for yourself alone"));
    }
    let direct = match open_device() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(Error::io(format!("cannot use {DEVICE}"), &e).hint("load it with `modprobe fuse`"));
        }
        device => device.and_then(|device| mount_direct(device, mountpoint, access)),
    };
    match direct {
        Err(e) if [Some(libc::EPERM), Some(libc::EACCES)].contains(&e.raw_os_error()) => {
            mount_by_tool(mountpoint, access).map_err(|e| {
                // The tool's message has no error number.
                let words = e.to_string();
                let denied = ["not permitted", "Permission denied"].iter().any(|said| words.contains(said));
                let error = if denied { failed(&e).with_kind(Kind::Permission) } else { failed(&e) };
                let closed = open_device().is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
                error.hint(if closed {
                    format!("let this user read and write {DEVICE}: `chmod 666 {DEVICE}`, as root")
                } else {
                    format!("check that {TOOL} (package fuse3) is installed and that the directory is yours")
                })
            })
        }
        Err(e) => Err(failed(&e)),
        Ok(device) => Ok(device),
    }
}

fn mount_direct(device: OwnedFd, mountpoint: &Path, access: FuseOptions<'_>) -> io::Result<OwnedFd> {
    let mode = rustix::fs::stat(mountpoint)?.st_mode;
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions,subtype={FUSE_SUBTYPE}",
        device.as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw(),
    );
    if access.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
    flags.set(MountFlags::RDONLY, access.read_only);
    flags.set(MountFlags::NOEXEC, access.no_exec);
    let data = CString::new(data)?;
    rustix::mount::mount(access.source, mountpoint, "fuse", flags, Some(data.as_c_str()))?;
    Ok(device)
}

/// Mounts with `fusermount3`, which passes the device over a socket.
fn mount_by_tool(mountpoint: &Path, access: FuseOptions<'_>) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut options = OsString::from("fsname=");
    options.push(escaped(access.source));
    options.push(format!(",subtype={FUSE_SUBTYPE},default_permissions,nodev,nosuid"));
    let chosen =
        [(access.allow_other, ",allow_other"), (access.read_only, ",ro"), (access.no_exec, ",noexec")];
    chosen.iter().filter(|(is_chosen, _)| *is_chosen).for_each(|(_, option)| options.push(option));
    // The PATH of root may contain directories that other users can write to.
    let mut tool = Command::new(TOOL);
    tool.env("PATH", lacuna_mount::search_path());
    tool.arg("-o").arg(&options).arg("--").arg(mountpoint).env(SOCKET, "0");
    tool.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = tool.spawn()?;
    // The command keeps its end of the socket open until it is dropped.
    drop(tool);
    let device = receive_device(&ours);
    let finished = child.wait_with_output()?;
    let words = String::from_utf8_lossy(&finished.stderr).trim().to_owned();
    match device? {
        Some(device) if finished.status.success() => Ok(device),
        _ => Err(io::Error::other(words)),
    }
}

/// A source as a value in the option list of the tool: a comma ends an option there, and a
/// backslash takes the meaning of the next character away.
fn escaped(source: &OsStr) -> OsString {
    let mut bytes = Vec::with_capacity(source.len());
    for byte in source.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            bytes.push(b'\\');
        }
        bytes.push(*byte);
    }
    OsString::from_vec(bytes)
}

/// Receives the device from the socket; `None` if the tool ended without sending one.
fn receive_device(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)
    })?;
    let devices = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut devices) => devices.next(),
        _ => None,
    });
    Ok(devices.last())
}

/// Whether users other than root may admit other users. If the file cannot be read, the answer is
/// yes: the tool can read it and decides.
fn is_allow_other_permitted() -> bool {
    match fs::read_to_string(TOOL_SETTINGS) {
        Ok(text) => text.lines().any(|line| line.trim() == ALLOW),
        Err(e) => e.kind() != io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_of_a_source_ends_its_option() {
        for (source, value) in [
            (&b"/home/me/v"[..], &b"/home/me/v"[..]),
            (b"/a,b=c d", b"/a\\,b=c d"),
            (b"/a\\,\xe9", b"/a\\\\\\,\xe9"),
        ] {
            assert_eq!(escaped(OsStr::from_bytes(source)).as_bytes(), value);
        }
    }
}
