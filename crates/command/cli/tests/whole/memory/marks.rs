//! Blocks that are recognised anywhere, and a search for them in the memory of a running process,
//! as root.

use crate::harness::{noise, skipped};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Length of the mark in bytes.
const MARK: usize = 48;
/// The first bytes of all marks.
const FIRST: [u8; 8] = [0x9c, 0x31, 0xe7, 0x5a, 0xd2, 0x0b, 0x86, 0xf4];
/// Number of bytes of memory that are read at a time.
const PIECE: usize = 1 << 20;

/// The mark of a block, unique by its number.
fn mark(number: u64) -> [u8; MARK] {
    [&FIRST[..], &number.to_le_bytes(), &noise(number, MARK - 16)].concat().try_into().unwrap()
}

/// Blocks that consist of their marks.
pub(super) fn marked(numbers: Range<u64>) -> Vec<u8> {
    numbers.flat_map(|number| mark(number).repeat(4096usize.div_ceil(MARK))[..4096].to_vec()).collect()
}

/// Whether the memory of other processes can be read here.
pub(super) fn can_search() -> bool {
    let readable = rustix::process::geteuid().is_root() && File::open("/proc/1/mem").is_ok();
    if !readable {
        skipped("the memory of other processes may not be read");
    }
    readable
}

/// Calls `look` with the memory of a process, piece by piece.
fn search(process: u32, mut look: impl FnMut(&[u8])) {
    let memory = File::open(format!("/proc/{process}/mem")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let (mut piece, zeros) = (vec![0u8; PIECE], vec![0u8; PIECE]);
    for map in maps.lines().filter(|map| map.contains(" rw") && !map.contains("[v")) {
        let (from, to) = map.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let mut at = number(from);
        while at < number(to) {
            let piece = &mut piece[..(number(to) - at).min(PIECE as u64) as usize];
            // Unreadable pages have no content, such as unused pages of a stack. Most readable
            // pages are zeros.
            if memory.read_exact_at(piece, at).is_ok() && *piece != zeros[..piece.len()] {
                look(piece);
            }
            at += PIECE as u64;
        }
    }
}

/// How many of the blocks with these numbers are in the memory of a process, completely or in part.
pub(super) fn found(process: u32, numbers: Range<u64>) -> usize {
    // Blocks repeat their mark, so any part of a block that is as long as two marks contains a
    // whole mark.
    let mut seen = BTreeSet::new();
    search(process, |piece| {
        for part in piece.windows(MARK).filter(|part| part[0] == FIRST[0] && part.starts_with(&FIRST)) {
            let number = u64::from_le_bytes(part[8..16].try_into().unwrap());
            if numbers.contains(&number) && part == mark(number) {
                seen.insert(number);
            }
        }
    });
    seen.len()
}

/// Whether the memory of a process contains these bytes.
pub(super) fn holds(process: u32, bytes: &[u8]) -> bool {
    let mut held = false;
    search(process, |piece| {
        held |= piece.windows(bytes.len()).any(|part| part[0] == bytes[0] && part == bytes);
    });
    held
}
