//! One archive for a bug report, from whitelisted fields with pseudonyms for names.

mod archive;
mod content;
mod fields;
mod names;
mod render;
mod texts;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use chrono::{DateTime, Utc};
use lockstep_api::names::labels::WORKLOAD_UID;
use lockstep_api::names::pod_group_name;
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_model::SnapshotFile;
use lockstep_model::parse::partial::{
    PartialBudget, PartialNode, PartialPod, PartialPriorityClass,
};
use lockstep_model::parse::quota_partial::PartialNamespace;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use self::content::NameKind;
pub use self::fields::{Fields, fields};
pub use self::names::{Found, Pseudonyms};
pub use self::render::BugReportSummary;
use self::texts::LEFT_OUT;
use crate::doctor::Diagnosis;
use crate::doctor_facts::InstallFacts;
use crate::file;
use crate::record::{Objects, record, weights};
use crate::version::VersionReport;

/// Kinds of which the snapshot file has all that it needs.
const IN_SNAPSHOT: [&str; 3] = ["namespaces", "priorityclasses", "poddisruptionbudgets"];
/// Prefixes of labels that are kept, beside those that a selector or topology names.
const LABELS: [&str; 6] = [
    "app.kubernetes.io/",
    "kubernetes.io/",
    "node.kubernetes.io/",
    "scheduling.lockstep.dev/",
    "topology.kubernetes.io/",
    "training.lockstep.dev/",
];
/// Label of the pods of managers and agents.
const APP: &str = "app.kubernetes.io/name";

/// What the user has chosen.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// `None`: all namespaces.
    pub namespace: Option<String>,
    /// Names of workloads. Empty: all.
    pub workloads: Vec<String>,
    pub pseudonyms: bool,
    pub logs: bool,
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Material {
    /// Copied fields of objects, by plural name of their kind.
    pub lists: BTreeMap<String, Vec<Value>>,
    pub found: Found,
    pub versions: VersionReport,
    pub doctor: Option<Diagnosis>,
    /// Configuration of the manager, as it is written.
    pub configuration: Option<String>,
    /// Logs by namespace, pod, and container.
    pub logs: Vec<([String; 3], String)>,
    /// What could not be read, a line each.
    pub missing: Vec<String>,
}

/// An archive.
#[derive(Clone, Debug)]
pub struct BugReport {
    /// The file, compressed.
    pub bytes: Vec<u8>,
    /// Each pseudonym with its name; empty without pseudonyms.
    pub names: String,
    pub summary: BugReportSummary,
}

impl Material {
    /// Adds the whitelisted fields of an object.
    pub fn add(&mut self, kind: &str, fields: &Fields, object: Value) {
        let found = &mut self.found;
        let copied = fields.copy("", object, &mut |field, value| found.dropped(field, value));
        if let Some(copied) = copied {
            self.lists.entry(kind.to_owned()).or_default().push(copied);
        }
    }

