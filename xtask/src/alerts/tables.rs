//! The alerts. Thresholds are meant to be changed: suitable values depend on the size of the
//! cluster.

use super::rule::Severity::{Critical, Info, Warning};
use super::rule::{Alert, Case};

/// In the order of the list in docs/observability.md.
pub const ALERTS: [Alert; 19] = [
    Alert {
        name: "LockstepManagerDown",
        severity: Critical,
        expr: "absent(lockstep_build_info)",
        hold: "5m",
        summary: "No Lockstep manager is being scraped",
        description: "Running jobs go on, but nothing is placed, restarted or preempted. Look with: kubectl -n lockstep-system get pods -o wide",
        fires: Case {
            series: &[
                (
                    r#"lockstep_build_info{job="lockstep", instance="a"}"#,
                    "1x5 _x60",
                ),
                (
                    r#"lockstep_build_info{job="lockstep", instance="b"}"#,
                    "1x5 _x60",
                ),
            ],
            at: "20m",
        },
        silent: Case {
            series: &[(
                r#"lockstep_build_info{job="lockstep", instance="b"}"#,
                "1x5 _x60",
            )],
            at: "20m",
        },
    },
    Alert {
        name: "LockstepNoLeader",
        severity: Critical,
        expr: r#"max(leader_election_master_status{name="lockstep-manager"}) == 0"#,
        hold: "2m",
        summary: "No Lockstep manager leads",
        description: "Managers run and none of them acts: nothing is placed, restarted or preempted. Look with: kubectl -n lockstep-system get lease lockstep-leader -o yaml",
        fires: Case {
            series: &[(
                r#"leader_election_master_status{job="lockstep", instance="a", name="lockstep-manager"}"#,
                "1x5 0x60",
            )],
            at: "10m",
        },
        silent: Case {
            series: &[(
                r#"leader_election_master_status{job="lockstep", instance="a", name="lockstep-manager"}"#,
                "1x5 0 1x60",
            )],
            at: "8m",
        },
    },
    Alert {
        name: "LockstepTwoLeaders",
        severity: Critical,
        expr: r#"sum(leader_election_master_status{name="lockstep-manager"}) > 1"#,
        hold: "2m",
        summary: "{{ $value }} Lockstep managers say that they lead",
        description: "Each sends writes; those at an old version are refused by the API server. Look with: kubectl -n lockstep-system get lease lockstep-leader -o yaml",
        fires: Case {
            series: &[(
                r#"leader_election_master_status{job="lockstep", instance="b", name="lockstep-manager"}"#,
                "0x5 1x60",
            )],
            at: "10m",
        },
        silent: Case {
            series: &[(
                r#"leader_election_master_status{job="lockstep", instance="b", name="lockstep-manager"}"#,
                "0x5 1x1 0x60",
            )],
            at: "8m",
        },
    },
    Alert {
        name: "LockstepNotReady",
        severity: Warning,
        expr: "min by (job, instance) (lockstep_synced) == 0",
        hold: "10m",
        summary: "Lockstep manager {{ $labels.instance }} has not listed every kind",
        description: "It decides nothing before it has. Which kinds it waits for: kubectl -n lockstep-system describe pods -l app.kubernetes.io/component=manager",
        fires: Case {
            series: &[(
                r#"lockstep_synced{job="lockstep", instance="b", kind="Pod"}"#,
                "0x60",
            )],
            at: "15m",
        },
        silent: Case {
            series: &[(
                r#"lockstep_synced{job="lockstep", instance="b", kind="Pod"}"#,
                "0x5 1x60",
            )],
            at: "15m",
        },
    },
    Alert {
        name: "LockstepWatchErrors",
        severity: Warning,
        expr: "sum by (kind) (rate(lockstep_watch_errors_total[10m])) > 0.05",
        hold: "15m",
        summary: "Watches of {{ $labels.kind }} keep failing",
        description: "Decisions are made from what was seen last. Look with: kubectl -n lockstep-system logs -l app.kubernetes.io/component=manager | grep watch",
        fires: Case {
            series: &[(
                r#"lockstep_watch_errors_total{job="lockstep", instance="a", kind="Pod"}"#,
                "0+6x60",
            )],
            at: "40m",
        },
        silent: Case {
            series: &[(
                r#"lockstep_watch_errors_total{job="lockstep", instance="a", kind="Pod"}"#,
                "0+1x60",
            )],
            at: "40m",
        },
    },
    Alert {
        name: "LockstepWriteErrors",
        severity: Warning,
        expr: r#"sum by (class) (rate(lockstep_write_errors_total{class=~"invalid|throttled|timeout|other"}[10m])) > 0.1"#,
        hold: "15m",
        summary: "Writes of the Lockstep manager keep failing ({{ $labels.class }})",
        description: "Workloads wait for what cannot be written. Which ones: kubectl -n lockstep-system logs -l app.kubernetes.io/component=manager | grep 'pass failed'",
        fires: Case {
            series: &[(
                r#"lockstep_write_errors_total{job="lockstep", instance="a", class="timeout"}"#,
                "0+12x60",
            )],
            at: "40m",
        },
        silent: Case {
            series: &[
                (
                    r#"lockstep_write_errors_total{job="lockstep", instance="a", class="timeout"}"#,
                    "0+3x60",
                ),
                (
                    r#"lockstep_write_errors_total{job="lockstep", instance="a", class="conflict"}"#,
                    "0+60x60",
                ),
            ],
            at: "40m",
        },
    },
    Alert {
        name: "LockstepWritesForbidden",
        severity: Critical,
        expr: r#"sum(increase(lockstep_write_errors_total{class="forbidden"}[15m])) > 3"#,
        hold: "1m",
        summary: "The API server forbids the Lockstep manager to write",
        description: "The manager's service account lacks a right, to write or one that an admission policy asks for, or an admission policy that is not Lockstep's forbids what it writes. Look with: kubectl lockstep doctor",
        fires: Case {
            series: &[(
                r#"lockstep_write_errors_total{job="lockstep", instance="a", class="forbidden"}"#,
                "0+1x60",
            )],
            at: "20m",
        },
        silent: Case {
            series: &[(
                r#"lockstep_write_errors_total{job="lockstep", instance="a", class="forbidden"}"#,
                "0 1x60",
            )],
            at: "10m",
        },
    },
    Alert {
        name: "LockstepPolicyCheckFailed",
        severity: Critical,
        expr: "max by (policy) (lockstep_policy_check_failed) > 0",
        hold: "5m",
        summary: "Admission policy {{ $labels.policy }} refuses the Lockstep manager, or is not in force",
        description: "Either nothing can be written to workloads, or anybody with a role may forge placements. Which it is: kubectl lockstep doctor",
        fires: Case {
            series: &[(
                r#"lockstep_policy_check_failed{job="lockstep", instance="a", policy="lockstep-members"}"#,
                "0x5 1x60",
            )],
            at: "15m",
        },
        // An applied policy takes effect after a moment.
        silent: Case {
            series: &[(
                r#"lockstep_policy_check_failed{job="lockstep", instance="a", policy="lockstep-members"}"#,
                "1x3 0x60",
            )],
            at: "15m",
        },
    },
    Alert {
        name: "LockstepReconcilePanics",
        severity: Warning,
        expr: r#"sum by (controller) (increase(controller_runtime_reconcile_panics_total{controller="trainingworkload"}[15m])) > 0"#,
        hold: "0m",
        summary: "A pass over a workload has panicked",
        description: "That workload is tried again with growing pauses; the others are not touched. Where: kubectl -n lockstep-system logs -l app.kubernetes.io/component=manager | grep panicked",
        fires: Case {
            series: &[(
                r#"controller_runtime_reconcile_panics_total{job="lockstep", instance="a", controller="trainingworkload"}"#,
                "0x5 1x60",
            )],
            at: "10m",
        },
        silent: Case {
            series: &[(
                r#"controller_runtime_reconcile_panics_total{job="lockstep", instance="a", controller="trainingworkload"}"#,
                "0x5 1x60",
            )],
            at: "40m",
        },
    },
    Alert {
        name: "LockstepQueueStuck",
        severity: Critical,
        expr: r#"(max by (job, instance) (workqueue_longest_running_processor_seconds{name="trainingworkload"}) > 120 or max by (job, instance) (min_over_time(workqueue_depth{name="trainingworkload"}[10m])) > 100) and on (job, instance) leader_election_master_status{name="lockstep-manager"} == 1"#,
        hold: "5m",
        summary: "Workloads wait for a pass of the Lockstep manager",
        description: "A pass hangs, or there are more changes than passes. Which workloads: kubectl -n lockstep-system logs -l app.kubernetes.io/component=manager --tail=200; how long requests take: dashboard Lockstep / Manager",
        fires: Case {
            series: &[(
                r#"workqueue_longest_running_processor_seconds{job="lockstep", instance="a", name="trainingworkload"}"#,
                "0x5 60+60x60",
            )],
            at: "20m",
        },
        // A follower does not process its queue.
        silent: Case {
            series: &[(
                r#"workqueue_depth{job="lockstep", instance="b", name="trainingworkload"}"#,
                "5000x60",
            )],
            at: "30m",
        },
    },
    Alert {
        name: "LockstepUnreadableObjects",
        severity: Warning,
        expr: "max by (kind) (lockstep_unreadable_objects) > 0",
        hold: "15m",
        summary: "{{ $value }} objects of kind {{ $labels.kind }} cannot be read",
        description: "They are left alone, whatever they say. Which ones: kubectl lockstep doctor",
        fires: Case {
            series: &[(
                r#"lockstep_unreadable_objects{job="lockstep", instance="a", kind="PodGroup"}"#,
                "1x60",
            )],
            at: "20m",
        },
        silent: Case {
            series: &[(
                r#"lockstep_unreadable_objects{job="lockstep", instance="a", kind="PodGroup"}"#,
                "1x10 0x60",
            )],
            at: "20m",
        },
    },
    Alert {
        name: "LockstepGangWaitsLong",
        severity: Info,
        expr: "max by (priority_class) (lockstep_oldest_wait_seconds) > 86400",
        hold: "15m",
        summary: "A gang has waited for {{ $value | humanizeDuration }}",
        description: "Priority class {{ $labels.priority_class }}. What is short: kubectl lockstep queue, then kubectl lockstep explain NAME",
        fires: Case {
            series: &[(
                r#"lockstep_oldest_wait_seconds{job="lockstep", instance="a", priority_class="batch"}"#,
                "86000+60x60",
            )],
            at: "40m",
        },
        silent: Case {
            series: &[(
                r#"lockstep_oldest_wait_seconds{job="lockstep", instance="a", priority_class="batch"}"#,
                "80000+60x60",
            )],
            at: "40m",
        },
    },
    Alert {
        name: "LockstepHighPriorityWaits",
        severity: Warning,
        expr: "max(lockstep_accelerators_outranked) > 0",
        hold: "30m",
        summary: "A gang waits while lower priorities hold {{ $value }} accelerators",
        description: "Preemption is off, not allowed to it, or would not help. Why: kubectl lockstep explain NAME, for the first of kubectl lockstep queue",
        fires: Case {
            series: &[(
                r#"lockstep_accelerators_outranked{job="lockstep", instance="a"}"#,
                "64x60",
            )],
            at: "40m",
        },
        silent: Case {
            series: &[(
                r#"lockstep_accelerators_outranked{job="lockstep", instance="a"}"#,
                "64x20 0 64x60",
            )],
            at: "40m",
        },
    },
    Alert {
        name: "LockstepWorkloadStalled",
        severity: Warning,
        expr: r#"sum by (namespace, reason) (lockstep_workload_conditions{condition="Stalled", status="True"}) unless on (namespace, reason) sum by (namespace, reason) (lockstep_workload_conditions{condition="Failed", status="True"})"#,
        hold: "15m",
        summary: "{{ $value }} workloads in {{ $labels.namespace }} need a change: {{ $labels.reason }}",
        description: "They do not go on by themselves. Which, and what to change: kubectl get tw -n {{ $labels.namespace }} -o wide",
        fires: Case {
            series: &[(
                r#"lockstep_workload_conditions{job="lockstep", instance="a", namespace="ml", condition="Stalled", status="True", reason="InvalidTemplate"}"#,
                "1x60",
            )],
            at: "20m",
        },
        // A failed workload is also Stalled, with the same reason, until it is deleted.
        silent: Case {
            series: &[
                (
                    r#"lockstep_workload_conditions{job="lockstep", instance="a", namespace="ml", condition="Stalled", status="True", reason="RestartLimitExceeded"}"#,
                    "1x60",
                ),
                (
                    r#"lockstep_workload_conditions{job="lockstep", instance="a", namespace="ml", condition="Failed", status="True", reason="RestartLimitExceeded"}"#,
                    "1x60",
                ),
            ],
            at: "20m",
        },
    },
    Alert {
        name: "LockstepRestartLoop",
        severity: Warning,
        expr: r#"sum by (namespace) (increase(lockstep_incidents_total{counted="true"}[30m])) > 5"#,
        hold: "5m",
        summary: "{{ $value | humanize }} restarts within 30 min in {{ $labels.namespace }}",
        description: "Jobs fail again and again. Which member fails first, and with what: kubectl lockstep status NAME -n {{ $labels.namespace }}",
        fires: Case {
            series: &[(
                r#"lockstep_incidents_total{job="lockstep", instance="a", namespace="ml", action="RestartGang", cause="ContainerExit", counted="true"}"#,
                "0+1x60",
            )],
            at: "30m",
        },
        silent: Case {
            series: &[
                (
                    r#"lockstep_incidents_total{job="lockstep", instance="a", namespace="ml", action="RestartGang", cause="ContainerExit", counted="true"}"#,
                    "0 1 2 3x60",
                ),
                (
                    r#"lockstep_incidents_total{job="lockstep", instance="a", namespace="ml", action="RestartGang", cause="Preempted", counted="false"}"#,
                    "0+1x60",
                ),
            ],
            at: "30m",
        },
    },
    Alert {
        name: "LockstepRestartBudgetLow",
        severity: Warning,
        expr: "min by (namespace) (lockstep_restart_budget_remaining) <= 1",
        hold: "5m",
        summary: "A workload in {{ $labels.namespace }} has {{ $value }} restarts left",
        description: "It fails for good with the next failure but {{ $value }}. Which, and why it restarts: kubectl lockstep list -n {{ $labels.namespace }} -o wide, then kubectl lockstep status NAME",
        fires: Case {
            series: &[(
                r#"lockstep_restart_budget_remaining{job="lockstep", instance="a", namespace="ml"}"#,
                "9x5 1x60",
            )],
            at: "15m",
        },
        silent: Case {
            series: &[(
                r#"lockstep_restart_budget_remaining{job="lockstep", instance="a", namespace="ml"}"#,
                "2x60",
            )],
            at: "15m",
        },
    },
    Alert {
        name: "LockstepRecoverySlow",
        severity: Warning,
        expr: r#"histogram_quantile(0.9, sum by (le, action) (rate(lockstep_recovery_seconds_bucket{action=~"RestartContainer|RestartPod|RestartGang"}[1h]))) > 120"#,
        hold: "10m",
        summary: "One in ten restarts takes longer than {{ $value | humanizeDuration }}",
        description: "Action {{ $labels.action }}. Which phase takes long is in the dashboard Lockstep / Fleet, and for one job: kubectl lockstep status NAME",
        fires: Case {
            series: &[
                (
                    r#"lockstep_recovery_seconds_bucket{job="lockstep", instance="a", action="RestartGang", le="120"}"#,
                    "0x60",
                ),
                (
                    r#"lockstep_recovery_seconds_bucket{job="lockstep", instance="a", action="RestartGang", le="300"}"#,
                    "0+1x60",
                ),
                (
                    r#"lockstep_recovery_seconds_bucket{job="lockstep", instance="a", action="RestartGang", le="+Inf"}"#,
                    "0+1x60",
                ),
            ],
            at: "30m",
        },
        silent: Case {
            series: &[
                (
                    r#"lockstep_recovery_seconds_bucket{job="lockstep", instance="a", action="RestartGang", le="20"}"#,
                    "0+1x60",
                ),
                (
                    r#"lockstep_recovery_seconds_bucket{job="lockstep", instance="a", action="RestartGang", le="+Inf"}"#,
                    "0+1x60",
                ),
                (
                    r#"lockstep_recovery_seconds_bucket{job="lockstep", instance="a", action="RecreateGang", le="300"}"#,
                    "0x60",
                ),
                (
                    r#"lockstep_recovery_seconds_bucket{job="lockstep", instance="a", action="RecreateGang", le="+Inf"}"#,
                    "0+1x60",
                ),
            ],
            at: "30m",
        },
    },
    Alert {
        name: "LockstepAgentsMissing",
        severity: Warning,
        expr: "max(lockstep_nodes_without_agent) > 0 and max(lockstep_agents) > 0",
        hold: "15m",
        summary: "{{ $value }} nodes with members have no ready Lockstep agent",
        description: "Members there are recreated instead of restarted in place. Which nodes: kubectl lockstep agents",
        fires: Case {
            series: &[
                (
                    r#"lockstep_nodes_without_agent{job="lockstep", instance="a"}"#,
                    "3x60",
                ),
                (
                    r#"lockstep_agents{job="lockstep", instance="a", state="ready"}"#,
                    "13x60",
                ),
            ],
            at: "20m",
        },
        // Installed without agents.
        silent: Case {
            series: &[
                (
                    r#"lockstep_nodes_without_agent{job="lockstep", instance="a"}"#,
                    "16x60",
                ),
                (
                    r#"lockstep_agents{job="lockstep", instance="a", state="ready"}"#,
                    "0x60",
                ),
            ],
            at: "20m",
        },
    },
    Alert {
        name: "LockstepPreemptionLossHigh",
        severity: Warning,
        expr: "sum(rate(lockstep_preemption_lost_accelerator_seconds_total[1h])) > 0.05 * sum(lockstep_accelerators_held)",
        hold: "15m",
        summary: "Preemption destroys the work of {{ $value | humanize }} accelerators",
        description: "More than 5 % of what is held. Who evicts whom: kubectl get events -A --field-selector reason=Preempted; how long ago jobs have saved: kubectl lockstep status NAME",
        fires: Case {
            series: &[
                (
                    r#"lockstep_preemption_lost_accelerator_seconds_total{job="lockstep", instance="a"}"#,
                    "0+600x120",
                ),
                (
                    r#"lockstep_accelerators_held{job="lockstep", instance="a", namespace="ml", priority_class=""}"#,
                    "100x120",
                ),
            ],
            at: "90m",
        },
        silent: Case {
            series: &[
                (
                    r#"lockstep_preemption_lost_accelerator_seconds_total{job="lockstep", instance="a"}"#,
                    "0+600x120",
                ),
                (
                    r#"lockstep_accelerators_held{job="lockstep", instance="a", namespace="ml", priority_class=""}"#,
                    "1000x120",
                ),
            ],
            at: "90m",
        },
    },
];
