//! Mode Pods: one signal pod for each member that lacks a node, in a namespace of Lockstep's own.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::key::Key;
use lockstep_api::member::Member;
use lockstep_api::names::{labels, signal_pod_name};
use lockstep_api::provisioning::SIGNAL_SCHEDULER;

use super::actions::{ProvisioningAction, ProvisioningPlan};
use super::demand_pod::{detached, labels_of, spec_of};
use super::input::{DemandingGang, ProvisioningSettings, ProvisioningView, SignalPod, SignalStage};

/// Most pods of one pass.
const MAX_CREATES: usize = 500;

/// `gangs`: in queue order.
pub(super) fn plan(
    view: &ProvisioningView,
    gangs: &[&DemandingGang],
    settings: &ProvisioningSettings,
    out: &mut ProvisioningPlan,
) {
    let chosen = within(gangs, settings.max_pods);
    let needed: BTreeMap<String, (&DemandingGang, &Member)> = chosen
        .iter()
        .flat_map(|gang| gang.members.iter().map(|m| (name_of(gang, m), (*gang, m))))
        .collect();
    for (name, pod) in view.pods.iter().filter(|(_, pod)| pod.ours) {
        let bound = pod.stage == SignalStage::Bound;
        let kept = needed.contains_key(name) && !bound;
        if !kept && pod.stage != SignalStage::Terminating {
            // A kubelet may have started it.
            let grace = (!bound).then_some(0);
            let (name, uid) = (name.clone(), pod.uid.clone());
            out.first
                .push(ProvisioningAction::DeletePod { name, uid, grace });
        }
    }
    let mut left = MAX_CREATES;
    for gang in chosen {
        plan_gang(view, gang, settings, &mut left, out);
    }
}

/// The first gangs whose pods are at most `most` together. A gang that is larger blocks no other.
fn within<'g>(gangs: &[&'g DemandingGang], most: usize) -> Vec<&'g DemandingGang> {
    let mut left = most;
    let possible = gangs.iter().filter(|gang| gang.members.len() <= most);
    let chosen = possible.map_while(|gang| {
        left = left.checked_sub(gang.members.len())?;
        Some(*gang)
    });
    chosen.collect()
}

fn plan_gang(
    view: &ProvisioningView,
    gang: &DemandingGang,
    settings: &ProvisioningSettings,
    left: &mut usize,
    out: &mut ProvisioningPlan,
) {
    let (mut creations, mut hidden, mut whole) = (Vec::new(), Vec::new(), true);
    for member in &gang.members {
        let name = name_of(gang, member);
        match view.pods.get(&name) {
            Some(SignalPod { ours: false, .. }) => {
                out.taken.push(Key::new(&*settings.namespace, name));
                return;
            }
            Some(pod) => match pod.stage {
                SignalStage::Hidden => hidden.push((name, pod.uid.clone())),
                SignalStage::Shown => {}
                // Its name is free once it is gone.
                SignalStage::Bound | SignalStage::Terminating => whole = false,
            },
            None => {
                whole = false;
                if let Some(pod) = signal_pod(gang, member, name, settings).filter(|_| *left > 0) {
                    *left -= 1;
                    creations.push(ProvisioningAction::CreatePod(Box::new(pod)));
                }
            }
        }
    }
    if whole {
        let show = |(name, uid)| ProvisioningAction::ShowPod { name, uid };
        out.first.extend(hidden.into_iter().map(show));
    }
    if !gang.placed && !creations.is_empty() {
        out.creations.push((gang.key(), creations));
    }
}

fn name_of(gang: &DemandingGang, member: &Member) -> String {
    let (name, uid) = (&gang.id.name, gang.id.uid.as_str());
    signal_pod_name(name, uid, member, gang.number, gang.since)
}

/// `None` if the spec has no such group.
fn signal_pod(
    gang: &DemandingGang,
    member: &Member,
    name: String,
    settings: &ProvisioningSettings,
) -> Option<Pod> {
    let mut groups = gang.workload.spec.groups.iter();
    let group = groups.find(|g| g.name == member.group)?;
    let mut all = labels_of(gang, group);
    all.insert(labels::REPLICA.into(), member.replica.to_string());
    all.insert(labels::INDEX.into(), member.index.to_string());
    Some(Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(settings.namespace.clone()),
            labels: Some(all),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            scheduler_name: Some(SIGNAL_SCHEDULER.into()),
            ..detached(spec_of(gang, group))
        }),
        status: None,
    })
}
