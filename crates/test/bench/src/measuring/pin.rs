//! Sets the processors that threads may run on.

use lacuna_contracts::{Error, Result};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// Moves all threads of some processes, and this thread, to the first processor that this thread
/// may use. Returns the previous processors of this thread.
pub(crate) fn to_one(processes: impl IntoIterator<Item = u32>) -> Result<CpuSet> {
    let free = sched_getaffinity(None).map_err(|e| failed(&e.into()))?;
    let first = (0..CpuSet::MAX_CPU).find(|cpu| free.is_set(*cpu)).unwrap_or(0);
    let mut one = CpuSet::new();
    one.set(first);
    for process in processes {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).map_err(|e| failed(&e))?;
        for thread in threads {
            let name = thread.map_err(|e| failed(&e))?.file_name();
            if let Some(thread) = name.to_str().and_then(|name| Pid::from_raw(name.parse().ok()?)) {
                match sched_setaffinity(Some(thread), &one) {
                    // A thread that has ended needs no processor.
                    Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                    Err(e) => return Err(failed(&e.into())),
                }
            }
        }
    }
    sched_setaffinity(None, &one).map_err(|e| failed(&e.into()))?;
    Ok(free)
}

/// Restores the processors of this thread.
pub(crate) fn restore(free: &CpuSet) -> Result<()> {
    sched_setaffinity(None, free).map_err(|e| failed(&e.into()))
}

fn failed(e: &std::io::Error) -> Error {
    Error::io("cannot choose a processor", e)
}
