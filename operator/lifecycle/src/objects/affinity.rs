//! Pins a pod to its node, like the DaemonSet controller.

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec,
    Toleration,
};

/// Adds `matchFields metadata.name` to each term of the required node affinity, because terms are
/// alternatives. Empty terms select no node, and would select it with the pin.
pub(super) fn pin(spec: &mut PodSpec, node: &str) {
    let pin = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.to_owned()]),
    };
    let required = spec
        .affinity
        .get_or_insert_with(Affinity::default)
        .node_affinity
        .get_or_insert_with(NodeAffinity::default)
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_with(|| NodeSelector {
            node_selector_terms: vec![],
        });
    if required.node_selector_terms.is_empty() {
        let term = NodeSelectorTerm {
            match_fields: Some(vec![pin]),
            match_expressions: None,
        };
        required.node_selector_terms.push(term);
        return;
    }
    for term in &mut required.node_selector_terms {
        if selects_something(term) {
            term.match_fields
                .get_or_insert_with(Vec::new)
                .push(pin.clone());
        }
    }
}

/// True if the terms of a pod as stored still have the pin of the pod as sent.
pub(super) fn keeps_pin(sent: &PodSpec, stored: &PodSpec) -> bool {
    let pin = terms(sent).first().and_then(pins);
    let stored = terms(stored);
    pin.is_none()
        || !stored.is_empty()
            && stored
                .iter()
                .filter(|t| selects_something(t))
                .all(|t| pins(t) == pin)
}

fn terms(spec: &PodSpec) -> &[NodeSelectorTerm] {
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| {
        a.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    required.map_or(&[], |required| &required.node_selector_terms)
}

/// The pin is the last of the fields.
fn pins(term: &NodeSelectorTerm) -> Option<&NodeSelectorRequirement> {
    term.match_fields.as_ref()?.last()
}

fn selects_something(term: &NodeSelectorTerm) -> bool {
    let lists = [&term.match_expressions, &term.match_fields];
    lists.into_iter().flatten().any(|list| !list.is_empty())
}

const UNREACHABLE: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// `nodeLostSeconds` decides whether members are lost, not the eviction after 300 s. Tolerations in
/// the template take precedence.
pub(super) fn tolerate_unreachable_nodes(spec: &mut PodSpec) {
    let tolerations = spec.tolerations.get_or_insert_with(Vec::new);
    for key in UNREACHABLE {
        if !tolerations.iter().any(|t| is_about(t, key)) {
            tolerations.push(Toleration {
                key: Some(key.into()),
                operator: Some("Exists".into()),
                effect: Some("NoExecute".into()),
                ..Toleration::default()
            });
        }
    }
}

fn is_about(toleration: &Toleration, taint: &str) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    toleration.key.as_deref() == Some(taint) && (effect.is_empty() || effect == "NoExecute")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn terms(spec: serde_json::Value) -> serde_json::Value {
        let mut spec: PodSpec = serde_json::from_value(spec).unwrap();
        pin(&mut spec, "n1");
        let affinity = spec.affinity.unwrap().node_affinity.unwrap();
        serde_json::to_value(
            affinity
                .required_during_scheduling_ignored_during_execution
                .unwrap(),
        )
        .unwrap()["nodeSelectorTerms"]
            .clone()
    }

    #[test]
    fn the_pin_is_anded_into_every_term_of_the_users_affinity() {
        let wanted = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
        assert_eq!(
            terms(json!({"containers": []})),
            json!([{"matchFields": [wanted]}])
        );
        let a = json!({"key": "zone", "operator": "In", "values": ["a"]});
        let b = json!({"key": "zone", "operator": "In", "values": ["b"]});
        let with = json!({"containers": [], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [a]}, {"matchExpressions": [b]}]}}}});
        assert_eq!(
            terms(with),
            json!([{"matchExpressions": [a], "matchFields": [wanted]}, {"matchExpressions": [b], "matchFields": [wanted]}])
        );
    }

    #[test]
    fn a_term_that_selects_nothing_does_not_become_one_that_selects_the_node() {
        let with = json!({"containers": [], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{}]}}}});
        assert_eq!(terms(with), json!([{}]));
    }

    #[test]
    fn a_users_own_toleration_for_unreachable_nodes_stays() {
        let mut spec: PodSpec = serde_json::from_value(json!({"containers": [], "tolerations": [
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]}))
        .unwrap();
        tolerate_unreachable_nodes(&mut spec);
        let tolerations = spec.tolerations.unwrap();
        assert_eq!(tolerations.len(), 2);
        assert_eq!(tolerations[0].toleration_seconds, Some(5));
        assert_eq!(
            (
                tolerations[1].key.as_deref(),
                tolerations[1].toleration_seconds
            ),
            (Some(UNREACHABLE[0]), None)
        );
    }
}
