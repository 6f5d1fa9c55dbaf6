//! Simulates policies that choose the key of a new node, and counts the key blocks that a purge has
//! to replace. Only keys are simulated, by the rules of the format: a key is assigned only if its
//! block was replaced since the last purge. The figures are the same on every machine.

use lacuna_bench::measuring::section_results::SectionResults;
use lacuna_bench::pages::page::RunInfo;
use lacuna_bench::pages::table::{Table, head};
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;
use lacuna_sim::Rng;

/// Keys in a key block: 62 pages of 4 KiB, each with a salt and 127 keys of 32 bytes.
const KEYS: u32 = 7874;
/// Simulated epochs; the second half counts.
const EPOCHS: u32 = 60;
/// An epoch overwrites 1/50 of the blocks of the disk.
const EPOCH_DIVISOR: u32 = 50;

/// The order of the blocks that this epoch replaced, when new keys are taken from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The block with the most unused keys first, as the format does.
    Emptiest,
    /// The block with the fewest unused keys first.
    Fullest,
    /// In the order of their positions.
    First,
}

/// How keys are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AssignmentPolicy {
    order: Order,
    /// Percentage of unused keys: blocks with a lower percentage are left out while another block
    /// with a higher one can be replaced instead.
    least: u32,
    /// Recently written blocks and other blocks get keys of different key blocks.
    streams: bool,
}

const POLICIES: [(&str, AssignmentPolicy); 6] = [
    ("emptiest first", AssignmentPolicy { order: Order::Emptiest, least: 0, streams: false }),
    ("fullest first", AssignmentPolicy { order: Order::Fullest, least: 0, streams: false }),
    ("by position", AssignmentPolicy { order: Order::First, least: 0, streams: false }),
    (
        "emptiest first, none below 25%",
        AssignmentPolicy { order: Order::Emptiest, least: 25, streams: false },
    ),
    (
        "emptiest first, none below 50%",
        AssignmentPolicy { order: Order::Emptiest, least: 50, streams: false },
    ),
    (
        "emptiest first, hot and cold apart",
        AssignmentPolicy { order: Order::Emptiest, least: 0, streams: true },
    ),
];

/// The blocks that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WritePattern {
    /// Files of 1 to 64 MiB, each written again as a whole.
    Files,
    /// 90 % of the writes go to 10 % of the blocks.
    HotCold,
    /// All blocks are equally likely.
    Uniform,
}

const TRAFFIC: [(&str, WritePattern); 3] = [
    ("files", WritePattern::Files),
    ("hot and cold", WritePattern::HotCold),
    ("uniform", WritePattern::Uniform),
];

#[derive(Clone, Copy, Debug, Default)]
struct PolicyOutcome {
    /// Percentage of the key blocks that a purge replaces.
    purged: f64,
    /// Percentage of the key blocks that are replaced between two purges to get unused keys.
    renewed: f64,
    /// Deleted keys per block that a purge replaces.
    deleted: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct KeyBlockUse {
    used: u32,
    deleted: u32,
}

/// The keys of a simulated disk.
struct KeyModel {
    policy: AssignmentPolicy,
    blocks: Vec<KeyBlockUse>,
    used: Vec<bool>,
    deleted: Vec<bool>,
    /// For each block of the disk: its key, and the write that assigned it.
    key_of: Vec<(u32, u64)>,
    /// Key blocks to assign from, the next one last; and, per stream, the current key block with
    /// its next key.
    fresh: Vec<u32>,
    current: [Option<(u32, u32)>; 2],
    writes: u64,
    renewed: u32,
}

impl KeyModel {
    /// A full disk with 32 keys for each 31 blocks.
    fn new(policy: AssignmentPolicy, key_blocks: u32) -> KeyModel {
        let keys = key_blocks * KEYS;
        let mut model = KeyModel {
            policy,
            blocks: vec![KeyBlockUse::default(); key_blocks as usize],
            used: vec![false; keys as usize],
            deleted: vec![false; keys as usize],
            key_of: vec![(u32::MAX, 0); (keys - keys / 32) as usize],
            fresh: vec![],
            current: [None; 2],
            writes: 0,
            renewed: 0,
        };
        (0..model.key_of.len() as u32).for_each(|block| model.write(block));
        model
    }

    fn write(&mut self, block: u32) {
        self.writes += 1;
        let (old, written) = self.key_of[block as usize];
        let hot = self.writes - written < self.key_of.len() as u64 / 8;
        let key = self.assign(usize::from(self.policy.streams && hot));
        self.key_of[block as usize] = (key, self.writes);
        if old != u32::MAX {
            self.used[old as usize] = false;
            self.deleted[old as usize] = true;
            let of = &mut self.blocks[(old / KEYS) as usize];
            (of.used, of.deleted) = (of.used - 1, of.deleted + 1);
        }
    }

    fn assign(&mut self, stream: usize) -> u32 {
        loop {
            let Some((block, from)) = self.current[stream] else {
                let next = self.fresh.pop().unwrap_or_else(|| self.renew_emptiest());
                self.current[stream] = Some((next, 0));
                continue;
            };
            let first = block * KEYS;
            let unused = |key: &u32| !self.used[*key as usize] && !self.deleted[*key as usize];
            let Some(key) = (first + from..first + KEYS).find(unused) else {
                self.current[stream] = None;
                continue;
            };
            self.current[stream] = Some((block, key - first + 1));
            self.used[key as usize] = true;
            self.blocks[block as usize].used += 1;
            return key;
        }
    }

