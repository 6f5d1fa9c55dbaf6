//! The pending blocks of a level, in order, and the ranges that were discarded before them:
//! acknowledged and not yet taken by a stripe or batch.

use lacuna_contracts::WipeOnDrop;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// A pending block, wiped when it is dropped.
pub type PendingBlock = WipeOnDrop<Box<[u8]>>;

/// Pending blocks, oldest first, and ranges that were discarded before them.
#[derive(Default)]
pub struct PendingQueue {
    blocks: FxHashMap<u64, PendingBlock>,
    /// Turns in order, each with its number and its block.
    order: VecDeque<(u64, u64)>,
    trims: Vec<(u64, u64)>,
    /// The numbers of turns and ranges added, and of ranges taken, since the disk was opened.
    added: u64,
    trims_added: u64,
    trims_removed: u64,
    /// Whether a turn or a range was taken since the last [`PendingQueue::note_taken`].
    was_taken_from: bool,
}

/// A point in a queue: everything that was added up to then.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    added: u64,
    trims_added: u64,
}

impl PendingQueue {
    /// The number of pending blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether no block is pending; a discard may be.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Pending ranges, the oldest first.
    pub fn trims(&self) -> &[(u64, u64)] {
        &self.trims
    }

    /// The pending block for `addr`.
    pub fn get(&self, addr: u64) -> Option<&[u8]> {
        self.blocks.get(&addr).map(|block| &block[..])
    }

    /// The same, for changes.
    pub fn get_mut(&mut self, addr: u64) -> Option<&mut PendingBlock> {
        self.blocks.get_mut(&addr)
    }

    /// The pending blocks with their addresses, in order.
    pub fn pending(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.order.iter().filter_map(|(_, addr)| Some((*addr, self.get(*addr)?)))
    }

    /// Whether a pending discard covers `addr`.
    pub(crate) fn trims_cover(&self, addr: u64) -> bool {
        self.trims.iter().any(|&(first, count)| (first..first + count).contains(&addr))
    }

    /// Adds a block, with the last turn. No block for this address may be pending: such a block is
    /// changed in place.
    pub fn put(&mut self, addr: u64, block: PendingBlock) {
        self.blocks.insert(addr, block);
        self.added += 1;
        self.order.push_back((self.added, addr));
    }

    /// The address of the block with the next turn.
    pub fn front(&self) -> Option<u64> {
        self.order.front().map(|(_, addr)| *addr)
    }

    /// Takes out the block with the next turn.
    pub fn pop(&mut self) -> Option<PendingBlock> {
        let (_, addr) = self.order.pop_front()?;
        self.was_taken_from = true;
        self.blocks.remove(&addr)
    }

    /// Drops the blocks of a range.
    pub fn discard(&mut self, first: u64, count: u64) {
        let before = self.blocks.len();
        if count < before as u64 {
            (first..first + count).for_each(|addr| drop(self.blocks.remove(&addr)));
        } else {
            self.blocks.retain(|addr, _| !(first..first + count).contains(addr));
        }
        // Drop their turns too: a block that is put again must not come before blocks that are
        // pending now.
        if self.blocks.len() < before {
            let blocks = &self.blocks;
            self.order.retain(|(_, addr)| blocks.contains_key(addr));
        }
    }

    /// Remembers a range, merged with the one before it if they touch.
    pub fn trim(&mut self, first: u64, count: u64) {
        match self.trims.last_mut() {
            Some((start, len)) if *start <= first && first <= *start + *len => {
                *len = (*len).max(first + count - *start);
            }
            _ => {
                self.trims.push((first, count));
                self.trims_added += 1;
            }
        }
    }

    /// Takes out the oldest ranges.
    pub fn pop_trims(&mut self, count: usize) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.trims_removed += count as u64;
        self.was_taken_from |= count > 0;
        self.trims.drain(..count)
    }

    /// Whether a stripe or batch took something and has not passed. Under the lock that means that
    /// it failed.
    pub(crate) fn is_partly_taken(&self) -> bool {
        self.was_taken_from
    }

    /// Whether anything was taken since the last call.
    pub(crate) fn note_taken(&mut self) -> bool {
        std::mem::take(&mut self.was_taken_from)
    }

    /// The present point in the queue.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket { added: self.added, trims_added: self.trims_added }
    }

    /// Whether everything that had been added when the ticket was drawn was taken.
    pub(crate) fn has_drained_to(&self, ticket: Ticket) -> bool {
        let later = self.order.front().is_none_or(|(turn, _)| *turn > ticket.added);
        later && self.trims_removed >= ticket.trims_added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> PendingBlock {
        WipeOnDrop::new(Box::new([1]))
    }

    #[test]
    fn a_range_is_trimmed_to_its_end() {
        let mut queue = PendingQueue::default();
        assert!(!queue.trims_cover(0));
        queue.trim(5, 2);
        assert!(queue.trims_cover(6) && !queue.trims_cover(7));
        queue.trim(7, 1);
        assert!(queue.trims_cover(7) && queue.trims().len() == 1);
    }

    #[test]
    fn a_ticket_is_drained_when_everything_before_it_was_taken() {
        let mut queue = PendingQueue::default();
        queue.put(7, block());
        queue.put(3, block());
        queue.trim(9, 1);
        let ticket = queue.ticket();
        queue.put(8, block());
        assert!(queue.front() == Some(7) && queue.pop().is_some());
        queue.discard(3, 1);
        assert!(!queue.has_drained_to(ticket));
        assert_eq!(queue.front(), Some(8));
        assert!(!queue.has_drained_to(ticket), "a discard still waits");
        assert_eq!(queue.pop_trims(1).collect::<Vec<_>>(), [(9, 1)]);
        assert!(queue.has_drained_to(ticket) && queue.len() == 1);
    }

    #[test]
    fn queue_order_follows_the_blocks() {
        let mut queue = PendingQueue::default();
        for addr in 0..1000 {
            queue.put(addr, block());
            queue.discard(addr, 1);
        }
        assert!(queue.order.is_empty() && queue.front().is_none() && queue.has_drained_to(queue.ticket()));
        queue.put(7, block());
        queue.put(8, block());
        let ticket = queue.ticket();
        queue.discard(7, 1);
        queue.put(7, block());
        assert_eq!(queue.pending().map(|(addr, _)| addr).collect::<Vec<_>>(), [8, 7]);
        assert!(!queue.has_drained_to(ticket), "a block before it still waits");
        assert!(queue.pop().is_some() && queue.front() == Some(7) && queue.has_drained_to(ticket));
    }
}
