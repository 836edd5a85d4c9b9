use k8s_openapi::api::core::v1::Lifecycle;
use lockstep_api::condition::reasons;
use lockstep_api::gangs::Gang;
use lockstep_api::words::count;
use lockstep_api::workload::Group;

use super::value::{ConditionValue, condition};
use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::pods::PodView;

fn live<'f>(facts: &'f Facts<'_>, ledger: &Ledger, gang: &Gang) -> Vec<&'f PodView> {
    let pods = facts.current_pods(ledger, gang).filter_map(|(_, pod)| pod);
    pods.filter(|p| p.is_live()).collect()
}

/// What the workload waits for while Kueue has not admitted it. `None` if it is not held for quota.
pub(super) fn quota_wait(facts: &Facts<'_>, ledger: &Ledger) -> Option<String> {
    let quota = ledger.kueue.as_ref().filter(|quota| !quota.admitted)?;
    let queue = &quota.queue;
    let (why, ending) = (
        facts.quota_wait(queue),
        still_ending(facts).unwrap_or_default(),
    );
    Some(format!("queue {queue} of Kueue: {why}{ending}"))
}

/// Lockstep's preemption uses the gang's priority, but kube-scheduler and kubelets use the pod's
/// priority.
pub(super) fn priorities(facts: &Facts<'_>, ledger: &Ledger) -> Option<ConditionValue> {
    let mut differ: Vec<(&PodView, i32, i32)> = Vec::new();
    for gang in &facts.gangs {
        let Some(view) = facts.gang_view(&gang.key) else {
            continue;
        };
        let expected = view.priority;
        for pod in live(facts, ledger, gang) {
            let other = pod.priority.filter(|actual| *actual != expected);
            differ.extend(other.map(|actual| (pod, actual, expected)));
        }
    }
    let (pod, actual, expected) = *differ.iter().min_by_key(|(pod, ..)| &pod.name)?;
    let message = format!(
        "{} whose priority differs from the gang's, for example {}: {actual} instead of {expected}; \
         Lockstep preempts by the gang's",
        count(differ.len(), "pod"),
        pod.name
    );
    Some(condition(true, reasons::PRIORITY_DIFFERS, message))
}

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

/// Agents stop containers without hooks, and so do kubelets that restart a whole pod.
pub(super) fn hooks(facts: &Facts<'_>) -> Option<String> {
    let before_stop = containers_with(facts, |_, _, hooks| hooks.pre_stop.is_some());
    let after_start = containers_with(facts, |_, _, hooks| hooks.post_start.is_some());
    let mut says: Vec<String> = not_run(&before_stop).into_iter().collect();
    if !after_start.is_empty() {
        says.push(format!(
            "postStart of {} runs again",
            after_start.join(", ")
        ));
    }
    (!says.is_empty()).then(|| says.join(", and "))
}

/// Hooks of the training container, which does not end on a restart. Supervised containers have no
/// postStart hook, and other containers continue.
pub(super) fn training_hooks(facts: &Facts<'_>) -> Option<String> {
    let before_stop = containers_with(facts, |group, name, hooks| {
        facts.training(&group.name) == name && hooks.pre_stop.is_some()
    });
    not_run(&before_stop)
}

/// Restart rules of the user's own, which the kubelet evaluates before those of the operator: a
/// member of a gang restarts without its peers.
pub(super) fn own_restart_rules(facts: &Facts<'_>) -> Option<String> {
    let group = facts.spec().groups.iter().find(|group| {
        let spec = group.template.0.spec.iter();
        let mut containers = spec.flat_map(|spec| &spec.containers);
        containers.any(|c| {
            c.restart_policy_rules
                .as_ref()
                .is_some_and(|r| !r.is_empty())
        })
    })?;
    Some(format!(
        "restartPolicyRules of group {} come first: on an exit code that they name, the kubelet restarts one member \
         without its peers",
        group.name
    ))
}

fn not_run(before_stop: &[String]) -> Option<String> {
    let says = || format!("preStop of {} does not run", before_stop.join(", "));
    (!before_stop.is_empty()).then(says)
}

fn containers_with(
    facts: &Facts<'_>,
    holds: impl Fn(&Group, &str, &Lifecycle) -> bool,
) -> Vec<String> {
    let mut out = Vec::new();
    for group in &facts.spec().groups {
        let Some(spec) = &group.template.0.spec else {
            continue;
        };
        let inits = spec.init_containers.iter().flatten();
        for container in inits.chain(&spec.containers) {
            let name = container.name.as_str();
            let hooks = container.lifecycle.as_ref();
            if hooks.is_some_and(|hooks| holds(group, name, hooks)) {
                out.push(format!("{}/{name}", group.name));
            }
        }
    }
    out
}

/// Pods that still use their grace period hold the capacity of their nodes.
pub(super) fn still_ending(facts: &Facts<'_>) -> Option<String> {
    let ends = |pod: &&PodView| pod.terminating() && pod.node.is_some() && !pod.terminal();
    let pods = facts.pods().filter(ends).count();
    let verb = if pods == 1 { "is" } else { "are" };
    (pods > 0).then(|| format!("; {} {verb} still ending", count(pods, "pod")))
}
