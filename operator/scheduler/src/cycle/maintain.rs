//! Maintains existing placements: removes released placements and lost nodes.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use lockstep_api::condition::{Condition, ConditionStatus, find, reasons, types, upsert};
use lockstep_api::gangs::Assignments;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_model::Pod;

use super::state::Cycle;
use super::unusable::{find_unusable_nodes, takes};
use crate::context::Context;
use crate::gang::state::GangState;
use crate::input::hold::{GangPhase, Hold};
use crate::memory::Memory;
use crate::messages;
use crate::refusal::note_refusals;

impl Cycle<'_> {
    /// Removes released placements and lost nodes. Runs before all reservations.
    pub(super) fn maintain_placements(&mut self) {
        let (context, memory) = (&self.context, &mut *self.memory);
        let mut refused = HashSet::new();
        memory.note_bindings(&self.gangs, context.now);
        for gang in &mut self.gangs {
            if gang.phase() != &GangPhase::Finished {
                gang.unusable = find_unusable_nodes(context, memory, gang);
            }
            note_refusals(context, memory, gang, &mut refused);
            if gang.phase() == &GangPhase::Finished {
                continue;
            }
            gang.drop_void_target();
            if gang.assigned.is_none() {
                if gang.kube_scheduler_places(context) {
                    adopt_bound_gang(gang);
                } else {
                    adopt_running_pods(gang);
                }
            } else if gang.input.released() {
                clear_when_empty(context, gang);
            } else if !gang.disrupted() && gang.fully_bound().is_none() {
                // Bound pods that keep running keep their nodes anyway.
                follow_bound_pods(gang);
                if !gang.target.is_empty() {
                    gang.yield_target(&lost_members(gang));
                }
                follow_target(context, memory, gang);
                give_up_lost_nodes(gang);
            }
        }
        memory.refused.retain(|uid, _| refused.contains(uid));
    }
}

/// Assigns members to the nodes of their bound pods. A pod can be bound while its member loses or
/// changes its node. That pod would stay, and the new node would stay empty.
fn follow_bound_pods(gang: &mut GangState) {
    let Some(assigned) = &gang.assigned else {
        return;
    };
    let absent = &gang.input.workload.members.absent;
    let mut moved: Vec<(Member, NodeName)> = Vec::new();
    for member in gang.unfinished() {
        let stays = match assigned.get(member) {
            Some(node) => gang.pod_at(member, node.as_str()).is_some(),
            None => absent.contains(member),
        };
        if stays {
            continue;
        }
        let pods = gang.pods_of(member).iter();
        let bound = pods
            .filter(|p| p.alive() && !p.disrupted && !gang.replaced(member, p))
            .find_map(|p| p.bound.clone());
        moved.extend(bound.map(|node| (member.clone(), node)));
    }
    if let (false, Some(assigned)) = (moved.is_empty(), &mut gang.assigned) {
        Arc::make_mut(assigned).extend(moved);
    }
}

/// Moves members that an incident replaces to the target of the gang's move. Members whose new node
/// takes no pods any more lose their node.
fn follow_target(context: &Context<'_>, memory: &mut Memory, gang: &mut GangState) {
    let mut follow = gang.following();
    if follow.is_empty() {
        return;
    }
    let mut lost = BTreeSet::new();
    follow.retain(|member, node| {
        let takes = takes(context, memory, gang, (member, node));
        if !takes {
            lost.insert(member.clone());
        }
        takes
    });
    for member in follow.keys() {
        gang.unusable.lost.remove(member);
        gang.unusable.waiting.remove(member);
    }
    if let Some(assigned) = &mut gang.assigned {
        Arc::make_mut(assigned).extend(follow);
    }
    if !lost.is_empty() {
        gang.give_up_target(&lost);
        give_up(gang, &lost);
    }
}

