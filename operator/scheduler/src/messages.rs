pub mod demand;

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::{is_true, types};
use lockstep_api::gangs::Assignments;
use lockstep_api::scheduling::{BindingProgress, Preemption, Refusal, Reservation, Victim};
use lockstep_api::words::{count, exact_gpu_hours, gpu_hours, span, time};
use lockstep_engine::Names;
use lockstep_model::pods::refusal::why_refused;

use crate::context::Context;
use crate::gang::pending::{NoPreemption, Pending};
use crate::gang::state::GangState;
use crate::input::hold::Hold;
use crate::pace::LimitReached;
use crate::size::TooLarge;

pub(crate) fn placed(members: usize, nodes: usize) -> String {
    format!(
        "placed {} on {}",
        count(members, "member"),
        count(nodes, "node")
    )
}

/// Event for a gang that is queued again. Names the released nodes.
pub(crate) fn queued_again(gang: &GangState) -> String {
    let before = &gang.input.group.status;
    let nodes = before.placement.as_ref().map_or(0, |p| p.nodes.len());
    if nodes == 0 {
        return "queued again".to_owned();
    }
    let nodes = count(nodes, "node");
    let why = if is_true(&before.conditions, types::DISRUPTION_TARGET) {
        "preempted; "
    } else if gang.input.released() {
        "all pods have ended; "
    } else {
        ""
    };
    format!("{why}released {nodes}; queued again")
}

const NOT_REQUESTING: &str = "the workload is not requesting capacity";

/// Names the key of the manager's configuration.
const PREEMPTION_DISABLED: &str = "preemption is disabled (scheduler.preemption.enabled)";

pub fn pending(pending: &Pending, names: &dyn Names) -> String {
    match pending {
        Pending::InvalidTemplate(invalid) => invalid.to_string(),
        Pending::Capacity(short) => short.describe(names),
        Pending::NoVictims {
            short,
            until,
            out_of_reach,
            guarded,
        } => no_victims(&short.describe(names), *until, *out_of_reach, *guarded),
        Pending::Undecided { steps, next_try } => undecided(*steps, *next_try),
        Pending::NoPreemption { short, why } => {
            format!("{}; {}", short.describe(names), no_preemption(why))
        }
        Pending::KubeSchedulerPlaces { members } => format!(
            "waiting for kube-scheduler, which places the {} (scheduling.backend is Kubernetes)",
            count(*members, "member")
        ),
        Pending::Held(hold) => held(hold),
        Pending::BackingOff { refusal, next_try } => refused(refusal, *next_try),
        Pending::TooLarge(too_large) => does_not_fit(too_large),
        Pending::Terminations { short } => {
            let short = short.describe(names);
            format!("{short}; terminating pods will free enough")
        }
        Pending::RejectingNodes {
            node,
            others,
            next_try,
        } => rejecting(node, *others, *next_try),
        Pending::Exchange { gangs } => exchange(*gangs),
        Pending::Reserved { gangs } => reserved_for(*gangs),
        Pending::MoveLimit { moving } => format!(
            "waits for the end of {} (nodeHealth.concurrentMoves)",
            count(*moving, "other move")
        ),
        Pending::ManyFaults(faults) => faults.to_string(),
    }
}

fn rejecting(node: &str, others: usize, next_try: DateTime<Utc>) -> String {
    let nodes = match others {
        0 => format!("{node}, whose kubelet rejected a pod of this gang"),
        n => format!(
            "{node} and {}, whose kubelets rejected pods of this gang",
            count(n, "other node")
        ),
    };
    format!(
        "would fit only with node {nodes}; retry at {}",
        time(next_try)
    )
}

fn does_not_fit(too_large: &TooLarge) -> String {
    let TooLarge {
        members,
        victims,
        bytes,
        limit,
    } = too_large;
    let victims = match victims {
        0 => String::new(),
        n => format!(" and {}", count(*n, "victim")),
    };
    format!(
        "the placement of {}{victims} takes {bytes} bytes of the PodGroup's status, more than the limit of \
         {limit}: set spec.scheduling.gang.scope to Replica for one gang per replica",
        count(*members, "member")
    )
}

