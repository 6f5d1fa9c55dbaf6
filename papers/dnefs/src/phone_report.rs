//! The section on DNEFS: a week of the simulated phone (Table 2), throughput and times (Tables 3
//! and 4), and the size of nodes (Table 5).

use crate::phone_chip::{BYTE_NS, ERASE_US, PROGRAM_US, READ_US};
use crate::phone_node_size::{self, NodeSizeCosts};
use crate::phone_plot;
use crate::phone_timing::{self, Timing};
use crate::phone_use as life;
use crate::phone_wear::{self, WearResults};
use crate::phone_week::{BUDGET, FULL, FULLER, PAGE, PAGES, Purging};
use lacuna_bench::measuring::section_results::SectionResults;
use lacuna_bench::pages::page::{HistoryTable, RunInfo};
use lacuna_bench::pages::requirement::{self, Requirement};
use lacuna_bench::pages::table::{Table, figure};
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;
use std::path::Path;

const HISTORY: HistoryTable = HistoryTable {
    heading: "### History of the phone",
    about: "Wear, and throughput on the modelled chip",
    head: &[
        "date",
        "lacuna",
        "erasures per hour: keys off / 15 minutes / 1 minute",
        "extra at 15 minutes",
        "read / write to keys off",
        "reached",
    ],
};

/// The results of the section.
struct PhoneResults {
    wear: WearResults,
    timing: Timing,
    node_size: NodeSizeCosts,
}

pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    Ok(Box::new(PhoneResults {
        wear: phone_wear::measure(work)?,
        timing: phone_timing::measure(work)?,
        node_size: phone_node_size::measure(work)?,
    }))
}

impl SectionResults for PhoneResults {
    fn tables(&self) -> Vec<Table> {
        let mut tables = self.wear.tables();
        tables.extend(self.timing.tables());
        tables.push(self.node_size.table());
        tables
    }

    fn requirements(&self) -> Vec<Requirement> {
        vec![self.wear.requirement()]
    }

    fn plot(&self, plots: &Path) -> Result<()> {
        phone_plot::draw(&self.wear, plots)
    }

    fn body(&self, _run: &RunInfo) -> String {
        let mut parts: Vec<String> = self.wear.tables().iter().map(Table::markdown).collect();
        parts.extend([
            "![erasures per hour by the purge period](plots/phone-erasures.svg)\n".into(),
            "![erasures of each block in the week](plots/phone-wear.svg)\n".into(),
        ]);
        parts.extend(self.timing.tables().iter().map(Table::markdown));
        parts.extend([self.node_size.table().markdown(), self.method()]);
        parts.join("\n")
    }

    fn history(&self, run: &RunInfo, requirements: &[Requirement], old: &str) -> Option<String> {
        let erasures = |purging| {
            let row = phone_wear::ROWS.iter().position(|row| *row == purging);
            figure(row.map(|row| self.wear.erasures(row).mean), 1)
        };
        let row = phone_wear::ROWS.iter().position(|row| *row == Purging::Every(15)).unwrap_or(0);
        let [read, write] = self.timing.ratios();
        let figures = [
            [Purging::KeysOff, Purging::Every(15), Purging::Every(1)].map(erasures).join(" / "),
            format!("{:+.0}%", 100.0 * self.wear.extra(row)),
            format!("{read:.3} / {write:.3}"),
            requirement::tally(requirements),
        ];
        Some(HISTORY.with_row(old, &[&run.short_cells()[..], &figures].concat()))
    }
}