/// Clears a released placement only when all pods have ended, so that other gangs get free
/// capacity. A gang that kube-scheduler places would be recorded again from ended pods, so they have
/// to be deleted first.
fn clear_when_empty(context: &Context<'_>, gang: &mut GangState) {
    let recorded = gang.kube_scheduler_places(context);
    let remains = |pod: &Arc<Pod>| {
        if pod.ended() {
            recorded && pod.terminating.is_none() && !gang.has_finished(pod)
        } else {
            !stranded(context, pod)
        }
    };
    if gang.all_pods().any(remains) {
        return;
    }
    let preempted = gang.disrupted();
    gang.assigned = None;
    gang.status_mut().preemption = None;
    // A gang that waits for a group in `dependsOn` keeps its queue time too.
    if !preempted {
        if gang.phase() != &GangPhase::Held(Hold::Dependency) {
            gang.status_mut().queued_at = None;
        }
        return;
    }
    gang.status_mut().preemptor = None;
    let conditions = &mut Arc::make_mut(&mut gang.status).conditions;
    let message =
        find(conditions, types::DISRUPTION_TARGET).map_or("preempted", |c| c.message.as_str());
    upsert(
        conditions,
        Condition {
            type_: types::DISRUPTION_TARGET.to_owned(),
            status: ConditionStatus::False,
            reason: reasons::PREEMPTED.to_owned(),
            message: messages::requeued(message),
            last_transition_time: context.now,
            observed_generation: gang.input.group.generation,
        },
    );
}

/// True if a pod is past its deadline on an unready node, which cannot report its end.
fn stranded(context: &Context<'_>, pod: &Pod) -> bool {
    let (Some(end), Some(node)) = (pod.terminating, pod.bound.as_ref()) else {
        return false;
    };
    let ordinal = context.cluster.ordinal(node.as_str());
    let is_ready = ordinal
        .and_then(|n| context.cluster.node(n))
        .is_some_and(|n| n.state.is_ready());
    !is_ready && context.due(end, context.settings.rules.overdue)
}

/// Restores a lost placement from the running pods, which hold the capacity.
fn adopt_running_pods(gang: &mut GangState) {
    let running = gang.all_pods().filter(|p| p.alive() && !p.disrupted);
    let nodes: Assignments = running
        .filter_map(|p| Some((p.member.clone()?, p.bound.clone()?)))
        .collect();
    gang.assigned = Some(nodes).filter(|n| !n.is_empty()).map(Arc::new);
}

/// Records the nodes that kube-scheduler has chosen, once all members of a gang are bound. Pods that
/// have ended count: they may have run before this process saw them.
fn adopt_bound_gang(gang: &mut GangState) {
    if gang.phase() != &GangPhase::Active {
        return;
    }
    let pods = gang
        .all_pods()
        .filter(|p| !p.disrupted && p.terminating.is_none());
    let nodes: Assignments = pods
        .filter_map(|p| Some((p.member.clone()?, p.bound.clone()?)))
        .collect();
    let alone = gang.input.gang.basic || gang.under_way();
    let absent = &gang.input.workload.members.absent;
    let placed = |m: &Member| absent.contains(m) || nodes.contains_key(m);
    let whole = alone || gang.unfinished().all(placed);
    gang.assigned = Some(nodes).filter(|n| whole && !n.is_empty()).map(Arc::new);
}

/// Unassigns members that left the gang, and members on lost or excluded nodes.
fn give_up_lost_nodes(gang: &mut GangState) {
    let lost = lost_members(gang);
    give_up(gang, &lost);
}

pub(super) fn give_up(gang: &mut GangState, lost: &BTreeSet<Member>) {
    if lost.is_empty() {
        return;
    }
    let mut kept = gang
        .assigned
        .take()
        .map(Arc::unwrap_or_clone)
        .unwrap_or_default();
    kept.retain(|member, _| !lost.contains(member));
    // A gang without running pods is placed again as a whole and holds no capacity while it waits.
    let running = gang.under_way() || kept.iter().any(|(m, n)| gang.bound(m, n));
    gang.assigned = Some(kept)
        .filter(|k| running && !k.is_empty())
        .map(Arc::new);
}

fn lost_members(gang: &GangState) -> BTreeSet<Member> {
    let excluded = gang.excluded();
    let members: BTreeSet<&Member> = gang.input.gang.members().collect();
    let moves = |member: &Member, node: &NodeName| {
        !gang.stays_on(member, node)
            && !gang.finished().contains(member)
            && (excluded.contains(node.as_str()) || gang.unusable.lost.contains(member))
    };
    let assigned = gang.assigned_members();
    assigned
        .filter(|(member, node)| !members.contains(member) || moves(member, node))
        .map(|(member, _)| member.clone())
        .collect()
}
