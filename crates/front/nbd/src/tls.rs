//! TLS: certificates in the layout that qemu and nbdkit share, and the encrypted transport.

use crate::exports::Exports;
use crate::negotiate::{Greeting, Outcome, Session, TlsState, negotiate};
use crate::stream::{Socket, Timed, Transport};
use crate::tls_mode::CLIENT_AUTHORITY;
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::{Mutex, MutexGuard};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, ServerConnection, WebPkiClientVerifier};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::path::Path;
use std::sync::Arc;

const SERVER_CERTIFICATE: &str = "server-cert.pem";
const SERVER_KEY: &str = "server-key.pem";

/// The server's certificates and TLS configuration.
pub(crate) struct Certificates(Arc<ServerConfig>);

impl Certificates {
    /// Continues with a client that has asked for TLS. `None` if the client left or the handshake
    /// failed.
    pub(crate) fn secure<'a>(
        &self,
        socket: &'a Socket,
        timed: &mut Timed<'_>,
        exports: &Exports,
        greeting: Greeting,
    ) -> Option<(TlsStream<'a>, Session)> {
        let mut state = ServerConnection::new(self.0.clone()).ok()?;
        let mut stream = rustls::Stream::new(&mut state, timed);
        match negotiate(&mut stream, exports, TlsState::Active, greeting).ok()? {
            Outcome::Transmit(session) => Some((TlsStream::new(socket, state), session)),
            Outcome::StartTls(_) | Outcome::Left => None,
        }
    }
}

/// Reads `server-cert.pem` and `server-key.pem` from `directory`. If `ca-cert.pem` is there too,
/// every client must show a certificate that it has signed.
pub(crate) fn load(directory: &Path) -> Result<Certificates> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = certificates(&directory.join(SERVER_CERTIFICATE))?;
    let key_path = directory.join(SERVER_KEY);
    let key = PrivateKeyDer::from_pem_file(&key_path).map_err(|e| unreadable(&key_path, e))?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| refused(directory, &e))?;
    let authority = directory.join(CLIENT_AUTHORITY);
    // Only a missing file means that clients need no certificate: a file that exists and cannot be
    // read must not admit all clients.
    let found = std::fs::symlink_metadata(&authority);
    let builder = if found.is_ok() || found.is_err_and(|e| e.kind() != ErrorKind::NotFound) {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in certificates(&authority)? {
            roots.add(certificate).map_err(|e| refused(&authority, &e))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|e| refused(&authority, &e))?;
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let config =
        builder.with_single_cert(chain, key).map_err(|e| refused(&directory.join(SERVER_CERTIFICATE), &e))?;
    Ok(Certificates(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found = found.map_err(|e| unreadable(path, e))?;
    if found.is_empty() { Err(unreadable(path, pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn unreadable(path: &Path, error: pem::Error) -> Error {
    let what = format!("cannot load {} for TLS", path.display());
    let error = match error {
        pem::Error::Io(e) => Error::io(what, &e),
        other => Error::new(Kind::Usage, what).found(other.to_string()).expected("PEM"),
    };
    error.remedy(format!(
        "put {SERVER_CERTIFICATE} and {SERVER_KEY} (and {CLIENT_AUTHORITY}, to verify clients) into the directory"
    ))
}

fn refused(path: &Path, error: &dyn std::error::Error) -> Error {
    let refused = Error::new(Kind::Usage, format!("cannot use the certificates in {}", path.display()));
    let words = error.to_string();
    // The output of `openssl x509 -req` without extensions. The library's error names the version
    // only.
    if words.contains("UnsupportedCertVersion") {
        return refused.found("a certificate of X.509 version 1").expected("one of version 3").remedy(
            "make it with extensions: `openssl x509 -req -extfile FILE` and all else as before, where FILE says for example \
             subjectAltName=DNS:localhost",
        );
    }
    if words.contains("KeyMismatch") {
        return refused
            .found("a certificate of another key")
            .expected(format!("the one of the key in {SERVER_KEY}"));
    }
    refused.found(words)
}

/// The transport under TLS.
///
/// The state of the TLS connection is locked while records are sealed or opened, never while a
/// thread waits for the socket, so that a reader and a sender cannot block each other. Records that
/// the reading side produces (a key update) leave with the next reply. Records are sent in the
/// order of their creation, because only the sender takes them, and the caller allows one sender at
/// a time.
pub(crate) struct TlsStream<'a> {
    socket: &'a Socket,
    state: Mutex<ServerConnection>,
    inbound: Mutex<Inbound>,
}

struct Inbound {
    records: Box<[u8]>,
    start: usize,
    end: usize,
}

/// How much plaintext is sealed at a time.
const SEAL_AT_ONCE: usize = 256 << 10;

impl<'a> TlsStream<'a> {
    /// Continues `state` after its handshake, for transmission.
    fn new(socket: &'a Socket, mut state: ServerConnection) -> Self {
        state.set_buffer_limit(Some(SEAL_AT_ONCE + (64 << 10)));
        let inbound = Inbound { records: vec![0; 64 << 10].into_boxed_slice(), start: 0, end: 0 };
        TlsStream { socket, state: Mutex::new(state), inbound: Mutex::new(inbound) }
    }

    fn state(&self) -> MutexGuard<'_, ServerConnection> {
        self.state.lock()
    }

    fn send_sealed(&self, sealed: &mut Vec<u8>) -> io::Result<()> {
        let result = self.socket.send(&mut [IoSlice::new(sealed)]);
        sealed.clear();
        result
    }
}

fn take_sealed(state: &mut ServerConnection, sealed: &mut Vec<u8>) -> io::Result<()> {
    while state.wants_write() {
        state.write_tls(sealed)?;
    }
    Ok(())
}

impl Transport for TlsStream<'_> {
    fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut inbound = self.inbound.lock();
        let inbound = &mut *inbound;
        loop {
            {
                let mut state = self.state();
                match state.reader().read(buf) {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    other => return other,
                }
                if inbound.start < inbound.end {
                    inbound.start += state.read_tls(&mut &inbound.records[inbound.start..inbound.end])?;
                    state.process_new_packets().map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
                    continue;
                }
            }
            inbound.start = 0;
            inbound.end = self.socket.recv(&mut inbound.records)?;
            if inbound.end == 0 {
                return Ok(0);
            }
        }
    }

    fn send(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut sealed = Vec::new();
        for slice in slices.iter() {
            for mut part in slice.chunks(SEAL_AT_ONCE) {
                while !part.is_empty() {
                    let mut state = self.state();
                    let taken = state.writer().write(part)?;
                    take_sealed(&mut state, &mut sealed)?;
                    part = &part[taken..];
                }
                if sealed.len() >= SEAL_AT_ONCE {
                    self.send_sealed(&mut sealed)?;
                }
            }
        }
        self.send_sealed(&mut sealed)
    }

    fn send_now(&self, _: &mut &mut [IoSlice<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn hang_up(&self) {
        self.socket.hang_up();
    }

    fn finish(&self) {
        let mut sealed = Vec::new();
        let mut state = self.state();
        state.send_close_notify();
        let taken = take_sealed(&mut state, &mut sealed);
        drop(state);
        if taken.is_ok() {
            let _ = self.send_sealed(&mut sealed);
        }
    }
}
