//! Nodes that admit a pod: selectors, required affinity, taints, cordons. Evaluated per template
//! and class of nodes ([`crate::nodes::node_class`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

use lockstep_api::names::RESTART_ALL_FEATURE;
use lockstep_engine::NodeSet;

use crate::cluster::Snapshot;
use crate::nodes::node::Node;
use crate::nodes::node_class::{BINDING_EFFECTS, ClassId, HOSTNAME};

/// The only field that kube-scheduler supports in `matchFields`.
const NAME_FIELD: &str = "metadata.name";
/// Restart rule action of KEP-5532.
const RESTART_ALL: &str = "RestartAllContainers";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints {
    selector: BTreeMap<String, String>,
    /// Alternative terms. `None`: no affinity. An empty list matches no node.
    affinity: Option<Vec<NodeSelectorTerm>>,
    tolerations: Vec<Toleration>,
    /// True if a restart rule restarts the whole pod, which requires a node that declares support.
    restarts_all: bool,
    /// Volume topology: a node must match one term of each list.
    volumes: Vec<Vec<NodeSelectorTerm>>,
}

impl From<&PodSpec> for Constraints {
    fn from(spec: &PodSpec) -> Self {
        let affinity = spec
            .affinity
            .as_ref()
            .and_then(|a| a.node_affinity.as_ref())
            .and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })
            .map(|s| s.node_selector_terms.clone());
        Self {
            selector: spec.node_selector.clone().unwrap_or_default(),
            affinity,
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            restarts_all: restarts_all(spec),
            volumes: Vec::new(),
        }
    }
}

impl Constraints {
    #[must_use]
    pub fn with_volumes(self, volumes: Vec<Vec<NodeSelectorTerm>>) -> Self {
        Self { volumes, ..self }
    }

    /// True if nodes of one class can have different verdicts.
    fn names_nodes(&self) -> bool {
        let mut terms = self.affinity.iter().chain(&self.volumes).flatten();
        self.selector.contains_key(HOSTNAME) || terms.any(term_names_nodes)
    }

    pub fn admit(&self, node: &Node) -> bool {
        node.state.takes_pods()
            && self
                .selector
                .iter()
                .all(|(k, v)| node.labels.get(k) == Some(v))
            && self
                .affinity
                .as_ref()
                .is_none_or(|terms| terms.iter().any(|t| term_matches(t, node)))
            && self
                .volumes
                .iter()
                .all(|terms| terms.iter().any(|t| term_matches(t, node)))
            && node.taints.iter().all(|t| self.tolerates(t))
            && (!self.restarts_all || node.features.contains(RESTART_ALL_FEATURE))
    }

    fn tolerates(&self, taint: &Taint) -> bool {
        !BINDING_EFFECTS.contains(&taint.effect.as_str())
            || self.tolerations.iter().any(|t| tolerates(t, taint))
    }
}

/// True if a container has a rule that restarts all containers (KEP-5532).
fn restarts_all(spec: &PodSpec) -> bool {
    let inits = spec.init_containers.iter().flatten();
    let containers = inits.chain(&spec.containers);
    let mut rules = containers.flat_map(|c| c.restart_policy_rules.iter().flatten());
    rules.any(|rule| rule.action == RESTART_ALL)
}

/// Verdicts per template and class of nodes, shared by templates with equal constraints.
#[derive(Debug, Default)]
pub struct Verdicts {
    templates: HashMap<String, TemplateVerdict>,
    verdicts: Vec<Verdict>,
}

#[derive(Debug)]
struct TemplateVerdict {
    verdict: usize,
    used: bool,
}

#[derive(Debug)]
struct Verdict {
    constraints: Constraints,
    admitted: HashMap<ClassId, bool>,
    /// Result for a version of the nodes.
    nodes: Option<(u64, Arc<NodeSet>)>,
}

impl Verdicts {
    /// Nodes that admit a template. The key must identify its constraints, except volumes.
    pub fn eligible(
        &mut self,
        key: &str,
        constraints: &Constraints,
        snapshot: &Snapshot,
    ) -> Arc<NodeSet> {
        let at = self.index_of(key, constraints);
        let verdict = &mut self.verdicts[at];
        if let Some((version, nodes)) = &verdict.nodes
            && *version == snapshot.nodes_version()
        {
            return Arc::clone(nodes);
        }
        let names_nodes = constraints.names_nodes();
        let mut set = NodeSet::with_capacity(snapshot.node_count());
        for ix in 0..snapshot.node_count() {
            let (Some(node), Some(class)) = (snapshot.node(ix), snapshot.class(ix)) else {
                continue;
            };
            let admitted = if names_nodes {
                constraints.admit(node)
            } else {
                *verdict
                    .admitted
                    .entry(class)
                    .or_insert_with(|| constraints.admit(node))
            };
            set.set(ix, admitted);
        }
        let nodes = Arc::new(set);
        verdict.nodes = Some((snapshot.nodes_version(), Arc::clone(&nodes)));
        nodes
    }

