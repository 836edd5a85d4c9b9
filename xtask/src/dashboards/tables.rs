//! What the dashboards show.

use super::panel::Kind::{Lines, Number, Stacked, Table};
use super::panel::{Dashboard, Panel};

/// Who trains, who waits and why, and what failures and preemptions cost.
pub const FLEET: Dashboard = Dashboard {
    name: "fleet",
    title: "Lockstep / Fleet",
    description: "Who trains, who waits and why, what conditions say, and what failures and preemptions cost.",
    panels: &[
        Panel {
            title: "Workloads by phase",
            description: "Phases of all workloads. Pending ones wait for capacity or for another group.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[(
                r#"sum by (phase) (lockstep_workloads{job=~"$job"})"#,
                "{{phase}}",
            )],
        },
        Panel {
            title: "Accelerators held",
            description: "Accelerators that workloads hold, by namespace.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[(
                r#"sum by (namespace) (lockstep_accelerators_held{job=~"$job", namespace=~"$namespace"})"#,
                "{{namespace}}",
            )],
        },
        Panel {
            title: "Conditions that hold",
            description: "Workloads by condition and reason, where the condition is True. Stalled needs somebody: kubectl get tw shows which and why.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                r#"sum by (condition, reason) (lockstep_workload_conditions{job=~"$job", namespace=~"$namespace", status="True"})"#,
                "{{condition}}: {{reason}}",
            )],
        },
        Panel {
            title: "Conditions now",
            description: "All conditions of all workloads, True and False, with their reasons.",
            unit: "short",
            kind: Table,
            width: 12,
            queries: &[(
                r#"sum by (namespace, condition, status, reason) (lockstep_workload_conditions{job=~"$job", namespace=~"$namespace"})"#,
                "",
            )],
        },
        Panel {
            title: "Gangs that wait, by reason",
            description: "Gangs without placement. Unschedulable: there is no capacity, or it is reserved; the message of the condition says what is short.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[(
                r#"sum by (reason) (lockstep_waiting_gangs{job=~"$job", namespace=~"$namespace"})"#,
                "{{reason}}",
            )],
        },
        Panel {
            title: "Gangs by state",
            description: "Held gangs are not in the queue: suspended, backing off, or waiting for a dependency.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[(
                r#"sum by (state) (lockstep_gangs{job=~"$job"})"#,
                "{{state}}",
            )],
        },
        Panel {
            title: "Incidents",
            description: "Finished incidents, by what was done about them and what caused them.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[(
                r#"sum by (action, cause) (increase(lockstep_incidents_total{job=~"$job"}[$__rate_interval]))"#,
                "{{action}} after {{cause}}",
            )],
        },
        Panel {
            title: "Recovery, 95th percentile by phase",
            description: "How long the phases of an incident take: from the failure until somebody knew, until it was decided, until the old containers had stopped, until the new ones ran.",
            unit: "s",
            kind: Stacked,
            width: 12,
            queries: &[(
                r#"histogram_quantile(0.95, sum by (le, phase) (rate(lockstep_incident_phase_seconds_bucket{job=~"$job"}[$__rate_interval])))"#,
                "{{phase}}",
            )],
        },
        Panel {
            title: "Preemptions",
            description: "Workloads that were preempted, and the victims of preemptions, single pods among them.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    r#"sum(increase(lockstep_preemptions_total{job=~"$job"}[$__rate_interval]))"#,
                    "workloads",
                ),
                (
                    r#"sum by (kind) (increase(lockstep_preemption_victims_total{job=~"$job"}[$__rate_interval]))"#,
                    "victims: {{kind}}",
                ),
            ],
        },
        Panel {
            title: "Work lost to preemption",
            description: "Accelerator-seconds since the last checkpoint and for the restart, per second: so many accelerators work in vain.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                r#"sum(rate(lockstep_preemption_lost_accelerator_seconds_total{job=~"$job"}[$__rate_interval]))"#,
                "accelerators",
            )],
        },
    ],
};

