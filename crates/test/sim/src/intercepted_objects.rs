//! A base for test doubles that intercept some calls of an object store and pass on the remaining
//! ones.

use lacuna_contracts::Result;
use lacuna_medium::{ObjectStore, ObjectTransaction, Query, QueryAnswer, SnapshotId};
use std::sync::Arc;

/// Intercepts calls of the object store below. Each default passes the call on.
pub trait ObjectInterceptor: Send + Sync + 'static {
    /// The store below.
    fn inner(&self) -> &dyn ObjectStore;

    /// Intercepts a batch of transactions.
    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>> {
        self.inner().apply(batch)
    }

    /// Intercepts a batch of queries.
    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>> {
        self.inner().query(batch)
    }

    /// Intercepts a list of the objects.
    fn list(&self) -> Result<Vec<u64>> {
        self.inner().list()
    }

    /// Intercepts the creation of a snapshot.
    fn create_snapshot(&self) -> Result<SnapshotId> {
        self.inner().create_snapshot()
    }

    /// Intercepts the removal of a snapshot.
    fn remove_snapshot(&self, id: SnapshotId) -> Result<()> {
        self.inner().remove_snapshot(id)
    }

    /// Intercepts the rollback of an object.
    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        self.inner().roll_back(object, id)
    }

    /// Intercepts the opening of a snapshot. By default, calls of the view are not intercepted.
    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        self.inner().at_snapshot(id)
    }
}

/// The object store with its calls intercepted.
pub struct InterceptedObjects<A>(pub A);

impl<A: ObjectInterceptor> ObjectStore for InterceptedObjects<A> {
    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>> {
        self.0.apply(batch)
    }

    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>> {
        self.0.query(batch)
    }

    fn object_limit(&self) -> u64 {
        self.0.inner().object_limit()
    }

    fn has_keys(&self) -> bool {
        self.0.inner().has_keys()
    }

    fn list(&self) -> Result<Vec<u64>> {
        self.0.list()
    }

    fn create_snapshot(&self) -> Result<SnapshotId> {
        self.0.create_snapshot()
    }

    fn remove_snapshot(&self, id: SnapshotId) -> Result<()> {
        self.0.remove_snapshot(id)
    }

    fn set_snapshots(&self, ids: &[SnapshotId]) -> Result<()> {
        self.0.inner().set_snapshots(ids)
    }

    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        self.0.roll_back(object, id)
    }

    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        self.0.at_snapshot(id)
    }
}
