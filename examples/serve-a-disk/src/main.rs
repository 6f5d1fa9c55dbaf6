//! Creates a disk, serves it over NBD on a unix socket until standard input ends, and closes it.
//!
//! `serve-a-disk DISK SOCKET`; the passphrase is the first line of standard input.

use lacuna_nbd::{Exports, Listen, NbdServer, ServerSettings, StopHandle};
use lacuna_storage::{
    ByteDisk, CreateOptions, Disk, Kind, Location, OpenDiskOptions, Passphrase, Result, Shape, Silent, create, open,
};
use std::io::{BufRead, Read, stdin};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(disk), Some(socket)) = (args.next(), args.next()) else { panic!("serve-a-disk DISK SOCKET") };
    let location = Location::parse(&disk)?;
    let mut line = String::new();
    stdin().lock().read_line(&mut line).expect("standard input");
    let passphrase = || Passphrase::new(line.trim_end().as_bytes().to_vec());

    let options = CreateOptions::new(location.clone(), Shape::sealed(), 64 << 20);
    match create(&options, &Silent, |_levels| Ok(vec![passphrase()])) {
        Err(e) if e.kind() == Kind::Exists => {}
        created => drop(created?),
    }

    let disk = open(&location, vec![passphrase()], OpenDiskOptions::default(), &Silent)?;
    let levels = disk.levels().into_iter().map(ByteDisk::new);
    let server =
        NbdServer::bind(&[Listen::Unix(socket.into())], Exports::levels(levels), ServerSettings::default())?;
    println!("{}", server.uris()[0]);
    let stop = StopHandle::new()?;
    let stopping = stop.clone();
    std::thread::spawn(move || {
        let _ = stdin().lock().read_to_end(&mut Vec::new());
        stopping.stop();
    });
    server.run(&stop)?;
    disk.close()
}
