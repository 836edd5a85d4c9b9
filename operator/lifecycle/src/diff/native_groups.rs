//! Actions for native groups, which make kube-scheduler bind the members of a gang together and
//! preempt them together.
//!
//! A gang keeps the native group that its pods name, because the field is immutable: a change of the
//! configuration or of the API server affects the next placement. Pods that replace all pods of a
//! gang get another group, because a deleted group keeps its name until its pods have ended.

use std::collections::BTreeSet;

use lockstep_api::gangs::Gang;
use lockstep_api::ids::GangKey;
use lockstep_api::member::Member;
use lockstep_api::membership::Membership;
use lockstep_api::names::pod_group_name;
use lockstep_api::native_group::native_pod_group_name;

use super::objects::{Ensured, Wanted, ensure};
use crate::facts::{Facts, PlacementState};
use crate::ledger::Ledger;
use crate::objects::native_group::{NativeGang, native_pod_group, native_workload};
use crate::plan::{Action, Object, Surplus};
use crate::pods::PodView;
use crate::view::Held;
use crate::wake::Wake;

/// The native groups that the gangs of a workload need.
#[derive(Default)]
pub(super) struct NativeGroups<'f> {
    gangs: Vec<NativeGang<'f>>,
    /// True if it is unknown whether the API server supports them.
    undecided: bool,
}

impl<'f> NativeGroups<'f> {
    pub fn desired(facts: &'f Facts<'_>, ledger: &Ledger, membership: &Membership<'_>) -> Self {
        let mut groups = Self::default();
        let native = facts.view.native();
        let creates = facts.view.backend().has_native_groups();
        if !creates && facts.pods().all(|pod| name_of(pod).is_none()) {
            return groups;
        }
        let Some(supported) = native.supported else {
            groups.undecided = true;
            return groups;
        };
        let creates = creates && supported;
        for gang in facts.gangs.iter().filter(|g| facts.has_native_group(g)) {
            let live = live_pods(facts, ledger, gang);
            let joined = live.iter().find_map(|(_, pod)| name_of(pod));
            let name = match joined {
                Some(name) if supported || native.pod_groups.contains_key(name) => name.to_owned(),
                Some(_) => continue,
                None if !live.is_empty() || !creates => continue,
                None => match new_name(facts, ledger, gang) {
                    Some(name) => name,
                    None => continue,
                },
            };
            let scheduled = native.pod_groups.get(&name);
            let scheduled = scheduled.is_some_and(|held| held.owned && held.content.scheduled);
            let bound = |(_, pod): &(&Member, &PodView)| pod.node.is_some();
            let min_count = if scheduled || live.iter().any(bound) {
                // Completed members and lost ones do not block replacements any more.
                1
            } else {
                let others: BTreeSet<&Member> = live
                    .iter()
                    .filter(|(_, pod)| name_of(pod) != Some(&*name))
                    .map(|(member, _)| *member)
                    .collect();
                members_to_run(facts, ledger, membership, gang)
                    .filter(|m| !others.contains(m))
                    .count()
                    .max(1) as i32
            };
            groups.gangs.push(NativeGang {
                gang,
                name,
                min_count,
            });
        }
        groups
    }

    /// Native pod group that new pods of a gang join.
    pub fn name(&self, gang: &GangKey) -> Option<&str> {
        let desired = self.gangs.iter().find(|w| w.gang.key == *gang);
        desired.map(|w| &*w.name)
    }

    /// True if pods may be created: all wanted native groups exist.
    pub fn ensure(&self, facts: &Facts<'_>, out: &mut Vec<Action>, wake: &mut Wake) -> bool {
        let view = facts.view;
        let native = view.native();
        let mut complete = !self.undecided;
        let mut workload_name = None;
        if !self.gangs.is_empty() {
            let workload = native_workload(view, self.gangs.iter().map(|w| w.gang));
            let name = workload.metadata.name.clone().unwrap_or_default();
            // For an object of another owner, the rejection of the create names the conflict.
            let present = native.workloads.get(&name).filter(|held| held.owned);
            let wanted = Wanted {
                object: Object::NativeWorkload(Box::new(workload)),
                present,
                same: true,
            };
            let ensured = ensure(facts, wanted, out, wake);
            complete &= ensured == Ensured::Same;
            for desired in &self.gangs {
                let present = native
                    .pod_groups
                    .get(&desired.name)
                    .filter(|held| held.owned);
                let group = native_pod_group(view, desired, &name);
                let wanted = Wanted {
                    object: Object::NativePodGroup(Box::new(group)),
                    present,
                    same: present.is_some_and(|h| h.content.min_count == desired.min_count),
                };
                let ensured = ensure(facts, wanted, out, wake);
                complete &= ensured == Ensured::Same;
            }
            workload_name = Some(name);
        }
        self.delete_others(facts, workload_name.as_deref(), out);
        complete
    }