    fn index_of(&mut self, key: &str, constraints: &Constraints) -> usize {
        if let Some(template) = self.templates.get_mut(key)
            && self.verdicts[template.verdict].constraints.volumes == constraints.volumes
        {
            template.used = true;
            return template.verdict;
        }
        let mut verdicts = self.verdicts.iter();
        let existing = verdicts.position(|verdict| verdict.constraints == *constraints);
        let verdict = existing.unwrap_or(self.verdicts.len());
        if existing.is_none() {
            self.verdicts.push(Verdict {
                constraints: constraints.clone(),
                admitted: HashMap::new(),
                nodes: None,
            });
        }
        let used = true;
        self.templates
            .insert(key.to_owned(), TemplateVerdict { verdict, used });
        verdict
    }

    /// Drops templates that were not used since the last call.
    pub fn retain_used(&mut self) {
        self.templates.retain(|_, t| std::mem::take(&mut t.used));
        let used: BTreeSet<usize> = self.templates.values().map(|t| t.verdict).collect();
        if used.len() == self.verdicts.len() {
            return;
        }
        let mut at = 0..;
        self.verdicts
            .retain(|_| at.next().is_some_and(|at| used.contains(&at)));
        let moved: BTreeMap<usize, usize> = used.into_iter().zip(0..).collect();
        for template in self.templates.values_mut() {
            template.verdict = moved[&template.verdict];
        }
    }
}

/// `Toleration.ToleratesTaint` of k8s.io/api, for the operators Exists and Equal.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => {
            !key.is_empty()
                && toleration.value.as_deref().unwrap_or_default()
                    == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    }
}

/// True if the term may distinguish nodes of one class, by host name or by a field.
fn term_names_nodes(term: &NodeSelectorTerm) -> bool {
    let mut expressions = term.match_expressions.iter().flatten();
    let mut fields = term.match_fields.iter().flatten();
    expressions.any(|r| r.key == HOSTNAME) || fields.next().is_some()
}

fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    // An empty term matches no node.
    (!expressions.is_empty() || !fields.is_empty())
        && expressions
            .iter()
            .all(|r| requirement_matches(r, node.labels.get(&r.key).map(String::as_str)))
        && fields
            .iter()
            .all(|r| r.key == NAME_FIELD && requirement_matches(r, Some(node.name.as_str())))
}

fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|v| values.iter().any(|w| w == v));
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compares(value, values, |have, bound| have > bound),
        "Lt" => compares(value, values, |have, bound| have < bound),
        _ => false,
    }
}

