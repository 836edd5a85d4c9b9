//! The metrics of the manager.

use super::Section;
use crate::metric::Kind::{self, Counter, Gauge, Histogram};
use crate::metric::Metric;

const fn metric(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    meaning: &'static str,
) -> Metric {
    Metric {
        name,
        kind,
        labels,
        meaning,
    }
}

/// In the order of the page.
pub(super) const SECTIONS: [Section; 5] = [WORKLOADS, CAPACITY, FAILURES, SCHEDULER, PROCESS];

const WORKLOADS: Section = Section {
    title: "Workloads",
    about: "Gauges over objects are shown by the process that leads and by no other, so that sums over the replicas are right. Conditions are\n\
            those of TrainingWorkloads. What is counted is counted when the status that says so has been written.",
    metrics: &[
        metric(
            "lockstep_workloads",
            Gauge,
            &["phase"],
            "workloads by phase",
        ),
        metric(
            "lockstep_workload_conditions",
            Gauge,
            &["namespace", "condition", "status", "reason"],
            "workloads by what their conditions say",
        ),
        metric(
            "lockstep_condition_oldest_seconds",
            Gauge,
            &["condition", "status"],
            "longest time that any workload has had this status of the condition",
        ),
        metric(
            "lockstep_condition_transitions_total",
            Counter,
            &["condition", "status", "reason"],
            "changes of the status of a condition, by what it changed to",
        ),
        metric(
            "lockstep_condition_seconds",
            Histogram,
            &["condition", "status"],
            "how long a condition had a status before it changed",
        ),
        metric(
            "lockstep_restart_budget_remaining",
            Gauge,
            &["namespace"],
            "fewest counted restarts left to any running workload of the namespace that has used one",
        ),
    ],
};

/// Served at a separate endpoint.
pub(super) const SINGLE_WORKLOADS: Section = Section {
    title: "Single workloads",
    about: "At `:8080/metrics/workloads` of every replica, where `metrics.workloads.enabled` is set; shown by the leader only, and by no more than\n\
            `metrics.workloads.max` workloads: those that run first, the oldest of them first. A workload that is deleted leaves nothing behind.",
    metrics: &[
        metric(
            "lockstep_workload_info",
            Gauge,
            &["namespace", "name", "phase", "reason", "priority_class"],
            "1; phase of a workload (`New` while it has none) and its reason",
        ),
        metric(
            "lockstep_workload_status_condition",
            Gauge,
            &["namespace", "name", "condition", "status"],
            "1 for the status that a condition has (`True`, `False`), 0 for the other",
        ),
        metric(
            "lockstep_workload_ready",
            Gauge,
            &["namespace", "name"],
            "members that are ready",
        ),
        metric(
            "lockstep_workload_succeeded",
            Gauge,
            &["namespace", "name"],
            "members that have succeeded",
        ),
        metric(
            "lockstep_workload_members",
            Gauge,
            &["namespace", "name"],
            "members that should run or have succeeded",
        ),
        metric(
            "lockstep_workload_restarts",
            Gauge,
            &["namespace", "name"],
            "failures that were answered by a restart",
        ),
        metric(
            "lockstep_workload_attempt",
            Gauge,
            &["namespace", "name"],
            "attempt, the highest of its restart domains",
        ),
        metric(
            "lockstep_workload_accelerators",
            Gauge,
            &["namespace", "name"],
            "accelerators that it holds",
        ),
        metric(
            "lockstep_workload_lost_accelerator_seconds",
            Gauge,
            &["namespace", "name"],
            "accelerator-seconds that failures and preemption have lost",
        ),
        metric(
            "lockstep_workloads_not_shown",
            Gauge,
            &[],
            "workloads that have no series here, because there are more than `metrics.workloads.max`",
        ),
    ],
};

