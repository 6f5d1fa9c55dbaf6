//! Counts the operations of a server in the kernel with `bpftrace`: system calls, the bytes that
//! they move, thread switches, copies of memory. Counting costs the server time, so a counted turn
//! is not timed.

use crate::program;
use crate::workspace::Workspace;
use lacuna_contracts::{Error, Kind, Result};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Copies of fewer bytes do not count as copies of data.
const LEAST_COPY: u64 = 512;
const TRACER_TIMEOUT: Duration = Duration::from_secs(30);
const READY: &str = "counting";

/// Calls that read a file at an offset.
const READS: [i64; 3] = [libc::SYS_pread64, libc::SYS_preadv, libc::SYS_preadv2];
/// Calls that write a file at an offset.
const WRITES: [i64; 3] = [libc::SYS_pwrite64, libc::SYS_pwritev, libc::SYS_pwritev2];
/// Calls that make a file durable.
const SYNCS: [i64; 3] = [libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_syncfs];
/// The flag of a write that is durable when it returns.
const DURABLE: i32 = libc::RWF_DSYNC;
/// Calls that move bytes between a client and the server.
const CLIENT_CALLS: [i64; 8] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
];

/// All counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelCounts {
    /// System calls of all kinds.
    pub calls: u64,
    /// Thread switches.
    pub switches: u64,
    /// Bytes copied between the server and the kernel, and in the server's memory.
    pub copied: u64,
    /// Bytes read from files at an offset.
    pub read: u64,
    /// Bytes written to files at an offset.
    pub written: u64,
    /// Calls that read or write files at an offset.
    pub requests: u64,
    /// Calls that make a file or their own data durable.
    pub syncs: u64,
}

impl KernelCounts {
    /// The counts minus those of a part. Calls and switches of that part vary, so the difference
    /// saturates at zero.
    pub(crate) fn without(self, part: KernelCounts) -> KernelCounts {
        KernelCounts {
            calls: self.calls.saturating_sub(part.calls),
            switches: self.switches.saturating_sub(part.switches),
            copied: self.copied.saturating_sub(part.copied),
            read: self.read.saturating_sub(part.read),
            written: self.written.saturating_sub(part.written),
            requests: self.requests.saturating_sub(part.requests),
            syncs: self.syncs.saturating_sub(part.syncs),
        }
    }
}

/// A count in progress.
pub(crate) struct TracedCount {
    tracer: Child,
    output: PathBuf,
}

/// The file system of the kernel's tracepoints. systemd mounts it; elsewhere root can.
const TRACEFS: &str = "/sys/kernel/tracing";

/// The reason that nothing can be counted here, if any. Mounts the file system of tracepoints if it
/// is missing, and leaves it mounted.
pub(crate) fn unavailable_reason() -> Option<String> {
    let is_root = rustix::process::geteuid().is_root();
    if is_root && !Path::new(TRACEFS).join("events").exists() {
        // If this fails, bpftrace fails below, and the result names that.
        program::is_runnable("mount", &["-t", "tracefs", "tracefs", TRACEFS]);
    }
    let works =
        is_root && program::is_runnable("bpftrace", &["-e", "tracepoint:raw_syscalls:sys_enter { exit(); }"]);
    (!works).then(|| {
        "system calls, copies and requests to the medium are not counted: bpftrace does not work here".into()
    })
}

