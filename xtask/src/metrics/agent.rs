//! The metrics of the node agent.

use super::Section;
use crate::metric::Kind::{Counter, Gauge, Histogram};
use crate::metric::Metric;

/// In the order of the page.
pub(super) const SECTIONS: [Section; 2] = [
    Section {
        title: "Container runtime",
        about: "",
        metrics: &[
            Metric {
                name: "lockstep_agent_build_info",
                kind: Gauge,
                labels: &["version", "commit"],
                meaning: "1",
            },
            Metric {
                name: "lockstep_agent_runtime_calls_total",
                kind: Counter,
                labels: &["call", "code"],
                meaning: "calls to the container runtime, by gRPC code; those that ran into their deadline are `DeadlineExceeded`",
            },
            Metric {
                name: "lockstep_agent_runtime_call_seconds",
                kind: Histogram,
                labels: &["call"],
                meaning: "how long calls to the container runtime took",
            },
            Metric {
                name: "lockstep_agent_event_stream",
                kind: Gauge,
                labels: &[],
                meaning: "1 while the runtime tells of container events, 0 while it is listed repeatedly",
            },
            Metric {
                name: "lockstep_agent_members",
                kind: Gauge,
                labels: &[],
                meaning: "pods of members on the node",
            },
            Metric {
                name: "lockstep_agent_stops_total",
                kind: Counter,
                labels: &["result"],
                meaning: "containers that were to be stopped for an order: stopped, failed",
            },
            Metric {
                name: "lockstep_agent_failed_steps_total",
                kind: Counter,
                labels: &[],
                meaning: "steps that failed and are repeated",
            },
        ],
    },
    Section {
        title: "Supervisors",
        about: "Refused are sockets and connections where what is at the socket's place is no socket (`path`), who answers says no `Hello` (`greeting`),\n\
                knows no version of ours (`version`), breaks the protocol (`frame`), sends more than ten frames a second after a burst of a hundred\n\
                (`flood`), or does not read (`unread`).",
        metrics: &[
            Metric {
                name: "lockstep_agent_supervisor_links",
                kind: Gauge,
                labels: &[],
                meaning: "supervisors that the agent is linked to",
            },
            Metric {
                name: "lockstep_agent_supervisor_relinks_total",
                kind: Counter,
                labels: &[],
                meaning: "links made again to the supervisor of a container",
            },
            Metric {
                name: "lockstep_agent_supervisor_refused_total",
                kind: Counter,
                labels: &["reason"],
                meaning: "sockets and connections that were refused",
            },
            Metric {
                name: "lockstep_agent_supervisor_survivors_total",
                kind: Counter,
                labels: &[],
                meaning: "reports of a supervisor that processes have outlived SIGKILL",
            },
        ],
    },
];
