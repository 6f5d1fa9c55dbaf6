//! `BinaryTree`: the Merkle tree of EINT (section 3.1, Figure 2), binary, with SHA-256. It is the
//! baseline of the comparison; files of vaults use the wide tree of `crates/parts/integrity`.
//!
//! The tree of n leaves is unique: every left subtree is complete. Nodes are numbered in order, so
//! leaf i is node 2i, the parent that an append creates is node 2n - 1, and no node changes its
//! number when leaves are added or removed. Each node is a page of 32 bytes of [`Part::Tree`]; the
//! root and the number of leaves are trusted.
//!
//! The tree differs from Figure 2 as printed in three places, which docs/integrity.md explains:
//! AppendTree finds the right-most complete subtree (the printed search finds another node for
//! every odd number of leaves above 1); DeleteTree checks the path from the leaf (the printed one
//! does not verify the sibling that takes the parent's place); and UpdatePathRoot uses the siblings
//! that CheckPathRoot verified (they are read once).

use crate::node_cache::NodeCache;
use crate::node_hash::{NodeHash, hash};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_integrity::{Part, Untrusted};
use parking_lot::Mutex;

/// A Merkle tree: its trusted state, and the cache of its nodes.
pub struct BinaryTree {
    part: Part,
    leaves: u64,
    root: NodeHash,
    cache: Option<Mutex<Box<dyn NodeCache>>>,
}

/// One step from a node up to its parent.
struct PathStep {
    parent: u64,
    sibling: u64,
    /// Whether the node is the left child.
    left: bool,
}

/// A verified path from a node to the root, with the siblings' hashes.
struct VerifiedPath(Vec<(PathStep, NodeHash)>);

impl BinaryTree {
    /// An empty tree with its nodes in the pages of `part`.
    pub fn new(part: Part, cache: Option<Box<dyn NodeCache>>) -> BinaryTree {
        BinaryTree { part, leaves: 0, root: [0; 32], cache: cache.map(Mutex::new) }
    }

    /// T.no_leaves.
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    /// R, the root; zeros if there are no leaves.
    pub fn root(&self) -> NodeHash {
        self.root
    }

    /// UpdateTree: sets the leaf `index` to `value`. Errors: [`Kind::Corrupt`] if its path does not
    /// lead to the root.
    pub fn update(&mut self, us: &dyn Untrusted, index: u64, value: &NodeHash) -> Result<()> {
        let (_, path) = self.verified_leaf(us, index)?;
        self.write(us, 2 * index, value)?;
        self.update_path(us, *value, &path.0)
    }

