//! The writer lock on an object: live and dead holders, and clients that lost the lock.

mod ceph;

use lacuna_contracts::Kind;
use lacuna_medium::{KeySelection, ObjectStep, ObjectStore, ObjectTransaction, Query, ReadExtent};
use lacuna_rados::{RadosPool, WriterSeries};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time limit for the cluster to report an event.
const PATIENCE: Duration = Duration::from_secs(60);

/// The object that a child process of a test locks until it is killed.
const HOLD: &str = "LACUNA_TEST_HOLD";

fn write(store: &dyn ObjectStore, data: &[u8]) -> lacuna_contracts::Result<u64> {
    store.apply_one(ObjectTransaction { object: 0, steps: vec![ObjectStep::Write { offset: 0, data }] })
}

fn read(store: &dyn ObjectStore, len: usize) -> lacuna_contracts::Result<Vec<u8>> {
    let mut buf = vec![0; len];
    let extents = vec![ReadExtent { offset: 0, buf: &mut buf }];
    store.query_one(Query { object: 0, extents, keys: KeySelection::None })?;
    Ok(buf)
}

fn locked(pool: &Arc<RadosPool>, object: &str, steal: bool) -> Option<Kind> {
    pool.lock_writer(object, steal).err().map(|e| e.kind())
}

/// Not a test by itself: the program of [`another_process`].
#[test]
fn hold_until_killed() {
    let Some(prefix) = std::env::var_os(HOLD) else { return };
    let prefix = prefix.to_str().unwrap();
    let pool = ceph::pool().unwrap();
    let _lock = pool.lock_writer(&format!("{prefix}.{:016x}", 0), false).unwrap();
    let store = pool.objects(prefix).unwrap();
    println!("\nheld");
    let wrote = loop {
        if let Err(e) = write(&*store, b"the holder") {
            break e;
        }
    };
    println!("\nlost {:?}", wrote.kind());
}

/// Starts another process that holds the lock on object 0 of this prefix and keeps writing to it.
fn another_process(prefix: &str) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hold_until_killed", "--nocapture"])
        .env(HOLD, prefix)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "held"));
    (child, lines)
}

#[test]
fn one_holder_at_a_time() {
    let (Some(one), Some(two)) = (ceph::pool(), ceph::pool()) else { return };
    let prefix = ceph::unique("lock");
    let store = ceph::CleanedStore(one.objects(&prefix).unwrap());
    let object = format!("{prefix}.{:016x}", 0);
    let lock = one.lock_writer(&object, false).unwrap();
    let error = two.lock_writer(&object, false).err().unwrap();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().contains("`steal`") && error.to_string().contains(&object), "{error}");
    // A connection does not exclude itself.
    assert_eq!(locked(&one, &object, true), Some(Kind::Busy));
    assert_eq!(locked(&two, &format!("{prefix}.{:016x}", 1), false), None);
    write(&*store.0, b"still writing").unwrap();
    drop(lock);
    let lock = two.lock_writer(&object, false).unwrap();
    assert_eq!(locked(&one, &object, false), Some(Kind::Busy));
    drop(lock);
    assert_eq!(locked(&one, &object, true), None);
}

#[test]
fn locking_creates_an_absent_object() {
    let Some(pool) = ceph::pool() else { return };
    let prefix = ceph::unique("lock-makes");
    let store = ceph::CleanedStore(pool.objects(&prefix).unwrap());
    let lock = pool.lock_writer(&format!("{prefix}.{:016x}", 4), false).unwrap();
    assert_eq!(store.0.list().unwrap(), [4]);
    drop(lock);
    assert_eq!(pool.lock_writer("a\0b", false).err().unwrap().kind(), Kind::Usage);
}

#[test]
fn a_client_that_lost_its_lock_is_fenced() {
    let (Some(one), Some(two)) = (ceph::pool(), ceph::pool()) else { return };
    let prefix = ceph::unique("steal");
    let [of_one, of_two] = [&one, &two].map(|pool| pool.objects(&prefix).unwrap());
    let _swept = ceph::CleanedStore(of_two.clone());
    let object = format!("{prefix}.{:016x}", 0);
    let lock = one.lock_writer(&object, false).unwrap();
    write(&*of_one, b"one").unwrap();
    assert_eq!(locked(&two, &object, false), Some(Kind::Busy));

    let stolen = two.lock_writer(&object, true).unwrap();
    write(&*of_two, b"two").unwrap();
    let error = write(&*of_one, b"ONE").unwrap_err();
    assert_eq!(error.kind(), Kind::Fenced, "{error}");
    assert!(error.to_string().contains(&prefix), "{error}");
    assert_eq!(read(&*of_one, 3).unwrap_err().kind(), Kind::Fenced);
    assert_eq!(of_one.list().unwrap_err().kind(), Kind::Fenced);
    assert_eq!(of_one.create_snapshot().err().unwrap().kind(), Kind::Fenced);
    assert_eq!(locked(&one, &object, true), Some(Kind::Fenced));
    assert_eq!(read(&*of_two, 3).unwrap(), b"two");
    // The former holder's release does not take the lock from its new holder.
    drop(lock);
    let Some(three) = ceph::pool() else { return };
    assert_eq!(locked(&three, &object, false), Some(Kind::Busy));
    drop(stolen);
    assert_eq!(locked(&three, &object, false), None);
}

