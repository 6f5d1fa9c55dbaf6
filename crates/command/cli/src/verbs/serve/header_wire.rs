//! The header of a disk that a server has open, read and written over its socket: the server's
//! answers, and the client's [`Medium`].
//!
//! Only bytes of the header are transferred, which are readable on the medium anyway. Passphrases
//! and keys stay in the client's process, and the server's lease limits the writes.

use crate::terminal::option_names;
use data_encoding::HEXLOWER;
use lacuna_daemon::{JobClient, JobReply, JobStream, WireError};
use lacuna_storage::{Error, HeaderLease, Kind, Medium, ReadExtent, Result, WriteExtent};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum bytes of one message: a copy of the header.
const MAX_MESSAGE: usize = 16384;
/// Time for the user to enter a passphrase; no other client can change the header meanwhile.
const PASSPHRASE_TIMEOUT: Duration = Duration::from_secs(600);

/// Serves a client that reads and changes the header, until it leaves.
pub(crate) fn serve(lease: &HeaderLease<'_>, exchange: &mut JobStream) -> Result<Value> {
    exchange.send(&json!({ "len": lease.medium_len() }))?;
    while let Some(message) = exchange.recv(PASSPHRASE_TIMEOUT)? {
        if message["end"] == true {
            break;
        }
        let answer = perform(lease, &message).unwrap_or_else(|e| {
            // The client may continue without the failed request, for example without an unreadable
            // copy.
            json!({ "failed": WireError::of(&e, option_names::full_name) })
        });
        exchange.send(&answer)?;
    }
    Ok(Value::Null)
}

fn perform(lease: &HeaderLease<'_>, message: &Value) -> Result<Value> {
    if let Some([offset, len]) = message["read"].as_array().map(Vec::as_slice) {
        let len = len.as_u64().and_then(|len| usize::try_from(len).ok()).filter(|len| *len <= MAX_MESSAGE);
        let (Some(offset), Some(len)) = (offset.as_u64(), len) else { return Err(bad_message()) };
        let mut bytes = vec![0; len];
        lease.read(offset, &mut bytes)?;
        return Ok(json!({ "bytes": HEXLOWER.encode(&bytes) }));
    }
    if let Some([offset, bytes]) = message["write"].as_array().map(Vec::as_slice) {
        let bytes = bytes.as_str().and_then(from_hex);
        let (Some(offset), Some(bytes)) = (offset.as_u64(), bytes) else { return Err(bad_message()) };
        lease.write(offset, &bytes)?;
        return Ok(json!({}));
    }
    if message["sync"] == true {
        lease.sync()?;
        return Ok(json!({}));
    }
    Err(bad_message())
}

fn bad_message() -> Error {
    Error::new(Kind::Usage, "invalid message from the client")
        .found("an unknown message")
        .expected("reads, writes and syncs of the header")
}

/// A medium with the header of a disk that a server reads and writes for this process.
pub(crate) struct RemoteHeader {
    stream: Mutex<JobClient>,
    len: u64,
}

impl RemoteHeader {
    /// Takes over a conversation that has just begun. Errors: another client has the header, or the
    /// server's refusal.
    pub(crate) fn begin(mut talk: JobClient) -> Result<Self> {
        match talk.recv()? {
            JobReply::Message(message) => {
                let len = message["len"].as_u64().ok_or_else(bad_answer)?;
                Ok(RemoteHeader { stream: Mutex::new(talk), len })
            }
            JobReply::Done(_) => Err(bad_answer()),
        }
    }

    fn request(&self, message: &Value) -> Result<Value> {
        let mut talk = self.stream.lock();
        talk.send(message)?;
        match talk.recv()? {
            JobReply::Message(answer) => match answer.get("failed") {
                None => Ok(answer),
                Some(failed) => {
                    let refusal = serde_json::from_value::<WireError>(failed.clone());
                    Err(refusal.map_or_else(|_| bad_answer(), WireError::error))
                }
            },
            JobReply::Done(_) => Err(bad_answer()),
        }
    }

    fn fixed_length() -> Error {
        Error::new(Kind::Usage, "cannot change the length of a disk that is open in this way")
    }
}

impl Drop for RemoteHeader {
    /// Waits for the server to release the header, so that the next command finds it free.
    fn drop(&mut self) {
        let talk = self.stream.get_mut();
        if talk.send(&json!({ "end": true })).is_ok() {
            while let Ok(JobReply::Message(_)) = talk.recv() {}
        }
    }
}

impl Medium for RemoteHeader {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        for extent in batch {
            for (part, at) in extent.buf.chunks_mut(MAX_MESSAGE).zip((extent.offset..).step_by(MAX_MESSAGE)) {
                let answer = self.request(&json!({ "read": [at, part.len()] }))?;
                let bytes = answer["bytes"].as_str().and_then(from_hex);
                let bytes = bytes.filter(|bytes| bytes.len() == part.len()).ok_or_else(bad_answer)?;
                part.copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    /// No level lies on this medium.
    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        for extent in batch {
            for (part, at) in extent.data.chunks(MAX_MESSAGE).zip((extent.offset..).step_by(MAX_MESSAGE)) {
                self.request(&json!({ "write": [at, HEXLOWER.encode(part)] }))?;
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.request(&json!({ "sync": true })).map(drop)
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Self::fixed_length())
    }

    fn set_len(&self, _len: u64) -> Result<()> {
        Err(Self::fixed_length())
    }
}

fn bad_answer() -> Error {
    Error::new(Kind::Other, "cannot understand the server of the disk")
        .hint("close the disk and give the command then")
}

/// Decodes at most [`MAX_MESSAGE`] bytes.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() > 2 * MAX_MESSAGE {
        return None;
    }
    HEXLOWER.decode(text.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_transferred_in_hex() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&HEXLOWER.encode(&bytes)).unwrap(), bytes);
        for bad in ["0", "0g", "é", "--", &"0".repeat(2 * MAX_MESSAGE + 2)] {
            assert!(from_hex(bad).is_none(), "{bad}");
        }
    }
}
