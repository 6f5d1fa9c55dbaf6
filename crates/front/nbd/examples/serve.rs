//! Serves a plain file or memory without encryption, to measure the cost of NBD itself and to try
//! clients. `serve (socket:PATH | tcp:ADDRESS:PORT | activated) (file:PATH | memory:MIB | null:MIB)
//! [CERTIFICATES]`

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, ByteDisk, Disk, Error, Extent, Kind, Result, Status};
use lacuna_nbd::{Exports, Listen, NbdServer, ServerSettings, StopHandle, TlsMode};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, RwLock};

const USAGE: &str =
    "serve (socket:PATH | tcp:ADDRESS:PORT | activated) (file:PATH | memory:MIB | null:MIB) [CERTIFICATES]";

enum PlainDisk {
    File(File, u64),
    Memory(RwLock<Vec<u8>>),
    Null(u64),
}

fn io(e: &std::io::Error) -> Error {
    Error::io("plain disk", e)
}

fn at(first: BlockAddr) -> u64 {
    first.0 * BLOCK_SIZE as u64
}

impl Disk for PlainDisk {
    fn blocks(&self) -> u64 {
        let len = match self {
            PlainDisk::File(_, len) | PlainDisk::Null(len) => *len,
            PlainDisk::Memory(bytes) => bytes.read().unwrap().len() as u64,
        };
        len / BLOCK_SIZE as u64
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        match self {
            PlainDisk::File(file, _) => return file.read_exact_at(buf, at(first)).map_err(|e| io(&e)),
            PlainDisk::Memory(bytes) => {
                buf.copy_from_slice(&bytes.read().unwrap()[at(first) as usize..][..buf.len()]);
            }
            PlainDisk::Null(_) => buf.fill(0),
        }
        Ok(())
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        match self {
            PlainDisk::File(file, _) => return file.write_all_at(data, at(first)).map_err(|e| io(&e)),
            PlainDisk::Memory(bytes) => {
                bytes.write().unwrap()[at(first) as usize..][..data.len()].copy_from_slice(data);
            }
            PlainDisk::Null(_) => {}
        }
        Ok(())
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        for block in first.0..first.0 + count {
            self.write(BlockAddr(block), &[0; BLOCK_SIZE])?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if let PlainDisk::File(file, _) = self { file.sync_data().map_err(|e| io(&e)) } else { Ok(()) }
    }

    fn extents(&self, _: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        Ok(vec![Extent { blocks: count, written: true }])
    }

    fn status(&self) -> Status {
        Status::default()
    }

    fn close(&self) -> Result<()> {
        self.flush()
    }
}

fn open(disk: &str) -> Result<PlainDisk> {
    let usage = || Error::new(Kind::Usage, USAGE);
    let mib = |n: &str| n.parse::<u64>().map(|n| n << 20).map_err(|_| usage());
    match disk.split_once(':').ok_or_else(usage)? {
        ("file", path) => {
            let file = File::options().read(true).write(true).open(path).map_err(|e| io(&e))?;
            let len = file.metadata().map_err(|e| io(&e))?.len();
            Ok(PlainDisk::File(file, len))
        }
        ("memory", n) => Ok(PlainDisk::Memory(RwLock::new(vec![0; mib(n)? as usize]))),
        ("null", n) => Ok(PlainDisk::Null(mib(n)?)),
        _ => Err(usage()),
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [listen, disk, certificates @ ..] = &words[..] else {
        return Err(Error::new(Kind::Usage, USAGE));
    };
    let listen = match listen.split_once(':') {
        Some(("socket", path)) => Listen::Unix(path.into()),
        Some(("tcp", address)) => Listen::tcp(address)?,
        _ => Listen::Activated,
    };
    let certificates = certificates.first().map(Into::into);
    let tls = if certificates.is_some() { TlsMode::Allow } else { TlsMode::Off };
    let exports = Exports::levels([ByteDisk::new(Arc::new(open(disk)?))]);
    let server = NbdServer::bind(
        &[listen],
        exports,
        ServerSettings { tls, certificates, ..ServerSettings::default() },
    )?;
    eprintln!("{}", server.uris().join(" "));
    server.run(&StopHandle::new()?)
}
