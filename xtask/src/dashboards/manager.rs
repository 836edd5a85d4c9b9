//! The dashboard of the manager.

use super::panel::Kind::{Lines, Number, Table};
use super::panel::{Dashboard, Panel};

pub const MANAGER: Dashboard = Dashboard {
    name: "manager",
    title: "Lockstep / Manager",
    description: "Whether the operator is well: leader, passes, queue, requests to the API server, errors.",
    scraped: "lockstep_build_info",
    first: &[],
    more: &[],
    panels: &[
        Panel {
            title: "Leaders",
            description: "Processes that lead. 1 is right; 0 for a few seconds while another takes over.",
            unit: "short",
            kind: Number,
            width: 6,
            queries: &[("sum(leader_election_master_status{$scraped})", "leaders")],
        },
        Panel {
            title: "Kinds not yet listed",
            description: "Kinds of objects that a process has not listed. It decides nothing before it is 0.",
            unit: "short",
            kind: Number,
            width: 6,
            queries: &[(
                "sum by (instance) (1 - lockstep_synced{$scraped})",
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
                "sum(max by (kind) (lockstep_unreadable_objects{$scraped}))",
                "objects",
            )],
        },
        Panel {
            title: "Workloads in the queue",
            description: "Workloads that wait for a pass of the leader; a follower takes nothing out of its queue.",
            unit: "short",
            kind: Number,
            width: 6,
            queries: &[(
                "max(workqueue_depth{$scraped} and on (cluster, job, instance) leader_election_master_status{$scraped} == 1)",
                "depth",
            )],
        },
        Panel {
            title: "Passes over workloads",
            description: "Passes by result: requeue has written something, success had nothing to do.",
            unit: "ops",
            kind: Lines,
            width: 12,
            queries: &[(
                "sum by (result) (rate(controller_runtime_reconcile_total{$scraped}[$__rate_interval]))",
                "{{result}}",
            )],
        },
        Panel {
            title: "Length of passes, 99th percentile",
            description: "Passes over workloads with their writes, how long workloads wait for one, and how long a worker has one.",
            unit: "s",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    "histogram_quantile(0.99, sum by (le) (rate(controller_runtime_reconcile_time_seconds_bucket{$scraped}[$__rate_interval])))",
                    "pass",
                ),
                (
                    "histogram_quantile(0.99, sum by (le) (rate(workqueue_queue_duration_seconds_bucket{$scraped}[$__rate_interval])))",
                    "wait",
                ),
                (
                    "histogram_quantile(0.99, sum by (le) (rate(workqueue_work_duration_seconds_bucket{$scraped}[$__rate_interval])))",
                    "in hand",
                ),
            ],
        },
        Panel {
            title: "Scheduler, 99th percentile",
            description: "Time to decide, by the most that a cycle did: no gang asked for capacity, a gang did, victims were searched for.",
            unit: "s",
            kind: Lines,
            width: 12,
            queries: &[(
                "histogram_quantile(0.99, sum by (le, kind) (rate(lockstep_scheduler_cycle_seconds_bucket{$scraped}[$__rate_interval])))",
                "{{kind}}",
            )],
        },
        Panel {
            title: "Decisions",
            description: "Placements, changed ones included, and preemptions: proven ones have the cheapest victims that there are, the others the cheapest that were found in time.",
            unit: "ops",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    "sum(rate(lockstep_placements_total{$scraped}[$__rate_interval]))",
                    "placements",
                ),
                (
                    "sum by (proven) (rate(lockstep_preemption_intents_total{$scraped}[$__rate_interval]))",
                    "preemptions, proven: {{proven}}",
                ),
            ],
        },
        Panel {
            title: "Into the queue",
            description: "Workloads that came in for a pass, and those of them that come again after a failure.",
            unit: "ops",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    "sum(rate(workqueue_adds_total{$scraped}[$__rate_interval]))",
                    "added",
                ),
                (
                    "sum(rate(workqueue_retries_total{$scraped}[$__rate_interval]))",
                    "again",
                ),
            ],
        },
        Panel {
            title: "Requests to the API server",
            description: "By code. 409 and 404 are part of the work; 403 and 429 are not.",
            unit: "reqps",
            kind: Lines,
            width: 12,
            queries: &[(
                "sum by (code) (rate(rest_client_requests_total{$scraped}[$__rate_interval]))",
                "{{code}}",
            )],
        },
        Panel {
            title: "Errors",
            description: "Passes that failed, watches that broke, writes that failed (conflicts, which are part of the work, left out), and events that could not be sent.",
            unit: "ops",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    "sum(rate(controller_runtime_reconcile_errors_total{$scraped}[$__rate_interval]))",
                    "passes",
                ),
                (
                    "sum(rate(lockstep_watch_errors_total{$scraped}[$__rate_interval]))",
                    "watches",
                ),
                (
                    r#"sum(rate(lockstep_write_errors_total{$scraped, class!="conflict"}[$__rate_interval]))"#,
                    "writes",
                ),
                (
                    "sum(rate(lockstep_events_lost_total{$scraped}[$__rate_interval]))",
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
                "sum(increase(controller_runtime_reconcile_panics_total{$scraped}[$__rate_interval]))",
                "panics",
            )],
        },
        Panel {
            title: "Time of requests, 99th percentile",
            description: "How long the API server takes to answer, by verb; watches are left out.",
            unit: "s",
            kind: Lines,
            width: 12,
            queries: &[(
                "histogram_quantile(0.99, sum by (le, verb) (rate(rest_client_request_duration_seconds_bucket{$scraped}[$__rate_interval])))",
                "{{verb}}",
            )],
        },
        Panel {
            title: "Workloads in hand",
            description: "Workloads that a worker has now, most that there may be, and for how many seconds they have been there: the oldest, and all together.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    "max(controller_runtime_active_workers{$scraped})",
                    "in hand",
                ),
                (
                    "max(controller_runtime_max_concurrent_reconciles{$scraped})",
                    "most",
                ),
                (
                    "max(workqueue_longest_running_processor_seconds{$scraped})",
                    "seconds, oldest",
                ),
                (
                    "max(workqueue_unfinished_work_seconds{$scraped})",
                    "seconds, all",
                ),
            ],
        },
        Panel {
            title: "Objects held",
            description: "Objects that each process holds in memory, by kind.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                "max by (kind) (lockstep_index_objects{$scraped})",
                "{{kind}}",
            )],
        },
        Panel {
            title: "Memory",
            description: "Resident memory by replica.",
            unit: "bytes",
            kind: Lines,
            width: 12,
            queries: &[(
                "max by (instance) (process_resident_memory_bytes{$scraped})",
                "{{instance}}",
            )],
        },
        Panel {
            title: "Processor",
            description: "Processor time by replica.",
            unit: "percentunit",
            kind: Lines,
            width: 12,
            queries: &[(
                "sum by (instance) (rate(process_cpu_seconds_total{$scraped}[$__rate_interval]))",
                "{{instance}}",
            )],
        },
        Panel {
            title: "Open files",
            description: "Open file descriptors by replica; connections are among them.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                "max by (instance) (process_open_fds{$scraped})",
                "{{instance}}",
            )],
        },
        Panel {
            title: "Running for",
            description: "Time since the start by replica: it falls where one was started again.",
            unit: "s",
            kind: Lines,
            width: 12,
            queries: &[(
                "time() - max by (instance) (process_start_time_seconds{$scraped})",
                "{{instance}}",
            )],
        },
        Panel {
            title: "Versions",
            description: "Version and commit by replica.",
            unit: "short",
            kind: Table,
            width: 12,
            queries: &[(
                "max by (instance, version, commit) (lockstep_build_info{$scraped})",
                "",
            )],
        },
    ],
};
