//! Tests with real clients: libnbd's tools, qemu and fio.

mod harness;

use harness::client::{OPT_LIST, OPT_STARTTLS, RawClient};
use harness::{GatedDisk, ServerThread, run, text};
use lacuna_contracts::BLOCK_SIZE;
use lacuna_nbd::{Exports, Listen, NbdServer, ServerSettings, TlsMode};
use lacuna_testkit::{is_program_available, noise, skip_unless};
use std::path::Path;
use std::process::Command;

const BLOCKS: usize = 4096;

/// An image with holes.
fn image() -> Vec<u8> {
    let mut image = noise(8, BLOCKS * BLOCK_SIZE);
    image[BLOCK_SIZE * 100..BLOCK_SIZE * 900].fill(0);
    image[BLOCK_SIZE * 2000..].fill(0);
    image
}

fn tcp(exports: Exports, settings: ServerSettings) -> ServerThread {
    ServerThread::start(tempfile::tempdir().unwrap(), &Listen::tcp("127.0.0.1:0").unwrap(), exports, settings)
}

#[test]
fn nbdinfo_reads_the_exports() {
    skip_unless!(is_program_available("nbdinfo"));
    let (zero, one) = (GatedDisk::new(BLOCKS), GatedDisk::with(8, true));
    RawClient::write(
        &mut RawClient::connect(
            &ServerThread::unix(zero.exports(), ServerSettings::default()).socket(),
            true,
        ),
        8192,
        b"x",
    );
    let exports = Exports::levels([zero.byte_disk(), one.byte_disk()]);
    for server in [
        ServerThread::unix(exports.clone(), ServerSettings::default()),
        tcp(exports, ServerSettings::default()),
    ] {
        let output = run("nbdinfo", &["--json", &server.uri]);
        let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(info["protocol"], "newstyle-fixed");
        assert_eq!(info["structured"], true);
        let export = &info["exports"][0];
        assert_eq!(export["export-size"], (BLOCKS * BLOCK_SIZE) as u64);
        assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
        for can in ["can_cache", "can_df", "can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"] {
            assert_eq!(export[can], true, "{can}");
        }
        assert_eq!(export["is_read_only"], false);
        assert_eq!(export["block_size_minimum"], 4096);
        assert_eq!(export["block_size_preferred"], 4096);
        assert_eq!(export["block_size_maximum"], 64 << 20);

        let list = run("nbdinfo", &["--json", "--list", &server.uri]);
        let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
        let names: Vec<_> = list["exports"].as_array().unwrap().iter().map(|e| &e["export-name"]).collect();
        assert_eq!(names, ["", "0", "1"]);
        assert_eq!(list["exports"][2]["is_read_only"], true);

        let map = run("nbdinfo", &["--map", "--json", &server.uri]);
        let map: serde_json::Value = serde_json::from_slice(&map.stdout).unwrap();
        let map: Vec<_> = map
            .as_array()
            .unwrap()
            .iter()
            .map(|e| (e["length"].as_u64().unwrap(), e["type"].as_u64().unwrap()))
            .collect();
        assert_eq!(map, [(8192, 3), (4096, 0), ((BLOCKS as u64 - 3) * 4096, 3)]);
    }
}

fn copy_in_and_out(uri: &str, directory: &Path, disk: &GatedDisk) {
    let (source, target) = (directory.join("in"), directory.join("out"));
    std::fs::write(&source, image()).unwrap();
    for extra in [&["--connections=4"][..], &["--connections=1", "--requests=1", "--request-size=1048576"]] {
        run("nbdcopy", &[extra, &[text(&source), uri]].concat());
        assert!(disk.contents() == image());
        run("nbdcopy", &[extra, &[uri, text(&target)]].concat());
        assert!(std::fs::read(&target).unwrap() == image());
    }
}

#[test]
fn nbdcopy_copies_in_and_out() {
    skip_unless!(is_program_available("nbdcopy"));
    let disk = GatedDisk::new(BLOCKS);
    let server = ServerThread::unix(disk.exports(), ServerSettings::default());
    copy_in_and_out(&server.uri, server.directory.path(), &disk);
    let disk = GatedDisk::new(BLOCKS);
    let server = tcp(disk.exports(), ServerSettings::default());
    copy_in_and_out(&server.uri, server.directory.path(), &disk);
}

#[test]
fn qemu_converts_and_compares() {
    skip_unless!(is_program_available("qemu-img") && is_program_available("qemu-io"));
    let disk = GatedDisk::new(BLOCKS);
    let server = ServerThread::unix(disk.exports(), ServerSettings::default());
    let (source, target) = (server.path("in.raw"), server.path("out.qcow2"));
    std::fs::write(&source, image()).unwrap();
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", text(&source), &server.uri]);
    assert!(disk.contents() == image());
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&source), &server.uri]);
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &server.uri, text(&target)]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", text(&source), text(&target)]);
    let commands = [
        "write -P 7 5000 3000",
        "write -z 6000 100",
        "discard 1M 1M",
        "flush",
        "read -P 7 5000 1000",
        "read -P 0 6000 100",
    ];
    let args: Vec<&str> = commands.iter().flat_map(|command| ["-c", *command]).collect();
    run("qemu-io", &[&["-f", "raw"][..], &args, &[&server.uri]].concat());
    assert_eq!(disk.contents()[5999..6101], [&[7][..], &[0; 100], &[7]].concat());
}

