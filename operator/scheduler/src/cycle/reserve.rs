//! What gangs that are placed keep for pods that do not exist yet.

use crate::capacity::Capacity;
use crate::context::Context;
use crate::occupancy::reserved;
use crate::state::GangState;

/// Reserves what every assigned member holds whose pod does not hold it yet.
pub(super) fn reserve_assigned(
    context: &Context<'_>,
    capacity: &mut Capacity,
    gangs: &[GangState],
) {
    for gang in gangs {
        for running in reserved(context, gang) {
            capacity.take(running.node, &context.amounts(&running.requests));
        }
    }
}
