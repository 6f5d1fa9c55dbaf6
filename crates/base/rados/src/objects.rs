//! The numbered objects with one prefix in a pool.

use super::error::{self, RadosCode};
use super::ffi::{IoContext, ReadAnswer, ReadOp, WriteOp};
use super::keys;
use super::pool::RadosPool;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{
    KeySelection, ObjectKey, ObjectStep, ObjectStore, ObjectTransaction, Query, QueryAnswer, SnapshotId,
};
use parking_lot::RwLock;
use std::ffi::CString;
use std::ops::Range;
use std::sync::Arc;

/// Attempts of a query that needs several round trips and found the object changed between them.
const TRIES: u32 = 16;
/// Objects queried at once when a listing is checked.
const ASKED_AT_ONCE: usize = 256;

/// The answer of librados: its error code, or the result.
type RadosResult<T> = std::result::Result<T, RadosCode>;

/// The objects of a pool with names that begin with one prefix, in their present state or as of a
/// snapshot.
pub struct RadosObjects {
    pool: Arc<RadosPool>,
    prefix: String,
    /// Replaced as a whole when the snapshots to preserve change, because the settings of a context
    /// in use must not change.
    context: RwLock<Arc<IoContext>>,
    snapshot: Option<SnapshotId>,
}

impl RadosObjects {
    pub(super) fn new(
        pool: Arc<RadosPool>,
        prefix: &str,
        snapshot: Option<SnapshotId>,
    ) -> Result<RadosObjects> {
        let mut context = pool.context()?;
        if let Some(id) = snapshot {
            context.set_read_snapshot(id);
        }
        Ok(RadosObjects {
            pool,
            prefix: prefix.to_owned(),
            context: RwLock::new(Arc::new(context)),
            snapshot,
        })
    }

    fn context(&self) -> Arc<IoContext> {
        self.context.read().clone()
    }

    fn object_name(&self, object: u64) -> String {
        format!("{}.{object:016x}", self.prefix)
    }

    fn c_name(&self, object: u64) -> CString {
        CString::new(self.object_name(object)).expect("the prefix was found to have no NUL")
    }

    /// The description of an operation on an object, for an error.
    fn describe_op(&self, what: &str, object: u64) -> String {
        format!("cannot {what} object `{}` of pool `{}`", self.object_name(object), self.pool.name())
    }

    /// The description of an operation on all objects, for an error.
    fn describe_op_on_all(&self, what: &str) -> String {
        format!("cannot {what} objects `{}.*` of pool `{}`", self.prefix, self.pool.name())
    }

    fn refuse_if_read_only(&self, what: &str) -> Result<()> {
        self.pool.check_fenced(|| self.describe_op_on_all(what))?;
        let Some(id) = self.snapshot else { return Ok(()) };
        Err(Error::new(Kind::ReadOnly, self.describe_op_on_all(what))
            .found(format!("a view of snapshot {id}"))
            .expected("the present objects"))
    }

    fn refuse_without_keys(&self, object: u64) -> Result<()> {
        if self.pool.has_keys() {
            return Ok(());
        }
        Err(error::failed(RadosCode::UNSUPPORTED, self.describe_op("use keys of", object), self.pool.name()))
    }

    fn write_op(
        &self,
        transaction: &ObjectTransaction<'_>,
        target: AssumedObject,
    ) -> Result<(CString, WriteOp)> {
        let mut op = WriteOp::new()?;
        let (steps, epoch) = (&transaction.steps, self.pool.epoch());
        match (epoch, target) {
            (Some(epoch), AssumedObject::Present) if !creates_exclusively(steps) => epoch.assert(&mut op),
            (Some(_), AssumedObject::Absent) if leaves_something(steps) => op.create(true),
            _ => {}
        }
        for step in steps {
            match step {
                ObjectStep::Create => op.create(true),
                // No object has version 0, and librados does not accept it.
                ObjectStep::Expect(0) => op.assert_version(u64::MAX),
                ObjectStep::Expect(version) => op.assert_version(*version),
                ObjectStep::Compare { offset, data } => op.compare(*offset, data),
                ObjectStep::Write { offset, data } => op.write(*offset, data),
                ObjectStep::Zero { offset, len } => op.zero(*offset, *len),
                ObjectStep::Truncate(len) => op.truncate(*len),
                ObjectStep::Remove => op.remove(),
                ObjectStep::SetKeys(_) | ObjectStep::RemoveKeys(_) | ObjectStep::RemoveKeyRange(..) => {
                    self.refuse_without_keys(transaction.object)?;
                    add_keys_step(&mut op, step);
                }
            }
        }
        if let Some(epoch) = epoch
            && (target == AssumedObject::Present || leaves_something(steps))
            && !steps.iter().any(|step| matches!(step, ObjectStep::Remove))
        {
            epoch.stamp(&mut op);
        }
        Ok((self.c_name(transaction.object), op))
    }

