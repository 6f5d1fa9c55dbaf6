//! Runs programs of the system: arguments as a list, never through a shell; their output in errors.

use crate::system_call;
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::Mutex;
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// The characters of a program's output that an error quotes: the first of a program that was run,
/// the last of one that served.
const MOST_WORDS: usize = 400;

/// The result of a program that has ended.
pub struct ProgramOutput {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    signal: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error on one line.
    pub stderr: String,
}

impl ProgramOutput {
    fn new(output: &Output) -> ProgramOutput {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        ProgramOutput {
            code: output.status.code(),
            signal: output.status.signal(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr).lines().map(str::trim).collect::<Vec<_>>().join(" / "),
        }
    }

    /// Whether it ended with exit code 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }

    /// The text to quote: the program's standard error, and how it ended if that is empty or a
    /// signal ended it.
    pub fn message(&self) -> String {
        let whole = without_usage(&self.stderr);
        let mut said: String = whole.chars().take(MOST_WORDS).collect();
        if said.len() < whole.len() {
            said.push_str("...");
        }
        match (said.is_empty(), self.code, self.signal) {
            (true, Some(code), _) => format!("exit code {code} without a message"),
            (true, None, Some(signal)) => format!("ended by signal {signal}"),
            (true, None, None) => "ended without a message".to_owned(),
            (false, _, Some(signal)) => format!("{said} (ended by signal {signal})"),
            (false, _, None) => said,
        }
    }

    /// [`ProgramOutput::message`] with the name of the program before them, unless they begin with
    /// it.
    pub fn words_of(&self, program: &str) -> String {
        of_program(program, self.message())
    }
}

/// The words of a program with its name before them, unless they begin with it.
pub(crate) fn of_program(program: &str, words: String) -> String {
    let is_named = words.strip_prefix(program).is_some_and(|rest| rest.starts_with(':'));
    if is_named { words } else { format!("{program}: {words}") }
}

/// Cuts off the usage that some programs print after their error.
fn without_usage(said: &str) -> &str {
    let usage = [" / Usage:", " / usage:"].into_iter().filter_map(|begin| said.find(begin)).min();
    usage.map_or(said, |at| &said[..at])
}

/// [`run_checked`] for a program that must stay in the process group of this process.
pub(crate) fn run_checked_in_our_group<S: AsRef<OsStr>>(
    what: &str,
    program: &str,
    args: &[S],
) -> Result<ProgramOutput> {
    let output =
        command_in_our_group(program, args).output().map_err(|e| not_started(program, &e).context(what))?;
    check_success(what, program, ProgramOutput::new(&output))
}

/// Runs `program` to its end. Errors: it cannot be started.
pub fn run<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<ProgramOutput> {
    let output = command(program, args).output().map_err(|e| not_started(program, &e))?;
    Ok(ProgramOutput::new(&output))
}

/// Starts `program` without waiting for it. Its output must be short: nothing reads the pipe before
/// it has ended.
pub(crate) fn spawn<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<BackgroundChild> {
    let mut command = command(program, args);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    Ok(BackgroundChild(Some(command.spawn().map_err(|e| not_started(program, &e))?)))
}

/// A program that was started; `None` once it has ended. If its handle is dropped it goes on,
/// and the next drop reaps it. No thread waits for it, because a server that forks into the
/// background must have none.
pub(crate) struct BackgroundChild(Option<Child>);

/// Children that outlived their handles; reaped on the next drop of a handle.
static UNREAPED: Mutex<Vec<Child>> = Mutex::new(Vec::new());

impl BackgroundChild {
    /// Its result, if it has ended.
    pub(crate) fn try_finish(&mut self) -> Result<Option<ProgramOutput>> {
        let failed = |e: io::Error| Error::io("cannot wait for a program", &e);
        let Some(child) = &mut self.0 else { return Ok(None) };
        let Some(status) = child.try_wait().map_err(failed)? else { return Ok(None) };
        let (pipe, mut stderr) = (child.stderr.take(), Vec::new());
        self.0 = None;
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut stderr).map_err(failed)?;
        }
        Ok(Some(ProgramOutput::new(&Output { status, stdout: Vec::new(), stderr })))
    }
}

impl Drop for BackgroundChild {
    fn drop(&mut self) {
        if let Some(child) = self.0.take() {
            let mut left = UNREAPED.lock();
            left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            left.push(child);
        }
    }
}

