//! The file with the process ID. It replaces only another such file.

use lacuna_storage::{Error, Kind, Result};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// Maximum length of a file that may be a PID file.
const LIMIT: u64 = 32;

/// A file with the ID of the process that a service manager watches, removed on drop if it still
/// has this content.
pub(crate) struct PidFile {
    path: PathBuf,
    process: u32,
}

impl PidFile {
    /// Writes the file, and replaces one that another process left.
    pub(crate) fn write(path: &Path, process: u32) -> Result<Self> {
        check(path)?;
        let failed = |e: &io::Error| Error::io(what(path), e);
        let new = beside(path)?;
        // Written under another name first, so that a reader never finds the file empty.
        let written = File::create_new(&new)
            .and_then(|mut file| writeln!(file, "{process}"))
            .and_then(|()| fs::rename(&new, path));
        if let Err(e) = &written {
            if e.kind() != ErrorKind::AlreadyExists {
                let _ = fs::remove_file(&new);
            }
            return Err(failed(e));
        }
        Ok(PidFile { path: path.to_owned(), process })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if number_in(&self.path).is_ok_and(|number| number == Some(self.process)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Refuses a path with any other file.
pub(crate) fn check(path: &Path) -> Result<()> {
    let failed = |e: &io::Error| Error::io(what(path), e);
    let about = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        about => about.map_err(|e| failed(&e))?,
    };
    if about.is_file() && number_in(path).map_err(|e| failed(&e))?.is_some() {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, what(path))
        .found("something there that is not a file with a process number")
        .expected("a path where nothing exists, or such a file")
        .hint("choose another path, or remove the file there"))
}

fn what(path: &Path) -> String {
    format!("cannot write the process number to {}", path.display())
}

fn beside(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        Error::new(Kind::Usage, what(path)).found("a directory").expected("the path of a file")
    })?;
    let mut new = OsString::from(".");
    new.push(name);
    new.push(format!(".{}", std::process::id()));
    Ok(path.with_file_name(new))
}

/// The number in a file, if it contains nothing else. Errors: it cannot be read.
fn number_in(path: &Path) -> io::Result<Option<u32>> {
    let mut text = Vec::new();
    File::open(path)?.take(LIMIT).read_to_end(&mut text)?;
    Ok(std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pid_files_are_replaced_and_only_an_own_one_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let own = std::process::id().to_string();
        drop(PidFile::write(&path, std::process::id()).unwrap());
        assert!(!path.exists());
        fs::write(&path, "4711\n").unwrap();
        let file = PidFile::write(&path, std::process::id()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().trim(), own);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        fs::write(&path, "4711\n").unwrap();
        drop(file);
        assert!(path.exists());

        for precious in ["", "data", "12 and more", &"1".repeat(100)] {
            fs::write(&path, precious).unwrap();
            assert_eq!(
                PidFile::write(&path, std::process::id()).err().unwrap().kind(),
                Kind::Usage,
                "{precious:?}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), precious);
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for other in [link.as_path(), dir.path(), Path::new("/dev/null")] {
            assert_eq!(check(other).unwrap_err().kind(), Kind::Usage, "{}", other.display());
        }
    }
}
