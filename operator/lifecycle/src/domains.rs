//! Members that restart together, and members that share a coordinator.

use std::collections::BTreeMap;

use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::member::Member;
use lockstep_api::membership::Membership;
use lockstep_api::workload::{
    GangScope, InPlace, RestartScope, TrainingWorkloadSpec, WithoutSupervisor, WorldScope,
};

/// False for Basic groups: their members start independently, so no release can cover them. A
/// domain of one member needs no barrier, but the supervisor reads training progress.
pub(crate) fn may_have_supervisors(gang: &Gang) -> bool {
    !gang.basic
}

/// With several members, two attempts can overlap.
pub(crate) fn has_peers(domain: &Domain) -> bool {
    domain.members.len() > 1
}

/// `has_barrier`: supervisors pause the members until all have stopped.
pub(crate) fn may_keep_pods(policy: &InPlace, has_peers: bool, has_barrier: bool) -> bool {
    match policy.without_supervisor {
        WithoutSupervisor::Allow => true,
        WithoutSupervisor::Deny => has_barrier || !has_peers,
    }
}

/// True if a member of the domain must not start before all members have stopped.
pub(crate) fn needs_barrier(policy: &InPlace, domain: &Domain) -> bool {
    !may_keep_pods(policy, has_peers(domain), false)
}

/// True if only this domain uses its members' coordinator, now and after any resize. Only then may
/// a restart change the address.
pub(crate) fn has_own_coordinator(
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
    let mut in_domain: BTreeMap<Member, i32> = BTreeMap::new();
    let mut all: BTreeMap<Member, i32> = BTreeMap::new();
    for member in &domain.members {
        if let Some(size) = membership.rendezvous_size(member) {
            let place = membership.coordinator(member);
            *in_domain.entry(place.clone()).or_default() += 1;
            all.insert(place, size);
        }
    }
    in_domain == all
}
