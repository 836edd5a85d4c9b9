//! The configuration file: strict YAML. An unknown key ends the process, because a setting that is
//! silently ignored is worse than none. Whether preemption is enabled, the mode of node signals and the
//! log level follow changes of the file ([`live`]). All other settings are read once.

mod autoscaler;
mod convert;
mod kueue;
pub mod live;
mod rules;
mod source;

use std::net::SocketAddr;
use std::time::Duration;

use kube::core::Duration as Span;
use lockstep_api::names;
use lockstep_api::workload::Backend;
use lockstep_lifecycle::LifecycleSettings;
use lockstep_scheduler::config::{NodeHealthConfig, SchedulerConfig, ValueRule};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

pub use self::autoscaler::AutoscalerConfig;
pub use self::kueue::KueueConfig;
pub use self::source::ConfigSource;

/// All settings of the manager. Every key has a default. Durations are written as in Go (`15s`,
/// `500ms`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// Minimum log level, or levels per module: `info,kube=warn`. Empty: the value of
    /// `--log-level`.
    pub log_level: String,
    /// Leader election among several managers.
    pub leader_election: LeaderElection,
    /// `/healthz` and `/readyz`.
    pub health: Endpoint,
    /// `/metrics` and `/metrics/workloads`.
    pub metrics: MetricsConfig,
    /// Requests to the API server.
    pub client: ClientConfig,
    /// Period of the resync, which processes every workload and the scheduler even without changes,
    /// to repair missed events. 0 disables it; otherwise at least 1s. The manager tests as often, at
    /// least every 10 minutes, what the API server supports of native groups.
    pub resync_period: Span,
    /// Workload controller.
    pub workloads: WorkloadConfig,
    /// Objects by which gangs are scheduled.
    pub scheduling: SchedulingConfig,
    /// Placement and preemption of gangs.
    pub scheduler: SchedulerConfig,
    /// Signals of nodes.
    pub node_health: NodeHealthConfig,
    /// Nodes on demand.
    pub autoscaler: AutoscalerConfig,
    /// Quota of teams by Kueue.
    pub kueue: KueueConfig,
    /// Selection of the node agents' pods.
    pub agents: AgentConfig,
    /// The supervisor of training processes.
    pub supervisor: SupervisorConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            log_level: String::new(),
            leader_election: LeaderElection::default(),
            health: Endpoint::any(8081),
            metrics: MetricsConfig::default(),
            client: ClientConfig::default(),
            resync_period: secs(600),
            workloads: WorkloadConfig::default(),
            scheduling: SchedulingConfig::default(),
            scheduler: SchedulerConfig::default(),
            node_health: NodeHealthConfig::default(),
            autoscaler: AutoscalerConfig::default(),
            kueue: KueueConfig::default(),
            agents: AgentConfig::default(),
            supervisor: SupervisorConfig::default(),
        }
    }
}

/// Leader election on a Lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LeaderElection {
    /// Whether to elect a leader. Set to `false` only for a single manager.
    pub enabled: bool,
    /// Name of the Lease, in the manager's own namespace.
    pub name: String,
    /// How long other managers wait after the last renewal before they take over. Whole seconds.
    pub lease_duration: Span,
    /// How long the leader acts after its last renewal. Less than `leaseDuration`.
    pub renew_deadline: Span,
    /// Time between attempts. Less than `renewDeadline`.
    pub retry_period: Span,
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self {
            enabled: true,
            name: names::LEASE.into(),
            lease_duration: secs(15),
            renew_deadline: secs(10),
            retry_period: secs(2),
        }
    }
}

/// Address of an HTTP endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Endpoint {
    /// Address and port. Port 0 selects a free port.
    pub bind_address: SocketAddr,
}

impl Endpoint {
    fn any(port: u16) -> Self {
        Self {
            bind_address: SocketAddr::from(([0, 0, 0, 0], port)),
        }
    }
}

