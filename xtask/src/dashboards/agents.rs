//! The dashboard of the node agents.

use super::panel::Kind::{Lines, Number, Table};
use super::panel::{Dashboard, Panel};

pub const AGENTS: Dashboard = Dashboard {
    name: "agents",
    title: "Lockstep / Agents",
    description: "Whether the node agents are well: container runtimes, restarts in place, supervisors. An agent is an instance.",
    scraped: "lockstep_agent_build_info",
    first: &[],
    more: &[],
    panels: &[
        Panel {
            title: "Agents",
            description: "Agents that are scraped. Which nodes have none: kubectl lockstep agents.",
            unit: "short",
            kind: Number,
            width: 6,
            queries: &[("count(lockstep_agent_build_info{$scraped})", "agents")],
        },
        Panel {
            title: "Members",
            description: "Pods of members on the nodes of these agents.",
            unit: "short",
            kind: Number,
            width: 6,
            queries: &[("sum(lockstep_agent_members{$scraped})", "members")],
        },
        Panel {
            title: "Without event stream",
            description: "Agents whose container runtime tells of no events and is listed repeatedly: they learn of an exit later. So is containerd before 2.",
            unit: "short",
            kind: Number,
            width: 6,
            queries: &[(
                "count(lockstep_agent_event_stream{$scraped}) - sum(lockstep_agent_event_stream{$scraped})",
                "agents",
            )],
        },
        Panel {
            title: "Supervisors linked",
            description: "Supervisors that the agents are linked to. What they supervise restarts within its container.",
            unit: "short",
            kind: Number,
            width: 6,
            queries: &[(
                "sum(lockstep_agent_supervisor_links{$scraped})",
                "supervisors",
            )],
        },
        Panel {
            title: "Calls to container runtimes",
            description: "By call and gRPC code. DeadlineExceeded: a runtime that does not answer.",
            unit: "ops",
            kind: Lines,
            width: 12,
            queries: &[(
                "sum by (call, code) (rate(lockstep_agent_runtime_calls_total{$scraped}[$__rate_interval]))",
                "{{call}} {{code}}",
            )],
        },
        Panel {
            title: "Length of calls, 99th percentile",
            description: "How long container runtimes take to answer, by call.",
            unit: "s",
            kind: Lines,
            width: 12,
            queries: &[(
                "histogram_quantile(0.99, sum by (le, call) (rate(lockstep_agent_runtime_call_seconds_bucket{$scraped}[$__rate_interval])))",
                "{{call}}",
            )],
        },
        Panel {
            title: "Containers stopped",
            description: "Containers that were to be stopped for a restart in place: stopped, or failed to.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                "sum by (result) (increase(lockstep_agent_stops_total{$scraped}[$__rate_interval]))",
                "{{result}}",
            )],
        },
        Panel {
            title: "Steps that failed",
            description: "Steps of agents that failed and are repeated, by agent.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                "sum by (instance) (increase(lockstep_agent_failed_steps_total{$scraped}[$__rate_interval]))",
                "{{instance}}",
            )],
        },
        Panel {
            title: "Links to supervisors",
            description: "Links made again, and processes that have outlived SIGKILL: those hang in the kernel, and their node needs somebody.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[
                (
                    "sum(increase(lockstep_agent_supervisor_relinks_total{$scraped}[$__rate_interval]))",
                    "made again",
                ),
                (
                    "sum(increase(lockstep_agent_supervisor_survivors_total{$scraped}[$__rate_interval]))",
                    "outlived SIGKILL",
                ),
            ],
        },
        Panel {
            title: "Supervisors refused",
            description: "Sockets and connections that agents refused, by reason: a container that says what no supervisor of ours says.",
            unit: "short",
            kind: Lines,
            width: 12,
            queries: &[(
                "sum by (reason) (increase(lockstep_agent_supervisor_refused_total{$scraped}[$__rate_interval]))",
                "{{reason}}",
            )],
        },
        Panel {
            title: "Versions",
            description: "Agents by version and commit.",
            unit: "short",
            kind: Table,
            width: 24,
            queries: &[(
                "count by (version, commit) (lockstep_agent_build_info{$scraped})",
                "",
            )],
        },
    ],
};
