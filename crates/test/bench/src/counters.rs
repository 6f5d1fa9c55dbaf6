//! What a server asks of the system, counted by the kernel with `bpftrace`: system calls, what they
//! move, switches of threads, copies of memory. Counting costs the server time, so a turn that is
//! counted is not timed.

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

/// Copies of fewer bytes are no copies of data.
const LEAST_COPY: u64 = 512;
const PATIENCE: Duration = Duration::from_secs(30);
const READY: &str = "counting";

/// Calls that read a file at a place.
const READS: [i64; 3] = [libc::SYS_pread64, libc::SYS_preadv, libc::SYS_preadv2];
/// Calls that write a file at a place.
const WRITES: [i64; 3] = [libc::SYS_pwrite64, libc::SYS_pwritev, libc::SYS_pwritev2];
/// Calls that make a file durable.
const SYNCS: [i64; 3] = [libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_syncfs];
/// The flag of a write that is durable when it returns.
const DURABLE: i32 = libc::RWF_DSYNC;
/// Calls that move bytes between a client and the server.
const CONVERSATION: [i64; 8] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
];

/// Everything that was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// System calls of all kinds.
    pub calls: u64,
    /// How often a thread stopped running.
    pub switches: u64,
    /// Bytes that were copied: between the server and the kernel, and in the server's memory.
    pub copied: u64,
    /// Bytes read from files at a place.
    pub read: u64,
    /// Bytes written to files at a place.
    pub written: u64,
    /// Calls that did either.
    pub requests: u64,
    /// Calls that make a file durable, or what they write.
    pub syncs: u64,
}

impl Counts {
    /// What is left without a part of it. Calls and switches of that part are not the same every
    /// time: nothing is less than nothing.
    pub(crate) fn without(self, part: Counts) -> Counts {
        Counts {
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

/// A count under way.
pub(crate) struct Counting {
    tracer: Child,
    output: PathBuf,
}

/// Where the kernel tells of its tracepoints. systemd mounts it; elsewhere root may.
const TRACEFS: &str = "/sys/kernel/tracing";

/// Why nothing is counted here, if it is not. Mounts the file system of tracepoints where that is
/// missing, and leaves it mounted.
pub(crate) fn missing() -> Option<String> {
    let is_root = rustix::process::geteuid().is_root();
    if is_root && !Path::new(TRACEFS).join("events").exists() {
        // Where this fails, bpftrace does not work either, and the answer says so.
        program::runs("mount", &["-t", "tracefs", "tracefs", TRACEFS]);
    }
    let works =
        is_root && program::runs("bpftrace", &["-e", "tracepoint:raw_syscalls:sys_enter { exit(); }"]);
    (!works).then(|| {
        "system calls, copies and what the medium is asked are not counted: bpftrace does not work here"
            .into()
    })
}

impl Counting {
    /// Counts what a process does from now on.
    pub(crate) fn begin(work: &Workspace, pid: u32) -> Result<Counting> {
        let output = work.path("counts");
        let failed = |e| Error::io("cannot run bpftrace", &e).remedy("install it");
        let file = File::create(&output).map_err(failed)?;
        let mut command = Command::new("bpftrace");
        // With the number of the process the copies of no other process are stopped at and counted.
        command.args(["--unsafe", "-p", &pid.to_string(), "-e"]).arg(script(pid)?);
        command.stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file);
        let mut counting = Counting { tracer: command.spawn().map_err(failed)?, output };
        let begin = Instant::now();
        while !counting.said()?.contains(READY) {
            work.interrupt.check()?;
            let ended = counting.tracer.try_wait().map_err(failed)?;
            if ended.is_some() || begin.elapsed() > PATIENCE {
                let said = counting.said()?;
                return Err(Error::new(Kind::Other, "bpftrace does not count").found(said.trim()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(counting)
    }

    /// What was counted.
    pub(crate) fn end(mut self) -> Result<Counts> {
        if let Some(pid) = Pid::from_raw(self.tracer.id() as i32) {
            match kill_process(pid, Signal::INT) {
                // It ends by itself with the process that it looks at.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(e) => return Err(Error::io("cannot stop bpftrace", &e.into())),
            }
        }
        self.tracer.wait().map_err(|e| Error::io("cannot wait for bpftrace", &e))?;
        let said = self.said()?;
        match parse(&said) {
            counts if counts.calls > 0 => Ok(counts),
            _ => Err(Error::new(Kind::Other, "bpftrace counted nothing").found(said.trim())),
        }
    }

    fn said(&self) -> Result<String> {
        std::fs::read_to_string(&self.output).map_err(|e| Error::io("cannot read what bpftrace wrote", &e))
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        // Both fail harmlessly if it has ended already.
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

/// The C library and where in it the function begins that copies memory on this processor, which
/// all programs here use.
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

/// Reads lines such as `@calls[17]: 1024` and `@switches: 12`.
fn parse(text: &str) -> Counts {
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
    Counts {
        calls: maps.iter().filter(|((name, _), _)| *name == "calls").map(|(_, count)| count).sum(),
        switches: one("switches"),
        copied: one("copied") + of("moved", &CONVERSATION) + read + written,
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
    fn maps_are_added_up_by_what_the_calls_do() {
        let (pread, pwrite, send, sync) =
            (libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_sendmsg, libc::SYS_fdatasync);
        let text = format!(
            "Attaching 5 probes...\ncounting\n\n@calls[{pread}]: 2\n@calls[{pwrite}]: 3\n@calls[{sync}]: 1\n@calls[{send}]: 4\n\
             @copied: 1000\n@durable: 2\n@moved[{pread}]: 8192\n@moved[{pwrite}]: 4096\n@moved[{send}]: 100\n@moved[12]: 99999\n\
             @ready: 1\n@switches: 7\n"
        );
        let counts = Counts {
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