/// Metrics endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// Address and port. Port 0 selects a free port.
    pub bind_address: SocketAddr,
    /// Series of single workloads, at `/metrics/workloads`.
    pub workloads: WorkloadSeriesConfig,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self {
            bind_address: Endpoint::any(8080).bind_address,
            workloads: WorkloadSeriesConfig::default(),
        }
    }
}

/// Series of single workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorkloadSeriesConfig {
    /// Whether to export these series: about 25 for each workload, while it exists. `false`: the
    /// endpoint returns an empty response.
    pub enabled: bool,
    /// Most workloads with series. Running workloads are first, then waiting ones, then ended ones,
    /// each oldest first. `lockstep_workloads_not_shown` counts workloads without series.
    pub max: usize,
}

impl Default for WorkloadSeriesConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            max: 5000,
        }
    }
}

/// Requests to the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientConfig {
    /// Timeout of a read.
    pub read_timeout: Span,
    /// Timeout of a write. A write that times out is decided again, not repeated.
    pub write_timeout: Span,
    /// Wait after the first failure of a watch. Doubles with each further failure.
    pub watch_backoff_min: Span,
    /// Longest such wait.
    pub watch_backoff_max: Span,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            read_timeout: secs(30),
            write_timeout: secs(8),
            watch_backoff_min: millis(500),
            watch_backoff_max: secs(5),
        }
    }
}

/// How workloads are driven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorkloadConfig {
    /// Workloads processed concurrently, 1 to 1000.
    pub concurrency: usize,
    /// Concurrent requests for one workload, 1 to 1000.
    pub requests_in_flight: usize,
    /// Wait after the first failed pass over a workload. Doubles with each further failure.
    pub retry_min: Span,
    /// Longest such wait.
    pub retry_max: Span,
    /// Wait before the restart for the second consecutive counted incident. Doubles with each
    /// further incident.
    pub incident_backoff_min: Span,
    /// Longest such wait.
    pub incident_backoff_max: Span,
    /// A restart domain that has run for this time without incident starts over: no back-off, all
    /// in-place attempts.
    pub healthy_reset: Span,
    /// Wait after the first placement that ended before all members ran. Doubles with each further
    /// one.
    pub placement_backoff_min: Span,
    /// Longest such wait.
    pub placement_backoff_max: Span,
    /// How long a gang avoids a node that did not start its pod in time.
    pub avoid_node: Span,
    /// Wait before a refused request is retried. Also how long a gang avoids a node whose kubelet
    /// rejected its pod.
    pub refusal_retry: Span,
    /// How long the manager waits for the agent's report of the true exit code, if pod status shows
    /// a masked one.
    pub report_grace: Span,
    /// Restarts with new pods, after the in-place tries are used up, before a gang releases its
    /// placement.
    pub recreate_tries: i32,
    /// Estimated duration of replacing a pod. If the kubelet's crash back-off is longer, pods are
    /// replaced instead of restarted in place.
    pub recreate_takes: Span,
}

impl Default for WorkloadConfig {
    fn default() -> Self {
        let settings = LifecycleSettings::default();
        let span = |delta: chrono::TimeDelta| Span::from(delta.to_std().unwrap_or_default());
        Self {
            concurrency: 16,
            requests_in_flight: 32,
            retry_min: millis(100),
            retry_max: secs(60),
            incident_backoff_min: span(settings.incident_backoff),
            incident_backoff_max: span(settings.incident_backoff_max),
            healthy_reset: span(settings.healthy_reset),
            placement_backoff_min: span(settings.placement_backoff),
            placement_backoff_max: span(settings.placement_backoff_max),
            avoid_node: span(settings.avoid),
            refusal_retry: span(settings.retry),
            report_grace: span(settings.report_grace),
            recreate_tries: settings.recreate_tries,
            recreate_takes: span(settings.recreate_takes),
        }
    }
}

