//! Constraints of a gang's pods on pods next to them. Some become slots, a capacity of one per node
//! ([`crate::pods::slots`]). The rest is left to kube-scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use k8s_openapi::api::core::v1::{PodAffinityTerm, PodSpec};
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use lockstep_api::TrainingWorkload;
use lockstep_api::names::labels;
use lockstep_engine::{NodeIx, NodeSet};

use crate::cluster::Snapshot;
use crate::nodes::node_class::HOSTNAME;
use crate::pods::admitted::AdmittedPods;
use crate::pods::pdb::selects;
use crate::pods::pod_view::required_anti_affinity;
use crate::pods::slots::apart;

/// Pods of a group, for constraints on their neighbours.
#[derive(Clone, Debug)]
pub struct Neighbourly<'t> {
    pub spec: &'t PodSpec,
    pub labels: BTreeMap<String, String>,
    pub namespace: &'t str,
}

impl Neighbourly<'_> {
    /// True if its pods must not share a node with pods of the other group: required anti-affinity
    /// by hostname with a matching selector.
    pub fn avoids(&self, other: &Self) -> bool {
        self.anti_affinity()
            .any(|term| self.keeps_from(term, other))
    }

    fn keeps_from(&self, term: &PodAffinityTerm, other: &Self) -> bool {
        let selector = term.label_selector.as_ref();
        own_node_term(term, self.namespace) && selector.is_some_and(|s| selects(s, &other.labels))
    }

    /// Selectors of pods in the namespace with which its pods must not share a node.
    pub fn avoided(&self) -> Vec<LabelSelector> {
        let terms = self
            .anti_affinity()
            .filter(|term| own_node_term(term, self.namespace));
        terms.filter_map(|t| t.label_selector.clone()).collect()
    }

    fn anti_affinity(&self) -> impl Iterator<Item = &PodAffinityTerm> {
        required_anti_affinity(self.spec.affinity.as_ref()).iter()
    }

    /// The first node constraint that the engine does not model. `gang`: all templates of the gang.
    pub fn not_modelled(&self, gang: &[Self]) -> Option<&'static str> {
        let affinity = self.spec.affinity.as_ref();
        let near = affinity
            .and_then(|a| a.pod_affinity.as_ref())
            .and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .as_ref()
            });
        let mut terms = self.anti_affinity();
        let mut spread = self.spec.topology_spread_constraints.iter().flatten();
        if self.spec.resource_claims.iter().flatten().next().is_some() {
            Some("resource claims (DRA)")
        } else if near.is_some_and(|terms| !terms.is_empty()) {
            Some("required pod affinity")
        } else if !terms.all(|term| self.is_modelled(term, gang)) {
            Some("required pod anti-affinity to other pods")
        } else if spread.any(|c| c.when_unsatisfiable == "DoNotSchedule") {
            Some("topology spread constraints (DoNotSchedule)")
        } else {
            None
        }
    }

    /// True if the engine models an anti-affinity term: the term matches the group's own pods, and
    /// other groups only if those also separate their own pods.
    fn is_modelled(&self, term: &PodAffinityTerm, gang: &[Self]) -> bool {
        let mut others = gang.iter();
        own_node_term(term, self.namespace)
            && self.keeps_from(term, self)
            && others.all(|other| !self.keeps_from(term, other) || other.avoids(other))
    }

    /// True if both groups use the same slot: this group separates its own pods, and one group
    /// avoids the other.
    fn shares_slot_of(&self, other: &Self) -> bool {
        self.avoids(self) && (self.avoids(other) || other.avoids(self))
    }
}

/// True if the term is per node and limited to this namespace.
fn own_node_term(term: &PodAffinityTerm, namespace: &str) -> bool {
    let named = term.namespaces.as_deref().unwrap_or_default();
    term.topology_key == HOSTNAME
        && term.namespace_selector.is_none()
        && named.iter().all(|n| n == namespace)
        && term.match_label_keys.as_ref().is_none_or(Vec::is_empty)
        && term.mismatch_label_keys.as_ref().is_none_or(Vec::is_empty)
}