/// Starts `program` as a server with its output read while it runs. Its working directory is the
/// root directory, so that it keeps no other mount busy.
pub(crate) fn spawn_piped<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<PipedChild> {
    let failed = |e: &io::Error| Error::io(format!("cannot read the output of {program}"), e);
    let (words, theirs) = io::pipe().map_err(|e| failed(&e))?;
    let mut command = command(program, args);
    command.current_dir("/").stdout(theirs.try_clone().map_err(|e| failed(&e))?).stderr(theirs);
    let child = command.spawn().map_err(|e| not_started(program, &e))?;
    Ok(PipedChild { child, output: words })
}

/// A program that serves.
pub(crate) struct PipedChild {
    child: Child,
    output: PipeReader,
}

impl PipedChild {
    /// Its process number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Reads its output until it ends, and keeps the last [`MOST_WORDS`] characters. Errors:
    /// waiting for it failed.
    pub(crate) fn finish(mut self) -> std::result::Result<ProgramOutput, String> {
        let (mut last, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            match self.output.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => {
                    last.extend_from_slice(&piece[..read]);
                    // A character has at most four bytes.
                    last.drain(..last.len().saturating_sub(4 * MOST_WORDS));
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let status = self.child.wait().map_err(|e| e.to_string())?;
        let mut finished = ProgramOutput::new(&Output { status, stdout: Vec::new(), stderr: last });
        let before = finished.stderr.chars().count().saturating_sub(MOST_WORDS);
        finished.stderr = finished.stderr.chars().skip(before).collect();
        Ok(finished)
    }
}

/// Whether an executable of this name is on the search path.
pub(crate) fn is_installed(program: &str) -> bool {
    let executable = |path: PathBuf| {
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&search_path()).any(|dir| executable(dir.join(program)))
}

fn command<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Command {
    let mut command = command_in_our_group(program, args);
    // In a group of its own, so that the terminal's interrupt key cannot stop an unmount half way.
    command.process_group(0);
    command
}

fn command_in_our_group<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C").env("PATH", search_path()).stdin(Stdio::null());
    // fuse2fs would write its output to that file, where it would be lost.
    command.env_remove("FUSE2FS_LOGFILE");
    // A program that serves would hold a lock or a pipe of the shell that started the server.
    system_call::withhold_descriptors(&mut command);
    command
}

fn not_started(program: &str, e: &io::Error) -> Error {
    let error = Error::io(format!("cannot run {program}"), e);
    if e.kind() == io::ErrorKind::NotFound {
        let package = package(program).unwrap_or("often util-linux");
        error.hint(format!("install the package that has {program} ({package})"))
    } else {
        error
    }
}

/// Runs `program`; any outcome other than success is an error that begins with `what`.
pub fn run_checked<S: AsRef<OsStr>>(what: &str, program: &str, args: &[S]) -> Result<ProgramOutput> {
    check_success(what, program, run(program, args).map_err(|e| e.context(what))?)
}

fn check_success(what: &str, program: &str, finished: ProgramOutput) -> Result<ProgramOutput> {
    if finished.success() {
        return Ok(finished);
    }
    let kind = if is_permission_error(&finished.stderr) { Kind::Permission } else { Kind::Other };
    Err(Error::new(kind, what).found(finished.words_of(program)))
}

/// Whether a program's error output means a lack of privileges.
pub(crate) fn is_permission_error(stderr: &str) -> bool {
    let stderr = stderr.to_lowercase();
    ["permission denied", "not permitted", "must be superuser", "only root"]
        .iter()
        .any(|w| stderr.contains(w))
}

/// The system's own program directories.
const SYSTEM: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The search path for programs. The PATH of root may contain directories that other users can
/// write to, so for root the system's own directories come first, followed by the absolute
/// directories of PATH.
pub fn search_path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if rustix::process::geteuid().is_root() { for_root(&path) } else { for_others(&path) }
}

fn for_root(path: &OsStr) -> OsString {
    let absolute = std::env::split_paths(path).filter(|dir| dir.is_absolute());
    joined(std::env::split_paths(SYSTEM).chain(absolute))
}

/// The user's search path, and then the system's directories, which it may lack.
fn for_others(path: &OsStr) -> OsString {
    // An empty part would mean the working directory.
    let own = std::env::split_paths(path).filter(|dir| !dir.as_os_str().is_empty());
    joined(own.chain(std::env::split_paths(SYSTEM)))
}

fn joined(dirs: impl Iterator<Item = PathBuf>) -> OsString {
    // Joining fails only for a directory with a colon in its name, and splitting at colons produces
    // none.
    std::env::join_paths(dirs.chain(["/usr/local/sbin".into()])).unwrap_or_else(|_| SYSTEM.into())
}

