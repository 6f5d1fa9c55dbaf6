//! Keys from keys (HKDF-SHA256) and keys from passphrases (Argon2id).

use crate::available_memory::{AvailableMemory, available_memory};
use crate::ffi::AesBlock;
use crate::gcm::GcmKey;
use crate::random::in_place;
use argon2::{Algorithm, Argon2, Block, Params, Version};
use hkdf::Hkdf;
use lacuna_contracts::{Error, Kind, LeReader, Result, Secret, SecretVec, WipeOnDrop};
use rustix::time::{ClockId, clock_gettime};
use sha2::Sha256;
use std::time::Duration;
use zeroize::Zeroize;

/// The prefix of every label. Changing it makes a new format version.
const DOMAIN: &[u8] = b"lacuna v1 ";

/// The key for the purpose named by `label`, bound to `context`: HKDF-SHA256 of `key` without salt.
/// The info is `lacuna v1 `, the label, a zero byte and the context. Use a label with one length
/// only: keys of one label share their first bytes.
pub fn derive<const N: usize>(key: &Secret<32>, label: &str, context: &[u8]) -> Secret<N> {
    const { assert!(N <= 255 * 32, "HKDF-SHA256 gives at most 8160 bytes") };
    in_place(|out| expand(key, label, context, out))
}

fn expand(key: &Secret<32>, label: &str, context: &[u8], out: &mut [u8]) {
    debug_assert!(!label.contains('\0'), "a zero byte ends the label");
    let info = [DOMAIN, label.as_bytes(), &[0], context];
    Hkdf::<Sha256>::new(None, key.expose())
        .expand_multi_info(&info, out)
        .expect("callers ask for at most 8160 bytes");
}

/// AES-256 under the 32-byte key of [`derive()`], for a short-lived key.
pub fn derive_aes(key: &Secret<32>, label: &str, context: &[u8]) -> AesBlock {
    with_derived(key, label, context, AesBlock::from_bytes)
}

/// AES-256-GCM under the 32-byte key of [`derive()`], for a short-lived key.
pub fn derive_gcm(key: &Secret<32>, label: &str, context: &[u8]) -> Result<GcmKey> {
    with_derived(key, label, context, GcmKey::from_bytes)
}

/// Two ciphers for a short-lived key, made from the 64 bytes of [`derive()`].
pub fn derive_ciphers(key: &Secret<32>, label: &str, context: &[u8]) -> Result<(GcmKey, AesBlock)> {
    with_derived(key, label, context, |bytes: &[u8; 64]| {
        let (halves, _) = bytes.as_chunks::<32>();
        Ok((GcmKey::from_bytes(&halves[0])?, AesBlock::from_bytes(&halves[1])))
    })
}

/// Passes the bytes of [`derive()`] to `set_up`. They are wiped at once, and so need no locked
/// memory: locking costs more than the derivation.
fn with_derived<const N: usize, T>(
    key: &Secret<32>,
    label: &str,
    context: &[u8],
    set_up: impl FnOnce(&[u8; N]) -> T,
) -> T {
    let mut bytes = WipeOnDrop::new([0u8; N]);
    expand(key, label, context, &mut bytes[..]);
    set_up(&bytes)
}

/// The cost of one guess at a passphrase.
///
/// The numbers in a header are untrusted until a passphrase is accepted, so [`Argon2Cost::new`]
/// bounds them, and [`stretch`] checks them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argon2Cost {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes, computed in parallel.
    pub lanes: u32,
}

impl Argon2Cost {
    /// The most memory, in KiB: 4 GiB.
    pub const MAX_MEMORY_KIB: u32 = 4 << 20;
    /// The most passes.
    pub const MAX_PASSES: u32 = 256;
    /// The most lanes.
    pub const MAX_LANES: u32 = 16;
    /// The most memory times passes, in KiB: 64 GiB, about a minute of work.
    pub const MAX_WORK_KIB: u64 = 64 << 20;
    /// The least memory that [`measure_cost`] chooses if the machine has it, in KiB: 256 MiB.
    pub const FLOOR_KIB: u32 = 256 << 10;
    /// The fewest passes that [`measure_cost`] chooses.
    pub const FLOOR_PASSES: u32 = 3;
    /// The default memory for one disk, in KiB: 1 GiB.
    pub const DEFAULT_MEMORY_KIB: u32 = 1 << 20;

