//! Gangs (members placed together) and restart domains (members restarted together).

use std::collections::BTreeMap;

use crate::ids::{DomainKey, GangKey, NodeName};
use crate::member::{Member, MemberSet};
use crate::names::WHOLE;
use crate::scheduling::{
    BasicPolicy, GangPolicy, GangSpec, MoveTarget, NodePlacement, Placement,
    PodGroupDisruptionMode, PodGroupPolicy, PreemptionPolicy, SchedulingConstraints,
};
use crate::workload::{
    DisruptionMode, GangScope, Group, RestartScope, SchedulingPolicy, TrainingWorkloadSpec,
};

/// Node of each placed member.
pub type Assignments = BTreeMap<Member, NodeName>;

impl Placement {
    /// Ignores invalid entries, which another client wrote. The scheduler overwrites them.
    pub fn assignments(&self) -> Assignments {
        assignments(&self.nodes)
    }
}

impl MoveTarget {
    /// As [`Placement::assignments`], of the members that change their nodes.
    pub fn assignments(&self) -> Assignments {
        assignments(&self.nodes)
    }
}

fn assignments(nodes: &[NodePlacement]) -> Assignments {
    let mut out = Assignments::new();
    for at in nodes {
        let Some(node) = NodeName::read(Some(&at.node)) else {
            continue;
        };
        for member in MemberSet::parse(&at.members).unwrap_or_default() {
            out.insert(member, node.clone());
        }
    }
    out
}

/// A gang: the members of one `PodGroup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// `workload`, the group, or `<group>.<replica>`.
    pub key: GangKey,
    /// Name of the template in the Workload. Gangs of the same kind share it.
    pub template: String,
    /// Policy Basic: each pod is placed alone.
    pub basic: bool,
    /// Members that must be placed together.
    pub min_count: i32,
    /// Unit of disruption.
    pub disruption: DisruptionMode,
    /// Restart domains of the gang.
    pub domains: Vec<Domain>,
}

/// A restart domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Key of the gang, or `<group>.<replica>` with restartScope Replica.
    pub key: DomainKey,
    /// Members in the order of groups in the spec, then by number.
    pub members: Vec<Member>,
}

impl Gang {
    /// All members.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.domains.iter().flat_map(|d| &d.members)
    }

    /// True if the loss of a member leaves the other members running, as long as
    /// `min_count` remain.
    pub fn degrades(&self) -> bool {
        match self.disruption {
            DisruptionMode::Single => !self.basic && (self.min_count as usize) < self.size(),
            DisruptionMode::All => false,
        }
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.domains.iter().map(|d| d.members.len()).sum()
    }
}

/// Returns the gangs of a workload in the order of its groups. Gangs without members (replicas 0)
/// are omitted.
pub fn gangs(spec: &TrainingWorkloadSpec) -> Vec<Gang> {
    let scope = match spec.scheduling.policy {
        SchedulingPolicy::Basic => GangScope::Group,
        SchedulingPolicy::Gang => spec.scheduling.gang.scope,
    };
    let mut gangs = match scope {
        GangScope::Workload => {
            vec![gang(
                spec,
                GangKey::whole(),
                WHOLE.into(),
                all(spec, &spec.groups),
                spec.scheduling.gang.min_count,
            )]
        }
        GangScope::Group => spec
            .groups
            .iter()
            .filter_map(|g| Some((g, GangKey::read(Some(&g.name))?)))
            .map(|(g, key)| gang(spec, key, g.name.clone(), all(spec, [g]), g.min_count))
            .collect(),
        GangScope::Replica => spec
            .groups
            .iter()
            .flat_map(|g| (0..spec.replicas_of(g)).map(move |r| (g, r)))
            .map(|(g, r)| {
                gang(
                    spec,
                    GangKey::of_replica(&g.name, r),
                    g.name.clone(),
                    vec![(g, r)],
                    None,
                )
            })
            .collect(),
    };
    gangs.retain(|g| g.size() > 0);
    gangs
}

fn all<'a>(
    spec: &TrainingWorkloadSpec,
    groups: impl IntoIterator<Item = &'a Group>,
) -> Vec<(&'a Group, i32)> {
    groups
        .into_iter()
        .flat_map(|g| (0..spec.replicas_of(g)).map(move |r| (g, r)))
        .collect()
}

