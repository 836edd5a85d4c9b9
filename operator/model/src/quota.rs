//! Resource quotas of namespaces, and the usage of a pod as counted by `ResourceQuota` admission.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{PodSpec, ScopedResourceSelectorRequirement};
use thiserror::Error;

use crate::common::quantity::InvalidQuantity;
use crate::pods::pod_view::PodSpecView;
use crate::pods::resources::{CPU, PODS, Resources, pod_limits, pod_requests};

/// Amounts by resource name of quotas: CPU in thousandths, other resources in whole units.
pub type QuotaAmounts = BTreeMap<String, i64>;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quota {
    pub namespace: String,
    pub name: String,
    /// `status.hard`: the enforced limits.
    pub hard: QuotaAmounts,
    pub used: QuotaAmounts,
    /// A pod counts if all scopes admit it. `None`: a scope is unknown, so the counted pods are
    /// unknown.
    pub scopes: Option<Vec<QuotaScope>>,
}

/// Pods that a quota counts.
#[derive(Clone, Debug, PartialEq)]
pub enum QuotaScope {
    /// Pods with a deadline (`Terminating`) or without (`NotTerminating`).
    Deadline(bool),
    /// Pods without requests and limits (`BestEffort`), or all others (`NotBestEffort`).
    BestEffort(bool),
    /// Pods whose priority class the selector matches (`PriorityClass`).
    PriorityClass(ScopedResourceSelectorRequirement),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuotaCharge {
    pub amounts: QuotaAmounts,
    deadline: bool,
    best_effort: bool,
    /// Its priority class. `None`: the cluster's default, if any.
    class: Option<String>,
}

/// Excess over a quota, in the wording of the API server.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("exceeded quota: {name}, requested: {requested}, used: {used}, limited: {limited}")]
pub struct QuotaExcess {
    pub name: String,
    requested: Listed,
    used: Listed,
    limited: Listed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Listed(Vec<(String, i64)>);

impl QuotaCharge {
    pub fn new(spec: &PodSpec, class: Option<&str>) -> Result<Self, InvalidQuantity> {
        let view = PodSpecView::from(spec);
        let (requests, limits) = (pod_requests(&view)?, pod_limits(&view)?);
        let mut amounts = QuotaAmounts::from([(PODS.to_owned(), 1), ("count/pods".to_owned(), 1)]);
        for (name, amount) in requests.iter().filter(|(name, _)| *name != PODS) {
            amounts.insert(format!("requests.{name}"), amount);
            if !name.contains('/') {
                amounts.insert(name.to_owned(), amount);
            }
        }
        for (name, amount) in limits.iter() {
            amounts.insert(format!("limits.{name}"), amount);
        }
        let none = |resources: &Resources| resources.iter().all(|(name, _)| name == PODS);
        Ok(Self {
            amounts,
            deadline: spec.active_deadline_seconds.is_some(),
            best_effort: none(&requests) && none(&limits),
            class: class.map(str::to_owned),
        })
    }
}

impl QuotaScope {
    fn admits(&self, charge: &QuotaCharge) -> Option<bool> {
        match self {
            Self::Deadline(with) => Some(charge.deadline == *with),
            Self::BestEffort(with) => Some(charge.best_effort == *with),
            Self::PriorityClass(selector) => {
                let class = charge.class.as_ref()?;
                let listed = selector.values.iter().flatten().any(|v| v == class);
                match selector.operator.as_str() {
                    "In" => Some(listed),
                    "NotIn" => Some(!listed),
                    "Exists" => Some(true),
                    "DoesNotExist" => Some(false),
                    _ => None,
                }
            }
        }
    }
}

impl Quota {
    /// True if the quota counts the pod. False if its scopes are unknown.
    pub fn counts(&self, charge: &QuotaCharge) -> bool {
        let scopes = self.scopes.as_ref();
        scopes.is_some_and(|all| all.iter().all(|s| s.admits(charge) == Some(true)))
    }