/// Shows that a former holder is refused by the epoch alone, after its blocklist entry has expired:
/// another client has the lock, and the blocklist is empty.
#[test]
fn the_epoch_alone_refuses_writes_of_a_former_holder() {
    for connect in [ceph::pool, ceph::erasure_coded_pool] {
        let (Some(one), Some(two)) = (connect(), connect()) else { return };
        let prefix = ceph::unique("epoch");
        let [of_one, of_two] = [&one, &two].map(|pool| pool.objects(&prefix).unwrap());
        let swept = ceph::CleanedStore(of_two.clone());
        let object = format!("{prefix}.{:016x}", 9);
        let lost = one.lock_writer(&object, false).unwrap();
        write(&*of_one, b"one").unwrap();
        let conf = ceph::options().unwrap().conf.unwrap();
        let rados = |words: &[&str]| {
            let output =
                Command::new("rados").arg("-c").arg(&conf).args(["-p", one.name()]).args(words).output();
            let output = output.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let info = rados(&["lock", "info", &object, "lacuna.writer", "--format", "json"]);
        let field = |name: &str| {
            let (_, lockers) = info.split_once("\"lockers\"").unwrap();
            let (_, rest) = lockers.split_once(&format!("\"{name}\":\"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        let (holder, cookie) = (field("name"), field("cookie"));
        rados(&["lock", "break", &object, "lacuna.writer", &holder, "--lock-cookie", &cookie]);
        let held = two.lock_writer(&object, false).unwrap();
        // An object not written by the new holder is unprotected; only the blocklist protects it.
        write(&*of_one, b"one again").unwrap();
        write(&*of_two, b"two").unwrap();
        let error = write(&*of_one, b"one, late").unwrap_err();
        assert_eq!(error.kind(), Kind::Fenced, "{error}");
        assert_eq!(read(&*of_two, 9).unwrap(), b"two again");
        assert_eq!(write(&*of_one, b"one, later").unwrap_err().kind(), Kind::Fenced);
        drop((lost, held, swept));
    }
}

/// Shows that a lock holder can perform every kind of transaction, on existing and on absent
/// objects.
#[test]
fn a_holder_writes_to_existing_and_absent_objects() {
    for connect in [ceph::pool, ceph::erasure_coded_pool] {
        let Some(pool) = connect() else { return };
        let store = ceph::store(&pool, "held");
        let lock = pool.lock_writer(&ceph::unique("held-lock"), false).unwrap();
        let apply = |steps: Vec<ObjectStep<'_>>| store.0.apply_one(ObjectTransaction { object: 0, steps });
        let kind = |answer: lacuna_contracts::Result<u64>| answer.err().map(|e| e.kind());
        apply(vec![ObjectStep::Remove]).unwrap();
        apply(vec![ObjectStep::Zero { offset: 0, len: 10 }, ObjectStep::Truncate(0)]).unwrap();
        assert_eq!(store.0.list().unwrap(), []);
        assert_eq!(
            kind(apply(vec![ObjectStep::Expect(7), ObjectStep::Write { offset: 0, data: b"x" }])),
            Some(Kind::Changed)
        );
        assert_eq!(store.0.list().unwrap(), []);
        let first =
            apply(vec![ObjectStep::Truncate(0), ObjectStep::Write { offset: 0, data: b"first" }]).unwrap();
        assert_eq!(
            kind(apply(vec![ObjectStep::Create, ObjectStep::Write { offset: 0, data: b"x" }])),
            Some(Kind::Exists)
        );
        apply(vec![ObjectStep::Expect(first), ObjectStep::Write { offset: 0, data: b"later" }]).unwrap();
        assert_eq!(read(&*store.0, 5).unwrap(), b"later");
        assert_eq!(kind(apply(vec![ObjectStep::Expect(first), ObjectStep::Remove])), Some(Kind::Changed));
        apply(vec![ObjectStep::Remove]).unwrap();
        assert_eq!(store.0.list().unwrap(), []);
        apply(vec![ObjectStep::Create, ObjectStep::Write { offset: 0, data: b"made" }]).unwrap();
        assert_eq!(read(&*store.0, 4).unwrap(), b"made");
        drop(lock);
    }
}

#[test]
fn a_live_holder_keeps_its_lock_until_it_is_stolen() {
    let Some(pool) = ceph::pool() else { return };
    let prefix = ceph::unique("lives");
    let store = ceph::CleanedStore(pool.objects(&prefix).unwrap());
    let object = format!("{prefix}.{:016x}", 0);
    let (mut holder, mut said) = another_process(&prefix);
    for _ in 0..3 {
        assert_eq!(locked(&pool, &object, false), Some(Kind::Busy));
    }
    let lock = pool.lock_writer(&object, true).unwrap();
    write(&*store.0, b"the thief!").unwrap();
    assert!(said.any(|line| line == "lost Fenced"));
    assert!(holder.wait().unwrap().success());
    assert_eq!(read(&*store.0, 10).unwrap(), b"the thief!");
    drop(lock);
}

#[test]
fn the_lock_of_a_dead_holder_is_taken_over() {
    let Some(pool) = ceph::pool() else { return };
    let prefix = ceph::unique("dead");
    let store = ceph::CleanedStore(pool.objects(&prefix).unwrap());
    let object = format!("{prefix}.{:016x}", 0);
    let (mut holder, _said) = another_process(&prefix);
    assert_eq!(locked(&pool, &object, false), Some(Kind::Busy));
    holder.kill().unwrap();
    holder.wait().unwrap();
    let lock = pool.lock_writer(&object, false).unwrap();
    write(&*store.0, b"the heir!!").unwrap();
    assert_eq!(read(&*store.0, 10).unwrap(), b"the heir!!");
    drop(lock);
}

#[test]
fn a_series_continues_unless_another_client_has_had_the_lock() {
    let connect = || ceph::pool().unwrap();
    let Some(first) = ceph::pool() else { return };
    let prefix = ceph::unique("series");
    let store = ceph::CleanedStore(first.objects(&prefix).unwrap());
    let object = format!("{prefix}.{:016x}", 0);
    let take = |pool: &Arc<RadosPool>, continues| {
        pool.lock_writer_in_series(&object, false, Some(WriterSeries { id: [7; 16], continues }))
    };
    // There is nothing to continue.
    assert_eq!(take(&first, true).err().unwrap().kind(), Kind::Fenced);
    take(&first, false).unwrap().abandon();
    write(&*store.0, b"first").unwrap();
    let second = connect();
    let lock = take(&second, true).unwrap();
    assert!(lock.evicted_client().is_some());
    assert_eq!(write(&*store.0, b"FIRST").unwrap_err().kind(), Kind::Fenced);
    drop(lock);
    // The lock was released in between, and no other client took it.
    let third = connect();
    drop(take(&third, true).unwrap());
    let swept = ceph::CleanedStore(third.objects(&prefix).unwrap());
    assert_eq!(read(&*swept.0, 5).unwrap(), b"first");
    drop(third.lock_writer(&object, false).unwrap());
    for _ in 0..2 {
        assert_eq!(take(&connect(), true).err().unwrap().kind(), Kind::Fenced);
    }
    drop(take(&third, false).unwrap());
    drop(take(&connect(), true).unwrap());
    let other = Some(WriterSeries { id: [8; 16], continues: true });
    let refused = third.lock_writer_in_series(&object, false, other);
    assert_eq!(refused.err().unwrap().kind(), Kind::Fenced);
}

#[test]
fn competing_clients_hold_the_lock_in_turn() {
    let Some(first) = ceph::pool() else { return };
    let prefix = ceph::unique("turns");
    let store = ceph::CleanedStore(first.objects(&prefix).unwrap());
    write(&*store.0, &[0; 4]).unwrap();
    let object = format!("{prefix}.{:016x}", 0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let pool = ceph::pool().unwrap();
                let store = pool.objects(&prefix).unwrap();
                for _ in 0..5 {
                    let _lock = loop {
                        match pool.lock_writer(&object, false) {
                            Ok(lock) => break lock,
                            Err(e) => assert_eq!(e.kind(), Kind::Busy),
                        }
                    };
                    let count = u32::from_le_bytes(read(&*store, 4).unwrap().try_into().unwrap());
                    write(&*store, &(count + 1).to_le_bytes()).unwrap();
                }
            });
        }
    });
    assert_eq!(read(&*store.0, 4).unwrap(), 15_u32.to_le_bytes());
}

#[test]
fn removing_the_object_loses_the_lock() {
    let (Some(pool), Some(other)) = (ceph::pool(), ceph::pool()) else { return };
    let prefix = ceph::unique("lock-removed");
    let store = pool.objects(&prefix).unwrap();
    let _swept = ceph::CleanedStore(other.objects(&prefix).unwrap());
    let object = format!("{prefix}.{:016x}", 1);
    let _lock = pool.lock_writer(&object, false).unwrap();
    store.apply_one(ObjectTransaction { object: 1, steps: vec![ObjectStep::Remove] }).unwrap();
    let since = Instant::now();
    while let Ok(_still) = write(&*store, b"whose?") {
        assert!(since.elapsed() < PATIENCE, "the loss of the lock was never noticed");
    }
    assert_eq!(write(&*store, b"whose?").unwrap_err().kind(), Kind::Fenced);
}
