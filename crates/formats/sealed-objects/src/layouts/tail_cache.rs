//! A bounded cache of the ends of objects' chains, as last read or written.

use crate::layouts::chain::ChainTails;
use crate::segment::Segment;
use crate::versions::pages::StoreVersion;
use lacuna_contracts::{BoundedCache, Budget};
use parking_lot::Mutex;

/// The budget charged per object.
const OBJECT_COST: u64 = 320;

/// The tails of objects, each with the version of its object.
pub(crate) struct TailCache(Mutex<BoundedCache<Segment, (StoreVersion, ChainTails)>>);

impl TailCache {
    /// Entries within the budget, but at least 16.
    pub(crate) fn new(budget: Budget) -> TailCache {
        TailCache(Mutex::new(BoundedCache::new((budget.get() / OBJECT_COST).max(16) as usize)))
    }

    /// The tails of an object of this version.
    pub(crate) fn get(&self, segment: Segment, version: StoreVersion) -> Option<ChainTails> {
        let mut known = self.0.lock();
        known.get(segment).filter(|(seen, _)| *seen == version).map(|(_, tails)| *tails)
    }

    /// Caches the tails of an object of this version.
    pub(crate) fn put(&self, segment: Segment, version: StoreVersion, tails: ChainTails) {
        let mut known = self.0.lock();
        known.insert(segment, (version, tails));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_of_another_version_are_not_returned() {
        let (known, version) = (TailCache::new(Budget::bytes(0)), |version| StoreVersion::of(Some(version)));
        (0..100).for_each(|object| known.put(Segment(object), version(7), ChainTails::default()));
        assert_eq!(known.get(Segment(99), version(7)), Some(ChainTails::default()));
        assert_eq!(known.get(Segment(99), version(8)), None);
        assert!(known.0.lock().len() <= 16);
    }
}
