//! Shows that the real directory does as [`Folder`] promises, and that no name leads outside.

use super::*;

fn folder() -> (tempfile::TempDir, DiskFolder) {
    let home = tempfile::tempdir().unwrap();
    let folder = DiskFolder::open(home.path(), Access::Write).unwrap();
    (home, folder)
}

/// The kind of a refusal.
fn refused<T>(result: Result<T>) -> Kind {
    result.err().expect("a refusal").kind()
}

#[test]
fn files_keep_what_is_written() {
    let (_home, folder) = folder();
    assert_eq!(refused(folder.open("ab/cd")), Kind::NotFound);
    let file = folder.create("ab/cd").unwrap();
    file.write_at(5000, b"words").unwrap();
    assert_eq!(file.len().unwrap(), 5005);
    let mut read = [1; 10];
    folder.open("ab/cd").unwrap().read_at(4998, &mut read).unwrap();
    assert_eq!(&read, b"\0\0words\0\0\0");
    file.allocate(0, 1 << 16).unwrap();
    assert_eq!(file.len().unwrap(), 5005);
    match file.punch(5001, 1 << 16) {
        Ok(()) => {
            file.read_at(4998, &mut read).unwrap();
            assert_eq!((&read, file.len().unwrap()), (b"\0\0w\0\0\0\0\0\0\0", 5005));
        }
        // Some file systems cannot do it.
        Err(e) => assert_eq!(e.kind(), Kind::Other, "{e}"),
    }
    file.set_len(2).unwrap();
    file.sync().unwrap();
    file.forget_cached().unwrap();
    assert_eq!(file.len().unwrap(), 2);
    folder.sync_names("ab").unwrap();
    folder.sync_names("").unwrap();
    folder.sync_names("zz").unwrap();
    folder.sync_all().unwrap();
}

#[test]
fn files_are_replaced_renamed_and_removed() {
    let (home, folder) = folder();
    let old = folder.create("a").unwrap();
    old.write_at(0, b"old").unwrap();
    assert_eq!(folder.create("a").unwrap().len().unwrap(), 0);
    // The replaced file keeps its content.
    assert_eq!(old.len().unwrap(), 3);
    folder.create("sub/b").unwrap();
    folder.rename("sub/b", "a").unwrap();
    assert_eq!(refused(folder.rename("sub/b", "a")), Kind::NotFound);
    let mut names = folder.list("").unwrap();
    names.sort();
    assert_eq!((names, folder.list("sub").unwrap()), (vec!["a".to_owned(), "sub".to_owned()], vec![]));
    assert!(folder.list("none").unwrap().is_empty());
    folder.remove("a").unwrap();
    folder.remove("a").unwrap();
    folder.remove("none/a").unwrap();
    // A program that synchronises the directory may remove an empty subfolder.
    std::fs::remove_dir(home.path().join("sub")).unwrap();
    folder.create("sub/c").unwrap();
    folder.open("sub/c").unwrap();
}

#[test]
fn a_subfolder_is_durable_before_its_names_are() {
    let (home, folder) = folder();
    assert!(!folder.has_volatile_subfolders());
    folder.create("ab/c").unwrap();
    folder.create("cd/e").unwrap();
    assert!(folder.has_volatile_subfolders());
    folder.sync_names("ab").unwrap();
    assert!(!folder.has_volatile_subfolders());
    // A sync covers the subfolders made before it began, not those made meanwhile.
    folder.sync_subfolders(|| folder.create("ef/a").map(drop).map_err(|_| Errno::IO)).unwrap();
    assert!(folder.has_volatile_subfolders());
    assert!(folder.sync_subfolders(|| Err(Errno::IO)).is_err() && folder.has_volatile_subfolders());
    folder.sync_all().unwrap();
    folder.create("ab/d").unwrap();
    assert!(!folder.has_volatile_subfolders());
    drop(folder);
    // The process that created it may have been killed before it was durable.
    let folder = DiskFolder::open(home.path(), Access::Write).unwrap();
    folder.create("ab/e").unwrap();
    assert!(folder.has_volatile_subfolders());
    folder.sync_names("").unwrap();
    assert!(!folder.has_volatile_subfolders());
}

