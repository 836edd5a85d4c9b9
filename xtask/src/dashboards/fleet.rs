//! The dashboard of jobs and accelerators.

use super::panel::Kind::{Lines, Stacked, Table};
use super::panel::{Dashboard, NAMESPACE, Panel};

/// Running and waiting workloads, and the cost of failures and preemptions.
pub const FLEET: Dashboard = Dashboard {
    name: "fleet",
    title: "Lockstep / Fleet",
    description: "Who trains, who waits and why, what conditions say, and what failures and preemptions cost.",
    scraped: "lockstep_build_info",
    first: &[],
    more: &[NAMESPACE],
    panels: &[
        Panel {
            title: "Workloads by phase",
            description: "Phases of all workloads. Pending ones wait for capacity or for another group.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[("sum by (phase) (lockstep_workloads{$scraped})", "{{phase}}")],
        },
        Panel {
            title: "Accelerators",
            description: "What the accelerators of all nodes do. Reserved ones are promised to members without pods and to gangs that wait; unusable ones are on nodes that are cordoned or not ready.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[(
                "sum by (state) (lockstep_accelerators{$scraped})",
                "{{state}}",
            )],
        },
        Panel {
            title: "Accelerators held",
            description: "Accelerators that workloads hold, by namespace.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[(
                r#"sum by (namespace) (lockstep_accelerators_held{$scraped, namespace=~"$namespace"})"#,
                "{{namespace}}",
            )],
        },
        Panel {
            title: "Accelerators asked for",
            description: "By gangs in the queue, by namespace.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[(
                r#"sum by (namespace) (lockstep_accelerators_requested{$scraped, namespace=~"$namespace"})"#,
                "{{namespace}}",
            )],
        },
        Panel {
            title: "In use and useful",
            description: "Share of accelerators that pods hold; and of what workloads hold, the share that is not lost to failures and preemption, over an hour (a recording rule of config/components/prometheus). Work is lost from the last checkpoint that was declared.",
            unit: "percentunit",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    r#"sum(lockstep_accelerators{$scraped, state="held"}) / sum(lockstep_accelerators{$scraped})"#,
                    "in use",
                ),
                ("lockstep:goodput:ratio_rate1h", "useful of what is held"),
            ],
        },
        Panel {
            title: "Gangs that wait, by reason",
            description: "Gangs without placement. Unschedulable: there is no capacity, or it is reserved; the message of the condition says what is short.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[(
                r#"sum by (reason) (lockstep_waiting_gangs{$scraped, namespace=~"$namespace"})"#,
                "{{reason}}",
            )],
        },
        Panel {
            title: "Conditions that hold",
            description: "Workloads by condition and reason, where the condition is True. Stalled needs somebody: kubectl get tw shows which and why.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                r#"sum by (condition, reason) (lockstep_workload_conditions{$scraped, namespace=~"$namespace", status="True"})"#,
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
                r#"sum by (namespace, condition, status, reason) (lockstep_workload_conditions{$scraped, namespace=~"$namespace"})"#,
                "",
            )],
        },
        Panel {
            title: "Longest in a state",
            description: "Longest time that any workload has had a status of a condition. Ready=False and Reconciling=True of hours: something does not get on. kubectl get tw -A -o wide shows which.",
            unit: "s",
            kind: Table,
            width: 8,
            queries: &[(
                "max by (condition, status) (lockstep_condition_oldest_seconds{$scraped})",
                "",
            )],
        },
        Panel {
            title: "Changes of conditions",
            description: "How often conditions of workloads became True.",
            unit: "short",
            kind: Lines,
            width: 8,
            queries: &[(
                r#"sum by (condition) (increase(lockstep_condition_transitions_total{$scraped, status="True"}[$__rate_interval]))"#,
                "{{condition}}",
            )],
        },
        Panel {
            title: "How long states last, 95th percentile",
            description: "How long conditions had been True that have just become False: Reconciling, how long a change takes; Restarting, how long a restart takes.",
            unit: "s",
            kind: Lines,
            width: 8,
            queries: &[(
                r#"histogram_quantile(0.95, sum by (le, condition) (rate(lockstep_condition_seconds_bucket{$scraped, status="True"}[$__rate_interval])))"#,
                "{{condition}}",
            )],
        },
        Panel {
            title: "Time in the queue",
            description: "95th percentile of gangs that got their nodes, over a day, by priority class (a recording rule of config/components/prometheus); and the gang that has waited longest now.",
            unit: "s",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    "lockstep:queue_wait_seconds:p95_1d",
                    "p95 {{priority_class}}",
                ),
                (
                    "max by (priority_class) (lockstep_oldest_wait_seconds{$scraped})",
                    "oldest {{priority_class}}",
                ),
            ],
        },
        Panel {
            title: "Gangs by state",
            description: "Held gangs are not in the queue: suspended, backing off, or waiting for a dependency.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[("sum by (state) (lockstep_gangs{$scraped})", "{{state}}")],
        },
        Panel {
            title: "Incidents",
            description: "Finished incidents, by what was done about them and what caused them.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[(
                "sum by (action, cause) (increase(lockstep_incidents_total{$scraped}[$__rate_interval]))",
                "{{action}} after {{cause}}",
            )],
        },
        Panel {
            title: "Recovery, 95th percentile by action",
            description: "From the failure until all members ran again, in place or with recreated pods among them.",
            unit: "s",
            kind: Lines,
            width: 12,
            queries: &[(
                "histogram_quantile(0.95, sum by (le, action, result) (rate(lockstep_recovery_seconds_bucket{$scraped}[$__rate_interval])))",
                "{{action}} {{result}}",
            )],
        },
        Panel {
            title: "Recovery, 95th percentile by phase",
            description: "How long the phases of an incident take: from the failure until somebody knew, until it was decided, until the old containers had stopped, until the new ones ran.",
            unit: "s",
            kind: Stacked,
            width: 12,
            queries: &[(
                "histogram_quantile(0.95, sum by (le, phase) (rate(lockstep_incident_phase_seconds_bucket{$scraped}[$__rate_interval])))",
                "{{phase}}",
            )],
        },
        Panel {
            title: "Work lost, by cause",
            description: "Accelerator-seconds since the last checkpoint and for the restart, per second: so many accelerators work in vain.",
            unit: "short",
            kind: Stacked,
            width: 12,
            queries: &[(
                r#"sum by (cause) (rate(lockstep_lost_accelerator_seconds_total{$scraped, namespace=~"$namespace"}[$__rate_interval]))"#,
                "{{cause}}",
            )],
        },
        Panel {
            title: "Restarts left",
            description: "Of the running workload of each namespace that has fewest left, of those that have had a counted restart. At 0 the next counted failure fails it.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                r#"min by (namespace) (lockstep_restart_budget_remaining{$scraped, namespace=~"$namespace"})"#,
                "{{namespace}}",
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
                    "sum(increase(lockstep_preemptions_total{$scraped}[$__rate_interval]))",
                    "workloads",
                ),
                (
                    "sum by (kind) (increase(lockstep_preemption_victims_total{$scraped}[$__rate_interval]))",
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
                "sum(rate(lockstep_preemption_lost_accelerator_seconds_total{$scraped}[$__rate_interval]))",
                "accelerators",
            )],
        },
        Panel {
            title: "From the decision to preempt to capacity",
            description: "95th percentile of the time until all members of the preemptor are bound.",
            unit: "s",
            kind: Lines,
            width: 12,
            queries: &[(
                "histogram_quantile(0.95, sum by (le) (rate(lockstep_preemption_seconds_bucket{$scraped}[$__rate_interval])))",
                "p95",
            )],
        },
        Panel {
            title: "Preemptions given up",
            description: "Overdue: victims did not leave in time. Moved: capacity elsewhere became free. Void: the gang or its victims have changed.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                "sum by (reason) (increase(lockstep_preemption_intents_withdrawn_total{$scraped}[$__rate_interval]))",
                "{{reason}}",
            )],
        },
        Panel {
            title: "Node agents",
            description: "By whether their pod is ready, and nodes with members that have no ready one: members there are recreated instead of restarted in place.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[
                ("sum by (state) (lockstep_agents{$scraped})", "{{state}}"),
                (
                    "max(lockstep_nodes_without_agent{$scraped})",
                    "nodes without",
                ),
            ],
        },
    ],
};
