//! The status that a server reports, whatever its front end: its record, and the state that changes
//! while it runs.

use crate::file::FileState;
use crate::json_path::set_path;
use crate::record::{FrontEnd, Record};
use lacuna_contracts::{ByteDisk, Error, Kind, Result, Status, StatusItem};
use lacuna_mount::SessionMonitor;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A source of counters that a server shows on its control socket. It may be able to forget.
pub trait StatusSource: Send + Sync + 'static {
    /// The counters now.
    fn status(&self) -> Status;

    /// Makes deleted data unrecoverable, and returns counters of the purge.
    ///
    /// Errors: [`Kind::Usage`] from a source that cannot forget.
    fn purge(&self) -> Result<Status> {
        Err(Error::new(Kind::Usage, "it cannot be purged")
            .found("something that does not forget deleted data")
            .expected("a disk of the format flash"))
    }

    /// How the file with this inode number is protected; `None` for a disk.
    fn stat(&self, _ino: u64) -> Option<Result<Value>> {
        None
    }
}

impl StatusSource for ByteDisk {
    fn status(&self) -> Status {
        ByteDisk::status(self)
    }

    fn purge(&self) -> Result<Status> {
        ByteDisk::purge(self)
    }
}

/// The state of a front end.
pub trait ServerState: Send + Sync + 'static {
    /// Whether it was told to end and has not refused.
    fn is_closing(&self) -> bool;

    /// The last request that failed.
    fn last_error(&self) -> Option<Error>;

    /// The length of the disk in bytes, where clients see it.
    fn size(&self) -> Option<u64> {
        None
    }

    /// The clients that use the disk over the network; `None` for a mount.
    fn clients(&self) -> Option<ConnectedClients> {
        None
    }

    /// The clients that were refused; `None` for a mount.
    fn refused_clients(&self) -> Option<RefusedClients> {
        None
    }
}

impl ServerState for SessionMonitor {
    fn is_closing(&self) -> bool {
        SessionMonitor::is_closing(self)
    }

    fn last_error(&self) -> Option<Error> {
        self.last_failure()
    }
}

/// A counter as a server sent it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Stable machine name, such as `journal_used`.
    pub name: String,
    /// Present value.
    pub value: u64,
    /// Unit, such as `bytes`, `blocks` or `writes`.
    pub unit: String,
}

impl Counter {
    /// Converts these items.
    pub fn all(items: &[StatusItem]) -> Vec<Counter> {
        let counter = |item: &StatusItem| Counter {
            name: item.name.to_owned(),
            value: item.value,
            unit: item.unit.to_owned(),
        };
        items.iter().map(counter).collect()
    }
}

/// The clients that use a disk over the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectedClients {
    /// Number of their connections.
    pub count: u64,
    /// The first of them in words, such as `qemu-img (process 812)` or `10.0.0.5`.
    pub named: Vec<String>,
}

/// The clients that a server refused, because their TLS handshakes failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedClients {
    /// Number of refusals.
    pub count: u64,
    /// The last of them, as text.
    pub last: Option<String>,
}

/// The counters of a purge, and the UUID of the purged disk.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PurgeReport {
    pub uuid: Option<String>,
    pub items: Vec<Counter>,
}

/// The status of one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The record of the open disk or vault.
    pub record: Record,
    /// The ID by which its owner recognizes the disk or vault.
    pub id: Option<String>,
    /// The file of the disk, or the directory of the vault, as it is now.
    pub file: Option<FileState>,
    /// The counters; empty while the disk waits for its medium and cannot be asked.
    pub items: Vec<Counter>,
    /// The length of the disk in bytes, where clients see it.
    pub size: Option<u64>,
    /// The clients that use the disk over the network; `None` for a mount.
    pub clients: Option<ConnectedClients>,
    /// The clients that were refused; `None` for a mount.
    pub refused_clients: Option<RefusedClients>,
    /// The last request that failed, as text.
    pub last_error: Option<String>,
    /// The condition of the server.
    pub condition: Condition,
    /// Whether its keeper died, and so the server is not started again if it dies.
    #[serde(default)]
    pub keeper_died: bool,
}

/// The condition of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// Serving requests.
    Serving,
    /// Closing, as it was told to.
    Closing,
    /// It did not answer.
    Silent,
    /// It died without closing.
    Died,
}

impl ServerStatus {
    /// The status of a dead server, from its record.
    pub fn of_dead(record: Record) -> ServerStatus {
        ServerStatus::of(record, Condition::Died)
    }

    /// The status of a server that does not answer, from its record. It contains the identity of
    /// the file.
    pub fn of_silent(record: Record) -> ServerStatus {
        let file = FileState { place: record.file, now: None };
        let file = Some(file).filter(|file| file.place.is_same(file.place));
        ServerStatus { file, ..ServerStatus::of(record, Condition::Silent) }
    }

