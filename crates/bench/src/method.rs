//! How the figures come about, in words for the reader of the report.

use crate::args::Scale;
use crate::fio::SHARED_OPTIONS;

/// What the second plot is held against.
pub(crate) const PAPER: &str = "The grey band, 0.78 to 0.99, is what paper 004 reports for writes with a random IV per \
block kept at the object's end, relative to its own baseline (1 to 22 percent lost, depending on the request \
size; 3 percent at most on reads). It was measured on Ceph, over a network, and is shown for orientation: the \
two baselines are not the same.\n";

pub(crate) fn text(scale: &Scale) -> String {
    let options = SHARED_OPTIONS.map(|option| format!("`{option}`")).join(", ");
    format!(
        "### Method\n\n\
- All servers are driven by `fio` over a unix socket and one connection, with the same options: {options}. \
Buffers hold random bytes made once per job and altered a little before each write. Client and server share the processor, so the client's own cost \
is in every figure and draws ratios towards 1.\n\
- Every disk has {disk} MiB and is filled once before anything is measured, so all writes are overwrites. Each \
server drops what the page cache has of its disk when it opens it; what it holds is read into the cache again before anything is \
measured, and all reads find their data there.\n\
- The page cache is on for every server, and each acknowledges writes before they are on the medium; only a \
flush (or a job with fsync) makes them durable. A job without fsync shows the cost of the server, not the \
speed of the medium.\n\
- Each job goes to one server after another, {repeats} times, the order reversed every other time; one server is \
alive at a time. It is started for the job, does it ({peer} ms beside peers, {cipher} ms beside other ciphers), \
and is ended; then the file system is synced, so that no server pays for another's dirty pages. The addresses of \
random jobs differ between repeats and are the same for all servers.\n\
- A figure is the median of the repeats; in parentheses the distance from the least to the greatest, in \
percent of the median. A ratio is the median of the ratios of the repeats: what is compared ran within seconds, \
on a machine whose speed drifts.\n\
- Peers: `nbdkit file`, the same with its luks filter, and `qemu-nbd` with LUKS (`--cache=writeback \
--aio=threads`); both LUKS images come from `qemu-img create -f luks` with its default cipher, AES-256-XTS on \
sectors of 512 bytes. lacuna runs with its defaults and the cipher named. LUKS and our `xts` hide the \
same things.\n\
- Ciphers alone: one thread, one block of 4096 bytes after another, in memory.\n\
- Memory: `VmHWM` and `VmRSS` of the server process, with the default budget, on a sparse disk of 1 TiB with \
the least key derivation cost that `create` takes (128 KiB, one pass), so that its memory and time do not \
count. Of *levels sparse* the medium is that large, level 0 some two fifths of it, and what is written goes over the \
whole of level 0. The page cache belongs to the system and is not in these figures. Reads have the addresses of the \
writes. Opening is timed from the start of the process to its greeting to the first client.\n",
        disk = scale.disk >> 20,
        repeats = scale.repeats,
        peer = scale.peer_job.as_millis(),
        cipher = scale.cipher_job.as_millis(),
    )
}
