//! What the page says about Ceph, and its history.

use crate::args::Scale;
use crate::cluster::Cluster;
use crate::machine::{self, Machine};
use crate::page::{History, Run};
use crate::rados::{MOST_BYTES, MOST_REQUESTS, Rados};
use crate::requirement::{self, Requirement};
use crate::section::Measured;
use crate::table::{Table, figure};

const HISTORY: History = History {
    heading: "### History on Ceph",
    about: "Processor time, the worst ratio of all sizes",
    head: &[
        "date",
        "lacuna",
        "processor",
        "rounds",
        "xts-random writes / reads to xts",
        "gcm writes / reads to xts",
        "xts writes / reads to librbd LUKS2",
        "reached",
    ],
};
const FIGURES: &str = "![throughput on Ceph by request size](plots/ceph-throughput.svg)\n\n\
![what random IVs cost writes on Ceph](plots/ceph-write-overhead.svg)\n\n\
These are figures 3 and 4 of paper 004, from our runs. Its text gives no figure for single sizes: with random IVs at \
the object's end it loses 1 to 22 percent on writes, \"depending on the IO size\", and at most 3 percent on reads, \
against LUKS2 in librbd; the grey bands are that much less than our `xts`. Its unaligned layout is our \
`interleaved`, its object end our `segment-end`, its OMAP our `kv`; `adaptive` is our own. It measured 27 NVMe disks \
in three machines, with a client of its own, over a network; here one small machine does the client's and the \
cluster's work.\n";

/// The text of its part: tables, plots, method.
pub(crate) fn body(rados: &Rados, run: &Run) -> String {
    let mut parts: Vec<String> = rados.tables().iter().map(Table::markdown).collect();
    parts.push(FIGURES.into());
    parts.push(method(&run.scale));
    parts.push(format!("### Machine on Ceph\n\n{}", facts(&run.machine)));
    parts.join("\n")
}

fn facts(machine: &Machine) -> String {
    let ceph = Cluster::version().unwrap_or_else(|| "unknown".into());
    let wanted = ["processor", "cores", "memory", "kernel", "file system", "lacuna", "qemu-nbd"];
    machine::list(wanted.map(|name| (name, machine.fact(name))).into_iter().chain([("ceph", ceph.as_str())]))
}

fn method(scale: &Scale) -> String {
    format!(
        "### Method on Ceph\n\n\
- The cluster is that of `scripts/ceph-cluster.sh`: one monitor, one manager and three BlueStore OSDs on loopback, on \
the machine of the client, with sparse files on its disk as devices; a pool of three replicas. Client, server and \
OSDs share the processor.\n\
- Every subject has an image of {image} MiB in that pool, filled from end to end before each round. As for [servers](#method-for-servers), one \
client drives all of them, 32 requests in flight; a turn has at most {requests} requests and {bytes} MiB. All caches are as they are by default: the \
write-back cache of lacuna (within 64 MiB) and that of librbd.\n\
- All servers are up at once and idle but for their turn. Each job goes to one after another, in an order that changes with each job, {rounds} \
times: reads from small to large, then writes from large to small, because small writes leave objects in pieces. At \
this size of the image the metadata of `adaptive` fits into its cache, and the filling leaves it there; on a disk \
whose metadata does not, a small random read brings its page with it.\n\
- Processor time is that of the server until a job is durable, the threads of librados among it; that of the OSDs is not in it. The kernel counts for gcm adaptive, xts and librbd alone, after the last round.\n\
- librbd LUKS2: `qemu-img create -f rbd -o encrypt.format=luks2` and `qemu-nbd --cache=writeback` with the driver rbd; \
AES-256-XTS on sectors of 4096 bytes, as our `xts`.\n",
        image = scale.image >> 20,
        requests = MOST_REQUESTS,
        bytes = MOST_BYTES >> 20,
        rounds = scale.rounds,
    )
}

pub(crate) fn history(requirements: &[Requirement], run: &Run, old: &str) -> String {
    let worst =
        |i: usize| figure(requirements.get(i).and_then(Requirement::worst).map(|(_, value)| value), 2);
    let figures = [
        format!("{} / {}", worst(0), worst(1)),
        format!("{} / {}", worst(2), worst(3)),
        format!("{} / {}", worst(4), worst(5)),
        requirement::tally(requirements),
    ];
    HISTORY.and(old, &[&run.cells()[..], &figures].concat())
}