    /// A status with nothing else that changes while the server runs. It says whether the keeper
    /// lives now.
    pub(crate) fn of(record: Record, condition: Condition) -> ServerStatus {
        let (id, file, size, last_error) = (None, None, None, None);
        let (items, clients, refused_clients) = (Vec::new(), None, None);
        let keeper_died = record.keeper.is_some() && !record.is_kept();
        ServerStatus {
            record,
            id,
            file,
            items,
            size,
            clients,
            refused_clients,
            last_error,
            condition,
            keeper_died,
        }
    }

    /// Whether it died without closing.
    pub fn is_dead(&self) -> bool {
        self.condition == Condition::Died
    }

    /// Whether it did not answer.
    pub fn is_silent(&self) -> bool {
        self.condition == Condition::Silent
    }

    /// Whether the file of the disk was deleted.
    pub fn is_deleted(&self) -> bool {
        self.file.as_ref().and_then(|file| file.now.as_ref()).is_some_and(|now| now.deleted)
    }

    /// The counters, by their names.
    pub fn counters(&self) -> impl Iterator<Item = (&str, u64)> + Clone {
        self.items.iter().map(|item| (item.name.as_str(), item.value))
    }

    /// JSON for programs, as `status --json` shows a server (`docs/json.md`).
    pub fn to_json(&self) -> Value {
        let record = &self.record;
        let mut out = json!({
            "location": record.location,
            "format": record.format,
            "since": record.since,
            "pid": record.pid,
            "read_only": record.read_only,
            "closing": self.condition == Condition::Closing,
            "clients": self.clients.as_ref().map(|clients| clients.count),
            "items": self.items,
            "last_error": self.last_error,
            "id": self.id,
            "file": self.file,
        });
        match &record.front {
            FrontEnd::Fuse(mount) => {
                out["front"] = json!("fuse");
                set_path(&mut out, "mountpoint", &mount.mountpoint);
                out["raw"] = json!(mount.is_raw());
                out["via"] = json!(mount.method());
                out["vault"] = json!(mount.is_vault());
                out["died"] = json!(self.is_dead());
                out["silent"] = json!(self.is_silent());
            }
            FrontEnd::Nbd { uris } => {
                out["front"] = json!("nbd");
                out["uri"] = json!(uris.first());
                out["uris"] = json!(uris);
                out["size"] = json!(self.size);
                out["peers"] = json!(self.clients.as_ref().map(|clients| &clients.named));
                out["refused_clients"] = json!(self.refused_clients);
                for (field, condition) in [("silent", Condition::Silent), ("died", Condition::Died)] {
                    if self.condition == condition {
                        out[field] = json!(true);
                    }
                }
            }
        }
        if let Some(keeper) = record.keeper {
            out["keeper"] = json!(keeper.pid);
            out["keeper_died"] = json!(self.keeper_died);
            if self.is_dead() && !self.keeper_died {
                out["keeper_waits_for"] = json!(record.obstacle);
            }
        }
        let in_pool = record.in_pool.as_ref();
        if let Some(namespace) = in_pool.and_then(|in_pool| in_pool.namespace.as_ref()) {
            out["namespace"] = json!(namespace);
        }
        if let Some(conf) = in_pool.and_then(|in_pool| in_pool.ceph_conf.as_ref()) {
            set_path(&mut out, "ceph_conf", conf);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{FileIdentity, FileNow};
    use crate::record::{Identity, KeeperId, MountKind, MountRecord, MountedBy, PoolScope};

    fn record(front: FrontEnd) -> Record {
        let identity = Identity { location: "/a.img".into(), format: "sealed".into(), ..Identity::default() };
        let (since, pid) = (1_714_570_620, 7);
        Record { since, pid, file: FileIdentity::File(1, 2), ..Record::new(&identity, front, false) }
    }

    fn mount() -> FrontEnd {
        let by = Some(MountedBy::LoopDevice("/dev/loop3".into()));
        FrontEnd::Fuse(MountRecord { mountpoint: "/mnt".into(), kind: MountKind::FileSystem { by } })
    }

    fn served() -> FrontEnd {
        FrontEnd::Nbd { uris: vec!["nbd://h".into()] }
    }

    #[test]
    fn both_fronts_have_the_documented_fields() {
        let answered = |front| {
            let now =
                FileNow { path: Some("/a.img".into()), path_bytes: None, deleted: false, removed: false };
            let file = Some(FileState { place: FileIdentity::File(1, 2), now: Some(now) });
            let items = vec![Counter { name: "dirty".into(), value: 1, unit: "bytes".into() }];
            let (id, size) = (Some("ID".into()), Some(4096));
            let of_network = matches!(front, FrontEnd::Nbd { .. });
            let clients = ConnectedClients { count: 2, named: vec!["10.0.0.5".into()] };
            let refused = RefusedClients { count: 1, last: Some("no TLS".into()) };
            let (clients, refused_clients) =
                (Some(clients).filter(|_| of_network), Some(refused).filter(|_| of_network));
            let known = ServerStatus::of(record(front), Condition::Serving);
            ServerStatus { id, file, items, size, clients, refused_clients, ..known }.to_json().to_string()
        };
        let file = r#""file":{"deleted":false,"path":"/a.img","place":"file:1:2","removed":false}"#;
        let items = r#""items":[{"name":"dirty","unit":"bytes","value":1}],"last_error":null"#;
        assert_eq!(
            answered(mount()),
            format!(
                r#"{{"clients":null,"closing":false,"died":false,{file},"format":"sealed","front":"fuse","id":"ID",{items},"location":"/a.img","mountpoint":"/mnt","pid":7,"raw":false,"read_only":false,"silent":false,"since":1714570620,"vault":false,"via":"loop"}}"#
            )
        );
        assert_eq!(
            answered(served()),
            format!(
                r#"{{"clients":2,"closing":false,{file},"format":"sealed","front":"nbd","id":"ID",{items},"location":"/a.img","peers":["10.0.0.5"],"pid":7,"read_only":false,"refused_clients":{{"count":1,"last":"no TLS"}},"since":1714570620,"size":4096,"uri":"nbd://h","uris":["nbd://h"]}}"#
            )
        );
    }

    #[test]
    fn the_json_shows_the_kind_of_mount() {
        let by = Some(MountedBy::Program("fuse2fs".into()));
        for (kind, raw, vault, via) in [
            (MountKind::FileSystem { by }, false, false, json!("fuse2fs")),
            (MountKind::Raw, true, false, Value::Null),
            (MountKind::Vault, false, true, Value::Null),
        ] {
            let front = FrontEnd::Fuse(MountRecord { mountpoint: "/mnt".into(), kind });
            let shown = ServerStatus::of(record(front), Condition::Serving).to_json();
            assert_eq!((&shown["raw"], &shown["vault"], &shown["via"]), (&json!(raw), &json!(vault), &via));
        }
    }

    #[test]
    fn a_server_is_in_one_condition() {
        for (condition, shown) in [
            (Condition::Serving, [false, false, false]),
            (Condition::Closing, [true, false, false]),
            (Condition::Silent, [false, true, false]),
            (Condition::Died, [false, false, true]),
        ] {
            let json = ServerStatus::of(record(mount()), condition).to_json();
            assert_eq!(["closing", "silent", "died"].map(|field| json[field] == true), shown);
        }
    }

    #[test]
    fn the_death_of_a_keeper_is_shown() {
        let own = KeeperId::of(std::process::id()).unwrap().unwrap();
        for (keeper, died) in [(own, false), (KeeperId { start: own.start + 1, ..own }, true)] {
            let record = Record { keeper: Some(keeper), ..record(served()) };
            assert_eq!(record.is_kept(), !died);
            let status = ServerStatus::of_dead(record).to_json();
            assert!(status["died"] == true && status["keeper_died"] == died, "{status}");
            assert_eq!(status["keeper"], own.pid);
        }
        let without = ServerStatus::of(record(served()), Condition::Serving).to_json();
        assert!(without["keeper"].is_null() && without["keeper_died"].is_null() && without["died"].is_null());
    }

    #[test]
    fn a_silent_server_is_described_by_its_record() {
        for front in [mount(), served()] {
            let silent = ServerStatus::of_silent(record(front.clone())).to_json();
            assert!(silent["silent"] == true && silent["location"] == "/a.img", "{silent}");
            assert_eq!(silent["file"], json!({ "place": "file:1:2" }));
            let in_pool = PoolScope { namespace: Some("n".into()), ceph_conf: Some("/c".into()) };
            let unknown =
                Record { file: FileIdentity::Unknown, in_pool: Some(in_pool), ..record(front.clone()) };
            let silent = ServerStatus::of_silent(unknown.clone()).to_json();
            assert!(silent["file"].is_null() && silent["namespace"] == "n" && silent["ceph_conf"] == "/c");
            let died = ServerStatus::of_dead(unknown);
            let text = serde_json::to_string(&died).unwrap();
            assert_eq!(serde_json::from_str::<ServerStatus>(&text).unwrap(), died);
        }
        assert!(ServerStatus::of_dead(record(mount())).to_json()["died"] == true);
    }
}
