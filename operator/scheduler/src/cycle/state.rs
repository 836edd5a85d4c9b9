//! State of a cycle. Stages change it in order. While the queue is served, only [`Cycle::apply`]
//! changes it.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use lockstep_api::scheduling::Reservation;
use lockstep_model::eviction::occupancy::Leaving;
use lockstep_model::{PassingWork, QueueReservation};

use super::limits::EvictionLimits;
use crate::capacity::Capacity;
use crate::capacity::occupancy::occupancy;
use crate::context::Context;
use crate::gang::state::GangState;
use crate::input::GangInput;
use crate::memory::Memory;
use crate::plan::Step;

/// A cycle in progress. Its stages are methods in the modules of this folder.
pub(super) struct Cycle<'a> {
    pub context: Context<'a>,
    pub memory: &'a mut Memory,
    pub gangs: Vec<GangState>,
    pub capacity: Capacity,
    pub limits: EvictionLimits,
    pub queue: QueueState,
    pub steps: Vec<Step>,
    /// UIDs of victims of valid intents that are not evicted yet.
    pub pending_victims: HashSet<String>,
}

impl<'a> Cycle<'a> {
    pub fn new(context: Context<'a>, gangs: &[Arc<GangInput>], memory: &'a mut Memory) -> Self {
        let gangs = gangs.iter().map(|gang| {
            let gang = memory.latest(gang);
            let pods = memory.pods.of(&gang, context.cluster);
            GangState::new(gang, pods, context.now)
        });
        Self {
            gangs: gangs.collect(),
            capacity: Capacity::new(&context),
            context,
            memory,
            limits: EvictionLimits::default(),
            queue: QueueState::default(),
            steps: Vec::new(),
            pending_victims: HashSet::new(),
        }
    }

    /// Factor on the usual steps of the gang's searches.
    pub fn search_effort(&self, at: usize) -> u64 {
        let (uid, extended) = (self.gangs[at].uid(), self.queue.extended_searches);
        self.memory
            .undecided
            .effort(uid, self.context.now, extended)
    }

    /// True if only its request and events decide about a gang: it has no history, and no gang has
    /// promised nodes to it.
    pub fn is_plain(&self, gang: &GangState) -> bool {
        let (uid, promised) = (gang.uid(), self.queue.promised(&self.gangs));
        gang.has_no_history() && !promised.contains(uid) && !self.memory.undecided.contains(uid)
    }

    /// Drops results that depend on the capacity of other gangs, after a change of that capacity.
    pub fn capacity_changed(&mut self) {
        self.memory.inadmissible.capacity_changed();
        self.queue.work.take();
        self.queue.promised.take();
    }

    pub fn leaving(&self) -> &Leaving {
        let leaving = || occupancy(&self.context, &self.capacity, &self.gangs).leaving();
        self.queue.leaving.get_or_init(leaving)
    }

    pub fn passing_work(&self) -> &[PassingWork] {
        let work = || occupancy(&self.context, &self.capacity, &self.gangs).passing_work();
        self.queue.work.get_or_init(work)
    }
}

/// State of the queue while it is served. Turns read it, and [`Cycle::apply`] writes it.
#[derive(Default)]
pub(super) struct QueueState {
    /// Reservations of the last cycle, by index of the gang.
    pub previous: BTreeMap<usize, Reservation>,
    /// Reservations of waiting gangs in queue order. They bind gangs further back.
    pub ahead: Vec<QueueReservation>,
    /// Hash of `ahead`, equal for equal reservations of any cycle.
    pub ahead_hash: u64,
    /// Number of gangs evaluated one by one, without a shared verdict.
    pub evaluated: usize,
    pub searches: usize,
    /// Number of placement searches with more steps.
    pub extended_searches: usize,
    /// Gangs that got no victim search, by index.
    pub unsearched: BTreeSet<usize>,
    /// Terminating capacity.
    pub leaving: OnceCell<Leaving>,
    work: OnceCell<Vec<PassingWork>>,
    /// UIDs of pod groups to which backfilled gangs have promised their end.
    promised: OnceCell<BTreeSet<String>>,
}

impl QueueState {
    pub fn promised(&self, gangs: &[GangState]) -> &BTreeSet<String> {
        self.promised.get_or_init(|| {
            let backfills = gangs.iter().filter_map(|g| g.backfill.as_ref());
            backfills.flat_map(|b| b.reserved_for.clone()).collect()
        })
    }
}
