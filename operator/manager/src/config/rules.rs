//! Rules for the values of the configuration.

use std::time::Duration;

use lockstep_common::log::LogLevel;
use lockstep_scheduler::config::{ValueRule, time};

use super::{Config, ConfigError, LeaderElection, WorkloadConfig};

/// Least wait before a failed operation is retried.
const LEAST_WAIT: Duration = Duration::from_millis(10);

impl Config {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        // Negative spans first: other rules read these as zero and would report another key.
        let rules = self
            .spans()
            .into_iter()
            .chain(self.leader_election.rules())
            .chain(self.client_rules())
            .chain(self.workloads.rules())
            .chain(self.workloads.backoff_rules())
            .chain(self.other_rules())
            .chain(self.scheduler.rules())
            .chain(self.node_health.rules())
            .chain(self.autoscaler.rules());
        let broken = rules.into_iter().find(|rule| !rule.holds);
        broken.map_or(Ok(()), |rule| Err(ConfigError::Value(rule)))
    }

    /// Spans that no other rule protects from negative values.
    fn spans(&self) -> [ValueRule; 12] {
        let (client, w) = (&self.client, &self.workloads);
        let renew = self.leader_election.renew_deadline;
        [
            ValueRule::not_negative("leaderElection.renewDeadline", renew),
            ValueRule::not_negative("client.watchBackoffMax", client.watch_backoff_max),
            ValueRule::not_negative("workloads.retryMax", w.retry_max),
            ValueRule::not_negative("workloads.incidentBackoffMin", w.incident_backoff_min),
            ValueRule::not_negative("workloads.incidentBackoffMax", w.incident_backoff_max),
            ValueRule::not_negative("workloads.healthyReset", w.healthy_reset),
            ValueRule::not_negative("workloads.placementBackoffMin", w.placement_backoff_min),
            ValueRule::not_negative("workloads.placementBackoffMax", w.placement_backoff_max),
            ValueRule::not_negative("workloads.avoidNode", w.avoid_node),
            ValueRule::not_negative("workloads.refusalRetry", w.refusal_retry),
            ValueRule::not_negative("workloads.reportGrace", w.report_grace),
            ValueRule::not_negative("workloads.recreateTakes", w.recreate_takes),
        ]
    }

    fn client_rules(&self) -> [ValueRule; 5] {
        let client = &self.client;
        [
            ValueRule::new(
                !self.leader_election.enabled
                    || time(client.write_timeout) < time(self.leader_election.renew_deadline),
                "client.writeTimeout",
                client.write_timeout,
                "less than leaderElection.renewDeadline: a write must end before leadership does",
            ),
            ValueRule::new(
                !time(client.write_timeout).is_zero(),
                "client.writeTimeout",
                client.write_timeout,
                "positive",
            ),
            ValueRule::new(
                !time(client.read_timeout).is_zero(),
                "client.readTimeout",
                client.read_timeout,
                "positive",
            ),
            // With a wait of zero, lists repeat without pause while the API server fails.
            ValueRule::new(
                time(client.watch_backoff_min) >= LEAST_WAIT,
                "client.watchBackoffMin",
                client.watch_backoff_min,
                "at least 10ms",
            ),
            ValueRule::new(
                client.watch_backoff_min <= client.watch_backoff_max,
                "client.watchBackoffMin",
                client.watch_backoff_min,
                "at most client.watchBackoffMax",
            ),
        ]
    }

    fn other_rules(&self) -> [ValueRule; 4] {
        let resync = time(self.resync_period);
        let image = &self.supervisor.image;
        let shown = self.metrics.workloads.max;
        let level = &self.log_level;
        [
            ValueRule::new(
                level.is_empty() || level.parse::<LogLevel>().is_ok(),
                "logLevel",
                level,
                "off, error, warn, info, debug or trace, levels per module (info,kube=warn), or empty",
            ),
            ValueRule::new(
                (1..=100_000).contains(&shown),
                "metrics.workloads.max",
                shown,
                "1 to 100000",
            ),
            ValueRule::new(
                !self.resync_period.is_negative()
                    && (resync.is_zero() || resync >= Duration::from_secs(1)),
                "resyncPeriod",
                self.resync_period,
                "0 or at least 1s",
            ),
            ValueRule::new(
                !image.contains(char::is_whitespace),
                "supervisor.image",
                image,
                "the name of an image, or empty",
            ),
        ]
    }
}

impl LeaderElection {
    fn rules(&self) -> [ValueRule; 5] {
        let lease = time(self.lease_duration);
        [
            ValueRule::new(
                lease >= Duration::from_secs(1) && lease.subsec_nanos() == 0,
                "leaderElection.leaseDuration",
                self.lease_duration,
                "whole seconds, at least 1s",
            ),
            ValueRule::new(
                time(self.renew_deadline) < lease,
                "leaderElection.renewDeadline",
                self.renew_deadline,
                "less than leaderElection.leaseDuration",
            ),
            ValueRule::new(
                time(self.retry_period) < time(self.renew_deadline),
                "leaderElection.retryPeriod",
                self.retry_period,
                "less than leaderElection.renewDeadline",
            ),
            ValueRule::new(
                time(self.retry_period) >= Duration::from_millis(50),
                "leaderElection.retryPeriod",
                self.retry_period,
                "at least 50ms",
            ),
            ValueRule::new(
                !self.name.is_empty(),
                "leaderElection.name",
                &self.name,
                "the name of a Lease",
            ),
        ]
    }
}

impl WorkloadConfig {
    fn rules(&self) -> [ValueRule; 3] {
        let at_a_time = 1..=1000;
        [
            ValueRule::new(
                at_a_time.contains(&self.concurrency),
                "workloads.concurrency",
                self.concurrency,
                "1 to 1000",
            ),
            ValueRule::new(
                at_a_time.contains(&self.requests_in_flight),
                "workloads.requestsInFlight",
                self.requests_in_flight,
                "1 to 1000",
            ),
            ValueRule::new(
                self.recreate_tries >= 0,
                "workloads.recreateTries",
                self.recreate_tries,
                "at least 0",
            ),
        ]
    }

    /// A first wait above the longest wait is refused, because it would have no effect.
    fn backoff_rules(&self) -> [ValueRule; 4] {
        [
            ValueRule::new(
                time(self.retry_min) >= LEAST_WAIT,
                "workloads.retryMin",
                self.retry_min,
                "at least 10ms",
            ),
            ValueRule::new(
                self.retry_min <= self.retry_max,
                "workloads.retryMin",
                self.retry_min,
                "at most workloads.retryMax",
            ),
            ValueRule::new(
                self.incident_backoff_min <= self.incident_backoff_max,
                "workloads.incidentBackoffMin",
                self.incident_backoff_min,
                "at most workloads.incidentBackoffMax",
            ),
            ValueRule::new(
                self.placement_backoff_min <= self.placement_backoff_max,
                "workloads.placementBackoffMin",
                self.placement_backoff_min,
                "at most workloads.placementBackoffMax",
            ),
        ]
    }
}
