//! Serves a disk in memory at a mount point: `memory_server RUN_BASE MOUNTPOINT [raw] [mkfs=TYPE]
//! [mib=N] [background]`. For manual use, for measurements, and for tests that need a process of
//! their own.

#[path = "../tests/memory/mod.rs"]
mod memory;

use lacuna_contracts::{Error, Result, Term};
use lacuna_daemon::{ForkResult, ReadyPipe, daemonize};
use lacuna_fuse::{DiskRequest, MountedDisk};
use memory::MemoryDisk;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = if args.iter().any(|a| a == "background") {
        match daemonize(Term::quoted) {
            Ok(ForkResult::Parent(started)) => started.wait(|_| {}).map(|pid| println!("{pid}")),
            Ok(ForkResult::Child(pipe)) => serve(&args, Some(pipe)),
            Err(e) => Err(e),
        }
    } else {
        serve(&args, None)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &[String], pipe: Option<ReadyPipe>) -> Result<()> {
    match (open(args), pipe) {
        (Ok(opened), Some(pipe)) => {
            pipe.report_ready()?;
            opened.wait()
        }
        (Ok(opened), None) => {
            println!("ready");
            opened.wait()
        }
        (Err(e), Some(pipe)) => {
            pipe.report_failure(&e);
            Err(e)
        }
        (Err(e), None) => Err(e),
    }
}

fn open(args: &[String]) -> Result<MountedDisk> {
    let [base, mountpoint, rest @ ..] = args else {
        return Err(Error::new(lacuna_contracts::Kind::Usage, "give RUN_BASE and MOUNTPOINT"));
    };
    let option = |name: &str| rest.iter().find_map(|a| a.strip_prefix(name)).map(str::to_owned);
    let mib = option("mib=").and_then(|n| n.parse().ok()).unwrap_or(64);
    let mut request = DiskRequest::new(Arc::new(MemoryDisk::new(mib)), "memory", mountpoint);
    request.run_base = Some(base.into());
    request.mkfs = option("mkfs=");
    request.raw = rest.iter().any(|a| a == "raw");
    request.log = Arc::new(|e| eprintln!("{e}"));
    MountedDisk::start(request)
}
