//! The workload under construction.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::error::{ConvertError, Result};
use crate::field::{Entry, Fate, FieldsAt, Path, PathStep, find_entry};

/// A comment about a field that has no equal in the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// JSON pointer to the part of the workload below the comment.
    pub at: String,
    /// The field of the origin, what happened to it, and what to do.
    pub text: String,
}

/// Restarts allowed at most by the API.
const MOST_RESTARTS: i64 = 100;
/// The longest window of the restart budget: the budget of other controllers has no window.
const LONGEST_WINDOW: i64 = 31_536_000;

/// Values that need no comment: the origin's own controller, and `cleanPodPolicy` as in Lockstep.
const PLAIN: [&str; 6] = [
    "Running",
    "jobset.sigs.k8s.io/jobset-controller",
    "kubeflow.org/mpi-operator",
    "kubeflow.org/training-operator",
    "kubernetes.io/job-controller",
    "trainer.kubeflow.org/trainjob-controller",
];

/// The workload, its comments, and the fields of the origin that became its groups.
#[derive(Debug)]
pub struct Draft {
    /// The object from which groups and policies are read.
    pub origin: Value,
    pub workload: Value,
    pub notes: Vec<Note>,
    /// Begins the paths of notes: empty, or the document that they are in.
    pub label: &'static str,
    /// Path in the origin, and index of the group.
    roles: Vec<(String, usize)>,
}

impl Draft {
    /// Starts with the metadata of an object. `names` are those of the other workloads of the input.
    pub fn new(origin: &Value, names: &BTreeSet<String>) -> Result<Self> {
        let metadata = &origin["metadata"];
        let prefix = text(metadata, "generateName");
        let derived = prefix.map(|prefix| derived_name(prefix, names));
        let Some(name) = text(metadata, "name").or(derived.as_deref()) else {
            return Err(ConvertError::NoName);
        };
        let mut kept = Map::new();
        kept.insert("name".into(), json!(name));
        for field in ["namespace", "labels", "annotations"] {
            let mut value = metadata[field].clone();
            if let Some(entries) = value.as_object_mut() {
                entries.remove("kubectl.kubernetes.io/last-applied-configuration");
            }
            if !trivial(&value) {
                kept.insert(field.into(), value);
            }
        }
        let mut draft = Self {
            origin: origin.clone(),
            workload: json!({
                "apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
                "metadata": kept, "spec": {"groups": []},
            }),
            notes: Vec::new(),
            label: "",
            roles: Vec::new(),
        };
        if let (None, Some(prefix)) = (text(metadata, "name"), prefix) {
            let text = "a name is derived, because members find each other by it. Change it for each run, or delete the workload before the next.";
            let path = format!("metadata.generateName: {prefix}");
            draft.note("/metadata/name", &path, text);
        }
        Ok(draft)
    }