    /// Deletes the native groups of the workload that no gang needs.
    pub fn delete_surplus(&self, facts: &Facts<'_>, out: &mut Vec<Action>) {
        self.delete_others(facts, None, out);
    }

    fn delete_others(&self, facts: &Facts<'_>, workload: Option<&str>, out: &mut Vec<Action>) {
        let native = facts.view.native();
        if self.undecided {
            return;
        }
        let groups = native.pod_groups.iter();
        let unneeded = groups.filter(|(name, held)| {
            !held.content.terminating && self.gangs.iter().all(|w| w.name != **name)
        });
        out.extend(
            unneeded.filter_map(|(name, held)| surplus(Surplus::NativePodGroup, name, held)),
        );
        let workloads = native.workloads.iter();
        let unneeded = workloads.filter(|(name, _)| workload != Some(name.as_str()));
        out.extend(
            unneeded.filter_map(|(name, held)| surplus(Surplus::NativeWorkload, name, held)),
        );
    }
}

fn surplus<T>(surplus: Surplus, name: &str, held: &Held<T>) -> Option<Action> {
    held.owned.then(|| Action::DeleteSurplus {
        surplus,
        name: name.to_owned(),
        uid: held.uid.clone(),
    })
}

/// Pods that are not replaced and have not ended.
fn live_pods<'f>(
    facts: &'f Facts<'_>,
    ledger: &'f Ledger,
    gang: &'f Gang,
) -> Vec<(&'f Member, &'f PodView)> {
    let pods = facts
        .current_pods(ledger, gang)
        .filter_map(|(member, pod)| Some((member, pod?)));
    pods.filter(|(_, pod)| pod.is_live()).collect()
}

fn name_of(pod: &PodView) -> Option<&str> {
    pod.identity.native_group.as_deref()
}

/// Name for a gang that is about to get pods.
fn new_name(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang) -> Option<String> {
    let entry = ledger.gang(&gang.key).filter(|e| e.may_have_pods())?;
    let places = facts.view.kube_scheduler_places();
    let placement = match facts.placement_state(&gang.key, entry) {
        PlacementState::Placed(placement) => &*placement.id,
        PlacementState::Unplaced if places => entry.released.as_deref().unwrap_or_default(),
        PlacementState::Unplaced | PlacementState::Released => return None,
    };
    if ledger.is_done(gang) {
        return None;
    }
    let view = facts.view;
    let own = pod_group_name(view.name(), view.uid(), gang.key.as_str());
    let named = |id: &str| native_pod_group_name(&own, id, ledger.highest_attempt);
    // kube-scheduler places the pods of a group together only once.
    let is_spent = |name: &str| {
        let held = view.native().pod_groups.get(name).filter(|h| h.owned);
        places && held.is_some_and(|h| h.content.scheduled || h.content.terminating)
    };
    let mut name = named(placement);
    while is_spent(&name) {
        name = named(&name);
    }
    Some(name)
}

fn members_to_run<'f>(
    facts: &'f Facts<'_>,
    ledger: &'f Ledger,
    membership: &'f Membership<'_>,
    gang: &'f Gang,
) -> impl Iterator<Item = &'f Member> {
    let assigned = facts.assigned_nodes(&gang.key);
    let all = facts.view.kube_scheduler_places();
    gang.members().filter(move |m| {
        (all || assigned.contains_key(*m))
            && membership.contains(m)
            && !ledger.completed.contains(*m)
    })
}
