//! Configuration of placement and preemption. Part of the manager's configuration, also read by
//! `kubectl lockstep whatif`.

mod node_health;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use kube::core::Duration as Span;
use lockstep_engine as engine;
use lockstep_model::{CostModel, Rules, VictimRules, VictimScope};
use serde::{Deserialize, Serialize};

pub use self::node_health::{NodeHealthConfig, SignalConfig};
use crate::settings::SchedulerSettings;

/// Longest guaranteed run time, in seconds.
const MAX_MIN_RUNTIME: u64 = 30 * 24 * 3600;
/// Upper bound of `assumedCheckpointInterval`.
const MAX_ASSUMED_INTERVAL: Duration = Duration::from_hours(30 * 24);
/// Upper bound of `checkpointWait`.
const MAX_CHECKPOINT_WAIT: Duration = Duration::from_hours(1);
/// Longest chain of evictions. Each link may need a search.
const MAX_FOLLOW_ON: u8 = 3;
/// Range of `longestGracePeriod`.
const GRACE_PERIODS: RangeInclusive<Duration> =
    Duration::from_secs(30)..=Duration::from_hours(30 * 24);
/// Upper bound of `maxEvictionsPerMinute`.
const MAX_EVICTIONS: u32 = 100_000;
/// Upper bound of `perPriority`. Every cycle visits each reservation.
const MAX_RESERVATIONS: usize = 1000;
/// How long budgets may block an eviction before the pod is deleted, if the configuration permits.
/// Leaves budgets time to permit the eviction.
const DELETE_AFTER: Duration = Duration::from_secs(30);

/// Converts a span. A negative span is zero.
pub fn time(span: Span) -> Duration {
    if span.is_negative() {
        Duration::ZERO
    } else {
        span.into()
    }
}

fn secs(seconds: u64) -> Span {
    Duration::from_secs(seconds).into()
}

/// Placement of gangs and preemption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SchedulerConfig {
    /// Changes of the cluster within this time are handled by one cycle.
    pub debounce: Span,
    /// How long kube-scheduler may refuse a pinned pod before its gang is placed elsewhere. Counts from
    /// the time when the cause could have ended, and not while kube-scheduler binds pods that were
    /// waiting before.
    pub refused_pin: Span,
    /// How long the gang avoids that node.
    pub refused_pin_memory: Span,
    /// How long an elastic gang runs without incident before it grows into free capacity. Growing
    /// restarts it once.
    pub grow_after: Span,
    /// Extended resources that count as accelerators. MIG slices (`nvidia.com/mig-*`) count in
    /// sevenths. A pod with another extended resource costs at least as much as one accelerator.
    pub accelerators: Vec<String>,
    /// Capacity reserved for waiting gangs.
    pub reservations: ReservationsConfig,
    /// Preemption.
    pub preemption: PreemptionConfig,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        let settings = SchedulerSettings::default();
        Self {
            debounce: settings.debounce.into(),
            refused_pin: settings.refused_after.into(),
            refused_pin_memory: settings.avoid_refused.into(),
            grow_after: settings.grow_after.into(),
            accelerators: settings.rules.costs.accelerators,
            reservations: ReservationsConfig::default(),
            preemption: PreemptionConfig::default(),
        }
    }
}

/// Capacity reserved for waiting gangs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ReservationsConfig {
    /// Number of waiting gangs per priority with reserved capacity, from the head of the queue; 0
    /// to 1000. With 0, small gangs may block a large gang forever.
    pub per_priority: usize,
}

impl Default for ReservationsConfig {
    fn default() -> Self {
        let rules = Rules::default();
        Self {
            per_priority: rules.reservations_per_priority,
        }
    }
}

/// A rule for the value of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueRule {
    /// True if the value is valid.
    pub holds: bool,
    /// The key.
    pub key: &'static str,
    /// Current value of the key.
    pub value: String,
    /// Allowed values.
    pub must: &'static str,
}

impl ValueRule {
    /// A rule for the value of a key.
    pub fn new(
        holds: bool,
        key: &'static str,
        value: impl fmt::Display,
        must: &'static str,
    ) -> Self {
        Self {
            holds,
            key,
            value: value.to_string(),
            must,
        }
    }

    /// Rule against negative spans, which [`time`] would read as zero.
    pub fn not_negative(key: &'static str, span: Span) -> Self {
        Self::new(!span.is_negative(), key, span, "at least 0s")
    }
}

/// Wording of the API server for invalid values.
impl fmt::Display for ValueRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key, value, must, ..
        } = self;
        write!(f, "{key}: Invalid value: {value:?}: must be {must}")
    }
}

impl SchedulerConfig {
    /// Rules for all values.
    pub fn rules(&self) -> impl Iterator<Item = ValueRule> {
        let reservations = ValueRule::new(
            self.reservations.per_priority <= MAX_RESERVATIONS,
            "scheduler.reservations.perPriority",
            self.reservations.per_priority,
            "0 to 1000",
        );
        let spans = self.spans().into_iter();
        spans.chain(self.preemption.rules()).chain([reservations])
    }