    /// CheckTree: whether the leaf `index` is `value` and its path leads to the root. Errors: those
    /// of US, except [`Kind::Corrupt`].
    pub fn check(&self, us: &dyn Untrusted, index: u64, value: &NodeHash) -> Result<bool> {
        if index >= self.leaves {
            return Ok(false);
        }
        match self.verified_leaf(us, index) {
            Ok((leaf, _)) => Ok(leaf == *value),
            Err(e) if e.kind() == Kind::Corrupt => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The verified hash of the leaf `index`. Errors: [`Kind::Corrupt`].
    pub fn leaf(&self, us: &dyn Untrusted, index: u64) -> Result<NodeHash> {
        self.verified_leaf(us, index).map(|(leaf, _)| leaf)
    }

    /// AppendTree: adds a last leaf. Errors: [`Kind::Corrupt`] if the path above it does not lead
    /// to the root.
    pub fn append(&mut self, us: &dyn Untrusted, value: &NodeHash) -> Result<()> {
        let (new_leaf, leaves) = (2 * self.leaves, self.leaves);
        if leaves == 0 {
            self.write(us, new_leaf, value)?;
            (self.root, self.leaves) = (*value, 1);
            return Ok(());
        }
        let beside = last_complete(leaves);
        let beside_hash = self.read(us, beside)?;
        let path = self.verify_path(us, beside, beside_hash)?;
        let parent_hash = hash(&[&beside_hash, value]);
        self.write(us, new_leaf, value)?;
        self.write(us, new_leaf - 1, &parent_hash)?;
        self.leaves += 1;
        self.update_path(us, parent_hash, &path.0)
    }

    /// DeleteTree: removes the last leaf. Errors: [`Kind::Usage`] if there is none,
    /// [`Kind::Corrupt`].
    pub fn delete(&mut self, us: &dyn Untrusted) -> Result<()> {
        let Some(last) = self.leaves.checked_sub(1) else {
            return Err(Error::new(Kind::Usage, "cannot delete a leaf").found("an empty tree"));
        };
        let (_, path) = self.verified_leaf(us, last)?;
        self.remove(us, 2 * last)?;
        self.leaves = last;
        let Some(((step, sibling), above)) = path.0.split_first() else {
            self.root = [0; 32];
            return Ok(());
        };
        self.remove(us, step.parent)?;
        self.update_path(us, *sibling, above)
    }

    fn verified_leaf(&self, us: &dyn Untrusted, index: u64) -> Result<(NodeHash, VerifiedPath)> {
        if index >= self.leaves {
            return Err(Error::new(Kind::Corrupt, "a tree has no such leaf")
                .found(format!("leaf {index}"))
                .expected(format!("one of {}", self.leaves)));
        }
        let leaf = self.read(us, 2 * index)?;
        let path = self.verify_path(us, 2 * index, leaf)?;
        Ok((leaf, path))
    }

    /// CheckPathRoot: verifies the path from a node with this hash to the root.
    fn verify_path(&self, us: &dyn Untrusted, node: u64, value: NodeHash) -> Result<VerifiedPath> {
        let mut path = Vec::with_capacity(40);
        let mut value = value;
        for step in steps(self.leaves, node) {
            let sibling = self.read(us, step.sibling)?;
            value = parent_hash(&step, &value, &sibling);
            path.push((step, sibling));
        }
        if value == self.root {
            return Ok(VerifiedPath(path));
        }
        // A cached node may be wrong: clear the cache, so that the next attempt reads US.
        self.clear_cache();
        Err(Error::new(Kind::Corrupt, "a Merkle tree was altered")
            .found(format!("a path from node {node} that does not lead to the trusted root"))
            .expected("hashes that agree"))
    }

    /// UpdatePathRoot: updates the hashes above a node that is now `value`.
    fn update_path(
        &mut self,
        us: &dyn Untrusted,
        value: NodeHash,
        path: &[(PathStep, NodeHash)],
    ) -> Result<()> {
        let mut value = value;
        for (step, sibling) in path {
            value = parent_hash(step, &value, sibling);
            self.write(us, step.parent, &value)?;
        }
        self.root = value;
        Ok(())
    }

    fn read(&self, us: &dyn Untrusted, node: u64) -> Result<NodeHash> {
        if let Some(found) = self.cache.as_ref().and_then(|cache| cache.lock().get(node)) {
            return Ok(found);
        }
        let page = us.read_part(self.part, node)?;
        let value = page.as_deref().and_then(|bytes| NodeHash::try_from(bytes).ok()).ok_or_else(|| {
            Error::new(Kind::Corrupt, "a node of a Merkle tree is missing")
                .found(format!("{} bytes of node {node}", page.map_or(0, |bytes| bytes.len())))
                .expected("32 bytes")
        })?;
        self.cache_node(node, &value);
        Ok(value)
    }

    fn write(&self, us: &dyn Untrusted, node: u64, value: &NodeHash) -> Result<()> {
        self.cache_node(node, value);
        us.write_part(self.part, node, Some(value))
    }

    fn remove(&self, us: &dyn Untrusted, node: u64) -> Result<()> {
        if let Some(cache) = &self.cache {
            cache.lock().remove(node);
        }
        us.write_part(self.part, node, None)
    }

    fn cache_node(&self, node: u64, value: &NodeHash) {
        if let Some(cache) = &self.cache {
            cache.lock().put(node, *value);
        }
    }

    fn clear_cache(&self) {
        if let Some(cache) = &self.cache {
            cache.lock().clear();
        }
    }
}

fn parent_hash(step: &PathStep, value: &NodeHash, sibling: &NodeHash) -> NodeHash {
    if step.left { hash(&[value, sibling]) } else { hash(&[sibling, value]) }
}

/// Leaves of the left subtree of a tree of `leaves` leaves, at least 2: the largest power of two
/// below `leaves`.
fn left_leaves(leaves: u64) -> u64 {
    1 << (leaves - 1).ilog2()
}

/// The number of the node above the leaves `first` to `end`.
fn node_number(first: u64, end: u64) -> u64 {
    if end - first == 1 { 2 * first } else { 2 * (first + left_leaves(end - first)) - 1 }
}

/// The complete subtree on the right-most path that has the last leaf: the left child of the parent
/// that an append creates.
fn last_complete(leaves: u64) -> u64 {
    let mut first = 0;
    while !(leaves - first).is_power_of_two() {
        first += left_leaves(leaves - first);
    }
    node_number(first, leaves)
}

/// The steps from a node of a tree of `leaves` leaves up to the root.
fn steps(leaves: u64, node: u64) -> Vec<PathStep> {
    let (mut first, mut end) = (0, leaves);
    let mut steps = Vec::with_capacity(40);
    loop {
        let parent = node_number(first, end);
        if parent == node || end - first == 1 {
            steps.reverse();
            return steps;
        }
        let middle = first + left_leaves(end - first);
        let left = node < parent;
        if left {
            steps.push(PathStep { parent, sibling: node_number(middle, end), left });
            end = middle;
        } else {
            steps.push(PathStep { parent, sibling: node_number(first, middle), left });
            first = middle;
        }
    }
}
