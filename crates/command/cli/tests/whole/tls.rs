//! TLS clients that a server refuses: each is counted, with its reason.

use crate::harness::{Scene, Signal, is_program_available, send, skip_unless, skipped, wait_until};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// An authority, a server, and a directory for each client: `right`, `none` without a certificate,
/// `foreign` of another authority with the same name, `other` of an authority with another name,
/// `stranger` that trusts only this authority, and `old` as `openssl x509 -req` makes it.
const CERTIFICATES: &str = r#"
set -e; mkdir server right none foreign other stranger old
key="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
new() { openssl req -x509 $key -days 30 "$@"; }
new -subj /CN=authority -keyout ca-key.pem -out ca-cert.pem -addext keyUsage=keyCertSign,cRLSign
new -subj /CN=authority -keyout other-key.pem -out other-cert.pem -addext keyUsage=keyCertSign,cRLSign
new -subj /CN=localhost -keyout server/server-key.pem -out server/server-cert.pem \
    -CA ca-cert.pem -CAkey ca-key.pem -addext basicConstraints=CA:FALSE \
    -addext subjectAltName=DNS:localhost,IP:127.0.0.1
new -subj /CN=client -keyout right/client-key.pem -out right/client-cert.pem \
    -CA ca-cert.pem -CAkey ca-key.pem -addext basicConstraints=CA:FALSE
new -subj /CN=client -keyout foreign/client-key.pem -out foreign/client-cert.pem \
    -CA other-cert.pem -CAkey other-key.pem -addext basicConstraints=CA:FALSE
new -subj /CN=elsewhere -keyout else-key.pem -out else-cert.pem -addext keyUsage=keyCertSign,cRLSign
new -subj /CN=client -keyout other/client-key.pem -out other/client-cert.pem \
    -CA else-cert.pem -CAkey else-key.pem -addext basicConstraints=CA:FALSE
cp right/client-*.pem stranger/ && cp else-cert.pem stranger/ca-cert.pem
openssl req $key -keyout old/client-key.pem -out request -subj /CN=client
openssl x509 -req -in request -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 30 \
    -out old/client-cert.pem
for directory in server right none foreign other old; do cp ca-cert.pem $directory; done
openssl x509 -req -in request -signkey old/client-key.pem -days 30 -out old-ca-cert.pem
"#;

/// A server that does not outlive the test.
struct TlsServer(Child);

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A disk and the certificates; `None`, with a message, where they cannot be made.
fn scene() -> Option<Scene> {
    if !cfg!(feature = "tls") {
        skipped("a build without TLS");
        return None;
    }
    if !is_program_available("openssl") || !is_program_available("nbdinfo") {
        return None;
    }
    let scene = Scene::with_disk(&["--size", "16M"]);
    scene.tool("sh", &["-c", CERTIFICATES]);
    Some(scene)
}

/// Whether a certificate is of X.509 version 1; newer versions of openssl make none by themselves.
fn is_of_version_1(scene: &Scene, certificate: &str) -> bool {
    let text = scene.tool("openssl", &["x509", "-noout", "-text", "-in", certificate]).stdout;
    let is_old = text.contains("Version: 1 ");
    if !is_old {
        skipped("openssl makes certificates of version 3 by itself");
    }
    is_old
}

const SERVE: [&str; 8] =
    ["serve", "disk.img", "--listen", "127.0.0.1:0", "--tls-dir", "server", "--key-file", "key"];

#[test]
fn a_refused_client_is_counted_with_its_reason() {
    let Some(scene) = scene() else { return };
    let mut command = scene.command(&SERVE);
    let log = File::create(scene.path("log")).unwrap();
    let mut server = TlsServer(command.stdout(Stdio::piped()).stderr(log).spawn().unwrap());
    let mut uri = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut uri).unwrap();
    let uri = uri.trim().replace("127.0.0.1", "localhost");
    let is_let_in = |client: &str| {
        let uri = format!("{uri}/?tls-certificates={}", scene.path(client).display());
        Command::new("nbdinfo").args(["--size", &uri]).output().unwrap().status.success()
    };
    let status = || scene.lacuna(&["status", "disk.img", "--json"]).code(0).json()["servers"][0].clone();
    assert!(is_let_in("right"));
    assert_eq!(status()["refused_clients"], serde_json::json!({ "count": 0, "last": null }));

    let mut count = 0;
    for (client, reason) in [
        ("none", "no certificate of the client; expected: one that ca-cert.pem signed"),
        ("foreign", "a client's certificate of another authority"),
        // A client shows no certificate of an authority that the server does not name.
        ("other", "no certificate of the client"),
        ("old", "a client's certificate of X.509 version 1; expected: one of version 3"),
    ] {
        if client == "old" && !is_of_version_1(&scene, "old/client-cert.pem") {
            continue;
        }
        assert!(!is_let_in(client), "{client}");
        count += 1;
        wait_until("the count of the refused client", || status()["refused_clients"]["count"] == count);
        let answer = status();
        let last = answer["refused_clients"]["last"].as_str().unwrap();
        assert!(last.starts_with("a client of 127.0.0.1 was refused; found: "), "{last}");
        assert!(last.contains(reason), "{last}");
        // It is no failure of the disk.
        assert_eq!((&answer["last_error"], &answer["clients"]), (&Value::Null, &0.into()));
    }
    // A client that refuses the server leaves without a word, and is not counted.
    assert!(!is_let_in("stranger"));
    assert!(is_let_in("right"));
    let text = scene.lacuna(&["status", "disk.img"]).code(0).stdout;
    assert!(text.contains(&format!("{count} clients refused, the last: a client of 127.0.0.1")), "{text}");
    send(Signal::TERM, server.0.id());
    assert!(server.0.wait().unwrap().success());
    let log = fs::read_to_string(scene.path("log")).unwrap();
    assert_eq!(log.matches("a client of 127.0.0.1 was refused").count(), count, "{log}");
}

#[test]
fn an_authority_of_version_1_is_refused_at_the_start() {
    let Some(scene) = scene() else { return };
    skip_unless!(is_of_version_1(&scene, "old-ca-cert.pem"));
    fs::copy(scene.path("old-ca-cert.pem"), scene.path("server/ca-cert.pem")).unwrap();
    let refused = scene.lacuna(&SERVE).code(1).stderr;
    for words in ["server/ca-cert.pem", "an authority of X.509 version 1", "openssl req -x509"] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
}