    /// Performs transactions in the epoch of this client. Only existing objects can assert an
    /// epoch, so a transaction is first tried on an existing object; if that is absent, it is tried
    /// again as one that creates the object, and so on.
    fn write_all(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<RadosResult<u64>>> {
        let context = self.context();
        let mut answers = context.write_all(batch.iter().map(|t| self.write_op(t, AssumedObject::Present)));
        let mut target = AssumedObject::Absent;
        for _ in 0..TRIES {
            let again = |answer: &Result<RadosResult<u64>>| match target {
                AssumedObject::Absent => matches!(answer, Ok(Err(RadosCode::NO_ENTRY))),
                AssumedObject::Present => matches!(answer, Ok(Err(RadosCode::EXISTS))),
            };
            let begun = |t: &ObjectTransaction<'_>| !creates_exclusively(&t.steps);
            let tried: Vec<usize> =
                (0..batch.len()).filter(|&n| again(&answers[n]) && begun(&batch[n])).collect();
            if self.pool.epoch().is_none() || tried.is_empty() || !self.pool.exists() {
                break;
            }
            let renewed = context.write_all(tried.iter().map(|&n| self.write_op(&batch[n], target)));
            tried.into_iter().zip(renewed).for_each(|(n, answer)| answers[n] = answer);
            target =
                if target == AssumedObject::Present { AssumedObject::Absent } else { AssumedObject::Present };
        }
        answers
    }

    /// The read operation of a query.
    fn read_op<'a>(&self, query: &'a mut Query<'_>) -> Result<(CString, ReadOp<'a>)> {
        let name = self.c_name(query.object);
        if !matches!(query.keys, KeySelection::None) {
            self.refuse_without_keys(query.object)?;
        }
        let mut op = ReadOp::new()?;
        for extent in &mut query.extents {
            op.read(extent.offset, extent.buf);
        }
        if let Some((first, end, most)) = query.keys.range().filter(|(.., most)| *most > 0) {
            op.keys_after(
                &text(keys::encode_start(first)),
                &text(keys::common_prefix(first, end)),
                most as u64,
            );
        }
        if !query.keys.named().is_empty() {
            op.keys_named(&query.keys.named().iter().map(|key| keys::encode(key)).collect::<Vec<_>>());
        }
        Ok((name, op))
    }

    fn query_at_once(&self, batch: &mut [Query<'_>]) -> Vec<Result<RadosResult<ReadAnswer>>> {
        self.context().read_all(batch.iter_mut().map(|query| self.read_op(query)))
    }

    /// Converts an answer for its query; `None` if the object changed before all of it was fetched.
    fn convert_answer(
        &self,
        query: &Query<'_>,
        answer: RadosResult<ReadAnswer>,
    ) -> Result<Option<QueryAnswer>> {
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(RadosCode::NO_ENTRY) if self.pool.exists() => return Ok(Some(QueryAnswer::default())),
            Err(code) => return Err(self.pool.failed(code, self.describe_op("read", query.object))),
        };
        if let Some((first, end, most)) = query.keys.range() {
            let unchanged = self.fetch_held_back(query.object, &(first..end), most, &mut answer)?;
            if !unchanged {
                return Ok(None);
            }
            let end = keys::encode(end);
            answer.pairs.retain(|(key, _)| *key < end);
        }
        answer.pairs.append(&mut answer.named);
        let ours = |(key, value): (Vec<u8>, _)| match keys::decode(&key) {
            Some(key) => Ok((key, value)),
            None => Err(self.strange_key(query.object, &key)),
        };
        let pairs = answer.pairs.into_iter().map(ours).collect::<Result<_>>()?;
        Ok(Some(QueryAnswer { version: Some(answer.version), pairs }))
    }

