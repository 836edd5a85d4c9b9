//! Checkpoints of victims before their eviction.
//!
//! The intent names the end of the wait for each victim that is worth a request, so the decision is
//! made once, and a new leader continues the wait. The requests in the statuses of the victims
//! follow from the intents of the cycle: a dropped intent withdraws them.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::key::Key;
use lockstep_api::scheduling::{Preemption, PreemptionRequest};
use lockstep_model::{SavedWork, VictimCost};

use super::state::Cycle;
use super::victims::{Progress, ValidIntent, VictimState};
use crate::context::Context;
use crate::gang::checkpoint::{deadline, has_outcome, longest_wait, saved_work};
use crate::gang::state::GangState;
use crate::input::hold::GangPhase;

/// Ends of the waits for checkpoints, by UID of the victim.
pub(super) type Deadlines = BTreeMap<String, DateTime<Utc>>;

/// Requests for checkpoints with their preemptors, by UID of the victim.
pub(super) type Requests = BTreeMap<String, (Key, PreemptionRequest)>;

impl Cycle<'_> {
    /// Victims that are worth a request for a checkpoint. Empty if requests were decided before.
    pub(super) fn worthwhile_checkpoints(&self, valid: &ValidIntent) -> Deadlines {
        if valid.intent.begun() || valid.intent.checkpoint_wait().is_some() {
            return Deadlines::new();
        }
        let context = &self.context;
        let wait = longest_wait(context, &self.gangs[valid.at]);
        let worth = valid.victims(Progress::Pending).filter_map(|state| {
            let gang = self.victim_gang(state)?;
            let end = deadline(context, gang, wait)?;
            Some((state.victim.uid.clone(), end))
        });
        worth.collect()
    }

    /// True if a request to a victim has no outcome yet.
    pub(super) fn awaits_checkpoints(&self, valid: &ValidIntent) -> bool {
        let (now, id) = (self.context.now, &valid.intent.placement);
        let open = valid.victims(Progress::Pending).filter_map(|state| {
            let end = state.victim.checkpoint_deadline.filter(|end| now < *end)?;
            let gang = self.victim_gang(state)?;
            (!has_outcome(&gang.input, id)).then_some(end)
        });
        let end = open.max().filter(|_| !valid.intent.begun());
        end.inspect(|end| self.context.wake.at(*end)).is_some()
    }

    /// Requests of all preemptions whose victims are not evicted yet.
    pub(super) fn checkpoint_requests(&self) -> Requests {
        let mut requests = Requests::new();
        for preemptor in &self.gangs {
            let intent = preemptor.status.preemption.as_ref();
            let Some(intent) = intent.filter(|intent| !intent.begun()) else {
                continue;
            };
            let key = &preemptor.input.key;
            for victim in &intent.victims {
                let Some(deadline) = victim.checkpoint_deadline else {
                    continue;
                };
                let request = PreemptionRequest {
                    id: intent.placement.clone(),
                    deadline,
                    preemptor: key.to_string(),
                    watch: false,
                };
                if self.pending_victims.contains(&victim.uid) {
                    requests.insert(victim.uid.clone(), (key.clone(), request));
                }
            }
        }
        requests
    }

    /// The intent with the actual costs of gangs from which a checkpoint was requested.
    pub(super) fn with_actual_costs(&self, valid: &ValidIntent) -> Preemption {
        let mut intent = valid.intent.clone();
        for state in valid.victims(Progress::Pending) {
            let requested = state.victim.checkpoint_deadline.is_some();
            let Some(gang) = self.victim_gang(state).filter(|_| requested) else {
                continue;
            };
            let cost = full_cost(&self.context, gang);
            let named = |v: &&mut _| *v == &state.victim;
            if let Some(victim) = intent.victims.iter_mut().find(named) {
                let total = whole(cost.total());
                intent.cost = intent
                    .cost
                    .saturating_sub(victim.cost)
                    .saturating_add(total);
                (victim.cost, victim.lost_work) = (total, whole(cost.lost_work));
            }
            // They were about the expected cost.
            (intent.proven, intent.at_least, intent.next_best) = (false, 0, None);
        }
        intent
    }

    fn victim_gang(&self, state: &VictimState) -> Option<&GangState> {
        let at = state.gang.filter(|_| state.pod.is_none())?;
        self.gangs.get(at)
    }
}

/// Writes or withdraws the request to a gang. Returns the preemptor of a new request.
pub(super) fn request(
    gang: &mut GangState,
    requests: &mut Requests,
    now: DateTime<Utc>,
) -> Option<Key> {
    let placed = gang.assigned.as_ref().is_some_and(|a| !a.is_empty())
        && gang.phase() != &GangPhase::Finished;
    let new = requests.remove(gang.uid()).filter(|_| placed);
    let current = gang.status.checkpoint_request.as_ref();
    if current.map(|r| &r.id) == new.as_ref().map(|(_, r)| &r.id) {
        return None;
    }
    let new = new.filter(|(_, r)| now < r.deadline);
    let watch = gang.input.workload.on_request.is_none();
    let (preemptor, request) = new
        .map(|(by, r)| (by, PreemptionRequest { watch, ..r }))
        .unzip();
    gang.status_mut().checkpoint_request = request;
    preemptor
}

/// Cost of a gang that saves no further checkpoint.
fn full_cost(context: &Context<'_>, gang: &GangState) -> VictimCost {
    let saved = SavedWork {
        save: None,
        ..saved_work(context, gang)
    };
    let costs = &context.settings.rules.costs;
    let pods = gang.all_pods();
    pods.map(|pod| costs.cost_of_member(pod, saved, context.now))
        .sum()
}

fn whole(amount: u64) -> i64 {
    amount.try_into().unwrap_or(i64::MAX)
}
