//! Evictions of the victims of a valid intent.

use std::collections::HashSet;
use std::sync::Arc;

use lockstep_api::scheduling::{Preemption, Preemptor, Victim};
use lockstep_model::Pod;

use super::state::Cycle;
use super::victims::{Progress, ValidIntent, VictimState};
use crate::context::Context;
use crate::gang::decision::PreemptedGang;
use crate::gang::state::GangState;
use crate::messages;
use crate::plan::{PodRef, Step};
use crate::refusal::record_eviction;

impl Cycle<'_> {
    pub(super) fn evict_victims(&mut self, valid: &ValidIntent) {
        let pending: Vec<&VictimState> = valid.victims(Progress::Pending).collect();
        let gang = &mut self.gangs[valid.at];
        record_eviction(gang, &valid.intent);
        note_request(&self.context, gang, &pending);
        let actual = self.with_actual_costs(valid);
        for victim in pending {
            self.evict(valid.at, &actual, victim);
        }
    }

    /// `actual`: the intent with the costs that the victim has now.
    fn evict(&mut self, at: usize, actual: &Preemption, state: &VictimState) {
        let (context, victim) = (&self.context, &state.victim);
        let same = |v: &&Victim| victim.checkpoint_deadline.is_some() && v.uid == victim.uid;
        let priced = actual.victims.iter().find(same).unwrap_or(victim);
        let text = messages::preempted_by(&self.gangs[at], actual, priced);
        let priority = self.gangs[at].priority();
        let input = Arc::clone(&self.gangs[at].input);
        let preemptor = input.key.clone();
        // An eviction is repeated only if budgets refused it.
        let first = victim.eviction_requested_at.unwrap_or(context.now);
        self.limits.evictions.note(&victim.uid, victim.pods, first);
        let gang = state.gang.map(|at| &mut self.gangs[at]);
        let Some(pod) = &state.pod else {
            if let Some(gang) = gang {
                gang.preempted = Some(PreemptedGang {
                    by: preemptor,
                    preemptor: Preemptor {
                        namespace: input.key.namespace.to_string(),
                        name: input.workload.name.clone(),
                        priority,
                    },
                    message: text,
                });
            }
            return;
        };
        if let Some(gang) = gang {
            unassign(gang, pod);
        }
        if !pod.disrupted {
            self.steps.push(Step::MarkPod {
                preemptor: preemptor.clone(),
                pod: PodRef::of(pod),
                message: text,
            });
        }
        let last = self.memory.evicted_at.get(&victim.uid).copied();
        let retry = context.settings.retry;
        if last.is_some_and(|last| !context.due(last, retry)) {
            return;
        }
        let evicted_at = &mut self.memory.evicted_at;
        evicted_at.insert(victim.uid.clone(), context.now);
        let delete_after = context.settings.delete_after;
        let by_force = delete_after.is_some_and(|wait| context.due(first, wait));
        self.steps.push(Step::Evict {
            preemptor,
            pod: PodRef::of(pod),
            by_force,
        });
    }
}

/// Records the time of the first eviction request in the intent.
fn note_request(context: &Context<'_>, gang: &mut GangState, pending: &[&VictimState]) {
    let pending: HashSet<&str> = pending.iter().map(|f| f.victim.uid.as_str()).collect();
    let intent = gang.status_mut().preemption.iter_mut();
    let victims = intent.flat_map(|intent| &mut intent.victims);
    for victim in victims.filter(|v| pending.contains(v.uid.as_str())) {
        victim.eviction_requested_at.get_or_insert(context.now);
    }
}

/// Unassigns a member that is evicted alone. A whole gang releases its placement itself.
fn unassign(gang: &mut GangState, pod: &Pod) {
    if let (Some(assigned), Some(member)) = (&mut gang.assigned, &pod.member) {
        Arc::make_mut(assigned).remove(member);
    }
}