fn gang(
    spec: &TrainingWorkloadSpec,
    key: GangKey,
    template: String,
    replicas: Vec<(&Group, i32)>,
    min_count: Option<i32>,
) -> Gang {
    let basic = spec.scheduling.policy == SchedulingPolicy::Basic;
    let members = |(g, r): (&Group, i32)| {
        (0..g.size)
            .map(|i| Member::new(g.name.as_str(), r, i))
            .collect::<Vec<_>>()
    };
    let domains: Vec<Domain> = match spec.failure_policy.restart_scope {
        RestartScope::Gang => {
            vec![Domain {
                key: DomainKey::from(&key),
                members: replicas.into_iter().flat_map(members).collect(),
            }]
        }
        RestartScope::Replica => replicas
            .into_iter()
            .map(|(g, r)| Domain {
                key: DomainKey::of_replica(&g.name, r),
                members: members((g, r)),
            })
            .collect(),
    };
    let size = domains.iter().map(|d| d.members.len()).sum::<usize>() as i32;
    let default_mode = if basic {
        DisruptionMode::Single
    } else {
        DisruptionMode::All
    };
    Gang {
        key,
        template,
        basic,
        // Replicas may have shrunk below a previously valid minCount.
        min_count: if basic {
            1
        } else {
            min_count.unwrap_or(size).clamp(1, size.max(1))
        },
        disruption: spec.scheduling.disruption_mode.unwrap_or(default_mode),
        domains,
    }
}

impl Gang {
    /// Spec of the gang's template and pod group. `priority` and `preemption` come from the
    /// priority class. A workload may only give up the preemption that its class allows.
    pub fn spec(
        &self,
        spec: &TrainingWorkloadSpec,
        priority: i32,
        preemption: Option<PreemptionPolicy>,
    ) -> GangSpec {
        let scheduling = &spec.scheduling;
        let topology = scheduling.levels();
        let gang = GangPolicy {
            min_count: self.min_count,
        };
        let (all, single) = match self.disruption {
            DisruptionMode::All => (Some(BasicPolicy {}), None),
            DisruptionMode::Single => (None, Some(BasicPolicy {})),
        };
        GangSpec {
            scheduling_policy: PodGroupPolicy {
                gang: (!self.basic).then_some(gang),
                basic: self.basic.then_some(BasicPolicy {}),
            },
            scheduling_constraints: (!topology.is_empty())
                .then_some(SchedulingConstraints { topology }),
            disruption_mode: PodGroupDisruptionMode { all, single },
            priority_class_name: spec.priority_class_name.clone(),
            priority,
            preemption_policy: match scheduling.preemption_policy {
                Some(PreemptionPolicy::Never) => Some(PreemptionPolicy::Never),
                Some(PreemptionPolicy::PreemptLowerPriority) | None => preemption,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(object: serde_json::Value) -> TrainingWorkloadSpec {
        serde_json::from_value(object).unwrap()
    }

    fn keys(spec: &TrainingWorkloadSpec) -> Vec<(String, Vec<String>, usize)> {
        gangs(spec)
            .iter()
            .map(|g| {
                (
                    g.key.to_string(),
                    g.domains.iter().map(|d| d.key.to_string()).collect(),
                    g.size(),
                )
            })
            .collect()
    }

    #[test]
    fn the_scope_of_the_gang_decides_what_is_placed_together() {
        let base = |scope: &str| {
            spec(json!({"scheduling": {"gang": {"scope": scope}}, "groups": [
                {"name": "a", "replicas": 2, "size": 3, "template": {"spec": {"containers": []}}},
                {"name": "b", "template": {"spec": {"containers": []}}}]}))
        };
        assert_eq!(
            keys(&base("Workload")),
            [("workload".into(), vec!["workload".into()], 7)]
        );
        assert_eq!(
            keys(&base("Group")),
            [
                ("a".into(), vec!["a".into()], 6),
                ("b".into(), vec!["b".into()], 1)
            ]
        );
        let replicas = keys(&base("Replica"));
        assert_eq!(
            replicas.iter().map(|k| k.0.as_str()).collect::<Vec<_>>(),
            ["a.0", "a.1", "b.0"]
        );
        assert_eq!(replicas[1], ("a.1".into(), vec!["a.1".into()], 3));
    }

    #[test]
    fn restart_scope_replica_splits_a_gang_into_domains() {
        let s = spec(
            json!({"failurePolicy": {"restartScope": "Replica"}, "groups": [
            {"name": "a", "replicas": 2, "size": 3, "template": {"spec": {"containers": []}}}]}),
        );
        assert_eq!(
            keys(&s),
            [("workload".into(), vec!["a.0".into(), "a.1".into()], 6)]
        );
        assert_eq!(gangs(&s)[0].min_count, 6);
    }

    #[test]
    fn a_group_without_replicas_has_no_gang() {
        let s = spec(
            json!({"scheduling": {"gang": {"scope": "Group"}}, "groups": [
            {"name": "a", "replicas": 0, "template": {"spec": {"containers": []}}}]}),
        );
        assert!(gangs(&s).is_empty());
    }

    #[test]
    fn min_count_never_exceeds_the_members_that_are_left() {
        let s = spec(json!({"scheduling": {"gang": {"minCount": 4}}, "groups": [
            {"name": "a", "replicas": 2, "template": {"spec": {"containers": []}}}]}));
        assert_eq!(gangs(&s)[0].min_count, 2);
    }
}
