//! `mount.lacuna` and `umount.lacuna`, the helpers that mount(8) and umount(8) run for file systems
//! of type `lacuna`, also for fstab and systemd. Both are this program under another name. Their
//! command lines are translated to those of `open` and `close`.

pub(crate) mod options;

use crate::args::ExpectArgs;
use crate::mount_helper::options::MountOptions;
use crate::terminal::{console, passphrase};
use crate::verbs::remote_ops;
use crate::verbs::status;
use lacuna_daemon::Registry;
use lacuna_storage::{Error, Kind, Location, Result, shell_word};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where umount(8) looks for its helper.
const UNMOUNTING: &str = "/sbin/umount.lacuna";
/// Exists if systemd runs.
const SYSTEMD: &str = "/run/systemd/system";
/// The program that a unit of systemd asks for a passphrase: the user may answer at the console or
/// over a network.
const ASKING: &str = "/usr/bin/systemd-ask-password";

/// Errors of a path that does not lead to a file.
const NOT_THERE: [io::ErrorKind; 3] =
    [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory, io::ErrorKind::NotConnected];

/// The name that the program was called by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Helper {
    /// By mount(8): `mount.lacuna SPEC DIR [-sfnvrw] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
    Mount,
    /// By umount(8): `umount.lacuna DIR [-flnrv] [-N NAMESPACE] [-t TYPE]`.
    Unmount,
}

/// The helper that the program is called as, according to its first argument.
pub(crate) fn called_as(first: Option<&OsStr>) -> Option<Helper> {
    match Path::new(first?).file_name()?.to_str()? {
        "mount.lacuna" => Some(Helper::Mount),
        "umount.lacuna" => Some(Helper::Unmount),
        _ => None,
    }
}

impl Helper {
    /// The command line of `lacuna` for this call of the helper, or `None` if there is nothing to
    /// do.
    ///
    /// Errors: [`Kind::Usage`].
    pub(crate) fn command_line(self, given: impl Iterator<Item = OsString>) -> Result<Option<Vec<OsString>>> {
        let given: Vec<OsString> = given.collect();
        if let Some(answer) = self.answer(&given) {
            return console::bytes(format!("{answer}\n").as_bytes()).map(|()| None);
        }
        let given = HelperArgs::parse(self, given.into_iter())?;
        match self {
            Helper::Mount => given.to_open(),
            Helper::Unmount => given.to_close(),
        }
    }

    /// The help or the version, if it was asked for.
    fn answer(self, given: &[OsString]) -> Option<String> {
        let is_given = |wanted: [&str; 2]| given.iter().any(|word| wanted.iter().any(|one| word == one));
        if is_given(["-h", "--help"]) {
            return Some(format!("Usage: {}\n\n`man mount.lacuna` explains the options.", self.usage()));
        }
        let name = self.usage().split(' ').next()?;
        is_given(["-V", "--version"]).then(|| format!("{name} of lacuna {}", env!("CARGO_PKG_VERSION")))
    }

    /// Adds to a refused command line of this helper where its form is explained.
    pub(crate) fn explain(self, refused: Error) -> Error {
        refused.expected(self.usage()).hint("`man mount.lacuna` explains the options")
    }

    fn usage(self) -> &'static str {
        match self {
            Helper::Mount => "mount.lacuna LOCATION DIRECTORY [-sfnvrw] [-o OPTIONS]",
            Helper::Unmount => "umount.lacuna DIRECTORY [-flnrv]",
        }
    }
}

/// The parsed command line of a helper.
#[derive(Default)]
struct HelperArgs {
    names: Vec<OsString>,
    options: Vec<String>,
    /// Single-letter flags.
    flags: String,
}

