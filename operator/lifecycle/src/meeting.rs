//! Who meets whom: members that restart together, and members that meet at one place.

use std::collections::BTreeMap;

use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::member::Member;
use lockstep_api::membership::Membership;
use lockstep_api::workload::{GangScope, RestartScope, TrainingWorkloadSpec, WorldScope};

/// Whether the members of a domain start and stop together: only they need a barrier.
pub(crate) fn meets(gang: &Gang, domain: &Domain) -> bool {
    !gang.basic && domain.members.len() > 1
}

/// Whether only members of this domain meet where its members do, now and after any resize. Only
/// then may the place move when the domain restarts.
pub(crate) fn meets_alone(
    spec: &TrainingWorkloadSpec,
    membership: &Membership<'_>,
    domain: &Domain,
) -> bool {
    let replicas = spec.scheduling.gang.scope == GangScope::Replica
        || spec.failure_policy.restart_scope == RestartScope::Replica;
    let only_domain = spec.scheduling.gang.scope == GangScope::Workload && !replicas;
    let of_one_domain = match spec.network.world {
        WorldScope::Workload => false,
        WorldScope::Group => !replicas,
        WorldScope::Replica => true,
    };
    if !only_domain && (spec.network.coordinator.is_some() || !of_one_domain) {
        return false;
    }
    let mut here: BTreeMap<Member, i32> = BTreeMap::new();
    let mut all: BTreeMap<Member, i32> = BTreeMap::new();
    for member in &domain.members {
        if let Some(size) = membership.meeting_size(member) {
            let place = membership.coordinator(member);
            *here.entry(place.clone()).or_default() += 1;
            all.insert(place, size);
        }
    }
    here == all
}
