use std::collections::BTreeMap;

use lockstep_api::workload::Group;

use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::pods::PodPhase;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub desired: i32,
    pub created: i32,
    pub ready: i32,
    pub active: i32,
    pub succeeded: i32,
    pub failed: i32,
    /// Replicas whose first member has a pod.
    pub replicas: i32,
}

pub(super) fn count_groups(facts: &Facts<'_>, ledger: &Ledger) -> BTreeMap<String, Counts> {
    let groups = &facts.spec().groups;
    groups
        .iter()
        .map(|g| (g.name.clone(), count(facts, ledger, g)))
        .collect()
}

fn count(facts: &Facts<'_>, ledger: &Ledger, group: &Group) -> Counts {
    let mut out = Counts {
        desired: facts.spec().members_of(group),
        ..Counts::default()
    };
    for domain in facts.gangs.iter().flat_map(|g| &g.domains) {
        let entry = ledger.domain(&domain.key);
        for member in domain.members.iter().filter(|m| m.group == group.name) {
            let finished = ledger.completed.contains(member);
            out.succeeded += i32::from(finished);
            let pod = entry
                .and_then(|e| facts.current(e, member))
                .filter(|p| !p.terminating());
            let Some(pod) = pod else { continue };
            out.created += 1;
            out.replicas += i32::from(member.index == 0);
            out.ready += i32::from(!finished && facts.is_ready(&domain.key, pod));
            out.failed += i32::from(pod.phase == PodPhase::Failed);
            out.active += i32::from(!finished && !pod.terminal());
        }
    }
    out
}
