//! Access to a file of a vault for measurements of the schemes: through the library, or mounted as
//! for users.

use crate::workspace::Workspace;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_fuse::{MountedVault, Stopper, VaultRequest};
use lacuna_vault::{FsError, ROOT, Vault};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The kind of access to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AccessMethod {
    /// Calls of the library.
    Direct,
    /// A mounted file system.
    Mounted,
}

impl AccessMethod {
    /// The name for display.
    pub(crate) fn name(self) -> &'static str {
        match self {
            AccessMethod::Direct => "without a mount",
            AccessMethod::Mounted => "mounted",
        }
    }
}

/// A file of an open vault.
pub(crate) enum OpenVaultFile {
    Direct { vault: Vault, ino: u64 },
    Mounted { file: File, stopper: Stopper, server: JoinHandle<Result<()>> },
}

impl OpenVaultFile {
    /// Opens a file of a vault by its name.
    pub(crate) fn open(
        work: &Workspace,
        vault: Vault,
        way: AccessMethod,
        name: &str,
    ) -> Result<OpenVaultFile> {
        let ino = vault.lookup(ROOT, name.as_bytes()).map_err(failed)?.ino;
        if way == AccessMethod::Direct {
            vault.acquire_handle(ino).map_err(failed)?;
            return Ok(OpenVaultFile::Direct { vault, ino });
        }
        let mountpoint = work.path("schemes.mounted");
        std::fs::create_dir_all(&mountpoint).map_err(|e| io(&e))?;
        let mut request = VaultRequest::new(Arc::new(vault), "a measurement", &mountpoint);
        request.run_base = Some(work.path("run"));
        let mounted = MountedVault::start(request)?;
        let stopper = mounted.stopper();
        let server = std::thread::spawn(move || mounted.wait());
        match File::options().read(true).write(true).open(mountpoint.join(name)) {
            Ok(file) => Ok(OpenVaultFile::Mounted { file, stopper, server }),
            Err(e) => {
                stopper.request();
                Err(io(&e))
            }
        }
    }

    /// Writes all bytes.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        match self {
            OpenVaultFile::Direct { vault, ino } => vault.write(*ino, at, bytes).map(drop).map_err(failed),
            OpenVaultFile::Mounted { file, .. } => file.write_all_at(bytes, at).map_err(|e| io(&e)),
        }
    }

    /// Reads `out.len()` bytes.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        match self {
            OpenVaultFile::Direct { vault, ino } => vault.read(*ino, at, out).map(drop).map_err(failed),
            OpenVaultFile::Mounted { file, .. } => file.read_exact_at(out, at).map_err(|e| io(&e)),
        }
    }

    /// Returns when all writes are durable.
    pub(crate) fn sync(&self) -> Result<()> {
        match self {
            OpenVaultFile::Direct { vault, ino } => vault.fsync(*ino).map_err(failed),
            OpenVaultFile::Mounted { file, .. } => file.sync_all().map_err(|e| io(&e)),
        }
    }

    /// Closes the vault.
    pub(crate) fn close(self) -> Result<()> {
        match self {
            OpenVaultFile::Direct { vault, .. } => vault.close(),
            OpenVaultFile::Mounted { file, stopper, server } => {
                drop(file);
                stopper.request();
                let ended = server.join();
                ended.map_err(|_| Error::new(Kind::Other, "the server of a vault panicked"))?
            }
        }
    }
}

fn io(e: &std::io::Error) -> Error {
    Error::io("cannot measure a mounted vault", e)
}

/// Converts an error of a vault.
pub(crate) fn failed(e: FsError) -> Error {
    match e {
        FsError::Storage(e) => e,
        FsError::Errno(errno) => {
            Error::io("a vault refuses a measurement", &std::io::Error::from_raw_os_error(errno))
        }
    }
}
