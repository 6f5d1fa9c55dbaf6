//! The byte stream of an NBD client, made from the fuzzer's input.

use crate::bytes::InputCursor;

const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Maximum bytes that a client sends in one run.
const MAX_SENT: usize = 1 << 20;

/// An option with its payload.
pub fn option(out: &mut Vec<u8>, number: u32, payload: &[u8]) {
    out.extend(OPTION_MAGIC);
    out.extend(number.to_be_bytes());
    out.extend((payload.len() as u32).to_be_bytes());
    out.extend(payload);
}

/// Options that the input describes, with the right magic and mostly with right lengths. With a
/// first byte of 0x80 or more, the rest of the input unchanged.
pub fn options(input: &[u8]) -> Vec<u8> {
    let mut input = InputCursor::new(input);
    let mode = input.byte();
    if mode >= 0x80 {
        return input.rest().to_vec();
    }
    let mut out = u32::from(mode & 3).to_be_bytes().to_vec();
    while !input.is_empty() && out.len() < MAX_SENT {
        let shape = input.byte();
        let number = option_number(&mut input, shape);
        let len = input.byte();
        let raw = input.take(usize::from(len));
        let payload = if shape & 0x40 != 0 { raw.to_vec() } else { named_payload(number, raw) };
        let start = out.len();
        option(&mut out, number, &payload);
        if shape & 0x80 != 0 {
            // A wrong length.
            out[start + 12..start + 16].copy_from_slice(&input.array::<4>());
        }
    }
    out
}

/// The number of an option: below 16, the range of the protocol, by default; below 32 with bits 4
/// and 5 of `shape` equal to 1; any number with 2.
fn option_number(input: &mut InputCursor<'_>, shape: u8) -> u32 {
    match shape >> 4 & 3 {
        1 => u32::from(shape & 31),
        2 => input.u32(),
        _ => u32::from(shape & 15),
    }
}

/// GO, INFO and the metadata contexts contain counted strings, which random bytes rarely match.
fn named_payload(number: u32, raw: &[u8]) -> Vec<u8> {
    if !matches!(number, 6 | 7 | 9 | 10) {
        return raw.to_vec();
    }
    let mut raw = InputCursor::new(raw);
    let name_len = usize::from(raw.byte() % 4);
    let name = raw.take(name_len);
    let mut payload = (name.len() as u32).to_be_bytes().to_vec();
    payload.extend(name);
    let count = u32::from(raw.byte() % 4);
    if matches!(number, 6 | 7) {
        payload.extend((count as u16).to_be_bytes());
        (0..count).for_each(|_| payload.extend(raw.array::<2>()));
    } else {
        payload.extend(count.to_be_bytes());
        for _ in 0..count {
            let kind = raw.byte();
            let len = usize::from(kind % 32);
            let query = if kind >= 0x80 { &b"base:allocation"[..] } else { raw.take(len) };
            payload.extend((query.len() as u32).to_be_bytes());
            payload.extend(query);
        }
    }
    payload
}

/// A short negotiation that ends in transmission.
fn opening(structured: bool) -> Vec<u8> {
    let mut out = 3u32.to_be_bytes().to_vec();
    if structured {
        option(&mut out, 8, &[]);
        let mut query = vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15];
        query.extend(b"base:allocation");
        option(&mut out, 10, &query);
    }
    option(&mut out, 7, &[0, 0, 0, 0, 0, 0]);
    out
}

/// A client that negotiates correctly and then sends requests that the input describes; `disk_len`
/// keeps most of them on the disk. With a first byte of 0xf0 or more, the rest of the input
/// unchanged after the negotiation.
pub fn requests(input: &[u8], disk_len: u64) -> Vec<u8> {
    let mut input = InputCursor::new(input);
    let mode = input.byte();
    let mut out = opening(mode & 1 != 0);
    if mode >= 0xf0 {
        out.extend(input.rest());
        return out;
    }
    while !input.is_empty() && out.len() < MAX_SENT {
        let [shape, command, flags] = input.array();
        let command = u16::from(command % 10);
        let offset = match shape & 3 {
            0 => u64::from(input.u16()) * 64 % disk_len,
            1 => u64::from(input.u16()) % (disk_len / 4096) * 4096,
            2 => disk_len.wrapping_sub(u64::from(input.byte())),
            _ => u64::from_le_bytes(input.array()),
        };
        let length = match shape >> 2 & 3 {
            0 => u32::from(input.u16()),
            1 => u32::from(input.byte() % 32) * 4096,
            2 => u32::from(input.byte()),
            _ => input.u32(),
        };
        out.extend(REQUEST_MAGIC.to_be_bytes());
        out.extend(u16::from(flags & 31).to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(u64::from(shape).to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(length.to_be_bytes());
        if command == 1 {
            // The payload, sometimes only half of it: the stream ends within it, or later requests
            // become its rest.
            let sent = (length as usize).min(MAX_SENT);
            let sent = if shape & 0x80 != 0 { sent / 2 } else { sent };
            out.resize(out.len() + sent, shape);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_option_number_can_be_sent() {
        let number = |input: &[u8]| u32::from_be_bytes(options(input)[12..16].try_into().unwrap());
        assert_eq!(number(&[3, 7, 0]), 7);
        assert_eq!(number(&[3, 0x37, 0]), 7);
        assert_eq!(number(&[3, 0x14, 0]), 20);
        assert_eq!(number(&[3, 0x20, 0xe8, 3, 0, 0, 0]), 1000);
    }
}
