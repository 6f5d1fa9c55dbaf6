//! Sessions that open fewer levels than exist, or write nothing: blocks that a level loses while it
//! is not open are lost with an error and never read in an older version, level 0 stays whole, and
//! reading changes nothing.

mod fixture;

use fixture::{
    DiskModel, DiskWorkload, counter, create, fill, flush_hidden, models, open, open_with, options, params,
    stamp_of,
};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{LevelDisk, Levels, OpenOptions, Params};
use lacuna_sim::{OpKind, Recorder, Rng};
use std::sync::Arc;

struct LevelSession<'a> {
    medium: &'a Arc<dyn Medium>,
    params: &'a Params,
    rng: Rng,
    next_stamp: u64,
    models: Vec<DiskModel>,
}

impl<'a> LevelSession<'a> {
    fn new(medium: &'a Arc<dyn Medium>, params: &'a Params) -> LevelSession<'a> {
        create(medium, params, 2, 1).unwrap();
        let models = models(&open(medium, params, 2, 1).unwrap());
        LevelSession { medium, params, rng: Rng::new(1), next_stamp: 0, models }
    }

    fn write(&mut self, level: &LevelDisk, count: u64) {
        let model = &mut self.models[usize::from(level.level())];
        DiskWorkload { disk: level, model, rng: &mut self.rng, next_stamp: &mut self.next_stamp }
            .write(count)
            .unwrap();
    }

    /// A session with both levels open and `writes` writes to each.
    fn with_both(&mut self, writes: usize) {
        let disk = open(self.medium, self.params, 2, self.rng.next_u64() >> 8).unwrap();
        let levels = disk.levels();
        for _ in 0..writes {
            levels.iter().for_each(|level| self.write(level, 2));
        }
        flush_hidden(&disk, &levels[1]).unwrap();
        disk.close().unwrap();
    }

    /// A session with level 0 alone, until `batches` batches are written.
    fn with_level_0(&mut self, batches: u64) {
        let disk = open(self.medium, self.params, 1, self.rng.next_u64() >> 8).unwrap();
        let level = &disk.levels()[0];
        let first = counter(level, "last_batch");
        while counter(level, "last_batch") < first + batches {
            self.write(level, 1);
        }
        disk.close().unwrap();
    }

    /// Checks that level 0 is whole, and that every block of level 1 is its latest version or an
    /// error. Returns the number of right blocks that are not zeros, and the number of errors.
    fn check(&self) -> [u64; 2] {
        let disk = open(self.medium, self.params, 2, 5).unwrap();
        let levels = disk.levels();
        self.models[0].check_latest(&*levels[0]);
        let mut found = [0; 2];
        for block in 0..self.models[1].blocks() {
            let mut data = vec![0; BLOCK_SIZE];
            let latest = self.models[1].latest(block);
            match levels[1].read(BlockAddr(block), &mut data) {
                Ok(()) => {
                    assert_eq!(stamp_of(block, &data), Some(latest), "block {block}");
                    found[0] += u64::from(latest != 0);
                }
                Err(e) => {
                    assert_eq!(e.kind(), Kind::Corrupt, "{e}");
                    assert!(e.to_string().contains(&format!("block {block}")), "{e}");
                    found[1] += 1;
                }
            }
        }
        found
    }
}

fn new_medium(params: &Params) -> (Arc<MemoryMedium>, Arc<dyn Medium>) {
    let memory = Arc::new(MemoryMedium::new(params.end()));
    (memory.clone(), memory)
}

#[test]
fn an_unopened_level_reports_its_overwritten_blocks() {
    let params = params();
    let (_, medium) = new_medium(&params);
    let mut session = LevelSession::new(&medium, &params);
    session.with_both(100);
    assert_eq!(session.check()[1], 0);
    session.with_level_0(4);
    let [right, lost] = session.check();
    assert!(lost > 0 && right > lost, "{right} right, {lost} lost");
    // Rewritten blocks are right again, and all other blocks stay as they are.
    session.with_both(100);
    let [right_again, lost_again] = session.check();
    assert!(lost_again <= lost && right_again >= right, "{right_again} right, {lost_again} lost");
}

