//! The request of a gang, and its placement in free capacity.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::TimeDelta;
use lockstep_api::Outlook;
use lockstep_api::member::Member;
use lockstep_api::workload::{CauseKind, GangMove, TopologyScope};
use lockstep_engine::queue::victim_priority;
use lockstep_engine::{Amounts, Cluster, Demand, EvictionPolicy, NodeIx, NodeSet};
use lockstep_model::cluster::neighbours::{closed_nodes, nodes_of_matching};
use lockstep_model::{
    Budget, PlacementAttempt, PlacementRequest, QueueReservation, Requester, Resources,
    TemplateMembers,
};

use crate::capacity::Capacity;
use crate::capacity::reservations::position;
use crate::context::Context;
use crate::gang::pending::Pending;
use crate::gang::state::GangState;
use crate::input::{GangInput, TemplateInput};
use crate::memory::Memory;
use crate::memory::equivalence_class::Request;

/// A move to a node that leaves too must gain this time.
const LEAST_GAIN: TimeDelta = TimeDelta::hours(1);

/// Request of a gang. Members with a node keep it.
pub(super) fn placement_request(
    context: &Context<'_>,
    memory: &Memory,
    gang: &GangState,
    request: Request,
) -> Result<PlacementRequest, Pending> {
    let (group, spec) = (&gang.input.group, &gang.input.gang);
    let to_place = spec.members().filter(|m| gang.places(m));
    let (finished, requested): (Vec<&Member>, Vec<&Member>) =
        to_place.partition(|m| gang.finished().contains(*m));
    let templates = template_members(context, memory, gang, &requested)?;
    let fixed: BTreeMap<Member, NodeIx> = gang
        .unfinished_assigned()
        .filter_map(|(m, n)| Some((m.clone(), context.cluster.ordinal(n.as_str())?)))
        .collect();
    let min_count = usize::try_from(spec.min_count).unwrap_or_default();
    let needed = min_count.saturating_sub(finished.len()) as u32;
    let least = match request {
        Request::Growth => needed.max(fixed.len() as u32),
        Request::Required if spec.basic => fixed.len() as u32 + 1,
        Request::Required | Request::Move { .. } => needed,
    };
    let excluded = gang.excluded().into_iter();
    let mut excluded: NodeSet = excluded
        .filter_map(|node| context.cluster.ordinal(node))
        .collect();
    // Growth restarts the gang, so it is worth no node that will end it again.
    if request == Request::Growth {
        excluded.extend(context.last_choice.iter().copied());
    }
    Ok(PlacementRequest {
        min_count: least.min(templates.iter().map(|t| t.members.len() as u32).sum()),
        templates,
        priority: group.priority,
        preemption: eviction_policy(context, gang),
        topology: group.topology.clone(),
        fixed,
        excluded,
    })
}

/// Request for other nodes of the members on nodes to leave. `whole`: of all members.
pub(super) fn move_request(
    context: &Context<'_>,
    memory: &Memory,
    gang: &GangState,
    whole: bool,
) -> Result<PlacementRequest, Pending> {
    let group = &gang.input.group;
    let assigned: BTreeMap<&Member, _> = gang.unfinished_assigned().collect();
    let members = gang.input.gang.members();
    let requested: Vec<&Member> = members.filter(|m| assigned.contains_key(m)).collect();
    let stays = assigned
        .iter()
        .filter(|(_, node)| !whole && !gang.leaves(node));
    let fixed = stays.filter_map(|(m, node)| {
        let node = context.cluster.ordinal(node.as_str())?;
        Some(((*m).clone(), node))
    });
    let left = gang.open_move().into_iter().flat_map(|m| &m.nodes);
    let left = left.map(|left| left.node.as_str());
    let excluded = gang.excluded().into_iter().chain(left);
    let mut excluded: NodeSet = excluded
        .filter_map(|node| context.cluster.ordinal(node))
        .collect();
    if let Some(open) = gang.open_move() {
        excluded.extend(nodes_that_gain_little(context, open));
    }
    Ok(PlacementRequest {
        min_count: requested.len() as u32,
        templates: template_members(context, memory, gang, &requested)?,
        priority: group.priority,
        preemption: eviction_policy(context, gang),
        topology: group.topology.clone(),
        fixed: fixed.collect(),
        excluded,
    })
}

