//! The options of a connection.

use super::error::{self, RadosCode};
use super::ffi::{ClusterConnection, UnconnectedCluster};
use lacuna_contracts::{Error, Hint, Kind, Result, Setting};
use std::ffi::CString;
use std::path::PathBuf;
use std::time::Duration;

/// How to reach a cluster, and as which user.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// The configuration file. Default: `$CEPH_CONF`, `/etc/ceph/ceph.conf`, `~/.ceph/config` or
    /// `./ceph.conf`.
    pub conf: Option<PathBuf>,
    /// The user, with or without the prefix `client.`. Default: `admin`.
    pub id: Option<String>,
    /// The namespace in the pool. Default: the default namespace.
    pub namespace: Option<String>,
    /// The timeout of an operation, rounded up to whole seconds. Default: none.
    pub timeout: Option<Duration>,
}

/// The timeout of connecting in seconds, unless the configuration or the caller sets one.
const CONNECT_SECONDS: u64 = 30;
/// Ceph's default for that timeout, which is too long for an interactive command.
const CEPH_CONNECT_SECONDS: &str = "300";
/// The maximum object size in bytes, unless the configuration sets one.
const OBJECT_LIMIT: u64 = 128 << 20;

/// A string for librados.
pub(super) fn c_string(text: &str, what: &str) -> Result<CString> {
    CString::new(text).map_err(|_| {
        Error::new(Kind::Usage, format!("cannot use {what} {text:?}"))
            .found("a NUL byte")
            .hint("give one without")
    })
}

impl ClusterOptions {
    /// The full name of the user.
    pub(super) fn client(&self) -> String {
        let id = self.id.as_deref().unwrap_or("admin");
        if id.starts_with("client.") { id.to_owned() } else { format!("client.{id}") }
    }

    /// Connects. Also returns the most bytes that an object may hold.
    pub(super) fn connect(&self) -> Result<(ClusterConnection, u64)> {
        let client = self.client();
        let named = c_string(&client, "the user")?;
        let mut draft = UnconnectedCluster::new(&named)?.map_err(|code| {
            error::failed(code, format!("cannot act as `{client}`"), "POOL")
                .with_kind(Kind::Usage)
                .hint(Hint::from("name a user, such as `admin`, with ").setting(Setting("ceph_id")))
        })?;
        self.read_configuration(&mut draft)?;
        self.set_timeouts(&mut draft)
            .map_err(|code| error::failed(code, "cannot set Ceph's timeouts".to_owned(), "POOL"))?;
        let limit = draft.get(c"osd_max_object_size").and_then(|v| v.parse().ok()).unwrap_or(OBJECT_LIMIT);
        let monitors = draft.get(c"mon_host").unwrap_or_default();
        let cluster = connect_apart(draft)?.map_err(|code| unreachable(code, &client, &monitors))?;
        Ok((cluster, limit))
    }

    fn read_configuration(&self, draft: &mut UnconnectedCluster) -> Result<()> {
        let path = match &self.conf {
            Some(path) => Some(c_string(&path.to_string_lossy(), "the configuration file")?),
            None => None,
        };
        draft.read_file(path.as_deref()).map_err(|code| {
            let what = match &self.conf {
                Some(path) => format!("cannot read Ceph's configuration {}", path.display()),
                None => "cannot find Ceph's configuration".to_owned(),
            };
            let error = error::failed(code, what, "POOL");
            match code {
                RadosCode::NO_ENTRY => error.hint(
                    Hint::from("name the file with ")
                        .setting(Setting("ceph_conf"))
                        .text(", or put it at /etc/ceph/ceph.conf"),
                ),
                _ => error.hint("correct the file"),
            }
        })
    }

    fn set_timeouts(&self, draft: &mut UnconnectedCluster) -> std::result::Result<(), RadosCode> {
        let seconds = self.timeout.map(|t| t.as_secs() + u64::from(t.subsec_nanos() > 0)).map(|s| s.max(1));
        if let Some(seconds) = seconds {
            for option in [c"rados_osd_op_timeout", c"rados_mon_op_timeout"] {
                draft.set(option, &seconds.to_string())?;
            }
        }
        let unset = draft.get(c"client_mount_timeout").is_none_or(|value| value == CEPH_CONNECT_SECONDS);
        if unset || seconds.is_some() {
            draft.set(c"client_mount_timeout", &seconds.unwrap_or(CONNECT_SECONDS).to_string())?;
        }
        Ok(())
    }
}

/// Connects in a thread of its own.
///
/// librados draws a number from a generator of the calling thread, and the number is a part of the
/// address of the connection. After a fork the generators of parent and children are the same. So a
/// child could get the address of another child that died, which the cluster has shut out.
fn connect_apart(draft: UnconnectedCluster) -> Result<std::result::Result<ClusterConnection, RadosCode>> {
    let thread = std::thread::Builder::new().name("lacuna-connect".to_owned());
    let connecting = thread
        .spawn(move || draft.connect())
        .map_err(|e| Error::io("cannot start a thread to connect to the Ceph cluster", &e))?;
    Ok(connecting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// The reason why there is no connection.
fn unreachable(code: RadosCode, client: &str, monitors: &str) -> Error {
    let error = error::failed(code, format!("cannot connect to the Ceph cluster as `{client}`"), "POOL");
    let keyring = Hint::from("name the key ring (`keyring`) in Ceph's configuration, or another user with ")
        .setting(Setting("ceph_id"));
    match code {
        _ if code.is_refusal() => error
            .expected(format!("the key of `{client}` in its key ring"))
            .hint(keyring),
        RadosCode::NO_ENTRY if monitors.is_empty() => error
            .expected("the address of a monitor")
            .hint("name the monitors (`mon_host`) in Ceph's configuration"),
        RadosCode::NO_ENTRY | RadosCode::UNSUPPORTED => error
            .with_kind(Kind::Permission)
            .expected(format!("a key ring that holds the key of `{client}`"))
            .hint(keyring),
        RadosCode::INVALID => error
            .expected(format!("addresses of monitors, and not {monitors:?}"))
            .hint("see `mon_host` in Ceph's configuration"),
        RadosCode::TIMED_OUT => error.expected(format!("a monitor at {monitors}")).hint(
            "see whether the cluster is up and the network reaches it, and `mon_host` in Ceph's configuration",
        ),
        _ => error.hint("see Ceph's configuration: the monitors (`mon_host`) and the key ring (`keyring`)"),
    }
}