    /// The chosen workloads, pod groups, orders and pods, and pods of managers and agents.
    pub fn chosen(&self, choice: &Choice) -> BTreeSet<String> {
        let all = &choice.workloads;
        let mut uids = BTreeSet::new();
        for workload in self.of("trainingworkloads") {
            if all.is_empty()
                || all
                    .iter()
                    .any(|name| workload["metadata"]["name"] == **name)
            {
                uids.extend(uid(workload));
            }
        }
        let workloads = uids.clone();
        let owned = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            let mut owners = owners
                .into_iter()
                .flatten()
                .filter_map(|o| o["uid"].as_str());
            owners.any(|owner| workloads.contains(owner))
        };
        for object in self.of("podgroups").chain(self.of("restartorders")) {
            uids.extend(uid(object).filter(|_| owned(object)));
        }
        for pod in self.of("pods") {
            let labels = &pod["metadata"]["labels"];
            let member = labels[WORKLOAD_UID].as_str();
            let app = labels[APP].as_str().unwrap_or_default();
            if member.is_some_and(|w| workloads.contains(w)) || app.starts_with("lockstep") {
                uids.extend(uid(pod));
            }
        }
        uids
    }

    pub fn of(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.lists.get(kind).into_iter().flatten()
    }

    /// The archive.
    pub fn report(mut self, choice: &Choice, now: DateTime<Utc>) -> Result<BugReport> {
        let chosen = self.chosen(choice);
        self.drop_others(&chosen);
        self.note_names(choice.logs);
        let mut configuration = self
            .configuration
            .as_deref()
            .and_then(crate::published::effective);
        if let Some(configuration) = &configuration {
            self.note_configuration(configuration);
        } else if self.configuration.is_some() {
            let line = "configuration of the manager: invalid".to_owned();
            self.missing.push(line);
        }
        if let Some(namespace) = &choice.namespace {
            self.found.name(NameKind::Namespace, namespace);
        }
        let mut names = Pseudonyms::new(&self.found, choice.pseudonyms, choice.logs);
        for group in self.of("podgroups").filter(|_| choice.pseudonyms) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let workload = names.text(&text(&group["spec"]["workloadRef"]["workloadName"]));
            let key = names.text(&text(&group["spec"]["gangKey"]));
            let uid = text(&group["metadata"]["ownerReferences"][0]["uid"]);
            let name = text(&group["metadata"]["name"]);
            names.set(name, pod_group_name(&workload, &uid, &key));
        }
        let all_fields = fields(choice.logs);
        for (kind, list) in &mut self.lists {
            let Some(fields) = all_fields.get(kind) else {
                continue;
            };
            for object in list.iter_mut() {
                fields.visit(object, &mut |content, text| names.replace(content, text));
            }
            list.sort_by_cached_key(|o| {
                let of = |field: &str| o["metadata"][field].as_str().unwrap_or_default().to_owned();
                (of("namespace"), of("name"), o.to_string())
            });
        }
        if let Some(configuration) = &mut configuration {
            replace_all(configuration, &names);
        }
        let namespace = choice.namespace.as_deref().map(|n| names.text(n));
        let snapshot = self.snapshot(namespace, now);
        self.lists
            .retain(|kind, _| !IN_SNAPSHOT.contains(&kind.as_str()));
        for (kind, list) in &mut self.lists {
            list.retain(|object| is_chosen(kind, object, &chosen));
        }
        self.write(choice, now, &names, configuration, snapshot.as_ref())
    }

    /// Drops the arrivals and reports of other workloads.
    fn drop_others(&mut self, chosen: &BTreeSet<String>) {
        let of_chosen = |entry: &Value| {
            let about = ["workloadUID", "podUID"].map(|field| entry[field].as_str());
            about.iter().flatten().any(|uid| chosen.contains(*uid))
        };
        for agent in self.lists.get_mut("nodeagents").into_iter().flatten() {
            let lists = agent["status"].as_object_mut().into_iter().flatten();
            for all in lists.filter_map(|(name, list)| match name.as_str() {
                "arrivals" | "reports" | "progress" | "checkpoints" => list.as_array_mut(),
                _ => None,
            }) {
                all.retain(of_chosen);
            }
        }
    }

    /// Drops other labels, and notes the names in what stays.
    fn note_names(&mut self, logs: bool) {
        let mut keys = BTreeSet::new();
        for object in self.lists.values().flatten() {
            selected_keys(object, &mut keys);
        }
        let all_fields = fields(logs);
        for (kind, list) in &mut self.lists {
            for object in list {
                retain_labels(object, &keys);
                if let Some(fields) = all_fields.get(kind) {
                    let found = &mut self.found;
                    fields.visit(object, &mut |content, text| found.content(content, text));
                }
            }
        }
    }

    /// Notes the names in the lines of the checks, and drops quoted objects.
    pub fn note_facts(&mut self, facts: &mut InstallFacts) {
        let found = &mut self.found;
        for budget in facts.budgets.iter().flatten() {
            found.name(NameKind::Namespace, &budget.namespace);
            found.name(NameKind::Name, &budget.name);
        }
        for queue in facts.kueue.missing_queues.iter().flatten() {
            let (namespace, name) = queue.split_once('/').unwrap_or_default();
            found.name(NameKind::Namespace, namespace);
            found.name(NameKind::Name, name);
        }
        for pod in facts.managers.iter().flatten() {
            found.name(NameKind::Namespace, &pod.namespace);
            found.name(NameKind::Pod, &pod.name);
        }
        for (_, unreadable) in facts.objects.iter_mut().filter_map(|o| o.read.as_mut()) {
            for line in unreadable {
                let about = line.split_once(": ").map_or("", |(about, _)| about);
                let place = about.split_once(' ').map_or("", |(_, place)| place);
                let (namespace, name) = place.split_once('/').unwrap_or(("", place));
                found.name(NameKind::Namespace, namespace);
                found.name(NameKind::Name, name);
                *line = format!("{about}: {LEFT_OUT}");
            }
        }
    }

    fn note_configuration(&mut self, configuration: &Value) {
        let victims = &configuration["scheduler"]["preemption"]["victims"];
        let excluded = victims["excludedNamespaces"]
            .as_array()
            .into_iter()
            .flatten();
        let own = ["agents", "autoscaler"].map(|part| &configuration[part]["namespace"]);
        for namespace in excluded.chain(own) {
            let namespace = namespace.as_str().unwrap_or_default();
            self.found.name(NameKind::Namespace, namespace);
        }
        let labels = victims["excludedLabels"].as_object();
        for value in labels.into_iter().flat_map(|l| l.values()) {
            self.found
                .name(NameKind::Value, value.as_str().unwrap_or_default());
        }
    }

    /// A snapshot of the copied objects. `None` without nodes, which the engine needs.
    fn snapshot(&mut self, namespace: Option<String>, now: DateTime<Utc>) -> Option<SnapshotFile> {
        self.lists.get("nodes")?;
        let nodes: Vec<PartialNode> = self.typed("nodes");
        let pods: Vec<PartialPod> = self.typed("pods");
        let budgets: Vec<PartialBudget> = self.typed("poddisruptionbudgets");
        let classes: Vec<PartialPriorityClass> = self.typed("priorityclasses");
        let namespaces: Vec<PartialNamespace> = self.typed("namespaces");
        let groups: Vec<PodGroup> = self.typed("podgroups");
        let workloads: Vec<TrainingWorkload> = self.typed("trainingworkloads");
        let objects = Objects {
            nodes: nodes.iter().filter_map(|n| n.scheduling().ok()).collect(),
            pods: pods.iter().filter_map(|p| p.scheduling().ok()).collect(),
            budgets: budgets.iter().filter_map(|b| b.scheduling().ok()).collect(),
            classes: classes.iter().filter_map(|c| c.scheduling().ok()).collect(),
            groups,
            workloads,
            weights: weights(&namespaces, namespace.as_deref()),
            unread: Vec::new(),
        };
        Some(record(objects, &BTreeSet::new(), namespace, now).0)
    }

    fn typed<T: DeserializeOwned>(&mut self, kind: &str) -> Vec<T> {
        let objects = self.of(kind).cloned();
        let read: Vec<_> = objects.map(serde_json::from_value).collect();
        let unread = read.iter().filter(|o| o.is_err()).count();
        if unread > 0 {
            let line = format!("{unread} {kind} in the snapshot, because they are invalid");
            self.missing.push(line);
        }
        read.into_iter().filter_map(Result::ok).collect()
    }

    fn write(
        self,
        choice: &Choice,
        now: DateTime<Utc>,
        names: &Pseudonyms,
        configuration: Option<Value>,
        snapshot: Option<&SnapshotFile>,
    ) -> Result<BugReport> {
        let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let versions = serde_json::to_vec_pretty(&self.versions)?;
        files.insert("versions.json".to_owned(), versions);
        if let Some(diagnosis) = &self.doctor {
            let mut doctor = json!(diagnosis);
            for check in doctor["checks"].as_array_mut().into_iter().flatten() {
                replace_all(&mut check["message"], names);
            }
            files.insert(
                "doctor.json".to_owned(),
                serde_json::to_vec_pretty(&doctor)?,
            );
        }
        if let Some(configuration) = configuration {
            let text = serde_saphyr::to_string(&configuration)?;
            files.insert("configuration.yaml".to_owned(), text.into_bytes());
        }
        let mut objects = Vec::new();
        for (kind, list) in &self.lists {
            objects.push((kind.clone(), list.len()));
            let text = serde_json::to_vec_pretty(list)?;
            files.insert(format!("objects/{kind}.json"), text);
        }
        if let Some(snapshot) = snapshot {
            files.insert(render::SNAPSHOT.to_owned(), file::pack(snapshot)?);
        }
        for (place, log) in &self.logs {
            let [namespace, pod, container] = place.each_ref().map(|name| names.text(name));
            let log: String = log.lines().map(|l| names.text(l) + "\n").collect();
            let path = format!("logs/{namespace}/{pod}.{container}.log");
            files.insert(path, log.into_bytes());
        }
        let mut summary = BugReportSummary {
            bytes: 0,
            objects,
            snapshot: snapshot.map(|s| [s.nodes.len(), s.gangs.len()]),
            logs: choice.logs.then_some(self.logs.len()),
            pseudonyms: choice.pseudonyms,
            missing: self.missing.iter().map(|line| names.text(line)).collect(),
            ..BugReportSummary::default()
        };
        files.insert("README.txt".to_owned(), summary.readme(now).into_bytes());
        let bytes = archive::pack(&files, now)?;
        summary.bytes = bytes.len();
        Ok(BugReport {
            bytes,
            names: if choice.pseudonyms {
                names.table()
            } else {
                String::new()
            },
            summary,
        })
    }
}