impl PhoneResults {
    fn method(&self) -> String {
        format!(
            "### Method for the phone\n\n\
- The disk of `crates/formats/flash` runs on a simulated chip in memory, divided like the data partition of \
the paper's phone: {blocks} erase blocks of {PAGES} pages of {PAGE} bytes. Keys have 128 bits, as in the \
paper. *keys off* is a disk of the same length with one key for all blocks; it forgets nothing. All caches \
together have {cache} MiB.\n\
- The paper replayed a log of the writes of a Nexus One. That log is not published, so a generator takes its \
place; the same seed gives the same life. Its rates are means of a day: in the first 8 hours of a day all \
activity is at 30 % of its mean, then at 135 %. A day has {transactions} transactions on 24 databases (a \
journal of 2 or 3 blocks is written and synced, 2 or 3 blocks of a database of 16 to 256 are overwritten and \
synced, the journal is deleted). It has {caches} cache files, mostly of one block: {brief} % are deleted \
within {write_back} s, the rest after half a minute to three days, with each doubling of that time equally \
likely. It has {lines} lines appended to logs, 4 to a block; {photos} photos of 192 to 512 blocks; and \
{updates} update of a program of 128 to 512 blocks; photos and updates are synced. Photos are deleted to \
keep the disk {full} % full. Then the share of data that never changes makes the wear without secure \
deletion as unequal as the paper's. The requirement is measured at {FULLER} % as well. Data without a sync \
is written back every {write_back} s, with the metadata of the files that were made or deleted (32 to a \
block); data that is deleted before that is never written. Then the deleted blocks are discarded. The volume \
is chosen to match the paper. The paper deletes 437 to 866 nodes an hour (the product of two columns of its \
Table 2), erases 21.3 blocks an hour without secure deletion, and speaks of 10,000 small files a day \
(section 6).\n\
- As in the paper, the phone is used until garbage collection begins. The week after that day counts, in \
four lives with seeds 1 to 4; ± is the interval of 95 % by Student's t. Time is virtual. The simulation \
purges at the end of each period if anything is recoverable. At the end every block is read and compared \
with the last data written to it.\n\
- *Wear inequality* is the Hoover index of the erasures in the week; a week has few erasures for each block. \
Lifetime is the number of erase blocks times their endurance, divided by the rate of erasures. The paper \
says that it assumes 10,000 erasures a block, but its figures follow from 100,000. So both are here.\n\
- Modelled times are those of the chip alone, one operation after another, with values that are typical of a \
chip with such pages: {READ_US} µs to read a page, {PROGRAM_US} µs to program one, {ERASE_US} µs to erase a \
block, {BYTE_NS} ns for each byte moved. A purge also erases the blocks that were superseded before it; \
without the purge they would be erased later. The cipher is not charged, because the paper found that it \
costs no throughput. The table of single operations and the section on flash have the processor times here.\n\
- Throughput: a file of 85 MiB is read after the disk was opened anew; a full disk is overwritten, starting \
at its first block, for 15 minutes of the chip's time, with a purge at the end. The key storage area takes \
{share:.1} % of the chip's time while writing. Single operations are random ones on a disk that was opened \
anew, with 1 MiB for all caches, so that nearly every read needs its page of keys. A write is flushed, and a \
mount begins when the erase blocks are found. Battery and power cannot be redone here, without a phone. The \
paper found the same power with and without keys while reading, so the data read on one charge falls with \
the throughput.\n\
- Size of a data node: the paper computes its table. The last two copy costs that it prints do not follow \
from its definition, which gives 7.98 and 63.98. *Here* is, for the KSA, the space that the layout takes for \
keys, salts and a sixteenth more keys than blocks. For the copy cost it is the number of pages programmed \
for a changed block, minus one; headers of groups, index and checkpoints are included.\n",
            blocks = self.wear.blocks(),
            cache = BUDGET >> 20,
            transactions = life::TRANSACTIONS,
            caches = life::CACHE_FILES,
            brief = life::SHORT_LIVED_PERCENT,
            write_back = life::WRITE_BACK,
            lines = life::LOG_LINES,
            photos = life::PHOTOS,
            updates = life::UPDATES,
            full = FULL,
            share = 100.0 * self.timing.share_of_keys(),
        )
    }
}
