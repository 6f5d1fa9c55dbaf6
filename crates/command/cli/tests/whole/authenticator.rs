//! A FIDO2 token in software, behind a unix socket that carries the reports of its USB device:
//! CTAPHID, and the part of CTAP 2.0 that a client of hmac-secret and a PIN uses. For tests only:
//! its keys are not secret.

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};
use ciborium::Value;
use hmac::{Hmac, Mac};
use p256::elliptic_curve::sec1::ToEncodedPoint;
use p256::{PublicKey, SecretKey};
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

const REPORT: usize = 64;
const AAGUID: [u8; 16] = [0x1a; 16];
/// Flags: user present; user verified; a credential follows; extensions follow.
const UP: u8 = 0x01;
const UV: u8 = 0x04;
const AT: u8 = 0x40;
const ED: u8 = 0x80;

/// The state of the token.
pub(crate) struct AuthenticatorState {
    pub(crate) pin: Option<String>,
    pub(crate) retries: u8,
    pub(crate) credentials: Vec<Credential>,
    /// Number of touches.
    pub(crate) touches: u32,
    /// The simulated fault.
    pub(crate) fault: Option<Fault>,
    /// Makes tokens differ.
    seed: u8,
}

/// A fault of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It does not support hmac-secret.
    NoExtension,
    /// It supports hmac-secret, but its answers contain no secret.
    NoSecret,
    /// It answers with this code where it requires a touch for a secret.
    Code(u8),
}

/// A stored credential.
pub(crate) struct Credential {
    pub(crate) rp: String,
    pub(crate) user: Vec<u8>,
    /// 3: listed only with the PIN.
    pub(crate) protection: i128,
    id: u8,
}

/// A token that is plugged in until it is dropped.
pub(crate) struct Authenticator {
    path: PathBuf,
    state: Arc<Mutex<AuthenticatorState>>,
}

