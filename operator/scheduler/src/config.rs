//! How gangs are placed and who is preempted, as the manager's configuration says it. Who asks what the
//! scheduler would do reads it too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use kube::core::Duration as Span;
use lockstep_engine as engine;
use lockstep_model::{CostModel, Rules, VictimRules, VictimScope};
use serde::{Deserialize, Serialize};

use crate::settings::SchedulerSettings;

/// Longest guaranteed run time, in seconds.
const MAX_MIN_RUNTIME: u64 = 30 * 24 * 3600;
/// Longest interval at which work that reports no checkpoints may be assumed to make them.
const MAX_ASSUMED_INTERVAL: Duration = Duration::from_hours(30 * 24);
/// Deepest chain of evictions that is followed: each link may take a search of its own.
const MAX_FOLLOW_ON: u8 = 3;
/// Between these is the longest grace period of a victim.
const GRACE_PERIODS: RangeInclusive<Duration> =
    Duration::from_secs(30)..=Duration::from_hours(30 * 24);
/// Largest number of evictions a minute that may be configured.
const MAX_EVICTIONS: u32 = 100_000;
/// Most reservations of one priority: each is looked at in every cycle.
const MAX_RESERVATIONS: usize = 1000;
/// How long budgets may refuse an eviction before the pod is deleted, where the configuration
/// allows that: long enough for a budget that is about to allow it.
const DELETE_AFTER: Duration = Duration::from_secs(30);

/// A span as a duration. A negative one is none.
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

/// How gangs are placed and who is preempted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SchedulerConfig {
    /// Changes of the cluster that arrive within this time are looked at together.
    pub debounce: Span,
    /// A pinned pod that kube-scheduler has refused for this long is planned elsewhere.
    pub refused_pin: Span,
    /// How long the gang stays away from that node.
    pub refused_pin_memory: Span,
    /// How long a gang that is placed with some of its members runs without incident before it takes
    /// free capacity for more: that restarts it once.
    pub grow_after: Span,
    /// Extended resources that count as accelerators.
    pub accelerators: Vec<String>,
    /// What is kept for gangs that wait.
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

/// What is kept for gangs that wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ReservationsConfig {
    /// For how many waiting gangs of each priority capacity is reserved, the first in the queue, 0 to
    /// 1000. With 0 nothing is reserved, and a large gang may wait for ever while small ones run.
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

/// What must hold for the value of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueRule {
    /// Whether it holds.
    pub holds: bool,
    /// The key.
    pub key: &'static str,
    /// The value that it has.
    pub value: String,
    /// What it has to be.
    pub must: &'static str,
}

impl ValueRule {
    /// This must hold for the value of a key.
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

    /// This span must not be negative: [`time`] would read it as zero.
    pub fn not_negative(key: &'static str, span: Span) -> Self {
        Self::new(!span.is_negative(), key, span, "at least 0s")
    }
}

/// As the API server words it.
impl fmt::Display for ValueRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key, value, must, ..
        } = self;
        write!(f, "{key}: Invalid value: {value:?}: must be {must}")
    }
}

impl SchedulerConfig {
    /// What must hold for the values.
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

    /// Spans that no other rule keeps from being negative.
    fn spans(&self) -> [ValueRule; 7] {
        let p = &self.preemption;
        let interval = p.assumed_checkpoint_interval;
        [
            ValueRule::not_negative("scheduler.debounce", self.debounce),
            ValueRule::not_negative("scheduler.refusedPin", self.refused_pin),
            ValueRule::not_negative("scheduler.refusedPinMemory", self.refused_pin_memory),
            ValueRule::not_negative("scheduler.growAfter", self.grow_after),
            ValueRule::not_negative("scheduler.preemption.restartOverhead", p.restart_overhead),
            ValueRule::not_negative("scheduler.preemption.lostWorkCap", p.lost_work_cap),
            ValueRule::not_negative("scheduler.preemption.assumedCheckpointInterval", interval),
        ]
    }
}