    /// Adds the keys of a range that the store held back because they exceed one answer. False if
    /// the object changed meanwhile.
    fn fetch_held_back(
        &self,
        object: u64,
        range: &Range<&ObjectKey>,
        most: usize,
        answer: &mut ReadAnswer,
    ) -> Result<bool> {
        let (prefix, end) = (text(keys::common_prefix(range.start, range.end)), keys::encode(range.end));
        while answer.more && answer.pairs.len() < most {
            let Some((last, _)) = answer.pairs.last().filter(|(last, _)| *last < end) else { break };
            let after = CString::new(last.clone()).map_err(|_| self.strange_key(object, last))?;
            let mut op = ReadOp::new()?;
            op.assert_version(answer.version);
            op.keys_after(&after, &prefix, (most - answer.pairs.len()) as u64);
            let op = std::iter::once(Ok((self.c_name(object), op)));
            match self.context().read_all(op).remove(0)? {
                Ok(further) => {
                    answer.more = further.more && !further.pairs.is_empty();
                    answer.pairs.extend(further.pairs);
                }
                Err(code) if code.is_guard() || code == RadosCode::NO_ENTRY => return Ok(false),
                Err(code) => return Err(self.pool.failed(code, self.describe_op("read", object))),
            }
        }
        Ok(true)
    }

    /// The error for a key that this module cannot have written.
    fn strange_key(&self, object: u64, key: &[u8]) -> Error {
        Error::new(Kind::Corrupt, self.describe_op("read keys of", object))
            .found(format!("a key {key:02x?}"))
            .expected("only keys that lacuna wrote")
            .hint("check what else writes to this pool; roll back to a snapshot, or restore from a backup")
    }

    /// Repeats a query for an object that changed during the first attempt.
    fn query_again(&self, query: &mut Query<'_>) -> Result<QueryAnswer> {
        for _ in 0..TRIES {
            let answer = self.query_at_once(std::slice::from_mut(query)).remove(0)?;
            if let Some(found) = self.convert_answer(query, answer)? {
                return Ok(found);
            }
        }
        Err(Error::new(Kind::Changed, self.describe_op("read", query.object))
            .found(format!("another version at each of {TRIES} tries"))
            .hint("check what else writes to it, and try again"))
    }

    /// The number in an object name with this prefix.
    fn number(&self, name: &[u8]) -> Option<u64> {
        let digits = name.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b".")?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 16)?;
        let number = u64::from_str_radix(digits, 16).ok()?;
        (self.object_name(number).as_bytes() == name).then_some(number)
    }
}

/// The assumed state of the object of a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AssumedObject {
    /// The object exists.
    Present,
    /// The object is absent.
    Absent,
}

