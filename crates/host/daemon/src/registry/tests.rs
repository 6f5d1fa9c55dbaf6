//! Tests how instances are found, by each kind of name: living, dead, and unreadable ones.

use super::*;
use crate::client::disk_query::PoolQuery;
use crate::client::takeover::{living_keeper, next_server};
use crate::instance::Instance;
use crate::protocol::Job;
use crate::record::{FrontEnd, Identity, MountKind, MountRecord, PoolScope, Record};
use std::fs;
use std::process::Command;

fn mount(at: &Path) -> FrontEnd {
    FrontEnd::Fuse(MountRecord { mountpoint: at.into(), kind: MountKind::Raw })
}

fn record(location: &str, front: FrontEnd, file: FileIdentity) -> Record {
    let identity = Identity { location: location.into(), ..Identity::default() };
    Record { file, ..Record::new(&identity, front, false) }
}

/// Leaves the state of a killed server: the run directory without a holder of its lock.
fn kill(instance: Instance, base: &Path) {
    let dir = instance.control().parent().unwrap().to_owned();
    let kept = base.join("kept");
    fs::create_dir(&kept).unwrap();
    for name in ["lock", "record.json"] {
        fs::copy(dir.join(name), kept.join(name)).unwrap();
    }
    instance.end().unwrap();
    fs::rename(kept, dir).unwrap();
}

#[test]
fn uninspectable_instances_are_errors() {
    let base = tempfile::tempdir().unwrap();
    let stray = base.path().join("stray");
    fs::write(&stray, "").unwrap();
    let registry = Registry::open(Some(base.path())).unwrap();
    assert!(registry.all().unwrap().is_empty());
    assert!(Registry::open(Some(&stray)).unwrap().all().is_err());
    for at in ["mnt", "none/mnt", "stray/mnt"] {
        let at = base.path().join(at);
        assert_eq!(registry.by_mountpoint(&at).unwrap_err().kind(), Kind::NotFound, "{}", at.display());
        assert!(!has_mount_of_dead_server(&at, Some(base.path())).unwrap());
    }
    let at = base.path().canonicalize().unwrap().join("mnt");
    let instance = Instance::of_mount(base.path(), &at).unwrap();
    // A server that is still starting has no record, and does not listen.
    assert!(registry.all().unwrap().is_empty());
    assert_eq!(registry.by_mountpoint(&at).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(close(&at, Some(base.path())).unwrap_err().kind(), Kind::Busy);
    instance.write(&record("a.img", mount(&at), FileIdentity::Unknown)).unwrap();
    let peer = registry.by_mountpoint(&at).unwrap();
    assert_eq!(peer.status().unwrap_err().kind(), Kind::NotFound);
    fs::write(instance.control().with_file_name("record.json"), "{").unwrap();
    assert_eq!(registry.all().unwrap_err().kind(), Kind::Corrupt);
    let (peers, errors) = registry.all_with_errors();
    assert!(peers.is_empty() && errors.len() == 1);
    instance.end().unwrap();
    assert!(registry.all().unwrap().is_empty());
    assert_eq!(peer.close().unwrap(), CloseOutcome::Cleanly);
}

#[test]
fn a_server_of_another_mount_point_with_the_same_run_directory_is_not_closed() {
    let base = tempfile::tempdir().unwrap();
    let at = base.path().canonicalize().unwrap().join("mnt");
    let instance = Instance::of_mount(base.path(), &at).unwrap();
    instance.write(&record("a.img", mount(&at.with_file_name("other")), FileIdentity::Unknown)).unwrap();
    let registry = Registry::open(Some(base.path())).unwrap();
    let unknown = registry.by_mountpoint(&at).unwrap_err();
    assert!(unknown.kind() == Kind::NotFound && unknown.to_string().starts_with("cannot ask the server of"));
    let stays = close(&at, Some(base.path())).unwrap_err();
    assert!(stays.kind() == Kind::NotFound && stays.to_string().starts_with("cannot close"));
    // A list of all instances contains it nevertheless.
    assert!(registry.all().unwrap()[0].alive);
    instance.write(&record("a.img", mount(&at), FileIdentity::Unknown)).unwrap();
    assert!(registry.by_mountpoint(&at).unwrap().alive);
}

#[test]
fn a_location_matches_by_file_and_by_name_if_the_file_is_unknown() {
    let base = tempfile::tempdir().unwrap();
    let (one, two, unknown) = (FileIdentity::File(1, 1), FileIdentity::File(1, 2), FileIdentity::Unknown);
    let served = || FrontEnd::Nbd { uris: Vec::new() };
    let instances: Vec<Instance> = [
        ("/moved.img", served(), one),
        ("/a.img", mount(Path::new("/mnt")), two),
        ("rados:p/a", served(), unknown),
    ]
    .into_iter()
    .map(|(location, front, file)| {
        let instance = Instance::of_server(base.path(), location).unwrap();
        instance.write(&record(location, front, file)).unwrap();
        instance
    })
    .collect();
    let registry = Registry::open(Some(base.path())).unwrap();
    let found = |location: &str, file| {
        let peers = registry.by_location(location, file).unwrap();
        peers.into_iter().map(|peer| peer.record.location).collect::<Vec<_>>()
    };
    // The file of the first instance is at this path now, and the second instance was opened under
    // it.
    assert_eq!(found("/a.img", one), ["/moved.img"]);
    assert_eq!(found("/a.img", two), ["/a.img"]);
    assert_eq!(found("/a.img", unknown), ["/a.img"]);
    assert_eq!(found("/moved.img", two), ["/a.img"]);
    assert_eq!(found("/other.img", FileIdentity::File(7, 7)), [] as [&str; 0]);
    assert_eq!(found("rados:p/a", unknown), ["rados:p/a"]);
    drop(instances);
}

#[test]
fn the_mount_of_a_living_server_is_never_that_of_a_dead_one() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = one.path().canonicalize().unwrap().join("mnt");
    let top = MountEntry {
        device: "0:41".into(),
        mountpoint: at.clone(),
        fs_type: "fuse.lacuna".into(),
        source: mount_table::FUSE_SOURCE.into(),
        user: None,
        is_propagated: false,
    };
    let dead = Instance::of_mount(one.path(), &at).unwrap();
    dead.write(&record("/a.img", mount(&at), FileIdentity::Unknown)).unwrap();
    kill(dead, one.path());
    let registry = Registry { bases: vec![one.path().to_owned(), other.path().to_owned()] };
    assert!(registry.is_mount_of_dead_server(&at, &top).unwrap() && registry.all().unwrap().len() == 1);
    let own = rustix::process::geteuid().as_raw();
    for (user, is_left) in [(own, true), (own + 1, false)] {
        let top = MountEntry { user: Some(user), ..top.clone() };
        assert_eq!(registry.is_mount_of_dead_server(&at, &top).unwrap(), is_left, "{user}");
    }
    let living = Instance::of_mount(other.path(), &at).unwrap();
    living.write(&record("/b.img", mount(&at), FileIdentity::Unknown)).unwrap();
    assert!(!registry.is_mount_of_dead_server(&at, &top).unwrap());
    let seen = registry.all().unwrap();
    assert!(seen.len() == 1 && seen[0].alive && seen[0].record.location == "/b.img");
    assert!(registry.by_location("/a.img", FileIdentity::Unknown).unwrap().is_empty());
    living.end().unwrap();
    assert!(registry.is_mount_of_dead_server(&at, &top).unwrap());
    assert!(!registry.by_location("/a.img", FileIdentity::Unknown).unwrap()[0].alive);
}