/// Who is preempted for whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PreemptionConfig {
    /// Whether work is evicted for gangs at all. `false` stops evictions at once: preemptions that
    /// have been decided are withdrawn, and only victims whose pods are ending already go.
    pub enabled: bool,
    /// How victims are chosen.
    pub algorithm: AlgorithmConfig,
    /// What `LeastCost` puts first.
    pub order: OrderConfig,
    /// Time that a restart costs a gang besides the work that is lost.
    pub restart_overhead: Span,
    /// Longest time since a reported checkpoint that counts towards the cost of work.
    pub lost_work_cap: Span,
    /// Work that reports no checkpoints is assumed to make one this often: silence protects no
    /// better than reports.
    pub assumed_checkpoint_interval: Span,
    /// Weight of a CPU of pods without accelerators, in thousandths of an accelerator.
    pub cpu_weight_milli: i64,
    /// How long work runs, in seconds, before it may be evicted; at most 30 days. With more than 0,
    /// gangs of lower priority leave alone what is reserved for one that waits: what has just
    /// started could not be taken back.
    pub min_runtime_seconds: u64,
    /// How many evictions that victims would cause in turn count towards the cost of a victim, 0 to
    /// 3; 0 looks at the victims alone.
    pub follow_on_depth: u8,
    /// Which work may be evicted at all.
    pub victims: VictimsConfig,
    /// How many pods may be evicted within a minute, 0 to 100000; 0 is no limit. The victims of one
    /// preemption go together: where they alone are more, they go when nothing was evicted for a
    /// minute.
    pub max_evictions_per_minute: u32,
    /// Whether what disruption budgets keep may be a victim all the same, where no other choice
    /// exists: foreign pods whose eviction is refused for long are deleted then (KEP-5710 spares
    /// budgets only as far as possible). Without it such work is no candidate.
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
            lost_work_cap: secs(settings.rules.costs.cap_seconds.unsigned_abs()),
            assumed_checkpoint_interval: secs(
                settings
                    .rules
                    .costs
                    .assumed_checkpoint_seconds
                    .unsigned_abs(),
            ),
            cpu_weight_milli: settings.rules.costs.cpu_weight_milli,
            min_runtime_seconds: settings.rules.min_runtime.as_secs(),
            follow_on_depth: settings.rules.follow_on_depth,
            victims: VictimsConfig::default(),
            max_evictions_per_minute: settings.max_evictions_per_minute.map_or(0, u32::from),
            delete_when_eviction_is_refused: settings.delete_after.is_some(),
        }
    }
}

/// Which work may be evicted at all. Pods with the label `training.lockstep.dev/evictable: "false"`
/// never are, nor gangs with such a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct VictimsConfig {
    /// Which units of disruption.
    pub scope: VictimScopeConfig,
    /// Namespaces of which nothing is evicted.
    pub excluded_namespaces: BTreeSet<String>,
    /// Labels, key and value: a pod with one of them is not evicted, nor a gang with such a pod.
    pub excluded_labels: BTreeMap<String, String>,
    /// A pod with a longer grace period is not evicted, nor a gang with such a pod, and no gang waits
    /// for a pod that ends later than in this time; 30s to 720h.
    pub longest_grace_period: Span,
}

impl Default for VictimsConfig {
    fn default() -> Self {
        let rules = VictimRules::default();
        Self {
            scope: VictimScopeConfig::Accelerators,
            excluded_namespaces: rules.excluded_namespaces,
            excluded_labels: rules.excluded_labels,
            longest_grace_period: rules.longest_grace_period.into(),
        }
    }
}

/// Which units of disruption may be victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VictimScopeConfig {
    /// Those that hold an extended resource that the gang asks for; for one that asks for none,
    /// gangs.
    Accelerators,
    /// Gangs and members of gangs.
    Gangs,
    /// Every pod of lower priority.
    Any,
}

/// How victims are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AlgorithmConfig {
    /// The set that destroys the least work.
    LeastCost,
    /// KEP-5710.
    Kep,
}

/// What `LeastCost` puts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OrderConfig {
    /// Units of the lowest priorities whose eviction frees enough capacity at all.
    StrictPriority,
    /// Least work over all lower priorities.
    LeastWork,
}

impl PreemptionConfig {
    /// What must hold for the values.
    fn rules(&self) -> [ValueRule; 6] {
        [
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
                cap_seconds: seconds(preemption.lost_work_cap),
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
                opt_out: true,
                longest_grace_period: time(preemption.victims.longest_grace_period),
            },
            reservations_per_priority: config.reservations.per_priority,
            ..Rules::default()
        };
        Self {
            rules,
            preemption_enabled: preemption.enabled,
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
