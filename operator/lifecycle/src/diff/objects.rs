use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::PodGroup;
use lockstep_api::gangs::Gang;
use lockstep_api::ids::{ResourceVersion, Uid};
use lockstep_api::membership::Membership;
use lockstep_api::restart_order::DomainOrder;
use lockstep_api::scheduling::GangSpec;

use super::rejected::is_recently_rejected;
use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::objects::hash::spec_hash;
use crate::objects::pod::dry_run_pods;
use crate::objects::scheduling as build;
use crate::orders;
use crate::plan::{Action, Object, Surplus};
use crate::view::{Held, Priority, Target};
use crate::wake::Wake;
use lockstep_api::tier::Tier;

#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ensured {
    Same,
    Requested,
    /// Another owner's object has the name, or the API server has recently rejected the request.
    Blocked,
}

/// Least time between dry runs after refusals of pods.
const REPEATED_AFTER: TimeDelta = TimeDelta::minutes(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DryRunFor {
    /// Pods are created only after a result.
    Pods,
    /// The scheduler searches for nodes even without a result.
    Placement,
    /// After failed pods: the API server must answer a dry run since this time.
    Retry { since: DateTime<Utc> },
}

/// Dry-runs the pods of this spec: whether they are valid, which restart rules the API server
/// keeps, and how it admits them. Results expire, because feature gates and webhooks change.
pub(super) fn dry_run(facts: &Facts<'_>, purpose: DryRunFor, wake: &mut Wake) -> Option<Action> {
    let spec_hash = spec_hash(facts.spec());
    let needed = purpose != DryRunFor::Placement;
    let since = match purpose {
        DryRunFor::Retry { since } => Some(since),
        DryRunFor::Pods | DryRunFor::Placement => None,
    };
    let last_run = facts
        .view
        .dry_run()
        .filter(|d| d.spec_hash == spec_hash && !(needed && d.failed))
        .filter(|d| since.is_none_or(|since| d.at >= since));
    let is_current = last_run
        .is_some_and(|d| !facts.due(d.until).passed(wake) && !is_refuted(facts, d.at, wake));
    if is_current || *facts.view.priority() == Priority::ClassMissing {
        return None;
    }
    let pods = dry_run_pods(facts.view, Tier::RestartRules);
    let mut whole = dry_run_pods(facts.view, Tier::RestartAll).into_iter();
    Some(Action::DryRun {
        needed,
        spec_hash,
        restart_all: Box::new(whole.next()?),
        pods,
    })
}

/// True if kube-scheduler has refused pods since the dry run, whose result may be outdated.
fn is_refuted(facts: &Facts<'_>, dry_run_at: DateTime<Utc>, wake: &mut Wake) -> bool {
    let mut gangs = facts.view.gangs().values();
    let unschedulable = gangs.any(|gang| {
        gang.refused_at
            .map_or(gang.avoids_nodes, |at| at > dry_run_at)
    });
    unschedulable && facts.due(dry_run_at + REPEATED_AFTER).passed(wake)
}

/// True if pods may be created: all objects exist with the wanted content.
pub(super) fn ensure_all(
    facts: &Facts<'_>,
    ledger: &Ledger,
    membership: &Membership<'_>,
    out: &mut Vec<Action>,
    wake: &mut Wake,
) -> bool {
    let view = facts.view;
    let mut results = vec![service(facts, out, wake)];
    if *view.priority() == Priority::ClassMissing {
        // The class was deleted. Existing objects and pods continue, but the API server would
        // refuse new pods.
        results.push(Ensured::Blocked);
    } else {
        if !facts.gangs.is_empty() {
            results.push(workload(facts, out, wake));
        }
        for gang in &facts.gangs {
            results.push(pod_group(facts, gang, out, wake));
        }
    }
    let surplus = delete_surplus_pod_groups(facts, out);
    let desired = orders::desired(facts, ledger, membership, wake);
    let wanted = Wanted {
        present: view.order(),
        same: view.order().is_some_and(|h| h.content == desired),
        object: Object::RestartOrder(Box::new(build::restart_order(view, desired))),
    };
    results.push(ensure(facts, wanted, out, wake));
    !surplus && results.iter().all(|r| *r == Ensured::Same)
}

/// Tells supervisors that hold back stop signals that the manager stops all members.
pub(super) fn pass_on_stops(facts: &Facts<'_>) -> Option<Action> {
    let view = facts.view;
    // Most workloads make no requests, and an order of many members is large.
    let holds = |d: &DomainOrder| d.checkpoint.is_some() && (!d.stopping || d.request.is_some());
    let present = view.order().filter(|order| order.owned)?;
    if !present.content.domains.iter().any(holds) {
        return None;
    }
    let mut content = present.content.clone();
    for domain in content
        .domains
        .iter_mut()
        .filter(|d| d.checkpoint.is_some())
    {
        (domain.request, domain.stopping) = (None, true);
    }
    Some(Action::Update {
        object: Object::RestartOrder(Box::new(build::restart_order(view, content))),
        uid: present.uid.clone(),
        resource_version: present.resource_version.clone(),
    })
}

/// An object that must exist, and what exists under its name.
pub(super) struct Wanted<'a, T> {
    pub object: Object,
    pub present: Option<&'a Held<T>>,
    /// The present object has the wanted content.
    pub same: bool,
}