/// The package of a program, if it is known.
pub(crate) fn package(program: &str) -> Option<&'static str> {
    Some(match program {
        "mkfs.ext2" | "mkfs.ext3" | "mkfs.ext4" | "debugfs" | "e2fsck" | "resize2fs" => "e2fsprogs",
        "mkfs.xfs" | "xfs_growfs" => "xfsprogs",
        "mkfs.btrfs" | "btrfs" => "btrfs-progs",
        "mkfs.f2fs" => "f2fs-tools",
        "mkfs.vfat" | "mkfs.fat" | "mkfs.msdos" => "dosfstools",
        "mkfs.exfat" => "exfatprogs",
        "mkfs.ntfs" => "ntfs-3g",
        "fusermount3" => "fuse3",
        "sync" => "coreutils",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn root_searches_the_system_directories_first() {
        let path = OsStr::new("/home/me/bin::.:bin:/opt/bin");
        assert_eq!(
            for_root(path).to_str(),
            Some("/usr/sbin:/usr/bin:/sbin:/bin:/home/me/bin:/opt/bin:/usr/local/sbin")
        );
        assert!(for_others(path).to_str().unwrap().starts_with("/home/me/bin:.:bin:/opt/bin:/usr/sbin:"));
        assert_eq!(for_root(OsStr::new("")).to_str(), Some("/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin"));
    }

    #[test]
    fn a_program_gets_the_standard_streams_alone() {
        // Unlike other descriptors of this process, programs inherit a duplicate.
        let duplicate = rustix::io::dup(tempfile::tempfile().unwrap()).unwrap();
        let at = format!("/proc/self/fd/{}", duplicate.as_raw_fd());
        assert!(Command::new("test").args(["-e", &at]).status().unwrap().success());
        assert!(!run("test", &["-e", &at]).unwrap().success());
        assert!(run("test", &["-e", "/proc/self/fd/2"]).unwrap().success());
    }

    #[test]
    fn errors_quote_the_output_of_the_program() {
        let e = run_checked("cannot list", "ls", &["--no-such-option"]).err().unwrap();
        assert!(e.to_string().starts_with("cannot list; found: ls: "), "{e}");
        let e = run_checked("cannot list", "no-such-program-here", &["x"]).err().unwrap();
        assert!(e.to_string().contains("install the package"), "{e}");
        assert_eq!(e.kind(), Kind::NotFound);
        assert!(e.to_string().contains("(often util-linux)"), "{e}");
        assert_eq!((package("sync"), package("mkfs.ntfs")), (Some("coreutils"), Some("ntfs-3g")));
    }

    #[test]
    fn a_program_is_named_once_and_its_usage_is_left_out() {
        let of = |script: &str| run("sh", &["-c", script]).unwrap().words_of("mkfs.xfs");
        let refused = "mkfs.xfs: Filesystem must be larger than 300MB.";
        assert_eq!(of("printf 'Filesystem must be larger than 300MB.\\nUsage: mkfs.xfs\\n' >&2"), refused);
        assert_eq!(of(&format!("echo '{refused}' >&2")), refused);
        assert_eq!(of("echo mkfs.xfs2: no >&2"), "mkfs.xfs: mkfs.xfs2: no");
        assert_eq!(of("echo Usage: mkfs.xfs >&2"), "mkfs.xfs: Usage: mkfs.xfs");
    }

    #[test]
    fn the_last_output_of_a_piped_program_is_kept() {
        let of = |script: &str| spawn_piped("sh", &["-c", script]).unwrap().finish().unwrap();
        assert_eq!(
            of("echo out of memory >&2; kill -KILL $$").message(),
            "out of memory (ended by signal 9)"
        );
        assert_eq!(of("kill -KILL $$").message(), "ended by signal 9");
        assert_eq!(of("exit 3").message(), "exit code 3 without a message");
        // A truncated character is dropped.
        let long = of(&format!("printf %s x{}end", "\u{20ac}".repeat(2 * MOST_WORDS))).message();
        assert_eq!(long, format!("{}end", "\u{20ac}".repeat(MOST_WORDS - 3)));
    }

    #[test]
    fn the_first_output_of_a_program_is_kept() {
        let long =
            run("sh", &["-c", &format!("printf %s {}end >&2", "\u{20ac}".repeat(MOST_WORDS))]).unwrap();
        assert_eq!(long.message(), format!("{}...", "\u{20ac}".repeat(MOST_WORDS)));
    }
}
