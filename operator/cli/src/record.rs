//! Converts the objects of a cluster to a snapshot.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_model::parse::quota_partial::PartialNamespace;
use lockstep_model::snapshot::{
    BudgetRecord, GangRecord, NodeRecord, PodRecord, PriorityClassRecord, VERSION, selected_keys,
};
use lockstep_model::{Budget, Node, Pod, PriorityClass, SnapshotFile, Weights};
use lockstep_scheduler::{GangInput, PodSource, snapshot};

/// Objects of a scheduling decision, sorted by namespace and name.
#[derive(Debug, Default)]
pub struct Objects {
    pub nodes: Vec<Node>,
    pub pods: Vec<Pod>,
    pub budgets: Vec<Budget>,
    pub classes: Vec<PriorityClass>,
    pub groups: Vec<PodGroup>,
    pub workloads: Vec<TrainingWorkload>,
    /// Weights of namespaces in the queue.
    pub weights: Weights,
    pub unread: Vec<String>,
}

/// Weights in the queue of one namespace, or of all.
pub fn weights<'n>(
    namespaces: impl IntoIterator<Item = &'n PartialNamespace>,
    only: Option<&str>,
) -> Weights {
    let all = namespaces.into_iter();
    let named = all.filter_map(|n| Some((n.metadata.name.clone()?, n.weight().ok()??)));
    let chosen = named.filter(|(name, _)| only.is_none_or(|only| only == name));
    chosen.collect()
}

/// The snapshot, and messages about omitted objects. Pods keep the labels with these keys and the
/// labels that budgets and required anti-affinity select.
pub fn record(
    objects: Objects,
    keys: &BTreeSet<&str>,
    namespace: Option<String>,
    now: DateTime<Utc>,
) -> (SnapshotFile, Vec<String>) {
    let Objects {
        nodes,
        pods,
        budgets,
        classes,
        groups,
        workloads,
        weights,
        mut unread,
    } = objects;
    let by_uid: BTreeMap<&str, &TrainingWorkload> = workloads
        .iter()
        .filter_map(|w| Some((w.metadata.uid.as_deref()?, w)))
        .collect();
    let budgets: Vec<BudgetRecord> = budgets.iter().map(BudgetRecord::of).collect();
    let terms = pods.iter().filter_map(|pod| pod.anti_affinity.as_deref());
    let selectors = terms.flatten().filter_map(|t| t.label_selector.as_ref());
    let mut keys = keys.clone();
    keys.extend(selectors.flat_map(selected_keys));
    let mut label_keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for budget in &budgets {
        label_keys
            .entry(&budget.namespace)
            .or_insert_with(|| keys.clone())
            .extend(budget.label_keys());
    }
    let keys_in = |namespace: &str| label_keys.get(namespace).unwrap_or(&keys);
    let mut recorded: Vec<GangRecord> = Vec::new();
    for group in &groups {
        let owners = group.metadata.owner_references.iter().flatten();
        let owner = owners
            .filter(|o| o.controller == Some(true))
            .find_map(|o| by_uid.get(o.uid.as_str()));
        let Some(workload) = owner.filter(|w| w.metadata.namespace == group.metadata.namespace)
        else {
            continue;
        };
        let class = group.spec.gang.priority_class_name.as_deref();
        let class = PriorityClass::resolve(class, classes.iter());
        let class = class.ok().flatten();
        // The status of gangs held for missing storage has a condition.
        let gang = GangInput::read(group, workload, class, PodSource::Templates, None);
        // A pod group without a workload is not Lockstep's.
        let Some(gang) = gang else {
            continue;
        };
        match snapshot::record(&gang, &nodes, keys_in(&gang.key.namespace)) {
            Ok(gang) => recorded.push(gang),
            Err(why) => unread.push(format!("podgroup {}: {why}", gang.key.name)),
        }
    }
    let file = SnapshotFile {
        version: VERSION,
        taken_at: now,
        namespace,
        nodes: nodes.iter().map(NodeRecord::of).collect(),
        pods: pods
            .iter()
            .filter_map(|p| PodRecord::of(p, keys_in(&p.namespace)))
            .collect(),
        gangs: recorded,
        priority_classes: classes.into_iter().map(PriorityClassRecord::from).collect(),
        budgets: budgets.clone(),
        namespace_weights: weights,
    };
    (file, unread)
}