    /// Spans with no rule except that they are not negative.
    fn spans(&self) -> [ValueRule; 6] {
        let p = &self.preemption;
        let interval = p.assumed_checkpoint_interval;
        [
            ValueRule::not_negative("scheduler.debounce", self.debounce),
            ValueRule::not_negative("scheduler.refusedPin", self.refused_pin),
            ValueRule::not_negative("scheduler.refusedPinMemory", self.refused_pin_memory),
            ValueRule::not_negative("scheduler.growAfter", self.grow_after),
            ValueRule::not_negative("scheduler.preemption.restartOverhead", p.restart_overhead),
            ValueRule::not_negative("scheduler.preemption.assumedCheckpointInterval", interval),
        ]
    }
}

/// Preemption of running work for gangs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PreemptionConfig {
    /// Whether gangs may preempt work. `false` stops evictions at once and withdraws preemptions in
    /// progress. Victims whose pods are already terminating still end.
    pub enabled: bool,
    /// How victims are chosen.
    pub algorithm: AlgorithmConfig,
    /// First criterion of `LeastCost`.
    pub order: OrderConfig,
    /// Cost of a restart of a gang, in addition to lost work.
    pub restart_overhead: Span,
    /// Assumed checkpoint interval. Work that reports no checkpoint for longer costs no more, so that
    /// neither missing nor old reports protect it.
    pub assumed_checkpoint_interval: Span,
    /// Longest wait of a preemptor for checkpoints of its victims, 0s to 1h. They are requested where
    /// `spec.checkpoint.onRequest` permits, and otherwise awaited if they are due by then. 0s:
    /// victims are evicted at once. Annotation `training.lockstep.dev/checkpoint-wait` of a
    /// PriorityClass lowers it.
    pub checkpoint_wait: Span,
    /// Weight of one CPU of a pod without accelerators, in thousandths of an accelerator.
    pub cpu_weight_milli: i64,
    /// Guaranteed run time before work may be evicted, in seconds; at most 30 days. If positive,
    /// gangs of lower priority may not use reserved capacity, because they could not be evicted
    /// soon enough.
    pub min_runtime_seconds: u64,
    /// Depth of follow-on evictions (victims that preempt in turn) in the cost of a victim, 0 to 3.
    /// 0 counts the victims alone.
    pub follow_on_depth: u8,
    /// Which work may be evicted.
    pub victims: VictimsConfig,
    /// Most evictions per minute, 0 to 100000; 0 is no limit. Victims of one preemption are evicted
    /// together. If they alone exceed the limit, they are evicted after one minute without
    /// evictions.
    pub max_evictions_per_minute: u32,
    /// Whether pods protected by disruption budgets may be victims if no other choice exists.
    /// Foreign pods are then deleted if the budget keeps blocking their eviction (KEP-5710 respects
    /// budgets on a best-effort basis). If false, protected pods are never victims.
    pub delete_when_eviction_is_refused: bool,
}

impl Default for PreemptionConfig {
    fn default() -> Self {
        let settings = SchedulerSettings::default();
        Self {
            enabled: settings.preemption_enabled,
            algorithm: AlgorithmConfig::LeastCost,
            order: OrderConfig::StrictPriority,
            restart_overhead: secs(settings.rules.costs.restart_overhead_seconds.unsigned_abs()),
            assumed_checkpoint_interval: secs(
                settings
                    .rules
                    .costs
                    .assumed_checkpoint_seconds
                    .unsigned_abs(),
            ),
            checkpoint_wait: settings.checkpoint_wait.into(),
            cpu_weight_milli: settings.rules.costs.cpu_weight_milli,
            min_runtime_seconds: settings.rules.min_runtime.as_secs(),
            follow_on_depth: settings.rules.follow_on_depth,
            victims: VictimsConfig::default(),
            max_evictions_per_minute: settings.max_evictions_per_minute.map_or(0, u32::from),
            delete_when_eviction_is_refused: settings.delete_after.is_some(),
        }
    }
}

/// Which work may be evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct VictimsConfig {
    /// Kind of victims.
    pub scope: VictimScopeConfig,
    /// Namespaces without victims.
    pub excluded_namespaces: BTreeSet<String>,
    /// Labels (key and value) of pods that are never evicted. Protects gangs with such pods.
    pub excluded_labels: BTreeMap<String, String>,
    /// True: pods with label `training.lockstep.dev/evictable: "false"` are never evicted, nor are
    /// gangs with such pods. False: users cannot protect their own work by that label.
    pub opt_out: bool,
    /// Longest grace period of a victim, 30s to 720h. Pods with a longer grace period and their
    /// gangs are never evicted. No gang waits longer than this for a terminating pod.
    pub longest_grace_period: Span,
}

impl Default for VictimsConfig {
    fn default() -> Self {
        let rules = VictimRules::default();
        Self {
            scope: VictimScopeConfig::Accelerators,
            excluded_namespaces: rules.excluded_namespaces,
            excluded_labels: rules.excluded_labels,
            opt_out: rules.opt_out,
            longest_grace_period: rules.longest_grace_period.into(),
        }
    }
}