    /// Excess of `needed` over the free quota, after current usage and `promised`.
    pub fn excess(&self, needed: &QuotaAmounts, promised: &QuotaAmounts) -> Option<QuotaExcess> {
        let get = |amounts: &QuotaAmounts, name: &str| amounts.get(name).copied().unwrap_or(0);
        let mut excess = QuotaExcess {
            name: self.name.clone(),
            requested: Listed::default(),
            used: Listed::default(),
            limited: Listed::default(),
        };
        for (name, &hard) in &self.hard {
            let need = get(needed, name);
            let used = get(&self.used, name).saturating_add(get(promised, name));
            if need > 0 && used.saturating_add(need) > hard {
                excess.requested.0.push((name.clone(), need));
                excess.used.0.push((name.clone(), used));
                excess.limited.0.push((name.clone(), hard));
            }
        }
        (!excess.requested.0.is_empty()).then_some(excess)
    }
}

/// True if amounts of a quota's resource are in thousandths.
pub(crate) fn in_milli(name: &str) -> bool {
    let name = name.strip_prefix("requests.").unwrap_or(name);
    name.strip_prefix("limits.").unwrap_or(name) == CPU
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, amount)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let amount = match amount {
                milli if in_milli(name) && milli % 1000 != 0 => format!("{milli}m"),
                milli if in_milli(name) => (milli / 1000).to_string(),
                amount => amount.to_string(),
            };
            write!(f, "{comma}{name}={amount}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn charge(spec: &Value, class: Option<&str>) -> QuotaCharge {
        QuotaCharge::new(&serde_json::from_value(spec.clone()).unwrap(), class).unwrap()
    }

    fn amounts(all: &[(&str, i64)]) -> QuotaAmounts {
        all.iter().map(|(n, a)| ((*n).to_owned(), *a)).collect()
    }

    #[test]
    fn a_pod_takes_what_it_requests_and_is_limited_to() {
        let limits =
            json!({"limits": {"nvidia.com/gpu": "8", "cpu": "2"}, "requests": {"cpu": "500m"}});
        let taken = charge(
            &json!({"containers": [{"name": "c", "resources": limits}]}),
            None,
        )
        .amounts;
        let expected = [
            ("count/pods", 1),
            ("cpu", 500),
            ("limits.cpu", 2000),
            ("limits.nvidia.com/gpu", 8),
            ("pods", 1),
            ("requests.cpu", 500),
            ("requests.nvidia.com/gpu", 8),
        ];
        assert_eq!(taken, amounts(&expected));
    }

    #[test]
    fn only_what_is_needed_can_exceed_and_the_words_are_those_of_the_api_server() {
        let quota = Quota {
            name: "compute".into(),
            hard: amounts(&[
                ("requests.nvidia.com/gpu", 16),
                ("requests.cpu", 1500),
                ("pods", 1),
            ]),
            used: amounts(&[("requests.nvidia.com/gpu", 8), ("pods", 2)]),
            ..Quota::default()
        };
        let needed = amounts(&[("requests.nvidia.com/gpu", 8), ("requests.cpu", 1500)]);
        assert_eq!(quota.excess(&needed, &QuotaAmounts::new()), None);
        let promised = amounts(&[("requests.nvidia.com/gpu", 1), ("requests.cpu", 1000)]);
        assert_eq!(
            quota.excess(&needed, &promised).unwrap().to_string(),
            "exceeded quota: compute, requested: requests.cpu=1500m,requests.nvidia.com/gpu=8, used: \
             requests.cpu=1,requests.nvidia.com/gpu=9, limited: requests.cpu=1500m,requests.nvidia.com/gpu=16"
        );
    }

    #[test]
    fn a_quota_counts_the_pods_within_all_of_its_scopes_and_none_if_one_is_not_known() {
        let plain = charge(&json!({"containers": []}), Some("high"));
        let deadline = charge(&json!({"containers": [], "activeDeadlineSeconds": 5}), None);
        let class = |operator: &str, values: &[&str]| {
            QuotaScope::PriorityClass(ScopedResourceSelectorRequirement {
                operator: operator.into(),
                scope_name: "PriorityClass".into(),
                values: Some(values.iter().map(|v| (*v).to_owned()).collect()),
            })
        };
        for (scopes, counted) in [
            (Some(vec![]), (true, true)),
            (None, (false, false)),
            (Some(vec![QuotaScope::Deadline(true)]), (false, true)),
            (Some(vec![QuotaScope::BestEffort(true)]), (true, true)),
            (
                Some(vec![
                    QuotaScope::BestEffort(true),
                    QuotaScope::Deadline(false),
                ]),
                (true, false),
            ),
            (Some(vec![class("In", &["high"])]), (true, false)),
            (Some(vec![class("NotIn", &["high"])]), (false, false)),
            (Some(vec![class("Exists", &[])]), (true, false)),
            (Some(vec![class("Near", &[])]), (false, false)),
        ] {
            let quota = Quota {
                scopes: scopes.clone(),
                ..Quota::default()
            };
            assert_eq!(
                (quota.counts(&plain), quota.counts(&deadline)),
                counted,
                "{scopes:?}"
            );
        }
    }
}
