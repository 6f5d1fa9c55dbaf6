//! A bounded cache of the ends of objects' chains, as last read or written.

use crate::chain::Tails;
use crate::segment::Segment;
use crate::version_pages::Seen;
use lacuna_contracts::{BoundedCache, Budget};
use parking_lot::Mutex;

/// The budget charged per object.
const KNOWN_COST: u64 = 320;

/// The tails of objects, each with the version of its object.
pub(crate) struct KnownTails(Mutex<BoundedCache<Segment, (Seen, Tails)>>);

impl KnownTails {
    /// Entries within the budget, but at least 16.
    pub(crate) fn new(budget: Budget) -> KnownTails {
        KnownTails(Mutex::new(BoundedCache::new((budget.get() / KNOWN_COST).max(16) as usize)))
    }

    /// The tails of an object of this version.
    pub(crate) fn get(&self, segment: Segment, version: Seen) -> Option<Tails> {
        let mut known = self.0.lock();
        known.get(segment).filter(|(seen, _)| *seen == version).map(|(_, tails)| *tails)
    }

    /// Caches the tails of an object of this version.
    pub(crate) fn put(&self, segment: Segment, version: Seen, tails: Tails) {
        let mut known = self.0.lock();
        known.insert(segment, (version, tails));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_of_another_version_do_not_count() {
        let (known, version) = (KnownTails::new(Budget::bytes(0)), |version| Seen::of(Some(version)));
        (0..100).for_each(|object| known.put(Segment(object), version(7), Tails::default()));
        assert_eq!(known.get(Segment(99), version(7)), Some(Tails::default()));
        assert_eq!(known.get(Segment(99), version(8)), None);
        assert!(known.0.lock().len() <= 16);
    }
}
