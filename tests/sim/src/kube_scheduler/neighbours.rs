//! Filters by pods on other nodes: spreading over domains (`PodTopologySpread`), and required
//! affinity between pods (`InterPodAffinity`). Selectors test equality. Terms apply to the
//! namespace of their pod.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod, PodAffinityTerm, PodSpec, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::{over, pinned, unselected};

const SPREAD: &str = "node(s) didn't match pod topology spread constraints";

/// A pod to bind, and the cluster.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    pub pod: &'a Pod,
    pub spec: &'a PodSpec,
    pub nodes: &'a [Node],
    pub pods: &'a [Pod],
}

type Domain = (String, String);

impl<'a> Around<'a> {
    /// Bound pods of a node that have not ended.
    fn on(&self, node: &Node) -> impl Iterator<Item = &'a Pod> {
        let name = node.metadata.name.clone();
        self.pods.iter().filter(move |pod| {
            let bound = pod.spec.as_ref().and_then(|s| s.node_name.as_ref());
            bound.is_some() && bound == name.as_ref() && !over(pod)
        })
    }
}

fn label<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    Some(node.metadata.labels.as_ref()?.get(key)?.as_str())
}

fn selects(selector: Option<&LabelSelector>, pod: &Pod) -> bool {
    let Some(selector) = selector else {
        return false;
    };
    assert!(
        selector.match_expressions.is_none(),
        "expressions of label selectors are not simulated"
    );
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let mut wanted = selector.match_labels.iter().flatten();
    wanted.all(|(key, value)| labels.get(key) == Some(value))
}

/// Reason of the pod's spread constraints against a node.
pub(super) fn spread(around: Around<'_>, node: &Node) -> Option<String> {
    let constraints = around.spec.topology_spread_constraints.iter().flatten();
    let strict = constraints.filter(|c| c.when_unsatisfiable == "DoNotSchedule");
    let strict: Vec<&TopologySpreadConstraint> = strict.collect();
    for constraint in &strict {
        let Some(domain) = label(node, &constraint.topology_key) else {
            return Some(format!("{SPREAD} (missing required label)"));
        };
        let counts = counts(around, constraint, &strict);
        let enough = counts.len() as i32 >= constraint.min_domains.unwrap_or(1);
        let least = counts.values().copied().min().filter(|_| enough);
        let here = counts.get(domain).copied().unwrap_or(0);
        let itself = i32::from(selects(constraint.label_selector.as_ref(), around.pod));
        if here - least.unwrap_or(0) + itself > constraint.max_skew {
            return Some(SPREAD.to_owned());
        }
    }
    None
}

/// Pods that a constraint counts, by domain: on nodes with the labels of all constraints and, by
/// default, allowed by the pod's own affinity.
fn counts<'n>(
    around: Around<'n>,
    constraint: &TopologySpreadConstraint,
    all: &[&TopologySpreadConstraint],
) -> BTreeMap<&'n str, i32> {
    let honors = constraint.node_affinity_policy.as_deref() != Some("Ignore");
    let mut counts = BTreeMap::new();
    for node in around.nodes {
        let labelled = all.iter().all(|c| label(node, &c.topology_key).is_some());
        let Some(domain) = label(node, &constraint.topology_key).filter(|_| labelled) else {
            continue;
        };
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let pinned = pinned(around.spec).is_none_or(|pin| pin.iter().any(|n| n == name));
        let allowed = pinned && unselected(around.spec, node, &[]).is_none();
        if honors && !allowed {
            continue;
        }
        let namespace = &around.pod.metadata.namespace;
        let counted = around.on(node).filter(|pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.metadata.namespace == *namespace
                && selects(constraint.label_selector.as_ref(), pod)
        });
        *counts.entry(domain).or_default() += counted.count() as i32;
    }
    counts
}

fn near(spec: &PodSpec) -> Vec<&PodAffinityTerm> {
    let affinity = spec.affinity.as_ref().and_then(|a| a.pod_affinity.as_ref());
    let required = affinity.map(|a| &a.required_during_scheduling_ignored_during_execution);
    required.into_iter().flatten().flatten().collect()
}

fn far(spec: &PodSpec) -> Vec<&PodAffinityTerm> {
    let affinity = spec.affinity.as_ref();
    let affinity = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
    let required = affinity.map(|a| &a.required_during_scheduling_ignored_during_execution);
    required.into_iter().flatten().flatten().collect()
}

/// True if a term of `owner` applies to `other`.
fn matches(term: &PodAffinityTerm, owner: &Pod, other: &Pod) -> bool {
    owner.metadata.namespace == other.metadata.namespace
        && selects(term.label_selector.as_ref(), other)
}

fn insert(into: &mut BTreeSet<Domain>, term: &PodAffinityTerm, node: &Node) {
    if let Some(value) = label(node, &term.topology_key) {
        into.insert((term.topology_key.clone(), value.to_owned()));
    }
}

fn is_in(domains: &BTreeSet<Domain>, key: &str, node: &Node) -> bool {
    label(node, key).is_some_and(|value| domains.contains(&(key.to_owned(), value.to_owned())))
}