/// Pods of each group as admitted, or as in the template if admission is unknown.
pub fn neighbours<'w>(
    workload: &'w TrainingWorkload,
    admitted: Option<&'w AdmittedPods>,
) -> Vec<Neighbourly<'w>> {
    static NO_SPEC: LazyLock<PodSpec> = LazyLock::new(PodSpec::default);
    let meta = &workload.metadata;
    let groups = workload.spec.groups.iter();
    let each = groups.map(|group| {
        let admitted = admitted.and_then(|all| all.groups.get(&group.name)?.pod());
        let template = group.template.0.metadata.as_ref();
        let mut labels = admitted
            .map(|pod| &pod.labels)
            .or_else(|| template?.labels.as_ref())
            .cloned()
            .unwrap_or_default();
        let ours = [
            (labels::WORKLOAD, meta.name.as_ref()),
            (labels::WORKLOAD_UID, meta.uid.as_ref()),
            (labels::GROUP, Some(&group.name)),
        ];
        for (label, value) in ours {
            labels.extend(value.map(|value| (label.to_owned(), value.clone())));
        }
        Neighbourly {
            spec: admitted
                .map(|pod| &pod.spec)
                .or(group.template.0.spec.as_ref())
                .unwrap_or(&NO_SPEC),
            labels,
            namespace: meta.namespace.as_deref().unwrap_or_default(),
        }
    });
    each.collect()
}

/// Nodes with pods of other owners than this workload that a selector matches.
pub fn nodes_of_matching<'c>(
    cluster: &'c Snapshot,
    namespace: &'c str,
    workload: &'c str,
    selectors: &'c [LabelSelector],
) -> impl Iterator<Item = NodeIx> + 'c {
    let others = cluster.listed_pods().filter(move |listed| {
        let owner = listed.pod.owner.as_ref();
        *listed.pod.namespace == *namespace && owner.is_none_or(|uid| uid.as_str() != workload)
    });
    let matches = |s: &LabelSelector, labels: &BTreeMap<String, String>| selects(s, labels);
    let matching = others.filter(move |listed| {
        let mut selectors = selectors.iter();
        selectors.any(|s| matches(s, &listed.pod.labels))
    });
    matching.map(|listed| listed.node)
}

/// Nodes where anti-affinity of pods of other owners than the workload keeps out pods with these
/// labels, as the filter `InterPodAffinity` of kube-scheduler. Pods below `preempted` close no node,
/// because kube-scheduler preempts them. `None`: it preempts none.
pub fn closed_nodes(
    cluster: &Snapshot,
    namespace: &Arc<str>,
    workload: &str,
    labels: &BTreeMap<String, String>,
    preempted: Option<i32>,
) -> NodeSet {
    let mut closed = BTreeSet::new();
    let mut domains: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let keys = [Some(Arc::clone(namespace)), None];
    let terms = cluster
        .pod_parts()
        .filter(|part| !part.anti_affinity.is_empty())
        .flat_map(|part| keys.iter().filter_map(|key| part.anti_affinity.get(key)));
    for listed in terms.flatten() {
        if preempted.is_some_and(|priority| listed.pod.priority < priority) {
            continue;
        }
        let owner = listed.pod.owner.as_ref();
        let all = listed.pod.anti_affinity.as_deref().unwrap_or_default();
        let Some(term) = all.get(listed.position) else {
            continue;
        };
        let matches = term
            .label_selector
            .as_ref()
            .is_some_and(|s| selects(s, labels));
        if !matches || owner.is_some_and(|uid| uid.as_str() == workload) {
            continue;
        }
        let key = term.topology_key.as_str();
        if key == HOSTNAME {
            closed.insert(listed.node);
        } else if let Some(value) = cluster.node(listed.node).and_then(|n| n.labels.get(key)) {
            domains.entry(key).or_default().insert(value);
        }
    }
    if !domains.is_empty() {
        let node = |ix: &NodeIx| cluster.node(*ix);
        let is_in = |labels: &BTreeMap<String, String>| {
            let mut domains = domains.iter();
            domains.any(|(key, values)| labels.get(*key).is_some_and(|own| values.contains(&**own)))
        };
        let nodes = 0..cluster.node_count();
        closed.extend(nodes.filter(|ix| node(ix).is_some_and(|node| is_in(&node.labels))));
    }
    closed.into_iter().collect()
}

/// Slot of a group whose members must run on different nodes. Groups that avoid each other share
/// it.
pub fn apart_from(pods: &Neighbourly<'_>, all: &[Neighbourly<'_>]) -> Option<String> {
    if !pods.avoids(pods) {
        return None;
    }
    apart(all.iter().position(|other| other.shares_slot_of(pods))?)
}