/// Whether the operator is well.
pub const MANAGER: Dashboard = Dashboard {
    name: "manager",
    title: "Lockstep / Manager",
    description: "Whether the operator is well: leader, passes, queue, requests to the API server, errors.",
    panels: &[
        Panel {
            title: "Leaders",
            description: "Processes that lead. 1 is right; 0 for a few seconds while another takes over.",
            unit: "short",
            kind: Number,
            width: 6,
            queries: &[(
                r#"sum(leader_election_master_status{job=~"$job"})"#,
                "leaders",
            )],
        },
        Panel {
            title: "Kinds not yet listed",
            description: "Kinds of objects that a process has not listed. It decides nothing before it is 0.",
            unit: "short",
            kind: Number,
            width: 6,
            queries: &[(
                r#"sum by (instance) (1 - lockstep_synced{job=~"$job"})"#,
                "{{instance}}",
            )],
        },
        Panel {
            title: "Objects that cannot be read",
            description: "Objects of ours that do not parse. They are left alone; the log names them.",
            unit: "short",
            kind: Number,
            width: 6,
            queries: &[(
                r#"max by (kind) (lockstep_unreadable_objects{job=~"$job"})"#,
                "{{kind}}",
            )],
        },
        Panel {
            title: "Workloads in the queue",
            description: "Workloads that wait for a pass.",
            unit: "short",
            kind: Number,
            width: 6,
            queries: &[(r#"max(workqueue_depth{job=~"$job"})"#, "depth")],
        },
        Panel {
            title: "Passes over workloads",
            description: "Passes by result: requeue has written something, success had nothing to do.",
            unit: "ops",
            kind: Lines,
            width: 12,
            queries: &[(
                r#"sum by (result) (rate(controller_runtime_reconcile_total{job=~"$job"}[$__rate_interval]))"#,
                "{{result}}",
            )],
        },
        Panel {
            title: "Length of passes, 99th percentile",
            description: "Passes over workloads with their writes, and how long workloads wait for one.",
            unit: "s",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    r#"histogram_quantile(0.99, sum by (le) (rate(controller_runtime_reconcile_time_seconds_bucket{job=~"$job"}[$__rate_interval])))"#,
                    "pass",
                ),
                (
                    r#"histogram_quantile(0.99, sum by (le) (rate(workqueue_queue_duration_seconds_bucket{job=~"$job"}[$__rate_interval])))"#,
                    "wait",
                ),
            ],
        },
        Panel {
            title: "Scheduler, 99th percentile",
            description: "Time to decide, by the most that a pass did: no gang asked for capacity, a gang did, victims were searched for.",
            unit: "s",
            kind: Lines,
            width: 12,
            queries: &[(
                r#"histogram_quantile(0.99, sum by (le, kind) (rate(lockstep_scheduler_pass_seconds_bucket{job=~"$job"}[$__rate_interval])))"#,
                "{{kind}}",
            )],
        },
        Panel {
            title: "Requests to the API server",
            description: "By code. 409 and 404 are part of the work; 403 and 429 are not.",
            unit: "reqps",
            kind: Lines,
            width: 12,
            queries: &[(
                r#"sum by (code) (rate(rest_client_requests_total{job=~"$job"}[$__rate_interval]))"#,
                "{{code}}",
            )],
        },
        Panel {
            title: "Errors",
            description: "Watches that broke, writes that failed, and events that could not be sent.",
            unit: "ops",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    r#"sum by (kind) (rate(lockstep_watch_errors_total{job=~"$job"}[$__rate_interval]))"#,
                    "watch {{kind}}",
                ),
                (
                    r#"sum by (class) (rate(lockstep_write_errors_total{job=~"$job"}[$__rate_interval]))"#,
                    "write {{class}}",
                ),
                (
                    r#"sum(rate(lockstep_events_lost_total{job=~"$job"}[$__rate_interval]))"#,
                    "events",
                ),
            ],
        },
        Panel {
            title: "Panics",
            description: "Passes that panicked. The workload is left alone until it changes; the log has the place.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                r#"sum(increase(controller_runtime_reconcile_panics_total{job=~"$job"}[$__rate_interval]))"#,
                "panics",
            )],
        },
    ],
};
