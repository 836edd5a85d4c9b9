//! Checks and changes before an object is stored: quota, webhook, priority, and refusals that a
//! test requests.

use lockstep_manager::stepped::WatchedKind;
use serde_json::{Value, json};

use super::answer::Refused;
use super::log::Verb;
use super::store::{Store, over};

/// Changes or refuses a pod before it is stored.
pub type Webhook = Box<dyn Fn(&mut Value) -> Result<(), Refused> + Send>;

/// Refuses writes of one verb on objects of one kind.
#[derive(Clone, Debug)]
pub struct Rule {
    pub kind: WatchedKind,
    pub verb: Verb,
    /// Name of the object. `None`: all.
    pub name: Option<String>,
    pub answer: Refused,
}

/// Checks between a request and the storage.
#[derive(Default)]
pub struct Admission {
    /// Most unfinished pods that a quota allows. `None`: no quota.
    pub quota: Option<usize>,
    /// Why every pod is invalid. `None`: pods are valid.
    pub invalid: Option<String>,
    pub webhook: Option<Webhook>,
    /// True if the webhook has side effects, so that the API server refuses dry runs.
    pub no_dry_runs: bool,
    /// Refusals in force.
    pub rules: Vec<Rule>,
}

impl Admission {
    /// Refuses a write that a rule names.
    pub(super) fn refuse(
        &self,
        kind: WatchedKind,
        verb: Verb,
        object: &Value,
    ) -> Result<(), Refused> {
        let hit = self.rules.iter().find(|rule| {
            let named = rule
                .name
                .as_ref()
                .is_none_or(|name| object["metadata"]["name"] == **name);
            rule.kind == kind && rule.verb == verb && named
        });
        hit.map_or(Ok(()), |rule| Err(rule.answer.clone()))
    }

    /// Admits the creation of a pod.
    pub(super) fn pod(&self, pod: &mut Value, store: &Store, dry_run: bool) -> Result<(), Refused> {
        if let Some(why) = &self.invalid {
            return Err(Refused::invalid(why));
        }
        default(pod);
        prioritize(pod, store)?;
        if let Some(webhook) = &self.webhook {
            if dry_run && self.no_dry_runs {
                let message = "admission webhook \"mesh.example.com\" does not support dry run";
                return Err(Refused::new(400, "BadRequest", message));
            }
            webhook(pod)?;
        }
        note_gates(pod);
        super::quota::admit(pod, store)?;
        let namespace = &pod["metadata"]["namespace"];
        let counted = store
            .all(WatchedKind::Pod)
            .filter(|(key, other)| *namespace == *key.namespace && !over(other));
        match self.quota {
            Some(quota) if counted.count() >= quota => Err(Refused::forbidden(format!(
                "pods {} is forbidden: exceeded quota: pods, requested: pods=1, limited: pods={quota}",
                pod["metadata"]["name"]
            ))),
            _ => Ok(()),
        }
    }
}

/// Sets the defaults that the product or a model reads.
fn default(pod: &mut Value) {
    let spec = &mut pod["spec"];
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("schedulerName", json!("default-scheduler")),
    ] {
        if spec[field].is_null() {
            spec[field] = value;
        }
    }
    if let Some(containers) = spec["containers"].as_array_mut() {
        containers.iter_mut().for_each(default_requests);
    }
    let status = &mut pod["status"];
    if status["phase"].is_null() {
        status["phase"] = json!("Pending");
    }
}

/// Writes the condition of a gated pod.
fn note_gates(pod: &mut Value) {
    let gates = pod["spec"]["schedulingGates"].as_array();
    if gates.is_some_and(|gates| !gates.is_empty()) {
        pod["status"]["conditions"] =
            json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]);
    }
}

/// A missing request defaults to the limit.
fn default_requests(container: &mut Value) {
    let Some(limits) = container["resources"]["limits"].as_object().cloned() else {
        return;
    };
    for (name, amount) in limits {
        let request = &mut container["resources"]["requests"][name];
        if request.is_null() {
            *request = amount;
        }
    }
}

/// The priority admission plugin.
fn prioritize(pod: &mut Value, store: &Store) -> Result<(), Refused> {
    if !pod["spec"]["priority"].is_null() {
        return Ok(());
    }
    let mut classes = store.all(WatchedKind::PriorityClass);
    let class = match pod["spec"]["priorityClassName"].as_str() {
        Some(name) => Some(classes.find(|(key, _)| *key.name == *name).ok_or_else(|| {
            Refused::forbidden(format!("no PriorityClass with name {name} was found"))
        })?),
        None => classes.find(|(_, class)| class["globalDefault"] == true),
    };
    let value = class.map_or(json!(0), |(_, class)| class["value"].clone());
    let policy = class.map_or(Value::Null, |(_, class)| class["preemptionPolicy"].clone());
    pod["spec"]["priority"] = value;
    pod["spec"]["preemptionPolicy"] = if policy.is_null() {
        json!("PreemptLowerPriority")
    } else {
        policy
    };
    Ok(())
}