/// Kind of victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VictimScopeConfig {
    /// Units with an extended resource that the gang requests. For a gang that requests none:
    /// gangs.
    Accelerators,
    /// Gangs and members of gangs.
    Gangs,
    /// Any pod of lower priority.
    Any,
}

/// How victims are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AlgorithmConfig {
    /// The victims that lose the least work.
    LeastCost,
    /// The order of KEP-5710.
    Kep,
}

/// First criterion of `LeastCost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OrderConfig {
    /// Prefers the lowest priorities whose eviction frees enough capacity.
    StrictPriority,
    /// Prefers the least lost work over all lower priorities.
    LeastWork,
}

impl PreemptionConfig {
    fn rules(&self) -> [ValueRule; 7] {
        [
            ValueRule::new(
                !self.checkpoint_wait.is_negative()
                    && time(self.checkpoint_wait) <= MAX_CHECKPOINT_WAIT,
                "scheduler.preemption.checkpointWait",
                self.checkpoint_wait,
                "0s to 1h",
            ),
            ValueRule::new(
                GRACE_PERIODS.contains(&time(self.victims.longest_grace_period)),
                "scheduler.preemption.victims.longestGracePeriod",
                self.victims.longest_grace_period,
                "30s to 720h (30 days)",
            ),
            ValueRule::new(
                time(self.assumed_checkpoint_interval) <= MAX_ASSUMED_INTERVAL,
                "scheduler.preemption.assumedCheckpointInterval",
                self.assumed_checkpoint_interval,
                "at most 720h (30 days)",
            ),
            ValueRule::new(
                self.cpu_weight_milli >= 0,
                "scheduler.preemption.cpuWeightMilli",
                self.cpu_weight_milli,
                "at least 0",
            ),
            ValueRule::new(
                self.min_runtime_seconds <= MAX_MIN_RUNTIME,
                "scheduler.preemption.minRuntimeSeconds",
                self.min_runtime_seconds,
                "0 to 2592000 (30 days)",
            ),
            ValueRule::new(
                self.follow_on_depth <= MAX_FOLLOW_ON,
                "scheduler.preemption.followOnDepth",
                self.follow_on_depth,
                "0 to 3",
            ),
            ValueRule::new(
                self.max_evictions_per_minute <= MAX_EVICTIONS,
                "scheduler.preemption.maxEvictionsPerMinute",
                self.max_evictions_per_minute,
                "0 to 100000",
            ),
        ]
    }
}

impl From<&SchedulerConfig> for SchedulerSettings {
    fn from(config: &SchedulerConfig) -> Self {
        let preemption = &config.preemption;
        let seconds = |span| i64::try_from(time(span).as_secs()).unwrap_or(i64::MAX);
        let rules = Rules {
            algorithm: match preemption.algorithm {
                AlgorithmConfig::LeastCost => engine::Algorithm::LeastCost,
                AlgorithmConfig::Kep => engine::Algorithm::Kep,
            },
            order: match preemption.order {
                OrderConfig::StrictPriority => engine::VictimOrder::StrictPriority,
                OrderConfig::LeastWork => engine::VictimOrder::LeastWork,
            },
            follow_on_depth: preemption.follow_on_depth,
            min_runtime: Duration::from_secs(preemption.min_runtime_seconds),
            costs: CostModel {
                accelerators: config.accelerators.clone(),
                cpu_weight_milli: preemption.cpu_weight_milli,
                restart_overhead_seconds: seconds(preemption.restart_overhead),
                assumed_checkpoint_seconds: seconds(preemption.assumed_checkpoint_interval),
            },
            victims: VictimRules {
                scope: match preemption.victims.scope {
                    VictimScopeConfig::Accelerators => VictimScope::Accelerators,
                    VictimScopeConfig::Gangs => VictimScope::Gangs,
                    VictimScopeConfig::Any => VictimScope::Any,
                },
                excluded_namespaces: preemption.victims.excluded_namespaces.clone(),
                excluded_labels: preemption.victims.excluded_labels.clone(),
                opt_out: preemption.victims.opt_out,
                evict_admitted: false,
                longest_grace_period: time(preemption.victims.longest_grace_period),
            },
            reservations_per_priority: config.reservations.per_priority,
            ..Rules::default()
        };
        Self {
            rules,
            preemption_enabled: preemption.enabled,
            checkpoint_wait: time(preemption.checkpoint_wait),
            max_evictions_per_minute: NonZeroU32::new(preemption.max_evictions_per_minute),
            refused_after: time(config.refused_pin),
            avoid_refused: time(config.refused_pin_memory),
            delete_after: preemption
                .delete_when_eviction_is_refused
                .then_some(DELETE_AFTER),
            grow_after: time(config.grow_after),
            debounce: time(config.debounce),
            ..Self::default()
        }
    }
}