/// True if members also avoid members of the workload's other gangs, which are unknown when one
/// gang is placed.
pub fn keeps_from_other_gangs(pods: &Neighbourly<'_>, gangs: usize) -> Option<&'static str> {
    let several = pods.avoids(pods) && gangs > 1;
    several.then_some("pod anti-affinity between gangs of one workload")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterModel;
    use crate::pods::pod::Pod;
    use crate::test_support::mk_node;
    use lockstep_api::ids::{NodeName, Uid};
    use serde_json::{Value, json};

    fn spec(more: &Value) -> PodSpec {
        let mut spec = json!({"containers": []});
        for (name, value) in more.as_object().unwrap() {
            spec[name] = value.clone();
        }
        serde_json::from_value(spec).unwrap()
    }

    fn keeping_from(key: &str, labels: &Value) -> Value {
        json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            [{"topologyKey": key, "labelSelector": {"matchLabels": labels}}]}}})
    }

    fn template<'t>(spec: &'t PodSpec, group: &str) -> Neighbourly<'t> {
        let labels = [("app", "llama"), ("group", group)];
        Neighbourly {
            spec,
            labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            namespace: "ml",
        }
    }

    /// Nodes n0 to n3 in zones of two, and pods with anti-affinity on n0.
    fn zones(pods: &[(&str, Option<&str>, Value)]) -> Snapshot {
        let mut model = ClusterModel::default();
        for (at, zone) in ["a", "a", "b", "b"].into_iter().enumerate() {
            let mut node = mk_node(&format!("n{at}"), 4);
            node.labels.insert("zone".to_owned(), zone.to_owned());
            model.upsert_node(node);
        }
        for (name, owner, term) in pods {
            let pod = Pod {
                bound: NodeName::read(Some("n0")),
                owner: Uid::read(*owner),
                anti_affinity: Some([serde_json::from_value(term.clone()).unwrap()].into()),
                ..Pod::bare("ml", *name, name.parse().unwrap())
            };
            model.upsert_pod(pod);
        }
        model.snapshot()
    }

    #[test]
    fn anti_affinity_of_another_pod_closes_its_topology_domain() {
        let term = |more: Value| {
            let mut term = json!({"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "llama"}}});
            term.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            term
        };
        let labels = [("app".to_owned(), "llama".to_owned())].into();
        let closed = |owner: Option<&str>, namespace: &str, more: Value| -> Vec<NodeIx> {
            let cluster = zones(&[("p", owner, term(more))]);
            closed_nodes(&cluster, &namespace.into(), "w", &labels, Some(0))
                .ones()
                .collect()
        };
        let none: Vec<NodeIx> = Vec::new();
        assert_eq!(closed(None, "ml", json!({})), [0]);
        assert_eq!(closed(Some("other"), "ml", json!({})), [0]);
        assert_eq!(
            closed(Some("w"), "ml", json!({})),
            none,
            "a member of the gang"
        );
        assert_eq!(closed(None, "ml", json!({"topologyKey": "zone"})), [0, 1]);
        assert_eq!(
            closed(None, "ml", json!({"topologyKey": "rack"})),
            none,
            "no such label"
        );
        assert_eq!(
            closed(
                None,
                "ml",
                json!({"labelSelector": {"matchLabels": {"app": "bert"}}})
            ),
            none
        );
        assert_eq!(closed(None, "ml", json!({"labelSelector": null})), none);
        assert_eq!(closed(None, "web", json!({})), none);
        assert_eq!(closed(None, "web", json!({"namespaces": ["web"]})), [0]);
        assert_eq!(closed(None, "ml", json!({"namespaces": ["web"]})), none);
        assert_eq!(closed(None, "web", json!({"namespaceSelector": {}})), [0]);
        let selected = json!({"namespaceSelector": {"matchLabels": {"team": "x"}}});
        assert_eq!(
            closed(None, "ml", selected),
            none,
            "labels of namespaces are not read"
        );
        let cluster = zones(&[("p", None, term(json!({})))]);
        let above = closed_nodes(&cluster, &"ml".into(), "w", &labels, Some(1));
        assert!(above.is_clear(), "a pod of lower priority");
    }

    #[test]
    fn what_keeps_away_from_its_own_kind_by_hostname_is_known_and_all_else_is_not() {
        let plain = spec(&json!({}));
        let own = keeping_from(HOSTNAME, &json!({"group": "a"}));
        for (more, not_modelled) in [
            (json!({}), false),
            (own.clone(), false),
            (keeping_from("zone", &json!({"group": "a"})), true),
            (keeping_from(HOSTNAME, &json!({"app": "web"})), true),
            // The pods of the other group would have to avoid each other too.
            (keeping_from(HOSTNAME, &json!({"app": "llama"})), true),
            (json!({"resourceClaims": [{"name": "gpu"}]}), true),
            (
                json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]}),
                false,
            ),
            (
                json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}),
                true,
            ),
            (
                json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}}),
                true,
            ),
        ] {
            let one = spec(&more);
            let gang = [template(&one, "a"), template(&plain, "b")];
            assert_eq!(
                gang[0].not_modelled(&gang).is_some(),
                not_modelled,
                "{more}"
            );
        }
        let one = spec(&own);
        let gang = [template(&one, "a"), template(&plain, "b")];
        assert!(gang[0].avoids(&gang[0]) && !gang[0].avoids(&gang[1]) && !gang[1].avoids(&gang[1]));
    }
}