/// Does not report missing capacity, because nodes can be free.
fn undecided(steps: u64, next_try: DateTime<Utc>) -> String {
    let next_try = time(next_try);
    format!(
        "unknown whether all pods fit: {steps} search steps found neither a placement nor a proof that none \
         exists; the gang keeps its place in the queue; next search, with 10 times the steps and then among \
         victims, at {next_try}"
    )
}

/// Missing capacity is not the reason: nodes look free.
fn reserved_for(gangs: usize) -> String {
    let gangs = count(gangs, "gang");
    format!("queued behind {gangs}: the capacity that would fit this gang is reserved")
}

/// Message for the gang that releases its nodes first.
fn exchange(gangs: usize) -> String {
    let gangs = count(gangs, "other gang");
    format!("releases its nodes to {gangs}; next, this gang gets other nodes")
}

/// Adds the number of nodes that pods of other workloads close to a gang.
pub(crate) fn with_closed_nodes(waiting: String, closed: usize) -> String {
    match closed {
        0 => waiting,
        n => {
            let nodes = count(n, "node");
            format!(
                "{waiting}; {nodes} did not match pod anti-affinity rules of this gang and other pods"
            )
        }
    }
}

pub(crate) fn holds_reservation(waiting: &str, reservation: &Reservation) -> String {
    let nodes = count(reservation.nodes.len(), "node");
    let start = reservation.starts_at.map(|at| {
        let at = time(at);
        format!(", available by {at}")
    });
    format!(
        "{waiting}; capacity on {nodes} is reserved for this gang{}",
        start.unwrap_or_default()
    )
}

pub(crate) fn held(hold: &Hold) -> String {
    match hold {
        Hold::Suspended => format!("{NOT_REQUESTING}: spec.suspend is true"),
        Hold::NotAdmitted => format!("{NOT_REQUESTING}: Kueue has not admitted it"),
        Hold::BackingOff { until } => format!("{NOT_REQUESTING} before {}", time(*until)),
        Hold::Dependency => NOT_REQUESTING.to_owned(),
        Hold::Volume(missing) => format!("not placed: {missing}"),
        Hold::Misfit(misfit) => misfit.to_string(),
        Hold::Quota(excess) => {
            format!(
                "{excess}; not placed until the quota allows all pods; no workload is preempted for quota"
            )
        }
    }
}

fn no_preemption(why: &NoPreemption) -> String {
    match why {
        NoPreemption::Disabled => PREEMPTION_DISABLED.to_owned(),
        NoPreemption::Missing(missing) => missing.to_string(),
        NoPreemption::Gated(gate) => format!(
            "no workload is preempted for this gang: another controller holds its pods with scheduling gate {gate}"
        ),
        NoPreemption::NotModelled(what) => format!(
            "no workload is preempted for this gang: only kube-scheduler can evaluate the {what}"
        ),
        NoPreemption::Refused(refusal) => format!(
            "no workload is preempted for this gang, because capacity is not the problem: {}",
            refuses(refusal)
        ),
        NoPreemption::Failed { failures, next_try } => format!(
            "no workload is preempted for this gang before {} or a spec change: the gang did not run after {}",
            time(*next_try),
            count(*failures as usize, "preemption")
        ),
        NoPreemption::NotAdmitted(why) => format!(
            "no workload is preempted for this gang: the result of the pods' dry run is unknown ({why})"
        ),
        NoPreemption::Paced(reached) => paced(reached),
        NoPreemption::PrefersNewNodes { until } => format!(
            "no workload is preempted for this gang before {}: new nodes are preferred (autoscaler.scaleUpBeforePreemption)",
            time(*until)
        ),
    }
}

