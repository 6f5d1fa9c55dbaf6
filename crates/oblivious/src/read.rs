//! Reading levels: where their blocks are is looked up under a lock, the cells are read without it.

use crate::core::Core;
use lacuna_core::{BLOCK_SIZE, Kind, Result};
use lacuna_levels::{Entry, warm};

impl Core {
    /// Reads blocks of a level. On a plausible disk that is an operation for each of them.
    pub(crate) fn read(&self, level: u8, first: u64, buf: &mut [u8]) -> Result<()> {
        let count = buf.len() / BLOCK_SIZE;
        let mut places = vec![0; count];
        self.look(level, first, buf, &mut places)?;
        loop {
            let read = self.fetch_all(level, first, &places, buf);
            if !read.as_ref().is_err_and(|e| e.kind() == Kind::Corrupt) {
                read?;
                break;
            }
            // Unless a block was put elsewhere since, and its cell given to another.
            let mut now = vec![0; count];
            self.look(level, first, buf, &mut now)?;
            if now == places {
                return read;
            }
            places = now;
        }
        // Whatever becomes of the operation: what was read is good.
        let _failed = self.pass_for_public(count);
        Ok(())
    }

    /// The cells of blocks that are in one; the others are read at once, and their place given as 0.
    fn look(&self, level: u8, first: u64, buf: &mut [u8], places: &mut [u64]) -> Result<()> {
        if level == 0 {
            let mut public = self.public();
            if public.level.tree.missing(first, places.len() as u64).is_some() {
                drop(public);
                self.warm_public(first, places.len() as u64);
                public = self.public();
            }
            return public.level.look(first, buf, places, &self.source(0));
        }
        self.hidden.look(&self.health, level, first, buf, places, &self.source(level))?;
        let displaced = self.displaced();
        let displaced = &displaced[usize::from(level)];
        if displaced.is_empty() {
            return Ok(());
        }
        let blocks = (first..).zip(buf.chunks_exact_mut(BLOCK_SIZE)).zip(places);
        for ((addr, out), place) in blocks.filter(|(_, place)| **place != 0) {
            if let Some(waiting) = displaced.get(&Entry::Data(addr).pack()) {
                out.copy_from_slice(waiting);
                *place = 0;
            }
        }
        Ok(())
    }

    /// Loads the leaves that say where blocks of level 0 are, without its lock.
    pub(crate) fn warm_public(&self, first: u64, count: u64) {
        warm(first, count, &self.source(0), |act| act(&mut self.public().level.tree));
    }

    /// Reads what a map says, from `first` on: blocks whose place is 0 have been dealt with.
    fn fetch_all(&self, level: u8, first: u64, places: &[u64], buf: &mut [u8]) -> Result<()> {
        let there: Vec<usize> = (0..places.len()).filter(|at| places[*at] != 0).collect();
        let entry = |at: usize| Entry::Data(first + at as u64);
        let cells: Vec<u64> =
            there.iter().map(|at| self.cell_at(places[*at], entry(*at))).collect::<Result<_>>()?;
        let len = self.store.params.cell_len();
        let mut read = vec![0; cells.len() * len];
        self.store.read_cells(&cells, &mut read)?;
        for (at, found) in there.iter().zip(read.chunks_exact_mut(len)) {
            self.open_cell(level, places[*at], entry(*at), found)?;
            buf[at * BLOCK_SIZE..(at + 1) * BLOCK_SIZE].copy_from_slice(&found[..BLOCK_SIZE]);
        }
        Ok(())
    }

    /// Which of `count` blocks of a level are written.
    pub(crate) fn written(&self, level: u8, first: u64, count: usize) -> Result<Vec<bool>> {
        match level {
            0 => self.public().level.written(first, count, &self.source(0)),
            _ => self.hidden.written(&self.health, level, first, count, &self.source(level)),
        }
    }
}
