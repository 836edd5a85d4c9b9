//! Environment of a member: who it is, how many there are, and where they meet.

use k8s_openapi::api::core::v1::{Container, EnvVar};
use lockstep_api::member::Member;

use crate::view::WorkloadView;
use lockstep_api::membership::{Membership, Rank, address};

/// The variables for a member. The environment of a pod cannot change in place, so nothing here
/// depends on the attempt: the rendezvous id is the UID of the workload alone.
pub(super) fn variables(
    view: &WorkloadView,
    membership: &Membership<'_>,
    member: &Member,
    rank: Rank,
) -> Vec<EnvVar> {
    let network = &view.spec().network;
    let meeting = address(
        view.name(),
        view.subdomain(),
        &membership.coordinator(member),
    );
    [
        ("LOCKSTEP_WORKLOAD", view.name().to_owned()),
        ("LOCKSTEP_GROUP", member.group.clone()),
        ("LOCKSTEP_REPLICA", member.replica.to_string()),
        ("LOCKSTEP_INDEX", member.index.to_string()),
        ("LOCKSTEP_MEMBERS", rank.world.to_string()),
        ("PET_NNODES", rank.world.to_string()),
        ("PET_NODE_RANK", rank.rank.to_string()),
        ("PET_MASTER_ADDR", meeting.clone()),
        ("PET_MASTER_PORT", network.port.to_string()),
        ("PET_RDZV_ID", view.uid().to_owned()),
        ("MASTER_ADDR", meeting),
        ("MASTER_PORT", network.port.to_string()),
        ("JOB_COMPLETION_INDEX", rank.completion_index.to_string()),
    ]
    .map(|(name, value)| EnvVar {
        name: name.into(),
        value: Some(value),
        value_from: None,
    })
    .into()
}

/// Puts the variables before the container's own, which may then refer to them as `$(NAME)`; one
/// that the container sets itself is left out.
pub(super) fn inject(container: &mut Container, variables: &[EnvVar]) {
    let own = container.env.take().unwrap_or_default();
    let ours = variables
        .iter()
        .filter(|v| own.iter().all(|o| o.name != v.name))
        .cloned();
    container.env = Some(ours.chain(own.iter().cloned()).collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_the_user_sets_is_never_overridden() {
        let var = |name: &str, value: &str| EnvVar {
            name: name.into(),
            value: Some(value.into()),
            value_from: None,
        };
        let mut c = Container {
            env: Some(vec![var("MASTER_ADDR", "mine"), var("X", "1")]),
            ..Container::default()
        };
        inject(
            &mut c,
            &[var("MASTER_ADDR", "ours"), var("PET_NODE_RANK", "3")],
        );
        assert_eq!(
            c.env.unwrap(),
            [
                var("PET_NODE_RANK", "3"),
                var("MASTER_ADDR", "mine"),
                var("X", "1")
            ]
        );
    }
}
