//! Creates, serves, mounts and checks disks of a format that lacuna does not include.
//!
//! `sixth-format create DISK | serve DISK SOCKET | mount DISK DIRECTORY | check DISK`; the
//! passphrase is the first line of standard input. `serve` and `mount` last until standard input
//! ends.
#![forbid(unsafe_code)]

use lacuna_fuse::{DiskRequest, MountedDisk};
use lacuna_nbd::{Exports, Listen, NbdServer, ServerSettings, StopHandle};
use lacuna_storage::{
    ByteDisk, CreateOptions, Disk, Error, Kind, Location, OpenDisk, OpenDiskOptions, Passphrase, Result,
    Shape, Silent, add_format, create, open,
};
use std::io::{BufRead, Read, stdin};
use std::process::ExitCode;
use std::sync::Arc;
use two_slots::TwoSlots;

const USAGE: &str = "sixth-format create DISK | serve DISK SOCKET | mount DISK DIRECTORY | check DISK";

fn main() -> ExitCode {
    let Err(e) = run() else { return ExitCode::SUCCESS };
    eprintln!("sixth-format: {e}");
    ExitCode::from(match e.kind() {
        Kind::Usage => 1,
        Kind::Passphrase | Kind::Permission => 2,
        Kind::Corrupt => 10,
        _ => 20,
    })
}

fn run() -> Result<()> {
    // After this call the library handles the format like its own ones.
    add_format(&TwoSlots)?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["create", disk] => create_disk(disk),
        ["serve", disk, socket] => serve(disk, socket),
        ["mount", disk, directory] => mount(disk, directory),
        ["check", disk] => check(disk),
        _ => Err(Error::new(Kind::Usage, USAGE)),
    }
}

/// The first line of standard input.
fn passphrase() -> Result<Passphrase> {
    let mut line = String::new();
    stdin().lock().read_line(&mut line).map_err(|e| Error::io("cannot read the passphrase", &e))?;
    Ok(Passphrase::new(line.trim_end().as_bytes().to_vec()))
}

fn create_disk(disk: &str) -> Result<()> {
    let options = CreateOptions::new(Location::parse(disk)?, Shape::of(&TwoSlots), 64 << 20);
    let created = create(&options, &Silent, |_levels| Ok(vec![passphrase()?]))?;
    println!("made the disk {}", created.header.uuid);
    Ok(())
}

fn open_disk(disk: &str, read_only: bool) -> Result<Arc<OpenDisk>> {
    let opening = OpenDiskOptions { read_only, ..OpenDiskOptions::default() };
    open(&Location::parse(disk)?, vec![passphrase()?], opening, &Silent)
}

fn serve(disk: &str, socket: &str) -> Result<()> {
    let disk = open_disk(disk, false)?;
    let levels = disk.levels().into_iter().map(ByteDisk::new);
    let server =
        NbdServer::bind(&[Listen::Unix(socket.into())], Exports::levels(levels), ServerSettings::default())?;
    println!("{}", server.uris()[0]);
    let stop = StopHandle::new()?;
    let stopping = stop.clone();
    at_end_of_input(move || stopping.stop());
    server.run(&stop)?;
    disk.close()
}

/// Mounts a disk. A blank disk gets a file system first.
fn mount(disk: &str, directory: &str) -> Result<()> {
    let mut request = DiskRequest::new(open_disk(disk, false)?, disk, directory);
    request.mkfs = Some("ext4".to_owned());
    request.keep_existing = true;
    request.log = Arc::new(|e| eprintln!("{e}"));
    let mounted = MountedDisk::start(request)?;
    println!("mounted");
    let stopper = mounted.stopper();
    at_end_of_input(move || stopper.request());
    mounted.wait()
}

fn check(disk: &str) -> Result<()> {
    let opened = open_disk(disk, true)?;
    let report = opened.check(|_done| Ok(()), |_level, bad| eprintln!("{}", bad.error.summary()))?;
    println!("{} blocks are good, {} are bad", report.good, report.bad);
    opened.close()?;
    if report.bad == 0 {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, format!("{disk} is damaged"))
        .found(format!("{} blocks that do not verify", report.bad)))
}

/// Calls `then` when standard input ends.
fn at_end_of_input(then: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        let _ = stdin().lock().read_to_end(&mut Vec::new());
        then();
    });
}
