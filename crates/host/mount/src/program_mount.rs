//! A file system that a program serves from the file of a disk through FUSE: fuse2fs or lklfuse.
//! The program is a child of the server. Its last writes are on the disk only after it has exited
//! with success.

use crate::command::{self, BackgroundChild, PipedChild, ProgramOutput};
use crate::cover_retry::CoverRetry;
use crate::mount_method::Program;
use crate::unmount::{busy_or_failed, covered_error, start_unmounting, unmount_lazily};
use crate::{mount_table, proc};
use lacuna_contracts::{Action, Disk, Error, Hint, Kind, Result};
use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often to check whether the program has mounted, or its mount is gone.
const PROGRAM_INTERVAL: Duration = Duration::from_millis(10);
/// How long a program may make no request to its disk, before it has mounted and after its mount is
/// gone, until it counts as stuck.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// The options of a mount with a program.
pub(crate) struct ProgramRequest<'r> {
    /// The first part of errors.
    pub what: &'r str,
    /// The program.
    pub program: Program,
    /// The disk.
    pub disk: &'r Arc<CoverRetry>,
    /// The file of the disk.
    pub file: &'r Path,
    /// The type of the file system on it.
    pub kind: &'r str,
    /// The canonical path of the mount point.
    pub mountpoint: &'r Path,
    /// Further mount options.
    pub options: Option<&'r str>,
    /// Whether to mount read-only.
    pub read_only: bool,
}

/// The mount and its program. Dropping it unmounts, unless it is in use.
pub(crate) struct ProgramMount {
    program: Program,
    file: PathBuf,
    mountpoint: PathBuf,
    running: RunningProgram,
    /// The unmount that an earlier close gave up waiting for, if it still runs.
    abandoned_unmount: Mutex<Option<BackgroundChild>>,
}

/// A running program, and the disk that it uses.
struct RunningProgram {
    name: &'static str,
    process: u32,
    disk: Arc<CoverRetry>,
    state: Arc<ProcessState>,
}

/// The stage of the program, with a wake-up for each change.
#[derive(Default)]
struct ProcessState {
    stage: Mutex<ProcessStage>,
    changed: Condvar,
}

#[derive(Clone, Default)]
enum ProcessStage {
    #[default]
    Running,
    /// The program has exited; its writes are being flushed.
    Flushing,
    Ended(ExitInfo),
}

/// The exit of a program.
#[derive(Clone)]
struct ExitInfo {
    /// Whether the exit code is 0. Some programs return 0 even if they refused to mount or could
    /// not write.
    is_success: bool,
    /// Its last output.
    message: String,
}

impl ProcessState {
    fn set_stage(&self, stage: ProcessStage) {
        *self.stage.lock() = stage;
        self.changed.notify_all();
    }

    fn exit_info(&self) -> Option<ExitInfo> {
        match &*self.stage.lock() {
            ProcessStage::Ended(ending) => Some(ending.clone()),
            ProcessStage::Running | ProcessStage::Flushing => None,
        }
    }

    /// Waits at most `limit` for a change.
    fn wait(&self, limit: Duration) -> ProcessStage {
        let mut stage = self.stage.lock();
        if !matches!(*stage, ProcessStage::Ended(_)) {
            self.changed.wait_for(&mut stage, limit);
        }
        stage.clone()
    }
}

impl RunningProgram {
    /// Starts the program. Calls `ended` on a thread of its own when it has ended.
    fn start(
        name: &'static str,
        words: &[OsString],
        disk: &Arc<CoverRetry>,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let child = command::spawn_piped(name, words)?;
        let process = child.id();
        let (state, disk) = (Arc::new(ProcessState::default()), Arc::clone(disk));
        let (reported, flushed) = (Arc::clone(&state), Arc::clone(&disk));
        let wait = move |talking: PipedChild| {
            let finished = talking.finish();
            reported.set_stage(ProcessStage::Flushing);
            let ending = match finished {
                Ok(finished) => ExitInfo { is_success: finished.success(), message: finished.message() },
                Err(words) => ExitInfo { is_success: false, message: words },
            };
            if ending.is_success {
                // The flush may wait for cover, as the program's writes did. Closing the disk
                // reports its failure.
                let _ = flushed.flush();
            }
            reported.set_stage(ProcessStage::Ended(ending));
            ended();
        };
        std::thread::Builder::new()
            .name(format!("lacuna-{name}"))
            .spawn(move || wait(child))
            .map_err(|e| Error::io(format!("cannot wait for {name}"), &e))?;
        Ok(RunningProgram { name, process, disk, state })
    }

