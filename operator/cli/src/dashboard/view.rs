use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt;
use lockstep_api::workload::CauseKind;
use lockstep_api::{NodeAgent, PodGroup, TrainingWorkload};
use lockstep_model::parse::partial::{PartialBudget, PartialNode, PartialPriorityClass};
use lockstep_model::parse::quota_partial::PartialNamespace;
use lockstep_model::{Pod, Resources, SnapshotFile, Weights};
use serde_json::Value;

use crate::explain::Happened;
use crate::objects::owns;
use crate::queue::{QueueReport, queue_without_places};
use crate::record::{Objects, record, weights};
use crate::top::{UseOfPriority, member_requests, top};

/// Namespace and name.
pub type ObjectName = (String, String);

/// Everything that the pages show, kept up to date by watches. Lists are sorted by namespace and
/// name. `None`: not read yet, or not permitted.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    pub reader: ReaderFacts,
    /// The only namespace that is read.
    pub namespace: Option<String>,
    pub workloads: Option<Vec<TrainingWorkload>>,
    pub groups: Option<Vec<PodGroup>>,
    pub nodes: Option<Vec<PartialNode>>,
    pub agents: Option<Vec<NodeAgent>>,
    pub classes: Option<Vec<PartialPriorityClass>>,
    pub namespaces: Option<Vec<PartialNamespace>>,
    pub budgets: Option<Vec<PartialBudget>>,
    /// Pods of all controllers. Read on request only.
    pub pods: Option<Vec<Pod>>,
    pub pods_requested: bool,
    /// How each kind is read, by plural name.
    pub reads: BTreeMap<String, Read>,
    /// Messages about unreadable objects by plural name of their kind and own name.
    pub unreadable: BTreeMap<(String, ObjectName), String>,
    pub last_read: DateTime<Utc>,
    pub leader: Option<Leader>,
    /// Configuration of the manager: its namespace and text.
    pub configuration: Option<(String, String)>,
    /// Set if the view is a snapshot file.
    pub snapshot: Option<SnapshotFile>,
    pub facts: BTreeMap<ObjectName, WorkloadFacts>,
}

/// Who reads which cluster.
#[derive(Clone, Debug, Default)]
pub struct ReaderFacts {
    pub context: String,
    pub user: Option<String>,
    pub server: String,
}

/// The lease of the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    pub holder: String,
    pub renewed_at: Option<DateTime<Utc>>,
    pub duration_seconds: i64,
}

/// How a kind is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    Watched,
    /// By a list each 10 s, because the right to watch is missing.
    Listed {
        message: String,
    },
    Refused {
        message: String,
    },
    NotServed {
        message: String,
    },
    Failed {
        message: String,
    },
}

/// What is derived once from each version of a workload.
#[derive(Clone, Debug, Default)]
pub struct WorkloadFacts {
    /// Stays the same as long as the workload exists.
    number: usize,
    /// Requests of one member by group.
    requests: BTreeMap<String, Resources>,
}

/// What is read only for the page that shows it.
#[derive(Clone, Debug, Default)]
pub struct PageReads {
    /// Report of the queue with places.
    pub queue: Option<QueueReport>,
    /// Pods of the shown workload.
    pub pods: Option<Vec<core::Pod>>,
    /// Events of the shown workload.
    pub events: Vec<Happened>,
    /// Report of `doctor`.
    pub doctor: Option<Value>,
}

/// What the engine reads: a file, or objects of one namespace or of all.
pub enum EngineInput {
    File(Box<SnapshotFile>),
    Objects(Box<Objects>, Option<String>),
}

impl EngineInput {
    /// As a snapshot. Pods keep the labels with these keys.
    pub fn snapshot(self, keys: &BTreeSet<&str>, now: DateTime<Utc>) -> SnapshotFile {
        match self {
            Self::File(file) => *file,
            Self::Objects(objects, namespace) => record(*objects, keys, namespace, now).0,
        }
    }
}

impl ClusterView {
    pub fn workloads(&self) -> &[TrainingWorkload] {
        self.workloads.as_deref().unwrap_or_default()
    }

    pub fn groups(&self) -> &[PodGroup] {
        self.groups.as_deref().unwrap_or_default()
    }

