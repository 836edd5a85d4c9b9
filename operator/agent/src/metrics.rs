use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tonic::Code;

use crate::grpc_code;

#[derive(Clone, Debug)]
pub struct Metrics {
    calls: Family<CallLabels, Counter>,
    call_time: Family<CallLabel, Histogram>,
    stops: Family<StopLabels, Counter>,
    /// Steps that failed and are retried.
    pub failed_steps: Counter,
    /// 1 while the runtime is expected to send container events.
    pub subscribed: Gauge,
    /// Members' pods on the node.
    pub members: Gauge,
    /// Supervisors linked to the agent.
    pub links: Gauge,
    /// Links to a supervisor whose container had a link before.
    pub relinks: Counter,
    /// Reports of supervisors about processes that survived SIGKILL.
    pub survivors: Counter,
    refused: Family<RefusalLabels, Counter>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabel {
    call: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StopLabels {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

const RESULTS: [&str; 2] = ["stopped", "failed"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRefusal {
    /// The socket's path names another kind of file.
    Path,
    /// No greeting arrived, or another frame preceded it.
    Greeting,
    Version,
    Frame,
    Flood,
    Unread,
}

impl LinkRefusal {
    const ALL: [Self; 6] = [
        Self::Path,
        Self::Greeting,
        Self::Version,
        Self::Frame,
        Self::Flood,
        Self::Unread,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Greeting => "greeting",
            Self::Version => "version",
            Self::Frame => "frame",
            Self::Flood => "flood",
            Self::Unread => "unread",
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            calls: Family::default(),
            call_time: Family::new_with_constructor(seconds),
            stops: Family::default(),
            failed_steps: Counter::default(),
            subscribed: Gauge::default(),
            members: Gauge::default(),
            links: Gauge::default(),
            relinks: Counter::default(),
            survivors: Counter::default(),
            refused: Family::default(),
        }
    }
}

impl Metrics {
    pub fn called(&self, call: &'static str, code: Code, time: Duration) {
        self.calls
            .get_or_create(&CallLabels {
                call,
                code: grpc_code::name(code),
            })
            .inc();
        self.call_time
            .get_or_create(&CallLabel { call })
            .observe(time.as_secs_f64());
    }

    pub fn stopped(&self, done: bool) {
        let [stopped, failed] = RESULTS;
        let result = if done { stopped } else { failed };
        self.stops.get_or_create(&StopLabels { result }).inc();
    }

    pub fn refused(&self, refusal: LinkRefusal) {
        let reason = refusal.as_str();
        self.refused.get_or_create(&RefusalLabels { reason }).inc();
    }

    /// Registers all metrics. Known label values start at 0.
    pub fn register(&self, registry: &mut Registry) {
        for result in RESULTS {
            drop(self.stops.get_or_create(&StopLabels { result }));
        }
        for reason in LinkRefusal::ALL.map(LinkRefusal::as_str) {
            drop(self.refused.get_or_create(&RefusalLabels { reason }));
        }
        let build = [
            ("version", lockstep_version::VERSION),
            ("commit", lockstep_version::COMMIT),
        ];
        let build = Info::new(build);
        registry.register(
            "lockstep_agent_build",
            "Version and commit of the agent",
            build,
        );
        registry.register(
            "lockstep_agent_runtime_calls",
            "Calls to the container runtime by gRPC code; DeadlineExceeded: the runtime did not answer in time",
            self.calls.clone(),
        );
        registry.register(
            "lockstep_agent_runtime_call_seconds",
            "Length of calls to the container runtime",
            self.call_time.clone(),
        );
        registry.register(
            "lockstep_agent_stops",
            "Containers to be stopped for a restart order, by result: stopped, failed",
            self.stops.clone(),
        );
        registry.register(
            "lockstep_agent_failed_steps",
            "Steps that failed and are retried",
            self.failed_steps.clone(),
        );
        registry.register(
            "lockstep_agent_event_stream",
            "1 while the runtime sends container events, 0 while the agent lists containers repeatedly",
            self.subscribed.clone(),
        );
        registry.register(
            "lockstep_agent_members",
            "Pods of members on the node",
            self.members.clone(),
        );
        self.register_links(registry);
    }
}

impl Metrics {
    fn register_links(&self, registry: &mut Registry) {
        registry.register(
            "lockstep_agent_supervisor_links",
            "Supervisors linked to the agent",
            self.links.clone(),
        );
        registry.register(
            "lockstep_agent_supervisor_relinks",
            "Links made to a supervisor whose container was linked before",
            self.relinks.clone(),
        );
        registry.register(
            "lockstep_agent_supervisor_refused",
            "Sockets and connections that were refused, by reason: path (no socket at the path of the socket), greeting (no Hello), version (no common version), frame (a violation of the protocol), flood (more than ten frames a second after a burst of a hundred), unread (the peer does not read)",
            self.refused.clone(),
        );
        registry.register(
            "lockstep_agent_supervisor_survivors",
            "Reports of a supervisor that processes have survived SIGKILL",
            self.survivors.clone(),
        );
    }
}

/// Histogram of 1 ms to 16 s with factor 4.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 4.0, 8))
}