pub(super) fn ensure<T>(
    facts: &Facts<'_>,
    wanted: Wanted<'_, T>,
    out: &mut Vec<Action>,
    wake: &mut Wake,
) -> Ensured {
    let Wanted {
        object,
        present,
        same,
    } = wanted;
    match present {
        Some(held) if held.orphaned => {
            out.extend(remove_orphan(&object, held));
            return Ensured::Requested;
        }
        Some(held) if !held.owned => return Ensured::Blocked,
        Some(_) if same => return Ensured::Same,
        Some(_) | None => {}
    }
    let target = Target::Object(object.kind(), object.name().to_owned());
    if is_recently_rejected(facts, &target, wake) {
        return Ensured::Blocked;
    }
    out.push(match present {
        Some(held) => Action::Update {
            object,
            uid: held.uid.clone(),
            resource_version: held.resource_version.clone(),
        },
        None => Action::Create(object),
    });
    Ensured::Requested
}

/// Only the manager writes these kinds, so no other client needs an object of an earlier workload.
/// It is replaced and not adopted: its content belongs to that workload.
fn remove_orphan<T>(object: &Object, held: &Held<T>) -> Option<Action> {
    let surplus = match object {
        Object::Workload(_) => Surplus::Workload,
        Object::RestartOrder(_) => Surplus::RestartOrder,
        Object::Service(_)
        | Object::PodGroup(_)
        | Object::NativeWorkload(_)
        | Object::NativePodGroup(_)
        | Object::KueueWorkload(_) => return None,
    };
    Some(Action::DeleteSurplus {
        surplus,
        name: object.name().to_owned(),
        uid: held.uid.clone(),
    })
}

fn service(facts: &Facts<'_>, out: &mut Vec<Action>, wake: &mut Wake) -> Ensured {
    let view = facts.view;
    let present = view.service();
    let wanted = Wanted {
        object: Object::Service(Box::new(build::service(view))),
        present,
        same: present.is_some_and(|h| h.content == build::service_content(view)),
    };
    ensure(facts, wanted, out, wake)
}

fn workload(facts: &Facts<'_>, out: &mut Vec<Action>, wake: &mut Wake) -> Ensured {
    let present = facts.view.scheduling();
    let mut desired = build::workload(facts.view, &facts.gangs);
    for template in &mut desired.spec.pod_group_templates {
        let old = present
            .into_iter()
            .flat_map(|h| &h.content.pod_group_templates)
            .find(|o| o.name == template.name);
        if let Some(old) = old {
            keep_priority(&mut template.gang, &old.gang);
        }
    }
    let wanted = Wanted {
        present,
        same: present.is_some_and(|h| h.content == desired.spec),
        object: Object::Workload(Box::new(desired)),
    };
    ensure(facts, wanted, out, wake)
}

fn pod_group(facts: &Facts<'_>, gang: &Gang, out: &mut Vec<Action>, wake: &mut Wake) -> Ensured {
    let mut desired = build::pod_group(facts.view, gang);
    let Some(present) = facts.view.pod_groups().get(&gang.key) else {
        let wanted = Wanted::<()> {
            object: Object::PodGroup(Box::new(desired)),
            present: None,
            same: false,
        };
        return ensure(facts, wanted, out, wake);
    };
    keep_priority(&mut desired.spec.gang, &present.spec.gang);
    let Some(held) = held(present) else {
        return Ensured::Blocked;
    };
    let wanted = Wanted {
        present: Some(&held),
        same: present.spec == desired.spec,
        object: Object::PodGroup(Box::new(desired)),
    };
    ensure(facts, wanted, out, wake)
}

/// All pod groups of the view are owned, and objects from the API server have a UID and a version.
fn held(group: &PodGroup) -> Option<Held<()>> {
    Some(Held {
        uid: Uid::read(group.metadata.uid.as_deref())?,
        resource_version: ResourceVersion::read(group.metadata.resource_version.as_deref())?,
        owned: true,
        orphaned: false,
        content: (),
    })
}

/// True if surplus pod groups exist.
fn delete_surplus_pod_groups(facts: &Facts<'_>, out: &mut Vec<Action>) -> bool {
    let before = out.len();
    for (key, group) in facts.view.pod_groups() {
        let uid = Uid::read(group.metadata.uid.as_deref());
        if let (None, Some(name), Some(uid)) = (facts.gang(key), &group.metadata.name, uid) {
            out.push(Action::DeleteSurplus {
                surplus: Surplus::PodGroup,
                name: name.clone(),
                uid,
            });
        }
    }
    out.len() > before
}

/// A recreated class with another value does not affect existing objects.
fn keep_priority(desired: &mut GangSpec, present: &GangSpec) {
    if desired.priority_class_name == present.priority_class_name {
        desired.priority = present.priority;
        // The class is missing.
        desired.preemption_policy = desired.preemption_policy.or(present.preemption_policy);
    }
}
