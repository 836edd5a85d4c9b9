//! Resource quotas: usage by pods, refusals, and status. Extended resources of containers and the
//! number of pods count. A quota with scopes refuses no pod.

use std::collections::BTreeMap;

use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;
use serde_json::{Value, json};

use super::answer::Refused;
use super::store::{Object, Patch, Store, over};

/// Refuses a pod that exceeds a quota of its namespace.
pub(super) fn admit(pod: &Value, store: &Store) -> Result<(), Refused> {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let used = used(store, namespace);
    let mut needed = BTreeMap::new();
    take(pod, &mut needed);
    let quotas = store.all(WatchedKind::ResourceQuota);
    let concerned = |(key, quota): &(&Key, &Object)| {
        *key.namespace == *namespace && quota["spec"]["scopes"].is_null()
    };
    for (key, quota) in quotas.filter(concerned) {
        for (name, hard) in quota["spec"]["hard"].as_object().into_iter().flatten() {
            let get = |all: &BTreeMap<String, i64>| all.get(name).copied().unwrap_or(0);
            let (need, used, hard) = (get(&needed), get(&used), number(hard));
            if need > 0 && used + need > hard {
                return Err(Refused::forbidden(format!(
                    "pods {} is forbidden: exceeded quota: {}, requested: {name}={need}, used: {name}={used}, limited: \
                     {name}={hard}",
                    pod["metadata"]["name"], key.name
                )));
            }
        }
    }
    Ok(())
}

/// The quota controller: writes the usage to the status of each quota. Returns true if it wrote.
pub(crate) fn count(store: &mut Store) -> bool {
    let quotas = store.all(WatchedKind::ResourceQuota);
    let quotas: Vec<(Key, Value)> = quotas.map(|(k, q)| (k.clone(), Value::clone(q))).collect();
    let before = store.version();
    for (key, quota) in quotas {
        let all = used(store, &key.namespace);
        let hard = &quota["spec"]["hard"];
        let names = hard.as_object().into_iter().flatten().map(|(name, _)| name);
        let used: BTreeMap<&String, String> = names
            .map(|name| (name, all.get(name).copied().unwrap_or(0).to_string()))
            .collect();
        let patch = Patch::Merge(json!({"status": {"hard": hard, "used": used}}));
        let kind = WatchedKind::ResourceQuota;
        let told = store.patch("quota-controller", kind, &key, &patch, true);
        told.unwrap_or_else(|no| panic!("{}", no.message));
    }
    store.version() != before
}

fn used(store: &Store, namespace: &str) -> BTreeMap<String, i64> {
    let mut used = BTreeMap::new();
    let pods = store.all(WatchedKind::Pod);
    for (_, pod) in pods.filter(|(key, pod)| *key.namespace == *namespace && !over(pod)) {
        take(pod, &mut used);
    }
    used
}

fn take(pod: &Value, used: &mut BTreeMap<String, i64>) {
    *used.entry("pods".to_owned()).or_default() += 1;
    for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
        let requests = container["resources"]["requests"].as_object();
        let extended = requests
            .into_iter()
            .flatten()
            .filter(|(name, _)| name.contains('/'));
        for (name, amount) in extended {
            *used.entry(format!("requests.{name}")).or_default() += number(amount);
        }
    }
}

/// Whole numbers only.
fn number(quantity: &Value) -> i64 {
    let text = quantity.as_str().map(str::to_owned);
    let text = text.unwrap_or_else(|| quantity.to_string());
    text.parse()
        .unwrap_or_else(|_| panic!("quantity {text:?} is not simulated"))
}