#[test]
fn dead_servers_with_a_mount_stay_in_the_registry() {
    let base = tempfile::tempdir().unwrap();
    let registry = Registry::open(Some(base.path())).unwrap();
    let file = FileIdentity::File(1, 1);
    let served = Instance::of_server(base.path(), "/a.img").unwrap();
    served.write(&record("/a.img", FrontEnd::Nbd { uris: Vec::new() }, file)).unwrap();
    let dead = registry.by_location("/a.img", file).unwrap().remove(0);
    kill(served, base.path());
    assert!(registry.all().unwrap().is_empty());
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    assert_eq!(dead.close().unwrap(), CloseOutcome::Cleanly);

    let at = base.path().canonicalize().unwrap().join("mnt");
    let mounted = Instance::of_mount(base.path(), &at).unwrap();
    mounted.write(&record("/a.img", mount(&at), file)).unwrap();
    kill(mounted, base.path());
    let found = registry.all().unwrap();
    assert!(found.len() == 1 && !found[0].alive && found[0].status().unwrap().is_dead());
    // A dead server matches by name, whatever file is at that path now.
    assert_eq!(registry.by_location("/a.img", FileIdentity::File(7, 7)).unwrap().len(), 1);
    assert!(registry.by_location("/b.img", file).unwrap().is_empty());
    assert_eq!(close(&at, Some(base.path())).unwrap(), CloseOutcome::AfterCrash);
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    // A new server reuses the run directory of a dead one.
    let served = Instance::of_server(base.path(), "/a.img").unwrap();
    let dir = served.control();
    served.write(&record("/a.img", FrontEnd::Nbd { uris: Vec::new() }, file)).unwrap();
    kill(served, base.path());
    let next = Instance::of_server(base.path(), "/a.img").unwrap();
    assert_eq!(next.control(), dir);
    assert!(!dir.with_file_name("record.json").exists());
}

