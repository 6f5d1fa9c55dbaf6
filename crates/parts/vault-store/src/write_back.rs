//! Write-back: the pages of a checkpoint go from the journal to their places in the files of their
//! objects.

use crate::commits::commit_interval::CommitInterval;
use crate::commits::log::PendingCheckpoint;
use crate::ids::PAGE;
use crate::journal::NAMES;
use crate::objects::doubled::ExtraFile;
use crate::objects::object::{JournalEntry, JournalLayer};
use crate::objects::page_reader::{PageReader, UnreadablePage};
use crate::objects::table::ObjectTable;
use lacuna_contracts::{Action, Error, Hint, Kind, Result};
use lacuna_medium::FolderFile;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Pages per write call.
const AT_ONCE: usize = 64;

/// Writes the frozen pages of objects back.
pub(crate) struct WriteBack {
    objects: Arc<ObjectTable>,
    interval: Arc<CommitInterval>,
    reader: Arc<PageReader>,
    /// Whether the user agreed to give up pages that cannot be read.
    gives_up_pages: AtomicBool,
}

impl WriteBack {
    /// The write-back of these objects.
    pub(crate) fn new(
        objects: Arc<ObjectTable>,
        interval: Arc<CommitInterval>,
        reader: Arc<PageReader>,
    ) -> WriteBack {
        WriteBack { objects, interval, reader, gives_up_pages: AtomicBool::new(false) }
    }

    /// Gives up pages of files that can be read neither in the journal nor in their places, or ends
    /// a checkpoint with an error there, as it does by default: a network or a loose plug may make
    /// them readable again.
    pub(crate) fn set_gives_up_pages(&self, gives_up: bool) {
        self.gives_up_pages.store(gives_up, Ordering::Relaxed);
    }

    /// Writes the pages of a checkpoint to the first files of its objects, and makes them and the
    /// names of files durable.
    pub(crate) fn write_objects(&self, begun: &PendingCheckpoint) -> Result<()> {
        let WriteBack { objects, interval, .. } = self;
        let epoch = interval.epoch();
        let mut written = Vec::new();
        for &id in &begun.objects {
            let Some(object) = objects.get(id) else { continue };
            let (layer, file) = {
                let mut object = object.write();
                object.freeze_before(epoch);
                let Some(layer) = object.frozen.clone().filter(|_| !object.is_unlinked) else { continue };
                let file = if layer.pages.is_empty() {
                    objects.file(id)?
                } else {
                    Some(objects.file_or_make(id, &mut object, interval.is_new(id))?)
                };
                (layer, file)
            };
            if let Some(file) = file {
                self.write_object(id, &layer, &*file)?;
                written.push(id);
            }
        }
        objects.sync(&written)?;
        objects.sync_names()
    }

    /// Writes the pages of doubled objects to one of their further files, after they are durable in
    /// the file before it, and makes them durable there.
    pub(crate) fn write_extra(&self, frozen: &[u64], which: ExtraFile) -> Result<()> {
        let objects = &self.objects;
        let mut files = Vec::new();
        for &id in frozen.iter().filter(|id| objects.doubled.has(**id)) {
            let Some(object) = objects.get(id) else { continue };
            let layer = {
                let object = object.read();
                object.frozen.clone().filter(|_| !object.is_unlinked)
            };
            let Some(layer) = layer else { continue };
            let file = objects.extra_or_create(id, which)?;
            self.write_object(id, &layer, &*file)?;
            files.push(file);
        }
        files.iter().try_for_each(|file| file.sync()).map_err(Error::of_sync)?;
        objects.sync_names()
    }

    /// Drops the frozen layers of objects, after their pages are durable in place and the
    /// superblock is written.
    pub(crate) fn drop_frozen(&self, objects: &[u64]) {
        for object in objects.iter().filter_map(|id| self.objects.get(*id)) {
            object.write().frozen = None;
        }
    }

    /// Writes one object's pages to a file. No other thread writes to these places meanwhile, and a
    /// truncated object is written only to the journal.
    fn write_object(&self, id: u64, layer: &JournalLayer, file: &dyn FolderFile) -> Result<()> {
        if let Some(cut) = layer.cut
            && file.len()? > cut * PAGE as u64
        {
            file.set_len(cut * PAGE as u64)?;
        }
        let mut pages = layer.pages.iter().peekable();
        let mut run = Vec::with_capacity(AT_ONCE * PAGE);
        while let Some((&first, entry)) = pages.next() {
            run.clear();
            self.append(id, first, entry, &mut run)?;
            let mut next = first + 1;
            while run.len() < AT_ONCE * PAGE
                && let Some((_, entry)) = pages.next_if(|(page, _)| **page == next)
            {
                self.append(id, next, entry, &mut run)?;
                next += 1;
            }
            file.write_at(first * PAGE as u64, &run)?;
        }
        Ok(())
    }

    /// Reads a page that a checkpoint writes back. If neither the journal nor the object's first
    /// file has it: a file's page is written back as it is, and is an error of that block alone. A
    /// doubled object's page must not be: its second file has the pages of the previous root, which
    /// gives the same state together with the changes since.
    fn append(&self, object: u64, page: u64, entry: &JournalEntry, run: &mut Vec<u8>) -> Result<()> {
        let from = run.len();
        run.resize(from + PAGE, 0);
        let is_doubled = self.objects.doubled.has(object);
        let gives_up = !is_doubled && self.gives_up_pages.load(Ordering::Relaxed);
        let unreadable = if gives_up { UnreadablePage::GivenUp } else { UnreadablePage::Refused };
        let matches = match self.reader.read_listed(object, page, entry, unreadable, &mut run[from..]) {
            Err(e) if e.kind() == Kind::Io => {
                let advice = if is_doubled { copy_out() } else { give_up() };
                return Err(e.context("cannot finish a checkpoint of the vault").hint(advice));
            }
            read => read?,
        };
        if matches || !is_doubled {
            return Ok(());
        }
        Err(Error::new(Kind::Corrupt, "cannot finish a checkpoint of the vault")
            .found(format!(
                "page {} of {}, a page of the namespace that does not verify",
                entry.place.page,
                NAMES[usize::from(entry.place.area)]
            ))
            .expected("the page that was written there")
            .hint(copy_out()))
    }
}

/// The advice if a page of the namespace is lost.
fn copy_out() -> Hint {
    Hint::from("restore the journal files, or copy everything out with ")
        .action(Action("vault::rescue"))
        .text(" and create the vault again; no data is lost as long as nothing writes to the directory")
}

/// The advice if a page of a file cannot be read.
fn give_up() -> Hint {
    Hint::from("if it stays unreadable, ")
        .action(Action("vault::repair"))
        .text(" gives up the blocks that lie there, and saves the rest")
}
