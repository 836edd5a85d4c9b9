//! Rules for work that gangs may evict, independent of priority.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockstep_api::names::labels;

use crate::pods::pod::Pod;
use crate::pods::resources::Resources;
use crate::pods::resources::is_extended;

/// Namespaces of the control plane.
const CONTROL_PLANE: [&str; 3] = ["kube-node-lease", "kube-public", "kube-system"];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VictimScope {
    /// Units with an extended resource that the preemptor requests, and gangs on nodes that offer
    /// such a resource; without such a request, gangs. So a training job never evicts databases.
    #[default]
    Accelerators,
    /// Gangs and members of gangs.
    Gangs,
    /// All pods of lower priority, as in KEP-5710.
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VictimRules {
    pub scope: VictimScope,
    /// Namespaces without victims.
    pub excluded_namespaces: BTreeSet<String>,
    /// Labels (key and value) of pods that are never evicted.
    pub excluded_labels: BTreeMap<String, String>,
    pub opt_out: bool,
    /// Whether gangs without quota from Kueue may evict gangs that Kueue has admitted.
    pub evict_admitted: bool,
    /// Longest grace period of a victim, and longest wait for any terminating pod.
    pub longest_grace_period: Duration,
}

impl Default for VictimRules {
    fn default() -> Self {
        Self {
            scope: VictimScope::default(),
            excluded_namespaces: CONTROL_PLANE.map(str::to_owned).into(),
            excluded_labels: BTreeMap::new(),
            opt_out: true,
            evict_admitted: false,
            longest_grace_period: Duration::from_hours(1),
        }
    }
}

impl VictimRules {
    /// True if the preemptor may not evict gangs that Kueue has admitted. `in_kueue`: Kueue manages the
    /// preemptor, too. Among such gangs, only Kueue preempts.
    pub fn protect_admitted(&self, in_kueue: bool) -> bool {
        in_kueue || !self.evict_admitted
    }

    pub fn spare(&self, pod_labels: &BTreeMap<String, String>) -> bool {
        let opted_out = pod_labels.get(labels::EVICTABLE).filter(|_| self.opt_out);
        let mut excluded = self.excluded_labels.iter();
        opted_out.is_some_and(|value| value == "false")
            || excluded.any(|(key, value)| pod_labels.get(key) == Some(value))
    }

    pub fn outlast(&self, pod: &Pod) -> bool {
        pod.grace > self.longest_grace_period
    }

    /// True if namespace, label or grace period protects a pod.
    pub fn leave_alone(&self, pod: &Pod) -> bool {
        self.exclude(&pod.namespace) || self.spare(&pod.labels) || self.outlast(pod)
    }

    pub fn exclude(&self, namespace: &str) -> bool {
        self.excluded_namespaces.contains(namespace)
    }

    /// True if a pod outside gangs with these resources may be a victim of any gang.
    pub(crate) fn reach(&self, requests: &Resources) -> bool {
        match self.scope {
            VictimScope::Accelerators => requests.iter().any(|(name, _)| is_extended(name)),
            VictimScope::Gangs => false,
            VictimScope::Any => true,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct VictimFilter<'a> {
    pub rules: &'a VictimRules,
    /// Extended resources that the gang requests.
    pub requested: &'a BTreeSet<String>,
    /// True if victims may exceed their disruption budgets.
    pub beyond_budgets: bool,
    /// UIDs of pods whose eviction the API server has just refused.
    pub refused: &'a BTreeSet<String>,
}

impl VictimFilter<'_> {
    /// True if a gang of the namespace may be a victim. `reserves`: resources that its pods hold or
    /// keep from other pods, by pod or node.
    pub fn admits_gang<'r>(
        &self,
        namespace: &str,
        mut reserves: impl Iterator<Item = &'r Resources>,
    ) -> bool {
        let in_scope = match self.rules.scope {
            VictimScope::Accelerators => {
                self.requested.is_empty() || reserves.any(|r| self.holds_requested(r))
            }
            VictimScope::Gangs | VictimScope::Any => true,
        };
        in_scope && !self.rules.exclude(namespace)
    }

    /// True if a pod outside gangs may be a victim.
    pub fn admits_pod(&self, pod: &Pod) -> bool {
        self.holds_in_scope(&pod.requests) && !self.rules.leave_alone(pod)
    }

    /// True if a pod outside gangs with these resources is in scope.
    pub(crate) fn holds_in_scope(&self, requests: &Resources) -> bool {
        match self.rules.scope {
            VictimScope::Accelerators => self.holds_requested(requests),
            VictimScope::Gangs => false,
            VictimScope::Any => true,
        }
    }

    fn holds_requested(&self, resources: &Resources) -> bool {
        self.requested.iter().any(|name| resources.get(name) > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pods::resources::extended_resources;
    use crate::test_support::mk_pod;

    fn filter(rules: &VictimRules, requested: &[&str], pod: &Pod) -> (bool, bool) {
        let requested = requested.iter().map(|w| (*w).to_owned()).collect();
        let filter = VictimFilter {
            rules,
            requested: &requested,
            beyond_budgets: false,
            refused: &BTreeSet::new(),
        };
        let holds = std::iter::once(&*pod.requests);
        (
            filter.admits_pod(pod),
            filter.admits_gang(&pod.namespace, holds),
        )
    }

    #[test]
    fn victims_hold_a_resource_that_the_preemptor_requests_and_no_request_matches_gangs() {
        let rules = VictimRules::default();
        let trainer = mk_pod("t", "n1", 1);
        let database = Pod {
            requests: Arc::default(),
            ..mk_pod("d", "n1", 1)
        };
        assert_eq!(filter(&rules, &["nvidia.com/gpu"], &trainer), (true, true));
        assert_eq!(filter(&rules, &["amd.com/gpu"], &trainer), (false, false));
        assert_eq!(
            filter(&rules, &["nvidia.com/gpu"], &database),
            (false, false)
        );
        assert_eq!(filter(&rules, &[], &database), (false, true));
    }

    #[test]
    fn nothing_of_an_excluded_namespace_is_evicted_whatever_the_scope() {
        for scope in [
            VictimScope::Accelerators,
            VictimScope::Gangs,
            VictimScope::Any,
        ] {
            let rules = VictimRules {
                scope,
                ..VictimRules::default()
            };
            let system = Pod {
                namespace: "kube-system".into(),
                ..mk_pod("t", "n1", 1)
            };
            assert_eq!(filter(&rules, &["nvidia.com/gpu"], &system), (false, false));
        }
    }

    #[test]
    fn excluded_labels_and_the_opt_out_label_protect_a_pod_by_their_value() {
        let rules = VictimRules {
            excluded_labels: [("team".to_owned(), "infra".to_owned())].into(),
            ..VictimRules::default()
        };
        for (key, value, reached) in [
            ("team", "infra", false),
            ("team", "research", true),
            (labels::EVICTABLE, "false", false),
            (labels::EVICTABLE, "true", true),
        ] {
            let pod = Pod {
                labels: Arc::new([(key.to_owned(), value.to_owned())].into()),
                ..mk_pod("t", "n1", 1)
            };
            assert_eq!(filter(&rules, &["nvidia.com/gpu"], &pod).0, reached);
        }
    }

    #[test]
    fn hugepages_and_storage_are_no_extended_resources() {
        let resources = mk_pod("t", "n1", 1).requests;
        let names = extended_resources(std::iter::once(&*resources));
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["nvidia.com/gpu"]);
    }
}