impl TracedCount {
    /// Starts counting the operations of a process.
    pub(crate) fn begin(work: &Workspace, pid: u32) -> Result<TracedCount> {
        let output = work.path("counts");
        let failed = |e| Error::io("cannot run bpftrace", &e).hint("install it");
        let file = File::create(&output).map_err(failed)?;
        let mut command = Command::new("bpftrace");
        // `-p` limits the probe on copies to this process; otherwise it would stop every process.
        command.args(["--unsafe", "-p", &pid.to_string(), "-e"]).arg(script(pid)?);
        command.stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file);
        let mut counting = TracedCount { tracer: command.spawn().map_err(failed)?, output };
        let begin = Instant::now();
        while !counting.tracer_output()?.contains(READY) {
            work.interrupt.check()?;
            let ended = counting.tracer.try_wait().map_err(failed)?;
            if ended.is_some() || begin.elapsed() > TRACER_TIMEOUT {
                let said = counting.tracer_output()?;
                return Err(Error::new(Kind::Other, "bpftrace did not start counting").found(said.trim()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(counting)
    }

    /// Stops counting and returns the counts. Errors: bpftrace does not end within
    /// [`TRACER_TIMEOUT`], or counted nothing.
    pub(crate) fn end(mut self) -> Result<KernelCounts> {
        self.stop_tracer()?;
        let said = self.tracer_output()?;
        match parse(&said) {
            counts if counts.calls > 0 => Ok(counts),
            _ => Err(Error::new(Kind::Other, "bpftrace counted nothing").found(said.trim())),
        }
    }

    /// Ends bpftrace with SIGINT. bpftrace may lose a signal that arrives just before it waits for
    /// events, so the signal is sent again each second.
    fn stop_tracer(&mut self) -> Result<()> {
        let failed = |e| Error::io("cannot wait for bpftrace", &e);
        let begin = Instant::now();
        let mut sent = 0;
        while self.tracer.try_wait().map_err(failed)?.is_none() {
            if begin.elapsed() > TRACER_TIMEOUT {
                return Err(Error::new(Kind::TimedOut, "bpftrace does not end after SIGINT")
                    .found(format!("it ran for {} s longer", TRACER_TIMEOUT.as_secs())));
            }
            if begin.elapsed() >= Duration::from_secs(sent) {
                sent += 1;
                self.interrupt_tracer()?;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn interrupt_tracer(&self) -> Result<()> {
        let Some(pid) = Pid::from_raw(self.tracer.id() as i32) else { return Ok(()) };
        match kill_process(pid, Signal::INT) {
            // bpftrace ends by itself with the traced process.
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(Error::io("cannot stop bpftrace", &e.into())),
        }
    }

    fn tracer_output(&self) -> Result<String> {
        std::fs::read_to_string(&self.output).map_err(|e| Error::io("cannot read the output of bpftrace", &e))
    }
}

impl Drop for TracedCount {
    fn drop(&mut self) {
        // Both fail harmlessly if it has already ended.
        let _ = self.tracer.kill();
        let _ = self.tracer.wait();
    }
}

fn script(pid: u32) -> Result<String> {
    let (libc, offset) = copy_function()?;
    Ok(format!(
        "tracepoint:raw_syscalls:sys_enter /pid == {pid}/ {{ @calls[args->id] = count(); }}
         tracepoint:raw_syscalls:sys_exit /pid == {pid} && args->ret > 0/ {{ @moved[args->id] = sum(args->ret); }}
         tracepoint:raw_syscalls:sys_enter /pid == {pid} && args->id == {pwritev2} && args->args[5] & {DURABLE}/ {{ @durable = count(); }}
         tracepoint:sched:sched_switch /pid == {pid}/ {{ @switches = count(); }}
         uprobe:{libc}:{offset:#x} /pid == {pid} && arg2 >= {LEAST_COPY}/ {{ @copied = sum(arg2); }}
         interval:ms:10 /@ready == 0/ {{ printf(\"{READY}\\n\"); @ready = 1; }}",
        pwritev2 = libc::SYS_pwritev2,
    ))
}

/// The C library, and the offset in it of the function that copies memory on this processor. All
/// programs here use it.
fn copy_function() -> Result<(String, u64)> {
    let address = libc::memcpy as *const () as u64;
    let maps = std::fs::read_to_string("/proc/self/maps")
        .map_err(|e| Error::io("cannot read /proc/self/maps", &e))?;
    let mapped = maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (range, offset) = (words.next()?, words.nth(1)?);
        let path = words.nth(2)?;
        let (from, to) = range.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (from, to, offset) = (hex(from)?, hex(to)?, hex(offset)?);
        (from..to).contains(&address).then(|| (path.to_owned(), address - from + offset))
    });
    mapped.ok_or_else(|| Error::new(Kind::NotFound, "cannot find the function that copies memory"))
}

/// Parses lines such as `@calls[17]: 1024` and `@switches: 12`.
fn parse(text: &str) -> KernelCounts {
    let mut maps: HashMap<(&str, i64), u64> = HashMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix('@')) {
        let Some((key, value)) = line.split_once(": ") else { continue };
        let (name, id) = key.trim_end_matches(']').split_once('[').unwrap_or((key, "-1"));
        if let (Ok(id), Ok(value)) = (id.parse(), value.trim().parse()) {
            maps.insert((name, id), value);
        }
    }
    let one = |name: &str| maps.get(&(name, -1)).copied().unwrap_or(0);
    let of =
        |name: &'static str, ids: &[i64]| -> u64 { ids.iter().filter_map(|id| maps.get(&(name, *id))).sum() };
    let (read, written) = (of("moved", &READS), of("moved", &WRITES));
    KernelCounts {
        calls: maps.iter().filter(|((name, _), _)| *name == "calls").map(|(_, count)| count).sum(),
        switches: one("switches"),
        copied: one("copied") + of("moved", &CLIENT_CALLS) + read + written,
        read,
        written,
        requests: of("calls", &READS) + of("calls", &WRITES),
        syncs: of("calls", &SYNCS) + one("durable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_summed_by_kind_of_call() {
        let (pread, pwrite, send, sync) =
            (libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_sendmsg, libc::SYS_fdatasync);
        let text = format!(
            "Attaching 5 probes...\ncounting\n\n@calls[{pread}]: 2\n@calls[{pwrite}]: 3\n@calls[{sync}]: 1\n@calls[{send}]: 4\n\
             @copied: 1000\n@durable: 2\n@moved[{pread}]: 8192\n@moved[{pwrite}]: 4096\n@moved[{send}]: 100\n@moved[12]: 99999\n\
             @ready: 1\n@switches: 7\n"
        );
        let counts = KernelCounts {
            calls: 10,
            switches: 7,
            copied: 1000 + 8192 + 4096 + 100,
            read: 8192,
            written: 4096,
            requests: 5,
            syncs: 3,
        };
        assert_eq!(parse(&text), counts);
    }

    #[test]
    fn the_function_that_copies_lies_in_a_library() {
        let (path, offset) = copy_function().unwrap();
        assert!(path.contains("libc") && offset > 0, "{path} {offset:#x}");
    }
}