#[test]
fn a_dead_server_with_a_keeper_stays_until_the_keeper_has_ended() {
    let base = tempfile::tempdir().unwrap();
    let registry = Registry::open(Some(base.path())).unwrap();
    // A process of the test stands for the keeper, and this one for its next server.
    let mut process = Command::new("sleep").arg("600").spawn().unwrap();
    let keeper = KeeperId::of(process.id()).unwrap();
    assert!(keeper.is_some());
    let of = |pid: u32| Record {
        pid,
        keeper,
        ..record("/a.img", FrontEnd::Nbd { uris: Vec::new() }, FileIdentity::Unknown)
    };
    let served = Instance::of_server(base.path(), "/a.img").unwrap();
    served.write(&of(u32::MAX)).unwrap();
    kill(served, base.path());
    let dead = registry.all().unwrap();
    assert!(dead.len() == 1 && !dead[0].alive && dead[0].status().unwrap().is_dead());
    // The next server that the keeper starts meets an obstacle.
    assert!(dead[0].status().unwrap().to_json()["keeper_waits_for"].is_null());
    for (of, obstacle) in [(keeper.unwrap(), "in use"), (KeeperId { pid: 1, start: 0 }, "other")] {
        registry.note_obstacle(of, obstacle).unwrap();
        let waits = registry.all().unwrap().remove(0).status().unwrap().to_json();
        assert!(waits["died"] == true && waits["keeper_waits_for"] == "in use", "{waits}");
    }
    // The next server may have another run directory.
    let next = Instance::of_server(base.path(), "/b.img").unwrap();
    next.write(&of(std::process::id())).unwrap();
    let found = registry.all().unwrap();
    assert!(found.len() == 1 && found[0].alive);
    let lives = living_keeper(&dead[0].record).unwrap().unwrap();
    let other = next_server(&dead[0].record, &lives, base.path()).unwrap().unwrap();
    assert_eq!(other.record.pid, std::process::id());
    next.end().unwrap();

    process.kill().unwrap();
    assert!(next_server(&dead[0].record, &lives, base.path()).unwrap().is_none());
    process.wait().unwrap();
    assert!(living_keeper(&dead[0].record).unwrap().is_none() && registry.all().unwrap().is_empty());
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    assert_eq!(dead[0].close_served(false).unwrap(), CloseOutcome::Cleanly);
}

#[test]
fn only_a_server_that_is_dead_is_cleared_away() {
    let base = tempfile::tempdir().unwrap();
    let at = base.path().canonicalize().unwrap().join("mnt");
    let registry = Registry::open(Some(base.path())).unwrap();
    let clear = || clear_dead(&at, Some(base.path()), Duration::ZERO).unwrap();
    let open = |location: &str| {
        let instance = Instance::of_mount(base.path(), &at).unwrap();
        instance.write(&record(location, mount(&at), FileIdentity::Unknown)).unwrap();
        instance
    };
    kill(open("/a.img"), base.path());
    let left = registry.by_mountpoint(&at).unwrap();
    // Another process has opened a disk there since.
    let living = open("/b.img");
    clear();
    assert!(!left.alive && !left.clear_dead().unwrap());
    let found = registry.by_mountpoint(&at).unwrap();
    assert!(found.alive && found.record.location == "/b.img");
    kill(living, base.path());
    assert!(left.clear_dead().unwrap() && !left.clear_dead().unwrap());
    kill(open("/c.img"), base.path());
    clear();
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    clear();
}

#[test]
fn errors_about_a_private_disk_name_no_mount_point_in_a_log() {
    let base = tempfile::tempdir().unwrap();
    let at = base.path().canonicalize().unwrap().join("mnt");
    let registry = Registry::open(Some(base.path())).unwrap();
    for private in [false, true] {
        // Its server does not listen yet.
        let instance = Instance::of_mount(base.path(), &at).unwrap();
        let written = Record { private, ..record("/a.img", mount(&at), FileIdentity::Unknown) };
        instance.write(&written).unwrap();
        let peer = registry.by_mountpoint(&at).unwrap();
        for e in [peer.status().unwrap_err(), peer.begin(&Job::Flush).err().unwrap()] {
            assert_eq!(e.to_string().contains(at.to_str().unwrap()), !private, "{e}");
        }
        assert_eq!(peer.close().unwrap_err().is_confidential(), private);
        instance.end().unwrap();
    }
}

