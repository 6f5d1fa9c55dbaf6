//! A disk as each process leaves it to the next one: its medium, the memory, and late requests.

use crate::fixture::random_work::BLOCKS;
use crate::fixture::{create, options, params};
use crate::play::Outcome;
use lacuna_crypto::Cipher;
use lacuna_kept_memory::{KeptMemory, PoolLayout};
use lacuna_medium::Medium;
use lacuna_sealed::{Params, SealedDisk};
use lacuna_sim::{CrashMedium, End, InterceptedMedium, LateMedium, LateRequests, Rng};
use std::sync::Arc;

/// See the module documentation.
pub(crate) struct SurvivingDisk {
    pub(crate) rng: Rng,
    pub(crate) params: Params,
    pub(crate) layout: Vec<PoolLayout>,
    pub(crate) medium: Arc<CrashMedium>,
    /// The memory that the last process left.
    pub(crate) kept: Option<KeptMemory>,
    /// The requests that the last process left.
    late: LateRequests,
    pub(crate) outcome: Outcome,
}

impl SurvivingDisk {
    pub(crate) fn new(cipher: Cipher, seed: u64) -> SurvivingDisk {
        let params = params(cipher, BLOCKS);
        let medium = Arc::new(CrashMedium::new(params.geometry().end()));
        create(&*medium, &params);
        SurvivingDisk {
            rng: Rng::new(seed),
            layout: SealedDisk::kept_layout(&params, options(0).budget),
            params,
            medium,
            kept: None,
            late: LateRequests::default(),
            outcome: Outcome::default(),
        }
    }

    /// A medium over `top`, on which the requests of dead processes arrive later. If it is
    /// `fenced`, all of them have ended when it is returned.
    pub(crate) fn late_medium(
        &mut self,
        top: Arc<dyn Medium>,
        fenced: bool,
    ) -> Arc<InterceptedMedium<LateMedium>> {
        let requests = std::mem::take(&mut self.late);
        let late = LateMedium::new(self.medium.clone(), top, requests, &mut self.rng);
        if fenced {
            late.fence(&mut self.rng);
        }
        Arc::new(InterceptedMedium(late))
    }

    /// The next end: two of three are deaths of the process.
    pub(crate) fn draw_end(&mut self) -> End {
        if self.rng.chance(2, 3) { End::ProcessDeath } else { End::PowerCut }
    }

    /// Becomes the disk after this end. `late` is the medium with late requests, if there is one,
    /// and `left` the memory that the process left.
    pub(crate) fn end(
        &mut self,
        end: End,
        late: Option<&LateMedium>,
        left: impl FnOnce() -> Option<KeptMemory>,
    ) {
        let rng = &mut self.rng;
        let successor = match end {
            End::ProcessDeath => {
                self.outcome.deaths += 1;
                self.kept = left();
                match late {
                    Some(late) => {
                        let (medium, requests) = late.after_process_death(rng);
                        self.late = requests;
                        medium
                    }
                    None => self.medium.after_process_death(rng),
                }
            }
            End::PowerCut => {
                self.outcome.cuts += 1;
                match late {
                    Some(late) => late.after_power_cycle(rng),
                    None => self.medium.after_power_cycle(rng),
                }
            }
        };
        self.medium = Arc::new(successor);
    }
}
