//! Reservations of placed gangs for pods that do not exist yet.

use crate::capacity::Capacity;
use crate::context::Context;
use crate::occupancy::reserved;
use crate::state::GangState;

pub(super) fn reserve_assigned(
    context: &Context<'_>,
    capacity: &mut Capacity,
    gangs: &mut [GangState],
) {
    for gang in gangs {
        let without_pods = reserved(context, gang);
        for waiting in &without_pods {
            capacity.take(waiting.node, &context.amounts(&waiting.requests));
        }
        let assigned = gang.assigned.clone();
        gang.reserved = assigned.map(|assigned| (assigned, without_pods.into()));
    }
}
