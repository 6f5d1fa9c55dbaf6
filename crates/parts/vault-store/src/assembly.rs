//! Assembly of the parts of a store, in the state that an opening found.

use crate::anchor::AnchorState;
use crate::checkpoint::Checkpointer;
use crate::commit_log::{CommitLog, Frozen, History};
use crate::health::Health;
use crate::ids::PAGE;
use crate::interval::Interval;
use crate::journal::Journal;
use crate::keys::StoreKeys;
use crate::object::Object;
use crate::object_table::ObjectTable;
use crate::options::{StoreBase, StoreOptions};
use crate::parts::Parts;
use crate::reclaimer::Reclaimer;
use crate::replay::Replay;
use crate::session::DrawnSession;
use crate::superblock::SuperFiles;
use crate::write::Writer;
use lacuna_contracts::Result;
use std::collections::BTreeSet;
use std::sync::Arc;

/// All parts of an open store. Each uses parts before it.
pub(crate) struct Assembly {
    pub(crate) parts: Arc<Parts>,
    pub(crate) reclaimer: Arc<Reclaimer>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) log: Arc<CommitLog>,
    pub(crate) checkpoints: Arc<Checkpointer>,
    /// Whether a thread finishes the work that commits leave to it.
    pub(crate) background: bool,
}

/// Assembles the parts in the state that `replay` found in `journal` and `superblock`; `known` is
/// the anchored state.
pub(crate) fn assemble(
    base: StoreBase,
    keys: Arc<StoreKeys>,
    options: &StoreOptions,
    journal: Journal,
    superblock: SuperFiles,
    replay: Replay,
    known: Option<AnchorState>,
) -> Result<Assembly> {
    // The order of these draws decides the bytes that a seed gives.
    let session = DrawnSession::new(base.random.clone());
    let machine = known.as_ref().map_or_else(|| base.draw(), |known| known.machine);
    let next = replay.following(known.as_ref());
    let epoch = u64::from(replay.unfinished.is_some());
    let objects = ObjectTable::new(base.folder.clone(), keys.clone());
    let (mut journaled, mut frozen_objects, mut frozen_pages) = (BTreeSet::new(), Vec::new(), 0);
    for (id, replayed) in replay.objects {
        let shared = objects.get_or_make(id);
        let mut object = shared.write();
        if let Some(frozen) = &replayed.frozen {
            frozen_pages += frozen.pages.len() as u64;
            frozen_objects.push(id);
        }
        if replayed.live.cut.is_some() || !replayed.live.pages.is_empty() {
            journaled.insert(id);
        }
        *object = Object::replayed(replayed.live, replayed.frozen, epoch);
    }
    for (id, pages) in &replay.facts.appendable {
        objects.get_or_make(*id).write().ends_at(*pages);
    }
    journal.go_on(replay.area, replay.tail);
    let frozen = replay.unfinished.map(|begun| Frozen {
        objects: frozen_objects,
        left: begun.left,
        commit: begun.commit,
        facts: begun.facts,
        root: begun.root,
    });
    if let Some(begun) = &frozen {
        journal.leave(frozen_pages, begun.objects.len() as u64);
    }
    // In a read-only store no file grows.
    let longest = if options.read_only { u64::MAX } else { journal.longest()? / PAGE as u64 };
    let background = options.background && !options.read_only;
    let health = Health::new(options.read_only);
    let interval = Interval::new(replay.last.number, &replay.facts, next, epoch, journaled);
    let history = History::new(replay.last, replay.facts, known, machine);
    let folder = base.folder.clone();
    let parts = Arc::new(Parts { folder, keys, health, objects, interval, journal });
    let reclaimer = Arc::new(Reclaimer::new(parts.clone()));
    let writer = Arc::new(Writer::new(parts.clone(), reclaimer.clone(), longest));
    let log = Arc::new(CommitLog::new(
        parts.clone(),
        writer.clone(),
        reclaimer.clone(),
        &base,
        session,
        background,
        history,
    ));
    let checkpoints = Arc::new(Checkpointer::new(
        parts.clone(),
        reclaimer.clone(),
        log.clone(),
        base.random,
        superblock,
        frozen,
    ));
    Ok(Assembly { parts, reclaimer, writer, log, checkpoints, background })
}