    /// A cost within the bounds: memory from 8 KiB per lane to 4 GiB, 1 to 256 passes, 1 to 16
    /// lanes, and memory times passes at most 64 GiB. Errors: [`Kind::Corrupt`], since the numbers
    /// come from a header.
    pub fn new(memory_kib: u32, passes: u32, lanes: u32) -> Result<Self> {
        let cost = Argon2Cost { memory_kib, passes, lanes };
        cost.check()?;
        Ok(cost)
    }

    fn check(&self) -> Result<()> {
        let Argon2Cost { memory_kib, passes, lanes } = *self;
        let good = (1..=Self::MAX_LANES).contains(&lanes)
            && (8 * lanes..=Self::MAX_MEMORY_KIB).contains(&memory_kib)
            && (1..=Self::MAX_PASSES).contains(&passes)
            && u64::from(memory_kib) * u64::from(passes) <= Self::MAX_WORK_KIB;
        if good {
            return Ok(());
        }
        Err(Error::new(Kind::Corrupt, "cannot use a passphrase cost")
            .found(format!("{memory_kib} KiB, {passes} passes, {lanes} lanes"))
            .expected(format!(
                "1 to {} lanes, 8 KiB per lane to {} KiB, 1 to {} passes, and {} KiB times passes at most",
                Self::MAX_LANES,
                Self::MAX_MEMORY_KIB,
                Self::MAX_PASSES,
                Self::MAX_WORK_KIB
            )))
    }

