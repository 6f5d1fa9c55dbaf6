//! The sweep over conversions of files to another integrity scheme. After one failed call a
//! conversion fails or is complete, and a second attempt completes it. The next opening finds
//! everything that was synced, in files of the old form, of the new one or half converted, and a
//! later attempt completes each conversion. Only calls after the opening fail here.

use crate::vault_harness::VaultHarness;
use crate::vault_harness::dump::{assert_same, of_model, of_vault};
use crate::vault_harness::model::{FsModel, Node};
use crate::vault_harness::ops::StepResult;
use crate::{RunEnd, RunOutcome, SEED, SHARE, SweepRun, may_stop, world_of};
use lacuna_integrity::Choice;
use lacuna_sim::{FolderImage, FolderOp, Rng, sweep_cases};
use lacuna_vault::store::{Anchor, AnchorState};
use lacuna_vault::{BLOCK, FileKind, FsResult, INTEGRITY_XATTR, NewNode, ROOT, SetXattrMode, Vault};
use std::ops::Range;

/// The name of each file, the scheme of its blocks, and the scheme that it is converted to. The way
/// from `rand` to `comp` leads over `mt`.
const CONVERSIONS: [(&[u8], &str, &str); 4] =
    [(b"a", "mt", "comp"), (b"b", "mt", "rand"), (b"c", "rand", "comp"), (b"d", "comp", "mt")];
/// The blocks of a file, and of a hole in it. A step converts 32 or 64 blocks at once.
const BLOCKS: usize = 70;
const HOLE: Range<usize> = 20..24;
/// The place of a write into a half converted file, in bytes, and its length.
const WRITTEN_AT: usize = 10 * BLOCK + 100;
const WRITTEN: usize = 5000;

