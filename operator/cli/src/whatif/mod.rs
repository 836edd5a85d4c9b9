//! Predicts whether and where a workload fits, and which work it would preempt: one scheduler cycle
//! over a snapshot.

mod render;
mod report;

use std::collections::BTreeMap;

use anyhow::Result;
use lockstep_api::TrainingWorkload;
use lockstep_api::gangs::Assignments;
use lockstep_api::ids::NodeName;
use lockstep_api::member::MemberSet;
use lockstep_engine::{KeyIx, Names, NodeIx};
use lockstep_model::{Rules, Snapshot, SnapshotFile, unmet_preferences};
use lockstep_scheduler::decision::{ChosenVictim, OtherVictims, PreemptionDecision};
use lockstep_scheduler::snapshot::scheduling_input;
use lockstep_scheduler::{
    Decision, GangState, Memory, Pending, SchedulerSettings, messages, schedule,
};

pub use report::{EvictedUnit, GangReport, OnNode, SecondBest, Verdict, WhatIfReport};

use crate::gangs::{self, ProposedGang};

/// Runs the scheduler's next cycle with the gangs of a manifest.
///
/// The workload counts as new, and as last in the queue among equals. A waiting workload of the
/// same name is ignored; a running one counts.
pub fn what_if(
    file: &SnapshotFile,
    workload: &TrainingWorkload,
    rules: &Rules,
) -> Result<WhatIfReport> {
    let proposed = gangs::proposed(workload, &file.priority_classes, file.taken_at)?;
    let more = proposed.iter().map(|a| a.input.clone()).collect();
    let mut input = scheduling_input(file, more);
    input.gangs.retain(|gang| {
        let status = &gang.group.status;
        let waits = status.placement.is_none() && status.preemption.is_none();
        let same = Some(&gang.workload.name) == workload.metadata.name.as_ref()
            && Some(&*gang.key.namespace) == workload.metadata.namespace.as_deref();
        let is_proposed = proposed.iter().any(|a| a.input.group.uid == gang.group.uid);
        is_proposed || !same || !waits
    });
    let settings = SchedulerSettings {
        rules: rules.clone(),
        searches_per_cycle: usize::MAX,
        ..SchedulerSettings::default()
    };
    let cycle = schedule(&input, &mut Memory::default(), &settings, file.taken_at);
    let mut reports = Vec::new();
    for proposed in &proposed {
        let uid = proposed.input.group.uid.as_str();
        let gang = cycle.gangs.iter().find(|gang| gang.uid() == uid);
        reports.extend(gang.map(|gang| report_on(&input.cluster, proposed, gang)));
    }
    Ok(WhatIfReport {
        namespace: workload.metadata.namespace.clone().unwrap_or_default(),
        workload: workload.metadata.name.clone().unwrap_or_default(),
        priority: proposed.first().map_or(0, |a| a.input.group.priority),
        taken_at: file.taken_at,
        fits: reports
            .iter()
            .all(|g| !matches!(g.verdict, Verdict::DoesNotFit | Verdict::Unknown)),
        gangs: reports,
        only_namespace: file.namespace.clone(),
    })
}

fn report_on(cluster: &Snapshot, proposed: &ProposedGang, gang: &GangState) -> GangReport {
    let mut report = GangReport::new(proposed);
    let nodes = match &gang.decision {
        Decision::Placed(nodes) => {
            report.verdict = Verdict::Fits;
            nodes
        }
        Decision::AfterTerminations(nodes) => {
            report.verdict = Verdict::FitsOnceOthersHaveLeft;
            nodes
        }
        Decision::Preempts(preemption) => {
            report.verdict = Verdict::Preempts;
            note_victims(cluster, preemption, &mut report);
            &preemption.nodes
        }
        Decision::None => {
            let pending = gang.pending.as_ref();
            if let Some(Pending::KubeSchedulerPlaces { .. }) = pending {
                report.verdict = Verdict::Unknown;
            }
            report.reason = pending.map(|p| messages::pending(p, cluster.dims()));
            return report;
        }
    };
    let levels = &proposed.input.group.topology;
    report.reason = unmet_preferences(levels, nodes, cluster);
    report.placed = nodes.len();
    report.nodes = on_nodes(cluster, proposed, nodes);
    report
}

fn note_victims(cluster: &Snapshot, preemption: &PreemptionDecision, report: &mut GangReport) {
    let victims = preemption.victims.iter();
    report.victims = victims
        .map(|ChosenVictim { victim, nodes }| shown(cluster, victim, nodes))
        .collect();
    report.cost = amount(preemption.cost);
    report.pods_beyond_budgets = preemption.pdb_excess;
    report.proven = preemption.proven;
    report.at_least = amount(preemption.at_least);
    report.next_best = preemption.next_best.as_ref().map(
        |OtherVictims {
             victims,
             cost,
             pdb_excess,
         }| SecondBest {
            cost: amount(*cost),
            pods_beyond_budgets: *pdb_excess,
            victims: victims.iter().map(|v| shown(cluster, v, &[])).collect(),
        },
    );
}

fn shown(
    cluster: &Snapshot,
    victim: &lockstep_api::scheduling::Victim,
    nodes: &[NodeIx],
) -> EvictedUnit {
    EvictedUnit {
        kind: victim.kind.to_lowercase(),
        namespace: victim.namespace.clone(),
        name: victim.name.clone(),
        uid: victim.uid.clone(),
        priority: victim.priority,
        pods: victim.pods.unsigned_abs(),
        cost: victim.cost.unsigned_abs(),
        lost_work: victim.lost_work.unsigned_abs(),
        nodes: nodes
            .iter()
            .filter_map(|&n| Some(cluster.node_name(n)?.to_string()))
            .collect(),
    }
}

/// Members by node, sorted by topology domain and name.
fn on_nodes(cluster: &Snapshot, proposed: &ProposedGang, nodes: &Assignments) -> Vec<OnNode> {
    let levels = proposed.input.group.topology.iter();
    let keys: Vec<KeyIx> = levels.map(|level| cluster.dims().key(&level.key)).collect();
    let mut by_node: BTreeMap<(Option<String>, &NodeName), MemberSet> = BTreeMap::new();
    for (member, name) in nodes {
        let node = cluster.ordinal(name.as_str());
        let domains: Vec<String> = keys
            .iter()
            .filter_map(|&key| {
                let domain = cluster.free_capacity().domain(node?, key)?;
                Some(cluster.dims().domain(key, domain))
            })
            .collect();
        let domain = (!domains.is_empty()).then(|| domains.join(", "));
        by_node
            .entry((domain, name))
            .or_default()
            .insert(member.clone());
    }
    let by_node = by_node.into_iter();
    by_node
        .map(|((domain, node), members)| OnNode {
            node: node.to_string(),
            domain,
            members: members.to_ranges(),
        })
        .collect()
}

fn amount(cost: u128) -> u64 {
    u64::try_from(cost).unwrap_or(u64::MAX)
}