/// Nodes that leave about as early as the nodes of this move: the gang would soon move again. From a
/// faulty node, a gang moves to any of them.
fn nodes_that_gain_little(context: &Context<'_>, open: &GangMove) -> Vec<NodeIx> {
    if open.with_restart {
        return context.last_choice.to_vec();
    }
    if open.reason == CauseKind::NodeFaulty {
        return Vec::new();
    }
    let ends = open.nodes.iter().map(|n| n.deadline.unwrap_or(context.now));
    let until = ends.min().unwrap_or(context.now) + LEAST_GAIN;
    let nodes = context.last_choice.iter().copied();
    let gains_little = |ix: &NodeIx| match context.cluster.node(*ix).map(|n| n.state.outlook) {
        Some(Outlook::Leaving { deadline }) => deadline.is_none_or(|at| at < until),
        _ => false,
    };
    nodes.filter(gains_little).collect()
}

fn eviction_policy(context: &Context<'_>, gang: &GangState) -> EvictionPolicy {
    if gang.input.group.preempts && context.settings.preemption_enabled {
        EvictionPolicy::LowerPriority
    } else {
        EvictionPolicy::Never
    }
}

/// Requested members by template. Replicas with different numbers of requested members are
/// separate, because the engine places replicas of one size.
fn template_members(
    context: &Context<'_>,
    memory: &Memory,
    gang: &GangState,
    requested: &[&Member],
) -> Result<Vec<TemplateMembers>, Pending> {
    let mut levels = gang.input.group.topology.iter();
    let by_replica = levels.any(|level| level.scope == TopologyScope::Replica);
    let mut out = Vec::new();
    for template in gang.input.workload.templates.iter() {
        let members: Vec<Member> = requested
            .iter()
            .filter(|m| m.group == template.group)
            .map(|m| (*m).clone())
            .collect();
        if members.is_empty() {
            continue;
        }
        let requests = template
            .requests
            .clone()
            .map_err(Pending::InvalidTemplate)?;
        let parts = if by_replica {
            by_size_of_replica(members)
        } else {
            vec![members]
        };
        let closed = closed_to(context, gang, template);
        out.extend(parts.into_iter().map(|members| TemplateMembers {
            members,
            requests: Arc::clone(&requests),
            eligible: memory.eligible(&gang.input, template, context.cluster),
            apart: template.apart.clone(),
            closed: closed.clone(),
        }));
    }
    Ok(out)
}

/// Divides the members of a group by the number of members of their replica, the most first.
fn by_size_of_replica(members: Vec<Member>) -> Vec<Vec<Member>> {
    let mut replicas: BTreeMap<i32, Vec<Member>> = BTreeMap::new();
    for member in members {
        replicas.entry(member.replica).or_default().push(member);
    }
    let mut by_size: BTreeMap<usize, Vec<Member>> = BTreeMap::new();
    for replica in replicas.into_values() {
        by_size.entry(replica.len()).or_default().extend(replica);
    }
    by_size.into_values().rev().collect()
}

/// Nodes closed to the template by pods of other workloads: these pods avoid its pods, or are
/// avoided by them.
fn closed_to(context: &Context<'_>, gang: &GangState, template: &TemplateInput) -> NodeSet {
    let (namespace, workload) = (&gang.input.key.namespace, gang.input.workload.uid.as_str());
    let TemplateInput { labels, avoids, .. } = template;
    let may_preempt = gang.input.group.preempts && context.settings.preemption_enabled;
    let preempts = template.pods_preempt && may_preempt;
    let above = preempts.then(|| gang.priority());
    let mut closed = closed_nodes(context.cluster, namespace, workload, labels, above);
    if !avoids.is_empty() {
        closed.extend(nodes_of_matching(
            context.cluster,
            namespace,
            workload,
            avoids,
        ));
    }
    closed
}

/// Number of nodes that would admit pods of the gang, but for anti-affinity and pods of other
/// workloads.
pub(super) fn closed_node_count(context: &Context<'_>, memory: &Memory, gang: &GangState) -> usize {
    let mut all = NodeSet::new();
    for template in gang.input.workload.templates.iter() {
        let mut closed = closed_to(context, gang, template);
        if !closed.is_clear() {
            closed.intersect_with(&memory.eligible(&gang.input, template, context.cluster));
            all.union_with(&closed);
        }
    }
    all.count_ones(..)
}

