//! The content of the `RestartOrder`.

use chrono::TimeDelta;
use lockstep_api::RestartOrderSpec;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::restart_order::DomainOrder;
use lockstep_api::workload::{DomainStatus, TrainingWorkloadStatus};

use super::context::Ctx;
use super::members::replaced;
use crate::ranks::World;

/// The order that is out for a domain.
pub(super) fn present<'a>(ctx: &Ctx<'a>, key: &str) -> Option<&'a DomainOrder> {
    let order = ctx.view.order.as_ref().filter(|o| o.owned)?;
    order.content.domains.iter().find(|d| d.key == key)
}

/// Whether the agents have been told the epoch of a domain.
pub(super) fn told(ctx: &Ctx<'_>, domain: &DomainStatus) -> bool {
    present(ctx, &domain.key).is_some_and(|o| o.epoch >= domain.epoch)
}

/// What the order should say. An order for the present epoch and world is left as it is, so that closing an incident writes
/// nothing; one for a new epoch goes out when the back-off of its incident is over.
pub(super) fn wanted(ctx: &Ctx<'_>, ledger: &TrainingWorkloadStatus, world: &World<'_>) -> RestartOrderSpec {
    let domains = ledger
        .domains
        .iter()
        .filter_map(|d| {
            let (_, domain) = ctx.domain(&d.key)?;
            let members: Vec<&Member> = domain.members.iter().filter(|m| world.contains(m)).collect();
            let present = present(ctx, &d.key);
            if present.is_some_and(|o| o.epoch >= d.epoch && o.world == members.len() as i32) {
                return present.cloned();
            }
            let waiting = d.incident.as_ref().and_then(|i| i.not_before).is_some_and(|t| !ctx.due(t));
            if waiting { present.cloned() } else { Some(order(ctx, d, &members)) }
        })
        .collect();
    RestartOrderSpec { workload_uid: ctx.view.uid().to_owned(), domains }
}

fn order(ctx: &Ctx<'_>, status: &DomainStatus, world: &[&Member]) -> DomainOrder {
    let incident = status.incident.as_ref();
    let out = incident.map(replaced).unwrap_or_default();
    let members: MemberSet = world.iter().filter(|m| !out.contains(m)).map(|m| (*m).clone()).collect();
    let deadline = TimeDelta::seconds(ctx.view.spec().failure_policy.in_place.deadline_seconds);
    DomainOrder {
        key: status.key.clone(),
        epoch: status.epoch,
        members: members.to_ranges(),
        world: world.len() as i32,
        // Without a supervisor nothing waits for the release.
        released_epoch: status.epoch,
        since: incident.map(|i| i.cause.time),
        coordinator: None,
        deadline: incident.map(|_| ctx.now + deadline),
    }
}