#[test]
fn a_level_unopened_for_a_whole_journal_is_refused_then_empty() {
    let params = params();
    let (memory, medium) = new_medium(&params);
    let mut session = LevelSession::new(&medium, &params);
    session.with_both(100);
    let (mut refused, mut empty) = (0, 0);
    for _ in 0..params.journal + 8 {
        session.with_level_0(1);
        // Opening it changes the medium as well: try it on a copy.
        let copy: Arc<dyn Medium> = Arc::new(MemoryMedium::from_bytes(memory.snapshot()));
        match open(&copy, &params, 2, 3) {
            Err(e) => {
                assert_eq!(e.kind(), Kind::Corrupt, "{e}");
                assert!(e.to_string().contains("level 1") && empty == 0, "{e}");
                refused += 1;
            }
            Ok(disk) => {
                let hidden = &disk.levels()[1];
                let extents = hidden.extents(BlockAddr(0), hidden.blocks()).unwrap();
                if extents.iter().any(|extent| extent.written) {
                    assert_eq!(refused, 0, "it was too late before");
                    continue;
                }
                empty += 1;
                let mut data = vec![0; BLOCK_SIZE];
                fill(3, 1 << 40, &mut data);
                hidden.write(BlockAddr(3), &data).unwrap();
                flush_hidden(&disk, hidden).unwrap();
                let mut back = vec![0; BLOCK_SIZE];
                hidden.read(BlockAddr(3), &mut back).unwrap();
                assert!(back == data);
            }
        }
        let alone = open(&medium, &params, 1, 3).unwrap();
        session.models[0].check_latest(&*alone.levels()[0]);
    }
    assert!(refused > 0 && empty > 0, "{refused} times refused, {empty} times empty");
}

/// A level that was opened in time is not lost afterwards: older changes of its map are written out
/// soon enough.
#[test]
fn a_level_opened_in_time_survives() {
    let params = params();
    for absent in 1..u64::from(params.journal) {
        let (_, medium) = new_medium(&params);
        let mut session = LevelSession::new(&medium, &params);
        session.with_both(20);
        session.with_level_0(absent);
        let Ok(disk) = open(&medium, &params, 2, 3) else { return };
        drop(disk);
        for _ in 0..6 {
            session.with_both(1);
        }
        session.check();
    }
}

fn open_read_only(
    medium: &Arc<dyn Medium>,
    params: &Params,
    levels: usize,
) -> Arc<lacuna_oblivious::ObliviousDisk> {
    let options = OpenOptions { read_only: true, ..options(8, 9) };
    open_with(medium, params, levels, options).unwrap()
}

/// Reads everything, flushes and closes. Returns the number of changes to the medium.
fn count_read_only_changes(bytes: Vec<u8>, params: &Params, models: &[DiskModel]) -> usize {
    let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::from_bytes(bytes))));
    let medium: Arc<dyn Medium> = recorder.clone();
    for levels in 1..=2 {
        let disk = open_read_only(&medium, params, levels);
        for (level, model) in disk.levels().iter().zip(models) {
            model.check_latest(&**level);
            level.flush().unwrap();
            level.close().unwrap();
        }
    }
    recorder.take().iter().filter(|record| record.kind != OpKind::Read).count()
}

#[test]
fn a_read_only_session_writes_nothing() {
    for hiding in [lacuna_oblivious::HidingMode::Opportunistic, lacuna_oblivious::HidingMode::Plausible] {
        let params = fixture::params_of(hiding);
        let (memory, medium) = new_medium(&params);
        let mut session = LevelSession::new(&medium, &params);
        session.with_both(50);
        assert_eq!(count_read_only_changes(memory.snapshot(), &params, &session.models), 0);
        // As after a power cut, with batches in the ring: after each batch of a whole ring and
        // more.
        let disk = open(&medium, &params, 2, 77).unwrap();
        let levels = disk.levels();
        for _ in 0..30 {
            levels.iter().for_each(|level| session.write(level, 2));
            flush_hidden(&disk, &levels[1]).unwrap();
            levels[0].flush().unwrap();
            assert_eq!(count_read_only_changes(memory.snapshot(), &params, &session.models), 0);
        }
    }
}
