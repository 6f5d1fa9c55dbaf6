//! The trait for numbered objects of up to a few MiB with atomic transactions: a distributed object
//! store as the formats see it.

use crate::ReadExtent;
use lacuna_contracts::Result;

/// A key of an object's key-value map; keys are sorted as bytes.
pub type ObjectKey = Vec<u8>;

/// One step of an [`ObjectTransaction`].
#[derive(Clone, Debug)]
pub enum ObjectStep<'a> {
    /// Creates the object; fails with [`lacuna_contracts::Kind::Exists`] if it exists.
    Create,
    /// Fails with [`lacuna_contracts::Kind::Changed`] unless the object has this version.
    Expect(u64),
    /// Fails with [`lacuna_contracts::Kind::Changed`] unless the object has these bytes.
    Compare {
        /// Byte offset in the object.
        offset: u64,
        /// The expected bytes; bytes past the end of the object count as zeros.
        data: &'a [u8],
    },
    /// Writes bytes. Creates and lengthens the object as needed.
    Write {
        /// Byte offset in the object.
        offset: u64,
        /// The bytes to write.
        data: &'a [u8],
    },
    /// Makes a range read as zeros, and frees its space if the store can. Never lengthens the
    /// object.
    Zero {
        /// Byte offset in the object.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Cuts or lengthens the object to this many bytes.
    Truncate(u64),
    /// Removes the object with its keys. No error if it is absent.
    Remove,
    /// Sets keys. Creates the object as needed.
    SetKeys(Vec<(ObjectKey, Vec<u8>)>),
    /// Removes keys; absent keys are ignored.
    RemoveKeys(Vec<ObjectKey>),
    /// Removes every key from the first (included) to the second (excluded).
    RemoveKeyRange(ObjectKey, ObjectKey),
}

/// An atomic change of one object.
#[derive(Clone, Debug)]
pub struct ObjectTransaction<'a> {
    /// The number of the object.
    pub object: u64,
    /// The steps, performed in this order.
    pub steps: Vec<ObjectStep<'a>>,
}

/// The keys that a [`Query`] asks for.
#[derive(Clone, Debug, Default)]
pub enum KeySelection {
    /// None.
    #[default]
    None,
    /// These keys, if present.
    These(Vec<ObjectKey>),
    /// Every key from the first (included) to the second (excluded), up to a maximum count.
    Range(ObjectKey, ObjectKey, usize),
    /// A range as above, and these keys, if present. All of these keys lie behind the range.
    RangeAnd(ObjectKey, ObjectKey, usize, Vec<ObjectKey>),
}

impl KeySelection {
    /// The requested range, with its maximum count.
    pub fn range(&self) -> Option<(&ObjectKey, &ObjectKey, usize)> {
        match self {
            KeySelection::Range(first, end, most) | KeySelection::RangeAnd(first, end, most, _)
                if first < end =>
            {
                Some((first, end, *most))
            }
            _ => None,
        }
    }

    /// The keys that are requested one by one.
    pub fn named(&self) -> &[ObjectKey] {
        match self {
            KeySelection::These(keys) | KeySelection::RangeAnd(_, _, _, keys) => keys,
            KeySelection::None | KeySelection::Range(..) => &[],
        }
    }
}

/// A read of one version of one object, in one round trip.
pub struct Query<'a> {
    /// The number of the object.
    pub object: u64,
    /// Bytes past the end of the object, or of an absent object, read as zeros.
    pub extents: Vec<ReadExtent<'a>>,
    /// Keys to fetch with the bytes.
    pub keys: KeySelection,
}

/// The result of a [`Query`] besides the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryAnswer {
    /// The version of the object; `None` if it is absent.
    pub version: Option<u64>,
    /// The requested keys that exist, sorted.
    pub pairs: Vec<(ObjectKey, Vec<u8>)>,
}

/// The number of a snapshot in a store; later snapshots have larger numbers.
pub type SnapshotId = u64;

/// Numbered objects. Called from many threads at once.
///
/// A transaction is atomic, and durable when it is acknowledged. After an error of the connection
/// it may or may not have been performed. Acknowledgements are the only order between objects.
pub trait ObjectStore: Send + Sync {
    /// Performs the transactions of a batch concurrently, and returns the new version of each
    /// object. The objects of a batch must be distinct.
    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>>;
    /// Answers the queries of a batch concurrently.
    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>>;
    /// The most bytes that an object may hold.
    fn object_limit(&self) -> u64;
    /// Whether objects have key-value maps (an erasure-coded pool of RADOS has none).
    fn has_keys(&self) -> bool;
    /// The numbers of all existing objects, in any order.
    fn list(&self) -> Result<Vec<u64>>;

    /// Allocates the number of a new snapshot. The first write to an object after
    /// [`ObjectStore::set_snapshots`] with that number preserves the object's state.
    fn create_snapshot(&self) -> Result<SnapshotId>;
    /// Frees the space of a snapshot.
    fn remove_snapshot(&self, id: SnapshotId) -> Result<()>;
    /// Sets the snapshots, in any order, for which later writes through this handle preserve the
    /// data that they overwrite.
    fn set_snapshots(&self, ids: &[SnapshotId]) -> Result<()>;
    /// Restores an object to its state at the snapshot (removes it if it was absent).
    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()>;
    /// A read-only view of the objects as they were at the snapshot.
    fn at_snapshot(&self, id: SnapshotId) -> Result<std::sync::Arc<dyn ObjectStore>>;

    /// Performs one transaction.
    fn apply_one(&self, transaction: ObjectTransaction<'_>) -> Result<u64> {
        self.apply(std::slice::from_ref(&transaction)).pop().expect("one answer for one transaction")
    }
    /// Answers one query.
    fn query_one(&self, mut query: Query<'_>) -> Result<QueryAnswer> {
        self.query(std::slice::from_mut(&mut query)).pop().expect("one answer for one query")
    }
}
