//! What users may not expect of their pods.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use lockstep_api::condition::reasons;
use lockstep_api::gangs::Gang;
use lockstep_api::words::count;

use super::value::{ConditionValue, condition};
use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::pods::PodView;

/// Pods that stand for members of a gang and are to go on.
fn live<'f>(facts: &'f Facts<'_>, ledger: &Ledger, gang: &Gang) -> Vec<&'f PodView> {
    let pods = facts.current_pods(ledger, gang).filter_map(|(_, pod)| pod);
    pods.filter(|p| !p.terminating() && !p.terminal()).collect()
}

/// Whether pods have another priority than their gang. Preemption goes by that of the gang,
/// kube-scheduler and kubelets go by that of the pod. `None`: they agree.
pub(super) fn priorities(facts: &Facts<'_>, ledger: &Ledger) -> Option<ConditionValue> {
    let mut differ: Vec<(&PodView, i32, i32)> = Vec::new();
    for gang in &facts.gangs {
        let Some(group) = facts.view.pod_groups.get(&gang.key) else {
            continue;
        };
        let wanted = group.spec.gang.priority;
        for pod in live(facts, ledger, gang) {
            let other = pod.priority.filter(|is| *is != wanted);
            differ.extend(other.map(|is| (pod, is, wanted)));
        }
    }
    let (pod, is, wanted) = *differ.iter().min_by_key(|(pod, ..)| &pod.name)?;
    let message = format!(
        "{} whose priority differs from the gang's, for example {}: {is} instead of {wanted}; \
         Lockstep preempts by the gang's",
        count(differ.len(), "pod"),
        pod.name
    );
    Some(condition(true, reasons::PRIORITY_DIFFERS, message))
}

/// Pods whose kubelets restart all of their containers, for the time that it takes.
pub(super) fn restarting_whole(facts: &Facts<'_>, ledger: &Ledger) -> Option<ConditionValue> {
    let mut names: Vec<&str> = Vec::new();
    for gang in &facts.gangs {
        let pods = live(facts, ledger, gang).into_iter();
        names.extend(pods.filter(|p| p.restarts_all()).map(|p| p.name.as_str()));
    }
    let first = names.iter().min()?;
    let message = format!(
        "kubelets restart all containers of {}, for example {first}",
        count(names.len(), "pod")
    );
    Some(condition(true, reasons::RESTARTING_ALL_CONTAINERS, message))
}

/// What restarts in place make of the hooks of containers: agents stop without them, and so do
/// kubelets that restart all of a pod. `None`: there are no hooks.
pub(super) fn hooks(facts: &Facts<'_>) -> Option<String> {
    let (mut before_stop, mut after_start) = (Vec::new(), Vec::new());
    for group in &facts.spec().groups {
        for (name, stop, start) in hooks_of(&group.template.0) {
            let container = format!("{}/{name}", group.name);
            if stop {
                before_stop.push(container.clone());
            }
            if start {
                after_start.push(container);
            }
        }
    }
    let mut says = Vec::new();
    if !before_stop.is_empty() {
        says.push(format!(
            "preStop of {} does not run",
            before_stop.join(", ")
        ));
    }
    if !after_start.is_empty() {
        says.push(format!(
            "postStart of {} runs again",
            after_start.join(", ")
        ));
    }
    (!says.is_empty()).then(|| says.join(", and "))
}

/// Containers with hooks: name, whether they have preStop, and postStart.
fn hooks_of(template: &PodTemplateSpec) -> Vec<(&str, bool, bool)> {
    let mut out = Vec::new();
    if let Some(spec) = &template.spec {
        let inits = spec.init_containers.iter().flatten();
        for container in inits.chain(&spec.containers) {
            if let Some(hooks) = &container.lifecycle {
                let (stop, start) = (hooks.pre_stop.is_some(), hooks.post_start.is_some());
                out.push((container.name.as_str(), stop, start));
            }
        }
    }
    out
}
