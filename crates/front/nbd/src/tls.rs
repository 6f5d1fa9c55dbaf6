//! TLS: certificates in the layout that qemu and nbdkit share, and the encrypted transport.

use crate::clients::{ClientGuard, ClientPeer};
use crate::exports::Exports;
use crate::negotiate::{ClientFlags, ExportSession, HandshakeOutcome, TlsState, negotiate};
use crate::stream::{Socket, TimedSocket, Transport};
use crate::tls_mode::CLIENT_AUTHORITY;
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::{Mutex, MutexGuard};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, ServerConnection, WebPkiClientVerifier};
use rustls::{AlertDescription, CertificateError};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::path::Path;
use std::sync::Arc;

const SERVER_CERTIFICATE: &str = "server-cert.pem";
const SERVER_KEY: &str = "server-key.pem";
/// The most characters that a message takes from the words of rustls.
const LONGEST_REASON: usize = 300;

/// The server's certificates and TLS configuration.
pub(crate) struct Certificates(Arc<ServerConfig>);

impl Certificates {
    /// Continues with a client that has asked for TLS. `None` if the client left, was silent or
    /// broke the NBD protocol.
    ///
    /// Errors: the reason why the TLS handshake failed.
    pub(crate) fn secure<'a>(
        &self,
        client: &'a ClientGuard,
        timed: &mut TimedSocket<'_>,
        exports: &Exports,
        greeting: ClientFlags,
    ) -> Result<Option<(TlsStream<'a>, ExportSession)>> {
        let mut state = ServerConnection::new(self.0.clone()).map_err(|e| not_secured(client.peer, &e))?;
        let mut stream = rustls::Stream::new(&mut state, timed);
        match negotiate(&mut stream, exports, TlsState::Active, greeting) {
            Ok(HandshakeOutcome::Transmit(session)) => {
                Ok(Some((TlsStream::new(&client.socket, state), session)))
            }
            Ok(HandshakeOutcome::StartTls(_) | HandshakeOutcome::Left) => Ok(None),
            Err(e) => match e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
                Some(e) => Err(not_secured(client.peer, e)),
                None => Ok(None),
            },
        }
    }
}

/// The error of a client with a failed TLS handshake.
fn not_secured(peer: ClientPeer, failed: &rustls::Error) -> Error {
    let error = Error::new(Kind::Permission, format!("a client of {peer} was refused"));
    let signed = || format!("one that {CLIENT_AUTHORITY} signed");
    match failed {
        rustls::Error::NoCertificatesPresented => {
            error.found("no certificate of the client").expected(signed()).hint(format!(
                "give the client a certificate and key of that authority, and {CLIENT_AUTHORITY}"
            ))
        }
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => error
            .found("a client's certificate of another authority")
            .expected(signed())
            .hint(format!("have that authority sign it, or add the other one to {CLIENT_AUTHORITY}")),
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA),
        ) => Error::new(Kind::Permission, format!("a client of {peer} refused this server"))
            .found(format!("the TLS alert {alert:?}"))
            .expected(format!("a client that trusts {SERVER_CERTIFICATE}"))
            .hint(format!(
                "give the client the {CLIENT_AUTHORITY} that signed it, and connect to a name in the certificate"
            )),
        other if is_of_version_1(other) => {
            of_version_1(error, "a client's certificate", "extendedKeyUsage=clientAuth")
        }
        // The words may contain a list from the certificate of a client without any right.
        other => error.found(other.to_string().chars().take(LONGEST_REASON).collect::<String>()),
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
            check_version(&authority, &certificate)?;
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
        // The file is there, and its owner is not this user.
        pem::Error::Io(e) if e.kind() == ErrorKind::PermissionDenied => return Error::io(what, &e),
        pem::Error::Io(e) => Error::io(what, &e),
        other => Error::new(Kind::Usage, what).found(other.to_string()).expected("PEM"),
    };
    error.hint(format!(
        "put {SERVER_CERTIFICATE} and {SERVER_KEY} (and {CLIENT_AUTHORITY}, to verify clients) into the directory"
    ))
}

fn refused(path: &Path, error: &dyn std::error::Error) -> Error {
    let refused = not_usable(path);
    if is_of_version_1(error) {
        return of_version_1(refused, "a certificate", "subjectAltName=DNS:localhost");
    }
    let words = error.to_string();
    if words.contains("KeyMismatch") {
        return refused
            .found("a certificate of another key")
            .expected(format!("the certificate of the key in {SERVER_KEY}"));
    }
    refused.found(words)
}

fn not_usable(path: &Path) -> Error {
    Error::new(Kind::Usage, format!("cannot use the certificates in {}", path.display()))
}

/// Whether a certificate was refused because it is not of X.509 version 3. The library tells that
/// by a name only.
fn is_of_version_1(error: &dyn std::error::Error) -> bool {
    error.to_string().contains("UnsupportedCertVersion")
}

