use k8s_openapi::api::core::v1::{Container, EnvVar};
use lockstep_api::member::Member;
use lockstep_api::membership::{Membership, address};
use lockstep_api::names::short_hash;

use crate::observed::Observed;

/// Number of ports through which the coordinator rotates.
const PORTS: i64 = 8;
/// Port of the rendezvous, which is that of torchrun.
pub(super) const DEFAULT_PORT: i32 = 29500;
/// First port and number of ranges for coordinators on the network of their nodes: below the ports
/// of Services (30000) and ephemeral ports (32768).
const HOST_PORTS: (i32, u32) = (20000, 1000);

/// Environment variables of a member (docs/environment.md). They cannot change in place, so none
/// depends on the attempt. When all members of a coordinator get new pods, port and rendezvous id
/// change. So old processes find no peer (docs/decisions/0021). `None` if the member does not run.
pub(super) fn variables(
    view: Observed<'_>,
    membership: &Membership<'_>,
    member: &Member,
    accelerators: i64,
    recreations: i64,
) -> Option<Vec<EnvVar>> {
    let rank = membership.place(member)?;
    let coordinator = membership.coordinator(member);
    let port = port(first_port(view, &coordinator), recreations).to_string();
    let rendezvous_id = match recreations {
        0 => view.uid().to_owned(),
        n => format!("{}-{n}", view.uid()),
    };
    let coordinator = address(view.name(), view.subdomain(), &coordinator);
    let (world, number) = (rank.world.to_string(), rank.rank.to_string());
    let mut all = vec![
        ("LOCKSTEP_WORKLOAD", view.name().to_owned()),
        ("LOCKSTEP_GROUP", member.group.clone()),
        ("LOCKSTEP_REPLICA", member.replica.to_string()),
        ("LOCKSTEP_INDEX", member.index.to_string()),
        ("LOCKSTEP_MEMBERS", world.clone()),
        ("PET_NNODES", world.clone()),
        ("PET_NODE_RANK", number.clone()),
        ("PET_MASTER_ADDR", coordinator.clone()),
        ("PET_MASTER_PORT", port.clone()),
        ("PET_RDZV_ENDPOINT", format!("{coordinator}:{port}")),
        ("PET_RDZV_ID", rendezvous_id),
        ("JAX_COORDINATOR_ADDRESS", format!("{coordinator}:{port}")),
        ("MASTER_ADDR", coordinator),
        ("MASTER_PORT", port),
        ("NODE_RANK", number.clone()),
        ("JAX_NUM_PROCESSES", world.clone()),
        ("JAX_PROCESS_ID", number.clone()),
        ("JOB_COMPLETION_INDEX", rank.completion_index.to_string()),
    ];
    // Otherwise torchrun starts one process.
    if accelerators > 0 {
        all.push(("PET_NPROC_PER_NODE", accelerators.to_string()));
    }
    // With several accelerators, a launcher sets them for each process.
    if accelerators <= 1 {
        all.extend([
            ("RANK", number),
            ("WORLD_SIZE", world),
            ("LOCAL_RANK", "0".to_owned()),
        ]);
    }
    let variables = all.into_iter().map(|(name, value)| EnvVar {
        name: name.into(),
        value: Some(value),
        value_from: None,
    });
    Some(variables.collect())
}

/// The spec's port. Coordinators on the network of their nodes share the ports of a node, so their
/// default depends on the workload and the member.
pub(crate) fn first_port(view: Observed<'_>, coordinator: &Member) -> i32 {
    let spec = view.spec();
    let mut groups = spec.groups.iter().filter(|g| g.name == coordinator.group);
    let on_host = groups.any(|g| {
        let pod = g.template.0.spec.as_ref();
        pod.is_some_and(|pod| pod.host_network == Some(true))
    });
    let default = || {
        if !on_host {
            return DEFAULT_PORT;
        }
        let (first, ranges) = HOST_PORTS;
        let hash = short_hash(&[view.uid(), &coordinator.to_string()]);
        let range = u32::from_str_radix(&hash, 16).unwrap_or_default() % ranges;
        first + range as i32 * PORTS as i32
    };
    spec.network.port.unwrap_or_else(default)
}

/// Rotates through the first port and the next seven ports, or the previous seven near 65535.
pub(crate) fn port(first: i32, recreations: i64) -> i32 {
    let offset = recreations.rem_euclid(PORTS) as i32;
    let up = first.saturating_add(PORTS as i32) <= i32::from(u16::MAX);
    if up { first + offset } else { first - offset }
}

/// Inserts variables before the container's own, which can refer to them as `$(NAME)`. The
/// container's own variables take precedence.
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
    fn the_port_of_the_coordinator_rotates_and_stays_a_port() {
        let ports = |first| (0..10).map(|n| port(first, n)).collect::<Vec<i32>>();
        assert_eq!(
            ports(29500),
            [
                29500, 29501, 29502, 29503, 29504, 29505, 29506, 29507, 29500, 29501
            ]
        );
        assert!(ports(65535).iter().all(|p| (65528..=65535).contains(p)));
        assert!(ports(1).iter().all(|p| (1..=8).contains(p)));
    }

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