    /// Memory, passes and lanes, little-endian.
    pub fn to_bytes(&self) -> [u8; 12] {
        let mut bytes = [0; 12];
        for (place, number) in bytes.chunks_exact_mut(4).zip([self.memory_kib, self.passes, self.lanes]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Parses [`Argon2Cost::to_bytes`], within the bounds of [`Argon2Cost::new`].
    pub fn from_bytes(bytes: &[u8; 12]) -> Result<Self> {
        let number = |at| LeReader(bytes).u32(at);
        Self::new(number(0), number(4), number(8))
    }
}

/// The key of `passphrase` and `salt` at `cost`: Argon2id, version 0x13.
///
/// Errors: [`Kind::Memory`] if the memory is not available, [`Kind::Corrupt`] if the cost is out of
/// bounds.
pub fn stretch(passphrase: &SecretVec, salt: &[u8; 32], cost: &Argon2Cost) -> Result<Secret<32>> {
    cost.check()?;
    Secret::fill_with(|key| argon2id(passphrase.expose(), salt, cost, key))
}

fn argon2id(passphrase: &[u8], salt: &[u8], cost: &Argon2Cost, key: &mut [u8; 32]) -> Result<()> {
    let refused = |e: argon2::Error| {
        Error::new(Kind::Usage, "cannot stretch a passphrase").found(format!("{e}, with {cost:?}"))
    };
    let params = Params::new(cost.memory_kib, cost.passes, cost.lanes, Some(key.len())).map_err(refused)?;
    let mut memory = reserve(params.block_count(), cost, available_memory().as_ref())?;
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    // A separate pool: its threads end with the work, and a forked process makes its own.
    let lanes = rayon::ThreadPoolBuilder::new()
        .num_threads(cost.lanes as usize)
        .build()
        .map_err(|e| out_of_memory(cost).found(format!("no threads for the lanes: {e}")))?;
    let done =
        lanes.install(|| argon2.hash_password_into_with_memory(passphrase, salt, key, memory.as_mut_slice()));
    memory.iter_mut().for_each(Zeroize::zeroize);
    done.map_err(refused)
}

fn reserve(blocks: usize, cost: &Argon2Cost, there_is: Option<&AvailableMemory>) -> Result<Vec<Block>> {
    if let Some(memory) = there_is.filter(|memory| memory.available_kib < u64::from(cost.memory_kib)) {
        let kib = memory.available_kib;
        return Err(match &memory.limit {
            Some(limit) => out_of_memory(cost)
                .found(format!("{kib} KiB available under a limit of {limit}"))
                .hint("raise the limit, or use the disk outside of it"),
            None => out_of_memory(cost).found(format!("{kib} KiB available")),
        });
    }
    let mut memory = Vec::new();
    memory
        .try_reserve_exact(blocks)
        .map_err(|_| out_of_memory(cost).found("the system refused the allocation"))?;
    memory.resize_with(blocks, Block::default);
    Ok(memory)
}

fn out_of_memory(cost: &Argon2Cost) -> Error {
    Error::new(Kind::Memory, "cannot stretch a passphrase")
        .expected(format!("{} KiB of free memory", cost.memory_kib))
        .hint("free some memory, or use a machine with more")
}

/// Measures the cost that takes about `target` on this machine. Memory is raised first, up to
/// `max_memory_kib` and a quarter of the memory of the machine or control group; passes rise above
/// the floor only after that. The cost is at least [`Argon2Cost::FLOOR_PASSES`], and at least
/// [`Argon2Cost::FLOOR_KIB`] within these two limits of memory. Processor time is measured, so that
/// other work on the machine does not lower the cost.
pub fn measure_cost(max_memory_kib: u32, target: Duration) -> Argon2Cost {
    let lanes = std::thread::available_parallelism().map_or(1, |n| n.get().min(4)) as u32;
    let quarter = available_memory().map_or(u64::MAX, |memory| memory.total_kib / 4);
    let most = u64::from(max_memory_kib.min(Argon2Cost::MAX_MEMORY_KIB))
        .min(quarter)
        .max(u64::from(8 * lanes)) as u32;
    find_cost(most, lanes, target, |cost| {
        let start = processor_time();
        let passphrase = SecretVec::new(b"measuring".to_vec());
        stretch(&passphrase, &[0; 32], cost).ok().map(|_| processor_time().saturating_sub(start) / lanes)
    })
}

/// The processor time used by all threads of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The cost that comes nearest to `target` according to `time`, which returns `None` if memory ran
/// out.
fn find_cost(
    most_kib: u32,
    lanes: u32,
    target: Duration,
    mut time: impl FnMut(&Argon2Cost) -> Option<Duration>,
) -> Argon2Cost {
    let mut most = most_kib;
    let floor = |most: u32| most.min(Argon2Cost::FLOOR_KIB);
    let least_passes = f64::from(Argon2Cost::FLOOR_PASSES);
    let mut cost = Argon2Cost { memory_kib: floor(most), passes: Argon2Cost::FLOOR_PASSES, lanes };
    // Later rounds correct the first, which is too small to show the price of page faults.
    for _ in 0..3 {
        let Some(spent) = time(&cost) else {
            most = (cost.memory_kib / 2).max(8 * lanes);
            cost = Argon2Cost { memory_kib: most, ..cost };
            continue;
        };
        let work = f64::from(cost.memory_kib) * f64::from(cost.passes);
        let wanted = work * target.as_secs_f64() / spent.as_secs_f64().max(1e-6);
        let memory_kib = (wanted / least_passes).clamp(f64::from(floor(most)), f64::from(most)) as u32;
        let most_passes =
            (Argon2Cost::MAX_WORK_KIB / u64::from(memory_kib)).min(u64::from(Argon2Cost::MAX_PASSES)) as f64;
        let passes = (wanted / f64::from(memory_kib)).round().clamp(least_passes, most_passes) as u32;
        let settled = memory_kib.abs_diff(cost.memory_kib) < cost.memory_kib / 4 && passes == cost.passes;
        cost = Argon2Cost { memory_kib, passes, lanes };
        if settled {
            break;
        }
    }
    cost
}

#[cfg(test)]
mod tests {
    use super::*;
    use data_encoding::HEXLOWER;

    const MIB: u32 = 1 << 10;

    /// Vectors from the test suite of the reference implementation (phc-winner-argon2, Argon2id,
    /// version 0x13).
    #[test]
    fn argon2id_gives_the_reference_hashes() {
        let vectors = [
            ((256, 2, 1), "9dfeb910e80bad0311fee20f9c0e2b12c17987b4cac90c2ef54d5b3021c68bfe"),
            ((256, 2, 2), "6d093c501fd5999645e0ea3bf620d7b8be7fd2db59c20d9fff9539da2bf57037"),
        ];
        for ((memory_kib, passes, lanes), expected) in vectors {
            let cost = Argon2Cost { memory_kib, passes, lanes };
            let mut key = [0; 32];
            argon2id(b"password", b"somesalt", &cost, &mut key).unwrap();
            assert_eq!(HEXLOWER.encode(&key), expected);
        }
    }

    #[test]
    fn unavailable_memory_is_an_error() {
        let cost = Argon2Cost::new(1024 * MIB, 1, 1).unwrap();
        let found = |result: Result<Vec<Block>>| match result {
            Ok(_) => panic!("the memory was granted"),
            Err(e) => e.kind(),
        };
        let little = AvailableMemory { total_kib: 2000, available_kib: 1000, limit: None };
        assert_eq!(found(reserve(1 << 20, &cost, Some(&little))), Kind::Memory);
        let limited = AvailableMemory { limit: Some("2000 KiB, of the control group /g".into()), ..little };
        let words = reserve(1 << 20, &cost, Some(&limited)).err().unwrap().to_string();
        assert!(
            words.contains("1000 KiB available under a limit of 2000 KiB, of the control group /g"),
            "{words}"
        );
        assert_eq!(found(reserve(1 << 50, &cost, None)), Kind::Memory);
    }

    /// The choice of `find_cost` on a machine with `have_kib` of memory that processes
    /// `kib_per_second`.
    fn chosen(most_kib: u32, kib_per_second: u32, have_kib: u32) -> Argon2Cost {
        find_cost(most_kib, 2, Duration::from_secs(1), |cost| {
            let work = f64::from(cost.memory_kib) * f64::from(cost.passes);
            let time = Duration::from_secs_f64(work / f64::from(kib_per_second));
            (cost.memory_kib <= have_kib).then_some(time)
        })
    }

    #[test]
    fn memory_is_spent_before_passes() {
        let all = u32::MAX;
        let cost = |memory_kib, passes| Argon2Cost { memory_kib, passes, lanes: 2 };
        assert_eq!(chosen(1024 * MIB, 3 * 1024 * MIB, all), cost(1024 * MIB, 3));
        assert_eq!(chosen(256 * MIB, 1024 * MIB, all), cost(256 * MIB, 4));
        assert_eq!(chosen(1024 * MIB, 1500 * MIB, all).passes, 3);
        assert!(chosen(1024 * MIB, 1500 * MIB, all).memory_kib.abs_diff(500 * MIB) < MIB);
        // A slow machine still gets the floor; one with little memory gets less.
        assert_eq!(chosen(1024 * MIB, 10 * MIB, all), cost(256 * MIB, 3));
        assert_eq!(chosen(64 * MIB, 10 * MIB, all), cost(64 * MIB, 3));
        assert!(chosen(1024 * MIB, 1024 * MIB, 600 * MIB).memory_kib <= 600 * MIB);
        assert_eq!(chosen(16, 1024 * MIB, all), cost(16, Argon2Cost::MAX_PASSES));
    }

    #[test]
    fn a_measured_cost_is_within_bounds_and_works() {
        let cost = measure_cost(1024, Duration::from_millis(1));
        let cost = Argon2Cost::new(cost.memory_kib, cost.passes, cost.lanes).unwrap();
        assert!(cost.memory_kib <= 1024);
        stretch(&SecretVec::new(b"p".to_vec()), &[0; 32], &cost).unwrap();
    }
}