const CAPACITY: Section = Section {
    title: "Gangs and accelerators",
    about: "Shown by the leader only. `priority_class` is empty for gangs without one. Accelerators are the resources of `scheduler.accelerators`.",
    metrics: &[
        metric(
            "lockstep_gangs",
            Gauge,
            &["state"],
            "gangs that have not ended: waiting for capacity, held (suspended, backing off, waiting for something else), placed, preempting",
        ),
        metric(
            "lockstep_waiting_gangs",
            Gauge,
            &["namespace", "reason"],
            "gangs without placement, by the reason in their pod group's condition",
        ),
        metric(
            "lockstep_oldest_wait_seconds",
            Gauge,
            &["priority_class"],
            "age of the oldest gang in the queue, in seconds",
        ),
        metric(
            "lockstep_queue_wait_seconds",
            Histogram,
            &["priority_class", "how"],
            "from queueing until a gang has its nodes: `free` capacity, `backfill` of nodes reserved for others, `preemption` (until its members are bound)",
        ),
        metric(
            "lockstep_accelerators",
            Gauge,
            &["resource", "state"],
            "accelerators of nodes: `held` by pods, `leaving` with pods that end, `reserved` for members that are not bound yet and gangs that wait, `unusable` on nodes that are cordoned or not ready, `free`",
        ),
        metric(
            "lockstep_accelerators_held",
            Gauge,
            &["namespace", "priority_class"],
            "accelerators that workloads hold",
        ),
        metric(
            "lockstep_accelerators_requested",
            Gauge,
            &["namespace", "priority_class"],
            "accelerators that gangs in the queue ask for",
        ),
        metric(
            "lockstep_accelerators_outranked",
            Gauge,
            &[],
            "accelerators held by gangs of lower priority than the most important one that waits for capacity",
        ),
        metric(
            "lockstep_agents",
            Gauge,
            &["state"],
            "node agents: ready, not_ready",
        ),
        metric(
            "lockstep_nodes_without_agent",
            Gauge,
            &[],
            "nodes with members and without a ready agent: members there are recreated instead of restarted in place",
        ),
    ],
};

const FAILURES: Section = Section {
    title: "Failures and what they cost",
    about: "",
    metrics: &[
        metric(
            "lockstep_incidents_total",
            Counter,
            &["namespace", "action", "cause", "counted"],
            "finished incidents, by what was done, what caused them, and whether they took a restart of the budget",
        ),
        metric(
            "lockstep_recovery_seconds",
            Histogram,
            &["action", "result"],
            "from the failure until all members ran again, `in_place` or with `recreated` pods among them; incidents that ended otherwise are not in it",
        ),
        metric(
            "lockstep_incident_phase_seconds",
            Histogram,
            &["phase"],
            "length of the phases of an incident: detect, decide, stop, barrier, start",
        ),
        metric(
            "lockstep_lost_accelerator_seconds_total",
            Counter,
            &["namespace", "cause"],
            "work since the last checkpoint and the time of the restart, over all members; `Preempted` is one of the causes",
        ),
        metric(
            "lockstep_preemptions_total",
            Counter,
            &[],
            "workloads that were preempted",
        ),
    ],
};

const SCHEDULER: Section = Section {
    title: "Scheduler",
    about: "",
    metrics: &[
        metric(
            "lockstep_scheduler_cycle_seconds",
            Histogram,
            &["kind", "result"],
            "duration of a scheduling cycle, by kind: `upkeep` (no gang asked for capacity), `placement`, `preemption` (victims were searched for); by result: `changes`, `nothing`",
        ),
        metric(
            "lockstep_placements_total",
            Counter,
            &[],
            "placements decided, changed ones included",
        ),
        metric(
            "lockstep_preemption_intents_total",
            Counter,
            &["proven"],
            "preemptions decided, and whether the victims were proven to be the cheapest",
        ),
        metric(
            "lockstep_preemption_victims_total",
            Counter,
            &["kind"],
            "victims of decided preemptions: podgroup, pod",
        ),
        metric(
            "lockstep_preemption_lost_accelerator_seconds_total",
            Counter,
            &[],
            "accelerator-seconds of work that decided preemptions destroy, as weighed when they were decided",
        ),
        metric(
            "lockstep_preemption_seconds",
            Histogram,
            &[],
            "from the decision to preempt until all members of the gang are bound",
        ),
        metric(
            "lockstep_preemption_intents_withdrawn_total",
            Counter,
            &["reason"],
            "preemptions withdrawn: `overdue` (victims did not leave in time), `unanswered` (no scheduler bound or refused its pods in time), `moved` (capacity elsewhere became free), `void` (gang or victims have changed)",
        ),
        metric(
            "lockstep_native_scheduling",
            Gauge,
            &["version"],
            "versions of `scheduling.k8s.io` that serve pod groups",
        ),
    ],
};