impl Authenticator {
    pub(crate) fn plugged_in(path: &Path, seed: u8, pin: Option<&str>) -> Authenticator {
        let (pin, credentials) = (pin.map(str::to_owned), Vec::new());
        let state = AuthenticatorState { pin, retries: 8, credentials, touches: 0, fault: None, seed };
        let state = Arc::new(Mutex::new(state));
        let (listener, shared) = (UnixListener::bind(path).unwrap(), Arc::clone(&state));
        std::thread::spawn(move || {
            // A client that disconnects during an exchange is not an error.
            listener.incoming().flatten().for_each(|client| drop(serve(client, &shared)));
        });
        Authenticator { path: path.to_owned(), state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, AuthenticatorState> {
        self.state.lock().unwrap()
    }
}

impl Drop for Authenticator {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Answers the messages of a client, each in reports: channel, command or sequence number, length,
/// bytes.
fn serve(mut client: UnixStream, state: &Mutex<AuthenticatorState>) -> std::io::Result<()> {
    loop {
        let mut report = [0; REPORT];
        client.read_exact(&mut report)?;
        let (channel, command) = ([report[0], report[1], report[2], report[3]], report[4]);
        let len = usize::from(report[5]) << 8 | usize::from(report[6]);
        let mut message = report[7..].to_vec();
        while message.len() < len {
            client.read_exact(&mut report)?;
            message.extend(&report[5..]);
        }
        message.truncate(len);
        let answer = match command {
            // INIT: the nonce, a channel, versions, and "CBOR, no U2F messages".
            0x86 => [&message[..], &[0, 0, 0, 9, 2, 1, 0, 0, 0x04 | 0x08]].concat(),
            0x90 => state.lock().unwrap().answer(&message),
            // CANCEL has no answer.
            0x91 => continue,
            _ => vec![1],
        };
        let first = answer.len().min(REPORT - 7);
        let mut report =
            [&channel[..], &[command, (answer.len() >> 8) as u8, answer.len() as u8], &answer[..first]]
                .concat();
        report.resize(REPORT, 0);
        client.write_all(&report)?;
        for (sequence, part) in answer[first..].chunks(REPORT - 5).enumerate() {
            let mut report = [&channel[..], &[sequence as u8], part].concat();
            report.resize(REPORT, 0);
            client.write_all(&report)?;
        }
    }
}

/// An error of CTAP.
struct Refused(u8);

type Answer = Result<Option<Value>, Refused>;

impl AuthenticatorState {
    fn answer(&mut self, message: &[u8]) -> Vec<u8> {
        let request = ciborium::from_reader(&message[1..]).unwrap_or(Value::Null);
        let answer = match message[0] {
            0x01 => self.make_credential(&request),
            0x02 => self.get_assertion(&request),
            0x04 => Ok(Some(self.info())),
            0x06 => self.client_pin(&request),
            _ => Err(Refused(0x01)),
        };
        match answer {
            Ok(value) => {
                let mut bytes = vec![0];
                value.iter().for_each(|value| ciborium::into_writer(value, &mut bytes).unwrap());
                bytes
            }
            Err(Refused(code)) => vec![code],
        }
    }

    fn info(&self) -> Value {
        let texts = |all: &[&str]| Value::Array(all.iter().map(|text| (*text).into()).collect());
        let names = ["credProtect", "hmac-secret"];
        let options = [("rk", true), ("up", true), ("clientPin", self.pin.is_some())];
        map([
            (1.into(), texts(&["FIDO_2_0"])),
            (2.into(), texts(if self.fault == Some(Fault::NoExtension) { &names[..1] } else { &names })),
            (3.into(), Value::Bytes(AAGUID.to_vec())),
            (4.into(), map(options.map(|(name, value)| (name.into(), value.into())))),
            (5.into(), 1200.into()),
            (6.into(), Value::Array(vec![1.into()])),
        ])
    }

    /// The key of the key agreement. A real token draws a new one each time it is plugged in.
    fn agreement(&self) -> SecretKey {
        SecretKey::from_slice(&[self.seed | 1; 32]).unwrap()
    }

    fn pin_token(&self) -> [u8; 32] {
        hash(&[b"pin token", &[self.seed]])
    }

    /// The secret shared with the owner of a public key.
    fn shared(&self, cose: &Value) -> [u8; 32] {
        let point = [&[4][..], bytes(get(cose, -2)), bytes(get(cose, -3))].concat();
        let theirs = PublicKey::from_sec1_bytes(&point).unwrap();
        let secret = p256::ecdh::diffie_hellman(self.agreement().to_nonzero_scalar(), theirs.as_affine());
        hash(&[secret.raw_secret_bytes()])
    }

    fn client_pin(&mut self, request: &Value) -> Answer {
        match number(get(request, 2)) {
            1 => Ok(Some(map([(3.into(), self.retries.into())]))),
            2 => Ok(Some(map([(1.into(), cose(&self.agreement().public_key(), -25))]))),
            5 => {
                let pin = self.pin.clone().ok_or(Refused(0x35))?;
                if self.retries == 0 {
                    return Err(Refused(0x32));
                }
                let shared = self.shared(get(request, 3));
                let typed = cbc(&shared, bytes(get(request, 6)), false);
                if typed != hash(&[pin.as_bytes()])[..16] {
                    self.retries -= 1;
                    return Err(Refused(if self.retries == 0 { 0x32 } else { 0x31 }));
                }
                self.retries = 8;
                Ok(Some(map([(2.into(), Value::Bytes(cbc(&shared, &self.pin_token(), true)))])))
            }
            _ => Err(Refused(0x02)),
        }
    }

    /// Whether the request proves the PIN.
    fn verified(&self, client_data: &Value, proof: &Value) -> Result<bool, Refused> {
        let Value::Bytes(proof) = proof else { return Ok(false) };
        let right = mac(&self.pin_token(), bytes(client_data));
        if self.pin.is_some() && proof[..] == right[..16] { Ok(true) } else { Err(Refused(0x33)) }
    }

    fn make_credential(&mut self, request: &Value) -> Answer {
        let verified = self.verified(get(request, 1), get(request, 8))?;
        if self.pin.is_some() && !verified {
            return Err(Refused(0x36));
        }
        let (rp, user) = (text(named(get(request, 2), "id")), bytes(named(get(request, 3), "id")).to_vec());
        assert_eq!(named(get(request, 7), "rk"), &Value::Bool(true));
        let wanted = get(request, 6);
        assert_eq!(named(wanted, "hmac-secret"), &Value::Bool(true));
        let protection = named(wanted, "credProtect").as_integer().map_or(1, i128::from);
        self.touches += 1;
        // CTAP allows one credential for each relying party and user.
        self.credentials.retain(|known| (&known.rp, &known.user) != (&rp, &user));
        let id = self.touches as u8;
        let flags = UP | AT | ED | if verified { UV } else { 0 };
        let mut data = [&hash(&[rp.as_bytes()])[..], &[flags, 0, 0, 0, id], &AAGUID, &[0, 1, id]].concat();
        ciborium::into_writer(&cose(&self.agreement().public_key(), -7), &mut data).unwrap();
        let mut extensions = vec![(Value::from("hmac-secret"), Value::Bool(true))];
        if protection > 1 {
            extensions.insert(0, ("credProtect".into(), (protection as i64).into()));
        }
        ciborium::into_writer(&Value::Map(extensions), &mut data).unwrap();
        self.credentials.push(Credential { rp, user, protection, id });
        Ok(Some(map([(1.into(), "none".into()), (2.into(), Value::Bytes(data)), (3.into(), map([]))])))
    }

    fn get_assertion(&mut self, request: &Value) -> Answer {
        let verified = self.verified(get(request, 2), get(request, 6))?;
        let rp = text(get(request, 1));
        assert_eq!(get(request, 3), &Value::Null, "a list of credentials was kept somewhere");
        let shown = |known: &&Credential| known.rp == rp && (verified || known.protection < 3);
        let credential = self.credentials.iter().find(shown).ok_or(Refused(0x2e))?;
        let (id, user) = (credential.id, credential.user.clone());
        let present = named(get(request, 5), "up") != &Value::Bool(false);
        let wanted = named(get(request, 4), "hmac-secret");
        if let Some(Fault::Code(code)) = self.fault.filter(|_| present) {
            return Err(Refused(code));
        }
        let mut flags = if verified { UV } else { 0 } | if present { UP } else { 0 };
        let mut extensions = Vec::new();
        if *wanted != Value::Null && self.fault != Some(Fault::NoSecret) {
            assert!(present, "a secret without a touch");
            flags |= ED;
            let shared = self.shared(get(wanted, 1));
            let salt = bytes(get(wanted, 2));
            assert_eq!(bytes(get(wanted, 3)), &mac(&shared, salt)[..16]);
            // The secrets with and without the PIN differ.
            let key = hash(&[b"credential", &[self.seed, id, u8::from(verified)]]);
            let secret = mac(&key, &cbc(&shared, salt, false));
            let answer = map([("hmac-secret".into(), Value::Bytes(cbc(&shared, &secret, true)))]);
            ciborium::into_writer(&answer, &mut extensions).unwrap();
        }
        self.touches += u32::from(present);
        let data = [&hash(&[rp.as_bytes()])[..], &[flags, 0, 0, 0, id], &extensions].concat();
        Ok(Some(map([
            (1.into(), map([("id".into(), Value::Bytes(vec![id])), ("type".into(), "public-key".into())])),
            (2.into(), Value::Bytes(data)),
            (3.into(), Value::Bytes(vec![0; 70])),
            (4.into(), map([("id".into(), Value::Bytes(user))])),
        ])))
    }
}

fn cose(key: &PublicKey, algorithm: i32) -> Value {
    let point = key.to_encoded_point(false);
    let [x, y] = [point.x(), point.y()].map(|part| Value::Bytes(part.unwrap().to_vec()));
    map([
        (1.into(), 2.into()),
        (3.into(), algorithm.into()),
        ((-1).into(), 1.into()),
        ((-2).into(), x),
        ((-3).into(), y),
    ])
}

fn map<const N: usize>(entries: [(Value, Value); N]) -> Value {
    Value::Map(entries.into())
}

fn get(of: &Value, key: i32) -> &Value {
    lookup(of, &key.into())
}

fn named<'a>(of: &'a Value, key: &str) -> &'a Value {
    lookup(of, &key.into())
}

fn lookup<'a>(of: &'a Value, key: &Value) -> &'a Value {
    let entries = of.as_map().map_or(&[][..], Vec::as_slice);
    entries.iter().find(|(known, _)| known == key).map_or(&Value::Null, |(_, value)| value)
}