#[test]
fn fio_finds_what_it_wrote() {
    skip_unless!(is_program_available("fio"));
    let engines = Command::new("fio").arg("--enghelp").output().unwrap();
    skip_unless!(String::from_utf8_lossy(&engines.stdout).contains("nbd"), "this fio has no nbd engine");
    let disk = GatedDisk::new(BLOCKS);
    let server = ServerThread::unix(disk.exports(), ServerSettings::default());
    let uri = format!("--uri={}", server.uri);
    let job = ["--name=v", "--ioengine=nbd", &uri, "--rw=randwrite", "--bsrange=4k-64k", "--iodepth=32"];
    let verify = [
        "--size=16m",
        "--verify=crc32c",
        "--do_verify=1",
        "--fsync=64",
        "--randseed=5",
        "--verify_state_save=0",
    ];
    run("fio", &[&job[..], &verify].concat());
}

#[test]
fn nbdsh_exercises_every_request() {
    skip_unless!(is_program_available("nbdsh"));
    let server = ServerThread::unix(GatedDisk::new(4).exports(), ServerSettings::default());
    let script = "h.set_strict_mode(0); h.pwrite(b'abc', 5); assert h.pread(5, 4) == b'\\0abc\\0'";
    run("nbdsh", &["-u", &server.uri, "-c", script]);
}

/// Creates an authority, a server certificate for this machine, and a client certificate.
fn certificates(directory: &Path) -> bool {
    if !is_program_available("openssl") {
        return false;
    }
    let script = r#"
        set -e; cd "$1"; mkdir server client verify
        new() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 "$@"; }
        new -subj "/CN=Test authority" -keyout ca-key.pem -out client/ca-cert.pem \
            -addext keyUsage=keyCertSign,cRLSign
        new -subj /CN=localhost -keyout server/server-key.pem -out server/server-cert.pem \
            -CA client/ca-cert.pem -CAkey ca-key.pem -addext basicConstraints=CA:FALSE \
            -addext subjectAltName=DNS:localhost,IP:127.0.0.1
        new -subj /CN=client -keyout client/client-key.pem -out client/client-cert.pem \
            -CA client/ca-cert.pem -CAkey ca-key.pem -addext basicConstraints=CA:FALSE
        cp server/*.pem client/ca-cert.pem verify
        mkdir anonymous; cp client/ca-cert.pem anonymous
    "#;
    run("sh", &["-c", script, "sh", text(directory)]);
    true
}

#[test]
#[cfg_attr(not(feature = "tls"), ignore = "a build without TLS")]
fn tls_protects_tcp_and_unix_sockets() {
    use std::io::Write;
    let pki = tempfile::tempdir().unwrap();
    skip_unless!(
        is_program_available("nbdcopy") && is_program_available("nbdinfo") && certificates(pki.path())
    );
    let settings = |mode, directory: &str| ServerSettings {
        tls: mode,
        certificates: Some(pki.path().join(directory)),
        ..ServerSettings::default()
    };
    let with = |uri: &str, certificates: &str| {
        let join = if uri.contains('?') { '&' } else { '?' };
        let uri = uri.replace("127.0.0.1", "localhost");
        let slash = if uri.contains('?') { "" } else { "/" };
        format!("{uri}{slash}{join}tls-certificates={}", pki.path().join(certificates).display())
    };
    let succeeds =
        |uri: &str| Command::new("nbdinfo").args(["--size", uri]).output().unwrap().status.success();

    let disk = GatedDisk::new(BLOCKS);
    let server = tcp(disk.exports(), settings(TlsMode::Require, "server"));
    assert!(server.uri.starts_with("nbds://"));
    copy_in_and_out(&with(&server.uri, "anonymous"), server.directory.path(), &disk);
    assert!(!succeeds(&server.uri.replace("nbds", "nbd")), "nothing without TLS");

    let server = ServerThread::unix(disk.exports(), settings(TlsMode::Allow, "server"));
    assert!(server.uri.starts_with("nbd+unix://"));
    assert!(succeeds(&server.uri), "plain is allowed");
    let encrypted = server.uri.replace("nbd+", "nbds+");
    assert!(succeeds(&with(&encrypted, "anonymous")));

    let server = tcp(disk.exports(), settings(TlsMode::Require, "verify"));
    assert!(!succeeds(&with(&server.uri, "anonymous")), "a client without a certificate");
    assert!(succeeds(&with(&server.uri, "client")));

    let server = ServerThread::unix(disk.exports(), settings(TlsMode::Require, "server"));
    let mut plain = RawClient::greet(&server.socket(), 3).unwrap();
    assert_eq!(plain.option(OPT_LIST, &[])[0].0, harness::client::ERR_TLS_REQD);
    assert_eq!(plain.option(OPT_STARTTLS, b"x")[0].0, harness::client::ERR_INVALID);
    assert_eq!(plain.option(OPT_STARTTLS, b"")[0].0, harness::client::ACK);
    plain.stream.write_all(&noise(1, 1000)).unwrap();
    assert!(plain.closed());

    // An unreadable authority must not admit all clients.
    std::os::unix::fs::symlink("gone.pem", pki.path().join("server/ca-cert.pem")).unwrap();
    let listen = Listen::tcp("127.0.0.1:0").unwrap();
    let refused =
        NbdServer::bind(&[listen], Exports::new(), settings(TlsMode::Require, "server")).err().unwrap();
    assert!(refused.to_string().contains("ca-cert.pem"), "{refused}");
}