/// Names the key of the manager's configuration.
pub(crate) fn paced(reached: &LimitReached) -> String {
    format!(
        "victims ({}) are not evicted before {}: the limit is {} per minute \
         (scheduler.preemption.maxEvictionsPerMinute)",
        count(reached.pods as usize, "pod"),
        time(reached.next_try),
        count(reached.limit.get() as usize, "pod"),
    )
}

fn refused(refusal: &Refusal, next_try: DateTime<Utc>) -> String {
    let next_try = time(next_try);
    format!(
        "{}; capacity is not the problem, so no workload is preempted for this gang; retry at {next_try}",
        refuses(refusal)
    )
}

fn refuses(refusal: &Refusal) -> String {
    let Refusal {
        pod, node, message, ..
    } = refusal;
    if refusal.unanswered {
        return message.clone();
    }
    format!(
        "kube-scheduler refuses pod {pod} on {node}: {}",
        why_refused(message)
    )
}

/// Pinned pods were neither bound nor refused before the deadline.
pub(crate) fn scheduler_timeout(
    context: &Context<'_>,
    gang: &GangState,
    unbound: &Assignments,
) -> String {
    let groups: BTreeSet<&str> = unbound.keys().map(|m| m.group.as_str()).collect();
    let mut pods = unbound
        .iter()
        .filter_map(|(m, n)| Some((gang.waiting_pod(m, n)?, n)));
    let first = pods
        .next()
        .map(|(pod, n)| format!(", for example {} on {n}", pod.name));
    format!(
        "scheduler {} (template.spec.schedulerName of group {}) has neither bound nor refused {} within {}{}",
        schedulers(gang, unbound),
        Vec::from_iter(groups).join(", "),
        count(unbound.len(), "pod"),
        deadline(context),
        first.unwrap_or_default(),
    )
}

/// No victim holds the nodes, and some pods are not bound yet.
pub(crate) fn binding(
    context: &Context<'_>,
    gang: &GangState,
    progress: BindingProgress,
) -> String {
    let until = TimeDelta::from_std(context.settings.binding_deadline).unwrap_or(TimeDelta::MAX);
    let unbound = gang.unbound();
    let all = gang.unfinished_assigned().count();
    format!(
        "; its nodes are free of victims, and {} of {} are bound since {}; preemption withdrawn at {} unless {} binds or refuses a pod by then",
        all - unbound.len(),
        count(all, "member"),
        time(progress.since),
        time(progress.since + until),
        schedulers(gang, &unbound),
    )
}

fn schedulers(gang: &GangState, unbound: &Assignments) -> String {
    let templates = gang.input.workload.templates.iter();
    let names: BTreeSet<&str> = templates
        .filter(|t| unbound.keys().any(|m| m.group == t.group))
        .map(|t| t.scheduler_name.as_str())
        .collect();
    Vec::from_iter(names).join(" or ")
}

fn deadline(context: &Context<'_>) -> String {
    let seconds = context.settings.binding_deadline.as_secs();
    span(i64::try_from(seconds).unwrap_or(i64::MAX))
}

/// Begins with the words of kube-scheduler (KEP-5710).
pub(crate) fn preempting(intent: &Preemption) -> String {
    format!(
        "pod group preemption: found a placement for podgroup, preempting {}",
        intent.explanation
    )
}

/// Reason for these victims, without their names, which can belong to other tenants. `beyond`: pods evicted beyond their budgets. `caused`: cost of follow-on
/// evictions in accelerator-seconds. `saves`: victims are expected to save a checkpoint.
pub(crate) fn explanation(intent: &Preemption, beyond: u64, caused: u128, saves: bool) -> String {
    let rest = if saves {
        "checkpoints on request, and the restarts"
    } else {
        "and the restarts"
    };
    let mut text = format!(
        "{} at a cost of {}: {} of lost work, {rest}",
        number(&intent.victims),
        exact_gpu_hours(intent.cost),
        gpu_hours(intent.lost_work)
    );
    if beyond > 0 {
        let pods = count(usize::try_from(beyond).unwrap_or(usize::MAX), "pod");
        text = format!("{text}, {pods} beyond disruption budgets");
    }
    if caused > 0 {
        let caused = exact_gpu_hours(i64::try_from(caused).unwrap_or(i64::MAX));
        text = format!("{text}, {caused} of it in evictions by these victims");
    }
    text = format!("{text}; {}", verdict(intent));
    match &intent.next_best {
        Some(next) => format!(
            "{text}; the next best set costs {}",
            exact_gpu_hours(next.cost)
        ),
        None => format!("{text}; no other set was found"),
    }
}