#[test]
fn a_mount_is_found_despite_other_unreadable_records() {
    let base = tempfile::tempdir().unwrap();
    let registry = Registry::open(Some(base.path())).unwrap();
    let (at, other) = (Path::new("/mnt/x"), Path::new("/mnt/y"));
    let mounted = Instance::of_mount(base.path(), at).unwrap();
    mounted.write(&record("/a.img", mount(at), FileIdentity::Unknown)).unwrap();
    let served = Instance::of_server(base.path(), "/mnt/y").unwrap();
    served.write(&record("/mnt/y", FrontEnd::Nbd { uris: Vec::new() }, FileIdentity::Unknown)).unwrap();
    let found = |at: &Path| -> Vec<String> {
        let peers = registry.mounted_at(at).unwrap();
        peers.into_iter().map(|peer| peer.record.location).collect()
    };
    assert_eq!((found(at), found(other)), (vec!["/a.img".to_owned()], vec![]));
    fs::write(served.control().with_file_name("record.json"), "{").unwrap();
    assert_eq!(found(at), ["/a.img"]);
    // The instance with the unreadable record may be mounted there.
    assert_eq!(registry.mounted_at(other).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn mounts_of_dead_servers_are_found_until_a_living_server_mounts_there() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = one.path().canonicalize().unwrap().join("mnt");
    let bases = [one.path(), other.path()];
    for base in bases {
        let dead = Instance::of_mount(base, &at).unwrap();
        dead.write(&record(base.to_str().unwrap(), mount(&at), FileIdentity::Unknown)).unwrap();
        kill(dead, base);
    }
    let registry = Registry { bases: Vec::from(bases.map(Path::to_owned)) };
    let left = registry.mounted_at(&at).unwrap();
    assert!(left.len() == 2 && left.iter().all(|peer| !peer.alive));
    let living = Instance::of_mount(other.path(), &at).unwrap();
    living.write(&record("/b.img", mount(&at), FileIdentity::Unknown)).unwrap();
    let found = registry.mounted_at(&at).unwrap();
    assert!(found.len() == 1 && found[0].alive && found[0].record.location == "/b.img");
}

#[test]
fn disks_of_one_name_in_pools_are_selected_by_the_query() {
    let base = tempfile::tempdir().unwrap();
    let registry = Registry::open(Some(base.path())).unwrap();
    let in_namespace = |name: &str| PoolScope { namespace: Some(name.to_owned()), ceph_conf: None };
    let places = [Some(PoolScope::default()), Some(in_namespace("n")), Some(in_namespace("m"))];
    let all = places.clone().into_iter().map(|in_pool| ("rados:p/a", in_pool)).chain([("/a.img", None)]);
    let instances: Vec<Instance> = all
        .map(|(location, in_pool)| {
            let instance = Instance::of_server(base.path(), location).unwrap();
            let front = FrontEnd::Nbd { uris: Vec::new() };
            let record = Record { in_pool, ..record(location, front, FileIdentity::Unknown) };
            instance.write(&record).unwrap();
            instance
        })
        .collect();
    let found = |location: &str, in_pool: Option<PoolQuery>| {
        let wanted = DiskQuery { location, file: FileIdentity::Unknown, in_pool };
        let mut found: Vec<Option<PoolScope>> =
            registry.by_disk(&wanted).unwrap().into_iter().map(|peer| peer.record.in_pool).collect();
        found.sort();
        found
    };
    assert_eq!(registry.by_location("rados:p/a", FileIdentity::Unknown).unwrap().len(), 3);
    for one in &places {
        let exactly = one.clone().map(PoolQuery::exactly);
        assert_eq!(found("rados:p/a", exactly), std::slice::from_ref(one));
    }
    assert!(found("rados:p/a", Some(PoolQuery::exactly(in_namespace("k")))).is_empty());
    let any = PoolQuery { disk: PoolScope::default(), is_namespace_named: false, is_conf_named: false };
    assert_eq!(found("rados:p/a", Some(any.clone())).len(), 3);
    let of_namespace = PoolQuery { disk: in_namespace("m"), is_namespace_named: true, ..any };
    assert_eq!(found("rados:p/a", Some(of_namespace)), [Some(in_namespace("m"))]);
    // A path never names a disk in a pool.
    assert_eq!((found("/a.img", None), found("rados:p/a", None)), (vec![None], vec![]));
    drop(instances);
}
