//! The report: everything measured in one run, on the terminal and in `benchmarks.md`, whose generated parts it replaces and
//! whose histories it continues. The first part is of peers, ciphers, HCTR2 and memory; other sections have parts of their own.

use crate::ciphers::Ciphers;
use crate::false_accept::FalseAccept;
use crate::flash_report::OnFlash;
use crate::hctr2::Hctr2;
use crate::integrity_report::OnIntegrity;
use crate::levels::Levels;
use crate::machine;
use crate::memory::Memory;
use crate::method;
use crate::models::Models;
use crate::mounted_report::OnMounts;
use crate::page::{self, History, Run};
use crate::peers::{JOBS, Peers};
use crate::phone_report::Phone;
use crate::rados::Rados;
use crate::requirement::{self, Requirement};
use crate::stash::Stash;
use crate::table::{Table, figure};
use crate::vault_report::Vaults;
use crate::{false_accept_plot, peers_plot, rados_plot, rados_report, ratios_plot, stash_plot};
use lacuna_core::{Error, Result};
use std::io::ErrorKind;
use std::path::Path;

const HISTORY: History = History {
    heading: "### History",
    about: "Ratios",
    head: &[
        "date",
        "lacuna",
        "processor",
        "repeats",
        "1 MiB write / read to LUKS",
        "random 4 KiB write / read to LUKS",
        "HCTR2 to hctr2-rs / XTS",
        "peak on 1 TiB",
        "reached",
    ],
};
const INTRODUCTION: &str = "# Benchmarks\n\n`make bench` measures lacuna beside its peers on the machine it \
runs on and writes what follows.\n\n";

/// What one run found out.
pub(crate) struct Report {
    /// When, where, how large.
    pub run: Run,
    /// Section 1.
    pub peers: Option<Peers>,
    /// Section 2.
    pub ciphers: Option<Ciphers>,
    /// Section 3.
    pub hctr2: Option<Hctr2>,
    /// Section 4.
    pub memory: Option<Memory>,
    /// Section 5.
    pub rados: Option<Rados>,
    /// Section 6.
    pub levels: Option<Levels>,
    /// Section 7.
    pub models: Option<Models>,
    /// Section 8.
    pub stash: Option<Stash>,
    /// Section 9.
    pub flash: Option<OnFlash>,
    /// Section 10.
    pub phone: Option<Phone>,
    /// Section 13.
    pub accepts: Option<FalseAccept>,
    /// Section 14.
    pub integrity: Option<OnIntegrity>,
    /// Section 12.
    pub vaults: Option<Vaults>,
    /// Section 15.
    pub mounts: Option<OnMounts>,
}

impl Report {
    /// The tables of the first part.
    fn tables(&self) -> Vec<Table> {
        let mut tables = Vec::new();
        tables.extend(self.peers.as_ref().map(Peers::table));
        tables.extend(self.ciphers.iter().flat_map(Ciphers::tables));
        tables.extend(self.hctr2.as_ref().map(Hctr2::table));
        tables.extend(self.memory.as_ref().map(Memory::table));
        tables
    }

    /// The promises of the first part.
    fn requirements(&self) -> Vec<Requirement> {
        let mut all = Vec::new();
        all.extend(self.peers.iter().flat_map(Peers::requirements));
        all.extend(self.ciphers.iter().flat_map(Ciphers::requirements));
        all.extend(self.hctr2.iter().flat_map(Hctr2::requirements));
        all.extend(self.memory.iter().flat_map(Memory::requirements));
        all
    }

    fn skipped(&self) -> &[String] {
        self.peers.as_ref().map_or(&[], |peers| &peers.skipped)
    }

    /// The report as text for a terminal.
    pub(crate) fn terminal(&self) -> String {
        let mut tables = self.tables();
        tables.extend(self.levels.iter().flat_map(Levels::tables));
        tables.extend(self.models.iter().flat_map(Models::tables));
        tables.extend(self.stash.as_ref().map(Stash::table));
        tables.extend(self.flash.iter().flat_map(OnFlash::tables));
        tables.extend(self.phone.iter().flat_map(Phone::tables));
        tables.extend(self.accepts.as_ref().map(FalseAccept::table));
        tables.extend(self.integrity.iter().flat_map(OnIntegrity::tables));
        tables.extend(self.vaults.iter().flat_map(Vaults::tables));
        tables.extend(self.mounts.iter().flat_map(OnMounts::tables));
        tables.extend(self.rados.iter().flat_map(Rados::tables));
        let mut requirements = self.requirements();
        requirements.extend(self.levels.iter().flat_map(Levels::requirements));
        requirements.extend(self.models.iter().flat_map(Models::requirements));
        requirements.extend(self.stash.as_ref().map(Stash::requirement));
        requirements.extend(self.flash.iter().flat_map(OnFlash::requirements));
        requirements.extend(self.phone.iter().flat_map(Phone::requirements));
        requirements.extend(self.accepts.iter().flat_map(FalseAccept::requirements));
        requirements.extend(self.integrity.iter().flat_map(OnIntegrity::requirements));
        requirements.extend(self.vaults.iter().flat_map(Vaults::requirements));
        requirements.extend(self.mounts.iter().flat_map(OnMounts::requirements));
        requirements.extend(self.rados.iter().flat_map(Rados::requirements));
        tables.push(requirement::table(&requirements));
        let mut parts: Vec<String> = tables.iter().map(Table::text).collect();
        let skipped = self.skipped().iter().chain(self.rados.iter().flat_map(|rados| &rados.skipped));
        let skipped = skipped.chain(self.vaults.iter().flat_map(|vaults| &vaults.skipped));
        let skipped = skipped.chain(self.mounts.iter().flat_map(|mounts| &mounts.skipped));
        parts.extend(skipped.map(|why| format!("{why}\n")));
        parts.push(requirement::verdict(&requirements));
        parts.join("\n")
    }