impl HelperArgs {
    fn parse(helper: Helper, mut words: impl Iterator<Item = OsString>) -> Result<HelperArgs> {
        let mut given = HelperArgs::default();
        let what = match helper {
            Helper::Mount => "cannot mount",
            Helper::Unmount => "cannot unmount",
        };
        let usage = |found: String| helper.explain(Error::new(Kind::Usage, what).found(found));
        while let Some(word) = words.next() {
            let Some(letters) = word.to_str().and_then(|word| word.strip_prefix('-')) else {
                given.names.push(word);
                continue;
            };
            for (at, letter) in letters.char_indices() {
                if !"oNt".contains(letter) {
                    given.flags.push(letter);
                    continue;
                }
                // The value is the rest of this argument, or the next argument.
                let rest = &letters[at + 1..];
                let value = if rest.is_empty() { words.next() } else { Some(rest.into()) };
                let value = value.and_then(|value| value.into_string().ok());
                let value = value.ok_or_else(|| usage(format!("-{letter} without a value")))?;
                match letter {
                    'o' => given.options.push(value),
                    'N' => return Err(usage("a mount namespace to change to, which cannot be done".into())),
                    // The type is always that of the helper.
                    _ => {}
                }
                break;
            }
        }
        let known = match helper {
            Helper::Mount => "sfnvrw",
            Helper::Unmount => "flnrvc",
        };
        if let Some(unknown) = given.flags.chars().find(|letter| !known.contains(*letter)) {
            return Err(usage(format!("-{unknown}")));
        }
        let wanted = if helper == Helper::Mount { 2 } else { 1 };
        if given.names.len() != wanted {
            return Err(usage(format!("{} names", given.names.len())));
        }
        Ok(given)
    }

    fn has(&self, flag: char) -> bool {
        self.flags.contains(flag)
    }

    fn to_open(&self) -> Result<Option<Vec<OsString>>> {
        let mut options = MountOptions::parse(self.options.iter().map(String::as_str))?;
        options.read_only = (options.read_only || self.has('r')) && !self.has('w');
        // `-f` is a dry run. A disk that is open already is skipped, because `mount -a` does not
        // recognise it: mount(8) sees its loop device instead of its location.
        if self.has('f') || self.is_already_open(&options)? {
            return Ok(None);
        }
        refuse_missing(Path::new(&self.names[1]))?;
        let asks = !options.has_key_source && passphrase::credential_path().is_none();
        // Without systemd the question would have no answer.
        let can_ask = || Path::new(SYSTEMD).exists() && Path::new(ASKING).exists();
        if asks && !has_terminal() && can_ask() {
            options.open_args.push(format!("--askpass={ASKING}"));
        }
        let is_vault = Path::new(&self.names[0]).is_dir();
        if !is_vault && !options.raw && Path::new(UNMOUNTING).exists() {
            // Makes umount(8) call the helper, which returns when all data is on the medium.
            options.fs_options.push("helper=lacuna".to_owned());
        }
        let said = if self.has('v') { "--verbose" } else { "--quiet" };
        let mut words: Vec<OsString> = ["lacuna", said, "open"].map(OsString::from).into();
        words.extend(options.open_args.iter().map(OsString::from));
        if options.read_only {
            words.push("--read-only".into());
        }
        if !options.fs_options.is_empty() {
            words.push(format!("--mount-options={}", options.fs_options.join(",")).into());
        }
        words.push("--".into());
        words.extend(self.names.iter().cloned());
        words.extend(options.level_mountpoints.into_iter().map(OsString::from));
        Ok(Some(words))
    }

