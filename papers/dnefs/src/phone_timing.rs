//! Tables 3 and 4 of DNEFS, without the phone and its battery: throughput and the times of single
//! operations, with a key for each block and without keys. The operations on the chip are charged
//! with the times of a datasheet, so that these figures are the same on every machine; processor
//! times are measured here, with a chip in memory.

use crate::phone_chip::ChipOps;
use crate::phone_week::{BLOCKS, BUDGET, KEY_LEN, PhoneDevice};
use lacuna_bench::pages::table::Table;
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Result, Secret};
use lacuna_crypto::{AesBlock, SivHash};
use lacuna_flash::FlashDisk;
use lacuna_sim::Rng;
use std::hint::black_box;
use std::time::Instant;

/// Blocks of the file that is read (85 MiB in the paper), and of a request.
const FILE: u64 = 85 << 8;
const REQUEST: u64 = 32;
/// Minutes of modelled chip time that the writing lasts. A purge follows, which counts.
const MINUTES: u64 = 15;
/// Memory for all caches while single operations are timed: so little that nearly every read loads
/// its page of keys.
const SMALL_BUDGET: u64 = 1 << 20;

/// Key lengths: with keys, and without.
const KEYS: [u8; 2] = [KEY_LEN, 0];

/// The operations that the paper timed, with its milliseconds for UBIFS and UBIFSec as printed.
const OPERATIONS: [(PhoneOperation, &str, &str, &str); 9] = [
    (PhoneOperation::Mount, "mount", "179", "236"),
    (PhoneOperation::Unmount, "unmount", "0.55", "0.67"),
    (PhoneOperation::Read, "read data node", "2.8", "4.0"),
    (PhoneOperation::Write, "write data node", "1.3", "2.5"),
    (PhoneOperation::Prepare, "prepare cipher", "-", "0.05"),
    (PhoneOperation::ReadKey, "read key", "-", "0.38"),
    (PhoneOperation::Encrypt, "encrypt", "-", "0.91"),
    (PhoneOperation::Decrypt, "decrypt", "-", "0.94"),
    (PhoneOperation::Purge, "purge one block", "-", "21.2"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PhoneOperation {
    Mount,
    Unmount,
    Read,
    Write,
    Prepare,
    ReadKey,
    Encrypt,
    Decrypt,
    Purge,
}

/// One execution of an operation: nanoseconds of the modelled chip, and of the processor here.
#[derive(Clone, Copy, Default)]
struct OperationSample {
    chip_ns: Option<u64>,
    processor_ns: Option<u64>,
}

/// All measurements with one key length.
struct KeyLengthTiming {
    /// MiB per second on the modelled chip.
    read: f64,
    write: f64,
    /// Share of the chip's time that the key storage area took while writing.
    share: f64,
    samples: Vec<(PhoneOperation, Vec<OperationSample>)>,
}

pub(crate) struct Timing([KeyLengthTiming; 2]);

pub(crate) fn measure(work: &Workspace) -> Result<Timing> {
    let timed = |key_len: u8| {
        work.report_progress(&format!("phone: throughput and times, keys of {key_len} bytes"))?;
        let (read, (write, share)) = (read_rate(key_len, work)?, write_rate(key_len, work)?);
        let mut samples = single_operations(key_len, work)?;
        if key_len > 0 {
            samples.extend(ciphers(count(work, 1000)));
        }
        Ok(KeyLengthTiming { read, write, share, samples })
    };
    Ok(Timing([timed(KEYS[0])?, timed(KEYS[1])?]))
}

fn count(work: &Workspace, whole: u64) -> u64 {
    if work.scale.quick { whole / 20 } else { whole }
}

fn blocks(work: &Workspace) -> u32 {
    if work.scale.quick { 160 } else { BLOCKS }
}

fn write_range(disk: &FlashDisk, first: u64, len: u64) -> Result<()> {
    let request = vec![0; REQUEST as usize * BLOCK_SIZE];
    for at in (first..first + len).step_by(REQUEST as usize) {
        let part = REQUEST.min(first + len - at) as usize;
        disk.write(BlockAddr(at), &request[..part * BLOCK_SIZE])?;
    }
    disk.flush()
}

/// MiB per second.
fn rate(blocks: u64, asked: ChipOps) -> f64 {
    blocks as f64 / 256.0 / (asked.nanos() as f64 / 1e9)
}

/// Writes a file, reopens the disk with nothing cached, and measures reading the file from end to
/// end.
fn read_rate(key_len: u8, work: &Workspace) -> Result<f64> {
    let device = PhoneDevice::new(blocks(work), key_len, 1)?;
    let file = FILE.min(device.params.blocks / 2);
    let disk = device.open(BUDGET)?;
    write_range(&disk, 0, file)?;
    disk.close()?;
    drop(disk);
    let device = device.reattach()?;
    let disk = device.open(BUDGET)?;
    let before = device.chip.ops();
    let mut request = vec![0; REQUEST as usize * BLOCK_SIZE];
    for at in (0..file).step_by(REQUEST as usize) {
        let part = REQUEST.min(file - at) as usize;
        disk.read(BlockAddr(at), &mut request[..part * BLOCK_SIZE])?;
    }
    Ok(rate(file, device.chip.ops() - before))
}

/// Fills the disk and then overwrites it repeatedly. Returns MiB per second, and the share of the
/// chip's time that the key storage area took.
fn write_rate(key_len: u8, work: &Workspace) -> Result<(f64, f64)> {
    let device = PhoneDevice::new(blocks(work), key_len, 1)?;
    let disk = device.open(BUDGET)?;
    let file = device.params.blocks;
    write_range(&disk, 0, file)?;
    let end = count(work, MINUTES * 60) * 1_000_000_000;
    let (before, keys_before) = (device.chip.ops(), device.flash.key_area_ops());
    let mut written = 0;
    while (device.chip.ops() - before).nanos() < end {
        let len = (256 * REQUEST).min(file - written % file);
        write_range(&disk, written % file, len)?;
        written += len;
        work.interrupt.check()?;
    }
    if key_len > 0 {
        disk.purge()?;
    }
    let asked = device.chip.ops() - before;
    let for_keys = (device.flash.key_area_ops() - keys_before).nanos();
    Ok((rate(written, asked), for_keys as f64 / asked.nanos() as f64))
}

fn single_operations(key_len: u8, work: &Workspace) -> Result<Vec<(PhoneOperation, Vec<OperationSample>)>> {
    let mut device = PhoneDevice::new(blocks(work), key_len, 1)?;
    let mut rng = Rng::new(7);
    let span = device.params.blocks * 7 / 10;
    let disk = device.open(BUDGET)?;
    write_range(&disk, 0, span)?;
    disk.close()?;
    drop(disk);
    let [mut mounts, mut unmounts, mut reads, mut keys, mut writes, mut purges] = [const { vec![] }; 6];
    for _ in 0..count(work, 40).max(5) {
        device = device.reattach()?;
        let (disk, mount) = sampled(&device, || device.open(SMALL_BUDGET))?;
        mounts.push(mount);
        for _ in 0..25 {
            let mut block = vec![0; BLOCK_SIZE];
            let at = BlockAddr(rng.below(span));
            let before = device.flash.key_area_ops();
            reads.push(sampled(&device, || disk.read(at, &mut block))?.1);
            let key = (device.flash.key_area_ops() - before).nanos();
            keys.extend((key > 0).then_some(OperationSample { chip_ns: Some(key), processor_ns: None }));
        }
        for _ in 0..25 {
            let at = BlockAddr(rng.below(span));
            let write = || disk.write(at, &vec![0; BLOCK_SIZE]).and_then(|()| disk.flush());
            writes.push(sampled(&device, write)?.1);
        }
        if key_len > 0 {
            disk.purge()?;
            let at = BlockAddr(rng.below(span));
            disk.write(at, &vec![0; BLOCK_SIZE])?;
            disk.flush()?;
            let (purged, purge) = sampled(&device, || disk.purge())?;
            purges.extend((purged.key_blocks == 1).then_some(purge));
        }
        unmounts.push(sampled(&device, || disk.close())?.1);
    }
    Ok(vec![
        (PhoneOperation::Mount, mounts),
        (PhoneOperation::Unmount, unmounts),
        (PhoneOperation::Read, reads),
        (PhoneOperation::ReadKey, keys),
        (PhoneOperation::Write, writes),
        (PhoneOperation::Purge, purges),
    ])
}

fn sampled<R>(device: &PhoneDevice, f: impl FnOnce() -> Result<R>) -> Result<(R, OperationSample)> {
    let (before, then) = (device.chip.ops(), Instant::now());
    let done = f()?;
    let here = then.elapsed().as_nanos() as u64;
    Ok((
        done,
        OperationSample { chip_ns: Some((device.chip.ops() - before).nanos()), processor_ns: Some(here) },
    ))
}

/// Times the ciphers of a node, without a chip.
fn ciphers(count: u64) -> Vec<(PhoneOperation, Vec<OperationSample>)> {
    let [mut prepared, mut encrypted, mut decrypted] = [const { vec![] }; 3];
    let (plain, mut node) = (vec![0; BLOCK_SIZE], vec![0; BLOCK_SIZE]);
    let sample = |then: Instant| OperationSample {
        chip_ns: None,
        processor_ns: Some(then.elapsed().as_nanos() as u64),
    };
    let hash = SivHash::derive(&Secret::copy_from(&[7; 32]), "ciphers of a node", b"");
    for number in 0..count {
        let bytes = [number as u8; 32];
        let then = Instant::now();
        let key = AesBlock::from_bytes(&bytes);
        prepared.push(sample(then));
        let then = Instant::now();
        let tag = hash.seal(&key, &[0; 16], &[0; 13], &plain, &mut node);
        encrypted.push(sample(then));
        let then = Instant::now();
        let opened = hash.open_in_place(&key, &[0; 16], &[0; 13], &mut node, &tag);
        decrypted.push(sample(then));
        debug_assert!(opened.is_ok(), "it is the same key");
        black_box(&node);
    }
    vec![
        (PhoneOperation::Prepare, prepared),
        (PhoneOperation::Encrypt, encrypted),
        (PhoneOperation::Decrypt, decrypted),
    ]
}

impl KeyLengthTiming {
    /// The 80th percentile, as in the paper, in milliseconds.
    fn percentile(
        &self,
        operation: PhoneOperation,
        part: impl Fn(&OperationSample) -> Option<u64>,
    ) -> Option<f64> {
        let samples = self.samples.iter().filter(|(of, _)| *of == operation).flat_map(|(_, samples)| samples);
        let mut nanos: Vec<u64> = samples.filter_map(part).collect();
        nanos.sort_unstable();
        nanos.get(nanos.len() * 4 / 5).map(|nanos| *nanos as f64 / 1e6)
    }
}

impl Timing {
    pub(crate) fn tables(&self) -> Vec<Table> {
        vec![self.throughput(), self.times()]
    }

    fn throughput(&self) -> Table {
        let head = ["", "keys off", "128-bit keys", "ratio", "UBIFS", "UBIFSec", "ratio"];
        let mut table = Table::new("Throughput (paper 003, Table 3), MiB/s, by a model of the chip", head);
        let [on, off] = &self.0;
        for (name, off, on, paper) in
            [("read", off.read, on.read, (3.9, 3.0)), ("write", off.write, on.write, (2.1, 1.7))]
        {
            let ours = [format!("{off:.2}"), format!("{on:.2}"), format!("{:.3}", on / off)];
            let paper =
                [format!("{}", paper.0), format!("{:.1}", paper.1), format!("{:.2}", paper.1 / paper.0)];
            table.row(name, ours.into_iter().chain(paper));
        }
        table
    }

    fn times(&self) -> Table {
        let head = [
            "80th percentile, ms",
            "chip by a model, keys off",
            "128-bit keys",
            "more than with keys off",
            "processor here, keys off",
            "128-bit keys",
            "UBIFS",
            "UBIFSec",
        ];
        let mut table = Table::new("Times of single operations (paper 003, Table 4)", head);
        let milliseconds = |ms: Option<f64>| ms.map_or_else(|| "-".into(), |ms| format!("{ms:.4}"));
        let [on, off] = &self.0;
        for (operation, name, ubifs, ubifsec) in OPERATIONS {
            let chip = |of: &KeyLengthTiming| of.percentile(operation, |sample| sample.chip_ns);
            let here = |of: &KeyLengthTiming| of.percentile(operation, |sample| sample.processor_ns);
            let more = chip(on).zip(chip(off)).map(|(on, off)| on - off);
            table.row(
                name,
                [
                    milliseconds(chip(off)),
                    milliseconds(chip(on)),
                    milliseconds(more),
                    milliseconds(here(off)),
                    milliseconds(here(on)),
                    ubifs.to_owned(),
                    ubifsec.to_owned(),
                ],
            );
        }
        table
    }

    /// Share of the modelled writing time that the key storage area took.
    pub(crate) fn share_of_keys(&self) -> f64 {
        self.0[0].share
    }

    /// Ratio of the throughput with keys to the throughput without, of reads and of writes.
    pub(crate) fn ratios(&self) -> [f64; 2] {
        let [on, off] = &self.0;
        [on.read / off.read, on.write / off.write]
    }
}
