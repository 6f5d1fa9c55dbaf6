//! The header of a disk that a server has open, read and written over its socket: the server's
//! answers, and the client's [`Medium`].
//!
//! Only bytes of the header are transferred, which are readable on the medium anyway. Passphrases
//! and keys stay in the client's process, and the server's lease limits the writes.

use crate::terminal::settings;
use data_encoding::HEXLOWER;
use lacuna_daemon::{Conversation, Exchange, Heard, Refusal};
use lacuna_storage::{Error, HeaderLease, Kind, Medium, ReadExtent, Result, WriteExtent};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum bytes of one message: a copy of the header.
const MOST: usize = 16384;
/// Time for the user to enter a passphrase; no other client can change the header meanwhile.
const PASSPHRASE_WITHIN: Duration = Duration::from_secs(600);

/// Serves a client that reads and changes the header, until it leaves.
pub(crate) fn serve(lease: &HeaderLease<'_>, exchange: &mut Exchange) -> Result<Value> {
    exchange.tell(&json!({ "len": lease.medium_len() }))?;
    while let Some(message) = exchange.hear(PASSPHRASE_WITHIN)? {
        if message["end"] == true {
            break;
        }
        let answer = perform(lease, &message).unwrap_or_else(|e| {
            // The client may continue without the failed request, for example without an unreadable
            // copy.
            json!({ "failed": Refusal::of(&e, settings::full_name) })
        });
        exchange.tell(&answer)?;
    }
    Ok(Value::Null)
}

fn perform(lease: &HeaderLease<'_>, message: &Value) -> Result<Value> {
    if let Some([offset, len]) = message["read"].as_array().map(Vec::as_slice) {
        let len = len.as_u64().and_then(|len| usize::try_from(len).ok()).filter(|len| *len <= MOST);
        let (Some(offset), Some(len)) = (offset.as_u64(), len) else { return Err(nonsense()) };
        let mut bytes = vec![0; len];
        lease.read(offset, &mut bytes)?;
        return Ok(json!({ "bytes": HEXLOWER.encode(&bytes) }));
    }
    if let Some([offset, bytes]) = message["write"].as_array().map(Vec::as_slice) {
        let bytes = bytes.as_str().and_then(from_hex);
        let (Some(offset), Some(bytes)) = (offset.as_u64(), bytes) else { return Err(nonsense()) };
        lease.write(offset, &bytes)?;
        return Ok(json!({}));
    }
    if message["sync"] == true {
        lease.sync()?;
        return Ok(json!({}));
    }
    Err(nonsense())
}

fn nonsense() -> Error {
    Error::new(Kind::Usage, "cannot do what the client says")
        .found("a message that means nothing here")
        .expected("reads, writes and syncs of the header")
}

/// A medium with the header of a disk that a server reads and writes for this process.
pub(crate) struct RemoteHeader {
    talk: Mutex<Conversation>,
    len: u64,
}

impl RemoteHeader {
    /// Takes over a conversation that has just begun. Errors: another client has the header, or the
    /// server's refusal.
    pub(crate) fn begin(mut talk: Conversation) -> Result<Self> {
        match talk.hear()? {
            Heard::Message(message) => {
                let len = message["len"].as_u64().ok_or_else(misunderstood)?;
                Ok(RemoteHeader { talk: Mutex::new(talk), len })
            }
            Heard::Done(_) => Err(misunderstood()),
        }
    }

    fn ask(&self, message: &Value) -> Result<Value> {
        let mut talk = self.talk.lock();
        talk.say(message)?;
        match talk.hear()? {
            Heard::Message(answer) => match answer.get("failed") {
                None => Ok(answer),
                Some(failed) => {
                    let refusal = serde_json::from_value::<Refusal>(failed.clone());
                    Err(refusal.map_or_else(|_| misunderstood(), Refusal::error))
                }
            },
            Heard::Done(_) => Err(misunderstood()),
        }
    }

    fn fixed() -> Error {
        Error::new(Kind::Usage, "cannot change the length of a disk that is open in this way")
    }
}

impl Drop for RemoteHeader {
    /// Waits for the server to release the header, so that the next command finds it free.
    fn drop(&mut self) {
        let talk = self.talk.get_mut();
        if talk.say(&json!({ "end": true })).is_ok() {
            while let Ok(Heard::Message(_)) = talk.hear() {}
        }
    }
}

impl Medium for RemoteHeader {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        for extent in batch {
            for (part, at) in extent.buf.chunks_mut(MOST).zip((extent.offset..).step_by(MOST)) {
                let answer = self.ask(&json!({ "read": [at, part.len()] }))?;
                let bytes = answer["bytes"].as_str().and_then(from_hex);
                let bytes = bytes.filter(|bytes| bytes.len() == part.len()).ok_or_else(misunderstood)?;
                part.copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        for extent in batch {
            for (part, at) in extent.data.chunks(MOST).zip((extent.offset..).step_by(MOST)) {
                self.ask(&json!({ "write": [at, HEXLOWER.encode(part)] }))?;
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.ask(&json!({ "sync": true })).map(drop)
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Self::fixed())
    }

    fn set_len(&self, _len: u64) -> Result<()> {
        Err(Self::fixed())
    }
}

fn misunderstood() -> Error {
    Error::new(Kind::Other, "cannot understand the server of the disk")
        .remedy("close the disk and give the command then")
}

/// Decodes at most [`MOST`] bytes.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() > 2 * MOST {
        return None;
    }
    HEXLOWER.decode(text.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_cross_as_they_are_and_nothing_else_does() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&HEXLOWER.encode(&bytes)).unwrap(), bytes);
        for bad in ["0", "0g", "é", "--", &"0".repeat(2 * MOST + 2)] {
            assert!(from_hex(bad).is_none(), "{bad}");
        }
    }
}
