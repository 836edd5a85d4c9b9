//! Node resources for a single pod: a host port, or the node itself for pods that avoid each other.
//! Each slot is a resource with amount 1 on every node, handled like accelerators.

use crate::pods::pod_view::PodSpecView;

/// Prefix of slot names. Kubernetes' resource names contain no colon.
const PREFIX: &str = "slot:";
/// Most slots in the model: each costs one number per node. kube-scheduler handles the rest.
pub(crate) const MOST: usize = 16;
/// Most groups of a gang whose members must run on different nodes.
const MOST_APART: usize = 8;

pub fn is_slot(name: &str) -> bool {
    name.starts_with(PREFIX)
}

pub(crate) fn described(name: &str) -> Option<String> {
    let slot = name.strip_prefix(PREFIX)?;
    Some(match slot.strip_prefix("port:") {
        Some(port) => format!("host port {port}"),
        None => "nodes without another member (pod anti-affinity)".to_owned(),
    })
}

/// Host ports of a pod as slot names. A port is one slot on all addresses.
pub(crate) fn host_ports(spec: &PodSpecView) -> impl Iterator<Item = String> {
    let sidecars = spec
        .init_containers
        .iter()
        .filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| &c.ports);
    ports.filter_map(|port| {
        // Default of the API server for pods in the host network.
        let host = port.host_port.filter(|p| *p > 0);
        let number = host.or(port.container_port.filter(|_| spec.host_network))?;
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        Some(format!("{PREFIX}port:{number}:{protocol}"))
    })
}

pub fn apart(position: usize) -> Option<String> {
    (position < MOST_APART).then(|| format!("{PREFIX}apart:{position}"))
}

/// All slots of [`apart`].
pub fn all_apart() -> impl Iterator<Item = String> {
    (0..MOST_APART).filter_map(apart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn host_ports_are_those_of_containers_and_sidecars_or_all_ports_in_the_host_network() {
        let spec = json!({"containers": [{"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2}]}],
            "initContainers": [{"ports": [{"containerPort": 3, "hostPort": 3}]},
                {"restartPolicy": "Always", "ports": [{"containerPort": 4, "hostPort": 4, "protocol": "UDP"}]}]});
        let mut view: PodSpecView = serde_json::from_value(spec).unwrap();
        let ports = |view: &PodSpecView| host_ports(view).collect::<Vec<_>>();
        assert_eq!(ports(&view), ["slot:port:9:TCP", "slot:port:4:UDP"]);
        view.host_network = true;
        assert_eq!(
            ports(&view),
            ["slot:port:9:TCP", "slot:port:2:TCP", "slot:port:4:UDP"]
        );
    }

    #[test]
    fn a_port_is_described_as_one() {
        assert_eq!(described("slot:port:9:TCP").unwrap(), "host port 9:TCP");
        assert!(described("cpu").is_none() && is_slot("slot:port:9:TCP") && !is_slot("pods"));
    }
}
