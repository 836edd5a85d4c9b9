//! A gang that holds capacity without running blocks no other gang forever (I13).

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::{find, reasons, types};
use lockstep_api::names::labels;
use lockstep_api::scheduling::Placement;
use lockstep_api::workload::Phase;
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_manager::stepped::WatchedKind;

use super::controls;
use crate::SimCluster;

/// Longest time for which a gang may hold capacity without a further bound member while other gangs
/// wait: the deadline of a preemption after its victims' grace periods, or the start deadline.
const LONGEST: TimeDelta = TimeDelta::minutes(40);
/// Time between two checks.
const EVERY: TimeDelta = TimeDelta::seconds(10);
/// Most time that one check counts: time without turns is no fault of a gang.
const COUNTED: TimeDelta = TimeDelta::minutes(1);

/// Gangs that hold capacity and do not run.
#[derive(Default)]
pub(super) struct Holders {
    looked_at: Option<DateTime<Utc>>,
    held: BTreeMap<String, Held>,
}

/// Progress of a gang, and time without further progress.
struct Held {
    placement: String,
    bound: usize,
    time: TimeDelta,
}

impl Holders {
    /// Gangs that have held capacity for too long; `None` before the next check is due.
    pub fn look(
        &mut self,
        cluster: &SimCluster,
        groups: &BTreeMap<String, PodGroup>,
        workloads: &BTreeMap<String, TrainingWorkload>,
    ) -> Option<Vec<String>> {
        let now = cluster.now();
        let since = self.looked_at.map_or(TimeDelta::zero(), |at| now - at);
        if self.looked_at.is_some() && since < EVERY {
            return None;
        }
        self.looked_at = Some(now);
        let bound = bound_members(cluster);
        let mut held = BTreeMap::new();
        for (uid, group) in groups {
            let Some(placement) = unreleased(group, workloads) else {
                continue;
            };
            let bound = bound.get(&name_of(group)).copied().unwrap_or(0);
            if bound >= placement.members as usize {
                continue;
            }
            let before = self.held.remove(uid);
            let before = before.filter(|h| h.placement == placement.id && h.bound >= bound);
            let time = before.map_or(TimeDelta::zero(), |h| h.time + since.min(COUNTED));
            let now = Held {
                placement: placement.id.clone(),
                bound,
                time,
            };
            held.insert(uid.clone(), now);
        }
        self.held = held;
        let waiting = groups.values().find(|g| waits(g))?;
        let too_long = self.held.iter().filter(|(_, held)| held.time > LONGEST);
        let broken = too_long.map(|(uid, held)| {
            let (minutes, bound) = (held.time.num_minutes(), held.bound);
            let (holder, waits) = (name_of(&groups[uid]), name_of(waiting));
            format!("I13: {holder:?} has held capacity for {minutes} min with {bound} members bound, and {waits:?} waits")
        });
        Some(broken.collect())
    }
}

/// The placement of a gang that should run and has not released it.
fn unreleased<'g>(
    group: &'g PodGroup,
    workloads: &BTreeMap<String, TrainingWorkload>,
) -> Option<&'g Placement> {
    let placement = group.status.as_ref()?.placement.as_ref()?;
    let owner = workloads
        .iter()
        .find(|(owner, _)| controls(owner, &group.metadata));
    let status = owner.and_then(|(_, w)| w.status.as_ref())?;
    let comes_up = matches!(status.phase, Some(Phase::Pending | Phase::Starting));
    let key = &group.spec.gang_key;
    let ledger = status.gangs.iter().find(|g| g.key == *key);
    let released = ledger.and_then(|g| g.released.as_ref()) == Some(&placement.id);
    (comes_up && !released).then_some(placement)
}

fn waits(group: &PodGroup) -> bool {
    group.status.as_ref().is_some_and(|status| {
        let scheduled = find(&status.conditions, types::POD_GROUP_INITIALLY_SCHEDULED);
        status.placement.is_none() && scheduled.is_some_and(|c| c.reason == reasons::UNSCHEDULABLE)
    })
}

fn name_of(group: &PodGroup) -> (String, String) {
    let meta = &group.metadata;
    let text = |name: &Option<String>| name.clone().unwrap_or_default();
    (text(&meta.namespace), text(&meta.name))
}

/// Pods with a node, by namespace and name of their pod group.
fn bound_members(cluster: &SimCluster) -> BTreeMap<(String, String), usize> {
    let mut bound: BTreeMap<(String, String), usize> = BTreeMap::new();
    let store = cluster.store();
    for (key, pod) in store.all(WatchedKind::Pod) {
        let group = pod["metadata"]["labels"][labels::POD_GROUP].as_str();
        if let Some(group) = group.filter(|_| !pod["spec"]["nodeName"].is_null()) {
            let group = (key.namespace.to_string(), group.to_owned());
            *bound.entry(group).or_default() += 1;
        }
    }
    bound
}