/// Objects by which gangs are scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SchedulingConfig {
    /// `Lockstep`: gangs have Lockstep's own scheduling objects only. `Both`: kube-scheduler also gets
    /// a native group for each gang, where the API server supports it. `Kubernetes`: kube-scheduler
    /// places and preempts gangs by their native groups. A change affects the next placement of a
    /// gang. `scheduling.backend` of a workload's spec overrides it.
    pub backend: Backend,
}

/// Selection of the node agents' pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Namespace of the pods. Empty: the manager's own namespace.
    pub namespace: String,
    /// Key of a label of the pods.
    pub label_key: String,
    /// Value of that label.
    pub label_value: String,
}

impl Default for AgentConfig {
    fn default() -> Self {
        let name = "lockstep-agent";
        Self {
            namespace: name.into(),
            label_key: "app.kubernetes.io/name".into(),
            label_value: name.into(),
        }
    }
}

/// The supervisor that restarts training processes inside their containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SupervisorConfig {
    /// Image of the supervisor, which training pods must be able to pull. Empty: no pod gets a
    /// supervisor.
    pub image: String,
    /// Runtime classes whose pods may have a supervisor. Pods with another `runtimeClassName` get none:
    /// sandboxes such as gVisor and Kata hide the supervisor's socket from the agent, so their members
    /// would never start.
    pub runtime_classes: Vec<String>,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self {
            image: String::new(),
            runtime_classes: LifecycleSettings::default().supervisor_runtime_classes,
        }
    }
}

/// Error of a configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Invalid YAML, an unknown key or a value of the wrong type.
    #[error("{0}")]
    Syntax(String),
    /// A value that is out of range or conflicts with another value.
    #[error("{0}")]
    Value(ValueRule),
}

impl Config {
    /// Parses and validates a configuration. Empty text is the default configuration.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = if text.trim().is_empty() {
            Self::default()
        } else {
            serde_saphyr::from_str(text)
                .map_err(|error| ConfigError::Syntax(explained(text, &error.to_string())))?
        };
        config.check()?;
        Ok(config)
    }

    /// All settings as YAML.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).unwrap_or_default()
    }
}

fn secs(s: u64) -> Span {
    Duration::from_secs(s).into()
}

fn millis(ms: u64) -> Span {
    Duration::from_millis(ms).into()
}

/// Describes an error in the text, with key and value if possible.
fn explained(text: &str, error: &str) -> String {
    let Ok(all) = serde_saphyr::from_str::<Value>(text) else {
        return one_line(error);
    };
    let Err(why) = serde_path_to_error::deserialize::<_, Config>(&all) else {
        return one_line(error);
    };
    let key = why.path().to_string();
    let value = all.pointer(&format!("/{}", key.replace('.', "/")));
    match value.filter(|value| !value.is_object()) {
        Some(value) => format!("{key}: Invalid value: {value}: {}", why.inner()),
        None => format!("{key}: {}", why.inner()),
    }
}