/// The findings of a certificate that `openssl x509 -req` made without extensions.
fn of_version_1(error: Error, which: &str, extension: &str) -> Error {
    error
        .found(format!("{which} of X.509 version 1"))
        .expected("one of version 3")
        .hint(format!("make it with `openssl x509 -req -extfile FILE`, where FILE says {extension}"))
}

/// Refuses an authority of X.509 version 1, although rustls accepts it: the certificate does not
/// say that it is of an authority, so QEMU refuses it.
fn check_version(path: &Path, certificate: &CertificateDer<'_>) -> Result<()> {
    // The version comes first, and only a certificate of version 1 has none (RFC 5280, 4.1).
    let fields = in_sequence(certificate).and_then(in_sequence);
    if fields.and_then(<[u8]>::first).is_none_or(|tag| *tag == VERSION_TAG) {
        return Ok(());
    }
    Err(not_usable(path).found("an authority of X.509 version 1").expected("one of version 3").hint(
        "make it with `openssl req -x509`, or `openssl x509 -extfile FILE` with basicConstraints=CA:TRUE",
    ))
}

/// The DER tag of the version of a certificate.
const VERSION_TAG: u8 = 0xa0;

/// The bytes after the tag and the length of a SEQUENCE in DER; `None` for anything else.
fn in_sequence(der: &[u8]) -> Option<&[u8]> {
    match der {
        [0x30, length @ 0..0x80, rest @ ..] => rest.get(..usize::from(*length)),
        [0x30, length, rest @ ..] => rest.get(usize::from(length & 0x7f)..),
        _ => None,
    }
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

    fn try_send(&self, _: &mut &mut [IoSlice<'_>]) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{ExtendedKeyPurpose, OtherError};
    use std::net::Ipv4Addr;

    #[test]
    fn a_failed_handshake_is_told_with_its_reason() {
        let peer = ClientPeer::Address(Ipv4Addr::new(10, 0, 0, 5).into());
        let version = OtherError(Arc::new(io::Error::other("UnsupportedCertVersion")));
        let long = CertificateError::InvalidPurposeContext {
            required: ExtendedKeyPurpose::ClientAuth,
            presented: vec![ExtendedKeyPurpose::Other(vec![7; 30_000])],
        };
        for (failed, found) in [
            (rustls::Error::NoCertificatesPresented, "no certificate"),
            (CertificateError::UnknownIssuer.into(), "of another authority; expected: one that ca-cert.pem"),
            (CertificateError::BadSignature.into(), "of another authority"),
            (CertificateError::Other(version).into(), "of X.509 version 1; expected: one of version 3"),
            (CertificateError::Expired.into(), "xpired"),
            (long.into(), "extended key usage"),
            (rustls::Error::AlertReceived(AlertDescription::UnknownCA), "a client that trusts server-cert"),
            (rustls::Error::AlertReceived(AlertDescription::HandshakeFailure), "HandshakeFailure"),
        ] {
            let refusal = not_secured(peer, &failed);
            assert!(refusal.to_string().starts_with("a client of 10.0.0.5 "), "{refusal}");
            assert!(refusal.to_string().contains(found) && refusal.to_string().len() < 1000, "{refusal}");
            assert!(refusal.get_hint().is_none_or(|advice| advice.to_string().len() <= 100), "{refusal}");
        }
    }

    #[test]
    fn a_certificate_that_may_not_be_read_is_not_missing() {
        let advice = |kind: ErrorKind| {
            unreadable(Path::new("tls/server-cert.pem"), pem::Error::Io(kind.into())).get_hint().is_some()
        };
        assert!(advice(ErrorKind::NotFound) && !advice(ErrorKind::PermissionDenied));
    }

    #[test]
    fn an_authority_of_version_1_is_refused_and_one_of_version_3_is_not() {
        let check = |der: &[u8]| check_version(Path::new("tls/ca-cert.pem"), &CertificateDer::from(der));
        let serial = [0x02_u8, 0x01, 0x07];
        for old in [
            [&[0x30, 0x05, 0x30, 0x03][..], &serial].concat(),
            [&[0x30, 0x81, 0x06, 0x30, 0x81, 0x03][..], &serial].concat(),
            [&[0x30, 0x82, 0x00, 0x07, 0x30, 0x82, 0x00, 0x03][..], &serial].concat(),
        ] {
            let refusal = check(&old).unwrap_err().to_string();
            assert!(refusal.contains("tls/ca-cert.pem") && refusal.contains("X.509 version 1"), "{refusal}");
        }
        check(&[0x30, 0x82, 0x00, 0x09, 0x30, 0x82, 0x00, 0x05, 0xa0, 0x03, 0x02, 0x01, 0x02]).unwrap();
        // Bytes that are no certificate are left to the parser.
        [&[0_u8; 0][..], &[0x30], &[0x30, 0x82], &serial].iter().for_each(|der| check(der).unwrap());
    }
}
