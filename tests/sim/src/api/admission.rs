//! What is checked and changed before an object is stored: quota, webhook, priority, and refusals
//! that a test asks for.

use lockstep_manager::stepped::WatchedKind;
use serde_json::{Value, json};

use super::answer::Refused;
use super::log::Verb;
use super::store::{Store, over};

/// Changes a pod before it is stored, or says no.
pub type Webhook = Box<dyn Fn(&mut Value) -> Result<(), Refused> + Send>;

/// Refuses writes of one verb on objects of one kind.
#[derive(Clone, Debug)]
pub struct Rule {
    /// WatchedKind.
    pub kind: WatchedKind,
    /// Verb.
    pub verb: Verb,
    /// Name of the object; none: all.
    pub name: Option<String>,
    /// The answer.
    pub answer: Refused,
}

/// What stands between a request and the storage.
#[derive(Default)]
pub struct Admission {
    /// Pods that are not over that a quota lets in; none: all.
    pub quota: Option<usize>,
    /// Why every pod is invalid; none: it is not.
    pub invalid: Option<String>,
    /// A webhook for pods.
    pub webhook: Option<Webhook>,
    /// Whether the webhook has side effects, so that the API server refuses dry runs.
    pub no_dry_runs: bool,
    /// Refusals, while they are in the list.
    pub rules: Vec<Rule>,
}

impl Admission {
    /// Refuses what a rule names.
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

    /// A pod that is to be created.
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

/// The defaults that somebody reads.
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
    let gated = spec["schedulingGates"]
        .as_array()
        .is_some_and(|gates| !gates.is_empty());
    let status = &mut pod["status"];
    if status["phase"].is_null() {
        status["phase"] = json!("Pending");
    }
    if gated {
        status["conditions"] =
            json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]);
    }
}

/// A limit without a request is the request.
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
