//! The intent of a preemption, from the result of a victim search.

use lockstep_api::scheduling::{NextBest, Preemption, Victim};
use lockstep_model::{Eviction, Pod, Source, VictimCost};

use super::outcome::DecidedPreemption;
use super::turn::Turn;
use crate::capacity::occupancy::victim_priority;
use crate::context::Context;
use crate::gang::decision::{ChosenVictim, OtherVictims, PreemptionDecision};
use crate::gang::state::{GangState, new_placement};
use crate::input::intent_id::intent_id;
use crate::messages;
use crate::size::{self, TooLarge};

impl Turn<'_> {
    /// The intent to evict the victims, if intent and placement fit into one object.
    pub(super) fn intend(&self, eviction: &Eviction) -> Result<DecidedPreemption, TooLarge> {
        let (context, gang) = (self.context, self.gang);
        let decision = self.decision(eviction);
        let nodes = &decision.nodes;
        let victims: Vec<Victim> = decision.victims.iter().map(|v| v.victim.clone()).collect();
        let placement = || new_placement(gang.uid(), nodes, context.now);
        size::check(nodes.len(), placement, &victims, context.now)?;
        let mut intent = Preemption {
            id: String::new(),
            preemptor_uid: gang.uid().to_owned(),
            decided_at: context.now,
            placement: placement().id,
            cost: whole(decision.cost),
            lost_work: lost_work(&victims),
            victims,
            explanation: String::new(),
            at_least: whole(decision.at_least),
            proven: decision.proven,
            next_best: decision.next_best.as_ref().map(|next| NextBest {
                cost: whole(next.cost),
            }),
            binding: None,
        };
        intent.id = intent_id(&intent);
        let follow_on = &eviction.plan.explanation.follow_on;
        let caused = follow_on.iter().map(|f| f.lost).sum();
        let costs = eviction.plan.victims.iter();
        let mut costs = costs.filter_map(|&unit| eviction.table.costs.get(unit));
        let saves = costs.any(|cost| cost.save > 0);
        intent.explanation = messages::explanation(&intent, decision.pdb_excess, caused, saves);
        Ok(DecidedPreemption { intent, decision })
    }

    fn decision(&self, eviction: &Eviction) -> PreemptionDecision {
        let (plan, reasons) = (&eviction.plan, &eviction.reasons);
        let mut victims = Vec::new();
        for &unit in &plan.victims {
            let taken = reasons.taken.iter().find(|t| t.unit == unit);
            let of_unit = self.victims_of(eviction, unit);
            victims.extend(of_unit.into_iter().map(|victim| ChosenVictim {
                victim,
                nodes: taken.map(|t| t.nodes.clone()).unwrap_or_default(),
            }));
        }
        let next_best = reasons.runner_up.as_ref().map(|next| {
            let units = next.victims.iter();
            OtherVictims {
                victims: units
                    .flat_map(|&unit| self.victims_of(eviction, unit))
                    .collect(),
                cost: next.cost.lost,
                pdb_excess: next.cost.pdb_excess,
            }
        });
        PreemptionDecision {
            nodes: self.request.assign(self.context.cluster, &plan.placement),
            victims,
            cost: plan.cost.lost,
            pdb_excess: plan.cost.pdb_excess,
            at_least: plan.bound.lost,
            proven: plan.proven,
            next_best,
        }
    }

    /// Victims of a unit: a gang, a pod, or all pods of a foreign unit.
    fn victims_of(&self, eviction: &Eviction, unit: usize) -> Vec<Victim> {
        let (context, table) = (self.context, &eviction.table);
        let (Some(source), Some(of), Some(&cost)) = (
            table.sources.get(unit),
            table.units.units.get(unit),
            table.costs.get(unit),
        ) else {
            return Vec::new();
        };
        match source {
            Source::Gang(number) => {
                let gang = self.cycle.gangs.get(*number).into_iter();
                let victim = |gang| Victim {
                    pods: of.pod_count() as i32,
                    ..gang_victim(context, gang, cost)
                };
                gang.map(victim).collect()
            }
            Source::Pod(pod) => vec![Victim {
                priority: of.priority,
                ..pod_victim(pod, cost)
            }],
            Source::Pods(pods) => {
                let costs = &context.settings.rules.costs;
                let unit = |pod| Some(context.cluster.unit(pod)?.key.to_owned());
                let victims = pods.iter().map(|pod| Victim {
                    unit: unit(pod),
                    priority: of.priority,
                    ..pod_victim(pod, costs.cost_of_pod(pod, context.now))
                });
                victims.collect()
            }
        }
    }
}

fn gang_victim(context: &Context<'_>, gang: &GangState, cost: VictimCost) -> Victim {
    Victim {
        kind: "PodGroup".to_owned(),
        namespace: gang.input.key.namespace.to_string(),
        name: gang.input.key.name.to_string(),
        uid: gang.uid().to_owned(),
        priority: victim_priority(context, gang),
        cost: whole(cost.total()),
        lost_work: whole(cost.lost_work),
        ..Victim::default()
    }
}

fn pod_victim(pod: &Pod, cost: VictimCost) -> Victim {
    Victim {
        kind: "Pod".to_owned(),
        namespace: pod.namespace.to_string(),
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
        priority: pod.priority,
        pods: 1,
        cost: whole(cost.total()),
        lost_work: whole(cost.lost_work),
        ..Victim::default()
    }
}

/// Work of these victims since their last checkpoints, in accelerator-seconds.
pub(super) fn lost_work(victims: &[Victim]) -> i64 {
    let each = victims.iter().map(|v| v.lost_work);
    each.fold(0, i64::saturating_add)
}

/// Accelerator-seconds as an API integer.
fn whole(amount: impl TryInto<i64>) -> i64 {
    amount.try_into().unwrap_or(i64::MAX)
}