    /// Waits until `done` returns true, or until the program has ended. Errors: [`Kind::TimedOut`]
    /// if it makes no request to its disk for `limit`; those of `done`.
    fn wait(&self, limit: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<Option<ExitInfo>> {
        let mut last = Instant::now();
        loop {
            match self.state.wait(PROGRAM_INTERVAL) {
                ProcessStage::Ended(ending) => return Ok(Some(ending)),
                ProcessStage::Running if !self.disk.has_requests_in_flight() => {}
                ProcessStage::Running | ProcessStage::Flushing => last = Instant::now(),
            }
            if done()? {
                return Ok(None);
            }
            if last.elapsed() >= limit {
                return Err(Error::new(Kind::TimedOut, format!("cannot wait for {}", self.name)).found(
                    format!("process {}, which sends no requests to its disk and does not end", self.process),
                ));
            }
        }
    }

    fn kill(&self) {
        // After it has ended, another process may have its number.
        if matches!(*self.state.stage.lock(), ProcessStage::Running)
            && let Some(process) = i32::try_from(self.process).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

impl ProgramMount {
    /// Starts the program and waits until it has mounted. Calls `ended` on a thread of its own when
    /// the program has ended and its writes are durable.
    pub(crate) fn start(request: &ProgramRequest<'_>, ended: impl FnOnce() + Send + 'static) -> Result<Self> {
        let program = request.program;
        let running = RunningProgram::start(program.name(), &program_args(request), request.disk, ended)?;
        let (file, mountpoint) = (request.file.to_owned(), request.mountpoint.to_owned());
        let mount = ProgramMount { program, file, mountpoint, running, abandoned_unmount: Mutex::default() };
        match mount.running.wait(IDLE_LIMIT, || mount.is_in_mount_table()) {
            Ok(None) => Ok(mount),
            Ok(Some(ExitInfo { message: said, .. })) => {
                let kind = if command::is_permission_error(&said) { Kind::Permission } else { Kind::Other };
                Err(Error::new(kind, request.what).found(command::of_program(program.name(), said)))
            }
            Err(e) => {
                mount.running.kill();
                // It may have mounted with another source than it was given.
                let is_there = || Ok(mount_table::at(&mount.mountpoint)?.is_some());
                if is_there()? {
                    let _ = unmount_lazily(&mount.mountpoint, is_there);
                }
                Err(e.context(request.what))
            }
        }
    }

    pub(crate) fn program(&self) -> Program {
        self.program
    }

    /// Whether it is mounted and not covered by another mount.
    pub(crate) fn is_on_top(&self) -> Result<bool> {
        Ok(mount_table::at(&self.mountpoint)?.is_some_and(|top| top.is_served_from(&self.file)))
    }

    fn is_in_mount_table(&self) -> Result<bool> {
        let entries = mount_table::entries()?;
        Ok(entries.iter().any(|e| e.mountpoint == self.mountpoint && e.is_served_from(&self.file)))
    }

    /// The exit of the program; `None` while it runs. Errors: it ended before it had written
    /// everything.
    pub(crate) fn exit_result(&self) -> Option<Result<()>> {
        let ending = self.running.state.exit_info()?;
        Some(if ending.is_success { Ok(()) } else { Err(self.failed_error(&ending.message)) })
    }

    fn failed_error(&self, words: &str) -> Error {
        let program = self.program.name();
        Error::new(Kind::Io, format!("{program} failed, which served {}", self.mountpoint.display()))
            .found(words)
            .expected("it to run until it is unmounted")
            .hint(Hint::from("end it with ").action(Action("close")).text(
                " and open it again, which repairs the file system; writes that were not fsynced may be lost",
            ))
    }

    /// Unmounts, unless it is unmounted already, and waits until the program has written
    /// everything. Calls `detached` as soon as the file system cannot be used any more. Errors:
    /// [`Kind::Busy`] if it is in use.
    ///
    /// After two errors the program goes on, and calls `ended` later: [`Kind::Busy`] if it does
    /// nothing and does not end, [`Kind::NoCover`] if its remaining writes wait for cover in vain.
    pub(crate) fn unmount(&self, detached: impl FnOnce()) -> Result<()> {
        let begun = Instant::now();
        if self.is_in_mount_table()? {
            if !self.is_on_top()? {
                return Err(covered_error(&self.mountpoint));
            }
            if self.exit_result().is_some() {
                unmount_lazily(&self.mountpoint, || self.is_in_mount_table())?;
            } else {
                let finished = self.unmount_and_wait(begun)?;
                if self.is_in_mount_table()? {
                    return Err(busy_or_failed(&self.mountpoint, &finished));
                }
            }
        }
        detached();
        self.wait(|| self.check_cover(begun).map(|()| false)).map(drop)
    }

    /// Unmounts, unless the mount is in use. This waits for the program, which may have to write
    /// first.
    fn unmount_and_wait(&self, begun: Instant) -> Result<ProgramOutput> {
        let mut given_up = self.abandoned_unmount.lock();
        let mut earlier = given_up.take();
        if let Some(unmounting) = &mut earlier
            && unmounting.try_finish()?.is_some()
        {
            earlier = None;
        }
        let mut unmounting = earlier.map_or_else(|| start_unmounting(&self.mountpoint), Ok)?;
        let mut finished = None;
        let waited = self.wait(|| {
            finished = unmounting.try_finish()?;
            if finished.is_none() {
                self.check_cover(begun)?;
            }
            Ok(finished.is_some())
        });
        if let Err(e) = waited {
            *given_up = Some(unmounting);
            return Err(e);
        }
        // If the program has ended, nothing delays the unmount any more.
        loop {
            match finished.take() {
                Some(finished) => return Ok(finished),
                None => std::thread::sleep(PROGRAM_INTERVAL),
            }
            finished = unmounting.try_finish()?;
        }
    }

    fn wait(&self, done: impl FnMut() -> Result<bool>) -> Result<Option<ExitInfo>> {
        self.running.wait(IDLE_LIMIT, done).map_err(|e| match e.kind() {
            Kind::TimedOut => self.still_running_error(),
            _ => e,
        })
    }

    /// Errors: a try that began after `begun` was refused for want of cover, and is being retried.
    fn check_cover(&self, begun: Instant) -> Result<()> {
        let disk = &self.running.disk;
        match disk.refused_since(begun).filter(|_| disk.is_retrying()) {
            Some(e) => Err(e.context(format!("cannot close {}", self.mountpoint.display())).hint(
                "nothing is lost, and the server ends by itself when the rest is written: write to level 0",
            )),
            None => Ok(()),
        }
    }

    /// The error for a program that does not end.
    fn still_running_error(&self) -> Error {
        let error = Error::new(Kind::Busy, format!("cannot close {}", self.mountpoint.display()));
        let elsewhere = || mounted_elsewhere(&self.file);
        if let Some(process) = self.is_in_mount_table().is_ok_and(|here| !here).then(elsewhere).flatten() {
            return error
                .found(format!(
                    "unmounted here, but still mounted in the mount namespace of process {process}"
                ))
                .hint("unmount it there; the server then ends by itself");
        }
        let RunningProgram { name, process, .. } = &self.running;
        error
            .found(format!("{name} (process {process}), which is idle and does not end"))
            .expected("it to write the remaining data, and to end")
            .hint(format!(
                "if it was stopped, `kill -CONT {process}` resumes it; if it is still mounted in a container, unmount it there; \
                 the server then ends by itself"
            ))
    }
}

impl Drop for ProgramMount {
    fn drop(&mut self) {
        if self.running.state.exit_info().is_none() {
            let _ = self.unmount(|| {});
        }
    }
}

/// Refuses mount options that would change the source of the mount, by which it is recognized.
/// `what` begins the error. Errors: [`Kind::Usage`].
pub(crate) fn check_options(what: &str, program: Program, options: Option<&str>) -> Result<()> {
    let mut given = options.into_iter().flat_map(|list| list.split(','));
    let unknown = |option: &&str| *option == "no_default_opts" || option.starts_with("fsname=");
    let Some(refused) = given.find(unknown) else { return Ok(()) };
    Err(Error::new(Kind::Usage, what)
        .found(format!("the mount option {refused} for {}", program.name()))
        .expected("no option that gives the mount another name: the mount is known by its name")
        .hint("leave it out"))
}

/// Options that the kernel applies to every mount and that no file system knows. For the option
/// `user`, mount(8) passes the first three.
const OF_MOUNTS: [&str; 6] = ["noexec", "nosuid", "nodev", "exec", "suid", "dev"];

/// The arguments of the program.
fn program_args(request: &ProgramRequest<'_>) -> Vec<OsString> {
    // Drop `helper=`, which is for mount(8), and two options that name defaults and that libfuse
    // does not know.
    let given = request.options.into_iter().flat_map(|list| list.split(','));
    let given = given.filter(|option| !option.is_empty() && !option.starts_with("helper="));
    let given = given.filter(|option| !["relatime", "symfollow"].contains(option));
    let mut options: Vec<String> = request.read_only.then(|| "ro".to_owned()).into_iter().collect();
    let name = format!("fsname={}", request.file.display());
    if request.program == Program::Lklfuse {
        options.push(format!("type={}", request.kind));
        options.push(name);
        let (outer, inner): (Vec<&str>, Vec<&str>) = given.partition(|option| OF_MOUNTS.contains(option));
        options.extend(outer.into_iter().map(str::to_owned));
        if !inner.is_empty() {
            options.push(format!("opts={}", inner.join("\\,").replace('=', "\\=")));
        }
    } else {
        // The kernel's ext4 and fuse2fs have different names for this option.
        let known = |option: &str| if option == "noload" { "norecovery" } else { option }.to_owned();
        options.push(name);
        options.extend(given.map(known));
    }
    let mut words: Vec<OsString> = vec![request.file.into(), request.mountpoint.into(), "-f".into()];
    words.extend(["-o".into(), options.join(",").into()]);
    words
}

/// A process with a mount namespace where the file system on `file` is mounted, as far as this user
/// may inspect.
fn mounted_elsewhere(file: &Path) -> Option<u32> {
    let is_there = |process: &u32| {
        let entries = mount_table::entries_of(process);
        entries.is_ok_and(|entries| entries.iter().any(|entry| entry.is_served_from(file)))
    };
    proc::processes().find(is_there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cover_retry::{CoverRole, uncovered};

    fn idle() -> Arc<CoverRetry> {
        Arc::new(uncovered(0, CoverRole::Unneeded))
    }

    fn asked<'r>(
        disk: &'r Arc<CoverRetry>,
        program: Program,
        options: Option<&'r str>,
        read_only: bool,
    ) -> ProgramRequest<'r> {
        let (file, mountpoint) = (Path::new("/run/x/disk"), Path::new("/mnt/a b"));
        let (what, kind) = ("cannot mount", "ext4");
        ProgramRequest { what, program, disk, file, kind, mountpoint, options, read_only }
    }

    fn args_text(program: Program, options: Option<&str>, read_only: bool) -> String {
        let disk = idle();
        let words = program_args(&asked(&disk, program, options, read_only));
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        words.join("|")
    }

    #[test]
    fn each_program_gets_its_own_arguments() {
        let plain = "/run/x/disk|/mnt/a b|-f|-o|fsname=/run/x/disk";
        assert_eq!(args_text(Program::Fuse2fs, None, false), plain);
        let read = "/run/x/disk|/mnt/a b|-f|-o|ro,fsname=/run/x/disk,norecovery,noatime";
        assert_eq!(args_text(Program::Fuse2fs, Some("noload,noatime"), true), read);
        let lkl = r"/run/x/disk|/mnt/a b|-f|-o|ro,type=ext4,fsname=/run/x/disk,opts=noload\,commit\=9";
        assert_eq!(args_text(Program::Lklfuse, Some("noload,commit=9"), true), lkl);
        let of_user = "/run/x/disk|/mnt/a b|-f|-o|type=ext4,fsname=/run/x/disk,noexec,nosuid";
        assert_eq!(args_text(Program::Lklfuse, Some("noexec,nosuid,symfollow"), false), of_user);
        for option in ["noatime,no_default_opts", "fsname=other"] {
            let refused = check_options("cannot mount", Program::Fuse2fs, Some(option)).unwrap_err();
            assert_eq!(refused.kind(), Kind::Usage);
        }
    }

    #[test]
    fn waiting_for_an_idle_program_times_out() {
        let disk = idle();
        let program = RunningProgram::start("sleep", &["1000".into()], &disk, || {}).unwrap();
        let limit = Duration::from_millis(50);
        let stuck = program.wait(limit, || Ok(false)).err().unwrap();
        assert_eq!(stuck.kind(), Kind::TimedOut);
        assert!(stuck.to_string().contains(&program.process.to_string()), "{stuck}");
        program.kill();
        let ending = program.wait(Duration::from_secs(60), || Ok(false)).unwrap().unwrap();
        assert!(!ending.is_success && ending.message.contains("signal 9"), "{}", ending.message);
    }
}
