//! Numbered objects, each up to a few MiB, whose transactions are atomic: the contract of a
//! distributed object store as a format sees it.

use crate::ReadExtent;
use lacuna_contracts::Result;

/// A key of an object's key-value map; keys are sorted as bytes.
pub type Key = Vec<u8>;

/// One step of a [`Transaction`].
#[derive(Clone, Debug)]
pub enum Step<'a> {
    /// Makes the object; fails with [`lacuna_contracts::Kind::Exists`] if it is there.
    Create,
    /// Fails with [`lacuna_contracts::Kind::Changed`] unless the object has this version.
    Expect(u64),
    /// Fails with [`lacuna_contracts::Kind::Changed`] unless these bytes stand there.
    Compare {
        /// Byte offset in the object.
        offset: u64,
        /// What must stand there; bytes past the end of the object count as zeros.
        data: &'a [u8],
    },
    /// Writes bytes, making the object and lengthening it as needed.
    Write {
        /// Byte offset in the object.
        offset: u64,
        /// What to write.
        data: &'a [u8],
    },
    /// Makes a range read as zeros and gives its space back where the store can. Never lengthens
    /// the object.
    Zero {
        /// Byte offset in the object.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Cuts or lengthens the object to this many bytes.
    Truncate(u64),
    /// Removes the object with its keys. No error if there is none.
    Remove,
    /// Sets keys, making the object as needed.
    SetKeys(Vec<(Key, Vec<u8>)>),
    /// Removes keys, those that are not there too.
    RemoveKeys(Vec<Key>),
    /// Removes every key from the first (included) to the second (excluded).
    RemoveKeyRange(Key, Key),
}

/// What happens to one object, whole or not at all.
#[derive(Clone, Debug)]
pub struct Transaction<'a> {
    /// The number of the object.
    pub object: u64,
    /// Performed in this order.
    pub steps: Vec<Step<'a>>,
}

/// Which keys a [`Query`] asks for.
#[derive(Clone, Debug, Default)]
pub enum Keys {
    /// None.
    #[default]
    None,
    /// These, as far as they are there.
    These(Vec<Key>),
    /// Every key from the first (included) to the second (excluded), at most so many.
    Range(Key, Key, usize),
    /// A range as above, and these keys, as far as they are there. All of them lie behind the
    /// range.
    RangeAnd(Key, Key, usize, Vec<Key>),
}

impl Keys {
    /// The range that is asked for, with the most keys of it.
    pub fn range(&self) -> Option<(&Key, &Key, usize)> {
        match self {
            Keys::Range(first, end, most) | Keys::RangeAnd(first, end, most, _) if first < end => {
                Some((first, end, *most))
            }
            _ => None,
        }
    }

    /// The keys that are asked for one by one.
    pub fn named(&self) -> &[Key] {
        match self {
            Keys::These(keys) | Keys::RangeAnd(_, _, _, keys) => keys,
            Keys::None | Keys::Range(..) => &[],
        }
    }
}

/// What is read from one object, in one round trip and of one version of it.
pub struct Query<'a> {
    /// The number of the object.
    pub object: u64,
    /// Bytes past the end of the object, or of an object that is not there, read as zeros.
    pub extents: Vec<ReadExtent<'a>>,
    /// Keys to fetch with them.
    pub keys: Keys,
}

/// What a [`Query`] found beside the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The version of the object; `None` if it is not there.
    pub version: Option<u64>,
    /// The keys asked for and found, sorted.
    pub pairs: Vec<(Key, Vec<u8>)>,
}

/// The number of a snapshot in a store; later ones are larger.
pub type SnapshotId = u64;

/// Numbered objects. Called from many threads at once.
///
/// A transaction is atomic and durable when it is acknowledged; one that fails with an error of the
/// connection may have happened or not. There is no order between objects but that of
/// acknowledgements.
pub trait ObjectStore: Send + Sync {
    /// Performs the transactions of a batch side by side, and gives the version of each object
    /// afterwards. Objects of one batch differ from each other.
    fn apply(&self, batch: &[Transaction<'_>]) -> Vec<Result<u64>>;
    /// Answers the queries of a batch side by side.
    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<Found>>;
    /// The most bytes an object may hold.
    fn object_limit(&self) -> u64;
    /// Whether objects have key-value maps (an erasure-coded pool of RADOS has none).
    fn has_keys(&self) -> bool;
    /// The numbers of all objects that are there, in any order.
    fn list(&self) -> Result<Vec<u64>>;

    /// Takes a number for a new snapshot. Objects keep their present state for it once a write
    /// follows under [`ObjectStore::set_snapshots`] with that number.
    fn create_snapshot(&self) -> Result<SnapshotId>;
    /// Gives back what the store keeps for a snapshot.
    fn remove_snapshot(&self, id: SnapshotId) -> Result<()>;
    /// The snapshots for which later writes through this handle preserve what they overwrite. Any
    /// order.
    fn set_snapshots(&self, ids: &[SnapshotId]) -> Result<()>;
    /// Makes an object what it was at the snapshot (absent, if it was).
    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()>;
    /// A read-only view of the objects as they were at the snapshot.
    fn at_snapshot(&self, id: SnapshotId) -> Result<std::sync::Arc<dyn ObjectStore>>;

    /// Performs one transaction.
    fn apply_one(&self, transaction: Transaction<'_>) -> Result<u64> {
        self.apply(std::slice::from_ref(&transaction)).pop().expect("one answer for one transaction")
    }
    /// Answers one query.
    fn query_one(&self, mut query: Query<'_>) -> Result<Found> {
        self.query(std::slice::from_mut(&mut query)).pop().expect("one answer for one query")
    }
}