const PROCESS: Section = Section {
    title: "The manager itself",
    about: "",
    metrics: &[
        metric(
            "leader_election_master_status",
            Gauge,
            &["name"],
            "1 while this process leads",
        ),
        metric("lockstep_build_info", Gauge, &["version", "commit"], "1"),
        metric(
            "lockstep_synced",
            Gauge,
            &["kind"],
            "1 once a kind has been listed; nothing is decided before all are",
        ),
        metric(
            "lockstep_index_objects",
            Gauge,
            &["kind"],
            "objects of a kind in the index",
        ),
        metric(
            "lockstep_unreadable_objects",
            Gauge,
            &["kind"],
            "objects that could not be read and are left alone; the log names them",
        ),
        metric(
            "lockstep_watch_errors_total",
            Counter,
            &["kind"],
            "watches that failed",
        ),
        metric(
            "lockstep_write_errors_total",
            Counter,
            &["class"],
            "writes of passes that failed: conflict, already_exists, not_found, forbidden, invalid, throttled, budget, timeout, server_error, not_leading, other",
        ),
        metric(
            "lockstep_events_lost_total",
            Counter,
            &[],
            "events that could not be written",
        ),
        metric(
            "controller_runtime_reconcile_total",
            Counter,
            &["controller", "result"],
            "passes over workloads: `requeue` has written something, `success` had nothing to do, `error`",
        ),
        metric(
            "controller_runtime_reconcile_errors_total",
            Counter,
            &["controller"],
            "passes that failed",
        ),
        metric(
            "controller_runtime_reconcile_panics_total",
            Counter,
            &["controller"],
            "passes that panicked",
        ),
        metric(
            "controller_runtime_reconcile_time_seconds",
            Histogram,
            &["controller"],
            "length of passes, writes included",
        ),
        metric(
            "controller_runtime_active_workers",
            Gauge,
            &["controller"],
            "passes that are running",
        ),
        metric(
            "controller_runtime_max_concurrent_reconciles",
            Gauge,
            &["controller"],
            "most passes that run at a time",
        ),
        metric(
            "workqueue_depth",
            Gauge,
            &["name"],
            "workloads that wait for a pass",
        ),
        metric(
            "workqueue_adds_total",
            Counter,
            &["name"],
            "workloads added to the queue",
        ),
        metric(
            "workqueue_retries_total",
            Counter,
            &["name"],
            "workloads that come again after a failed pass",
        ),
        metric(
            "workqueue_queue_duration_seconds",
            Histogram,
            &["name"],
            "how long workloads wait for a pass",
        ),
        metric(
            "workqueue_work_duration_seconds",
            Histogram,
            &["name"],
            "how long passes take",
        ),
        metric(
            "workqueue_unfinished_work_seconds",
            Gauge,
            &["name"],
            "how long all running passes together have been running",
        ),
        metric(
            "workqueue_longest_running_processor_seconds",
            Gauge,
            &["name"],
            "how long the oldest pass has been running",
        ),
        metric(
            "rest_client_requests_total",
            Counter,
            &["code", "method"],
            "requests to the API server; `<error>`: no answer",
        ),
        metric(
            "rest_client_request_duration_seconds",
            Histogram,
            &["verb"],
            "how long requests took, watches left out",
        ),
        metric(
            "lockstep_policy_check_failed",
            Gauge,
            &["policy"],
            "1: the admission policy refuses this process its writes, or is not in force",
        ),
        metric("process_cpu_seconds_total", Counter, &[], "processor time"),
        metric("process_resident_memory_bytes", Gauge, &[], "memory"),
        metric("process_open_fds", Gauge, &[], "open file descriptors"),
        metric(
            "process_start_time_seconds",
            Gauge,
            &[],
            "start, in seconds since the epoch",
        ),
    ],
};