/// False if a lower bound is below half of the cost, so it says little about cheaper victims.
pub fn is_useful_bound(at_least: i64, cost: i64) -> bool {
    at_least > 0 && at_least.saturating_mul(2) >= cost
}

/// Quality of the choice, if known.
fn verdict(intent: &Preemption) -> String {
    if intent.proven {
        "no cheaper set frees enough capacity".to_owned()
    } else if !is_useful_bound(intent.at_least, intent.cost) {
        "a cheaper set may exist".to_owned()
    } else {
        format!(
            "no set that costs less than {} frees enough capacity",
            exact_gpu_hours(intent.at_least)
        )
    }
}

/// Reason for these victims, after other victims were spared.
pub(crate) fn reduced(victims: &[Victim], cost: i64) -> String {
    let victims = number(victims);
    format!(
        "{victims} at a cost of {}; other victims stay, because capacity became free",
        exact_gpu_hours(cost)
    )
}

/// No set of victims suffices. `until`: end of the guaranteed run time of further candidates.
fn no_victims(
    short: &str,
    until: Option<DateTime<Utc>>,
    out_of_reach: usize,
    guarded: usize,
) -> String {
    if guarded > 0 {
        let pods = count(guarded, "pod");
        return format!(
            "{short}; disruption budgets protect {pods} of lower priority (scheduler.preemption.deleteWhenEvictionIsRefused)"
        );
    }
    if out_of_reach > 0 {
        let pods = count(out_of_reach, "pod");
        return format!(
            "{short}; {pods} of lower priority may not be evicted (scheduler.preemption.victims)"
        );
    }
    match until {
        Some(until) => {
            let until = time(until);
            format!(
                "{short}; some pods of lower priority may not be evicted before {until} (scheduler.preemption.minRuntimeSeconds)"
            )
        }
        None => short.to_owned(),
    }
}

fn number(victims: &[Victim]) -> String {
    let pods: i64 = victims.iter().map(|v| i64::from(v.pods.max(0))).sum();
    let pods = count(usize::try_from(pods).unwrap_or_default(), "pod");
    format!("{} ({pods})", count(victims.len(), "victim"))
}

/// Message for a victim, beginning with the words of kube-scheduler. Names no alternative victims,
/// which can belong to other tenants.
pub(crate) fn preempted_by(preemptor: &GangState, intent: &Preemption, victim: &Victim) -> String {
    let (key, priority) = (&preemptor.input.key, preemptor.priority());
    let mut text = format!(
        "Preempted by podgroup {}/{} of priority {priority}, which needs the capacity (intent {}): {} \
         of work lost here; the cost with restarts is {}",
        key.namespace,
        key.name,
        intent.id,
        gpu_hours(victim.lost_work),
        exact_gpu_hours(victim.cost)
    );
    if intent.cost != victim.cost {
        text = format!("{text} here, {} in total", exact_gpu_hours(intent.cost));
    }
    if intent.proven || is_useful_bound(intent.at_least, intent.cost) {
        text = format!("{text}; {}", verdict(intent));
    }
    match &intent.next_best {
        Some(next) => format!(
            "{text}; the next best choice costs {}",
            exact_gpu_hours(next.cost)
        ),
        None => text,
    }
}

/// Keeps the reason of the preemption after the gang is queued again.
pub(crate) fn requeued(reason: &str) -> String {
    format!("{reason}; evicted and requeued at its original position")
}