/// Free capacity for a gang, including its unbound pods on other nodes, which will be deleted.
pub(super) fn capacity_for(
    context: &Context<'_>,
    capacity: &Capacity,
    gang: &GangState,
) -> Cluster {
    let mut free = capacity.visible_to(context, gang.priority());
    for pod in gang.stray_pods() {
        if let Some(node) = pod.holds().and_then(|n| context.cluster.ordinal(n)) {
            free.remove_pod(node, &context.amounts(&pod.requests));
        }
    }
    keep_apart(context, gang, &mut free);
    free
}

/// Takes the anti-affinity slots on nodes with members of the same group.
fn keep_apart(context: &Context<'_>, gang: &GangState, free: &mut Cluster) {
    for template in gang.input.workload.templates.iter() {
        let slot = template.apart.as_deref();
        let Some(dim) = slot.and_then(|slot| context.cluster.dims().dim(slot)) else {
            continue;
        };
        let mut taken: Amounts = context.amounts(&Resources::default());
        taken[dim] = 1;
        let assigned = gang
            .unfinished_assigned()
            .map(|(m, node)| (m, node.as_str()));
        let bound = gang.all_pods().filter(|p| p.alive());
        let bound = bound.filter_map(|p| Some((p.member.as_ref()?, p.bound.as_ref()?.as_str())));
        let nodes: BTreeSet<&str> = assigned
            .chain(bound)
            .filter(|(m, _)| m.group == template.group)
            .map(|(_, node)| node)
            .collect();
        for node in nodes.into_iter().filter_map(|n| context.cluster.ordinal(n)) {
            free.add_pod(node, &taken);
        }
    }
}

pub(super) fn attempt<'d>(
    context: &Context<'d>,
    input: &'d GangInput,
    request: &'d PlacementRequest,
    demand: &'d Demand,
    ahead: &'d [QueueReservation],
) -> PlacementAttempt<'d> {
    let rules = &context.settings.rules;
    PlacementAttempt {
        demand,
        requester: Requester {
            request,
            namespace: &input.key.namespace,
            // Its priority class can raise the priority of the running gang.
            victim_priority: victim_priority(demand.priority, input.preemption_priority),
            evictable: is_evictable(context, input),
            victims: &rules.victims,
            replaces: !input.gang.basic
                && !request.fixed.is_empty()
                && request.min_count as usize > request.fixed.len(),
            ends: input.workload.ends.and_then(|e| e.from(context.now)),
        },
        ahead,
        last_choice: context.last_choice,
        placement_steps: rules.placement_steps,
        effort: 1,
    }
}

/// True if the holder of a reservation may evict the gang as soon as it runs.
pub(super) fn is_evictable(context: &Context<'_>, input: &GangInput) -> bool {
    let Context {
        settings, budgets, ..
    } = context;
    let rules = &settings.rules;
    let mut templates = input.workload.templates.iter();
    let spared = templates.any(|template| {
        // Whether a budget permits all evictions at once is not known in advance.
        let guards = |b: &Arc<Budget>| b.guards_labels(&input.key.namespace, &template.labels);
        rules.victims.spare(&template.labels)
            || template.grace > rules.victims.longest_grace_period
            || (settings.delete_after.is_none() && budgets.iter().any(guards))
    });
    rules.evictable_at_once() && !spared
}

/// Places a gang in free capacity, less the reservations ahead of it.
pub(super) fn place_in_free(
    context: &Context<'_>,
    memory: &Memory,
    capacity: &mut Capacity,
    gang: &mut GangState,
) -> bool {
    let Ok(request) = placement_request(context, memory, gang, Request::Required) else {
        return false;
    };
    let Ok(demand) = request.demand(context.cluster) else {
        return false;
    };
    let free = capacity_for(context, capacity, gang);
    let own = position(gang);
    let standing = capacity.standing.iter();
    let ahead: Vec<QueueReservation> = standing
        .filter(|(position, _)| *position < own)
        .map(|(_, held)| held.clone())
        .collect();
    let attempt = attempt(context, &gang.input, &request, &demand, &ahead);
    match attempt.in_free_capacity(&free) {
        Ok(placement) => {
            let nodes = request.assign(context.cluster, &placement);
            capacity.assign(context, gang, nodes);
            true
        }
        Err(_) => false,
    }
}