#[test]
fn one_writer_or_many_readers() {
    let (home, writer) = folder();
    assert_eq!(refused(DiskFolder::open(home.path(), Access::Write)), Kind::Busy);
    assert_eq!(refused(DiskFolder::open(home.path(), Access::Read)), Kind::Busy);
    writer.create("a").unwrap();
    drop(writer);
    let readers = [(); 2].map(|()| DiskFolder::open(home.path(), Access::Read).unwrap());
    assert_eq!(refused(DiskFolder::open(home.path(), Access::Write)), Kind::Busy);
    let reader = &readers[0];
    assert!(reader.read_only() && reader.space().unwrap().total_bytes > 0);
    assert_eq!(refused(reader.create("b")), Kind::ReadOnly);
    assert_eq!(refused(reader.remove("a")), Kind::ReadOnly);
    assert_eq!(refused(reader.rename("a", "b")), Kind::ReadOnly);
    assert!(reader.open("a").unwrap().write_at(0, b"x").is_err());
}

#[test]
fn links_and_directories_are_refused_as_files() {
    let (home, folder) = folder();
    let (outside, path) = (tempfile::tempdir().unwrap(), home.path());
    std::fs::write(outside.path().join("secret"), b"secret").unwrap();
    std::os::unix::fs::symlink(outside.path().join("secret"), path.join("link")).unwrap();
    std::os::unix::fs::symlink(outside.path(), path.join("aa")).unwrap();
    std::fs::create_dir(path.join("folder")).unwrap();
    for name in ["link", "aa/secret", "folder"] {
        assert_eq!(refused(folder.open(name)), Kind::Corrupt, "{name}");
    }
    assert!(folder.create("aa/new").is_err());
    assert!(folder.create("../new").is_err());
    // A new file replaces a link; the target of the link is unchanged.
    folder.create("link").unwrap().write_at(0, b"mine").unwrap();
    assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
    assert_eq!(refused(DiskFolder::open(&path.join("link"), Access::Read)), Kind::NotFound);
    assert_eq!(refused(DiskFolder::open(&path.join("none"), Access::Read)), Kind::NotFound);
}

#[test]
fn interrupted_calls_are_repeated_and_cached_descriptors_are_closed_when_none_are_left() {
    let (_home, folder) = folder();
    folder.create("ab/cd").unwrap();
    for (errno, times) in [(Errno::INTR, 3), (Errno::MFILE, 1), (Errno::NFILE, 1)] {
        let mut left = times;
        let done = folder.in_subfolder("ab", false, |_| {
            if left == 0 {
                return Ok(7);
            }
            left -= 1;
            Err(errno)
        });
        assert_eq!((done, left), (Ok(7), 0), "{errno}");
    }
    let refused = folder.in_subfolder("ab", false, |_| rustix::io::Result::<()>::Err(Errno::MFILE));
    let error = folder.failed("open", "ab/cd", refused.unwrap_err());
    assert_eq!(error.kind(), Kind::Memory);
    assert!(error.to_string().contains("RLIMIT_NOFILE"), "{error}");
}

/// Both caches and a program that is started fit into a small limit.
#[test]
fn cached_descriptors_leave_room_for_all_others() {
    for (limit, share) in [(0, 4), (32, 4), (64, 8), (1024, 248), (4096, 256), (u64::MAX, 256)] {
        assert_eq!(share_of_descriptors(limit, OPEN_FILES), share, "{limit}");
    }
}

#[test]
fn a_file_reports_its_maximum_length() {
    let (_home, folder) = folder();
    let file = folder.create("ab/cd").unwrap();
    let longest = file.max_len().unwrap();
    assert!(longest >= 1 << 30, "{longest}");
    file.set_len(1 << 20).unwrap();
    // Reads and writes do not use the file position.
    file.write_at(4096, b"words").unwrap();
    assert_eq!((file.max_len().unwrap(), file.len().unwrap()), (longest, 1 << 20));
}