    /// The workloads of a namespace, or all.
    pub fn workloads_in<'v>(
        &'v self,
        namespace: Option<&'v str>,
    ) -> impl Iterator<Item = &'v TrainingWorkload> {
        let all = self.workloads().iter();
        all.filter(move |w| namespace.is_none() || namespace == w.metadata.namespace.as_deref())
    }

    pub fn workload(&self, namespace: &str, name: &str) -> Option<&TrainingWorkload> {
        let mut all = self.workloads().iter();
        all.find(|w| w.name_any() == name && w.namespace().as_deref() == Some(namespace))
    }

    pub fn groups_of(&self, workload: &TrainingWorkload) -> Vec<PodGroup> {
        let groups = self.groups().iter();
        groups.filter(|g| owns(workload, *g)).cloned().collect()
    }

    /// Derives what depends on a workload. Called for each version of it.
    pub fn note_workload(&mut self, workload: &TrainingWorkload) {
        let groups = workload.spec.groups.iter();
        let requests = groups
            .filter_map(|g| Some((g.name.clone(), member_requests(g)?)))
            .collect();
        let next = self.facts.values().map(|f| f.number + 1).max();
        let facts = self.facts.entry(name_of(workload)).or_default();
        if facts.requests.is_empty() && facts.number == 0 {
            facts.number = next.unwrap_or(1);
        }
        facts.requests = requests;
    }

    /// Forgets workloads that do not exist.
    pub fn forget_workloads(&mut self) {
        let names: BTreeSet<ObjectName> = self.workloads().iter().map(name_of).collect();
        self.facts.retain(|name, _| names.contains(name));
    }

    pub fn number(&self, name: &ObjectName) -> Option<usize> {
        Some(self.facts.get(name)?.number)
    }

    /// Requests of one member of a group.
    pub fn requests(&self, name: &ObjectName, group: &str) -> Option<&Resources> {
        self.facts.get(name)?.requests.get(group)
    }

    pub fn weights(&self) -> Weights {
        if let Some(file) = &self.snapshot {
            return file.namespace_weights.clone();
        }
        weights(self.namespaces.iter().flatten(), self.namespace.as_deref())
    }

    /// Input of the engine: the file, or the objects with these pods.
    pub fn engine_input(&self, pods: Option<Vec<Pod>>) -> EngineInput {
        match &self.snapshot {
            Some(file) => EngineInput::File(Box::new(file.clone())),
            None => EngineInput::Objects(Box::new(self.objects(pods)), self.namespace.clone()),
        }
    }

    /// The objects that were read. Pods: those given, or all pods if they were read.
    pub fn objects(&self, pods: Option<Vec<Pod>>) -> Objects {
        let nodes = self.nodes.iter().flatten();
        let classes = self.classes.iter().flatten();
        let budgets = self.budgets.iter().flatten();
        Objects {
            nodes: nodes.filter_map(|n| n.scheduling().ok()).collect(),
            pods: self.pods.clone().or(pods).unwrap_or_default(),
            budgets: budgets.filter_map(|b| b.scheduling().ok()).collect(),
            classes: classes.filter_map(|c| c.scheduling().ok()).collect(),
            groups: self.groups().to_vec(),
            workloads: self.workloads().to_vec(),
            weights: self.weights(),
            unread: Vec::new(),
        }
    }

    /// The queue: with places if the engine has computed it, else from statuses.
    pub fn queue_report(&self, reads: &PageReads) -> QueueReport {
        let statuses = || {
            let namespace = self.namespace.as_deref().unwrap_or_default();
            queue_without_places(namespace, self.groups(), self.workloads())
        };
        reads.queue.clone().unwrap_or_else(statuses)
    }

    /// Accelerators that workloads hold and request.
    pub fn use_of_accelerators(&self) -> Vec<UseOfPriority> {
        top(self.workloads(), self.groups(), None).rows
    }

    /// Number of incidents since a time by the node of their cause.
    pub fn incidents_by_node(&self, since: DateTime<Utc>) -> BTreeMap<&str, usize> {
        let statuses = self.workloads().iter().filter_map(|w| w.status.as_ref());
        let entries = statuses.flat_map(|s| &s.history);
        let mut out = BTreeMap::new();
        for entry in entries.filter(|e| e.time >= since && e.cause.kind != CauseKind::Preempted) {
            if !entry.cause.node.is_empty() {
                *out.entry(entry.cause.node.as_str()).or_default() += 1;
            }
        }
        out
    }
}

pub fn name_of<K: ResourceExt>(object: &K) -> ObjectName {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Name of a workload in documents: `NAMESPACE/NAME`.
pub fn path_of<K: ResourceExt>(object: &K) -> String {
    let (namespace, name) = name_of(object);
    format!("{namespace}/{name}")
}