/// A closed vault with files that wait for their conversion.
struct UnconvertedStart {
    image: FolderImage,
    anchor: Option<AnchorState>,
    model: FsModel,
    /// The inode numbers of the files, and the schemes that they are converted to.
    files: [(u64, &'static str); CONVERSIONS.len()],
}

impl UnconvertedStart {
    fn new() -> UnconvertedStart {
        let mut world = VaultHarness::new(SEED);
        let vault = world.create(Choice::Auto);
        let (mut model, mut rng) = (FsModel::default(), Rng::new(SEED));
        let files = CONVERSIONS.map(|(name, from, to)| {
            let ino = vault.create_node(ROOT, name, NewNode::File, 0o644, 0, 0).unwrap().ino;
            model.make(ino, ROOT, name, Node::new(FileKind::File, 0o644, ROOT));
            choose(&vault, &mut model, ino, from);
            let bytes = content(&mut rng);
            for part in [0..HOLE.start, HOLE.end..BLOCKS] {
                let (at, end) = (part.start * BLOCK, part.end * BLOCK);
                write(&vault, &mut model, ino, at, &bytes[at..end]).unwrap();
            }
            choose(&vault, &mut model, ino, to);
            assert_eq!(scheme(&vault, ino), from);
            (ino, to)
        });
        vault.close().unwrap();
        drop(vault);
        let anchor = world.memory.load().unwrap();
        UnconvertedStart { image: world.folder.snapshot(), anchor, model, files }
    }
}

/// The content of a file: text, with random bytes in every third block.
fn content(rng: &mut Rng) -> Vec<u8> {
    let text = b"lines of text that compress well, and look like nothing random\n";
    let mut bytes: Vec<u8> = text.iter().copied().cycle().take(BLOCKS * BLOCK).collect();
    bytes.chunks_mut(3 * BLOCK).for_each(|blocks| rng.fill(&mut blocks[..BLOCK]));
    bytes
}

/// Sets the choice of scheme of a file.
fn choose(vault: &Vault, model: &mut FsModel, ino: u64, choice: &str) {
    vault.set_xattr(ino, INTEGRITY_XATTR, choice.as_bytes(), SetXattrMode::Any).unwrap();
    model.set_choice(ino, choice.as_bytes()).unwrap();
}

/// Writes to a file.
fn write(vault: &Vault, model: &mut FsModel, ino: u64, at: usize, bytes: &[u8]) -> FsResult<()> {
    assert_eq!(vault.write(ino, at as u64, bytes)?, bytes.len());
    model.write(ino, at as u64, bytes).unwrap();
    Ok(())
}

/// The scheme of a file; during a conversion, the target scheme.
fn scheme(vault: &Vault, ino: u64) -> &'static str {
    vault.file_stat(ino).unwrap().scheme.name()
}

/// The outcome of a run.
struct ConversionOutcome {
    end: RunEnd,
    /// The number of calls, and the call that failed.
    calls: u64,
    hit: Option<FolderOp>,
    /// Whether a conversion failed, and a second attempt in the same vault completed it.
    is_repeated: bool,
}

/// Converts all files with an error at call `nth` after the opening.
fn run(start: &UnconvertedStart, nth: u64, errno: i32) -> ConversionOutcome {
    let mut world = world_of(SEED + 1, &start.image, start.anchor.clone());
    let vault = world.open().unwrap();
    let mut run = SweepRun::new(world, start.model.clone(), nth, errno);
    let mut is_repeated = false;
    for (ino, _) in start.files {
        let Err(e) = vault.convert(ino) else { continue };
        let (hit, context) = (run.hit(), run.context());
        assert!(hit.is_some(), "a conversion fails by itself: {e}");
        run.note_failure(e.errno());
        if let Err(e) = convert_again(&vault, &mut run, ino) {
            assert!(may_stop(hit, errno), "{context}: after one failed call every request fails: {e}");
            break;
        }
        is_repeated = true;
    }
    let RunOutcome { end, calls, hit, context, left } = run.finish(vault);
    let cuts = left.len();
    for (nth, left) in left.into_iter().enumerate() {
        let (vault, model) = left.assert_whole(&context);
        // Unless the vault has stopped, the last two states are those after the last sync.
        let is_synced = end != RunEnd::Stopped && nth + 2 >= cuts;
        convert_afterwards(&vault, &model, start, is_synced, &context);
    }
    ConversionOutcome { end, calls, hit, is_repeated }
}

/// Writes into a file after its conversion failed, syncs it half converted, and converts it in a
/// second attempt.
fn convert_again(vault: &Vault, run: &mut SweepRun, ino: u64) -> FsResult<()> {
    write(vault, &mut run.states.model, ino, WRITTEN_AT, &[0x5a; WRITTEN])?;
    run.states.note_step(&StepResult::Same);
    vault.sync()?;
    run.states.note_step(&StepResult::Durable);
    run.cut();
    vault.convert(ino)
}

/// Converts all files after the next opening, and checks that nothing else changes. With
/// `is_synced` they must be of their new form before.
fn convert_afterwards(
    vault: &Vault,
    model: &FsModel,
    start: &UnconvertedStart,
    is_synced: bool,
    context: &str,
) {
    for (ino, wanted) in start.files {
        if is_synced {
            assert_eq!(scheme(vault, ino), wanted, "{context}: a synced conversion is lost");
        }
        vault.convert(ino).unwrap_or_else(|e| panic!("{context}, afterwards: {e}"));
        assert_eq!(scheme(vault, ino), wanted, "{context}, afterwards");
    }
    assert_same(&of_vault(vault), &of_model(model), context);
    let report = vault.check(&mut |_, _| ()).unwrap();
    assert!(report.bad.is_empty(), "{context}, afterwards: {:?}", report.bad);
    vault.close().unwrap_or_else(|e| panic!("{context}, closing afterwards: {e}"));
}

#[test]
fn an_error_of_any_call_of_a_conversion_loses_nothing() {
    let start = UnconvertedStart::new();
    let calls = run(&start, 0, 0).calls;
    assert!((100..2000).contains(&calls), "{calls} calls");
    let share = std::env::var_os("LACUNA_SWEEP").is_none().then_some(SHARE);
    let (mut ends, mut repeated) = ([0u64; 3], 0u64);
    for (nth, errno) in sweep_cases(calls, share) {
        let ConversionOutcome { end, hit, is_repeated, .. } = run(&start, nth, errno);
        assert!(hit.is_some(), "call {nth} was never made");
        ends[end as usize] += 1;
        repeated += u64::from(is_repeated);
    }
    let ([unnoticed, failed, stopped], runs) = (ends, ends.iter().sum::<u64>());
    println!(
        "{calls} calls of conversions, {runs} runs: {unnoticed} unnoticed, {failed} failed, {stopped} stopped; \
         {repeated} second attempts"
    );
    assert!(failed > runs / 40 && stopped > runs / 40 && repeated > 0, "{ends:?}, {repeated}");
}