fn bytes(value: &Value) -> &[u8] {
    value.as_bytes().unwrap_or_else(|| panic!("no bytes: {value:?}"))
}

fn text(value: &Value) -> String {
    value.as_text().unwrap_or_else(|| panic!("no text: {value:?}")).to_owned()
}

fn number(value: &Value) -> i128 {
    value.as_integer().unwrap_or_else(|| panic!("no number: {value:?}")).into()
}

fn hash(parts: &[&[u8]]) -> [u8; 32] {
    parts.iter().fold(Sha256::new(), Digest::chain_update).finalize().into()
}

fn mac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.chain_update(message).finalize().into_bytes().into()
}

/// AES-256-CBC with an IV of zeros, as in PIN protocol 1.
fn cbc(key: &[u8; 32], text: &[u8], encrypt: bool) -> Vec<u8> {
    let cipher = Aes256::new(&(*key).into());
    let mut last = [0; 16];
    let mut out = Vec::new();
    for chunk in text.chunks_exact(16) {
        let chunk: [u8; 16] = chunk.try_into().unwrap();
        let xor = |a: [u8; 16], b: [u8; 16]| -> [u8; 16] { std::array::from_fn(|at| a[at] ^ b[at]) };
        if encrypt {
            let mut block = Block::from(xor(chunk, last));
            cipher.encrypt_block(&mut block);
            last = block.into();
            out.extend(last);
        } else {
            let mut block = Block::from(chunk);
            cipher.decrypt_block(&mut block);
            out.extend(xor(block.into(), last));
            last = chunk;
        }
    }
    out
}
