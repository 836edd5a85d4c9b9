//! The dashboard of one workload.

use super::panel::Kind::{Lines, Number, Table, Timeline};
use super::panel::{Choice, Dashboard, Panel, Variable};

/// Prefixes of its metrics: the manager's (`metrics.workloads.enabled`) or kube-state-metrics'
/// ([`crate::custom_resource_state`]). The rest of the names is equal.
pub const SOURCES: [&str; 2] = ["lockstep_workload", crate::custom_resource_state::PREFIX];

pub const WORKLOAD: Dashboard = Dashboard {
    name: "workload",
    title: "Lockstep / Workload",
    description: "What one workload does: its conditions over time, members, attempts, and what it has lost. Needs metrics.workloads.enabled in the manager's configuration, or kube-state-metrics with config/components/kube-state-metrics.",
    scraped: "${source}_info",
    first: &[Variable {
        name: "source",
        label: "Source",
        choice: Choice::Fixed(&SOURCES),
    }],
    more: &[
        Variable {
            name: "namespace",
            label: "Namespace",
            choice: Choice::One {
                of: "${source}_info",
                label: "namespace",
            },
        },
        Variable {
            name: "workload",
            label: "Workload",
            choice: Choice::One {
                of: "${source}_info",
                label: "name",
            },
        },
    ],
    panels: &[
        Panel {
            title: "Phase",
            description: "The phase that the workload is in, and the reason of the condition that gives it.",
            unit: "short",
            kind: Table,
            width: 9,
            queries: &[(
                r#"max by (phase, reason, priority_class) (${source}_info{$scraped, namespace=~"$namespace", name=~"$workload"})"#,
                "",
            )],
        },
        Panel {
            title: "Members ready",
            description: "Of the members that should be there; those that have succeeded are not ready any more.",
            unit: "percentunit",
            kind: Number,
            width: 3,
            queries: &[(
                r#"sum(${source}_ready{$scraped, namespace=~"$namespace", name=~"$workload"}) / sum(${source}_members{$scraped, namespace=~"$namespace", name=~"$workload"})"#,
                "ready",
            )],
        },
        Panel {
            title: "Accelerators",
            description: "Accelerators that it holds.",
            unit: "short",
            kind: Number,
            width: 3,
            queries: &[(
                r#"sum(${source}_accelerators{$scraped, namespace=~"$namespace", name=~"$workload"})"#,
                "held",
            )],
        },
        Panel {
            title: "Restarts",
            description: "Failures that were answered by a restart; kubectl lockstep status NAME has causes and costs of the last.",
            unit: "short",
            kind: Number,
            width: 3,
            queries: &[(
                r#"sum(${source}_restarts{$scraped, namespace=~"$namespace", name=~"$workload"})"#,
                "restarts",
            )],
        },
        Panel {
            title: "GPU-hours lost",
            description: "Time of accelerators that failures and preemption have lost since it was created: work since the last checkpoint that was declared, and the restarts.",
            unit: "short",
            kind: Number,
            width: 3,
            queries: &[(
                r#"sum(${source}_lost_accelerator_seconds{$scraped, namespace=~"$namespace", name=~"$workload"}) / 3600"#,
                "lost",
            )],
        },
        Panel {
            title: "Not shown",
            description: "Workloads that have no series because there are more than metrics.workloads.max. Only the manager knows, kube-state-metrics shows all.",
            unit: "short",
            kind: Number,
            width: 3,
            queries: &[("max(lockstep_workloads_not_shown{$scraped})", "not shown")],
        },
        Panel {
            title: "Conditions that hold",
            description: "When each condition was True.",
            unit: "short",
            kind: Timeline,
            width: 24,
            queries: &[(
                r#"max by (condition) (${source}_status_condition{$scraped, namespace=~"$namespace", name=~"$workload", status="True"})"#,
                "{{condition}}",
            )],
        },
        Panel {
            title: "Members",
            description: "Members that are ready, those that have succeeded, and those that should be there.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    r#"sum(${source}_members{$scraped, namespace=~"$namespace", name=~"$workload"})"#,
                    "should be there",
                ),
                (
                    r#"sum(${source}_ready{$scraped, namespace=~"$namespace", name=~"$workload"})"#,
                    "ready",
                ),
                (
                    r#"sum(${source}_succeeded{$scraped, namespace=~"$namespace", name=~"$workload"})"#,
                    "succeeded",
                ),
            ],
        },
        Panel {
            title: "Accelerators held",
            description: "From the placement until the nodes are released.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                r#"sum(${source}_accelerators{$scraped, namespace=~"$namespace", name=~"$workload"})"#,
                "held",
            )],
        },
        Panel {
            title: "Attempts and restarts",
            description: "The attempt rises with each restart, those that a preemption or a user asks for included.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    r#"max(${source}_attempt{$scraped, namespace=~"$namespace", name=~"$workload"})"#,
                    "attempt",
                ),
                (
                    r#"sum(${source}_restarts{$scraped, namespace=~"$namespace", name=~"$workload"})"#,
                    "restarts",
                ),
            ],
        },
        Panel {
            title: "GPU-hours lost, over time",
            description: "Time of accelerators that failures and preemption have lost since it was created.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                r#"sum(${source}_lost_accelerator_seconds{$scraped, namespace=~"$namespace", name=~"$workload"}) / 3600"#,
                "lost",
            )],
        },
        Panel {
            title: "Workloads of the namespace",
            description: "All of them now, to choose from.",
            unit: "short",
            kind: Table,
            width: 24,
            queries: &[(
                r#"max by (name, phase, reason, priority_class) (${source}_info{$scraped, namespace=~"$namespace"})"#,
                "",
            )],
        },
    ],
};