/// Whether a transaction creates its object itself, and fails if it exists.
fn creates_exclusively(steps: &[ObjectStep<'_>]) -> bool {
    matches!(steps.first(), Some(ObjectStep::Create))
}

/// Whether an object exists after a transaction on an absent object.
fn leaves_something(steps: &[ObjectStep<'_>]) -> bool {
    steps.iter().fold(false, |there, step| match step {
        ObjectStep::Create | ObjectStep::Write { .. } => true,
        ObjectStep::SetKeys(pairs) => there || !pairs.is_empty(),
        ObjectStep::Remove => false,
        _ => there,
    })
}

/// Adds a step about keys; an empty one does nothing.
fn add_keys_step(op: &mut WriteOp, step: &ObjectStep<'_>) {
    match step {
        ObjectStep::SetKeys(pairs) => {
            let written: Vec<_> =
                pairs.iter().map(|(key, value)| (keys::encode(key), value.as_slice())).collect();
            op.set_keys(&written);
        }
        ObjectStep::RemoveKeys(removed) => {
            op.remove_keys(&removed.iter().map(|key| keys::encode(key)).collect::<Vec<_>>());
        }
        ObjectStep::RemoveKeyRange(first, end) if first < end => {
            op.remove_key_range(&keys::encode(first), &keys::encode(end));
        }
        _ => {}
    }
}

fn text(key: Vec<u8>) -> CString {
    CString::new(key).expect("keys in the store have no NUL")
}

impl ObjectStore for RadosObjects {
    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>> {
        if let Err(e) = self.refuse_if_read_only("write") {
            return batch.iter().map(|_| Err(e.clone())).collect();
        }
        let answers = self.write_all(batch);
        let explained = |(transaction, answer): (&ObjectTransaction<'_>, Result<RadosResult<u64>>)| {
            answer?.map_err(|code| {
                let what = self.describe_op("write", transaction.object);
                match code {
                    // The object has the epoch of a later lock holder.
                    RadosCode::CANCELED => {
                        self.pool.fence();
                        error::fenced(what)
                    }
                    _ if code.is_guard() => error::changed(code, what),
                    _ => self.pool.failed(code, what),
                }
            })
        };
        batch.iter().zip(answers).map(explained).collect()
    }

    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>> {
        if let Err(e) = self.pool.check_fenced(|| self.describe_op_on_all("read")) {
            return batch.iter().map(|_| Err(e.clone())).collect();
        }
        let answers = self.query_at_once(batch);
        let explained = |(query, answer): (&mut Query<'_>, Result<RadosResult<_>>)| match self
            .convert_answer(query, answer?)?
        {
            Some(found) => Ok(found),
            None => self.query_again(query),
        };
        batch.iter_mut().zip(answers).map(explained).collect()
    }

    fn object_limit(&self) -> u64 {
        self.pool.object_limit()
    }

    fn has_keys(&self) -> bool {
        self.pool.has_keys()
    }

    fn list(&self) -> Result<Vec<u64>> {
        let mut listed = Vec::new();
        self.context().list(&mut |name| listed.extend(self.number(name))).map_err(|code| {
            let what = format!("cannot list objects `{}.*` of pool `{}`", self.prefix, self.pool.name());
            self.pool.failed(code, what)
        })?;
        if !self.pool.exists() {
            return Err(self.pool.failed(RadosCode::NO_ENTRY, self.describe_op_on_all("list")));
        }
        // A listing also names removed objects that are kept for a snapshot.
        let mut there = Vec::with_capacity(listed.len());
        for part in listed.chunks(ASKED_AT_ONCE) {
            let ask = |&object| Query { object, extents: Vec::new(), keys: KeySelection::None };
            let mut asked: Vec<_> = part.iter().map(ask).collect();
            for (&object, found) in part.iter().zip(self.query(&mut asked)) {
                there.extend(found?.version.map(|_| object));
            }
        }
        Ok(there)
    }

    fn create_snapshot(&self) -> Result<SnapshotId> {
        self.refuse_if_read_only("make a snapshot of")?;
        self.context().create_snapshot().map_err(|code| {
            let error = self.pool.failed(code, self.describe_op_on_all("make a snapshot of"));
            if code == RadosCode::INVALID {
                return error
                    .expected("a pool without pool snapshots, which exclude snapshots of objects")
                    .hint("use a pool that never had a pool snapshot (`ceph osd pool mksnap`)");
            }
            error
        })
    }

    fn remove_snapshot(&self, id: SnapshotId) -> Result<()> {
        self.refuse_if_read_only("remove a snapshot of")?;
        self.context().remove_snapshot(id).map_err(|code| {
            let what = self.describe_op_on_all(&format!("remove snapshot {id} of"));
            if code == RadosCode::UNSUPPORTED {
                return Error::new(Kind::NotFound, what).found("a pool that never had a snapshot");
            }
            self.pool.failed(code, what)
        })
    }

    fn set_snapshots(&self, ids: &[SnapshotId]) -> Result<()> {
        self.refuse_if_read_only("preserve snapshots of")?;
        let mut newest_first = ids.to_vec();
        newest_first.sort_unstable_by(|a, b| b.cmp(a));
        newest_first.dedup();
        let mut context = self.pool.context()?;
        context
            .set_write_snapshots(&newest_first)
            .map_err(|code| self.pool.failed(code, self.describe_op_on_all("preserve snapshots of")))?;
        *self.context.write() = Arc::new(context);
        Ok(())
    }

    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        self.refuse_if_read_only("roll back")?;
        match self.context().roll_back(&self.c_name(object), id) {
            Err(RadosCode::NO_ENTRY) if self.pool.exists() => Ok(()),
            done => done.map_err(|code| {
                self.pool.failed(code, self.describe_op(&format!("roll back to snapshot {id}"), object))
            }),
        }
    }

    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        Ok(Arc::new(RadosObjects::new(self.pool.clone(), &self.prefix, Some(id))?))
    }
}
