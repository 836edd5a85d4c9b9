//! The configuration file: YAML, read once, strict. A key that does not exist ends the process,
//! because a setting that is silently not applied is worse than none.

mod convert;

use std::net::SocketAddr;
use std::time::Duration;

use kube::core::Duration as Span;
use lockstep_lifecycle::LifecycleSettings;
use lockstep_scheduler::config::{SchedulerConfig, time};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// All settings of the manager. Every key has a default; durations are written as in Go (`15s`,
/// `500ms`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// Which of several managers acts.
    pub leader_election: LeaderElection,
    /// `/healthz` and `/readyz`.
    pub health: Endpoint,
    /// `/metrics`.
    pub metrics: Endpoint,
    /// Requests to the API server.
    pub client: ClientConfig,
    /// Every workload and the scheduler are looked at once in this time even if nothing changes, as
    /// a repair; a look writes nothing when nothing differs. 0 turns it off, otherwise at least 1s.
    pub resync_period: Span,
    /// How workloads are driven.
    pub workloads: WorkloadConfig,
    /// How gangs are placed and who is preempted.
    pub scheduler: SchedulerConfig,
    /// How the node agents are found.
    pub agents: AgentConfig,
    /// The supervisor of training processes.
    pub supervisor: SupervisorConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            leader_election: LeaderElection::default(),
            health: Endpoint::any(8081),
            metrics: Endpoint::any(8080),
            client: ClientConfig::default(),
            resync_period: secs(600),
            workloads: WorkloadConfig::default(),
            scheduler: SchedulerConfig::default(),
            agents: AgentConfig::default(),
            supervisor: SupervisorConfig::default(),
        }
    }
}

/// Leader election on a Lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LeaderElection {
    /// False: act without a lease. Only for a single process.
    pub enabled: bool,
    /// Name of the Lease, in the manager's own namespace.
    pub name: String,
    /// How long others wait after the last renewal before they take over. Whole seconds.
    pub lease_duration: Span,
    /// How long the leader acts after its last renewal; less than `leaseDuration`.
    pub renew_deadline: Span,
    /// Time between attempts; less than `renewDeadline`.
    pub retry_period: Span,
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self {
            enabled: true,
            name: "lockstep-manager".into(),
            lease_duration: secs(15),
            renew_deadline: secs(10),
            retry_period: secs(2),
        }
    }
}

/// Where an HTTP endpoint listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Endpoint {
    /// Address and port; port 0 takes a free one.
    pub bind_address: SocketAddr,
}

impl Endpoint {
    fn any(port: u16) -> Self {
        Self {
            bind_address: SocketAddr::from(([0, 0, 0, 0], port)),
        }
    }
}

/// Requests to the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientConfig {
    /// Longest time for a read.
    pub read_timeout: Span,
    /// Longest time for a write. Writes are not repeated blindly, they are decided anew.
    pub write_timeout: Span,
    /// First lists as streams, where the API server knows how.
    pub streaming_lists: bool,
    /// Wait after the first failure of a watch; doubles.
    pub watch_backoff_min: Span,
    /// Longest such wait.
    pub watch_backoff_max: Span,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            read_timeout: secs(30),
            write_timeout: secs(8),
            streaming_lists: true,
            watch_backoff_min: millis(500),
            watch_backoff_max: secs(30),
        }
    }
}

/// How workloads are driven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorkloadConfig {
    /// WorkloadConfig worked on at a time, 1 to 1000.
    pub concurrency: usize,
    /// Requests in flight for one workload, 1 to 1000.
    pub requests_in_flight: usize,
    /// Wait after the first failed pass over a workload; doubles.
    pub retry_min: Span,
    /// Longest such wait.
    pub retry_max: Span,
    /// Wait before the second counted incident in a row is acted on; doubles.
    pub incident_backoff_min: Span,
    /// Longest such wait.
    pub incident_backoff_max: Span,
    /// A domain that ran this long without incident starts over: no back-off, all in-place
    /// attempts.
    pub healthy_reset: Span,
    /// Wait after the first placement that ended before all members ran; doubles.
    pub placement_backoff_min: Span,
    /// Longest such wait.
    pub placement_backoff_max: Span,
    /// How long a gang stays away from a node that was lost, rejected its pod or did not start it
    /// in time.
    pub avoid_node: Span,
    /// After a refused request, how long until it is tried again.
    pub refusal_retry: Span,
    /// How long pod status waits for the agent's report of the true exit code.
    pub report_grace: Span,
    /// Restarts with new pods, after the in-place tries are used up, before a gang gives its
    /// placement back.
    pub recreate_tries: i32,
    /// What replacing a pod takes: a kubelet's crash back-off that is longer is not waited for.
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

/// How pods of the node agents are recognised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Their namespace; empty: the manager's own.
    pub namespace: String,
    /// Key of a label that they carry.
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SupervisorConfig {
    /// Image that it is copied from, which training pods must be able to pull; empty: no pod gets a
    /// supervisor.
    pub image: String,
}

