use std::collections::BTreeMap;
use std::sync::Arc;

use lockstep_engine::{Amounts, NodeSet};
use lockstep_model::eviction::occupancy::{Disruption, reservations};
use lockstep_model::{Occupancy, Occupant, PlacedGang, RequestedAmounts};

use crate::capacity::Capacity;
use crate::context::Context;
use crate::gang::checkpoint::saved_work;
use crate::gang::state::GangState;
use crate::input::TemplateInput;
use crate::input::hold::GangPhase;
use crate::memory::Memory;

pub(crate) fn occupancy<'a>(
    context: &Context<'a>,
    capacity: &'a Capacity,
    gangs: &'a [GangState],
) -> Occupancy<'a> {
    Occupancy {
        cluster: context.cluster,
        budgets: context.budgets,
        rules: &context.settings.rules,
        now: context.now,
        evicting: &capacity.evicting,
        gangs: gangs.iter().map(|g| placed_gang(context, g)).collect(),
    }
}

/// All gangs with the capacity they hold, and the nodes where each can restart if follow-on
/// evictions count.
pub(crate) fn occupancy_with_nodes<'a>(
    context: &Context<'a>,
    memory: &Memory,
    capacity: &'a Capacity,
    gangs: &'a [GangState],
) -> Occupancy<'a> {
    let mut all = occupancy(context, capacity, gangs);
    if context.settings.rules.follow_on_depth > 0 {
        let each = all.gangs.iter_mut().zip(gangs);
        // Waiting gangs hold no evictable work.
        for (placed, gang) in each.filter(|(_, gang)| gang.holds_or_reserves()) {
            placed.eligible = nodes_of_one_template(context, memory, gang);
        }
    }
    all
}

/// Capacity that a gang holds: pods on nodes, and assigned members without pods.
pub(crate) fn holds(context: &Context<'_>, gang: &GangState) -> Vec<Occupant> {
    placed_gang(context, gang)
        .holds(context.cluster)
        .into_owned()
}

pub(crate) fn victim_priority(context: &Context<'_>, gang: &GangState) -> i32 {
    placed_gang(context, gang).victim_priority()
}

fn placed_gang<'a>(context: &Context<'_>, gang: &'a GangState) -> PlacedGang<'a> {
    let input = &gang.input;
    let finished = gang.phase() == &GangPhase::Finished;
    // The manager has not recorded the start of its deadline yet.
    let placement = input.group.status.placement.as_ref();
    let placed_at = placement.map_or(context.now, |p| p.decided_at);
    let stray = gang.stray_pods().map(|pod| pod.uid.as_str());
    PlacedGang {
        uid: gang.uid(),
        namespace: &input.key.namespace,
        workload_uid: input.workload.uid.as_str(),
        priority: gang.priority(),
        preemption_priority: input.preemption_priority,
        preempts: input.group.preempts,
        disruption: Disruption::of(input.whole(), input.gang.basic),
        template_labels: template_labels(gang).collect(),
        in_kueue: input.workload.quota.is_some(),
        leaves: finished || input.released() || gang.disrupted(),
        saved: saved_work(context, gang),
        pods: gang.all_pods().as_slice(),
        bound: gang.fully_bound().map(|bound| bound.holds.as_slice()),
        stray: stray.collect(),
        reserved: reserved(context, gang),
        eligible: None,
        ends: input.workload.ends.and_then(|end| end.from(placed_at)),
        overstays: gang.overstays(),
    }
}

/// True if labels of its templates or pods exclude the gang from preemption.
pub(crate) fn spared(context: &Context<'_>, gang: &GangState) -> bool {
    placed_gang(context, gang).spared(&context.settings.rules.victims)
}

fn template_labels(gang: &GangState) -> impl Iterator<Item = &BTreeMap<String, String>> {
    gang.input.workload.templates.iter().map(|t| &t.labels)
}

/// Nodes where a gang with a single template could run.
fn nodes_of_one_template(
    context: &Context<'_>,
    memory: &Memory,
    gang: &GangState,
) -> Option<Arc<NodeSet>> {
    let [template] = &*gang.input.workload.templates else {
        return None;
    };
    Some(memory.eligible(&gang.input, template, context.cluster))
}

/// Assigned members whose pods do not hold capacity yet. Empty if the gang has finished or released
/// its placement.
pub(crate) fn reserved(context: &Context<'_>, gang: &GangState) -> Vec<Occupant> {
    let bound = gang.fully_bound().is_some();
    if bound || gang.phase() == &GangPhase::Finished || gang.input.released() {
        return Vec::new();
    }
    match (&gang.reserved, &gang.assigned) {
        (_, None) => return Vec::new(),
        (Some((nodes, cached)), Some(assigned)) if Arc::ptr_eq(nodes, assigned) => {
            return cached.to_vec();
        }
        _ => {}
    }
    let assigned = gang.unfinished_assigned().map(|(m, n)| (m, n.as_str()));
    reservations(
        context.cluster,
        assigned,
        |member, node| gang.pod_at(member, node).is_some(),
        |member| gang.input.requests(&member.group).cloned(),
    )
}

/// Amounts that all gangs request and hold, for the recognition of irrelevant changes.
pub(crate) fn requested_amounts(
    context: &Context<'_>,
    capacity: &Capacity,
    gangs: &[GangState],
) -> RequestedAmounts {
    let unfinished = gangs.iter().filter(|g| g.phase() != &GangPhase::Finished);
    let namespaces = unfinished
        .clone()
        .map(|g| Arc::clone(&g.input.key.namespace));
    let templates = unfinished.flat_map(|g| {
        let templates = g.input.workload.templates.iter();
        templates.map(|template| (&g.input.key.namespace, template))
    });
    let members = templates
        .clone()
        .filter_map(|(_, template)| member_amounts(context, template));
    let avoided = templates.flat_map(|(namespace, template)| {
        let avoids = template.avoids.iter().cloned();
        avoids.map(|selector| (Arc::clone(namespace), selector))
    });
    RequestedAmounts {
        members: members.collect(),
        reserved: capacity.reserved.clone(),
        namespaces: namespaces.collect(),
        avoided: avoided.collect(),
    }
}

fn member_amounts(context: &Context<'_>, template: &TemplateInput) -> Option<Amounts> {
    let mut amounts = context.amounts(template.requests.as_deref().ok()?);
    let dims = context.cluster.dims();
    if let Some(dim) = template.apart.as_deref().and_then(|slot| dims.dim(slot)) {
        amounts[dim] = 1;
    }
    Some(amounts)
}
