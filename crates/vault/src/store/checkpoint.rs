//! Checkpoints: the pages of one journal file go to their places while the other file takes what comes.

use super::PAGE;
use super::commit::sync_objects;
use super::content::{Commit, Facts};
use super::engine::Engine;
use super::journal::{NAMES, Need};
use super::object::{Entry, Layer};
use super::objects::subfolder;
use lacuna_core::{Error, Kind, Result};
use lacuna_medium::FolderFile;
use std::sync::atomic::Ordering;

/// Pages that are written with one call.
const AT_ONCE: usize = 64;

/// What a checkpoint brings to its place, and what its superblock says.
pub(super) struct Frozen {
    pub(super) objects: Vec<u64>,
    /// The journal file that holds it.
    pub(super) left: u8,
    /// The commit that began it.
    pub(super) commit: Commit,
    pub(super) facts: Facts,
    pub(super) root: Option<Vec<u8>>,
}

/// Finishes a checkpoint, if one began. Called by one thread at a time, which holds `frozen`.
///
/// Errors: a call that the host refuses, for want of space above all, leaves it begun, and it may be tried again; anything else is
/// fail-stop.
pub(super) fn finish(engine: &Engine, frozen: &mut Option<Frozen>) -> Result<()> {
    let Some(begun) = frozen.as_ref() else { return Ok(()) };
    engine.health.check()?;
    bring(engine, begun).map_err(|e| engine.refused(e))?;
    release(engine, begun).map_err(|e| engine.broken(e))?;
    *frozen = None;
    // All of it found room.
    engine.tight.store(false, Ordering::Relaxed);
    Ok(())
}

/// Brings the pages to their places and writes the superblocks that say so.
fn bring(engine: &Engine, begun: &Frozen) -> Result<()> {
    // A recovery that begins at the new superblock does not see these removals.
    engine.unlink_leaving()?;
    let epoch = engine.epoch.load(Ordering::Acquire);
    let mut brought = Vec::new();
    for &id in &begun.objects {
        let Some(object) = engine.objects.get(id) else { continue };
        let (layer, file) = {
            let mut object = object.write();
            object.turn(epoch);
            let Some(layer) = object.frozen.clone().filter(|_| !object.gone) else { continue };
            let file = if layer.pages.is_empty() {
                engine.objects.file(id)?
            } else {
                Some(engine.file_or_make(id, &mut object)?)
            };
            (layer, file)
        };
        if let Some(file) = file {
            bring_object(engine, (id, &*layer), &*file)?;
            brought.push(id);
        }
    }
    sync_objects(engine, &brought)?;
    sync_names(engine)?;
    let (keys, random) = (&engine.keys, &*engine.random);
    let (state, root) = ((&begun.commit, &begun.facts), begun.root.as_deref());
    // As soon as the second files are written to, the root before is whole in neither: the new one must not hang on its record alone.
    engine.superblock.lock().begin(keys, random, state, root, 1 - begun.left)?;
    bring_seconds(engine, &begun.objects)?;
    engine.superblock.lock().complete(keys, random)
}

/// Brings the pages of doubled objects to their second files, after they are durable in the first, and makes them durable there.
fn bring_seconds(engine: &Engine, objects: &[u64]) -> Result<()> {
    let mut files = Vec::new();
    for &id in objects.iter().filter(|id| engine.doubled.has(**id)) {
        let Some(object) = engine.objects.get(id) else { continue };
        let layer = {
            let object = object.read();
            object.frozen.clone().filter(|_| !object.gone)
        };
        let Some(layer) = layer else { continue };
        let file = if let Some(file) = engine.doubled.file(id)? {
            file
        } else {
            engine.names.lock().insert(subfolder(&engine.doubled.name(id)).to_owned());
            engine.doubled.make_file(id)?
        };
        bring_object(engine, (id, &*layer), &*file)?;
        files.push(file);
    }
    files.iter().try_for_each(|file| file.sync()).map_err(Error::of_sync)?;
    sync_names(engine)
}

/// Makes names durable that changed.
fn sync_names(engine: &Engine) -> Result<()> {
    let names = std::mem::take(&mut *engine.names.lock());
    let synced = if names.len() > super::commit::SYNCS {
        engine.folder.sync_all()
    } else {
        names.iter().try_for_each(|folder| engine.folder.sync_names(folder))
    };
    synced.map_err(Error::of_sync).inspect_err(|_| engine.names.lock().extend(names))
}

/// Brings one object's pages to their places in a file. Nobody writes to these places meanwhile, and an object that is cut is written
/// nowhere but to the journal.
fn bring_object(engine: &Engine, (id, layer): (u64, &Layer), file: &dyn FolderFile) -> Result<()> {
    if let Some(cut) = layer.cut
        && file.len()? > cut * PAGE as u64
    {
        file.set_len(cut * PAGE as u64)?;
    }
    let mut pages = layer.pages.iter().peekable();
    let mut run = Vec::with_capacity(AT_ONCE * PAGE);
    while let Some((&first, entry)) = pages.next() {
        run.clear();
        append(engine, (id, first), entry, &mut run)?;
        let mut next = first + 1;
        while run.len() < AT_ONCE * PAGE
            && let Some((_, entry)) = pages.next_if(|(page, _)| **page == next)
        {
            append(engine, (id, next), entry, &mut run)?;
            next += 1;
        }
        file.write_at(first * PAGE as u64, &run)?;
    }
    Ok(())
}

/// Reads a page from the journal. One that is not as it was written may be in its first file already, after a checkpoint that was cut short.
/// If it is not there, a file's page goes to its place as it is, and is an error of that block alone. A doubled object's must go nowhere:
/// its second file has what the root before needs, which gives the same state with the changes since.
fn append(engine: &Engine, (object, page): (u64, u64), entry: &Entry, run: &mut Vec<u8>) -> Result<()> {
    let from = run.len();
    run.resize(from + PAGE, 0);
    let bytes = &mut run[from..];
    engine.journal.read(entry.place, bytes)?;
    if engine.is_listed(entry, bytes) {
        return Ok(());
    }
    let mut brought = [0; PAGE];
    engine.read_own(object, page, &mut brought)?;
    if engine.is_listed(entry, &brought) {
        bytes.copy_from_slice(&brought);
        return Ok(());
    }
    if !engine.doubled.has(object) {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, "cannot finish a checkpoint of the vault")
        .found(format!(
            "page {} of {}, with a page of the names that does not verify",
            entry.place.page,
            NAMES[usize::from(entry.place.area)]
        ))
        .expected("what was written there")
        .remedy(
            "bring the journal files back as they were, or bring everything out with `lacuna vault rescue DIR TARGET` and make the vault \
             anew; nothing is lost by this alone, as long as nothing writes to the directory",
        ))
}

/// Forgets what is in its place now, and gives the journal file back.
fn release(engine: &Engine, begun: &Frozen) -> Result<()> {
    for id in &begun.objects {
        if let Some(object) = engine.objects.get(*id) {
            object.write().frozen = None;
        }
    }
    engine.journal.settled();
    if engine.journal.is_longer(begun.left) {
        engine.give_back(|| engine.journal.shrink(begun.left, Need::Usual))?;
    }
    let _alone = engine.gate.write();
    engine.objects.forget_idle(&begun.objects, engine.commit.load(Ordering::Acquire));
    Ok(())
}
