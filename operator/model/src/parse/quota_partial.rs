use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

use crate::common::quantity::{InvalidQuantity, milli, units};
use crate::common::unreadable::{Unreadable, present};
use crate::demand::share;
use crate::parse::partial::trimmed;
use crate::quota::{Quota, QuotaAmounts, QuotaScope, in_milli};

#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = core::ResourceQuota)]
#[serde(default)]
pub struct PartialQuota {
    /// Namespace and name.
    #[serde(deserialize_with = "trimmed")]
    pub metadata: ObjectMeta,
    spec: PartialQuotaSpec,
    status: PartialQuotaStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PartialQuotaSpec {
    scopes: Vec<String>,
    scope_selector: Option<core::ScopeSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PartialQuotaStatus {
    hard: BTreeMap<String, Quantity>,
    used: BTreeMap<String, Quantity>,
}

impl PartialQuota {
    pub fn scheduling(&self) -> Result<Quota, Unreadable> {
        let plain = self
            .spec
            .scopes
            .iter()
            .map(|name| core::ScopedResourceSelectorRequirement {
                operator: "Exists".to_owned(),
                scope_name: name.clone(),
                values: None,
            });
        let selector = self.spec.scope_selector.as_ref();
        let selected = selector.and_then(|s| s.match_expressions.as_ref());
        let all = plain.chain(selected.into_iter().flatten().cloned());
        Ok(Quota {
            namespace: present("namespace", self.metadata.namespace.as_ref())?.clone(),
            name: present("name", self.metadata.name.as_ref())?.clone(),
            hard: amounts(&self.status.hard)?,
            used: amounts(&self.status.used)?,
            scopes: all.map(scope).collect(),
        })
    }
}

fn scope(requirement: core::ScopedResourceSelectorRequirement) -> Option<QuotaScope> {
    let exists = requirement.operator == "Exists";
    match requirement.scope_name.as_str() {
        "Terminating" if exists => Some(QuotaScope::Deadline(true)),
        "NotTerminating" if exists => Some(QuotaScope::Deadline(false)),
        "BestEffort" if exists => Some(QuotaScope::BestEffort(true)),
        "NotBestEffort" if exists => Some(QuotaScope::BestEffort(false)),
        "PriorityClass" => Some(QuotaScope::PriorityClass(requirement)),
        _ => None,
    }
}

fn amounts(quantities: &BTreeMap<String, Quantity>) -> Result<QuotaAmounts, InvalidQuantity> {
    let each = quantities.iter();
    each.map(|(name, quantity)| Ok((name.clone(), amount(name, quantity)?)))
        .collect()
}

fn amount(name: &str, quantity: &Quantity) -> Result<i64, InvalidQuantity> {
    if in_milli(name) {
        milli(&quantity.0)
    } else {
        units(&quantity.0)
    }
}

#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = core::Namespace)]
#[serde(default)]
pub struct PartialNamespace {
    /// Name and annotations.
    #[serde(deserialize_with = "trimmed")]
    pub metadata: ObjectMeta,
}

impl PartialNamespace {
    /// Its own queue weight in thousandths, if set.
    pub fn weight(&self) -> Result<Option<u64>, Unreadable> {
        present("name", self.metadata.name.as_ref())?;
        Ok(share::weight(self.metadata.annotations.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn quota(spec: &Value) -> Quota {
        let object = json!({"metadata": {"name": "compute", "namespace": "ml"}, "spec": spec,
            "status": {"hard": {"requests.cpu": "1.5", "requests.memory": "1Gi", "pods": "3"}, "used": {"requests.cpu": "1"}}});
        serde_json::from_value::<PartialQuota>(object)
            .unwrap()
            .scheduling()
            .unwrap()
    }

    #[test]
    fn a_quota_is_read_from_its_status() {
        let quota = quota(&json!({}));
        let hard: Vec<i64> = quota.hard.into_values().collect();
        assert_eq!(
            (hard, quota.used["requests.cpu"]),
            (vec![3, 1500, 1 << 30], 1000)
        );
        assert_eq!(quota.scopes, Some(Vec::new()));
    }

    #[test]
    fn scopes_stand_in_two_fields_and_one_that_is_not_known_makes_all_unknown() {
        let class = json!({"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]});
        let scopes =
            quota(&json!({"scopes": ["NotTerminating", "BestEffort"], "scopeSelector": class}))
                .scopes;
        assert_eq!(scopes.unwrap().len(), 3);
        assert_eq!(
            quota(&json!({"scopes": ["CrossNamespacePodAffinity"]})).scopes,
            None
        );
    }
}
