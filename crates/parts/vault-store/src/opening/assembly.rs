//! Assembly of the parts of a store, in the state that an opening found.

use crate::anchor::{AnchorState, MachineAnchor};
use crate::checkpoint::Checkpointer;
use crate::commits::commit_interval::CommitInterval;
use crate::commits::log::{CommitAuthor, CommitHistory, CommitLog, PendingCheckpoint};
use crate::commits::record::RecordLog;
use crate::health::StoreHealth;
use crate::ids::PAGE;
use crate::journal::Journal;
use crate::keys::StoreKeys;
use crate::objects::change_collector::ChangeCollector;
use crate::objects::object::Object;
use crate::objects::page_reader::PageReader;
use crate::objects::reclaimer::Reclaimer;
use crate::objects::table::ObjectTable;
use crate::objects::writer::ObjectWriter;
use crate::opening::replay::{JournalReplay, UnfinishedCheckpoint};
use crate::opening::session::CurrentSession;
use crate::opening::superblock::SuperblockFiles;
use crate::options::{StoreBacking, StoreOptions};
use crate::write_back::WriteBack;
use lacuna_contracts::Result;
use lacuna_medium::Folder;
use std::collections::BTreeSet;
use std::sync::Arc;

/// All parts of an open store. Each uses parts before it, and keeps its own state and locks.
pub(crate) struct Assembly {
    pub(crate) folder: Arc<dyn Folder>,
    pub(crate) keys: Arc<StoreKeys>,
    pub(crate) health: Arc<StoreHealth>,
    pub(crate) objects: Arc<ObjectTable>,
    pub(crate) interval: Arc<CommitInterval>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) reader: Arc<PageReader>,
    pub(crate) reclaimer: Arc<Reclaimer>,
    pub(crate) writer: Arc<ObjectWriter>,
    pub(crate) log: Arc<CommitLog>,
    pub(crate) checkpoints: Arc<Checkpointer>,
    /// Whether a thread finishes the work that commits leave to it.
    pub(crate) background: bool,
}

/// The state of a replay that no part holds yet.
struct Restored {
    /// Objects with changes in the journal since the last checkpoint began.
    journaled: BTreeSet<u64>,
    /// The checkpoint that began and was not finished.
    pending: Option<PendingCheckpoint>,
}

/// Assembles the parts in the state that `replay` found in `journal` and `superblock`; `known` is
/// the anchored state.
pub(crate) fn assemble(
    base: StoreBacking,
    keys: Arc<StoreKeys>,
    options: &StoreOptions,
    journal: Arc<Journal>,
    superblock: SuperblockFiles,
    mut replay: JournalReplay,
    known: Option<AnchorState>,
) -> Result<Assembly> {
    // The order of these draws decides the bytes that a seed gives.
    let session = CurrentSession::new(base.random.clone());
    let machine = known.as_ref().map_or_else(|| base.draw(), |known| known.machine);
    let next = replay.next_number(known.as_ref());
    let epoch = u64::from(replay.unfinished.is_some());
    let objects = Arc::new(ObjectTable::new(base.folder.clone(), keys.clone()));
    let restored = restore(&objects, &journal, &mut replay, epoch);
    // In a read-only store no file grows.
    let longest = if options.read_only { u64::MAX } else { journal.longest()? / PAGE as u64 };
    let background = options.background && !options.read_only;
    let health = Arc::new(StoreHealth::new(options.read_only));
    let interval = CommitInterval::new(replay.last.number, &replay.state, next, epoch, restored.journaled);
    let interval = Arc::new(interval);
    let history = CommitHistory::new(replay.last, replay.state, known);
    let reader = Arc::new(PageReader::new(objects.clone(), journal.clone(), options.read_only));
    let reclaimer = Arc::new(Reclaimer::new(objects.clone(), interval.clone(), health.clone(), background));
    let writer = Arc::new(ObjectWriter::new(
        health.clone(),
        objects.clone(),
        interval.clone(),
        journal.clone(),
        reader.clone(),
        reclaimer.clone(),
        longest,
    ));
    let log = Arc::new(CommitLog::new(
        ChangeCollector::new(objects.clone(), interval.clone(), journal.clone(), writer.clone()),
        RecordLog::new(keys.clone(), journal.clone()),
        MachineAnchor::new(base.anchor, base.uuid),
        CommitAuthor { machine, session, clock: base.clock },
        reclaimer.clone(),
        health.clone(),
        history,
    ));
    let checkpoints = Arc::new(Checkpointer::new(
        WriteBack::new(objects.clone(), interval.clone(), reader.clone()),
        journal.clone(),
        health.clone(),
        reclaimer.clone(),
        log.clone(),
        superblock,
        restored.pending,
    ));
    Ok(Assembly {
        folder: base.folder,
        keys,
        health,
        objects,
        interval,
        journal,
        reader,
        reclaimer,
        writer,
        log,
        checkpoints,
        background,
    })
}

/// Puts the objects of a replay into the table, after `epoch` checkpoints began, and continues the
/// journal at its end.
fn restore(objects: &ObjectTable, journal: &Journal, replay: &mut JournalReplay, epoch: u64) -> Restored {
    let (mut journaled, mut frozen_objects, mut frozen_pages) = (BTreeSet::new(), Vec::new(), 0);
    for (id, replayed) in std::mem::take(&mut replay.objects) {
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
    for (id, pages) in &replay.state.appendable {
        objects.get_or_make(*id).write().hide_past(*pages);
    }
    journal.set_tail(replay.area, replay.tail);
    let frozen = replay.unfinished.take().map(|begun| {
        journal.note_checkpoint(frozen_pages, frozen_objects.len() as u64);
        let UnfinishedCheckpoint { commit, state: facts, root, journal_file: left } = begun;
        PendingCheckpoint { objects: frozen_objects, journal_file: left, commit, state: facts, root }
    });
    Restored { journaled, pending: frozen }
}