/// Reason of required affinity against a node: of the pod, and of running pods.
pub(super) fn affinity(around: Around<'_>, node: &Node) -> Option<&'static str> {
    let Around { pod, spec, .. } = around;
    let (near, far) = (near(spec), far(spec));
    let (mut wanted, mut unwanted, mut closed) = Default::default();
    for at in around.nodes {
        for other in around.on(at) {
            if near.iter().all(|term| matches(term, pod, other)) {
                for term in &near {
                    insert(&mut wanted, term, at);
                }
            }
            for term in far.iter().filter(|term| matches(term, pod, other)) {
                insert(&mut unwanted, term, at);
            }
            let own = other.spec.as_ref().map(self::far).unwrap_or_default();
            for term in own.into_iter().filter(|term| matches(term, other, pod)) {
                insert(&mut closed, term, at);
            }
        }
    }
    // The first pod of a group with mutual affinity may run anywhere.
    let first = wanted.is_empty() && near.iter().all(|term| matches(term, pod, pod));
    let lonely = near.iter().any(|t| {
        let key = &t.topology_key;
        label(node, key).is_none() || !first && !is_in(&wanted, key, node)
    });
    if lonely {
        Some("node(s) didn't match pod affinity rules")
    } else if far.iter().any(|t| is_in(&unwanted, &t.topology_key, node)) {
        Some("node(s) didn't match pod anti-affinity rules")
    } else if closed
        .iter()
        .any(|(key, value)| label(node, key) == Some(value.as_str()))
    {
        Some("node(s) didn't satisfy existing pods anti-affinity rules")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn nodes() -> Vec<Node> {
        let node = |(name, zone): (&str, &str)| {
            let labels = json!({"kubernetes.io/hostname": name, "zone": zone});
            serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
        };
        [("a", "z0"), ("b", "z0"), ("c", "z1")].map(node).into()
    }

    fn pod(app: &str, node: Option<&str>, more: &Value) -> Pod {
        let mut spec = json!({"containers": [], "nodeName": node});
        crate::api::merge(&mut spec, more);
        let meta = json!({"namespace": "ns", "labels": {"app": app}});
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
    }

    /// Nodes that pass a filter, and the reasons against all other nodes.
    fn asked(
        pod: &Pod,
        pods: &[Pod],
        filter: fn(Around<'_>, &Node) -> Option<String>,
    ) -> Vec<Option<String>> {
        let nodes = nodes();
        let around = Around {
            pod,
            spec: pod.spec.as_ref().unwrap(),
            nodes: &nodes,
            pods,
        };
        nodes.iter().map(|node| filter(around, node)).collect()
    }

    fn term(app: &str, key: &str) -> Value {
        let selector = json!({"matchLabels": {"app": app}});
        json!({"requiredDuringSchedulingIgnoredDuringExecution":
            [{"topologyKey": key, "labelSelector": selector}]})
    }

    #[test]
    fn pods_spread_over_domains_and_a_pin_leaves_one_domain_unless_it_is_ignored() {
        let rule = |policy: &str| {
            json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                "nodeAffinityPolicy": policy, "labelSelector": {"matchLabels": {"app": "x"}}}])
        };
        let there = [pod("x", Some("a"), &json!({}))];
        let wants = |more: Value| pod("x", None, &more);
        let broken = Some(SPREAD.to_owned());
        let new = wants(json!({"topologySpreadConstraints": rule("Honor")}));
        assert_eq!(
            asked(&new, &there, spread),
            [broken.clone(), broken.clone(), None]
        );
        let field = json!({"key": "metadata.name", "operator": "In", "values": ["b"]});
        let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
        let pin =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        for (policy, of_b) in [("Honor", None), ("Ignore", broken)] {
            let new = wants(json!({"topologySpreadConstraints": rule(policy), "affinity": pin}));
            assert_eq!(asked(&new, &there, spread)[1], of_b, "{policy}");
        }
        let rack =
            json!([{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]);
        let new = wants(json!({"topologySpreadConstraints": rack}));
        let missing = format!("{SPREAD} (missing required label)");
        assert_eq!(asked(&new, &there, spread)[0], Some(missing));
    }

    #[test]
    fn pods_stay_near_to_some_and_away_from_others() {
        let affine = |around: Around<'_>, node: &Node| affinity(around, node).map(str::to_owned);
        let there = [
            pod("x", Some("a"), &json!({})),
            pod(
                "hermit",
                Some("c"),
                &json!({"affinity": {"podAntiAffinity": term("y", "zone")}}),
            ),
        ];
        let some = |text: &str| Some(text.to_owned());
        let near = pod(
            "x",
            None,
            &json!({"affinity": {"podAffinity": term("x", "zone")}}),
        );
        let lonely = some("node(s) didn't match pod affinity rules");
        assert_eq!(asked(&near, &there, affine), [None, None, lonely.clone()]);
        assert_eq!(asked(&near, &[], affine), [None, None, None], "the first");
        let nobody = pod(
            "x",
            None,
            &json!({"affinity": {"podAffinity": term("nobody", "zone")}}),
        );
        assert_eq!(asked(&nobody, &there, affine), vec![lonely; 3]);
        let far = pod(
            "x",
            None,
            &json!({"affinity": {"podAntiAffinity": term("x", "zone")}}),
        );
        let kept = some("node(s) didn't match pod anti-affinity rules");
        assert_eq!(asked(&far, &there, affine), [kept.clone(), kept, None]);
        let host = term("x", "kubernetes.io/hostname");
        let far = pod("x", None, &json!({"affinity": {"podAntiAffinity": host}}));
        assert_eq!(asked(&far, &there, affine)[1], None);
        let y = pod("y", None, &json!({}));
        let existing = some("node(s) didn't satisfy existing pods anti-affinity rules");
        assert_eq!(asked(&y, &there, affine), [None, None, existing]);
    }
}
