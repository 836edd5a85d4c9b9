//! What the values of a configuration must be.

use std::time::Duration;

use lockstep_process::log::LogLevel;
use lockstep_scheduler::config::{ValueRule, time};

use super::{Config, ConfigError, LeaderElection, WorkloadConfig};

impl Config {
    /// Whether all values are in range and fit together.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let rules = self
            .leader_election
            .rules()
            .into_iter()
            .chain(self.client_rules())
            .chain(self.workloads.rules())
            .chain(self.other_rules())
            .chain(self.scheduler.rules());
        let broken = rules.into_iter().find(|rule| !rule.holds);
        broken.map_or(Ok(()), |rule| Err(ConfigError::Value(rule)))
    }

    fn client_rules(&self) -> [ValueRule; 3] {
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
                "off, error, warn, info, debug or trace, and so for modules (info,kube=warn), or empty",
            ),
            ValueRule::new(
                (1..=100_000).contains(&shown),
                "metrics.workloads.max",
                shown,
                "1 to 100000",
            ),
            ValueRule::new(
                resync.is_zero() || resync >= Duration::from_secs(1),
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
                lease >= Duration::from_secs(1) && lease.subsec_nanos() == 0,
                "leaderElection.leaseDuration",
                self.lease_duration,
                "whole seconds, at least 1s",
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
    fn rules(&self) -> [ValueRule; 5] {
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
                time(self.retry_min) >= Duration::from_millis(10),
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
                self.recreate_tries >= 0,
                "workloads.recreateTries",
                self.recreate_tries,
                "at least 0",
            ),
        ]
    }
}