/// Compares a numeric value with the single numeric bound.
fn compares(value: Option<&str>, values: &[String], holds: fn(i64, i64) -> bool) -> bool {
    match (value.map(str::parse), values) {
        (Some(Ok(have)), [bound]) => bound.parse().is_ok_and(|bound| holds(have, bound)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_api::NodeState;

    use crate::nodes::node_class::NodeClass;
    use crate::test_support::{cordoned, silent};
    use serde_json::{Value, json};

    fn constraints(mut spec: Value) -> Constraints {
        spec["containers"] = json!([]);
        Constraints::from(&serde_json::from_value::<PodSpec>(spec).unwrap())
    }

    fn node(name: &str) -> Node {
        let labels = [("zone", "a"), ("gen", "7"), (HOSTNAME, name)];
        Node {
            labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            state: NodeState::default(),
            ..Node::bare(name.parse().unwrap())
        }
    }

    fn affinity(terms: &Value) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
        json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}])
    }

    #[test]
    fn node_selector_terms_are_judged_as_kube_scheduler_judges_them() {
        for (terms, admitted) in [
            (expression("zone", "In", &["b", "a"]), true),
            (expression("zone", "In", &["b"]), false),
            (expression("zone", "NotIn", &["a"]), false),
            (expression("rack", "NotIn", &["a"]), true),
            (expression("rack", "Exists", &[]), false),
            (expression("rack", "DoesNotExist", &[]), true),
            (expression("gen", "Gt", &["6"]), true),
            (expression("gen", "Gt", &["7"]), false),
            (expression("gen", "Lt", &["8"]), true),
            (expression("zone", "Lt", &["8"]), false),
            (expression("zone", "Matches", &["a"]), false),
            (json!([]), false),
            (json!([{}]), false),
            (
                json!([{}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]),
                true,
            ),
            (
                json!([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}]),
                false,
            ),
            (
                json!([{"matchFields": [{"key": "spec.x", "operator": "Exists"}]}]),
                false,
            ),
        ] {
            assert_eq!(
                constraints(affinity(&terms)).admit(&node("n1")),
                admitted,
                "{terms}"
            );
        }
    }

    #[test]
    fn every_label_of_the_node_selector_must_be_there() {
        assert!(constraints(json!({"nodeSelector": {"zone": "a", "gen": "7"}})).admit(&node("n1")));
        assert!(
            !constraints(json!({"nodeSelector": {"zone": "a", "gen": "8"}})).admit(&node("n1"))
        );
    }

    #[test]
    fn taints_keep_away_what_does_not_tolerate_them() {
        let mut tainted = node("n1");
        tainted.taints = vec![Taint {
            key: "gpu".into(),
            value: Some("yes".into()),
            effect: "NoSchedule".into(),
            time_added: None,
        }];
        for (toleration, admitted) in [
            (json!([]), false),
            (json!([{"key": "gpu", "value": "yes"}]), true),
            (json!([{"key": "gpu", "value": "no"}]), false),
            (json!([{"key": "gpu", "operator": "Exists"}]), true),
            (
                json!([{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]),
                false,
            ),
            (json!([{"operator": "Exists"}]), true),
            (json!([{"value": "yes"}]), false),
        ] {
            assert_eq!(
                constraints(json!({"tolerations": toleration})).admit(&tainted),
                admitted,
                "{toleration}"
            );
        }
        tainted.taints[0].effect = "PreferNoSchedule".into();
        assert!(Constraints::default().admit(&tainted));
    }

    #[test]
    fn a_cordoned_node_admits_only_tolerating_pods_and_a_not_ready_node_none() {
        let tolerant = constraints(json!({"tolerations": [{"operator": "Exists"}]}));
        let cordoned = cordoned(node("n1"));
        assert!(!Constraints::default().admit(&cordoned) && tolerant.admit(&cordoned));
        assert!(!tolerant.admit(&silent(node("n1"))));
    }

    #[test]
    fn a_pod_that_restarts_whole_needs_a_node_that_declares_that_it_can() {
        let rule = json!([{"action": "RestartAllContainers",
            "exitCodes": {"operator": "In", "values": [88]}}]);
        let watcher = json!({"name": "w", "restartPolicy": "Always", "restartPolicyRules": rule});
        let whole = constraints(json!({"initContainers": [watcher]}));
        let able = Node {
            features: [RESTART_ALL_FEATURE.to_owned()].into(),
            ..node("n1")
        };
        assert!(whole.admit(&able) && !whole.admit(&node("n1")));
        assert!(Constraints::default().admit(&node("n1")));
        assert_ne!(NodeClass::of(&able), NodeClass::of(&node("n1")));
    }

    #[test]
    fn nodes_that_differ_in_name_alone_are_one_class_unless_the_pod_names_nodes() {
        assert_eq!(NodeClass::of(&node("n1")), NodeClass::of(&node("n2")));
        assert_ne!(
            NodeClass::of(&node("n1")),
            NodeClass::of(&cordoned(node("n1")))
        );
        assert!(!constraints(json!({"nodeSelector": {"zone": "a"}})).names_nodes());
        assert!(constraints(json!({"nodeSelector": {HOSTNAME: "n1"}})).names_nodes());
        assert!(constraints(affinity(&expression(HOSTNAME, "In", &["n1"]))).names_nodes());
    }

    #[test]
    fn only_a_changed_node_is_judged_again() {
        let mut model = crate::ClusterModel::default();
        for name in ["n1", "n2"] {
            model.upsert_node(node(name));
        }
        let mut verdicts = Verdicts::default();
        let any = Constraints::default();
        let mut check = |model: &crate::ClusterModel| {
            let set = verdicts.eligible("t", &any, &model.snapshot());
            (
                set.ones().collect::<Vec<_>>(),
                verdicts.verdicts[0].admitted.len(),
            )
        };
        assert_eq!(check(&model), (vec![0, 1], 1));
        model.upsert_node(cordoned(node("n2")));
        assert_eq!(check(&model), (vec![0], 2));
        model.upsert_node(node("n2"));
        assert_eq!(check(&model), (vec![0, 1], 2));
    }
}