    pub fn name(&self) -> &str {
        self.workload["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
    }

    /// Name of the headless Service.
    pub fn subdomain(&self) -> &str {
        let subdomain = self
            .workload
            .pointer("/spec/network/subdomain")
            .and_then(Value::as_str);
        subdomain.unwrap_or_else(|| self.name())
    }

    pub fn note(&mut self, at: &str, path: &str, text: &str) {
        let note = Note {
            at: at.to_owned(),
            text: format!("{}{path}: {text}", self.label),
        };
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds a group. `role` is the path of its source in the origin.
    pub fn add_group(&mut self, role: &str, group: Value) -> Result<usize> {
        let groups = self.groups_mut()?;
        groups.push(group);
        let index = groups.len() - 1;
        self.roles.push((role.to_owned(), index));
        Ok(index)
    }

    pub fn groups(&self) -> &[Value] {
        let groups = self.workload["spec"]["groups"].as_array();
        groups.map_or(&[], Vec::as_slice)
    }

    pub fn groups_mut(&mut self) -> Result<&mut Vec<Value>> {
        let groups = self.workload.pointer_mut("/spec/groups");
        groups
            .and_then(Value::as_array_mut)
            .ok_or(ConvertError::NoGroups)
    }

    /// Joins the second group to the first, if only the number of members differs. `name` names the
    /// joined group.
    pub fn join_equal_groups(&mut self, name: &str) -> Result<()> {
        let [first, second] = self.groups() else {
            return Ok(());
        };
        if first["template"] != second["template"] {
            return Ok(());
        }
        let total = self.replicas(first) + self.replicas(second);
        let groups = self.groups_mut()?;
        groups.truncate(1);
        groups[0]["name"] = json!(name);
        groups[0]["replicas"] = json!(total);
        for (_, index) in &mut self.roles {
            *index = 0;
        }
        Ok(())
    }

    /// Number of failure rules.
    pub fn rules(&self) -> usize {
        let rules = self.workload.pointer("/spec/failurePolicy/rules");
        rules.and_then(Value::as_array).map_or(0, Vec::len)
    }

    pub fn members(&self) -> i64 {
        let members = |group| self.replicas(group) * size(group);
        self.groups().iter().map(members).sum()
    }

    pub fn replicas(&self, group: &Value) -> i64 {
        let own = group["replicas"].as_i64();
        own.or(self.workload["spec"]["replicas"].as_i64())
            .unwrap_or(1)
    }

    /// Sets a field of the workload, and its parents.
    pub fn set(&mut self, pointer: &str, value: Value) {
        set(&mut self.workload, pointer, value);
    }

    /// Appends to a list of the workload. Returns the pointer to the new item.
    pub fn push(&mut self, pointer: &str, value: Value) -> String {
        if self.workload.pointer(pointer).is_none() {
            self.set(pointer, json!([]));
        }
        let list = self.workload.pointer_mut(pointer);
        let mut n = 0;
        if let Some(list) = list.and_then(Value::as_array_mut) {
            n = list.len();
            list.push(value);
        }
        format!("{pointer}/{n}")
    }

    /// The restart budget over the whole life of the workload.
    pub fn limit_restarts(&mut self, path: &str, restarts: i64) {
        let kept = restarts.clamp(0, MOST_RESTARTS);
        self.set(
            "/spec/failurePolicy/limits",
            json!({"maxRestarts": kept, "windowSeconds": LONGEST_WINDOW}),
        );
        if kept != restarts {
            let text = format!("{restarts} restarts are limited to {MOST_RESTARTS}.");
            self.note("/spec/failurePolicy/limits", path, &text);
        }
    }

    /// The priority class of all members. The first class counts.
    pub fn prioritize(&mut self, path: &str, class: &str) {
        let field = "/spec/priorityClassName";
        let set = self.workload.pointer(field).and_then(Value::as_str);
        match set.map(str::to_owned) {
            None => self.set(field, json!(class)),
            Some(other) if other != class => {
                let text = format!("{class} differs. All members have one class, {other}.");
                self.note(field, path, &text);
            }
            Some(_) => {}
        }
    }

    /// Makes the gang elastic if fewer than all members are enough. Origins take 0 for all members.
    pub fn elastic(&mut self, path: &str, minimum: i64) {
        if (1..self.members()).contains(&minimum) {
            let field = "/spec/scheduling/gang/minCount";
            self.set(field, json!(minimum));
            let text = "the gang starts with this number of members and may grow and shrink, with another world size. Remove it if the training needs all members.";
            self.note(field, path, text);
        }
    }

    /// Makes `spec.replicas` count a group, so that autoscalers can change it. One replica of several
    /// members becomes as many replicas of one member, because the size of replicas is fixed.
    pub fn scale_group(&mut self, name: &str) -> Result<()> {
        let mut groups = self.groups().iter();
        let Some(at) = groups.position(|group| group["name"] == name) else {
            return Ok(());
        };
        let mut replicas = self.replicas(&self.groups()[at]);
        let group = &mut self.groups_mut()?[at];
        if replicas == 1 {
            replicas = size(group);
            set(group, "/size", Value::Null);
        }
        if let Some(fields) = group.as_object_mut() {
            fields.retain(|key, value| key != "replicas" && !value.is_null());
        }
        self.set("/spec/replicas", json!(replicas));
        Ok(())
    }

    /// Applies a table to a document: copies fields, and notes or refuses the rest.
    pub fn report(&mut self, document: &Value, table: &[FieldsAt]) -> Result<()> {
        self.visit(&Path::default(), document, table)
    }

    fn visit(&mut self, path: &Path, value: &Value, table: &[FieldsAt]) -> Result<()> {
        let entry = match (path == &Path::default(), value) {
            (true, _) => Entry::Inner,
            (false, _) => find_entry(table, path),
        };
        // An empty list or object enables a plugin or a policy.
        let enables = (value.is_array() || value.is_object())
            && matches!(entry, Entry::Field(Fate::Noted(..) | Fate::Refused(_)));
        if trivial(value) && !enables {
            return Ok(());
        }
        let shown = path.to_string();
        match (entry, value) {
            (Entry::Field(fate), _) => self.apply(fate, &shown, value)?,
            (Entry::Inner, Value::Object(fields)) => {
                for (key, value) in fields {
                    self.visit(&path.then(PathStep::Key(key.clone())), value, table)?;
                }
            }
            (Entry::Inner, Value::Array(items)) => {
                for (n, value) in items.iter().enumerate() {
                    self.visit(&path.then(PathStep::Index(n)), value, table)?;
                }
            }
            (Entry::Inner, _) => {
                let (path, value) = (format!("{}{shown}", self.label), value.to_string());
                return Err(ConvertError::NoParts { path, value });
            }
            (Entry::Unknown, _) => {
                let at = self.place(&shown, "");
                let text = "unknown field, not converted. Check whether the workload needs it.";
                self.note(&at, &with_value(&shown, value), text);
            }
        }
        Ok(())
    }

    fn apply(&mut self, fate: Fate, path: &str, value: &Value) -> Result<()> {
        match fate {
            Fate::Copied(to) => self.set(to, value.clone()),
            Fate::Mapped(_) | Fate::Omitted(_) => {}
            Fate::Noted(..) if PLAIN.iter().any(|plain| value == plain) => {}
            Fate::Noted(at, advice) => {
                let at = self.place(path, at);
                self.note(&at, &with_value(path, value), advice);
            }
            Fate::Refused(why) => {
                let field = format!("{}{}", self.label, with_value(path, value));
                return Err(ConvertError::Field { field, why });
            }
        }
        Ok(())
    }

    /// Pointer to a part of the group that a field belongs to, or of the workload.
    pub fn place(&self, path: &str, at: &str) -> String {
        let below = |role: &str| {
            let rest = path.strip_prefix(role);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        match self.roles.iter().find(|(role, _)| below(role)) {
            Some((_, index)) => format!("/spec/groups/{index}{at}"),
            None if at.is_empty() => "/spec".to_owned(),
            None => at.to_owned(),
        }
    }
}

/// The beginning of generated names as a name, with a number if another workload has it.
fn derived_name(prefix: &str, names: &BTreeSet<String>) -> String {
    let name = prefix.trim_end_matches(['-', '.']).to_owned();
    let numbered = (2..).map(|n| format!("{name}-{n}"));
    let mut free = std::iter::once(name.clone()).chain(numbered);
    free.find(|name| !names.contains(name)).unwrap_or(name)
}

/// Values that say nothing: absent, false, empty.
pub fn trivial(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// A path, with its value if that is short.
fn with_value(path: &str, value: &Value) -> String {
    match value {
        Value::String(text) if text.len() <= 40 => format!("{path}: {text}"),
        Value::Number(_) | Value::Bool(_) => format!("{path}: {value}"),
        _ => path.to_owned(),
    }
}

pub fn size(group: &Value) -> i64 {
    group["size"].as_i64().unwrap_or(1)
}

pub fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut at = object;
    for key in pointer.split('/').skip(1) {
        at = match key.parse::<usize>() {
            Ok(index) if at.is_array() => &mut at[index],
            _ => &mut at[key],
        };
    }
    *at = value;
}

/// A value below an object, by keys with dots between.
pub fn child<'v>(object: &'v Value, path: &str) -> Option<&'v Value> {
    let mut at = object;
    for key in path.split('.') {
        at = at.get(key)?;
    }
    (!at.is_null()).then_some(at)
}

/// An integer below an object; `shown` is the path of the object.
pub fn int(object: &Value, shown: &str, path: &str) -> Result<Option<i64>> {
    let Some(value) = child(object, path) else {
        return Ok(None);
    };
    let Some(number) = value.as_i64() else {
        let (path, value) = (format!("{shown}.{path}"), value.to_string());
        return Err(ConvertError::NoNumber { path, value });
    };
    Ok(Some(number))
}

/// The elements of a list below an object, each with its path.
pub fn list<'v>(object: &'v Value, shown: &str, path: &str) -> Result<Vec<(String, &'v Value)>> {
    let Some(value) = child(object, path) else {
        return Ok(Vec::new());
    };
    let Some(items) = value.as_array() else {
        let path = format!("{shown}.{path}");
        return Err(ConvertError::NoList { path });
    };
    let named = items
        .iter()
        .enumerate()
        .map(|(n, item)| (format!("{shown}.{path}[{n}]"), item));
    Ok(named.collect())
}

/// Text below an object; other values count as absent.
pub fn text<'v>(object: &'v Value, path: &str) -> Option<&'v str> {
    let text = child(object, path).and_then(Value::as_str);
    text.filter(|text| !text.is_empty())
}
