//! Tests of the disk as a file.

use crate::fixture::{MountFixture, ServerThread, run, skip_unless_supported, text};
use crate::machine::wait_until;
use crate::memory::MemoryDisk;
use lacuna_contracts::Error;
use lacuna_testkit::noise;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

#[test]
fn raw_file_takes_and_gives_bytes() {
    skip_unless_supported!(false);
    let place = MountFixture::new();
    let disk = Arc::new(MemoryDisk::new(8));
    let server = place.raw(&disk);
    let file = place.mountpoint().join("disk");
    let source = place.dir.path().join("source");
    let copy = place.dir.path().join("copy");
    let bytes = noise(1, 8 << 20);
    fs::write(&source, &bytes).unwrap();

    run("cp", &[text(&source), text(&file)]);
    run("dd", &[&format!("if={}", text(&file)), &format!("of={}", text(&copy)), "bs=12345"]);
    assert!(fs::read(&copy).unwrap() == bytes);

    let handle = File::options().read(true).write(true).open(&file).unwrap();
    handle.write_all_at(b"odd place", 4093).unwrap();
    let mut back = [0; 13];
    handle.read_exact_at(&mut back, 4091).unwrap();
    assert_eq!((&back[2..11], back[0], back[12]), (&b"odd place"[..], bytes[4091], bytes[4103]));
    handle.sync_all().unwrap();
    assert_eq!(disk.unflushed.load(Ordering::SeqCst), 0);

    let end = 8 << 20;
    assert_eq!(handle.metadata().unwrap().len(), end);
    assert_eq!(handle.write_at(&[1; 100], end - 10).unwrap(), 10);
    assert_eq!(handle.write_at(&[1], end).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(handle.read_at(&mut back, end - 4).unwrap(), 4);
    assert_eq!(handle.read_at(&mut back, end + 4).unwrap(), 0);
    assert_eq!(handle.set_len(5).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    assert!(File::create(place.mountpoint().join("other")).is_err());
    drop(handle);
    assert!(
        fs::read_to_string(place.mountpoint().join("status")).unwrap().starts_with("size 8388608 bytes\n")
    );
    let names: Vec<_> = fs::read_dir(place.mountpoint()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["disk", "status"]);

    server.stop().unwrap();
    assert_eq!(disk.closes.load(Ordering::SeqCst), 1);
    place.assert_nothing_left();
}

#[test]
fn holes_are_punched_and_found() {
    skip_unless_supported!(false);
    let place = MountFixture::new();
    let disk = Arc::new(MemoryDisk::new(8));
    let server = place.raw(&disk);
    let path = place.mountpoint().join("disk");
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&noise(1, 3 << 20), 2 << 20).unwrap();
    assert_eq!(seek(&file, 0, libc::SEEK_DATA), 2 << 20);
    assert_eq!(seek(&file, 0, libc::SEEK_HOLE), 0);
    assert_eq!(seek(&file, (2 << 20) + 5, libc::SEEK_HOLE), 5 << 20);
    assert_eq!(seek(&file, 5 << 20, libc::SEEK_DATA), -1);

    run("fallocate", &["--punch-hole", "--offset", "2097153", "--length", "1048575", text(&path)]);
    assert_eq!(disk.discarded.load(Ordering::SeqCst), 255);
    run("fallocate", &["--zero-range", "--offset", "3145728", "--length", "1048576", text(&path)]);
    let mut expected = noise(1, 3 << 20);
    expected[1..2 << 20].fill(0);
    let mut got = vec![0; 3 << 20];
    file.seek(SeekFrom::Start(2 << 20)).unwrap();
    file.read_exact(&mut got).unwrap();
    assert!(got == expected);
    assert_eq!(seek(&file, 3 << 20, libc::SEEK_DATA), 4 << 20);
    let plain = Command::new("fallocate").args(["--length", "4096", text(&path)]).output().unwrap();
    assert!(!plain.status.success());
    file.flush().unwrap();
    drop(file);
    place.stop(server);
}

fn seek(file: &File, offset: i64, whence: i32) -> i64 {
    let at = match whence {
        libc::SEEK_DATA => rustix::fs::SeekFrom::Data(offset as u64),
        _ => rustix::fs::SeekFrom::Hole(offset as u64),
    };
    rustix::fs::seek(file, at).map_or(-1, |n| n as i64)
}

#[test]
fn read_only_refuses_writes() {
    skip_unless_supported!(false);
    let place = MountFixture::new();
    let mut request = place.request(&Arc::new(MemoryDisk::new(1)));
    (request.raw, request.read_only) = (true, true);
    let server = ServerThread::start(request);
    let path = place.mountpoint().join("disk");
    let refused = File::options().write(true).open(&path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read(&path).unwrap(), vec![0; 1 << 20]);
    place.stop(server);
}

#[test]
fn read_error_becomes_an_input_output_error() {
    skip_unless_supported!(false);
    let place = MountFixture::new();
    let disk = Arc::new(MemoryDisk::new(1));
    let said = Arc::new(Mutex::new(Vec::new()));
    let mut request = place.request(&disk);
    request.raw = true;
    let log = Arc::clone(&said);
    request.log = Arc::new(move |e: &Error| log.lock().unwrap().push(e.to_string()));
    let server = ServerThread::start(request);
    disk.fail_reads.store(true, Ordering::SeqCst);
    let error = fs::read(place.mountpoint().join("disk")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_eq!(said.lock().unwrap()[0], "read: block 0 does not verify");
    let status = fs::read_to_string(place.mountpoint().join("status")).unwrap();
    assert!(!status.contains("failed_requests 0 "), "{status}");
    assert_eq!(place.status().last_error.as_deref(), Some("read: block 0 does not verify"));
    place.stop(server);
}

/// Programs such as `df` and `losetup` look at every mount of a machine.
#[test]
fn a_mount_answers_while_its_writes_wait_for_cover() {
    skip_unless_supported!(false);
    let (place, disk) = (MountFixture::new(), Arc::new(MemoryDisk::new(8)));
    let mut wanted = place.request(&disk);
    wanted.raw = true;
    // As of a disk with levels.
    wanted.identity.private = true;
    let server = ServerThread::start(wanted);
    let file = place.mountpoint().join("disk");
    disk.hold_writes.store(true, Ordering::SeqCst);
    // All are open before the first write waits.
    let handles: Vec<File> = (0..40).map(|_| File::options().write(true).open(&file).unwrap()).collect();
    let writers = (0..40_u8)
        .zip(handles)
        .map(|(at, handle)| thread::spawn(move || handle.write_all_at(&[at; 4096], u64::from(at) * 4096)));
    let writers: Vec<_> = writers.collect();
    // The number of threads that serve a mount.
    let threads = (thread::available_parallelism().unwrap().get() as u64 * 2).clamp(4, 16);
    wait_until("one waiting write for each of these threads", || disk.held.load(Ordering::SeqCst) >= threads);
    let (answered, answer) = channel();
    let look = file.clone();
    thread::spawn(move || answered.send((fs::metadata(&look).unwrap().len(), rustix::fs::statvfs(&look))));
    let answer = answer.recv_timeout(Duration::from_secs(30));
    disk.hold_writes.store(false, Ordering::SeqCst);
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
    let (length, space) = answer.expect("an answer while writes wait");
    assert_eq!((length, space.unwrap().f_blocks), (8 << 20, 2048));
    let content = fs::read(&file).unwrap();
    assert!((0..40_u8).all(|at| content[usize::from(at) * 4096..][..4096] == [at; 4096]));
    place.stop(server);
}
