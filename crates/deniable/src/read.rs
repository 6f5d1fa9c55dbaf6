//! Reading levels: where their blocks are is looked up under a lock, the blocks are read without it.

use crate::core::Core;
use crate::place::Place;
use lacuna_core::{BLOCK_SIZE, Kind, Result};
use lacuna_levels::{Entry, LOST, corrupt};

impl Core {
    /// Reads blocks of a level.
    pub(crate) fn read(&self, level: u8, first: u64, buf: &mut [u8]) -> Result<()> {
        let look = |buf: &mut [u8], places: &mut [u64]| match level {
            0 => self.look_public(first, buf, places),
            level => self.look_hidden(level, first, buf, places),
        };
        let mut places = vec![0; buf.len() / BLOCK_SIZE];
        look(buf, &mut places)?;
        loop {
            let read = self.fetch_all(level, first, &places, buf);
            if !read.as_ref().is_err_and(|e| e.kind() == Kind::Corrupt) {
                return read;
            }
            // Unless a block was written anew since, and its old place given up.
            let mut now = vec![0; places.len()];
            look(buf, &mut now)?;
            if now == places {
                return read;
            }
            places = now;
        }
    }

    /// Reads what a map says, from `first` on: blocks whose place is 0 have been dealt with.
    fn fetch_all(&self, level: u8, first: u64, places: &[u64], buf: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < places.len() {
            let packed = places[at];
            if packed == LOST {
                return Err(corrupt(format!("cannot read block {}", first + at as u64)));
            }
            let Some(place) = Place::unpack(packed) else {
                at += 1;
                continue;
            };
            // Blocks written one after another lie one after another.
            let follows = |n: usize| {
                let next = packed.checked_add(n as u64).filter(|next| *next != LOST);
                next.is_some() && places.get(at + n).copied() == next
            };
            let run = (1..).take_while(|&n| follows(n)).count() + 1;
            let entries: Vec<Entry> = (0..run as u64).map(|n| Entry::Data(first + at as u64 + n)).collect();
            let out = &mut buf[at * BLOCK_SIZE..(at + run) * BLOCK_SIZE];
            self.log.fetch(level, place, &entries, out)?;
            at += run;
        }
        Ok(())
    }
}
