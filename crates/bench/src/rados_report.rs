//! What the report says about Ceph: a part of `benchmarks.md` of its own, because these runs take long and are
//! often made alone.

use crate::args::Scale;
use crate::cluster::Cluster;
use crate::machine::{self, Machine};
use crate::page::{History, Run};
use crate::rados::Rados;
use crate::requirement::{self, Requirement};
use crate::table::{Table, figure};

const HISTORY: History = History {
    heading: "### History on Ceph",
    about: "The worst ratio of all sizes",
    head: &[
        "date",
        "lacuna",
        "processor",
        "repeats",
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

/// The part, to stand in the place of an old one.
pub(crate) fn part(rados: &Rados, run: &Run, old: &str) -> String {
    let requirements = rados.requirements();
    let mut parts = requirement::opening(&format!("On Ceph: run of {}", run.date), &requirements);
    parts.extend(rados.tables().iter().map(Table::markdown));
    parts.extend(rados.skipped.iter().map(|why| format!("{why}\n")));
    parts.push(FIGURES.into());
    parts.push(method(&run.scale));
    parts.push(format!("### Machine on Ceph\n\n{}", facts(&run.machine)));
    parts.push(history(&requirements, run, old));
    parts.join("\n")
}

fn facts(machine: &Machine) -> String {
    let ceph = Cluster::version().unwrap_or_else(|| "unknown".into());
    let wanted = ["processor", "cores", "memory", "kernel", "file system", "lacuna", "fio", "qemu-nbd"];
    machine::list(wanted.map(|name| (name, machine.fact(name))).into_iter().chain([("ceph", ceph.as_str())]))
}

fn method(scale: &Scale) -> String {
    format!(
        "### Method on Ceph\n\n\
- The cluster is that of `scripts/ceph-cluster.sh`: one monitor, one manager and three BlueStore OSDs on loopback, on \
the machine of the client, with sparse files on its disk as devices; a pool of three replicas. Client, server and \
OSDs share the processor.\n\
- Every subject has an image of {image} MiB in that pool, filled from end to end before each repeat. The addresses of \
random requests differ between repeats and are the same for all.\n\
- All servers are driven by `fio` with its NBD engine over a unix socket and one connection, 32 requests under way. \
A job takes {job} ms; one that writes ends with a flush, whose time counts, so that the speed is that at which data \
becomes durable on three OSDs and no cache flatters it. All caches are as they are by default: the write-back cache \
of lacuna (within 64 MiB) and that of librbd.\n\
- All servers are up at once. Each job goes to one after another, in an order that changes with each job, {repeats} \
times: reads from small to large, then writes from large to small, because small writes leave objects in pieces. At \
this size of the image the metadata of `adaptive` fits into its cache, and the filling leaves it there; on a disk \
whose metadata does not, a small random read brings its page with it.\n\
- A figure is the median of the repeats; in parentheses the distance from the least to the greatest, in percent of \
the median. A ratio is the median of the ratios of the repeats: what is compared ran within seconds.\n\
- librbd LUKS2: `qemu-img create -f rbd -o encrypt.format=luks2` and `qemu-nbd --cache=writeback` with the driver rbd; \
AES-256-XTS on sectors of 4096 bytes, as our `xts`.\n",
        image = scale.image >> 20,
        job = scale.image_job.as_millis(),
        repeats = scale.repeats,
    )
}

fn history(requirements: &[Requirement], run: &Run, old: &str) -> String {
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