    fn renew_emptiest(&mut self) -> u32 {
        let in_use = self.current.map(|current| current.map(|(block, _)| block));
        let rest = (0..self.blocks.len() as u32).filter(|block| !in_use.contains(&Some(*block)));
        let emptiest = rest.min_by_key(|block| self.blocks[*block as usize].used).expect("there are many");
        self.renew(emptiest);
        self.renewed += 1;
        emptiest
    }

    fn renew(&mut self, block: u32) {
        self.blocks[block as usize].deleted = 0;
        self.deleted[(block * KEYS) as usize..((block + 1) * KEYS) as usize].fill(false);
    }

    /// Ends an epoch. Returns the number of replaced key blocks, and of the deleted keys that they
    /// had.
    fn purge(&mut self) -> (u32, u32) {
        let purged: Vec<u32> =
            (0..self.blocks.len() as u32).filter(|block| self.blocks[*block as usize].deleted > 0).collect();
        let deleted = purged.iter().map(|block| self.blocks[*block as usize].deleted).sum();
        purged.iter().for_each(|block| self.renew(*block));
        let used = |block: &u32| self.blocks[*block as usize].used;
        self.fresh.clone_from(&purged);
        match self.policy.order {
            Order::Emptiest => self.fresh.sort_by_key(|block| std::cmp::Reverse(used(block))),
            Order::Fullest => self.fresh.sort_by_key(used),
            Order::First => self.fresh.reverse(),
        }
        self.fresh
            .retain(|block| (KEYS - self.blocks[*block as usize].used) * 100 >= KEYS * self.policy.least);
        self.current = [None; 2];
        (purged.len() as u32, deleted)
    }
}

fn run(policy: AssignmentPolicy, traffic: WritePattern, key_blocks: u32) -> PolicyOutcome {
    let mut model = KeyModel::new(policy, key_blocks);
    model.purge();
    let mut rng = Rng::new(5);
    let blocks = model.key_of.len() as u64;
    let mut files = vec![];
    let mut end = 0;
    while end < blocks {
        let len = ((1 + rng.below(64)) * 256).min(blocks - end);
        files.push(end..end + len);
        end += len;
    }
    let mut sum = PolicyOutcome::default();
    let (mut purges, mut all_deleted, mut all_purged) = (0, 0, 0);
    for epoch in 0..EPOCHS {
        model.renewed = 0;
        let until = model.writes + blocks / u64::from(EPOCH_DIVISOR);
        while model.writes < until {
            match traffic {
                WritePattern::Files => rng.pick(&files).clone().for_each(|block| model.write(block as u32)),
                WritePattern::HotCold if rng.chance(9, 10) => model.write(rng.below(blocks / 10) as u32),
                WritePattern::HotCold | WritePattern::Uniform => model.write(rng.below(blocks) as u32),
            }
        }
        let (purged, deleted) = model.purge();
        if epoch >= EPOCHS / 2 {
            purges += 1;
            all_purged += purged;
            all_deleted += deleted;
            sum.renewed += f64::from(model.renewed);
        }
    }
    let all = f64::from(purges) * f64::from(key_blocks) / 100.0;
    PolicyOutcome {
        purged: f64::from(all_purged) / all,
        renewed: sum.renewed / all,
        deleted: f64::from(all_deleted) / f64::from(all_purged),
    }
}

/// The outcomes of all policies.
struct AssignmentResults {
    rows: Vec<(&'static str, Vec<PolicyOutcome>)>,
    key_blocks: u32,
}

/// Simulates all policies with all kinds of traffic.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    let key_blocks = if work.scale.quick { 32 } else { 256 };
    let mut rows = vec![];
    for (name, policy) in POLICIES {
        work.report_progress(&format!("assignment: {name}"))?;
        rows.push((name, TRAFFIC.map(|(_, traffic)| run(policy, traffic, key_blocks)).to_vec()));
    }
    Ok(Box::new(AssignmentResults { rows, key_blocks }))
}

impl AssignmentResults {
    fn table(&self) -> Table {
        let columns =
            TRAFFIC.map(|(name, _)| format!("{name}: purged + renewed, deleted keys per purged block"));
        let title =
            "Assignment of keys: key blocks that a purge replaces, and key blocks renewed between purges";
        let mut table = Table::new(title, head("policy", columns));
        for (name, outcomes) in &self.rows {
            let cell = |outcome: &PolicyOutcome| {
                format!("{:.1}% + {:.1}%, {:.0}", outcome.purged, outcome.renewed, outcome.deleted)
            };
            table.row(*name, outcomes.iter().map(cell));
        }
        table
    }

    /// How the figures are obtained.
    fn method(&self) -> String {
        format!(
            "### Method for the assignment of keys\n\n\
- This is a simulation of the keys alone: {blocks} key blocks of {KEYS} keys, and a full disk with 32 keys \
for each 31 blocks. An epoch overwrites one of {EPOCH_DIVISOR} blocks; the second half of {EPOCHS} epochs counts. \
*purged*: key blocks with deleted keys, which the purge at the end of the epoch replaces. *renewed*: key \
blocks that are replaced during an epoch because no assignable key is left. *none below*: key blocks with a \
lower share of unused keys give out no keys while the disk can renew another block. Uniform traffic leaves \
deleted keys in every key block, under any policy.\n",
            blocks = self.key_blocks,
        )
    }
}

impl SectionResults for AssignmentResults {
    fn tables(&self) -> Vec<Table> {
        vec![self.table()]
    }

    fn body(&self, _run: &RunInfo) -> String {
        [self.table().markdown(), self.method()].join("\n")
    }
}
