//! What of a node only one pod can have: a host port, or the node itself for pods that keep away from
//! each other. Each is a resource of which every node has one, so that placement and preemption treat
//! it as they treat accelerators.

use crate::pod_view::PodSpecView;

/// Beginning of the names of these resources. No resource of Kubernetes has a colon in its name.
const PREFIX: &str = "slot:";
/// Slots that are modelled: each is a number for every node. More are left to kube-scheduler.
pub(crate) const MOST: usize = 16;
/// Groups of one gang whose members each want a node without another of them.
const MOST_APART: usize = 8;

/// Whether a resource is one of which every node has one.
pub fn is_slot(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// A slot in words.
pub(crate) fn described(name: &str) -> Option<String> {
    let slot = name.strip_prefix(PREFIX)?;
    Some(match slot.strip_prefix("port:") {
        Some(port) => format!("free host port {port}"),
        None => "node without another member (pod anti-affinity)".to_owned(),
    })
}

/// The host ports that a pod takes, each by the name of its resource. Addresses are not told apart:
/// one port on two addresses of a node counts as the same.
pub(crate) fn host_ports(spec: &PodSpecView) -> impl Iterator<Item = String> {
    let sidecars = spec.init_containers.iter();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| &c.ports);
    ports.filter_map(|port| {
        // As the API server defaults it for pods in the network of their node.
        let host = port.host_port.filter(|p| *p > 0);
        let number = host.or(port.container_port.filter(|_| spec.host_network))?;
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        Some(format!("{PREFIX}port:{number}:{protocol}"))
    })
}

/// The resource of which each member takes one where it must not share a node with another: those of
/// groups that keep away from each other, too, take the same.
pub fn apart(position: usize) -> Option<String> {
    (position < MOST_APART).then(|| format!("{PREFIX}apart:{position}"))
}

/// All resources that [`apart`] can name.
pub fn all_apart() -> impl Iterator<Item = String> {
    (0..MOST_APART).filter_map(apart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn host_ports_are_those_of_containers_and_sidecars_and_all_of_them_in_the_host_network() {
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
        assert_eq!(
            described("slot:port:9:TCP").unwrap(),
            "free host port 9:TCP"
        );
        assert!(described("cpu").is_none() && is_slot("slot:port:9:TCP") && !is_slot("pods"));
    }
}
