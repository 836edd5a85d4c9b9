use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::ids::NodeName;

use crate::nodes::node::Node;
use crate::pods::pod::Pod;
use crate::pods::resources::Resources;
use lockstep_api::{NodeState, Reach};

pub(crate) fn mk_resources(pairs: &[(&str, &str)]) -> Resources {
    let quantities: BTreeMap<String, Quantity> = pairs
        .iter()
        .map(|(n, q)| ((*n).to_owned(), Quantity((*q).to_owned())))
        .collect();
    Resources::parse(&quantities).unwrap()
}

pub(crate) fn mk_node(name: &str, gpus: i64) -> Node {
    let allocatable = mk_resources(&[
        ("cpu", "64"),
        ("memory", "512Gi"),
        ("pods", "110"),
        ("nvidia.com/gpu", &gpus.to_string()),
    ]);
    Node {
        allocatable,
        state: NodeState::default(),
        ..Node::bare(name.parse().unwrap())
    }
}

pub(crate) fn cordoned(mut node: Node) -> Node {
    node.read_cordon(true);
    node
}

/// The node in an outage of its zone.
pub(crate) fn silent(mut node: Node) -> Node {
    node.state.reach = Reach::Silent { since: None };
    node
}

pub(crate) fn mk_pod(uid: &str, node: &str, gpus: i64) -> Pod {
    let requests = mk_resources(&[
        ("cpu", "1"),
        ("pods", "1"),
        ("nvidia.com/gpu", &gpus.to_string()),
    ]);
    Pod {
        bound: NodeName::read(Some(node)),
        requests: Arc::new(requests),
        ..Pod::bare("ml", uid, uid.parse().unwrap())
    }
}