/// The first line of a parser's message, which names key and place. The other lines quote the text.
fn one_line(message: &str) -> String {
    message
        .lines()
        .map(str::trim)
        .find(|l| !l.is_empty())
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_defaults_are_read_back_as_the_defaults() {
        let defaults = Config::default();
        assert_eq!(Config::parse(&defaults.to_yaml()).unwrap(), defaults);
        assert_eq!(Config::parse("").unwrap(), defaults);
        assert_eq!(defaults.settings(), LifecycleSettings::default());
    }

    #[test]
    fn preemption_is_enabled_unless_the_configuration_disables_it() {
        let enabled = |text: &str| {
            lockstep_scheduler::SchedulerSettings::from(&Config::parse(text).unwrap().scheduler)
                .preemption_enabled
        };
        assert!(enabled("") && !enabled("scheduler: {preemption: {enabled: false}}"));
        assert!(Config::parse("scheduler: {preemption: {enabled: maybe}}").is_err());
    }

    #[test]
    fn a_key_that_does_not_exist_is_named_in_one_line() {
        let error = Config::parse("workloads:\n  concurency: 3\n")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("concurency") && !error.contains('\n'),
            "{error}"
        );
    }

    #[test]
    fn a_value_that_is_refused_is_named_with_its_key_and_what_it_may_be() {
        for (text, message) in [
            (
                "leaderElection: {renewDeadline: 20s}",
                r#"leaderElection.renewDeadline: Invalid value: "20s": must be less than leaderElection.leaseDuration"#,
            ),
            (
                "leaderElection: {retryPeriod: 10s}",
                r#"leaderElection.retryPeriod: Invalid value: "10s": must be less than leaderElection.renewDeadline"#,
            ),
            (
                "leaderElection: {leaseDuration: 15500ms}",
                r#"leaderElection.leaseDuration: Invalid value: "15.5s": must be whole seconds, at least 1s"#,
            ),
            (
                "client: {writeTimeout: 10s}",
                r#"client.writeTimeout: Invalid value: "10s": must be less than leaderElection.renewDeadline"#,
            ),
            (
                "client: {readTimeout: 0s}",
                r#"client.readTimeout: Invalid value: "0ns": must be positive"#,
            ),
            (
                "logLevel: verbose",
                r#"logLevel: Invalid value: "verbose": must be off, error, warn, info, debug or trace, levels per module (info,kube=warn), or empty"#,
            ),
            (
                "resyncPeriod: 10ms",
                r#"resyncPeriod: Invalid value: "10ms": must be 0 or at least 1s"#,
            ),
            (
                "metrics: {workloads: {max: 0}}",
                r#"metrics.workloads.max: Invalid value: "0": must be 1 to 100000"#,
            ),
            (
                "workloads: {concurrency: 0}",
                r#"workloads.concurrency: Invalid value: "0": must be 1 to 1000"#,
            ),
            (
                "workloads: {retryMin: -1s}",
                r#"workloads.retryMin: Invalid value: "-1s": must be at least 10ms"#,
            ),
            (
                "client: {watchBackoffMin: 0s}",
                r#"client.watchBackoffMin: Invalid value: "0ns": must be at least 10ms"#,
            ),
            (
                "client: {watchBackoffMin: 31s}",
                r#"client.watchBackoffMin: Invalid value: "31s": must be at most client.watchBackoffMax"#,
            ),
            (
                "workloads: {retryMax: 99ms}",
                r#"workloads.retryMin: Invalid value: "100ms": must be at most workloads.retryMax"#,
            ),
            (
                "workloads: {incidentBackoffMin: 10m}",
                r#"workloads.incidentBackoffMin: Invalid value: "600s": must be at most workloads.incidentBackoffMax"#,
            ),
            (
                "workloads: {placementBackoffMin: 10m}",
                r#"workloads.placementBackoffMin: Invalid value: "600s": must be at most workloads.placementBackoffMax"#,
            ),
            (
                "workloads: {reportGrace: -5s}",
                r#"workloads.reportGrace: Invalid value: "-5s": must be at least 0s"#,
            ),
            (
                "scheduler: {preemption: {cpuWeightMilli: -1}}",
                r#"scheduler.preemption.cpuWeightMilli: Invalid value: "-1": must be at least 0"#,
            ),
            (
                "scheduler: {preemption: {assumedCheckpointInterval: 721h}}",
                r#"scheduler.preemption.assumedCheckpointInterval: Invalid value: "2595600s": must be at most 720h (30 days)"#,
            ),
            (
                "scheduler: {preemption: {minRuntimeSeconds: 2592001}}",
                r#"scheduler.preemption.minRuntimeSeconds: Invalid value: "2592001": must be 0 to 2592000 (30 days)"#,
            ),
            (
                "scheduler: {preemption: {followOnDepth: 4}}",
                r#"scheduler.preemption.followOnDepth: Invalid value: "4": must be 0 to 3"#,
            ),
            (
                "scheduler: {preemption: {victims: {longestGracePeriod: 29s}}}",
                r#"scheduler.preemption.victims.longestGracePeriod: Invalid value: "29s": must be 30s to 720h (30 days)"#,
            ),
            (
                "scheduler: {preemption: {maxEvictionsPerMinute: 100001}}",
                r#"scheduler.preemption.maxEvictionsPerMinute: Invalid value: "100001": must be 0 to 100000"#,
            ),
            (
                "scheduler: {reservations: {perPriority: 1001}}",
                r#"scheduler.reservations.perPriority: Invalid value: "1001": must be 0 to 1000"#,
            ),
        ] {
            refused_with(text, message);
        }
    }

    #[test]
    fn a_setting_of_node_health_that_is_refused_is_named_with_what_it_may_be() {
        for (text, message) in [
            (
                "nodeHealth: {concurrentMoves: 0}",
                r#"nodeHealth.concurrentMoves: Invalid value: "0": must be 1 to 1000"#,
            ),
            (
                "nodeHealth: {moveHorizon: 5m}",
                r#"nodeHealth.leadTime: Invalid value: "600s": must be at most nodeHealth.moveHorizon"#,
            ),
            (
                "nodeHealth: {signals: [{name: GPUMissing, holdSeconds: 86401}]}",
                r#"nodeHealth.signals: Invalid value: "GPUMissing": must be signals with holdSeconds of 0 to 86400"#,
            ),
            (
                "nodeHealth: {signals: [{name: Dark, level: Faulty, match: {condition: {type: Dark, status: Unknown}}}]}",
                r#"nodeHealth.signals: Invalid value: "Dark: Unknown": must be conditions with status"#,
            ),
        ] {
            refused_with(text, message);
        }
    }

    fn refused_with(text: &str, message: &str) {
        let error = Config::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(message), "{text}: {error}");
    }

    /// Each key with a duration, and `to` in its place.
    fn spans(value: &Value, path: &str, to: &str, out: &mut Vec<(String, Value)>) {
        for (key, value) in value.as_object().into_iter().flatten() {
            let path = format!("{path}.{key}").trim_matches('.').to_owned();
            let span = |v: &str| !v.is_empty() && v.parse::<Span>().is_ok();
            if value.as_str().is_some_and(span) {
                let nested = path.rsplit('.').fold(Value::from(to), |inner, key| {
                    Value::Object([(key.to_owned(), inner)].into_iter().collect())
                });
                out.push((path, nested));
            } else {
                spans(value, &path, to, out);
            }
        }
    }

    #[test]
    fn no_span_may_be_negative_and_the_key_is_named() {
        let all = serde_json::to_value(Config::default()).unwrap();
        let mut negative = Vec::new();
        spans(&all, "", "-1s", &mut negative);
        assert!(negative.len() > 20, "{negative:?}");
        for (key, text) in negative {
            let error = Config::parse(&text.to_string()).unwrap_err().to_string();
            let named = format!("{key}: Invalid value: \"-1s\": must be ");
            assert!(error.starts_with(&named), "{error}");
        }
    }

    #[test]
    fn values_of_another_type_are_refused() {
        for (text, named) in [
            (
                "health: {bindAddress: nowhere}",
                r#"health.bindAddress: Invalid value: "nowhere": "#,
            ),
            (
                "leaderElection: {leaseDuration: 15}",
                "leaderElection.leaseDuration: Invalid value: 15: ",
            ),
            ("workloads: [1]", "line 1 column 12: expected mapping"),
            ("a: b", "a"),
            (
                "scheduler: {preemption: {minRuntimeSeconds: -5}}",
                "scheduler.preemption.minRuntimeSeconds: Invalid value: -5: ",
            ),
            (
                "scheduling: {backend: Kueue}",
                "scheduling.backend: Invalid value: \"Kueue\": unknown variant `Kueue`, expected one of `Lockstep`, `Both`, `Kubernetes`",
            ),
            (
                "scheduler: {preemption: {victims: {scope: All}}}",
                "scheduler.preemption.victims.scope: Invalid value: \"All\": unknown variant `All`, expected one of",
            ),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