fn uid(object: &Value) -> Option<String> {
    object["metadata"]["uid"].as_str().map(str::to_owned)
}

fn is_chosen(kind: &str, object: &Value, chosen: &BTreeSet<String>) -> bool {
    match kind {
        "trainingworkloads" | "podgroups" | "restartorders" | "pods" => {
            uid(object).is_some_and(|uid| chosen.contains(&uid))
        }
        "events" => {
            let about = &object["involvedObject"];
            let uid = about["uid"].as_str().unwrap_or_default();
            about["kind"] == "Node" || chosen.contains(uid)
        }
        _ => true,
    }
}

/// Keys of labels in selectors and topologies.
fn selected_keys(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Array(all) => all.iter().for_each(|v| selected_keys(v, keys)),
        Value::Object(all) => {
            for (name, value) in all {
                match (name.as_str(), value) {
                    ("matchLabels" | "nodeSelector", Value::Object(labels)) => {
                        keys.extend(labels.keys().cloned());
                    }
                    ("key" | "topologyKey", Value::String(key)) => {
                        keys.insert(key.clone());
                    }
                    _ => selected_keys(value, keys),
                }
            }
        }
        _ => {}
    }
}

fn retain_labels(value: &mut Value, keys: &BTreeSet<String>) {
    let kept = |key: &str| keys.contains(key) || LABELS.iter().any(|known| key.starts_with(known));
    match value {
        Value::Array(all) => all.iter_mut().for_each(|v| retain_labels(v, keys)),
        Value::Object(all) => {
            for (name, value) in all {
                match value {
                    Value::Object(labels) if name == "labels" => labels.retain(|key, _| kept(key)),
                    value => retain_labels(value, keys),
                }
            }
        }
        _ => {}
    }
}

fn replace_all(value: &mut Value, names: &Pseudonyms) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|v| replace_all(v, names)),
        Value::Object(all) => all.values_mut().for_each(|v| replace_all(v, names)),
        Value::String(text) => *text = names.text(text),
        _ => {}
    }
}