/// Why a configuration is refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Not YAML, an unknown key, a value of another type.
    #[error("{0}")]
    Syntax(String),
    /// Values that do not fit together.
    #[error("{0}")]
    Values(&'static str),
}

impl Config {
    /// Reads and checks a configuration. Empty text is the default configuration.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = if text.trim().is_empty() {
            Self::default()
        } else {
            serde_saphyr::from_str(text)
                .map_err(|e| ConfigError::Syntax(one_line(&e.to_string())))?
        };
        config.check()?;
        Ok(config)
    }

    /// All settings as YAML.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).unwrap_or_default()
    }

    fn check(&self) -> Result<(), ConfigError> {
        let election = &self.leader_election;
        let workloads = &self.workloads;
        let rules = [
            (
                time(election.renew_deadline) < time(election.lease_duration),
                "leaderElection.renewDeadline must be less than leaseDuration",
            ),
            (
                time(election.retry_period) < time(election.renew_deadline),
                "leaderElection.retryPeriod must be less than renewDeadline",
            ),
            (
                time(election.retry_period) >= Duration::from_millis(50),
                "leaderElection.retryPeriod must be at least 50ms",
            ),
            (
                time(election.lease_duration) >= Duration::from_secs(1)
                    && time(election.lease_duration).subsec_nanos() == 0,
                "leaderElection.leaseDuration must be whole seconds, at least 1s",
            ),
            (
                !election.name.is_empty(),
                "leaderElection.name must not be empty",
            ),
            (
                !election.enabled
                    || time(self.client.write_timeout) < time(election.renew_deadline),
                "client.writeTimeout must be less than leaderElection.renewDeadline: a write must end before leadership does",
            ),
            (
                !time(self.client.write_timeout).is_zero()
                    && !time(self.client.read_timeout).is_zero(),
                "client.readTimeout and client.writeTimeout must be positive",
            ),
            (
                time(self.resync_period).is_zero()
                    || time(self.resync_period) >= Duration::from_secs(1),
                "resyncPeriod must be 0 or at least 1s",
            ),
            (
                (1..=1000).contains(&workloads.concurrency),
                "workloads.concurrency must be 1 to 1000",
            ),
            (
                (1..=1000).contains(&workloads.requests_in_flight),
                "workloads.requestsInFlight must be 1 to 1000",
            ),
            (
                time(workloads.retry_min) >= Duration::from_millis(10)
                    && workloads.retry_min <= workloads.retry_max,
                "workloads.retryMin must be at least 10ms and at most retryMax",
            ),
            (
                !self.supervisor.image.contains(char::is_whitespace),
                "supervisor.image must be the name of an image, or empty",
            ),
            (
                workloads.recreate_tries >= 0,
                "workloads.recreateTries must not be negative",
            ),
        ];
        match rules
            .into_iter()
            .chain(self.scheduler.rules())
            .find(|(holds, _)| !holds)
        {
            Some((_, message)) => Err(ConfigError::Values(message)),
            None => Ok(()),
        }
    }
}

fn secs(s: u64) -> Span {
    Duration::from_secs(s).into()
}

fn millis(ms: u64) -> Span {
    Duration::from_millis(ms).into()
}

/// The first line of a parser's message: it names key and place; the rest is a picture of the text.
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
    fn values_that_do_not_fit_together_are_refused() {
        for (text, message) in [
            (
                "leaderElection: {renewDeadline: 20s}",
                "renewDeadline must be less than leaseDuration",
            ),
            (
                "leaderElection: {retryPeriod: 10s}",
                "retryPeriod must be less than renewDeadline",
            ),
            ("leaderElection: {leaseDuration: 15500ms}", "whole seconds"),
            (
                "client: {writeTimeout: 10s}",
                "must be less than leaderElection.renewDeadline",
            ),
            ("resyncPeriod: 10ms", "0 or at least 1s"),
            ("workloads: {concurrency: 0}", "1 to 1000"),
            ("workloads: {retryMin: -1s}", "at least 10ms"),
            (
                "scheduler: {preemption: {cpuWeightMilli: -1}}",
                "must not be negative",
            ),
            (
                "scheduler: {preemption: {assumedCheckpointInterval: 721h}}",
                "at most 720h",
            ),
            (
                "scheduler: {preemption: {minRuntimeSeconds: 2592001}}",
                "at most 2592000",
            ),
            (
                "scheduler: {preemption: {followOnDepth: 4}}",
                "followOnDepth must be 0 to 3",
            ),
            (
                "scheduler: {reservations: {perPriority: 1001}}",
                "perPriority must be 0 to 1000",
            ),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn values_of_another_type_are_refused() {
        for text in [
            "health: {bindAddress: nowhere}",
            "leaderElection: {leaseDuration: 15}",
            "workloads: [1]",
            "a: b",
            "scheduler: {preemption: {minRuntimeSeconds: -5}}",
        ] {
            assert!(Config::parse(text).is_err(), "{text}");
        }
    }
}