    /// Writes `benchmarks.md` and the plots into `dir`.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let failed = |e| Error::io(format!("cannot write the report into {}", dir.display()), &e);
        let plots = dir.join("plots");
        std::fs::create_dir_all(&plots).map_err(failed)?;
        self.plot(&plots)?;
        let page = dir.join("benchmarks.md");
        let old = match std::fs::read_to_string(&page) {
            Err(e) if e.kind() == ErrorKind::NotFound => INTRODUCTION.to_owned(),
            other => other.map_err(failed)?,
        };
        std::fs::write(&page, self.page(old)).map_err(failed)?;
        println!("written: {}", page.display());
        if !self.tables().is_empty() && !self.has_first_part() {
            println!("its first part stays as it is: it wants peers, ciphers, hctr2 and memory from one run");
        }
        Ok(())
    }

    fn plot(&self, plots: &Path) -> Result<()> {
        if let Some(peers) = &self.peers {
            peers_plot::draw(peers, &plots.join("peers.svg"))?;
        }
        if let Some(ciphers) = &self.ciphers {
            ratios_plot::draw(ciphers, &plots.join("ratio-by-size.svg"))?;
        }
        if let Some(models) = &self.models {
            models.plot(plots)?;
        }
        if let Some(stash) = &self.stash {
            stash_plot::draw(stash, &plots.join("oblivious-stash.svg"))?;
        }
        if let Some(phone) = &self.phone {
            phone.plot(plots)?;
        }
        if let Some(integrity) = &self.integrity {
            integrity.plot(plots)?;
        }
        if let Some(accepts) = &self.accepts {
            false_accept_plot::draw(accepts, &plots.join("false-accept.svg"))?;
        }
        if let Some(rados) = self.on_ceph() {
            rados_plot::throughput(rados, &plots.join("ceph-throughput.svg"))?;
            rados_plot::overhead(rados, &plots.join("ceph-write-overhead.svg"))?;
        }
        Ok(())
    }

    /// Whether everything was measured that the first part of the page shows.
    fn has_first_part(&self) -> bool {
        self.peers.is_some() && self.ciphers.is_some() && self.hctr2.is_some() && self.memory.is_some()
    }

    /// What was measured on Ceph, if anything was.
    fn on_ceph(&self) -> Option<&Rados> {
        self.rados.as_ref().filter(|rados| rados.measured())
    }

    /// A part that this run measured nothing of, or not the whole of, stays as it is: a record without half of its tables
    /// is none.
    fn page(&self, mut text: String) -> String {
        if self.has_first_part() {
            text = page::replace(&text, "", |old| self.first_part(old));
        }
        if let Some(levels) = &self.levels {
            text = page::replace(&text, "on levels", |old| levels.part(&self.run, old));
        }
        if let Some(models) = &self.models {
            text = page::replace(&text, "on models", |old| models.part(&self.run, old));
        }
        if let Some(stash) = &self.stash {
            text = page::replace(&text, "on the stash", |_| stash.part(&self.run));
        }
        if let Some(flash) = &self.flash {
            text = page::replace(&text, "on flash", |old| flash.part(&self.run, old));
        }
        if let Some(phone) = &self.phone {
            text = page::replace(&text, "on the phone", |old| phone.part(&self.run, old));
        }
        if let Some(integrity) = &self.integrity {
            text = page::replace(&text, "on integrity", |old| integrity.part(&self.run, old));
        }
        if let Some(accepts) = &self.accepts {
            text = page::replace(&text, "on false accepts", |_| accepts.part(&self.run));
        }
        if let Some(vaults) = &self.vaults {
            text = page::replace(&text, "on vaults", |old| vaults.part(&self.run, old));
        }
        if let Some(mounts) = &self.mounts {
            text = page::replace(&text, "on mounted disks", |old| mounts.part(&self.run, old));
        }
        if let Some(rados) = self.on_ceph() {
            text = page::replace(&text, "on Ceph", |old| rados_report::part(rados, &self.run, old));
        }
        text
    }

    fn first_part(&self, old: &str) -> String {
        let facts = self.run.machine.facts().iter().map(|(name, value)| (*name, value.as_str()));
        let requirements = self.requirements();
        let mut parts = requirement::opening(&format!("Run of {}", self.run.date), &requirements);
        parts.extend(self.tables().iter().map(Table::markdown));
        parts.extend(self.skipped().iter().map(|why| format!("{why}\n")));
        parts.extend([
            "![lacuna beside other servers](plots/peers.svg)\n".into(),
            format!("![speed by request size](plots/ratio-by-size.svg)\n\n{}", method::PAPER),
            format!("### Machine\n\n{}", machine::list(facts)),
            method::text(&self.run.scale),
            self.history(&requirements, old),
        ]);
        parts.join("\n")
    }

    fn history(&self, requirements: &[Requirement], old: &str) -> String {
        let luks = |i: usize| figure(self.peers.as_ref().and_then(|peers| peers.to_luks(JOBS[i].0)), 2);
        let hctr2 = |to: &str| figure(self.hctr2.as_ref().and_then(|hctr2| hctr2.ratio(to)), 2);
        let peak = figure(self.memory.as_ref().map(Memory::peak), 0);
        let figures = [
            format!("{} / {}", luks(0), luks(1)),
            format!("{} / {}", luks(2), luks(3)),
            format!("{} / {}", hctr2("hctr2-rs"), hctr2("xts")),
            format!("{peak} MiB"),
            requirement::tally(requirements),
        ];
        HISTORY.and(old, &[&self.run.cells()[..], &figures].concat())
    }
}