    /// Whether a server has this location open at this directory. Errors: the open disk is not the
    /// expected one, or takes writes although it is to be mounted read-only.
    fn is_already_open(&self, options: &MountOptions) -> Result<bool> {
        let Ok(location) = Location::from_os_str(&self.names[0]) else { return Ok(false) };
        let (location, at) = (status::canonical(&location), registered_paths(Path::new(&self.names[1]))?);
        for peer in Registry::open(None)?.all()? {
            let is_meant = peer.alive && peer.record.location == location;
            let Some(mount) = peer.mount().filter(|_| is_meant) else { continue };
            // Skip a mount that is just ending, or is an automount that waits.
            if at.contains(&mount.mountpoint)
                && lacuna_mount::is_mounted(&mount.mountpoint)?
                && !lacuna_mount::is_automount(&mount.mountpoint)?
            {
                options.expected().map_or(Ok(()), |id| check_mounted_id(&mount.mountpoint, id))?;
                // `rw` is no wish to write: mount(8) passes it unless it was told `ro`.
                if options.read_only && !peer.record.read_only {
                    return Err(takes_writes(&mount.mountpoint));
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn to_close(&self) -> Result<Option<Vec<OsString>>> {
        let at = PathBuf::from(&self.names[0]);
        if self.has('l') || !is_lacuna_mount(&at)? {
            return Err(exec_umount(&at, self.has('l')));
        }
        if lacuna_mount::has_automount(&at)? {
            return close_automounted(&at).map(|()| None);
        }
        let said = if self.has('v') { "--verbose" } else { "--quiet" };
        let words = ["lacuna", said, "close", "--"].map(OsString::from);
        Ok(Some(words.into_iter().chain([at.into_os_string()]).collect()))
    }
}

/// Refuses a mount point that does not exist, as mount(8) does. `open` would make it, and remove it
/// with the mount.
fn refuse_missing(mountpoint: &Path) -> Result<()> {
    match mountpoint.canonicalize() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let word = shell_word(mountpoint);
            Err(Error::io(format!("cannot mount at {}", mountpoint.display()), &e)
                .hint(format!("create the directory: mkdir -p {word}")))
        }
        // `open` reports any other error.
        _ => Ok(()),
    }
}

/// The error for a mount that takes writes where a read-only one is wanted.
fn takes_writes(mountpoint: &Path) -> Error {
    Error::new(Kind::Busy, format!("cannot mount read-only at {}", mountpoint.display()))
        .found("it is mounted there for writing")
        .hint(format!("umount it first: umount {}", shell_word(mountpoint)))
}

/// Refuses a mount point with another disk or vault than the expected one.
fn check_mounted_id(mountpoint: &Path, expected: &str) -> Result<()> {
    let naming = |e: Error| e.context(format!("cannot mount at {}", mountpoint.display()));
    let status = status::at_mountpoint(mountpoint)?;
    let expect = ExpectArgs { expect: Some(expected.parse()?) };
    remote_ops::check_status_id(&status, expect).map_err(naming)
}

/// Whether a lacuna mount is there, of a running or of a dead server.
fn is_lacuna_mount(at: &Path) -> Result<bool> {
    let at = registered_paths(at)?;
    let known = Registry::open(None)?.all()?;
    Ok(known.iter().any(|peer| peer.mount().is_some_and(|mount| at.contains(&mount.mountpoint))))
}

/// The paths that a mount point may be registered under. Does not access the mount point itself,
/// which may hang.
fn registered_paths(at: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e: &io::Error| Error::io(format!("cannot find {}", at.display()), e);
    let absolute = std::path::absolute(at).map_err(|e| failed(&e))?;
    let Some((dir, name)) = absolute.parent().zip(absolute.file_name()) else { return Ok(vec![absolute]) };
    let canonical = match dir.canonicalize() {
        Ok(dir) => Some(dir.join(name)),
        // The path does not exist, or a dead server's mount is on the way.
        Err(e) if NOT_THERE.contains(&e.kind()) => None,
        Err(e) => return Err(failed(&e)),
    };
    Ok(std::iter::once(absolute).chain(canonical).collect())
}

/// `umount(8)` without helpers.
fn umount() -> Command {
    let mut umount = Command::new("umount");
    umount.arg("--internal-only").env("PATH", lacuna_mount::search_path());
    umount
}

/// Unmounts a mount of a systemd automount, and waits for its server. While the automount expires,
/// the kernel admits only processes of systemd's process group: this helper belongs to it, the
/// server does not.
fn close_automounted(at: &Path) -> Result<()> {
    if !umount().arg("--").arg(at).status().map_err(|e| Error::io("cannot run umount", &e))?.success() {
        return Err(Error::new(Kind::Busy, format!("cannot unmount {}", at.display())));
    }
    match lacuna_daemon::close(at, None) {
        // The server noticed the unmount and has ended.
        Err(e) if e.kind() == Kind::NotFound => Ok(()),
        other => other.map(drop),
    }
}

/// Replaces this process with umount(8) without helpers. Returns only on failure.
fn exec_umount(at: &Path, lazily: bool) -> Error {
    let mut umount = umount();
    umount.args(lazily.then_some("--lazy")).arg("--").arg(at);
    Error::io("cannot run umount", &umount.exec())
}

fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(helper: Helper, given: &[&str]) -> Result<Option<Vec<String>>> {
        let words = helper.command_line(given.iter().map(OsString::from))?;
        Ok(words.map(|words| words.into_iter().map(|word| word.into_string().unwrap()).collect()))
    }

    #[test]
    fn the_program_name_selects_the_helper() {
        let named = |name: &str| called_as(Some(OsStr::new(name)));
        assert_eq!(named("/sbin/mount.lacuna"), Some(Helper::Mount));
        assert_eq!(named("umount.lacuna"), Some(Helper::Unmount));
        assert_eq!((named("/usr/bin/lacuna"), called_as(None)), (None, None));
    }

    #[test]
    fn a_mount_call_becomes_a_call_of_open() {
        // As mount(8) calls it.
        let given = ["d.img", "/mnt", "-o", "rw,noatime,keyfile=/k", "-v"];
        let words = words(Helper::Mount, &given).unwrap().unwrap();
        assert_eq!(words[..4], ["lacuna", "--verbose", "open", "--key-file=/k"]);
        assert!(words[4].starts_with("--mount-options=noatime"), "{words:?}");
        assert_eq!(words[5..], ["--", "d.img", "/mnt"]);
    }

    #[test]
    fn help_and_version_are_answers() {
        for (helper, usage) in
            [(Helper::Mount, "Usage: mount.lacuna LOCATION"), (Helper::Unmount, "Usage: umount.lacuna DIR")]
        {
            for word in ["-h", "--help", "-V", "--version"] {
                assert_eq!(words(helper, &[word]).unwrap(), None, "{word}");
            }
            let answer = |word: &str| helper.answer(&[word.into()]);
            assert!(answer("--help").is_some_and(|help| help.starts_with(usage)));
            assert!(answer("-V").is_some_and(|version| version.contains("mount.lacuna of lacuna 0.")));
            assert_eq!(answer("d.img"), None);
        }
    }

    #[test]
    fn flags_may_stand_anywhere_and_together() {
        let given = ["-nr", "d.img", "-okeyfile=/k,raw", "/mnt", "-t", "lacuna.ext4", "-s"];
        let words = words(Helper::Mount, &given).unwrap().unwrap();
        assert_eq!(
            words,
            ["lacuna", "--quiet", "open", "--key-file=/k", "--raw", "--read-only", "--", "d.img", "/mnt"]
        );
        assert_eq!(super::tests::words(Helper::Mount, &["d.img", "/mnt", "-f"]).unwrap(), None);
    }

    #[test]
    fn unsupported_arguments_are_refused() {
        for given in
            [&["d.img"][..], &["a", "b", "c"], &["a", "b", "-x"], &["a", "b", "-N", "1"], &["a", "b", "-o"]]
        {
            assert_eq!(words(Helper::Mount, given).unwrap_err().kind(), Kind::Usage, "{given:?}");
        }
        assert_eq!(words(Helper::Unmount, &["-n"]).unwrap_err().kind(), Kind::Usage);
    }
}
